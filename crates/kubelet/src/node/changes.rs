//! The events about a node whose status changes. Pure.
//! Upstream counterpart: the setters of pkg/kubelet/nodestatus.

use client::EventKind;
use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};

/// One event about the node.
#[derive(Debug, PartialEq)]
pub struct Told {
    pub kind: EventKind,
    pub reason: &'static str,
    pub message: String,
}

/// The reasons of events: of a condition that begins to hold, and of one that no longer does.
const REASONS: [(&str, &str, &str); 4] = [
    ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
    ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
    ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
    ("Ready", "NodeReady", "NodeNotReady"),
];

fn held<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// The news in the fresh status of a node. That a node which nobody knew is not ready yet goes without saying.
pub fn between(name: &str, before: &NodeStatus, fresh: &NodeStatus) -> Vec<Told> {
    let mut all = Vec::new();
    let boot = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone()).unwrap_or_default();
    let (then, now) = (boot(before), boot(fresh));
    if !then.is_empty() && then != now {
        let message = format!("Node {name} has been rebooted, boot id: {now}");
        all.push(Told { kind: EventKind::Warning, reason: "Rebooted", message });
    }
    for (kind, begins, ends) in REASONS {
        let (Some(now), then) = (held(fresh, kind), held(before, kind)) else { continue };
        let is_first_ready = kind == "Ready" && then.is_none() && now.status != "True";
        if then.is_some_and(|then| then.status == now.status) || is_first_ready {
            continue;
        }
        let reason = if now.status == "True" { begins } else { ends };
        let message = format!("Node {name} status is now: {reason}");
        all.push(Told { kind: EventKind::Normal, reason, message });
    }
    all
}

/// The event that is told when somebody keeps Pods away from the node, or lets them come again.
pub fn of_scheduling(name: &str, unschedulable: bool) -> Told {
    let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
    Told { kind: EventKind::Normal, reason, message: format!("Node {name} status is now: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn status(boot: &str, conditions: &[(&str, &str)]) -> NodeStatus {
        let conditions: Vec<_> =
            conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
        let mut value = json!({"conditions": conditions});
        if !boot.is_empty() {
            let names =
                ["machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion"];
            value["nodeInfo"] =
                json!({"bootID": boot, "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""});
            names.iter().for_each(|name| value["nodeInfo"][*name] = "".into());
        }
        json::from_value(value).unwrap()
    }

    fn told(before: &NodeStatus, fresh: &NodeStatus) -> Vec<&'static str> {
        between("n", before, fresh).iter().map(|told| told.reason).collect()
    }

    #[test]
    fn what_changed_is_told_once() {
        let fresh = status("b", &[("MemoryPressure", "False"), ("DiskPressure", "True"), ("Ready", "False")]);
        assert_eq!(told(&NodeStatus::default(), &fresh), ["NodeHasSufficientMemory", "NodeHasDiskPressure"]);
        assert_eq!(told(&fresh, &fresh), Vec::<&str>::new());
        let ready = status("b", &[("MemoryPressure", "False"), ("DiskPressure", "False"), ("Ready", "True")]);
        assert_eq!(told(&fresh, &ready), ["NodeHasNoDiskPressure", "NodeReady"]);
        assert_eq!(told(&ready, &fresh), ["NodeHasDiskPressure", "NodeNotReady"]);
        // The controller has called it unknown meanwhile.
        let unknown = status("b", &[("Ready", "Unknown")]);
        assert_eq!(told(&unknown, &status("b", &[("Ready", "True")])), ["NodeReady"]);
    }

    #[test]
    fn a_machine_that_began_anew_is_warned_of() {
        let told = between("n", &status("a", &[]), &status("b", &[]));
        let message = "Node n has been rebooted, boot id: b".to_owned();
        assert_eq!(told, [Told { kind: EventKind::Warning, reason: "Rebooted", message }]);
        assert_eq!(between("n", &status("", &[]), &status("b", &[])), []);
        assert_eq!(of_scheduling("n", true).message, "Node n status is now: NodeNotSchedulable");
    }
}
