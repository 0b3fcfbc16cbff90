//! Disruption: how many Pods of a PodDisruptionBudget may be taken away on purpose now.
//! Reads: PodDisruptionBudget, Pod, and what controls Pods. Writes: PodDisruptionBudget/status.
//! Upstream counterpart: pkg/controller/disruption.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::rules::{pod, selector::Selector};
use client::{Caches, Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, controller_of};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::{Pod, ReplicationController},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};

use crate::workloads::portion::scaled;

pub struct Disruptions;

/// How long an eviction that was granted may take until it counts as given up.
const GRANTED: Duration = Duration::from_secs(120);

pub struct Observed {
    /// The Pods that the budget guards.
    pods: Vec<Arc<Pod>>,
    /// How many Pods their controllers want together, or why that is not known.
    wanted: Result<i32, String>,
    /// Some Pods have no controller.
    unmanaged: bool,
}

fn selector(budget: &PodDisruptionBudget) -> Selector {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    Selector::of_object(selector).unwrap_or(Selector::NOTHING)
}

fn budgets_of(change: &Change<Pod>, caches: &Caches) -> Vec<Key> {
    let states = || change.old.iter().chain(&change.new);
    let guards = |budget: &PodDisruptionBudget| {
        let selector = selector(budget);
        states().any(|pod| selector.matches(&pod.metadata.labels))
    };
    let budgets = caches.of::<PodDisruptionBudget>().list_in(&change.key.namespace);
    budgets.iter().filter(|b| guards(b)).map(|b| Key::of(&**b)).collect()
}

/// The UID and the size of what controls a Pod: of a ReplicaSet's Deployment, where it has one.
fn scale_of(owner: &OwnerReference, namespace: &str, caches: &Caches) -> Option<(String, i32)> {
    let key = Key::new(namespace, &owner.name);
    let (uid, replicas) = match owner.kind.as_str() {
        "ReplicaSet" => {
            let set = caches.of::<ReplicaSet>().get(&key)?;
            if let Some(parent) = controller_of(&*set).filter(|o| o.kind == "Deployment")
                && let Some(deployment) = caches.of::<Deployment>().get(&Key::new(namespace, &parent.name))
            {
                let replicas = deployment.spec.as_ref().and_then(|s| s.replicas);
                return Some((parent.uid.clone(), replicas.unwrap_or(1)));
            }
            (set.metadata.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas))
        }
        "StatefulSet" => {
            let set = caches.of::<StatefulSet>().get(&key)?;
            (set.metadata.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas))
        }
        "ReplicationController" => {
            let set = caches.of::<ReplicationController>().get(&key)?;
            (set.metadata.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas))
        }
        _ => return None,
    };
    uid.filter(|uid| *uid == owner.uid).map(|uid| (uid, replicas.unwrap_or(1)))
}

/// How many Pods the controllers of these want. Pods without a controller count for nothing.
fn wanted(pods: &[Arc<Pod>], caches: &Caches) -> Result<i32, String> {
    let mut scales = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller_of(&**pod) else { continue };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let Some((uid, replicas)) = scale_of(owner, namespace, caches) else {
            let name = pod.metadata.name.as_deref().unwrap_or("");
            return Err(format!("found no controllers for pod \"{name}\""));
        };
        scales.insert(uid, replicas);
    }
    Ok(scales.values().sum())
}

impl Controller for Disruptions {
    const NAME: &'static str = "disruption-controller";
    type Object = PodDisruptionBudget;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<PodDisruptionBudget>) {
        watches
            .reads::<ReplicaSet>()
            .reads::<Deployment>()
            .reads::<StatefulSet>()
            .reads::<ReplicationController>()
            .changed::<Pod>(budgets_of);
    }

    fn observe(&self, budget: &PodDisruptionBudget, listers: &Listers) -> Observed {
        let selector = selector(budget);
        let mut pods = listers.caches.of::<Pod>().list_in(budget.metadata.namespace.as_deref().unwrap_or(""));
        pods.retain(|p| selector.matches(&p.metadata.labels));
        let unmanaged = pods.iter().any(|pod| controller_of(&**pod).is_none());
        Observed { wanted: wanted(&pods, listers.caches), pods, unmanaged }
    }

    fn plan(&self, budget: &PodDisruptionBudget, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let (disrupted, next) = granted(budget, &observed.pods, now);
        let numbers = numbers(budget, observed);
        let status = match &numbers {
            Ok((expected, desired)) => {
                let healthy = observed.pods.iter().filter(|p| {
                    let leaving = p.metadata.name.as_ref().is_some_and(|name| disrupted.contains_key(name));
                    p.metadata.deletion_timestamp.is_none() && !leaving && pod::is_ready(p)
                });
                let healthy = healthy.count() as i32;
                let allowed = if *expected > 0 { (healthy - desired).max(0) } else { 0 };
                PodDisruptionBudgetStatus {
                    current_healthy: healthy,
                    desired_healthy: *desired,
                    expected_pods: *expected,
                    disruptions_allowed: allowed,
                    disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
                    observed_generation: budget.metadata.generation,
                    conditions: conditions(budget, allowed > 0, None, now),
                }
            }
            // A disruption is not allowed while its cost is not known.
            Err(error) => PodDisruptionBudgetStatus {
                disruptions_allowed: 0,
                observed_generation: budget.metadata.generation,
                conditions: conditions(budget, false, Some(error), now),
                ..budget.status.clone().unwrap_or_default()
            },
        };
        plan.set_status(budget, &PodDisruptionBudget { status: Some(status), ..budget.clone() });
        if let (Err(error), Some(_)) = (&numbers, &plan.status) {
            let message = format!("Failed to calculate the number of expected pods: {error}");
            plan.tell(Note::warning("CalculateExpectedPodCountFailed", message));
        }
        if plan.status.is_some() {
            warn(&mut plan, budget, observed);
        }
        if let Some(wait) = next {
            plan.again_after(wait);
        }
        plan
    }
}

