//! The pod failure policy and the success policy of a Job: what a failed Pod means, and whether enough has succeeded.

use api::rules::indexes::Indexes;
use k8s_openapi::api::{
    batch::v1::{
        PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
        PodFailurePolicyRule, SuccessPolicy,
    },
    core::v1::{ContainerStatus, Pod, PodCondition},
};

/// The consequence of a Pod's failure.
#[derive(Debug, Clone, PartialEq)]
pub enum Consequence {
    /// It counts towards the limits, as every failure that no rule matches.
    Count,
    /// It does not count.
    Ignore,
    /// It counts, and its index is not tried again.
    FailIndex,
    /// It counts, and the whole Job fails with this message.
    FailJob(String),
}

impl Consequence {
    pub fn counts(&self) -> bool {
        *self != Consequence::Ignore
    }
}

/// The first rule that matches decides.
pub fn consequence(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Consequence {
    let rules = policy.map(|p| p.rules.as_slice()).unwrap_or_default();
    let matching = rules.iter().enumerate().find_map(|(at, rule)| Some((at, rule, cause(rule, pod)?)));
    let Some((at, rule, cause)) = matching else { return Consequence::Count };
    match rule.action.as_str() {
        "Ignore" => Consequence::Ignore,
        "FailIndex" => Consequence::FailIndex,
        "FailJob" => Consequence::FailJob(format!("{cause} matching FailJob rule at index {at}")),
        _ => Consequence::Count,
    }
}

/// The fact about the Pod that the rule matches, in words.
fn cause(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    if let Some(codes) = &rule.on_exit_codes {
        let (container, code) = ended_with(codes, pod)?;
        return Some(format!("Container {container} for pod {namespace}/{name} failed with exit code {code}"));
    }
    let condition = has_condition(rule.on_pod_conditions.as_ref()?, pod)?;
    Some(format!("Pod {namespace}/{name} has condition {}", condition.type_))
}

/// The first container, init containers last, that ended with a code that the rule is about. Success never is.
fn ended_with<'a>(codes: &PodFailurePolicyOnExitCodesRequirement, pod: &'a Pod) -> Option<(&'a str, i32)> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let meant = |container: &&ContainerStatus| codes.container_name.as_ref().is_none_or(|n| *n == container.name);
    let mut ended = containers
        .filter(meant)
        .filter_map(|c| Some((c.name.as_str(), c.state.as_ref()?.terminated.as_ref()?.exit_code)))
        .filter(|(_, code)| *code != 0);
    ended.find(|(_, code)| match codes.operator.as_str() {
        "In" => codes.values.contains(code),
        "NotIn" => !codes.values.contains(code),
        _ => false,
    })
}

fn has_condition<'a>(patterns: &[PodFailurePolicyOnPodConditionsPattern], pod: &'a Pod) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| {
        let status =
            |p: &PodFailurePolicyOnPodConditionsPattern| p.status.as_deref().unwrap_or("True") == condition.status;
        patterns.iter().any(|p| p.type_ == condition.type_ && status(p))
    })
}

