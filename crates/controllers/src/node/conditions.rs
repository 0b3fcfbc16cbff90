//! The conditions of a node: the taints that follow from them, and their new values when the node falls silent.

use clock::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Condition, the status that matters, the taint.
const TAINTS: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// The conditions that every kubelet posts.
const POSTED: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

pub fn ready(node: &Node) -> Option<&str> {
    condition(node, "Ready").map(|c| c.status.as_str())
}

/// The node's taints as they should be: those of others kept, ours as the conditions say. `evict` allows NoExecute.
pub fn taints(node: &Node, evict: bool, now: Timestamp) -> Vec<Taint> {
    let held = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = TAINTS
        .iter()
        .filter(|(kind, status, _)| condition(node, kind).is_some_and(|c| c.status == *status))
        .map(|(_, _, taint)| (*taint, "NoSchedule"))
        .collect();
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    match ready(node) {
        Some("False") if evict => wanted.push((NOT_READY, "NoExecute")),
        Some("Unknown") if evict => wanted.push((UNREACHABLE, "NoExecute")),
        _ => {}
    }
    let is = |taint: &Taint, pair: &(&str, &str)| taint.key == pair.0 && taint.effect == pair.1;
    let is_ours = |taint: &Taint| match taint.effect.as_str() {
        "NoSchedule" => taint.key == UNSCHEDULABLE || TAINTS.iter().any(|(_, _, key)| *key == taint.key),
        "NoExecute" => taint.key == NOT_READY || taint.key == UNREACHABLE,
        _ => false,
    };
    let mut taints = held;
    taints.retain(|taint| !is_ours(taint) || wanted.iter().any(|pair| is(taint, pair)));
    for pair in wanted {
        if !taints.iter().any(|taint| is(taint, &pair)) {
            taints.push(Taint {
                key: pair.0.to_owned(),
                effect: pair.1.to_owned(),
                value: None,
                time_added: Some(Time(now)),
            });
        }
    }
    taints
}

/// The conditions of a node whose kubelet fell silent, or `None` when they say so already.
pub fn silenced(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for kind in POSTED {
        match conditions.iter_mut().find(|c| c.type_ == *kind) {
            None => {
                changed = true;
                conditions.push(NodeCondition {
                    type_: (*kind).to_owned(),
                    status: "Unknown".to_owned(),
                    reason: Some("NodeStatusNeverUpdated".to_owned()),
                    message: Some("Kubelet never posted node status.".to_owned()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(Time(now)),
                });
            }
            Some(held) if held.status != "Unknown" => {
                changed = true;
                held.status = "Unknown".to_owned();
                held.reason = Some("NodeStatusUnknown".to_owned());
                held.message = Some("Kubelet stopped posting node status.".to_owned());
                held.last_transition_time = Some(Time(now));
            }
            Some(_) => {}
        }
    }
    changed.then_some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn taints_follow_conditions() {
        let check = |ready: &str,
                     disk: &str,
                     unschedulable: bool,
                     evict: bool,
                     held: &[(&str, &str)],
                     expected: &str| {
            let held: Vec<_> = held.iter().map(|(k, e)| json!({"key": k, "effect": e})).collect();
            let node: Node = json::from_value(json!({
                "metadata": {"name": "n"}, "spec": {"unschedulable": unschedulable, "taints": held},
                "status": {"conditions": [{"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": disk}]},
            }))
            .unwrap();
            let taints: Vec<String> = taints(&node, evict, Timestamp::UNIX_EPOCH)
                .iter()
                .map(|t| format!("{}:{}", t.key.rsplit('/').next().unwrap(), t.effect))
                .collect();
            assert_eq!(taints.join(" "), expected);
        };
        check("True", "False", false, true, &[], "");
        check("True", "True", true, true, &[], "disk-pressure:NoSchedule unschedulable:NoSchedule");
        check("False", "False", false, true, &[], "not-ready:NoSchedule not-ready:NoExecute");
        check("Unknown", "False", false, false, &[], "unreachable:NoSchedule");
        let old = [("mine", "NoExecute"), (NOT_READY, "NoExecute"), (NOT_READY, "NoSchedule")];
        check("Unknown", "False", false, true, &old, "mine:NoExecute unreachable:NoSchedule unreachable:NoExecute");
        check("True", "False", false, true, &old, "mine:NoExecute");
    }

    #[test]
    fn a_silent_node_is_unknown() {
        let node: Node = json::from_value(json!({
            "metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let conditions = silenced(&node, Timestamp::UNIX_EPOCH).unwrap();
        let text = |i: usize| (conditions[i].type_.as_str(), conditions[i].message.as_deref().unwrap());
        assert_eq!(text(0), ("Ready", "Kubelet stopped posting node status."));
        assert_eq!(text(1), ("MemoryPressure", "Kubelet never posted node status."));
        let mut silent = node.clone();
        silent.status.as_mut().unwrap().conditions = Some(conditions);
        assert_eq!(silenced(&silent, Timestamp::UNIX_EPOCH), None);
    }
}
