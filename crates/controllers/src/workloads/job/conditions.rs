//! The conditions of a Job: which it has, and when it is over.

use std::time::Duration;

use clock::Timestamp;
use controller::{Note, Plan};
use k8s_openapi::{
    api::batch::v1::{Job, JobCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{Run, is_indexed, policy, policy::Consequence};

/// The condition that holds of these conditions.
fn held<'a>(conditions: &'a [JobCondition], kind: &str) -> Option<&'a JobCondition> {
    conditions.iter().find(|c| c.type_ == kind && c.status == "True")
}

/// The condition with which a Job ended.
pub fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_deref()?;
    held(conditions, "Complete").or_else(|| held(conditions, "Failed"))
}

/// A decision about the whole Job. It is a condition of its own first, and the final one once all Pods have ended and are
/// counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub success: bool,
    /// It stands in the Job's status already.
    pub stored: bool,
    reason: String,
    message: String,
}

impl Verdict {
    fn failure(reason: &str, message: impl Into<String>) -> Self {
        Verdict { success: false, stored: false, reason: reason.to_owned(), message: message.into() }
    }

    fn success(reason: &str, message: impl Into<String>) -> Self {
        Verdict { success: true, ..Verdict::failure(reason, message) }
    }

    pub fn interim(&self, now: Timestamp) -> JobCondition {
        let kind = if self.success { "SuccessCriteriaMet" } else { "FailureTarget" };
        condition(kind, "True", &self.reason, &self.message, now)
    }

    pub fn last(&self, now: Timestamp) -> JobCondition {
        let kind = if self.success { "Complete" } else { "Failed" };
        condition(kind, "True", &self.reason, &self.message, now)
    }

    /// The event that tells of the end.
    pub fn note(&self) -> Note {
        match self.success {
            true => Note::normal("Completed", "Job completed"),
            false => Note::warning(&self.reason, &self.message),
        }
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: text(reason),
        message: text(message),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Sets the condition; true when that changes something. One that was never there is not added as false.
fn set(conditions: &mut Vec<JobCondition>, new: JobCondition) -> bool {
    let Some(old) = conditions.iter_mut().find(|c| c.type_ == new.type_) else {
        let added = new.status != "False";
        conditions.extend(Some(new).filter(|_| added));
        return added;
    };
    let same = (&old.status, &old.reason, &old.message) == (&new.status, &new.reason, &new.message);
    if !same {
        *old = new;
    }
    !same
}

/// Notes in the conditions whether the Job is suspended; returns the event that tells of a change.
pub fn set_suspended(conditions: &mut Vec<JobCondition>, suspended: bool, now: Timestamp) -> Option<Note> {
    let (status, reason, event, message) = match suspended {
        true => ("True", "JobSuspended", "Suspended", "Job suspended"),
        false => ("False", "JobResumed", "Resumed", "Job resumed"),
    };
    set(conditions, condition("Suspended", status, reason, message, now)).then(|| Note::normal(event, message))
}

impl Run<'_> {
    fn conditions(&self) -> &[JobCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    /// The Job was suspended and is no more, which the status does not tell yet.
    pub fn is_resuming(&self) -> bool {
        !self.is_suspended() && held(self.conditions(), "Suspended").is_some()
    }

    /// Whether the Job is over: what the status says, or else what follows from the Pods.
    pub fn verdict(&self, plan: &mut Plan) -> Option<Verdict> {
        self.stored_verdict()
            .or_else(|| self.failed_by_policy())
            .or_else(|| self.failed_by_limit(plan))
            .or_else(|| self.failed_by_indexes())
            .or_else(|| self.succeeded())
    }

    fn stored_verdict(&self) -> Option<Verdict> {
        let met = held(self.conditions(), "SuccessCriteriaMet").map(|c| (c, true));
        let (condition, success) = met.or_else(|| held(self.conditions(), "FailureTarget").map(|c| (c, false)))?;
        let (reason, message) = (condition.reason.clone(), condition.message.clone());
        let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
        Some(Verdict { success, stored: true, reason, message })
    }

    fn failed_by_policy(&self) -> Option<Verdict> {
        let policy = self.spec.pod_failure_policy.as_ref()?;
        let failed = self.pods.iter().filter(|pod| self.has_failed(pod));
        let consequences = failed.map(|pod| policy::consequence(Some(policy), pod));
        let mut messages = consequences.filter_map(|consequence| match consequence {
            Consequence::FailJob(message) => Some(message),
            _ => None,
        });
        Some(Verdict::failure("PodFailurePolicy", messages.next()?))
    }

    fn failed_by_limit(&self, plan: &mut Plan) -> Option<Verdict> {
        let limit = self.spec.backoff_limit.unwrap_or(6);
        let restarts = self.restarts();
        if self.failed > limit || restarts.is_some_and(|n| if limit == 0 { n > 0 } else { n >= limit }) {
            return Some(Verdict::failure("BackoffLimitExceeded", "Job has reached the specified backoff limit"));
        }
        let deadline = self.spec.active_deadline_seconds.filter(|_| !self.is_suspended())?;
        let since = self.status.start_time.as_ref().filter(|_| !self.is_resuming()).map_or(self.now, |t| t.0);
        let left = deadline.saturating_sub(self.now.as_second() - since.as_second());
        if left > 0 {
            plan.again_after(Duration::from_secs(left as u64));
            return None;
        }
        Some(Verdict::failure("DeadlineExceeded", "Job was active longer than specified deadline"))
    }

    fn failed_by_indexes(&self) -> Option<Verdict> {
        let failed = self.failed_indexes.as_ref()?.len();
        if self.spec.max_failed_indexes.is_some_and(|most| failed > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(Verdict::failure("MaxFailedIndexesExceeded", message));
        }
        let all_ended = failed + self.succeeded >= self.completions();
        (failed > 0 && all_ended).then(|| Verdict::failure("FailedIndexes", "Job has failed indexes"))
    }

    /// The success policy is fulfilled, or all completions are there and nothing runs any more.
    fn succeeded(&self) -> Option<Verdict> {
        if is_indexed(self.spec) {
            let fulfilled = policy::fulfilled(self.spec.success_policy.as_ref(), self.completions(), &self.completed);
            if let Some(message) = fulfilled {
                return Some(Verdict::success("SuccessPolicy", message));
            }
        }
        let enough = match self.spec.completions {
            Some(completions) => self.succeeded >= completions,
            None => self.succeeded > 0,
        };
        let message = "Reached expected number of succeeded pods";
        (enough && self.active.is_empty()).then(|| Verdict::success("CompletionsReached", message))
    }
}
