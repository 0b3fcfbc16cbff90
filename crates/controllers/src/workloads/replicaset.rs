//! ReplicaSet: keeps `spec.replicas` Pods that match the selector alive.
//! Reads: ReplicaSet, Pod. Writes: Pod (create, delete, adopt, release), ReplicaSet/status.
//! Upstream counterpart: pkg/controller/replicaset.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::rules::{pod, selector::Selector};
use clock::Timestamp;
use controller::{
    Controller, Failure, Listers, Note, Plan, Step, Watches, Write, claim, controller_of, owner_reference,
};
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::workloads::{pod_rank, pod_template};

pub struct ReplicaSets;

/// At most this many Pods are created or deleted in one go.
const BURST: usize = 500;

pub struct Observed {
    /// Pods that the ReplicaSet controls, and free ones that its selector takes.
    pods: Vec<Arc<Pod>>,
    /// How many live Pods of the same Deployment each node has: where most are, one is given up first.
    on_node: BTreeMap<String, usize>,
    failure: Option<Failure>,
}

/// The Pods that the ReplicaSet is about; one without a (valid) selector is about none.
fn selector(set: &ReplicaSet) -> Selector {
    let selector = set.spec.as_ref().and_then(|s| Selector::of_object(Some(&s.selector)).ok());
    selector.filter(|s| !s.is_everything()).unwrap_or(Selector::NOTHING)
}

fn takes(selector: &Selector, pod: &Pod) -> bool {
    selector.matches(pod.metadata.labels.as_ref().unwrap_or(&BTreeMap::new()))
}

fn wanted(set: &ReplicaSet) -> usize {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1).max(0) as usize
}

impl Controller for ReplicaSets {
    const NAME: &'static str = "replicaset-controller";
    type Object = ReplicaSet;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<ReplicaSet>) {
        watches.indexed::<ReplicaSet>().owned::<Pod>().selected::<Pod>(|set, pod| takes(&selector(set), pod));
    }

    fn observe(&self, set: &ReplicaSet, listers: &Listers) -> Observed {
        let selector = selector(set);
        // A free Pod that has ended is not worth adopting.
        let pods = listers.owned_or_selected(set, |pod: &Pod| takes(&selector, pod) && pod::is_active(pod));
        let mut on_node = BTreeMap::new();
        // Only a choice among Pods asks for this, and it looks at every Pod of the Deployment.
        if pods.iter().filter(|p| pod::is_active(p)).count() > wanted(set) {
            let siblings = match controller_of(set) {
                Some(owner) => listers.owned_by::<ReplicaSet>(&owner.uid),
                None => vec![Arc::new(set.clone())],
            };
            let pods = siblings.iter().flat_map(|sibling| listers.owned::<_, Pod>(&**sibling));
            for pod in pods.filter(|p| pod::is_active(p)) {
                if let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.clone()) {
                    *on_node.entry(node).or_insert(0) += 1;
                }
            }
        }
        Observed { pods, on_node, failure: listers.failure.cloned() }
    }

    fn plan(&self, set: &ReplicaSet, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let selector = selector(set);
        let claimed = claim(set, &observed.pods, |pod| takes(&selector, pod), &mut plan);
        let (active, inactive): (Vec<&Pod>, Vec<&Pod>) = claimed.into_iter().partition(|p| pod::is_active(p));
        let wanted = wanted(set);
        if set.metadata.deletion_timestamp.is_none() {
            plan.steps.extend(manage(set, &active, wanted, observed, now));
        }
        let status = status(set, &active, &inactive, wanted, observed.failure.as_ref(), now);
        plan.set_status(set, &ReplicaSet { status: Some(status), ..set.clone() });
        let min_ready = min_ready_seconds(set);
        let soonest = active.iter().filter_map(|p| available_in(p, min_ready, now)).min();
        if let Some(wait) = soonest {
            plan.again_after(wait);
        }
        plan
    }
}

fn min_ready_seconds(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
}

/// How long until a ready Pod counts as available; `None` when it does already, or is not ready.
fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !pod::is_ready(pod) || pod::is_available(pod, min_ready_seconds, now) {
        return None;
    }
    let since = pod::condition(pod, "Ready")?.last_transition_time.as_ref()?.0.as_second();
    let left = since + i64::from(min_ready_seconds) - now.as_second();
    Some(Duration::from_secs(left.max(0) as u64 + 1))
}

