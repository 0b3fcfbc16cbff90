//! A Job and its Pods as one plan sees them, and the order of that plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use api::rules::pod;
use clock::Timestamp;
use controller::{Note, Plan};
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec, JobStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    backoff::Failures,
    conditions::{self, Verdict},
    indexes::{Indexes, index_of},
    is_indexed, policy,
    tracking::is_tracked,
};

static EMPTY: LazyLock<JobStatus> = LazyLock::new(JobStatus::default);

pub struct Run<'a> {
    pub job: &'a Job,
    pub spec: &'a JobSpec,
    /// The status as it is stored, which the plan goes out from.
    pub status: &'a JobStatus,
    /// All Pods of the Job, in the order of their indexes.
    pub pods: Vec<&'a Pod>,
    pub active: Vec<&'a Pod>,
    /// UIDs of Pods that the stored status lists as ended and not yet counted.
    pub noted_succeeded: BTreeSet<&'a str>,
    pub noted_failed: BTreeSet<&'a str>,
    /// How many succeeded and failed, those that the status does not tell of yet included.
    pub succeeded: i32,
    pub failed: i32,
    pub terminating: i32,
    /// The completed indexes that the stored status tells, and those with what the Pods add.
    pub stored_completed: Indexes,
    pub completed: Indexes,
    /// The indexes that are given up; only with a limit per index.
    pub failed_indexes: Option<Indexes>,
    /// The last failed Pod of each index that waits for its replacement, which inherits its number of failures.
    pub awaiting: BTreeMap<i32, &'a Pod>,
    pub now: Timestamp,
}

impl<'a> Run<'a> {
    pub fn new(job: &'a Job, spec: &'a JobSpec, mut pods: Vec<&'a Pod>, now: Timestamp) -> Self {
        let status = job.status.as_ref().unwrap_or(&EMPTY);
        pods.sort_by_key(|pod| index_of(pod));
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let uids = |list: Option<&'a Vec<String>>| list.into_iter().flatten().map(String::as_str).collect();
        let mut run = Run {
            job,
            spec,
            status,
            active: pods.iter().copied().filter(|p| pod::is_active(p)).collect(),
            terminating: pods.iter().filter(|p| is_terminating(p)).count() as i32,
            pods,
            noted_succeeded: uids(uncounted.and_then(|u| u.succeeded.as_ref())),
            noted_failed: uids(uncounted.and_then(|u| u.failed.as_ref())),
            succeeded: 0,
            failed: 0,
            stored_completed: Indexes::default(),
            completed: Indexes::default(),
            failed_indexes: None,
            awaiting: BTreeMap::new(),
            now,
        };
        run.count();
        if is_indexed(spec) {
            run.count_indexes();
        }
        run
    }

    pub fn completions(&self) -> i32 {
        self.spec.completions.unwrap_or(0)
    }

    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    pub fn has_failed(&self, pod: &Pod) -> bool {
        super::has_failed(self.spec, pod)
    }

