//! Which containers run again after they ended: by the first rule of their own that fits, their own policy, or the Pod's. Pure.
//! Upstream counterpart: ContainerShouldRestart in pkg/api/v1/pod, ShouldAllContainersRestart in pkg/kubelet/container.

use api::rules::{declared_feature::RESTART_ALL_ACTION, pod::exit_code_fits};
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

use crate::pod::{
    desired::DesiredPod,
    memory::Memory,
    running::{ContainerRun, RunningPod, State},
};

fn rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    let fits = |rule: &&ContainerRestartRule| {
        let Some(codes) = &rule.exit_codes else { return false };
        exit_code_fits(&codes.operator, codes.values.iter().flatten().copied(), exit_code)
    };
    container.restart_policy_rules.iter().flatten().find(fits)
}

fn asks_for_all(container: &Container, exit_code: i32) -> bool {
    rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL_ACTION)
}

/// Whether a container that ended is to run again.
pub fn restarts(desired: &DesiredPod, container: &Container, exit_code: i32) -> bool {
    let is_in = |list: &[Container]| list.iter().any(|c| c.name == container.name);
    if is_in(desired.ephemeral_containers()) {
        return false;
    }
    let known = |rule: &ContainerRestartRule| [RESTART_ALL_ACTION, "Restart"].contains(&rule.action.as_str());
    if asks_for_all(container, exit_code) {
        return true;
    }
    let is_init = is_in(desired.init_containers()) && !api::rules::pod::is_sidecar(container);
    if is_init && exit_code == 0 {
        return false;
    }
    rule(container, exit_code).is_some_and(known)
        || match container.restart_policy.as_deref().unwrap_or(desired.restart_policy()) {
            "Never" => false,
            "OnFailure" => exit_code != 0,
            _ => true,
        }
}

/// Whether a container that ended runs again for what it ended of: also one that was ended for it to start with something else.
pub fn goes_on(desired: &DesiredPod, container: &Container, exit_code: i32, memory: &Memory) -> bool {
    memory.container(&container.name).renewal.is_some() || restarts(desired, container, exit_code)
}

/// Whether a container is still to begin, here for the first time or again: it does not run, and its work is not done.
pub fn is_to_begin(desired: &DesiredPod, running: &RunningPod, container: &Container) -> bool {
    let is_init = desired.init_containers().iter().any(|c| c.name == container.name);
    let once = is_init && !api::rules::pod::is_sidecar(container);
    let begun = desired.spec().containers.iter().any(|c| running.current(&c.name).is_some());
    match running.latest(&container.name) {
        Some(ran) if ran.state == State::Running => false,
        // Init containers have done their part for those that came after them.
        _ if once && begun => false,
        // In another sandbox they begin again.
        Some(ran) if once && ran.state == State::Exited => {
            running.current(&container.name).is_none() || restarts(desired, container, ran.exit_code)
        }
        Some(ran) if ran.state == State::Exited => restarts(desired, container, ran.exit_code),
        _ => true,
    }
}

/// The containers whose end asks for all of the Pod to begin anew.
pub fn asking<'a>(desired: &DesiredPod, running: &'a RunningPod) -> Vec<&'a ContainerRun> {
    let all = desired.init_containers().iter().chain(&desired.spec().containers);
    let asks =
        |c: &Container| running.latest(&c.name).filter(|r| r.state == State::Exited && asks_for_all(c, r.exit_code));
    all.filter_map(asks).collect()
}

/// Whether containers of this Pod may ask for that.
pub fn may_ask(desired: &DesiredPod) -> bool {
    !api::rules::declared_feature::to_start(desired.spec()).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod_of;
    use json::{Value, json};

    #[test]
    fn the_first_rule_that_fits_counts_then_the_containers_policy_then_the_pods() {
        let check = |pod: &str, own: Value, codes: &[i32]| {
            let mut main = json!({"name": "m", "image": "x"});
            for (field, value) in own.as_object().unwrap() {
                main[field] = value.clone();
            }
            let desired = pod_of(json!({"spec": {"restartPolicy": pod, "containers": [main]}}));
            let container = desired.container("m").unwrap();
            let again: Vec<i32> = [0, 1, 42].into_iter().filter(|code| restarts(&desired, container, *code)).collect();
            assert_eq!(again, codes, "{pod}: {own}");
        };
        let rule = |operator: &str, codes: &[i32]| json!({"action": "Restart", "exitCodes": {"operator": operator, "values": codes}});
        check("Always", json!({}), &[0, 1, 42]);
        check("OnFailure", json!({}), &[1, 42]);
        check("Never", json!({}), &[]);
        check("Always", json!({"restartPolicy": "Never"}), &[]);
        check("Never", json!({"restartPolicy": "Always"}), &[0, 1, 42]);
        check("Never", json!({"restartPolicy": "OnFailure"}), &[1, 42]);
        check("Always", json!({"restartPolicy": "Never", "restartPolicyRules": [rule("In", &[42])]}), &[42]);
        check("Always", json!({"restartPolicy": "Never", "restartPolicyRules": [rule("NotIn", &[42])]}), &[0, 1]);
        check("Never", json!({"restartPolicy": "OnFailure", "restartPolicyRules": [rule("In", &[0])]}), &[0, 1, 42]);
        check(
            "Never",
            json!({"restartPolicy": "Never", "restartPolicyRules": [rule("In", &[]), rule("In", &[1])]}),
            &[1],
        );
        let all = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
        check("Never", json!({"restartPolicy": "Never", "restartPolicyRules": [all]}), &[42]);
        // A rule that nobody knows leaves it to the policy.
        let unknown = json!({"action": "Other", "exitCodes": {"operator": "In", "values": [42]}});
        check("Never", json!({"restartPolicy": "Never", "restartPolicyRules": [unknown]}), &[]);
    }

    #[test]
    fn an_init_container_that_did_its_part_is_done() {
        let desired = pod_of(json!({"spec": {"restartPolicy": "Never", "containers": [], "initContainers": [
            {"name": "plain"}, {"name": "own", "restartPolicy": "OnFailure"},
            {"name": "rule", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [0, 3]}}]},
            {"name": "sidecar", "restartPolicy": "Always"},
        ]}}));
        for (name, code, expected) in [
            ("plain", 1, false),
            ("own", 0, false),
            ("own", 1, true),
            ("rule", 0, false),
            ("rule", 3, true),
            ("rule", 1, false),
            ("sidecar", 0, true),
        ] {
            assert_eq!(restarts(&desired, desired.container(name).unwrap(), code), expected, "{name} {code}");
        }
    }
}
