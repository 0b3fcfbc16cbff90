//! Disruption: how many Pods of a PodDisruptionBudget may be taken away on purpose now.
//! Reads: PodDisruptionBudget, Pod, and the scales of what controls Pods. Writes: PodDisruptionBudget/status.
//! Upstream counterpart: pkg/controller/disruption.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::rules::{
    pod,
    selector::{self, Selector},
};
use client::{Caches, Change, Client, Key, events};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, controller_of};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::{Pod, ReplicationController},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition, Time},
        util::intstr::IntOrString,
    },
};

use crate::{
    selector_text::selector_text,
    workloads::{owner_scale::Scales, portion::scaled},
};

pub struct Disruptions;

/// How long an eviction that was granted may take until it counts as given up.
const GRANTED: Duration = Duration::from_secs(120);

pub struct Observed {
    /// The Pods that the budget guards.
    pods: Vec<Arc<Pod>>,
    scales: Scales,
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
        let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
        states().any(|pod| selector::selects(selector, &pod.metadata.labels))
    };
    let budgets = caches.of::<PodDisruptionBudget>().list_in(&change.key.namespace);
    budgets.iter().filter(|b| guards(b)).map(|b| Key::of(&**b)).collect()
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
        let counts_all = !is_by_scale(budget);
        let scales = if counts_all { Scales::default() } else { Scales::cached(&pods, listers.caches) };
        Observed { wanted: scales.total(), scales, pods, unmanaged }
    }

    /// Whatever has a scale can control Pods.
    async fn ask(
        &self,
        budget: &PodDisruptionBudget,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        let namespace = budget.metadata.namespace.as_deref().unwrap_or("");
        observed.wanted = observed.scales.ask(namespace, client).await;
        Ok(())
    }

    fn plan(&self, budget: &PodDisruptionBudget, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Granted { pods: disrupted, next, given_up } = granted(budget, &observed.pods, now);
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
                    conditions: conditions(budget, Ok(allowed > 0), now),
                }
            }
            // A disruption is not allowed while its cost is not known. The numbers that the budget says by now were not
            // reckoned.
            Err(error) => PodDisruptionBudgetStatus {
                disruptions_allowed: 0,
                conditions: conditions(budget, Err(error), now),
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
        match numbers {
            Ok(_) => given_up.into_iter().for_each(|note| _ = plan.tell(note)),
            Err(_) => _ = plan.retry(),
        }
        if let Some(wait) = next {
            plan.again_after(wait);
        }
        plan
    }
}

/// Whether it matters how many Pods their controllers want.
fn is_by_scale(budget: &PodDisruptionBudget) -> bool {
    budget.spec.as_ref().is_some_and(|spec| {
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
    })
}

