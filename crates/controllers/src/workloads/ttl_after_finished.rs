//! TTL after finished: deletes Jobs some time after they ended, as they ask for.
//! Reads: Job. Writes: Job (delete).
//! Upstream counterpart: pkg/controller/ttlafterfinished.

use std::time::Duration;

use client::rest::DeleteOptions;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::batch::v1::Job;

use super::job::finished;

pub struct TtlAfterFinished;

/// When the Job is to be deleted: never, while it is not over, does not ask for it, or does not say when it ended.
fn expires(job: &Job) -> Option<i64> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let ended = finished(job)?.last_transition_time.as_ref()?.0;
    Some(ended.as_second() + i64::from(ttl))
}

impl Controller for TtlAfterFinished {
    const NAME: &'static str = "ttl-after-finished-controller";
    type Object = Job;
    type Observed = ();

    fn watches(&self, _: &mut Watches<Job>) {}

    fn observe(&self, _: &Job, _: &Listers) {}

    fn plan(&self, job: &Job, (): &(), now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(expires) = expires(job).filter(|_| job.metadata.deletion_timestamp.is_none()) else { return plan };
        // A Job that ended later than now was written by a clock that goes ahead of this one, and lives longer for it.
        let left = expires - now.as_second();
        if left > 0 {
            plan.again_after(Duration::from_secs(left as u64));
        } else {
            // A Job that was changed meanwhile may have got more time.
            let resource_version = job.metadata.resource_version.clone();
            let options = DeleteOptions { resource_version, propagation: Some("Foreground"), ..Default::default() };
            plan.step(Write::delete_with(job, options));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::rest::Verb;
    use json::{Value, json};

    fn plan(ttl: Value, condition: (&str, &str), ended: Value, deleting: bool) -> Plan {
        let job = json!({
            "metadata": {"name": "j", "namespace": "d", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z")},
            "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
            "status": {"conditions": [{"type": condition.0, "status": condition.1, "lastTransitionTime": ended}]},
        });
        let job: Job = json::from_value(job).unwrap();
        TtlAfterFinished.plan(&job, &(), "2026-01-01T01:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_job_goes_when_its_time_is_over() {
        let check = |ttl: Value, condition: (&str, &str), ended: &str, expected: Result<&str, u64>| {
            let plan = plan(ttl.clone(), condition, json!(ended), false);
            let expected = expected.map(str::to_owned);
            let found = plan.requeue_after.map_or_else(|| Ok(plan.to_string()), |wait| Err(wait.as_secs()));
            assert_eq!(found, expected, "{ttl} {condition:?} {ended}");
        };
        let gone = Ok("delete jobs j");
        check(json!(10), ("Complete", "True"), "2026-01-01T00:59:50Z", gone);
        check(json!(10), ("Failed", "True"), "2026-01-01T00:59:50Z", gone);
        check(json!(10), ("Complete", "True"), "2026-01-01T00:59:51Z", Err(1));
        check(json!(0), ("Complete", "True"), "2026-01-01T01:00:00Z", gone);
        // The clock that wrote the end goes ahead.
        check(json!(0), ("Complete", "True"), "2026-01-01T01:00:30Z", Err(30));
        check(json!(10), ("Complete", "False"), "2026-01-01T00:00:00Z", Ok(""));
        check(json!(10), ("SuccessCriteriaMet", "True"), "2026-01-01T00:00:00Z", Ok(""));
        check(Value::Null, ("Complete", "True"), "2026-01-01T00:00:00Z", Ok(""));
        assert!(plan(json!(0), ("Complete", "True"), Value::Null, false).is_empty(), "it does not say when it ended");
        assert!(plan(json!(0), ("Complete", "True"), json!("2026-01-01T00:00:00Z"), true).is_empty());
    }

    #[test]
    fn only_what_was_seen_is_deleted_and_its_pods_go_first() {
        let plan = plan(json!(0), ("Complete", "True"), json!("2026-01-01T00:00:00Z"), false);
        let Verb::Delete(options) = &plan.writes().next().unwrap().verb else { panic!("{plan}") };
        let found = (options.uid.as_deref(), options.resource_version.as_deref(), options.propagation);
        assert_eq!(found, (Some("u"), Some("7"), Some("Foreground")));
    }
}
