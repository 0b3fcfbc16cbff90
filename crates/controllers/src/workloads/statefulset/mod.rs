//! StatefulSet: Pods with a number, a name and claims of their own, which they keep for life.
//! Reads: StatefulSet, Pod, ControllerRevision, PersistentVolumeClaim. Writes: Pod (create, delete, patch, adopt, release),
//! PersistentVolumeClaim (create, owners), ControllerRevision, StatefulSet/status.
//! Upstream counterpart: pkg/controller/statefulset.
//!
//! A Pod's name follows from its ordinal, and the server holds one object of a name: as long as a Pod that is lost or
//! terminating is there, no other can take its place, whoever dies between two writes. A claim is made before its Pod, and a
//! Pod's revision before both.

mod claims;
mod identity;
mod scale;
mod status;
mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use api::rules::{pod, selector::Selector};
use client::{Caches, Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Step, Watches, Write, claim, controller_of};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec},
    core::v1::{PersistentVolumeClaim, Pod},
};

use crate::workloads::{
    availability::next_available,
    history::{self, History, Recorded},
};

pub struct StatefulSets;

#[derive(Default)]
pub struct Observed {
    /// Pods that the set controls, and free ones that it takes.
    pods: Vec<Arc<Pod>>,
    history: Recorded,
    /// The claims that there are of its Pods, by name.
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// Names of the set's Pods that other Pods have: those of others, those that are given up, free ones that are going.
    taken: BTreeSet<String>,
}

fn name_of(set: &StatefulSet) -> &str {
    set.metadata.name.as_deref().unwrap_or("")
}

/// A set takes what its selector matches and what is named like one of its Pods.
fn takes(set: &StatefulSet, selector: &Selector, pod: &Pod) -> bool {
    selector.matches(&pod.metadata.labels) && identity::ordinal(set, pod).is_some()
}

/// Whether a Pod is the set's own, or becomes so.
fn is_claimed(set: &StatefulSet, selector: &Selector, pod: &Pod) -> bool {
    let ours = controller_of(pod).map(|owner| Some(&owner.uid) == set.metadata.uid.as_ref());
    takes(set, selector, pod) && ours.unwrap_or(!pod::is_deleted(pod))
}

/// The sets that may be waiting for what happened to a claim: it is gone, or others own it now.
fn sets_of_claim(change: &Change<PersistentVolumeClaim>, caches: &Caches) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new) {
        let owners = |c: &PersistentVolumeClaim| c.metadata.owner_references.clone();
        if owners(old) == owners(new) && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp {
            return Vec::new();
        }
    }
    let sets = caches.of::<StatefulSet>().list_in(&change.key.namespace);
    sets.iter().filter(|set| claims::is_named_like(set, &change.key.name)).map(|set| Key::of(&**set)).collect()
}

impl Controller for StatefulSets {
    const NAME: &'static str = "statefulset-controller";
    type Object = StatefulSet;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<StatefulSet>) {
        watches
            .owned::<Pod>()
            .selected::<Pod>(|set, pod| {
                history::takes(set, &pod.metadata.labels) && identity::ordinal(set, pod).is_some()
            })
            .changed::<PersistentVolumeClaim>(sets_of_claim);
        history::watch(watches);
    }

    fn observe(&self, set: &StatefulSet, listers: &Listers) -> Observed {
        let selector = history::selector(set);
        let pods = listers.owned_or_selected(set, |pod: &Pod| takes(set, &selector, pod));
        let namespace = set.metadata.namespace.as_deref().unwrap_or("");
        let (all_pods, all_claims) = (listers.caches.of::<Pod>(), listers.caches.of::<PersistentVolumeClaim>());
        let mut observed = Observed { history: Recorded::observe(set, listers), ..Observed::default() };
        let wanted = set.spec.as_ref().map(identity::ordinals).unwrap_or_default();
        let held: BTreeSet<i32> = pods.iter().filter_map(|pod| identity::ordinal(set, pod)).collect();
        for ordinal in wanted.clone() {
            let name = identity::pod_name(set, ordinal);
            if all_pods.get(&Key::new(namespace, &name)).is_some_and(|pod| !is_claimed(set, &selector, &pod)) {
                observed.taken.insert(name);
            }
        }
        for ordinal in wanted.chain(held) {
            for (_, name) in claims::names(set, ordinal) {
                if let Some(claim) = all_claims.get(&Key::new(namespace, &name)) {
                    observed.claims.insert(name, claim);
                }
            }
        }
        observed.pods = pods;
        observed
    }

    fn plan(&self, set: &StatefulSet, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let selector = history::selector(set);
        let claimed = claim(set, &observed.pods, |pod| takes(set, &selector, pod), &mut plan);
        let Some(history) = History::keep(set, &observed.history, &mut plan) else {
            status::without_revision(set, &claimed, now, &mut plan);
            return plan;
        };
        let mut sync = Sync::new(set, observed, &claimed, &history, now, &mut plan);
        if set.metadata.deletion_timestamp.is_none() && !sync.scale() {
            sync.update();
        }
        sync.set_status();
        if set.metadata.deletion_timestamp.is_none() {
            sync.forget_revisions();
        }
        if let Some(wait) = next_available(claimed, sync.min_ready_seconds(), now) {
            plan.again_after(wait);
        }
        plan
    }
}

