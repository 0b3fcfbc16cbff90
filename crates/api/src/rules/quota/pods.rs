//! Pods: their number, and what they ask for while they run.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodAffinityTerm, PodSpec, ScopedResourceSelectorRequirement};

use super::{Resources, Usage, amounts, number, takes};
use crate::rules::pod::{self, is_terminal, requests, resizing};
use crate::rules::resource_name::{OF_DEVICE_CLASS, is_huge, is_native, may_be_devices};

/// The names by which a Pod's usage is its request (`cpu` means the same as `requests.cpu`) or its limit.
const COMPUTE: &[&str] = &["cpu", "memory", "ephemeral-storage"];

pub(super) fn counts(name: &str) -> bool {
    let asked = name.strip_prefix("requests.").unwrap_or(name);
    let base = name.strip_prefix("limits.").unwrap_or(asked);
    let extended = || asked != name && (!is_native(name) || asked.starts_with(OF_DEVICE_CLASS));
    matches!(name, "count/pods" | "pods") || COMPUTE.contains(&base) || is_huge(asked) || extended()
}

/// The names for what is asked for and for the limits.
fn by_quota_name(requests: &Resources, limits: &Resources) -> Resources {
    let mut used = Resources::from([("pods".to_owned(), number(1))]);
    for (name, amount) in requests {
        if COMPUTE.contains(&name.as_str()) || is_huge(name) {
            used.insert(name.clone(), *amount);
            used.insert(format!("requests.{name}"), *amount);
        }
        if may_be_devices(name) {
            used.insert(format!("requests.{name}"), *amount);
        }
    }
    let limits = limits.iter().filter(|(name, _)| COMPUTE.contains(&name.as_str()));
    used.extend(limits.map(|(name, amount)| (format!("limits.{name}"), *amount)));
    used
}

/// Whether its compute resources count: not when it has ended, nor when it should have been gone by now.
fn is_counted(pod: &Pod, now: Timestamp) -> bool {
    let meta = &pod.metadata;
    let overdue =
        meta.deletion_timestamp.as_ref().zip(meta.deletion_grace_period_seconds).is_some_and(|(time, grace)| {
            // The time of deletion includes the grace period.
            let patience = SignedDuration::from_secs(grace);
            now > time.0.checked_add(patience).unwrap_or(Timestamp::MAX)
        });
    !is_terminal(pod) && !overdue
}

/// Whether a Pod with this deadline (`spec.activeDeadlineSeconds`) is in the scope `Terminating`; else it is in
/// `NotTerminating`.
pub fn is_terminating(deadline: Option<i64>) -> bool {
    deadline.is_some_and(|seconds| seconds >= 0)
}

impl Usage for Pod {
    fn used(&self, now: Timestamp) -> Resources {
        let mut used = Resources::from([("count/pods".to_owned(), number(1))]);
        if let Some(spec) = self.spec.as_ref().filter(|_| is_counted(self, now)) {
            let resized = resizing(self);
            let spec = resized.as_ref().unwrap_or(spec);
            used.extend(by_quota_name(&requests(spec), &pod::limits(spec)));
        }
        used
    }

    fn is_in(&self, scope: &ScopedResourceSelectorRequirement) -> bool {
        let Some(spec) = &self.spec else { return false };
        let terminating = is_terminating(spec.active_deadline_seconds);
        let best_effort = || pod::qos(self) == pod::BEST_EFFORT;
        match scope.scope_name.as_str() {
            "Terminating" => terminating,
            "NotTerminating" => !terminating,
            "BestEffort" => best_effort(),
            "NotBestEffort" => !best_effort(),
            "PriorityClass" => {
                let class = spec.priority_class_name.as_deref().filter(|class| !class.is_empty());
                takes(scope, class.as_slice())
            }
            "CrossNamespacePodAffinity" => looks_elsewhere(spec),
            _ => false,
        }
    }

    /// A container must state what a quota of cpu or memory limits, unless the Pod states something as a whole; no other
    /// resource demands that.
    fn unstated(&self, limited: &BTreeSet<&str>) -> Option<String> {
        let demanding = |name: &&&str| {
            let base = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
            matches!(base, "cpu" | "memory")
        };
        let limited: Vec<&str> = limited.iter().filter(demanding).copied().collect();
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let spec = self.spec.as_ref().filter(|spec| !pod::has_resources(spec))?;
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let stated = stated(container);
            for name in limited.iter().filter(|name| !stated.contains_key(**name)) {
                missing.entry(name).or_default().insert(&container.name);
            }
        }
        let part = |(name, containers): (&&str, &BTreeSet<&str>)| {
            format!("{name} for: {}", containers.iter().copied().collect::<Vec<_>>().join(","))
        };
        let parts: Vec<String> = missing.iter().map(part).collect();
        (!parts.is_empty()).then(|| format!("must specify {}", parts.join("; ")))
    }
}

fn stated(container: &Container) -> Resources {
    let resources = container.resources.as_ref();
    let requests = amounts(resources.and_then(|r| r.requests.as_ref()));
    by_quota_name(&requests, &amounts(resources.and_then(|r| r.limits.as_ref())))
}

