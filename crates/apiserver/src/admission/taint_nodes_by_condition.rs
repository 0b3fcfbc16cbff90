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
    use crate::tests::admission::{Write, context};

    /// Upstream: Test_nodeTaints.
    #[tokio::test]
    async fn a_new_node_is_tainted_once() {
        let context = context(Vec::new()).await;
        let not_ready = json!({"key": NOT_READY, "effect": "NoSchedule"});
        let other = json!({"key": NOT_READY, "effect": "NoExecute"});
        let check = async |operation, kind: (&'static str, &'static str), node: Value, expected: Value| {
            let write = Write { operation, kind: ("", kind.0, kind.1), ..Write::create("", node.clone()) };
            assert_eq!(write.through(&context, &PLUGIN).await.unwrap()["spec"]["taints"], expected, "{kind:?} {node}");
        };
        let node = |spec: Value| json!({"metadata": {"name": "n"}, "spec": spec});
        let (create, nodes) = (Operation::Create, ("nodes", ""));
        check(create, nodes, json!({"metadata": {"name": "n"}}), json!([not_ready])).await;
        check(create, nodes, node(json!({})), json!([not_ready])).await;
        check(create, nodes, node(json!({"taints": null})), json!([not_ready])).await;
        check(create, nodes, node(json!({"taints": [not_ready]})), json!([not_ready])).await;
        check(create, nodes, node(json!({"taints": [other]})), json!([other, not_ready])).await;
        let mut unready = node(json!({}));
        unready["status"] = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        check(create, nodes, unready, json!([not_ready])).await;
        // Only the beginning of a node is looked at.
        check(Operation::Update, nodes, node(json!({})), Value::Null).await;
        check(create, ("nodes", "status"), node(json!({})), Value::Null).await;
        check(create, ("pods", ""), node(json!({})), Value::Null).await;
    }
}
