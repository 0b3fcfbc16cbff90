//! CronJob: a Job at each time of a schedule.
//! Reads: CronJob, Job. Writes: Job (create, delete), CronJob/status.
//! Upstream counterpart: pkg/controller/cronjob (its second version).
//!
//! The name of a Job tells its time, so no time has two Jobs however often the process is killed: a Job that is there
//! without the status telling of it is found by its name, and its time counts as done.

mod times;

use std::{collections::BTreeSet, sync::Arc};

use api::rules::cron::{Schedule, time_zone};
use client::{Api, Client, events, rest::DeleteOptions};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Step, Watches, Write, owner_reference};
use jiff::tz::TimeZone;
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::job::finished;

pub struct CronJobs;

#[derive(Default)]
pub struct Observed {
    /// The Jobs that the CronJob controls.
    jobs: Vec<Arc<Job>>,
    /// UIDs of Jobs that the status lists and the server does not have.
    missing: BTreeSet<String>,
}

/// Tells at what time a Job was to start.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Marks a Job that a user started from a CronJob.
const INSTANTIATE: &str = "cronjob.kubernetes.io/instantiate";

fn is_listed(status: Option<&CronJobStatus>, uid: Option<&str>) -> bool {
    let mut active = status.into_iter().flat_map(|s| s.active.iter().flatten());
    active.any(|reference| reference.uid.as_deref() == uid)
}

impl Controller for CronJobs {
    const NAME: &'static str = "cronjob-controller";
    type Object = CronJob;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<CronJob>) {
        watches.owned::<Job>();
    }

    fn observe(&self, cron: &CronJob, listers: &Listers) -> Observed {
        Observed { jobs: listers.owned(cron), missing: BTreeSet::new() }
    }

    /// A Job that the status lists and the cache does not have may only not have arrived yet.
    async fn ask(&self, cron: &CronJob, observed: &mut Observed, client: &Client) -> Result<(), client::Error> {
        let jobs: Api<Job> = Api::namespaced(client.clone(), cron.metadata.namespace.as_deref().unwrap_or(""));
        for listed in cron.status.iter().flat_map(|s| s.active.iter().flatten()) {
            if observed.jobs.iter().any(|job| job.metadata.uid == listed.uid) {
                continue;
            }
            let found = jobs.find(listed.name.as_deref().unwrap_or("")).await?;
            if found.is_none_or(|job| job.metadata.uid != listed.uid) {
                observed.missing.extend(listed.uid.clone());
            }
        }
        Ok(())
    }

    fn plan(&self, cron: &CronJob, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(spec) = &cron.spec else { return plan };
        let mut round =
            Round { cron, spec, jobs: &observed.jobs, status: cron.status.clone().unwrap_or_default(), now };
        round.forget_history(&mut plan);
        round.list_active(&observed.missing, &mut plan);
        let creates = cron.metadata.deletion_timestamp.is_none() && round.start_job(&mut plan);
        let active = round.status.active.take().unwrap_or_default();
        round.status.active = (!active.is_empty()).then_some(active);
        let new = CronJob { status: Some(round.status), ..cron.clone() };
        if creates {
            // Told only once the Job is there: a time that failed is tried again.
            plan.step(Write::update_part(&new, "status"));
        } else {
            plan.set_status(cron, &new);
        }
        plan
    }
}

/// A CronJob and its Jobs as one plan sees them, and the status that it is to have.
struct Round<'a> {
    cron: &'a CronJob,
    spec: &'a CronJobSpec,
    jobs: &'a [Arc<Job>],
    status: CronJobStatus,
    now: Timestamp,
}

fn delete(job: &Job) -> Write {
    Write::delete_with(job, DeleteOptions { propagation: Some("Background"), ..Default::default() })
        .on_success(Note::normal("SuccessfulDelete", "Deleted job {name}"))
        .on_failure(Note::warning("FailedDelete", "Deleted job: {error}"))
}