/// Says which rule the succeeded indexes fulfil, if one.
pub fn fulfilled(policy: Option<&SuccessPolicy>, completions: i32, succeeded: &Indexes) -> Option<String> {
    let mut rules = policy.filter(|_| !succeeded.is_empty())?.rules.iter();
    let at = rules.position(|rule| match &rule.succeeded_indexes {
        Some(text) => {
            let required = Indexes::parse(text, completions);
            let done = required.common(succeeded);
            !required.is_empty() && (done == required.len() || rule.succeeded_count.is_some_and(|count| done >= count))
        }
        None => rule.succeeded_count.is_some_and(|count| succeeded.len() >= count),
    })?;
    Some(format!("Matched rules at index {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn pod(containers: &[(&str, i32)], init: &[(&str, i32)], conditions: &[(&str, &str)]) -> Pod {
        let ended = |list: &[(&str, i32)]| -> Vec<Value> {
            let state = |code: i32| if code < 0 { json!({}) } else { json!({"terminated": {"exitCode": code}}) };
            let one = |(name, code): &(&str, i32)| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state(*code)});
            list.iter().map(one).collect()
        };
        let conditions: Vec<_> = conditions.iter().map(|(t, s)| json!({"type": t, "status": s})).collect();
        json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d"},
            "status": {"phase": "Failed", "containerStatuses": ended(containers), "initContainerStatuses": ended(init),
                "conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let codes = |action: &str, container: Value, operator: &str, values: &[i32]| {
            let codes = json!({"containerName": container, "operator": operator, "values": values});
            json!({"action": action, "onExitCodes": codes})
        };
        let condition =
            |action: &str, kind: &str| json!({"action": action, "onPodConditions": [{"type": kind, "status": "True"}]});
        let check = |rules: &[Value], pod: Pod, expected: Consequence| {
            let policy: PodFailurePolicy = json::from_value(json!({"rules": rules})).unwrap();
            assert_eq!(consequence(Some(&policy), &pod), expected, "{rules:?}");
        };
        let any = Value::Null;
        let fail_job = |text: &str| Consequence::FailJob(text.to_owned());
        let exit = |code: i32| pod(&[("main", code)], &[], &[]);
        check(&[], exit(1), Consequence::Count);
        check(&[codes("Ignore", any.clone(), "In", &[1, 2])], exit(2), Consequence::Ignore);
        check(&[codes("Ignore", any.clone(), "In", &[1, 2])], exit(3), Consequence::Count);
        check(&[codes("Ignore", any.clone(), "NotIn", &[1, 2])], exit(3), Consequence::Ignore);
        // Neither a container that runs nor one that succeeded is a cause.
        check(&[codes("Ignore", any.clone(), "NotIn", &[1, 2])], exit(0), Consequence::Count);
        check(&[codes("Ignore", any.clone(), "NotIn", &[1, 2])], exit(-1), Consequence::Count);
        check(&[codes("Ignore", json!("other"), "In", &[1])], exit(1), Consequence::Count);
        check(&[codes("FailIndex", any.clone(), "In", &[1])], exit(1), Consequence::FailIndex);
        let text = "Container main for pod d/p failed with exit code 5 matching FailJob rule at index 1";
        check(
            &[codes("Ignore", any.clone(), "In", &[1]), codes("FailJob", any.clone(), "In", &[5])],
            exit(5),
            fail_job(text),
        );
        let text = "Container init for pod d/p failed with exit code 5 matching FailJob rule at index 0";
        check(&[codes("FailJob", any.clone(), "In", &[5])], pod(&[("main", -1)], &[("init", 5)], &[]), fail_job(text));
        let text = "Pod d/p has condition DisruptionTarget matching FailJob rule at index 0";
        let disrupted = || pod(&[("main", 5)], &[], &[("Ready", "False"), ("DisruptionTarget", "True")]);
        check(&[condition("FailJob", "DisruptionTarget")], disrupted(), fail_job(text));
        check(&[condition("Ignore", "Ready")], disrupted(), Consequence::Count);
        check(
            &[condition("Count", "DisruptionTarget"), codes("FailJob", any, "In", &[5])],
            disrupted(),
            Consequence::Count,
        );
        assert_eq!(consequence(None, &exit(1)), Consequence::Count);
    }

    #[test]
    fn success_is_a_number_of_indexes_or_certain_ones() {
        let check = |rules: Value, succeeded: &str, expected: Option<usize>| {
            let policy: SuccessPolicy = json::from_value(json!({"rules": rules})).unwrap();
            let text = fulfilled(Some(&policy), 10, &Indexes::parse(succeeded, 10));
            assert_eq!(text, expected.map(|at| format!("Matched rules at index {at}")), "{rules} with {succeeded}");
        };
        check(json!([{"succeededCount": 2}]), "", None);
        check(json!([{"succeededCount": 2}]), "3", None);
        check(json!([{"succeededCount": 2}]), "3,5", Some(0));
        check(json!([{"succeededIndexes": "0-2"}]), "0,1,3-9", None);
        check(json!([{"succeededIndexes": "0-2"}]), "0-5", Some(0));
        check(json!([{"succeededIndexes": "0-4", "succeededCount": 2}]), "4-9", None);
        check(json!([{"succeededIndexes": "0-4", "succeededCount": 2}]), "1,4-9", Some(0));
        check(json!([{"succeededIndexes": "x"}, {"succeededCount": 1}]), "7", Some(1));
        check(json!([{"succeededIndexes": "12"}]), "7", None);
        check(json!([{"succeededIndexes": "9"}, {"succeededIndexes": "1,3"}]), "0-3", Some(1));
    }
}
