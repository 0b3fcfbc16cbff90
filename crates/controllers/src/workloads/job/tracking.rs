//! Exact counts of ended Pods, whenever the process is killed.
//!
//! Each Pod carries a finalizer, so that none is gone before it is counted. Three writes follow each other, each made in a
//! plan that goes out from what the one before has left in the store:
//!
//! 1. The Pod's UID goes into `status.uncountedTerminatedPods` (its index into `status.completedIndexes` if it succeeded).
//! 2. The finalizer is taken off a Pod that the stored status names.
//! 3. The UID leaves the list and the counter rises, in one write, once no Pod with that UID carries the finalizer.
//!
//! Killed before a write, the next plan finds the state before it and makes it again; after it, the next step is due. The
//! first and the third are updates of a certain version of the Job, so of two that were sent only one counts; the second
//! changes nothing when it is made again. A Pod whose finalizer was seen to be gone never carries it again in this
//! process's cache, and a process that starts lists the Pods after all writes of the one before, so that no Pod is listed
//! for counting twice.

use api::rules::pod;
use controller::{Plan, Step, Write, controller_of};
use json::json;
use k8s_openapi::api::{
    batch::v1::{JobStatus, UncountedTerminatedPods},
    core::v1::Pod,
};

use super::{Run, conditions::Verdict, is_indexed, policy};

/// The finalizer of a Pod that is not counted yet.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// At most this many UIDs wait in the status, and at most this many finalizers go in one plan.
const MOST: usize = 500;

pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == TRACKING)
}

/// Takes the finalizer off. A Pod that is gone, or whose name another one has now, is fine.
pub fn untrack(pod: &Pod) -> Write {
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [TRACKING], "uid": pod.metadata.uid}});
    Write::strategic_patch(pod, "", patch).tolerate(&["NotFound", "Invalid"])
}

/// Takes the finalizer off, unless the Pod changed meanwhile: it may have ended, and then it counts.
pub fn untrack_unchanged(pod: &Pod) -> Write {
    let version = &pod.metadata.resource_version;
    let gone = json!([TRACKING]);
    let metadata =
        json!({"$deleteFromPrimitiveList/finalizers": gone, "uid": pod.metadata.uid, "resourceVersion": version});
    Write::strategic_patch(pod, "", json!({"metadata": metadata})).tolerate(&["NotFound", "Invalid"])
}

/// Gives the finalizer back to a Pod that lives. To one whose deletion has begun it cannot be given.
fn track_again(pod: &Pod) -> Write {
    let patch = json!({"metadata": {"finalizers": [TRACKING], "uid": pod.metadata.uid}});
    Write::strategic_patch(pod, "", patch).tolerate(&["NotFound", "Invalid", "Forbidden"])
}

/// The next step of a Pod that carries the finalizer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    /// It runs, or something has to be stored first.
    Wait,
    NoteSuccess,
    NoteFailure,
    /// All that is to be counted of it is stored.
    LetGo,
}

impl Run<'_> {
    /// Brings the counts of the status up to date and lets go of the Pods that the stored status accounts for.
    pub fn track(&self, verdict: Option<&Verdict>, status: &mut JobStatus, plan: &mut Plan) {
        let mut uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
        let (mut succeeded, mut failed) =
            (uncounted.succeeded.take().unwrap_or_default(), uncounted.failed.take().unwrap_or_default());
        self.count_those_let_go(&mut succeeded, &mut status.succeeded);
        self.count_those_let_go(&mut failed, &mut status.failed);
        let mut let_go = Vec::new();
        for pod in self.pods.iter().filter(|pod| is_tracked(pod)) {
            let uid = || pod.metadata.uid.clone().unwrap_or_default();
            let room = succeeded.len() + failed.len() < MOST;
            match self.next(pod, verdict) {
                Next::NoteSuccess if room => succeeded.push(uid()),
                Next::NoteFailure if room => failed.push(uid()),
                Next::LetGo if let_go.len() < MOST => let_go.push(untrack(pod)),
                _ => {}
            }
        }
        if !let_go.is_empty() {
            plan.steps.push(Step::All(let_go));
        }
        let some = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
        status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { failed: some(failed), succeeded: some(succeeded) });
        if is_indexed(self.spec) {
            status.succeeded = Some(self.completed.len()).filter(|n| *n != 0);
            status.completed_indexes = (!self.completed.is_empty()).then(|| self.completed.to_string());
            status.failed_indexes = self.failed_indexes.as_ref().map(ToString::to_string);
        }
    }

    /// Moves the UIDs of Pods that carry the finalizer no more from the list into the counter.
    fn count_those_let_go(&self, uids: &mut Vec<String>, counter: &mut Option<i32>) {
        let before = uids.len();
        let carries = |uid: &String| self.pods.iter().any(|p| is_tracked(p) && p.metadata.uid.as_ref() == Some(uid));
        uids.retain(carries);
        let count = counter.unwrap_or(0) + (before - uids.len()) as i32;
        *counter = (count != 0).then_some(count);
    }

    fn next(&self, pod: &Pod, verdict: Option<&Verdict>) -> Next {
        let succeeded = pod::phase(pod) == "Succeeded";
        let index = self.index(pod);
        if self.is_noted(pod) || (succeeded && index.is_some_and(|i| self.stored_completed.contains(i))) {
            return Next::LetGo;
        }
        let failed = self.has_failed(pod);
        let awaits = index.and_then(|i| self.awaiting.get(&i)).is_some_and(|p| p.metadata.uid == pod.metadata.uid);
        let over = verdict.is_some() && !pod::is_active(pod);
        let job_goes = self.job.metadata.deletion_timestamp.is_some();
        if !succeeded && !over && !job_goes && (!failed || awaits) {
            return Next::Wait;
        }
        if !self.takes_part(pod) {
            return Next::LetGo;
        }
        if succeeded {
            // The plan's status holds the index, and the next plan finds it stored.
            return if is_indexed(self.spec) { Next::Wait } else { Next::NoteSuccess };
        }
        match verdict {
            // Pods that are deleted because the Job has succeeded without them have not failed.
            Some(v) if v.success && v.stored && pod.metadata.deletion_timestamp.is_some() => Next::LetGo,
            Some(v) if v.success && !failed => Next::Wait,
            None if !failed => Next::LetGo,
            _ if policy::consequence(self.spec.pod_failure_policy.as_ref(), pod).counts() => Next::NoteFailure,
            _ => Next::LetGo,
        }
    }

    /// A Pod from which the finalizer was taken for its deletion, and which then was not deleted because the process was
    /// killed, gets it back unless it is deleted now. A Pod that this plan adopts gets it with its owner.
    pub fn track_survivors(&self, deleted: &[&Pod], plan: &mut Plan) {
        let uid = |pod: &Pod| pod.metadata.uid.clone();
        let survives = |pod: &&&Pod| {
            !is_tracked(pod) && controller_of(**pod).is_some() && !deleted.iter().any(|d| uid(d) == uid(pod))
        };
        let again: Vec<Write> = self.active.iter().filter(survives).map(|pod| track_again(pod)).collect();
        if !again.is_empty() {
            plan.steps.push(Step::All(again));
        }
    }
}