fn is_going(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

impl Round<'_> {
    fn name(&self) -> &str {
        self.cron.metadata.name.as_deref().unwrap_or("")
    }

    fn job_name(&self, at: Timestamp) -> String {
        format!("{}-{}", self.name(), at.as_second() / 60)
    }

    /// The time at which a Job of this controller was to start, as its name tells.
    fn time_of(&self, job: &Job) -> Option<Timestamp> {
        if job.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(INSTANTIATE)) {
            return None;
        }
        let minutes = job.metadata.name.as_deref()?.strip_prefix(self.name())?.strip_prefix('-')?;
        Timestamp::from_second(minutes.parse::<i64>().ok()?.checked_mul(60)?).ok()
    }

    /// Deletes the oldest of those that ended, beyond the number that is kept.
    fn forget_history(&mut self, plan: &mut Plan) {
        let mut doomed = Vec::new();
        let limits =
            [("Complete", self.spec.successful_jobs_history_limit), ("Failed", self.spec.failed_jobs_history_limit)];
        for (outcome, limit) in limits {
            let mut ended: Vec<&Job> = self.jobs.iter().map(Arc::as_ref).collect();
            ended.retain(|job| finished(job).is_some_and(|c| c.type_ == outcome));
            ended.sort_by_key(|job| {
                let start = job.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|t| t.0);
                (start.is_none(), start, job.metadata.name.clone())
            });
            let surplus = limit.map_or(0, |limit| ended.len().saturating_sub(limit.max(0) as usize));
            doomed.extend(ended.into_iter().take(surplus).filter(|job| !is_going(job)).map(delete));
        }
        if !doomed.is_empty() {
            plan.steps.push(Step::All(doomed));
        }
    }

    /// Brings the list of running Jobs up to date, and the times that follow from Jobs.
    fn list_active(&mut self, missing: &BTreeSet<String>, plan: &mut Plan) {
        for job in self.jobs {
            let name = job.metadata.name.as_deref().unwrap_or("");
            let listed = is_listed(self.cron.status.as_ref(), job.metadata.uid.as_deref());
            match finished(job) {
                Some(end) if listed => {
                    self.unlist(job.metadata.uid.as_deref());
                    let message = format!("Saw completed job: {name}, condition: {}", end.type_);
                    plan.tell(Note::normal("SawCompletedJob", message));
                }
                None if !listed && !is_going(job) && self.time_of(job).is_none() => {
                    let message = format!("Saw a job that the controller did not create or forgot: {name}");
                    plan.tell(Note::warning("UnexpectedJob", message));
                }
                None if !listed && !is_going(job) => self.list(job),
                _ => {}
            }
            let completed = job.status.as_ref().and_then(|s| s.completion_time.as_ref());
            if finished(job).is_some_and(|c| c.type_ == "Complete")
                && completed > self.status.last_successful_time.as_ref()
            {
                self.status.last_successful_time = completed.cloned();
            }
            // The status does not tell of this time when the process was killed right after it created the Job.
            let time = self.time_of(job).map(Time);
            if time > self.status.last_schedule_time {
                self.status.last_schedule_time = time;
            }
        }
        let gone = |reference: &&ObjectReference| reference.uid.as_ref().is_some_and(|uid| missing.contains(uid));
        let gone: Vec<ObjectReference> = self.status.active.iter().flatten().filter(gone).cloned().collect();
        for reference in gone {
            let name = reference.name.as_deref().unwrap_or("");
            plan.tell(Note::normal("MissingJob", format!("Active job went missing: {name}")));
            self.unlist(reference.uid.as_deref());
        }
    }

    fn list(&mut self, job: &Job) {
        self.status.active.get_or_insert_default().push(events::reference(job));
    }

    fn unlist(&mut self, uid: Option<&str>) {
        self.status.active.get_or_insert_default().retain(|reference| reference.uid.as_deref() != uid);
    }

    /// Starts the Job whose time has come, if one has; true when the plan creates it.
    fn start_job(&mut self, plan: &mut Plan) -> bool {
        let Some((zone, schedule)) = self.schedule(plan) else { return false };
        let time = match times::due(self.cron, &self.status, self.now, &schedule) {
            Ok(due) => {
                if due.as_ref().is_some_and(|due| due.many_missed) {
                    let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
                    plan.tell(Note::warning("TooManyMissedTimes", message));
                }
                due.map(|due| due.at)
            }
            Err(why) => {
                let message = format!("invalid schedule: {} : {why}", self.spec.schedule);
                plan.tell(Note::warning("InvalidSchedule", message));
                return false;
            }
        };
        let starts = time.is_some_and(|time| self.may_start(time, plan));
        if let Some(time) = time.filter(|_| starts) {
            if self.spec.concurrency_policy.as_deref() == Some("Replace") {
                self.stop_active(plan);
            }
            plan.step(self.create(time, &zone));
            self.status.last_schedule_time = Some(Time(time));
        }
        plan.again_after(times::until_next(self.cron, &self.status, self.now, &schedule));
        starts
    }

    /// The time zone and the schedule in it; `None` when the CronJob starts nothing.
    fn schedule(&self, plan: &mut Plan) -> Option<(TimeZone, Schedule)> {
        let name = self.spec.time_zone.as_deref().unwrap_or("");
        let Some(zone) = time_zone(name) else {
            let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
            plan.tell(Note::warning("UnknownTimeZone", message));
            return None;
        };
        if self.spec.suspend == Some(true) {
            return None;
        }
        let text = &self.spec.schedule;
        if text.contains("TZ") {
            let message = format!(
                "CRON_TZ or TZ used in schedule {text:?} is not officially supported, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
            );
            plan.tell(Note::warning("UnsupportedSchedule", message));
        }
        match Schedule::parse(text, zone.clone()) {
            Ok(schedule) => Some((zone, schedule)),
            Err(why) => {
                let message = format!("unparseable schedule: {text:?} : {why}");
                plan.tell(Note::warning("UnparseableSchedule", message));
                None
            }
        }
    }

    fn may_start(&self, time: Timestamp, plan: &mut Plan) -> bool {
        let deadline = self.spec.starting_deadline_seconds;
        if deadline.is_some_and(|deadline| time.as_second().saturating_add(deadline) < self.now.as_second()) {
            let when = time.strftime("%a, %d %b %Y %H:%M:%S +0000");
            plan.tell(Note::warning("MissSchedule", format!("Missed scheduled time to start a job: {when}")));
            return false;
        }
        let name = self.job_name(time);
        let exists = self.jobs.iter().any(|job| job.metadata.name.as_deref() == Some(&name));
        let listed = self.status.active.iter().flatten().any(|r| r.name.as_deref() == Some(&name));
        if exists || listed || self.status.last_schedule_time.as_ref().is_some_and(|last| last.0 == time) {
            return false;
        }
        let some_run = self.status.active.as_ref().is_some_and(|active| !active.is_empty());
        if some_run && self.spec.concurrency_policy.as_deref() == Some("Forbid") {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.tell(Note::normal("JobAlreadyActive", message));
            return false;
        }
        true
    }

    fn stop_active(&mut self, plan: &mut Plan) {
        let active = self.status.active.take().unwrap_or_default();
        let is_active = |job: &&Arc<Job>| active.iter().any(|reference| reference.uid == job.metadata.uid);
        let deletions: Vec<Write> = self.jobs.iter().filter(is_active).map(|job| delete(job)).collect();
        if !deletions.is_empty() {
            plan.steps.push(Step::All(deletions));
        }
    }

    fn create(&self, time: Timestamp, zone: &TimeZone) -> Write {
        let template = self.spec.job_template.metadata.clone().unwrap_or_default();
        let mut annotations = template.annotations.unwrap_or_default();
        annotations.insert(SCHEDULED.to_owned(), rfc3339(time, zone));
        let job = Job {
            metadata: ObjectMeta {
                name: Some(self.job_name(time)),
                namespace: self.cron.metadata.namespace.clone(),
                labels: template.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![owner_reference(self.cron)]),
                ..Default::default()
            },
            spec: self.spec.job_template.spec.clone(),
            status: None,
        };
        Write::create(&job)
            .tolerate(&["AlreadyExists"])
            .on_success(Note::normal("SuccessfulCreate", "Created job {name}"))
            .on_failure(Note::warning("FailedCreate", "Error creating job: {error}"))
    }
}

/// `2026-01-01T12:00:00+01:00`, with `Z` for UTC.
fn rfc3339(time: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(time);
    if offset.is_zero() { time.to_string() } else { time.display_with_offset(offset).to_string() }
}

#[cfg(test)]
mod tests;