/// Tells of a budget that guards nothing, or that cannot be reckoned, each time that its numbers change.
fn warn(plan: &mut Plan, budget: &PodDisruptionBudget, observed: &Observed) {
    if observed.pods.is_empty() {
        plan.tell(Note::normal("NoPods", "No matching pods found"));
    }
    let spec = budget.spec.as_ref();
    let by_scale = spec.is_some_and(|spec| {
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
    });
    if observed.unmanaged && by_scale && observed.wanted.is_ok() {
        let selector = spec.and_then(|s| s.selector.as_ref());
        let selector = Selector::of_object(selector).map(|selector| selector.to_string()).unwrap_or_default();
        plan.tell(Note::warning(
            "UnmanagedPods",
            format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the \
                 status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these \
                 pods please set \".spec.minAvailable\" field of the PDB to an integer value."
            ),
        ));
    }
}

/// How many Pods there should be, and how many of them must be healthy.
fn numbers(budget: &PodDisruptionBudget, observed: &Observed) -> Result<(i32, i32), String> {
    let spec = budget.spec.as_ref();
    let unavailable = spec.and_then(|s| s.max_unavailable.as_ref());
    match (unavailable, spec.and_then(|s| s.min_available.as_ref())) {
        (Some(unavailable), _) => {
            let expected = observed.wanted.clone()?;
            Ok((expected, (expected - scaled(Some(unavailable), expected, true)).max(0)))
        }
        (None, Some(IntOrString::Int(least))) => Ok((observed.pods.len() as i32, *least)),
        (None, Some(share)) => {
            let expected = observed.wanted.clone()?;
            Ok((expected, scaled(Some(share), expected, true)))
        }
        (None, None) => Ok((0, 0)),
    }
}

/// The evictions that were granted and are still on their way, and when the next of them counts as given up.
fn granted(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let mut all = budget.status.as_ref().and_then(|s| s.disrupted_pods.clone()).unwrap_or_default();
    let passed = |since: &Time| Duration::from_secs((now.as_second() - since.0.as_second()).max(0) as u64);
    all.retain(|name, since| {
        let pod = pods.iter().find(|p| p.metadata.name.as_ref() == Some(name));
        pod.is_some_and(|p| p.metadata.deletion_timestamp.is_none()) && passed(since) < GRANTED
    });
    let next = all.values().map(|since| GRANTED - passed(since)).min();
    (all, next)
}