/// The place of an ordinal that the set is to have.
#[derive(Clone, Copy)]
struct Place<'a> {
    ordinal: i32,
    pod: Option<&'a Pod>,
}

/// One look at a set, while its plan is made.
struct Sync<'a> {
    set: &'a StatefulSet,
    spec: &'a StatefulSetSpec,
    observed: &'a Observed,
    history: &'a History,
    /// The revision that Pods below the partition have.
    current: &'a ControllerRevision,
    /// The places that the set is to have, lowest first.
    places: Vec<Place<'a>>,
    /// Pods whose ordinals are not wanted, highest first.
    condemned: Vec<&'a Pod>,
    /// Pods of the current revision that this plan deletes to replace them.
    outdated: i32,
    now: Timestamp,
    plan: &'a mut Plan,
}

static EMPTY: LazyLock<StatefulSetSpec> = LazyLock::new(StatefulSetSpec::default);

impl<'a> Sync<'a> {
    fn new(
        set: &'a StatefulSet,
        observed: &'a Observed,
        pods: &[&'a Pod],
        history: &'a History,
        now: Timestamp,
        plan: &'a mut Plan,
    ) -> Self {
        let spec = set.spec.as_ref().unwrap_or(&EMPTY);
        let current = set.status.as_ref().and_then(|s| history.find(s.current_revision.as_deref()?));
        let mut by_ordinal: BTreeMap<i32, &Pod> =
            pods.iter().filter_map(|pod| Some((identity::ordinal(set, pod)?, *pod))).collect();
        let places = identity::ordinals(spec).map(|ordinal| Place { ordinal, pod: by_ordinal.remove(&ordinal) });
        let places = places.collect();
        Sync {
            set,
            spec,
            observed,
            history,
            current: current.unwrap_or(history.present()),
            places,
            condemned: by_ordinal.into_values().rev().collect(),
            outdated: 0,
            now,
            plan,
        }
    }

    fn is_ordered(&self) -> bool {
        self.spec.pod_management_policy.as_deref() != Some("Parallel")
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_running_and_ready(pod) && pod::is_available(pod, self.min_ready_seconds(), self.now)
    }

    /// Whether a place serves nobody, or is about to.
    fn is_unavailable(&self, pod: Option<&Pod>) -> bool {
        pod.is_none_or(|pod| !self.is_available(pod) || pod::is_deleted(pod))
    }

    /// Deletes a Pod.
    fn delete(&self, pod: &Pod) -> Write {
        self.told(Write::delete(pod), "Delete", pod.metadata.name.as_deref().unwrap_or(""))
    }

    /// A write about a Pod with the events that tell of it.
    fn told(&self, write: Write, verb: &str, pod: &str) -> Write {
        let about = format!("{} Pod {pod} in StatefulSet {}", verb.to_lowercase(), name_of(self.set));
        write
            .on_success(Note::normal(&format!("Successful{verb}"), format!("{about} successful")))
            .on_failure(Note::warning(&format!("Failed{verb}"), format!("{about} failed error: {{error}}")))
    }

    fn all(&mut self, writes: Vec<Write>) {
        if !writes.is_empty() {
            self.plan.steps.push(Step::All(writes));
        }
    }

    /// Deletes revisions beyond the limit that neither the set nor a Pod names.
    fn forget_revisions(&mut self) {
        let pods = self.places.iter().filter_map(|p| p.pod).chain(self.condemned.iter().copied());
        let mut used: BTreeSet<&str> = pods.map(identity::revision).collect();
        used.insert(history::name(self.current));
        let is_used = |r: &ControllerRevision| used.contains(history::name(r));
        let counted = self.history.past().filter(|r| !is_used(r)).count();
        self.history.truncate(counted, is_used, self.plan);
    }
}

fn is_running_and_ready(pod: &Pod) -> bool {
    pod::phase(pod) == "Running" && pod::is_ready(pod)
}

#[cfg(test)]
mod tests;
