//! The status of a DaemonSet: on how many nodes its Pods are wanted, are there, serve, and are up to date.

use api::rules::pod;
use controller::Plan;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};

use super::{Fit, Sync};

/// The name of the present revision is taken by something else. The next plan will use another one.
pub fn count_collision(set: &DaemonSet, plan: &mut Plan) {
    let mut status = set.status.clone().unwrap_or_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
    plan.set_status(set, &DaemonSet { status: Some(status), ..set.clone() });
}

impl Sync<'_> {
    pub fn set_status(&mut self) {
        let held = self.set.status.clone().unwrap_or_default();
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: held.collision_count,
            conditions: held.conditions,
            ..DaemonSetStatus::default()
        };
        let (mut available, mut updated) = (0, 0);
        for node in self.nodes.iter().filter(|node| node.fit.is_some()) {
            let Some(oldest) = node.pods.first().filter(|_| node.fit == Some(Fit::Runs)) else {
                status.desired_number_scheduled += i32::from(node.fit == Some(Fit::Runs));
                status.number_misscheduled += i32::from(!node.pods.is_empty());
                continue;
            };
            status.desired_number_scheduled += 1;
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(pod::is_ready(oldest));
            available += i32::from(self.is_available(oldest));
            updated += i32::from(self.is_updated(oldest));
        }
        let some = |n: i32| (n != 0).then_some(n);
        status.number_available = some(available);
        status.number_unavailable = some(status.desired_number_scheduled - available);
        status.updated_number_scheduled = some(updated);
        self.plan.set_status(self.set, &DaemonSet { status: Some(status), ..self.set.clone() });
    }
}
