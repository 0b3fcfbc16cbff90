//! Stale disruptions: a Pod that was to be taken away two minutes ago and is still there is not a target any more.
//! Reads: Pod. Writes: Pod/status (DisruptionTarget).
//! Upstream counterpart: the second half of pkg/controller/disruption, under whose name it runs.

use std::time::Duration;

use api::rules::pod::{condition, is_terminal};
use client::Change;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use json::json;
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::disruption::Disruptions;

pub struct StaleDisruptions;

/// How long after the condition was set its deletion may come.
const STALE: Duration = Duration::from_secs(120);

/// The condition, if it can go stale: a kubelet that ends a Pod may take any time, and one that has ended stays as it is.
fn target(pod: &Pod) -> Option<&PodCondition> {
    let condition = condition(pod, "DisruptionTarget").filter(|c| c.status == "True")?;
    let by_kubelet = condition.reason.as_deref() == Some("TerminationByKubelet");
    let going = pod.metadata.deletion_timestamp.is_some() || is_terminal(pod);
    (!by_kubelet && !going).then_some(condition)
}

impl Controller for StaleDisruptions {
    const NAME: &'static str = Disruptions::NAME;
    type Object = Pod;
    type Observed = ();

    fn concerns(change: &Change<Pod>) -> bool {
        change.new.as_ref().is_some_and(|pod| target(pod).is_some())
    }

    fn watches(&self, _: &mut Watches<Pod>) {}

    fn observe(&self, _: &Pod, _: &Listers) {}

    fn plan(&self, pod: &Pod, (): &(), now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(target) = target(pod) else { return plan };
        let since = target.last_transition_time.as_ref().map_or(0, |time| time.0.as_second());
        let passed = Duration::from_secs(u64::try_from(now.as_second() - since).unwrap_or(0));
        if let Some(left) = STALE.checked_sub(passed).filter(|left| !left.is_zero()) {
            plan.again_after(left);
            return plan;
        }
        let condition = PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "False".to_owned(),
            observed_generation: pod.metadata.generation,
            last_transition_time: Some(Time(now)),
            ..PodCondition::default()
        };
        let mut condition = json!(condition);
        // A field that is not written would stay as it was.
        condition["reason"] = json!(null);
        condition["message"] = json!(null);
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        plan.step(Write::strategic_patch(pod, "status", patch).tolerate(&["NotFound", "Conflict"]));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_stays_is_none() {
        // The condition's reason, the Pod's metadata and phase; then the seconds it is left alone, or what is written.
        let check = |reason: &str, deleting: bool, phase: &str, second: i64, expected: (&str, Option<u64>)| {
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason,
                "lastTransitionTime": "1970-01-01T00:00:00Z"});
            let deleted = deleting.then_some("1970-01-01T00:00:10Z");
            let pod = json!({"metadata": {"name": "p", "deletionTimestamp": deleted},
                "status": {"phase": phase, "conditions": [condition]}});
            let pod = json::from_value(pod).unwrap();
            let plan = StaleDisruptions.plan(&pod, &(), Timestamp::from_second(second).unwrap());
            assert_eq!((plan.to_string().as_str(), plan.requeue_after.map(|d| d.as_secs())), expected);
        };
        let evicted = "EvictionByEvictionAPI";
        check(evicted, false, "Running", 30, ("", Some(90)));
        check(evicted, false, "Running", 120, ("patch pods/status p", None));
        check(evicted, true, "Running", 120, ("", None));
        check(evicted, false, "Failed", 120, ("", None));
        check("TerminationByKubelet", false, "Running", 120, ("", None));
    }
}
