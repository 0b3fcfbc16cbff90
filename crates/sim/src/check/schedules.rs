//! The checkers of CronJobs: no time has two Jobs, and none runs beside another that may not.

use std::collections::{BTreeMap, BTreeSet};

use clock::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, Job};

use crate::objects::{owner, set};

/// Tells for which time a Job was made.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// How long after its time a Job may be made when nothing disturbs, and how often there is one in a story.
const LATE_SECONDS: i64 = 60 + 2 * 60;

#[derive(Default)]
pub struct Schedules {
    cron_jobs: BTreeMap<String, CronJob>,
    jobs: BTreeMap<String, Job>,
    /// By the UID of the CronJob: the times for which there was a Job.
    times: BTreeMap<String, BTreeSet<String>>,
    /// How many Jobs were made.
    pub started: usize,
}

fn is_active(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ended = conditions.into_iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True");
    job.metadata.deletion_timestamp.is_none() && !ended
}

fn time(job: &Job) -> &str {
    job.metadata.annotations.as_ref().and_then(|all| all.get(SCHEDULED)).map_or("", String::as_str)
}

impl Schedules {
    pub fn cron_job(&mut self, key: String, new: Option<CronJob>) {
        set(&mut self.cron_jobs, key, new);
    }

    fn jobs_of<'a>(&'a self, cron: &'a CronJob) -> impl Iterator<Item = &'a Job> {
        self.jobs.values().filter(|job| owner(&job.metadata) == cron.metadata.uid.as_deref())
    }

    /// Notes a changed Job; says what is wrong if it is a new one of a CronJob.
    pub fn job(&mut self, key: String, new: Option<&Job>) -> Option<String> {
        let wrong = new
            .filter(|new| self.jobs.get(&key).is_none_or(|old| old.metadata.uid != new.metadata.uid))
            .and_then(|new| self.made(new));
        set(&mut self.jobs, key, new.cloned());
        wrong
    }

    fn made(&mut self, new: &Job) -> Option<String> {
        let cron = self.cron_jobs.values().find(|cron| owner(&new.metadata) == cron.metadata.uid.as_deref())?;
        let uid = cron.metadata.uid.clone()?;
        let alone = cron.spec.as_ref().and_then(|s| s.concurrency_policy.as_deref()).is_some_and(|p| p != "Allow");
        let other = self.jobs_of(cron).find(|job| alone && is_active(job)).map(|job| time(job).to_owned());
        self.started += 1;
        let first = self.times.entry(uid).or_default().insert(time(new).to_owned());
        match other {
            _ if !first => Some(format!("there was a Job for {} before", time(new))),
            Some(other) => Some(format!("it runs beside the Job for {other}")),
            None => None,
        }
    }

    /// Whether each CronJob that is not suspended has had a Job lately, or one that lets no other run beside it.
    pub fn kept(&self, now: Timestamp) -> bool {
        self.cron_jobs.values().all(|cron| {
            let suspended = cron.spec.as_ref().is_some_and(|s| s.suspend == Some(true));
            let uid = cron.metadata.uid.as_deref().unwrap_or_default();
            let last = self.times.get(uid).and_then(|times| times.last()?.parse::<Timestamp>().ok());
            let lately = last.is_some_and(|last| now.as_second() - last.as_second() <= LATE_SECONDS);
            suspended || lately || self.jobs_of(cron).any(is_active)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn cron(policy: &str) -> Schedules {
        let mut schedules = Schedules::default();
        let cron = json!({"metadata": {"uid": "c"}, "spec": {"schedule": "* * * * *", "concurrencyPolicy": policy,
            "jobTemplate": {}}});
        schedules.cron_job("c".into(), json::from_value(cron).unwrap());
        schedules
    }

    fn job(name: &str, minute: u32, words: &str) -> Job {
        let owner = json!([{"apiVersion": "v1", "kind": "CronJob", "name": "c", "uid": "c", "controller": true}]);
        let conditions = if words == "over" { json!([{"type": "Complete", "status": "True"}]) } else { json!([]) };
        json::from_value(json!({"metadata": {"name": name, "uid": name, "ownerReferences": owner,
            "annotations": {SCHEDULED: format!("2026-01-01T00:{minute:02}:00Z")},
            "deletionTimestamp": (words == "goes").then_some("2026-01-01T00:00:00Z")},
            "status": {"conditions": conditions}}))
        .unwrap()
    }

    #[test]
    fn a_time_has_one_job() {
        let mut schedules = cron("Allow");
        let mut check = |job: Job, expected: &str| {
            let key = job.metadata.name.clone().unwrap();
            assert_eq!(schedules.job(key, Some(&job)).unwrap_or_default(), expected);
        };
        check(job("a", 1, ""), "");
        check(job("a", 1, "over"), "");
        check(job("b", 2, ""), "");
        check(job("c", 2, ""), "there was a Job for 2026-01-01T00:02:00Z before");
    }

    #[test]
    fn jobs_run_alone_where_they_must() {
        for (policy, words, fine) in [
            ("Forbid", "", false),
            ("Replace", "", false),
            ("Allow", "", true),
            ("Forbid", "over", true),
            ("Replace", "goes", true),
        ] {
            let mut schedules = cron(policy);
            assert_eq!(schedules.job("a".into(), Some(&job("a", 1, words))), None);
            assert_eq!(schedules.job("b".into(), Some(&job("b", 2, ""))).is_none(), fine, "{policy} {words}");
        }
    }

    #[test]
    fn schedules_are_kept() {
        let mut schedules = cron("Forbid");
        let at = |minute: u32| format!("2026-01-01T00:{minute:02}:30Z").parse::<Timestamp>().unwrap();
        assert!(!schedules.kept(at(0)));
        schedules.job("a".into(), Some(&job("a", 1, "")));
        assert!(schedules.kept(at(30)), "it runs");
        schedules.job("a".into(), Some(&job("a", 1, "over")));
        assert!(schedules.kept(at(3)) && !schedules.kept(at(5)));
    }
}