/// Tells of a budget that guards nothing, or that cannot be reckoned, each time that its numbers change.
fn warn(plan: &mut Plan, budget: &PodDisruptionBudget, observed: &Observed) {
    if observed.pods.is_empty() {
        plan.tell(Note::normal("NoPods", "No matching pods found"));
    }
    if observed.unmanaged && is_by_scale(budget) && observed.wanted.is_ok() {
        let selector = selector_text(budget.spec.as_ref().and_then(|s| s.selector.as_ref()));
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

/// Evictions that were granted.
struct Granted {
    /// Those that are still on their way, by Pod.
    pods: BTreeMap<String, Time>,
    /// When the next of them counts as given up.
    next: Option<Duration>,
    /// Tells of those that count so now.
    given_up: Vec<Note>,
}

fn granted(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], now: Timestamp) -> Granted {
    let mut all = budget.status.as_ref().and_then(|s| s.disrupted_pods.clone()).unwrap_or_default();
    let passed = |since: &Time| Duration::from_secs((now.as_second() - since.0.as_second()).max(0) as u64);
    let mut given_up = Vec::new();
    all.retain(|name, since| {
        let pod = pods.iter().find(|p| p.metadata.name.as_ref() == Some(name));
        let Some(pod) = pod.filter(|p| p.metadata.deletion_timestamp.is_none()) else { return false };
        if passed(since) >= GRANTED {
            let message = format!("Pod was expected by PDB {} to be deleted but it wasn't", Key::of(budget));
            given_up.push(Note::warning("NotDeleted", message).about(events::reference(&**pod)));
        }
        passed(since) < GRANTED
    });
    let next = all.values().map(|since| GRANTED - passed(since)).min();
    Granted { pods: all, next, given_up }
}

/// The condition that says whether a disruption is allowed, or why that is not known.
fn conditions(budget: &PodDisruptionBudget, allowed: Result<bool, &String>, now: Timestamp) -> Option<Vec<Condition>> {
    let old = budget.status.as_ref();
    let mut conditions = old.and_then(|s| s.conditions.clone()).unwrap_or_default();
    let (status, reason, generation) = match allowed {
        Ok(true) => ("True", "SufficientPods", budget.metadata.generation),
        Ok(false) => ("False", "InsufficientPods", budget.metadata.generation),
        Err(_) => ("False", "SyncFailed", old.and_then(|s| s.observed_generation)),
    };
    let held = conditions.iter().find(|c| c.type_ == "DisruptionAllowed" && c.status == status);
    let condition = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: allowed.err().cloned().unwrap_or_default(),
        observed_generation: generation,
        last_transition_time: held.map_or(Time(now), |c| c.last_transition_time.clone()),
    };
    conditions.retain(|c| c.type_ != "DisruptionAllowed");
    conditions.push(condition);
    Some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    /// Pods as `name[:ready][:deleting]`.
    fn plan(spec: Value, pods: &str, wanted: Result<i32, String>, disrupted: Value) -> Plan {
        let budget = json!({"metadata": {"name": "b", "namespace": "d", "generation": 3}, "spec": spec,
            "status": {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": 9,
                "disruptedPods": disrupted}});
        let pod = |text: &str| -> Arc<Pod> {
            let has = |word: &str| text.split(':').any(|w| w == word);
            let ready = if has("ready") { "True" } else { "False" };
            let pod = json!({"metadata": {"name": text.split(':').next(),
                    "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z")},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            Arc::new(json::from_value(pod).unwrap())
        };
        let pods = pods.split_whitespace().map(pod).collect();
        let observed = Observed { pods, scales: Scales::default(), wanted, unmanaged: true };
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        Disruptions.plan(&json::from_value(budget).unwrap(), &observed, now)
    }

    fn status(spec: Value, pods: &str, wanted: Result<i32, String>) -> Value {
        plan(spec, pods, wanted, Value::Null).status.unwrap().body()["status"].clone()
    }

    fn told(plan: &Plan) -> Vec<String> {
        let notes = plan.steps.iter().filter_map(|step| match step {
            controller::Step::Tell(note) => Some(format!("{}: {}", note.reason, note.message)),
            _ => None,
        });
        notes.collect()
    }

    #[test]
    fn budgets_that_guard_nothing_or_cannot_be_reckoned_are_told() {
        let check = |spec: Value, pods: usize, unmanaged: bool, expected: &[&str]| {
            let budget = json!({"metadata": {"name": "b", "generation": 1}, "spec": spec});
            let budget: PodDisruptionBudget = json::from_value(budget).unwrap();
            let (pods, scales) = (vec![Arc::default(); pods], Scales::default());
            let observed = Observed { pods, scales, wanted: Ok(1), unmanaged };
            let plan = Disruptions.plan(&budget, &observed, Timestamp::UNIX_EPOCH);
            let told = told(&plan);
            let reasons: Vec<&str> = told.iter().filter_map(|text| Some(text.split_once(':')?.0)).collect();
            assert_eq!(reasons, expected, "{spec}");
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
            let status = status(spec.clone(), pods, Ok(4));
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
        let plan = plan(json!({"minAvailable": 1}), pods, Ok(4), disrupted);
        let status = &plan.status.as_ref().unwrap().body()["status"];
        assert_eq!((&status["disruptedPods"], &status["disruptionsAllowed"]), (&json!({"a": since(30)}), &json!(1)));
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(90)));
        assert_eq!(told(&plan), ["NotDeleted: Pod was expected by PDB d/b to be deleted but it wasn't"]);
    }

    #[test]
    fn what_is_not_known_is_not_allowed() {
        let lost = || Err("found no controllers for pod \"a\"".to_owned());
        let failed = plan(json!({"maxUnavailable": 1}), "a:ready b:ready", lost(), Value::Null);
        let status_of = &failed.status.as_ref().unwrap().body()["status"];
        let condition = &status_of["conditions"][0];
        assert_eq!((&status_of["disruptionsAllowed"], &condition["reason"]), (&json!(0), &json!("SyncFailed")));
        // Evictions are refused as long as nothing was reckoned with this generation.
        assert_eq!((&status_of["observedGeneration"], &condition["observedGeneration"]), (&Value::Null, &Value::Null));
        let why = "Failed to calculate the number of expected pods: found no controllers for pod \"a\"";
        assert_eq!((told(&failed), failed.retry), (vec![format!("CalculateExpectedPodCountFailed: {why}")], true));
        // A plain number needs nobody's scale.
        assert_eq!(status(json!({"minAvailable": 1}), "a:ready b:ready", lost())["disruptionsAllowed"], 1);
    }
}