fn conditions(
    budget: &PodDisruptionBudget,
    allowed: bool,
    error: Option<&str>,
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let mut conditions = budget.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let (status, reason) = match (allowed, error) {
        (_, Some(_)) => ("False", "SyncFailed"),
        (true, None) => ("True", "SufficientPods"),
        (false, None) => ("False", "InsufficientPods"),
    };
    let held = conditions.iter().find(|c| c.type_ == "DisruptionAllowed" && c.status == status);
    let condition = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: error.unwrap_or_default().to_owned(),
        observed_generation: budget.metadata.generation,
        last_transition_time: held.map_or(Time(now), |c| c.last_transition_time.clone()),
    };
    conditions.retain(|c| c.type_ != "DisruptionAllowed");
    conditions.push(condition);
    Some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Pods as `name[:ready][:deleting]`; what the plan makes of the budget's status.
    fn status(spec: Value, pods: &str, wanted: Result<i32, String>, disrupted: Value) -> (Value, Option<Duration>) {
        let budget = json!({"metadata": {"name": "b", "namespace": "d", "generation": 3}, "spec": spec,
            "status": {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": 9,
                "disruptedPods": disrupted}});
        let pod = |text: &str| -> Arc<Pod> {
            let has = |word: &str| text.split(':').any(|w| w == word);
            let ready = if has("ready") { "True" } else { "False" };
            let pod = json!({"metadata": {"name": text.split(':').next(),
                    "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z")},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let observed = Observed { pods: pods.split_whitespace().map(pod).collect(), wanted, unmanaged: true };
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let plan = Disruptions.plan(&serde_json::from_value(budget).unwrap(), &observed, now);
        (plan.status.unwrap().body()["status"].clone(), plan.requeue_after)
    }

    #[test]
    fn budgets_that_guard_nothing_or_cannot_be_reckoned_are_told() {
        let check = |spec: Value, pods: usize, unmanaged: bool, expected: &[&str]| {
            let budget = json!({"metadata": {"name": "b", "generation": 1}, "spec": spec});
            let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
            let observed = Observed { pods: vec![Arc::default(); pods], wanted: Ok(1), unmanaged };
            let plan = Disruptions.plan(&budget, &observed, Timestamp::UNIX_EPOCH);
            let told: Vec<&str> = plan
                .steps
                .iter()
                .filter_map(|step| match step {
                    controller::Step::Tell(note) => Some(note.reason.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(told, expected, "{spec}");
        };
        check(json!({"minAvailable": 1}), 0, false, &["NoPods"]);
        check(json!({"minAvailable": 1}), 1, true, &[]);
        check(json!({"minAvailable": "10%"}), 1, true, &["UnmanagedPods"]);
        check(json!({"maxUnavailable": 1}), 1, true, &["UnmanagedPods"]);
        check(json!({"maxUnavailable": 1}), 1, false, &[]);
    }

    #[test]
    fn what_may_go_follows_from_what_is_healthy() {
        let check = |spec: Value, pods: &str, expected: [i32; 4], reason: &str| {
            let (status, _) = status(spec.clone(), pods, Ok(4), Value::Null);
            let number = |field: &str| status[field].as_i64().unwrap() as i32;
            let fields = ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"].map(number);
            assert_eq!((fields, &status["conditions"][0]["reason"]), (expected, &json!(reason)), "{spec} {pods}");
            assert_eq!(status["observedGeneration"], 3);
        };
        let (enough, short) = ("SufficientPods", "InsufficientPods");
        check(json!({"minAvailable": 1}), "a:ready b:ready c", [3, 1, 2, 1], enough);
        check(json!({"minAvailable": 2}), "a:ready b:ready c", [3, 2, 2, 0], short);
        check(json!({"minAvailable": 1}), "a:ready b:ready:deleting", [2, 1, 1, 0], short);
        check(json!({"minAvailable": 0}), "", [0, 0, 0, 0], short);
        check(json!({"minAvailable": "30%"}), "a:ready b:ready c:ready", [4, 2, 3, 1], enough);
        check(json!({"maxUnavailable": 1}), "a:ready b:ready c:ready d:ready", [4, 3, 4, 1], enough);
        check(json!({"maxUnavailable": "30%"}), "a:ready b:ready c:ready d:ready", [4, 2, 4, 2], enough);
        check(json!({"maxUnavailable": 9}), "a:ready", [4, 0, 1, 1], enough);
    }

    #[test]
    fn granted_evictions_count_until_they_are_done_or_given_up() {
        let since = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let disrupted = json!({"a": since(30), "gone": since(30), "b": since(30), "old": "2025-12-31T23:58:00Z"});
        let pods = "a:ready b:ready:deleting old:ready c:ready";
        let (status, again) = status(json!({"minAvailable": 1}), pods, Ok(4), disrupted);
        assert_eq!((&status["disruptedPods"], &status["disruptionsAllowed"]), (&json!({"a": since(30)}), &json!(1)));
        assert_eq!(again, Some(Duration::from_secs(90)));
    }

    #[test]
    fn what_is_not_known_is_not_allowed() {
        let lost = || Err("found no controllers for pod \"a\"".to_owned());
        let (failed, _) = status(json!({"maxUnavailable": 1}), "a:ready b:ready", lost(), Value::Null);
        assert_eq!(
            (&failed["disruptionsAllowed"], &failed["conditions"][0]["reason"]),
            (&json!(0), &json!("SyncFailed"))
        );
        // A plain number needs nobody's scale.
        assert_eq!(
            status(json!({"minAvailable": 1}), "a:ready b:ready", lost(), Value::Null).0["disruptionsAllowed"],
            1
        );
    }
}
