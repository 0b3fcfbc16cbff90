//! ReplicaSet and ReplicationController: keep `spec.replicas` Pods that match the selector alive.
//! Reads: ReplicaSet or ReplicationController, Pod. Writes: Pod (create, delete, adopt, release), the object's status.
//! Upstream counterpart: pkg/controller/replicaset, which pkg/controller/replication adapts as this file does.
//!
//! A process that ends between two writes loses nothing: the next plan counts the Pods that there are.

use std::{collections::BTreeMap, marker::PhantomData, sync::Arc};

use api::rules::{
    pod,
    selector::{self, Labels, Selector},
};
use client::Kind;
use clock::Timestamp;
use controller::{Controller, Failure, Listers, Plan, Step, Watches, claim, controller_of, owner_reference};
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::{Pod, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::workloads::{availability::next_available, pod_rank, pod_template};

/// A kind that keeps a number of Pods alive.
pub trait ReplicaOwner: Kind {
    /// The name of its controller.
    const CONTROLLER: &'static str;

    /// The Pods that it is about; `None` where it has no valid selector.
    fn selector(&self) -> Option<Selector>;
    /// Whether it is about a Pod with these labels.
    fn takes(&self, labels: &impl Labels) -> bool;
    fn replicas(&self) -> Option<i32>;
    fn min_ready_seconds(&self) -> Option<i32>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn conditions(&self) -> Vec<ReplicaSetCondition>;
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

impl ReplicaOwner for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";

    fn selector(&self) -> Option<Selector> {
        Selector::of_object(Some(&self.spec.as_ref()?.selector)).ok()
    }

    fn takes(&self, labels: &impl Labels) -> bool {
        selector::takes(self.spec.as_ref().map(|spec| &spec.selector), labels)
    }

    fn replicas(&self) -> Option<i32> {
        self.spec.as_ref()?.replicas
    }

    fn min_ready_seconds(&self) -> Option<i32> {
        self.spec.as_ref()?.min_ready_seconds
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn conditions(&self) -> Vec<ReplicaSetCondition> {
        self.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default()
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        ReplicaSet { status: Some(status), ..self.clone() }
    }
}

/// The controller of one such kind.
pub struct Replicas<O>(PhantomData<O>);

pub type ReplicaSets = Replicas<ReplicaSet>;

impl<O> Default for Replicas<O> {
    fn default() -> Self {
        Replicas(PhantomData)
    }
}

/// At most this many Pods are created or deleted in one go.
const BURST: usize = 500;

pub struct Observed {
    /// Pods that the owner controls, and free ones that its selector takes.
    pods: Vec<Arc<Pod>>,
    /// How many live Pods of the same Deployment each node has: where most are, one is given up first.
    on_node: BTreeMap<String, usize>,
    failure: Option<Failure>,
}

/// An owner without a (valid) selector, or with one that takes everything, is about no Pods.
fn selector<O: ReplicaOwner>(owner: &O) -> Selector {
    owner.selector().filter(|s| !s.is_everything()).unwrap_or(Selector::NOTHING)
}

fn wanted<O: ReplicaOwner>(owner: &O) -> usize {
    owner.replicas().unwrap_or(1).max(0) as usize
}

impl<O: ReplicaOwner> Controller for Replicas<O> {
    const NAME: &'static str = O::CONTROLLER;
    const FAILED_ARE_LOST: bool = true;
    type Object = O;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<O>) {
        watches.indexed::<O>().owned::<Pod>().selected::<Pod>(|owner, pod| owner.takes(&pod.metadata.labels));
    }

    fn observe(&self, owner: &O, listers: &Listers) -> Observed {
        let selector = selector(owner);
        // A free Pod that has ended is not worth adopting.
        let pods =
            listers.owned_or_selected(owner, |pod: &Pod| selector.matches(&pod.metadata.labels) && pod::is_active(pod));
        let mut on_node = BTreeMap::new();
        // Only a choice among Pods asks for this, and it looks at every Pod of the Deployment.
        if pods.iter().filter(|p| pod::is_active(p)).count() > wanted(owner) {
            let siblings = match controller_of(owner) {
                Some(parent) => listers.owned_by::<O>(&parent.uid),
                None => vec![Arc::new(owner.clone())],
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

    fn plan(&self, owner: &O, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let selector = selector(owner);
        let claimed = claim(owner, &observed.pods, |pod| selector.matches(&pod.metadata.labels), &mut plan);
        let (active, inactive): (Vec<&Pod>, Vec<&Pod>) = claimed.into_iter().partition(|p| pod::is_active(p));
        if owner.metadata().deletion_timestamp.is_none() {
            plan.steps.extend(manage(owner, &active, observed, now));
        }
        let status = status(owner, &active, &inactive, observed.failure.as_ref(), now);
        plan.set_status(owner, &owner.with_status(status));
        if let Some(wait) = next_available(active, min_ready_seconds(owner), now) {
            plan.again_after(wait);
        }
        plan
    }
}

fn min_ready_seconds<O: ReplicaOwner>(owner: &O) -> i32 {
    owner.min_ready_seconds().unwrap_or(0)
}

fn manage<O: ReplicaOwner>(owner: &O, active: &[&Pod], observed: &Observed, now: Timestamp) -> Option<Step> {
    let wanted = wanted(owner);
    if active.len() < wanted {
        let missing = (wanted - active.len()).min(BURST);
        let template = owner.template().cloned().unwrap_or_default();
        let pod = pod_template::instantiate(&template, owner.metadata(), owner_reference(owner));
        return Some(Step::SlowStart(vec![pod_template::create(&pod); missing]));
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus == 0 {
        return None;
    }
    let doomed = pod_rank::first_to_go(active, &observed.on_node, now);
    Some(Step::All(doomed.into_iter().take(surplus).map(pod_template::delete).collect()))
}

fn status<O: ReplicaOwner>(
    owner: &O,
    active: &[&Pod],
    inactive: &[&Pod],
    failure: Option<&Failure>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let count = |counts: &dyn Fn(&&&Pod) -> bool| active.iter().filter(|p| counts(p)).count() as i32;
    let template = owner.template().and_then(|t| t.metadata.as_ref()?.labels.clone());
    let template = Selector::of_labels(&template.unwrap_or_default());
    let min_ready = min_ready_seconds(owner);
    let nonzero = |n: i32| (n != 0).then_some(n);
    ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: nonzero(count(&|p| template.matches(&p.metadata.labels))),
        ready_replicas: nonzero(count(&|p| pod::is_ready(p))),
        available_replicas: nonzero(count(&|p| pod::is_available(p, min_ready, now))),
        terminating_replicas: Some(inactive.iter().filter(|p| pod::is_terminating(p)).count() as i32),
        observed_generation: owner.metadata().generation,
        conditions: conditions(owner.conditions(), failure, active.len() < wanted(owner), now),
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
pub(super) mod tests {
    use super::*;
    use json::{Value, json};

    fn set(replicas: i32) -> ReplicaSet {
        json::from_value(json!({
            "metadata": {"name": "web", "namespace": "d", "uid": "rs", "generation": 2},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                     "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
        }))
        .unwrap()
    }

    /// `name:word:word` with the words ready, orphan, relabelled, pending, done, deleting, unassigned.
    fn pod(text: &str) -> Arc<Pod> {
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
        Arc::new(json::from_value(value).unwrap())
    }

    pub fn pods(text: &str) -> Vec<Arc<Pod>> {
        text.split_whitespace().map(pod).collect()
    }

    pub fn observed(pods: Vec<Arc<Pod>>, failure: Option<Failure>) -> Observed {
        Observed { pods, on_node: BTreeMap::new(), failure }
    }

    fn plan(replicas: i32, text: &str, failure: Option<Failure>) -> Plan {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        ReplicaSets::default().plan(&set(replicas), &observed(pods(text), failure), now)
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
            code: 403,
            reason: "Forbidden".into(),
            message: "quota exceeded".into(),
        };
        let failed = status(plan(3, "", Some(failure)));
        assert_eq!(failed["conditions"][0]["reason"], "FailedCreate");
        assert_eq!(failed["conditions"][0]["message"], "quota exceeded");
    }
}
