//! The status of a Deployment: counts, and the conditions Available, Progressing and ReplicaFailure.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};

use super::{
    Rollout, condition, set_condition,
    sizes::{self, actual, available},
};

fn some(n: i32) -> Option<i32> {
    (n != 0).then_some(n)
}

/// How many Pods of the ReplicaSet are about to go. One that nobody has worked on has none; of one that does not tell, it is
/// not known.
fn terminating(set: &ReplicaSet) -> Option<i32> {
    let Some(status) = &set.status else { return Some(0) };
    status.terminating_replicas.or((status.observed_generation.unwrap_or(0) == 0).then_some(0))
}

/// All wanted Pods run the current template and are available, and nothing else is left.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = deployment.spec.as_ref().map_or(0, sizes::wanted);
    let counts = [status.updated_replicas, status.replicas, status.available_replicas];
    counts.iter().all(|n| n.unwrap_or(0) == wanted)
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

/// Something moved since the last status.
fn is_progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |count: Option<i32>| count.unwrap_or(0);
    let outdated = |s: &DeploymentStatus| n(s.replicas) - n(s.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || outdated(new) < outdated(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

impl Rollout<'_> {
    /// The status after a change that is no rollout.
    pub fn sync_status(&mut self) {
        self.new.status = Some(self.counted());
    }

    /// The status of a rollout, with its progress.
    pub fn sync_rollout_status(&mut self) {
        let mut status = self.counted();
        let mut conditions = status.conditions.take().unwrap_or_default();
        if self.deadline().is_none() {
            conditions.retain(|c| c.type_ != "Progressing");
        }
        let held = self.condition("Progressing").cloned();
        let was_complete = status.replicas == status.updated_replicas
            && held.as_ref().is_some_and(|c| c.reason.as_deref() == Some("NewReplicaSetAvailable"));
        if self.deadline().is_some() && !was_complete {
            self.set_progress(&mut conditions, held, &status);
        }
        conditions.retain(|c| c.type_ != "ReplicaFailure");
        conditions.extend(self.replica_failure());
        self.requeue_when_stuck(&conditions, &status);
        status.conditions = (!conditions.is_empty()).then_some(conditions);
        self.new.status = Some(status);
    }

    fn set_progress(
        &self,
        conditions: &mut Vec<DeploymentCondition>,
        held: Option<DeploymentCondition>,
        status: &DeploymentStatus,
    ) {
        let what = match self.current {
            Some(i) => format!("ReplicaSet \"{}\"", self.sets[i].metadata.name.as_deref().unwrap_or("")),
            None => format!("Deployment \"{}\"", self.name()),
        };
        let before = self.old.status.clone().unwrap_or_default();
        if is_complete(self.old, status) {
            let message = format!("{what} has successfully progressed.");
            set_condition(conditions, "Progressing", "True", "NewReplicaSetAvailable", message, self.now);
        } else if is_progressing(&before, status) {
            // Each step of progress restarts the deadline, though status and reason do not change.
            conditions.retain(|c| c.type_ != "Progressing");
            let message = format!("{what} is progressing.");
            set_condition(conditions, "Progressing", "True", "ReplicaSetUpdated", message, self.now);
            let since = held.filter(|c| c.status == "True").and_then(|c| c.last_transition_time);
            if let (Some(since), Some(fresh)) = (since, conditions.last_mut()) {
                fresh.last_transition_time = Some(since);
            }
        } else if self.is_timed_out(conditions) {
            let message = format!("{what} has timed out progressing.");
            set_condition(conditions, "Progressing", "False", "ProgressDeadlineExceeded", message, self.now);
        }
    }

    fn is_timed_out(&self, conditions: &[DeploymentCondition]) -> bool {
        let Some(progressing) = condition(conditions, "Progressing") else { return false };
        match progressing.reason.as_deref().unwrap_or("") {
            "NewReplicaSetAvailable" => false,
            "ProgressDeadlineExceeded" => true,
            _ => self.seconds_left(progressing).is_some_and(|left| left < 0),
        }
    }

    fn seconds_left(&self, progressing: &DeploymentCondition) -> Option<i64> {
        let updated = progressing.last_update_time.as_ref()?.0.as_second();
        Some(updated + self.deadline()? - self.now.as_second())
    }

    /// A rollout that stands still changes nothing that would wake us, so the deadline has to.
    fn requeue_when_stuck(&mut self, conditions: &[DeploymentCondition], status: &DeploymentStatus) {
        let Some(progressing) = condition(conditions, "Progressing") else { return };
        if is_complete(self.old, status) || progressing.reason.as_deref() == Some("ProgressDeadlineExceeded") {
            return;
        }
        if let Some(left) = self.seconds_left(progressing) {
            self.plan.again_after(Duration::from_secs(left.max(0) as u64 + 1));
        }
    }

    fn replica_failure(&self) -> Option<DeploymentCondition> {
        let sets = self.current.map(|i| &self.sets[i]).into_iter().chain(&self.sets);
        let failed = sets.filter_map(|set| {
            set.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == "ReplicaFailure").cloned()
        });
        failed.into_iter().next().map(|c| DeploymentCondition {
            type_: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_update_time: c.last_transition_time.clone(),
            last_transition_time: c.last_transition_time,
        })
    }

    fn counted(&self) -> DeploymentStatus {
        let held = self.new.status.clone().unwrap_or_default();
        let ready = sizes::sum(&self.sets, |s| s.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0));
        let available_pods = sizes::sum(&self.sets, available);
        let wanted_pods = sizes::sum(&self.sets, sizes::size);
        let terminating: Option<i32> = self.sets.iter().map(terminating).sum();
        let mut conditions = held.conditions.unwrap_or_default();
        if available_pods >= sizes::wanted(self.spec) - sizes::max_unavailable(self.spec) {
            let message = "Deployment has minimum availability.".to_owned();
            set_condition(&mut conditions, "Available", "True", "MinimumReplicasAvailable", message, self.now);
        } else {
            let message = "Deployment does not have minimum availability.".to_owned();
            set_condition(&mut conditions, "Available", "False", "MinimumReplicasUnavailable", message, self.now);
        }
        DeploymentStatus {
            observed_generation: self.old.metadata.generation,
            replicas: some(sizes::sum(&self.sets, actual)),
            updated_replicas: some(self.current.map_or(0, |i| actual(&self.sets[i]))),
            ready_replicas: some(ready),
            available_replicas: some(available_pods),
            unavailable_replicas: some((wanted_pods - available_pods).max(0)),
            terminating_replicas: terminating,
            collision_count: held.collision_count,
            conditions: Some(conditions),
        }
    }
}