/// Whether its affinity to other Pods looks into other namespaces.
fn looks_elsewhere(spec: &PodSpec) -> bool {
    let Some(affinity) = &spec.affinity else { return false };
    let (to, from) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    let required = [
        to.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
        from.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let preferred = [
        to.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
        from.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let weighted = preferred.into_iter().flatten().flatten().map(|term| &term.pod_affinity_term);
    let elsewhere = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|n| !n.is_empty()) || term.namespace_selector.is_some()
    };
    required.into_iter().flatten().flatten().chain(weighted).any(elsewhere)
}

#[cfg(test)]
mod tests {
    use super::super::{Counter, tests::used};
    use json::{Value, json};

    #[test]
    fn pods_count_requests_and_limits_under_all_their_names() {
        let check = |pod: Value, expected: &str| assert_eq!(used("pods", pod), expected);
        let container = |resources: Value| json!({"name": "c", "resources": resources});
        let full = json!({"requests": {"cpu": "1", "memory": "2Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": "3"},
            "limits": {"cpu": "2", "ephemeral-storage": "5Gi", "example.com/gpu": "3"}});
        let expected = "count/pods=1 cpu=1 hugepages-2Mi=4Mi limits.cpu=2 limits.ephemeral-storage=5Gi memory=2Gi pods=1 \
                        requests.cpu=1 requests.example.com/gpu=3 requests.hugepages-2Mi=4Mi requests.memory=2Gi";
        check(json!({"spec": {"containers": [container(full.clone())]}}), expected);
        let of_class = json!({"requests": {"deviceclass.resource.kubernetes.io/gpu": "2"}});
        check(
            json!({"spec": {"containers": [container(of_class)]}}),
            "count/pods=1 pods=1 requests.deviceclass.resource.kubernetes.io/gpu=2",
        );
        assert!(super::counts("requests.deviceclass.resource.kubernetes.io/gpu"));
        assert!(!super::counts("requests.other.kubernetes.io/gpu"));
        // The hungriest moment of the start counts, and overhead.
        let cpu = |cpu: &str| container(json!({"requests": {"cpu": cpu}}));
        let spec = json!({"containers": [cpu("1")], "initContainers": [cpu("3"), cpu("2")], "overhead": {"cpu": "1"}});
        check(json!({"spec": spec}), "count/pods=1 cpu=4 pods=1 requests.cpu=4");
        let ended = json!({"spec": {"containers": [container(full)]}, "status": {"phase": "Failed"}});
        check(ended, "count/pods=1");
        let deleted = |seconds: i64| {
            let time = jiff::Timestamp::from_second(seconds).unwrap().to_string();
            json!({"metadata": {"deletionTimestamp": time, "deletionGracePeriodSeconds": 30},
                "spec": {"containers": []}})
        };
        check(deleted(971), "count/pods=1 pods=1");
        check(deleted(969), "count/pods=1");
    }

    /// `cpu/memory/example.com/dongle`, of the requests and of the limits. Upstream: TestPodEvaluatorUsage.
    #[test]
    fn pods_count_the_hungriest_moment_of_their_containers() {
        let container = |requests: [&str; 3], limits: [&str; 3]| {
            let list =
                |[cpu, memory, dongle]: [&str; 3]| json!({"cpu": cpu, "memory": memory, "example.com/dongle": dongle});
            json!({"name": "c", "resources": {"requests": list(requests), "limits": list(limits)}})
        };
        let check = |spec: Value, expected: &str| {
            assert_eq!(used("pods", json!({"spec": spec})), format!("count/pods=1 {expected}"), "{spec}");
        };
        let init =
            [container(["4", "100M", "4"], ["8", "200M", "4"]), container(["1", "50M", "2"], ["2", "100M", "2"])];
        let main = [container(["1", "50M", "1"], ["2", "100M", "1"]), container(["2", "25M", "2"], ["5", "50M", "2"])];
        let expected = "cpu=4 limits.cpu=8 limits.memory=200M memory=100M pods=1 requests.cpu=4 \
                        requests.example.com/dongle=4 requests.memory=100M";
        check(json!({"containers": main, "initContainers": init}), expected);
        // A sidecar runs beside all that start after it, and beside the others to the end.
        let mut sidecar = init[1].clone();
        sidecar["restartPolicy"] = json!("Always");
        let expected = "cpu=5 limits.cpu=10 limits.memory=300M memory=150M pods=1 requests.cpu=5 \
                        requests.example.com/dongle=6 requests.memory=150M";
        check(json!({"containers": main, "initContainers": [sidecar, init[0]]}), expected);
        // The Pod as a whole states what counts of cpu and memory.
        let whole = json!({"requests": {"cpu": "7"}, "limits": {"memory": "1G"}});
        let expected = "cpu=7 limits.cpu=7 limits.memory=1G memory=75M pods=1 requests.cpu=7 \
                        requests.example.com/dongle=3 requests.memory=75M";
        check(json!({"containers": main, "resources": whole}), expected);
    }

