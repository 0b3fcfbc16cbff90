//! Declared features: what a node says that it can do beyond what every node of the cluster can, and which of it a Pod needs
//! to start there, or a change of a Pod to take effect. Pure.
//! Upstream counterpart: k8s.io/component-helpers/nodedeclaredfeatures.

use json::Value;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::pod;
use crate::meta;

/// A guaranteed Pod gets more or less processor time while it runs.
pub const GUARANTEED_CPU_RESIZE: &str = "GuaranteedQoSPodCPUResize";
/// The resources of a Pod as a whole change while it runs.
pub const POD_RESOURCES_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";
/// The end of one container starts all of its Pod again.
pub const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";

/// The action of a restart rule that needs [`RESTART_ALL`].
pub const RESTART_ALL_ACTION: &str = "RestartAllContainers";

/// The features that a node must declare before Pods with this spec may start on it.
pub fn to_start(spec: &PodSpec) -> Vec<&'static str> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut rules = containers.flat_map(|container| container.restart_policy_rules.iter().flatten());
    if rules.any(|rule| rule.action == RESTART_ALL_ACTION) { vec![RESTART_ALL] } else { Vec::new() }
}

/// The features that a Pod's node must declare for this change of the Pod, in their order.
pub fn to_change(old: &Pod, new: &Pod) -> Vec<&'static str> {
    let (Some(before), Some(after)) = (&old.spec, &new.spec) else { return Vec::new() };
    let cpu = |spec: &PodSpec| -> Vec<_> {
        let requests = spec.containers.iter().map(|c| c.resources.as_ref()?.requests.as_ref()?.get("cpu"));
        requests.map(|cpu| cpu.map(super::quantity::parse).unwrap_or_default()).collect()
    };
    let mut needed = Vec::new();
    if pod::qos(old) == pod::GUARANTEED && cpu(before) != cpu(after) {
        needed.push(GUARANTEED_CPU_RESIZE);
    }
    if before.resources != after.resources {
        needed.push(POD_RESOURCES_RESIZE);
    }
    needed
}

/// The features that are needed and not declared.
pub fn missing<'a>(needed: &[&'a str], declared: &[String]) -> Vec<&'a str> {
    needed.iter().copied().filter(|name| !declared.iter().any(|declared| declared == name)).collect()
}

/// The features that a Node object declares.
pub fn of_node(node: &Value) -> Vec<String> {
    let list = meta::at(node, "/status/declaredFeatures").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn spec(value: Value) -> PodSpec {
        json::from_value(value).unwrap()
    }

    #[test]
    fn a_rule_that_restarts_all_needs_a_node_that_can() {
        let check = |value: Value, expected: &[&str]| assert_eq!(to_start(&spec(value.clone())), expected, "{value}");
        let with =
            |action: &str| json!({"name": "c", "restartPolicyRules": [{"action": "Restart"}, {"action": action}]});
        check(json!({"containers": [{"name": "c"}]}), &[]);
        check(json!({"containers": [with("Restart")]}), &[]);
        check(json!({"containers": [{"name": "a"}, with(RESTART_ALL_ACTION)]}), &[RESTART_ALL]);
        check(json!({"containers": [], "initContainers": [with(RESTART_ALL_ACTION)]}), &[RESTART_ALL]);
    }

    #[test]
    fn a_resize_needs_a_node_that_can() {
        let check = |old: Value, new: Value, expected: &[&str]| {
            let pod = |spec: &Value| json::from_value::<Pod>(json!({"spec": spec})).unwrap();
            assert_eq!(to_change(&pod(&old), &pod(&new)), expected, "{old} {new}");
        };
        let with = |requests: Value, limits: Value| json!({"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]});
        let guaranteed = |cpu: &str, memory: &str| {
            with(json!({"cpu": cpu, "memory": memory}), json!({"cpu": cpu, "memory": memory}))
        };
        check(guaranteed("1", "1Gi"), guaranteed("1000m", "1Gi"), &[]);
        check(guaranteed("1", "1Gi"), guaranteed("1", "2Gi"), &[]);
        check(guaranteed("1", "1Gi"), guaranteed("2", "1Gi"), &[GUARANTEED_CPU_RESIZE]);
        check(with(json!({"cpu": "1"}), json!({})), with(json!({"cpu": "2"}), json!({})), &[]);
        let whole = |cpu: &str| {
            let mut spec = guaranteed("1", "1Gi");
            spec["resources"] =
                json!({"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "1Gi"}});
            spec
        };
        check(whole("2"), whole("2"), &[]);
        check(whole("2"), whole("3"), &[POD_RESOURCES_RESIZE]);
        check(guaranteed("1", "1Gi"), whole("2"), &[POD_RESOURCES_RESIZE]);
    }

    #[test]
    fn what_is_not_declared_is_missing() {
        let node = json!({"status": {"declaredFeatures": [POD_RESOURCES_RESIZE]}});
        let needed = [GUARANTEED_CPU_RESIZE, POD_RESOURCES_RESIZE];
        assert_eq!(missing(&needed, &of_node(&node)), [GUARANTEED_CPU_RESIZE]);
        assert_eq!(missing(&needed, &of_node(&json!({}))), needed);
        assert!(missing(&[], &[]).is_empty());
    }
}
