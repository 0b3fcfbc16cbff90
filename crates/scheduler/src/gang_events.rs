//! The engine's treatment of gangs: Pods are tried when all of their gang that are needed are there, wait with their nodes
//! for each other, and give the nodes back when that takes too long.
//! Upstream counterpart: pkg/scheduler/framework/plugins/gangscheduling.

use std::sync::Arc;

use api::features::Feature;
use client::Key;
use clock::Instant;
use k8s_openapi::api::core::v1;

use crate::{
    change::Change,
    engine::{Decision, Engine},
    failure::{Failure, Preemption},
    gangs::{GangKey, Held, Permit, Progress, Workload},
    node_id::NodeId,
    plugin::Plugin,
    plugins::gang_scheduling,
    profile::{Part, Profile},
    queue::Waiting,
    rejection::{Rejection, Text},
};

impl Engine {
    /// A Workload as it is now; `None` when it is gone.
    pub fn set_workload(&mut self, key: &Key, workload: Option<Workload>, now: Instant) {
        if crate::claims::set(&mut self.gangs.workloads, key.clone(), workload) {
            for gang in self.gangs.of_workload(key) {
                self.gang_changed(&gang, "WorkloadAdd", now);
            }
        }
    }

    pub fn workload_keys(&self) -> Vec<Key> {
        self.gangs.workloads.keys().cloned().collect()
    }

    fn has_gangs(&self, profile: &Profile) -> bool {
        profile.with(Part::Gate).any(|p| p.plugin.gangs)
    }

    /// Notes how far a Pod of a gang has come. Answers with its gang.
    pub(crate) fn see_member(&mut self, key: &Key, pod: &v1::Pod, progress: Progress) -> Option<GangKey> {
        if !self.settings.features.enabled(Feature::GangScheduling) {
            return None;
        }
        let gang = GangKey::of(pod);
        self.gangs.see(key, gang.clone(), progress);
        gang
    }

    /// The gang of a Pod keeps it from being tried.
    pub(crate) fn is_held_back(&self, key: &Key, profile: &Profile) -> bool {
        self.has_gangs(profile) && !self.gangs.is_open(key)
    }

    /// Pods of a gang came, or its Workload did: those that waited for that are tried.
    pub(crate) fn gang_changed(&mut self, gang: &GangKey, event: &'static str, now: Instant) {
        self.gangs.recount(gang);
        for (key, gates_open) in self.gangs.waiting(gang) {
            if gates_open && self.gangs.is_open(&key) {
                self.queue.open(&key, event, now);
                self.queue.wake(&key, event, now);
            }
        }
    }

    /// The next Pod that may be tried. One whose gang has become too small meanwhile is held back.
    pub(crate) fn next_waiting(&mut self, now: Instant) -> Option<Waiting> {
        loop {
            let pod = self.queue.pop(now)?;
            if !self.is_held_back(&pod.key, self.profile(pod.class)) {
                return Some(pod);
            }
            self.queue.add(Waiting { gated: true, ..pod }, now);
        }
    }

    /// Whether a Pod for which a node was chosen may be bound.
    pub(crate) fn permit(&mut self, pod: &Waiting) -> Permit {
        match self.has_gangs(self.profile(pod.class)) {
            true => self.gangs.decided(&pod.key),
            false => Permit::Granted,
        }
    }

    /// The Pod keeps its node and waits for its gang, whose other Pods are tried at once.
    pub(crate) fn wait_for_gang(&mut self, pod: Waiting, id: NodeId, now: Instant) -> Decision {
        self.put_on(&pod, id, now);
        self.gangs.hold(pod.clone(), now);
        let gang = self.gangs.gang_of(&pod.key).cloned();
        for (key, _) in gang.iter().flat_map(|gang| self.gangs.waiting(gang)) {
            self.queue.activate(&key, now);
        }
        Decision::Waits { pod }
    }

    /// The next decision about Pods that waited for their gangs.
    pub(crate) fn next_of_gangs(&mut self, now: Instant) -> Option<Decision> {
        while let Some(pod) = self.gangs.granted.pop_front() {
            if let Some(placed) = self.cache.placed(&pod.key) {
                let node = placed.node;
                return Some(self.bind(pod, node));
            }
        }
        if let Some(decision) = self.sent_back.pop_front() {
            return Some(decision);
        }
        let Held { pod, waited, .. } = self.gangs.overdue(now)?;
        let why =
            format!("rejected due to timeout after waiting {} at plugin {}", seconds(waited), gang_scheduling::NAME);
        self.give_node_back(pod, |plugin| plugin.gangs, Text::Shared(why.into()), now)
    }

    /// A Pod that waits for its gang makes room for a more important one. Unlike a victim that is bound it stays, and is tried
    /// again after its backoff. Says whether the Pod waits so.
    pub(crate) fn send_back(&mut self, key: &Key, now: Instant) -> bool {
        let Some(Held { pod, .. }) = self.gangs.take_held(key) else { return false };
        let decision = self.give_node_back(pod, |plugin| plugin.preempts, Text::Static("preempted"), now);
        self.queue.wake(key, Change::label(Change::PodDeleted as u16), now);
        self.sent_back.extend(decision);
        true
    }

    /// A Pod that has its node and waits loses it again, because this plugin says so.
    fn give_node_back(
        &mut self,
        pod: Waiting,
        says_so: fn(&Plugin) -> bool,
        why: Text,
        now: Instant,
    ) -> Option<Decision> {
        self.binding.remove(&pod.key);
        let placed = self.unplace(&pod.key)?;
        self.unreserve(&pod, placed.node, now);
        let mut failure = Failure::default();
        let index = self.settings.plugins.iter().position(says_so).unwrap_or(0);
        failure.add(index, placed.node, Rejection { reason: why, ..Rejection::unresolvable("") });
        self.queue.park(pod.clone(), failure.plugins, now);
        self.retry(Change::PodDeleted as u16, Some(placed.node), now);
        Some(Decision::Unschedulable { pod, failure: Arc::new(failure), preemption: Preemption::NotTried })
    }
}

/// A time as upstream writes it.
fn seconds(waited: std::time::Duration) -> String {
    let (minutes, seconds) = (waited.as_secs() / 60, waited.as_secs() % 60);
    if minutes > 0 { format!("{minutes}m{seconds}s") } else { format!("{seconds}s") }
}
