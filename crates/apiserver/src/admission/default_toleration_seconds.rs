//! DefaultTolerationSeconds: a Pod stays five minutes on a node that is not ready or not reachable, unless it says
//! otherwise.

use api::Value;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Plugin, done, is, items, spec_list, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DefaultTolerationSeconds",
    concerns,
    admit: Some(|context, attributes| {
        if let Some(pod) = &mut attributes.object {
            tolerate(pod, context.toleration_seconds);
        }
        done(Ok(()))
    }),
    validate: None,
};

/// The seconds that count when the flags are not given.
pub const SECONDS: i64 = 300;

fn concerns(attributes: &Attributes<'_>) -> bool {
    matches!(attributes.operation, Operation::Create | Operation::Update) && is(attributes, "", "pods", "")
}

fn tolerate(pod: &mut Value, (not_ready, unreachable): (i64, i64)) {
    for (key, seconds) in [("node.kubernetes.io/not-ready", not_ready), ("node.kubernetes.io/unreachable", unreachable)]
    {
        let covers = |t: &Value| {
            let (k, effect) = (text(t, "/key"), text(t, "/effect"));
            (k.is_empty() || k == key) && (effect.is_empty() || effect == "NoExecute")
        };
        if items(pod, "/spec/tolerations").any(covers) {
            continue;
        }
        if let Some(list) = spec_list(pod, "tolerations") {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::plugin::Context;
    use crate::tests::admission::{Write, context};

    fn check(tolerations: Value, added: &[&str]) {
        let before = tolerations.as_array().map_or(0, Vec::len);
        let mut pod = json!({"spec": {"tolerations": tolerations}});
        tolerate(&mut pod, (SECONDS, SECONDS));
        let keys: Vec<&str> = items(&pod, "/spec/tolerations").skip(before).map(|t| text(t, "/key")).collect();
        assert_eq!(keys, added);
    }

    #[test]
    fn only_what_is_missing_is_added() {
        let (not_ready, unreachable) = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable");
        check(json!(null), &[not_ready, unreachable]);
        check(json!([{"key": not_ready, "effect": "NoExecute", "operator": "Exists"}]), &[unreachable]);
        check(json!([{"key": not_ready, "effect": "NoSchedule"}]), &[not_ready, unreachable]);
        check(json!([{"operator": "Exists"}]), &[]);
        let other = json!([{"key": "foo", "operator": "Equal", "value": "bar", "effect": "NoSchedule"}]);
        check(other, &[not_ready, unreachable]);
        let of = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 700});
        check(json!([of(unreachable)]), &[not_ready]);
        check(json!([of(not_ready), of(unreachable)]), &[]);
        check(json!([{"key": unreachable, "operator": "Exists", "tolerationSeconds": 700}]), &[not_ready]);
        check(json!([of(not_ready)]), &[unreachable]);
        check(json!([{"operator": "Exists", "tolerationSeconds": 700}]), &[]);
    }

    /// Upstream: TestHandles.
    #[tokio::test]
    async fn the_seconds_are_those_of_the_flags_and_come_with_pods_alone() {
        let context = Context { toleration_seconds: (7, 9), ..context(Vec::new()).await };
        let of = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let added = json!([of("node.kubernetes.io/not-ready", 7), of("node.kubernetes.io/unreachable", 9)]);
        for (operation, subresource, expected) in [
            (Operation::Create, "", &added),
            (Operation::Update, "", &added),
            (Operation::Delete, "", &Value::Null),
            (Operation::Connect, "", &Value::Null),
            (Operation::Update, "status", &Value::Null),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": {}});
            let write = Write { operation, kind: ("", "pods", subresource), ..Write::create("", pod) };
            let out = write.through(&context, &PLUGIN).await.unwrap();
            assert_eq!(out["spec"]["tolerations"], *expected, "{operation:?} {subresource}");
        }
    }
}