    #[test]
    fn scopes_take_pods() {
        let check = |spec: Value, scope: &str, expected: bool| {
            let mut words = scope.split(' ');
            let scope = json!({"scopeName": words.next(), "operator": words.next().unwrap_or("Exists"),
                "values": words.collect::<Vec<_>>()});
            let pod = Counter::Pods.read(&json!({"spec": spec})).unwrap();
            assert_eq!(pod.is_in(&json::from_value(scope.clone()).unwrap()), expected, "{spec} {scope}");
        };
        let plain = json!({"containers": [{"name": "c"}]});
        let asking = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "activeDeadlineSeconds": 5, "priorityClassName": "high"});
        check(plain.clone(), "BestEffort", true);
        check(plain.clone(), "NotBestEffort", false);
        check(plain.clone(), "Terminating", false);
        check(plain.clone(), "NotTerminating", true);
        check(asking.clone(), "BestEffort", false);
        check(asking.clone(), "NotBestEffort", true);
        check(asking.clone(), "Terminating", true);
        check(asking.clone(), "NotTerminating", false);
        check(asking.clone(), "PriorityClass", true);
        check(asking.clone(), "PriorityClass In high low", true);
        check(asking.clone(), "PriorityClass In low", false);
        check(asking.clone(), "PriorityClass NotIn high", false);
        check(asking.clone(), "PriorityClass NotIn low", true);
        check(asking.clone(), "PriorityClass DoesNotExist", false);
        check(plain.clone(), "PriorityClass", false);
        check(plain.clone(), "PriorityClass In high", false);
        check(plain.clone(), "PriorityClass NotIn high", true);
        check(plain.clone(), "PriorityClass DoesNotExist", true);
        check(plain.clone(), "VolumeAttributesClass", false);
        check(plain, "CrossNamespacePodAffinity", false);
        let affinity = |kind: &str, list: &str, term: Value| {
            let term = if list == "preferred" { json!({"weight": 1, "podAffinityTerm": term}) } else { term };
            let list = format!("{list}DuringSchedulingIgnoredDuringExecution");
            json!({"containers": [], "affinity": {kind: {list: [term]}}})
        };
        for kind in ["podAffinity", "podAntiAffinity"] {
            for list in ["required", "preferred"] {
                for (term, expected) in [
                    (json!({"topologyKey": "t"}), false),
                    (json!({"topologyKey": "t", "namespaces": []}), false),
                    (json!({"topologyKey": "t", "namespaceSelector": {}}), true),
                    (json!({"topologyKey": "t", "namespaces": ["a"]}), true),
                ] {
                    check(affinity(kind, list, term), "CrossNamespacePodAffinity", expected);
                }
            }
        }
    }

    #[test]
    fn containers_state_the_compute_resources_that_are_limited() {
        let check = |whole: Value, limited: &[&str], expected: Option<&str>| {
            let pod = json!({"spec": {
                "containers": [{"name": "b", "resources": {"requests": {"cpu": "1"}}}, {"name": "a"}],
                "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1"}}}],
                "resources": whole,
            }});
            let pod = Counter::Pods.read(&pod).unwrap();
            assert_eq!(pod.unstated(&limited.iter().copied().collect()).as_deref(), expected, "{whole}");
        };
        let containers = |limited: &[&str], expected: Option<&str>| check(Value::Null, limited, expected);
        containers(&["pods", "requests.ephemeral-storage"], None);
        containers(&["cpu"], Some("must specify cpu for: a,i"));
        let both = "must specify limits.memory for: a,b; requests.cpu for: a,i";
        containers(&["requests.cpu", "limits.memory", "pods"], Some(both));
        // A request of the Pod as a whole needs no containers to repeat it, of whatever resource it speaks.
        check(json!({"requests": {"memory": "1"}}), &["cpu"], None);
        check(json!({"limits": {"hugepages-2Mi": "2Mi"}}), &["cpu"], None);
        check(json!({"requests": {}}), &["cpu"], Some("must specify cpu for: a,i"));
    }

    #[test]
    fn a_pod_that_is_resized_is_charged_the_most() {
        let check = |wanted: &str, running: &str, refused: bool, expected: &str| {
            let resources = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": format!("{cpu}0")}});
            let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": resources(running)});
            let pending = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
            let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources(wanted)}]},
                "status": {"containerStatuses": [status], "conditions": if refused { pending } else { json!([]) }}});
            assert_eq!(used("pods", pod), format!("count/pods=1 {expected}"), "{wanted} {running}");
        };
        check("1", "1", false, "cpu=1 limits.cpu=10 pods=1 requests.cpu=1");
        check("1", "2", false, "cpu=2 limits.cpu=20 pods=1 requests.cpu=2");
        check("3", "2", false, "cpu=3 limits.cpu=30 pods=1 requests.cpu=3");
        check("3", "2", true, "cpu=2 limits.cpu=20 pods=1 requests.cpu=2");
    }
}