fn manage(set: &ReplicaSet, active: &[&Pod], wanted: usize, observed: &Observed, now: Timestamp) -> Option<Step> {
    if active.len() < wanted {
        let missing = (wanted - active.len()).min(BURST);
        let template = set.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default();
        let pod = pod_template::instantiate(&template, &set.metadata, owner_reference(set));
        let create = Write::create(&pod)
            .on_success(Note::normal("SuccessfulCreate", "Created pod: {name}"))
            .on_failure(Note::warning("FailedCreate", "Error creating: {error}"));
        return Some(Step::SlowStart(vec![create; missing]));
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus == 0 {
        return None;
    }
    let doomed = pod_rank::first_to_go(active, &observed.on_node, now).into_iter().take(surplus).map(|pod| {
        Write::delete(pod)
            .on_success(Note::normal("SuccessfulDelete", "Deleted pod: {name}"))
            .on_failure(Note::warning("FailedDelete", "Error deleting: {error}"))
    });
    Some(Step::All(doomed.collect()))
}

fn status(
    set: &ReplicaSet,
    active: &[&Pod],
    inactive: &[&Pod],
    wanted: usize,
    failure: Option<&Failure>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let old = set.status.clone().unwrap_or_default();
    let count = |counts: &dyn Fn(&&&Pod) -> bool| active.iter().filter(|p| counts(p)).count() as i32;
    let template = set.spec.as_ref().and_then(|s| s.template.as_ref()?.metadata.as_ref()?.labels.clone());
    let template = Selector::of_labels(&template.unwrap_or_default());
    let none = BTreeMap::new();
    let min_ready = min_ready_seconds(set);
    let nonzero = |n: i32| (n != 0).then_some(n);
    ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: nonzero(count(&|p| template.matches(p.metadata.labels.as_ref().unwrap_or(&none)))),
        ready_replicas: nonzero(count(&|p| pod::is_ready(p))),
        available_replicas: nonzero(count(&|p| pod::is_available(p, min_ready, now))),
        terminating_replicas: Some(
            inactive.iter().filter(|p| p.metadata.deletion_timestamp.is_some() && !pod::is_terminal(p)).count() as i32,
        ),
        observed_generation: set.metadata.generation,
        conditions: conditions(old.conditions.unwrap_or_default(), failure, active.len() < wanted, now),
    }
}

/// `ReplicaFailure` is there while the last attempt to create or delete Pods failed.
fn conditions(
    mut conditions: Vec<ReplicaSetCondition>,
    failure: Option<&Failure>,
    short: bool,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let failure = failure.filter(|f| f.plural == "pods" && matches!(f.verb, "create" | "delete"));
    let held = conditions.iter().position(|c| c.type_ == "ReplicaFailure");
    match (failure, held) {
        (None, Some(at)) => {
            conditions.remove(at);
        }
        (Some(failure), None) => conditions.push(ReplicaSetCondition {
            type_: "ReplicaFailure".to_owned(),
            status: "True".to_owned(),
            reason: Some(if short { "FailedCreate" } else { "FailedDelete" }.to_owned()),
            message: Some(failure.message.clone()),
            last_transition_time: Some(Time(now)),
        }),
        _ => {}
    }
    (!conditions.is_empty()).then_some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(replicas: i32) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "d", "uid": "rs", "generation": 2},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                     "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
        }))
        .unwrap()
    }

    /// `name:word:word` with the words ready, orphan, relabelled, pending, done, deleting, unassigned.
    pub(crate) fn pod(text: &str) -> Arc<Pod> {
        let mut words = text.split(':');
        let name = words.next().unwrap();
        let words: Vec<&str> = words.collect();
        let has = |w: &str| words.contains(&w);
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]);
        let phase = if has("done") {
            "Succeeded"
        } else if has("pending") {
            "Pending"
        } else {
            "Running"
        };
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let value = json!({
            "metadata": {"name": name, "namespace": "d", "uid": name,
                "labels": {"app": if has("relabelled") { "other" } else { "web" }},
                "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z"),
                "ownerReferences": if has("orphan") { Value::Null } else { owner }},
            "spec": {"containers": [], "nodeName": (!has("unassigned")).then_some("n1")},
            "status": {"phase": phase, "conditions": if has("ready") { ready } else { Value::Null }},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn plan(replicas: i32, pods: &str, failure: Option<Failure>) -> Plan {
        let observed = Observed { pods: pods.split_whitespace().map(pod).collect(), on_node: BTreeMap::new(), failure };
        ReplicaSets.plan(&set(replicas), &observed, "2026-01-01T01:00:00Z".parse().unwrap())
    }

    fn check(replicas: i32, pods: &str, expected: &str) {
        let plan = plan(replicas, pods, None);
        let steps: Vec<String> = plan.writes().filter(|w| w.subresource.is_empty()).map(ToString::to_string).collect();
        assert_eq!(steps.join(", ").replace(" pods", "").trim(), expected, "{replicas} of {pods}");
    }

    #[test]
    fn keeps_the_number() {
        check(2, "a:ready b:ready", "");
        check(1, "", "create");
        check(3, "a:ready b:done c:deleting", "create , create");
        check(0, "a", "delete a");
    }

    #[test]
    fn scale_down_prefers_pods_that_serve_nobody() {
        check(1, "a:ready b", "delete b");
        check(1, "a:ready b:pending:unassigned c:pending", "delete b, delete c");
    }

    #[test]
    fn adopts_and_releases() {
        check(1, "a:ready:orphan b:relabelled", "patch a, patch b");
        check(0, "a:orphan:relabelled", "");
    }

    #[test]
    fn counts_and_tells_failures() {
        let status = |plan: Plan| plan.status.unwrap().body()["status"].clone();
        let quiet = status(plan(3, "a:ready b c:deleting", None));
        let expected = json!({"replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 1, "availableReplicas": 1,
            "terminatingReplicas": 1, "observedGeneration": 2});
        assert_eq!(quiet, expected);
        let failure = Failure {
            verb: "create",
            plural: "pods".into(),
            reason: "Forbidden".into(),
            message: "quota exceeded".into(),
        };
        let failed = status(plan(3, "", Some(failure)));
        assert_eq!(failed["conditions"][0]["reason"], "FailedCreate");
        assert_eq!(failed["conditions"][0]["message"], "quota exceeded");
    }
}
