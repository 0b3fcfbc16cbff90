//! TaintNodesByCondition: a new node takes no Pods until it was seen ready.

use api::Value;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Plugin, done, is, items, spec_list, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "TaintNodesByCondition",
    concerns,
    admit: Some(|_, attributes| {
        if let Some(node) = &mut attributes.object {
            taint(node);
        }
        done(Ok(()))
    }),
    validate: None,
};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create && is(attributes, "", "nodes", "")
}

fn taint(node: &mut Value) {
    if node.get("spec").is_none_or(Value::is_null) {
        node["spec"] = json!({});
    }
    let there = items(node, "/spec/taints").any(|t| text(t, "/key") == NOT_READY && text(t, "/effect") == "NoSchedule");
    if let Some(taints) = spec_list(node, "taints").filter(|_| !there) {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_is_tainted_once() {
        let mut node = json!({"metadata": {"name": "n"}});
        taint(&mut node);
        let once = node.clone();
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
        taint(&mut node);
        assert_eq!(node, once);
    }
}
