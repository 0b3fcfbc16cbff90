//! Job: Pods that run until enough of them have succeeded.
//! Reads: Job, Pod. Writes: Pod (create, delete, adopt, release, finalizers), Job/status.
//! Upstream counterpart: pkg/controller/job.

mod backoff;
mod conditions;
mod orphans;
mod pods;
mod policy;
mod tracking;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock},
    time::Duration,
};

use api::rules::{indexes::Indexes, pod, selector};
use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, claim_with};
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec, JobStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use parking_lot::Mutex;

use self::{
    backoff::Failures,
    conditions::Verdict,
    pods::index_of,
    tracking::{TRACKING, is_tracked},
};

pub use backoff::LONGEST_DELAY;
pub use conditions::finished;
pub use orphans::OrphanedPods;

#[derive(Default)]
pub struct Jobs {
    /// The failures of each Job's Pods, with the Job's UID. Deleted Pods tell of their failure no more, so it is kept here.
    failures: Mutex<HashMap<Key, (String, Failures)>>,
}

pub struct Observed {
    /// Pods that the Job controls, and free ones that its selector takes.
    pods: Vec<Arc<Pod>>,
    failures: Failures,
}

/// The value of `spec.managedBy` that means this controller, as none does.
const OURSELVES: &str = "kubernetes.io/job-controller";

/// Whether another controller looks after the Job.
fn is_managed_elsewhere(job: &Job) -> bool {
    job.spec.as_ref().and_then(|s| s.managed_by.as_deref()).is_some_and(|name| name != OURSELVES)
}

fn selects(job: &Job, pod: &Pod) -> bool {
    selector::takes(job.spec.as_ref().and_then(|s| s.selector.as_ref()), &pod.metadata.labels)
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// Whether a Pod is replaced only when it has ended, not when its deletion has begun.
fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// A Pod that is deleted counts as failed, since it may never get to say so, unless the Job waits for its end.
fn has_failed(spec: &JobSpec, pod: &Pod) -> bool {
    let deleted = || pod.metadata.deletion_timestamp.is_some() && pod::phase(pod) != "Succeeded";
    pod::phase(pod) == "Failed" || (!replaces_only_failed(spec) && deleted())
}

impl Jobs {
    /// The Job's failures with what these Pods add to them.
    fn learn(&self, job: &Job, spec: &JobSpec, pods: &[Arc<Pod>]) -> Failures {
        let uid = job.metadata.uid.as_deref().unwrap_or("");
        let mut all = self.failures.lock();
        let (of, failures) = all.entry(Key::of(job)).or_default();
        if of != uid {
            (*of, *failures) = (uid.to_owned(), Failures::default());
        }
        for pod in pods {
            // A Pod that was deleted because it was not needed any more has no finalizer, and its end says nothing.
            if !tracking::is_tracked(pod) && pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            if is_indexed(spec) && index_of(pod).is_none_or(|i| i >= spec.completions.unwrap_or(0)) {
                continue;
            }
            if pod::phase(pod) == "Succeeded" {
                failures.succeeded(pod);
            } else if has_failed(spec, pod) {
                failures.failed(pod);
            }
        }
        failures.clone()
    }
}

impl Controller for Jobs {
    const NAME: &'static str = "job-controller";
    const LONGEST_DELAY: Duration = Duration::from_secs(60);
    type Object = Job;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<Job>) {
        watches.owned::<Pod>().selected::<Pod>(selects);
    }

    fn observe(&self, job: &Job, listers: &Listers) -> Observed {
        let spec = job.spec.as_ref().filter(|_| !is_managed_elsewhere(job) && finished(job).is_none());
        let Some(spec) = spec else {
            self.failures.lock().remove(&Key::of(job));
            return Observed { pods: Vec::new(), failures: Failures::default() };
        };
        let pods = listers.owned_or_selected(job, |pod: &Pod| selects(job, pod));
        let failures = self.learn(job, spec, &pods);
        Observed { pods, failures }
    }

    fn plan(&self, job: &Job, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(spec) = job.spec.as_ref().filter(|_| !is_managed_elsewhere(job) && finished(job).is_none()) else {
            return plan;
        };
        if !matches!(spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
            let message = "Skipped Job sync because completion mode is unknown";
            plan.tell(Note::warning("UnknownCompletionMode", message));
            return plan;
        }
        let claimed = claim_with(job, &observed.pods, |pod| selects(job, pod), &[TRACKING], &mut plan);
        Run::new(job, spec, claimed, now).plan(&observed.failures, &mut plan);
        plan
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.failures.lock().remove(key);
        Plan::default()
    }
}

static EMPTY: LazyLock<JobStatus> = LazyLock::new(JobStatus::default);

/// A Job and its Pods as one plan sees them.
struct Run<'a> {
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
            terminating: pods.iter().filter(|p| pod::is_terminating(p)).count() as i32,
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
        has_failed(self.spec, pod)
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

#[cfg(test)]
mod crash;
#[cfg(test)]
mod tests;
