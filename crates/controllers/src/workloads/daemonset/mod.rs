//! DaemonSet: one Pod on each node that fits.
//! Reads: DaemonSet, Pod, Node, ControllerRevision. Writes: Pod (create, delete, label, adopt, release),
//! ControllerRevision, DaemonSet/status.
//! Upstream counterpart: pkg/controller/daemon.
//!
//! A process that ends between two writes loses nothing: the next plan finds on each node the Pods that there are, and the
//! history that they name. Only how often Pods failed is forgotten with the process.

mod backoff;
mod manage;
mod placement;
mod rollout;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use api::rules::{pod, selector::Selector};
use client::{Caches, Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Step, Watches, Write, claim};
use json::json;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec},
    core::v1::{Node, Pod},
};

use crate::workloads::{
    availability::next_available,
    history::{self, History, POD_REVISION, Recorded},
    pod_template,
};
use backoff::{Backoff, Place};
use placement::{Fit, Placement};

#[derive(Default)]
pub struct DaemonSets {
    failures: Backoff,
}

#[derive(Default)]
pub struct Observed {
    /// Pods that the set controls, and free ones that its selector takes.
    pods: Vec<Arc<Pod>>,
    history: Recorded,
    nodes: Vec<Arc<Node>>,
    /// The names of failed Pods that are not given up yet, with the time until they are.
    kept: BTreeMap<String, Duration>,
}

/// The sets for which a node is not any more what it was.
fn sets_of_node(change: &Change<Node>, caches: &Caches) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new) {
        let taints = |node: &Node| node.spec.as_ref().and_then(|s| s.taints.clone());
        if old.metadata.labels == new.metadata.labels && taints(old) == taints(new) {
            return Vec::new();
        }
    }
    let sets = caches.of::<DaemonSet>().list();
    let concerned = |set: &&Arc<DaemonSet>| {
        let placement = Placement::of(set);
        let fit = |node: &Option<Arc<Node>>| node.as_ref().map_or(Fit::Refuses, |node| placement.fit(node));
        fit(&change.old) != fit(&change.new)
    };
    sets.iter().filter(concerned).map(|set| Key::of(&**set)).collect()
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemonset-controller";
    type Object = DaemonSet;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<DaemonSet>) {
        watches
            .owned::<Pod>()
            .selected::<Pod>(|set, pod| history::takes(set, &pod.metadata.labels))
            .changed::<Node>(sets_of_node);
        history::watch(watches);
    }

    fn observe(&self, set: &DaemonSet, listers: &Listers) -> Observed {
        let selector = history::selector(set);
        let pods = listers.owned_or_selected(set, |pod: &Pod| selector.matches(&pod.metadata.labels));
        let mut kept = BTreeMap::new();
        for pod in pods.iter().filter(|p| pod::phase(p) == "Failed" && p.metadata.deletion_timestamp.is_none()) {
            let place = Place {
                set: set.metadata.uid.clone().unwrap_or_default(),
                generation: set.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0),
                node: placement::node_of(pod).unwrap_or("").to_owned(),
            };
            let left = self.failures.left(place, pod.metadata.uid.as_deref().unwrap_or(""), clock::now());
            if !left.is_zero() {
                kept.insert(pod.metadata.name.clone().unwrap_or_default(), left);
            }
        }
        let nodes = listers.caches.of::<Node>().list();
        Observed { pods, history: Recorded::observe(set, listers), nodes, kept }
    }

    fn plan(&self, set: &DaemonSet, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if Selector::of_object(set.spec.as_ref().map(|s| &s.selector)).is_ok_and(|s| s.is_everything()) {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            plan.tell(Note::warning("SelectingAll", message));
            return plan;
        }
        // Of a set that is going nobody can say which of its revisions are still there.
        if set.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let selector = history::selector(set);
        let claimed = claim(set, &observed.pods, |pod| selector.matches(&pod.metadata.labels), &mut plan);
        let Some(history) = History::keep(set, &observed.history, &mut plan) else {
            status::count_collision(set, &mut plan);
            return plan;
        };
        if let Some(wait) = next_available(claimed.iter().copied(), min_ready_seconds(set), now) {
            plan.again_after(wait);
        }
        let mut sync = Sync::new(set, observed, &claimed, &history, now, &mut plan);
        if sync.merge_duplicates(&claimed) {
            return plan;
        }
        if !sync.manage() {
            sync.roll();
        }
        sync.forget_revisions(&claimed);
        sync.set_status();
        plan
    }
}

fn min_ready_seconds(set: &DaemonSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
}

/// The name of a revision in its Pods' labels.
fn hash(revision: &ControllerRevision) -> &str {
    let label = revision.metadata.labels.as_ref().and_then(|l| l.get(POD_REVISION));
    label.map_or_else(|| history::name(revision), String::as_str)
}

fn hash_of_pod(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get(POD_REVISION)).map_or("", String::as_str)
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}

