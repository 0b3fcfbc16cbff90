//! Job: Pods that run until enough of them have succeeded.
//! Reads: Job, Pod. Writes: Pod (create, delete, adopt, release, finalizers), Job/status.
//! Upstream counterpart: pkg/controller/job.

mod backoff;
mod conditions;
mod indexes;
mod orphans;
mod pods;
mod policy;
mod run;
mod tracking;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::rules::{pod, selector::Selector};
use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, claim_with};
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::Pod,
};
use parking_lot::Mutex;

use self::{backoff::Failures, run::Run, tracking::TRACKING};

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
    let selector = job.spec.as_ref().and_then(|s| Selector::of_object(s.selector.as_ref()).ok());
    selector.is_some_and(|s| !s.is_everything() && s.matches(pod.metadata.labels.as_ref().unwrap_or(&BTreeMap::new())))
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
            if is_indexed(spec) && indexes::index_of(pod).is_none_or(|i| i >= spec.completions.unwrap_or(0)) {
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

    fn plan_gone(&self, key: &Key, _: &Listers) -> Plan {
        self.failures.lock().remove(key);
        Plan::default()
    }
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod tests;