    pub fn is_noted(&self, pod: &Pod) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        self.noted_succeeded.contains(uid) || self.noted_failed.contains(uid)
    }

    /// The Pod's index, if it is one of the Job's.
    pub fn index(&self, pod: &Pod) -> Option<i32> {
        index_of(pod).filter(|index| *index < self.completions())
    }

    /// Whether the Pod has a part in the Job: Pods of an Indexed Job that lack an index have none.
    pub fn takes_part(&self, pod: &Pod) -> bool {
        !is_indexed(self.spec) || self.index(pod).is_some()
    }

    /// The limit per index and the number of failures that count towards it, for a Job that has such a limit.
    pub fn limit_per_index(&self) -> Option<i32> {
        self.spec.backoff_limit_per_index.filter(|_| is_indexed(self.spec))
    }

    fn count(&mut self) {
        let status = self.status;
        let fresh: Vec<&Pod> =
            self.pods.iter().copied().filter(|p| is_tracked(p) && !self.is_noted(p) && self.takes_part(p)).collect();
        let succeeded = fresh.iter().filter(|p| pod::phase(p) == "Succeeded").count();
        let failed = fresh
            .iter()
            .filter(|p| self.has_failed(p) && policy::consequence(self.spec.pod_failure_policy.as_ref(), p).counts());
        self.failed = status.failed.unwrap_or(0) + (failed.count() + self.noted_failed.len()) as i32;
        self.succeeded = status.succeeded.unwrap_or(0) + (succeeded + self.noted_succeeded.len()) as i32;
    }

    fn count_indexes(&mut self) {
        let below = self.completions();
        self.stored_completed = Indexes::parse(self.status.completed_indexes.as_deref().unwrap_or(""), below);
        let succeeded = self.pods.iter().filter(|p| pod::phase(p) == "Succeeded" && is_tracked(p) && !self.is_noted(p));
        self.completed = self.stored_completed.union(&succeeded.filter_map(|p| self.index(p)).collect());
        self.succeeded = self.completed.len();
        let Some(limit) = self.limit_per_index() else { return };
        let stored = Indexes::parse(self.status.failed_indexes.as_deref().unwrap_or(""), below);
        let given_up = self.pods.iter().filter(|p| is_tracked(p) && self.gives_up_index(p, limit));
        let given_up = given_up.filter_map(|p| self.index(p)).filter(|index| !self.completed.contains(*index));
        let failed = stored.union(&given_up.collect());
        self.awaiting = self.awaiting_replacement(&failed);
        self.failed_indexes = Some(failed);
    }

    /// The plan: what is owed to Pods that ended comes first, then what happens to the others, and the status last.
    pub fn plan(&self, failures: &Failures, plan: &mut Plan) {
        let mut status = self.status.clone();
        let verdict = self.verdict(plan);
        let mut conditions = status.conditions.take().unwrap_or_default();
        status.start_time = status.start_time.or_else(|| (!self.is_suspended()).then_some(Time(self.now)));
        self.track(verdict.as_ref(), &mut status, plan);
        let mut note = None;
        match &verdict {
            Some(verdict) => {
                self.delete_active(plan);
                if !verdict.stored {
                    conditions.push(verdict.interim(self.now));
                } else if self.is_settled(&status) {
                    note = Some(self.finish(verdict, &mut status, plan));
                    conditions.push(verdict.last(self.now));
                }
            }
            None if self.job.metadata.deletion_timestamp.is_none() => {
                self.manage(failures, plan);
                if self.is_resuming() {
                    // The deadline counts the time since the Job was resumed.
                    status.start_time = Some(Time(self.now));
                }
                note = conditions::set_suspended(&mut conditions, self.is_suspended(), self.now);
            }
            None => {}
        }
        status.conditions = (!conditions.is_empty()).then_some(conditions);
        status.active = Some(self.active.len() as i32).filter(|n| *n != 0);
        status.ready = Some(self.active.iter().filter(|p| pod::is_ready(p)).count() as i32);
        status.terminating = Some(self.terminating);
        plan.set_status(self.job, &Job { status: Some(status), ..self.job.clone() });
        if let Some(write) = &mut plan.status {
            write.on_success = note;
        }
    }

    /// Nothing of the Job runs, and no Pod is left that the counts of this status do not hold.
    fn is_settled(&self, status: &JobStatus) -> bool {
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let left =
            uncounted.is_some_and(|u| [&u.succeeded, &u.failed].into_iter().flatten().any(|uids| !uids.is_empty()));
        !left && self.active.is_empty() && self.terminating == 0 && !self.pods.iter().any(|p| is_tracked(p))
    }

    fn finish(&self, verdict: &Verdict, status: &mut JobStatus, plan: &mut Plan) -> Note {
        if verdict.success {
            status.completion_time = Some(Time(self.now));
            if self.spec.completions.is_some_and(|wanted| status.succeeded.unwrap_or(0) > wanted) {
                let message = "Too many succeeded pods running after completion count reached";
                plan.tell(Note::warning("TooManySucceededPods", message));
            }
        }
        verdict.note()
    }
}

/// Being deleted, and not ended.
fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && !pod::is_terminal(pod)
}
