//! The status of a StatefulSet: how many Pods there are, serve, and are of which revision.

use api::rules::pod;
use clock::Timestamp;
use controller::Plan;
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::Pod,
};

use super::{Sync, identity, is_running_and_ready};
use crate::workloads::history;

fn some(n: usize) -> Option<i32> {
    (n != 0).then_some(n as i32)
}

/// The counts that do not depend on revisions.
fn counted(set: &StatefulSet, pods: &[&Pod], now: Timestamp) -> StatefulSetStatus {
    let held = set.status.clone().unwrap_or_default();
    let min_ready = set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let ready = pods.iter().filter(|p| is_running_and_ready(p));
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: pods.len() as i32,
        ready_replicas: some(ready.clone().count()),
        available_replicas: Some(ready.filter(|p| pod::is_available(p, min_ready, now)).count() as i32),
        ..held
    }
}

/// The status while there is no revision of the present template: the set is going, or the name that the revision would
/// have is taken, and the next plan will use another one.
pub fn without_revision(set: &StatefulSet, pods: &[&Pod], now: Timestamp, plan: &mut Plan) {
    let mut status = counted(set, pods, now);
    // Of which revision they are stays as it was told, as far as they are there.
    let present = |count: Option<i32>| some(count.unwrap_or(0).clamp(0, status.replicas) as usize);
    (status.current_replicas, status.updated_replicas) =
        (present(status.current_replicas), present(status.updated_replicas));
    if set.metadata.deletion_timestamp.is_none() {
        status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
        // This generation was not worked on yet.
        status.observed_generation = set.status.as_ref().and_then(|s| s.observed_generation);
    }
    plan.set_status(set, &StatefulSet { status: Some(status), ..set.clone() });
}

impl Sync<'_> {
    pub fn set_status(&mut self) {
        let pods: Vec<&Pod> = self.places.iter().filter_map(|p| p.pod).chain(self.condemned.iter().copied()).collect();
        let status = counted(self.set, &pods, self.now);
        let of = |revision: &str| {
            let live = pods.iter().filter(|p| !pod::is_deleted(p));
            live.filter(|p| identity::revision(p) == revision).count()
        };
        let (current, present) = (history::name(self.current), history::name(self.history.present()));
        let mut status = StatefulSetStatus {
            current_revision: Some(current.to_owned()),
            update_revision: Some(present.to_owned()),
            current_replicas: some(of(current).saturating_sub(self.outdated as usize)),
            updated_replicas: some(of(present)),
            collision_count: Some(status.collision_count.unwrap_or(0)),
            ..status
        };
        self.complete(&mut status);
        self.plan.set_status(self.set, &StatefulSet { status: Some(status), ..self.set.clone() });
    }

    /// When all Pods are of the present revision, it becomes the current one.
    fn complete(&self, status: &mut StatefulSetStatus) {
        let strategy = self.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
        let wanted = self.places.len() as i32;
        let all = [status.updated_replicas, status.ready_replicas, Some(status.replicas)];
        if strategy.is_none_or(|s| s == "RollingUpdate") && all.iter().all(|n| n.unwrap_or(0) == wanted) {
            status.current_replicas = status.updated_replicas;
            status.current_revision = status.update_revision.clone();
        }
    }
}