/// One node, or what Pods say is one, with its Pods.
struct OnNode<'a> {
    name: &'a str,
    /// `None` where there is no such node.
    fit: Option<Fit>,
    /// The Pods that are bound to it or meant for it: bound ones first, then the oldest first.
    pods: Vec<&'a Pod>,
}

/// One look at a set, while its plan is made.
struct Sync<'a> {
    set: &'a DaemonSet,
    spec: &'a DaemonSetSpec,
    observed: &'a Observed,
    history: &'a History,
    /// All nodes, and those that Pods name, in the order of their names.
    nodes: Vec<OnNode<'a>>,
    now: Timestamp,
    plan: &'a mut Plan,
}

static EMPTY: LazyLock<DaemonSetSpec> = LazyLock::new(DaemonSetSpec::default);

impl<'a> Sync<'a> {
    fn new(
        set: &'a DaemonSet,
        observed: &'a Observed,
        pods: &[&'a Pod],
        history: &'a History,
        now: Timestamp,
        plan: &'a mut Plan,
    ) -> Self {
        let placement = Placement::of(set);
        let mut nodes: BTreeMap<&str, OnNode> = BTreeMap::new();
        for node in &observed.nodes {
            let name = node.metadata.name.as_deref().unwrap_or("");
            nodes.insert(name, OnNode { name, fit: Some(placement.fit(node)), pods: Vec::new() });
        }
        // A Pod that has ended and is about to be gone is nobody's matter any more.
        for pod in pods.iter().filter(|p| !(pod::is_terminal(p) && pod::is_deleted(p))) {
            let Some(name) = placement::node_of(pod) else { continue };
            nodes.entry(name).or_insert_with(|| OnNode { name, fit: None, pods: Vec::new() }).pods.push(pod);
        }
        for node in nodes.values_mut() {
            let age = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
            let is_bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
            node.pods.sort_by_key(|pod| (!is_bound(pod), age(pod), name(pod).to_owned()));
        }
        let spec = set.spec.as_ref().unwrap_or(&EMPTY);
        Sync { set, spec, observed, history, nodes: nodes.into_values().collect(), now, plan }
    }

    fn hash(&self) -> &'a str {
        hash(self.history.present())
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        placement::is_updated(self.set, self.hash(), pod)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pod::is_available(pod, min_ready_seconds(self.set), self.now)
    }

    /// Where several revisions hold the present template, one of them stays and gets the Pods of all. Whether that was so.
    fn merge_duplicates(&mut self, pods: &[&Pod]) -> bool {
        let (history, hash) = (self.history, self.hash());
        if history.present().metadata.labels.as_ref().is_none_or(|l| !l.contains_key(POD_REVISION)) {
            let patch = json!({"metadata": {"labels": {POD_REVISION: hash}}});
            self.plan.step(Write::merge_patch(history.present(), "", patch));
        }
        let duplicates: Vec<&ControllerRevision> = history.duplicates().collect();
        if duplicates.is_empty() {
            return false;
        }
        let merged: BTreeSet<&str> = duplicates.iter().map(|r| self::hash(r)).collect();
        for pod in pods.iter().filter(|p| merged.contains(hash_of_pod(p)) && hash_of_pod(p) != hash) {
            let patch = json!({"metadata": {"uid": pod.metadata.uid, "labels": {POD_REVISION: hash}}});
            self.plan.step(Write::merge_patch(*pod, "", patch).tolerate(&["NotFound"]));
        }
        self.plan.steps.push(Step::All(duplicates.into_iter().map(Write::delete).collect()));
        true
    }

    /// Deletes revisions beyond the limit that no Pod names.
    fn forget_revisions(&mut self, pods: &[&Pod]) {
        let used: BTreeSet<&str> = pods.iter().map(|pod| hash_of_pod(pod)).collect();
        let counted = self.history.past().count();
        self.history.truncate(counted, |revision| used.contains(hash(revision)), self.plan);
    }

    /// Makes a Pod on each of these nodes and deletes these Pods. Deletions come first: a creation that the server refuses
    /// must not keep Pods where they do not belong. Whether there was anything to do.
    fn apply(&mut self, nodes: &[&str], pods: &[&Pod]) -> bool {
        /// At most this many Pods are made, and deleted, in one go.
        const BURST: usize = 250;
        if !pods.is_empty() {
            let deletions = pods.iter().take(BURST).map(|pod| pod_template::delete(pod));
            self.plan.steps.push(Step::All(deletions.collect()));
        }
        if !nodes.is_empty() {
            let pod = |node: &&str| pod_template::create(&placement::pod(self.set, self.hash(), node));
            self.plan.steps.push(Step::SlowStart(nodes.iter().take(BURST).map(pod).collect()));
        }
        !(nodes.is_empty() && pods.is_empty())
    }
}

#[cfg(test)]
mod tests;
