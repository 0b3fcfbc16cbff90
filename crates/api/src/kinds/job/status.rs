//! The validation of a Job's status and of its changes: a Job that has ended stays so, and its counts only grow.
//!
//! A mistake that stood in the status before is not held against a write that leaves it alone.

use json::Value;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods};
use serde::Deserialize;

use super::{has_condition, is_indexed};
use crate::kinds::rollout;
use crate::rules::indexes::Indexes;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;

pub(super) fn validate_status(new: &Value, old: &Value) -> Errors {
    let (Ok(new), Ok(old)) = (Job::deserialize(new), Job::deserialize(old)) else { return Errors::new() };
    let (no_spec, no_status) = (JobSpec::default(), JobStatus::default());
    let change = Change {
        path: Path::new("status"),
        spec: new.spec.as_ref().unwrap_or(&no_spec),
        status: new.status.as_ref().unwrap_or(&no_status),
        before: old.status.as_ref().unwrap_or(&no_status),
        new: &new,
        old: &old,
    };
    let mut errors = change.numbers();
    errors.extend(change.uncounted());
    errors.extend(change.ends());
    errors.extend(change.times());
    errors.extend(change.leftovers());
    errors.extend(change.indexes());
    errors.extend(change.counters());
    errors
}

struct Change<'a> {
    path: Path,
    spec: &'a JobSpec,
    status: &'a JobStatus,
    before: &'a JobStatus,
    new: &'a Job,
    old: &'a Job,
}

/// The conditions that stay once they are there.
const FINAL: [&str; 4] = ["Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"];

fn is_finished(job: &Job) -> bool {
    has_condition(job, "Complete") || has_condition(job, "Failed")
}

impl Change<'_> {
    fn is(&self, condition: &str) -> bool {
        has_condition(self.new, condition)
    }

    fn was(&self, condition: &str) -> bool {
        has_condition(self.old, condition)
    }

    /// One of these conditions is given or taken away.
    fn changed(&self, conditions: &[&str]) -> bool {
        conditions.iter().any(|condition| self.is(condition) != self.was(condition))
    }

    fn numbers(&self) -> Errors {
        let status = self.status;
        let given = [
            ("active", status.active),
            ("succeeded", status.succeeded),
            ("failed", status.failed),
            ("ready", status.ready),
            ("terminating", status.terminating),
        ];
        let mut errors: Errors =
            given.into_iter().filter_map(|(field, value)| rollout::not_negative(&self.path, field, value)).collect();
        let counted = (status.ready, status.active) != (self.before.ready, self.before.active);
        if let Some(ready) = status.ready.filter(|ready| counted && *ready > status.active.unwrap_or(0)) {
            let detail = "cannot set more ready pods than active";
            errors.push(FieldError::invalid(&self.path.child("ready"), ready, detail));
        }
        errors
    }

    /// No Pod is waiting to be counted twice.
    fn uncounted(&self) -> Errors {
        let Some(pods) = &self.status.uncounted_terminated_pods else { return Errors::new() };
        let path = self.path.child("uncountedTerminatedPods");
        let mut seen = std::collections::BTreeSet::new();
        let mut errors = Errors::new();
        for (field, uids) in [("succeeded", &pods.succeeded), ("failed", &pods.failed)] {
            for (i, uid) in uids.iter().flatten().enumerate() {
                let path = path.child(field).index(i);
                if uid.is_empty() {
                    errors.push(FieldError::invalid(&path, uid, "must not be empty"));
                } else if !seen.insert(uid) {
                    errors.push(FieldError::duplicate(&path, uid));
                }
            }
        }
        errors
    }

    /// The conditions agree with each other, and none of those that end a Job is taken back.
    fn ends(&self) -> Errors {
        let exclusive = [("Complete", "Failed", "Failed=true"), ("Complete", "FailureTarget", "FailureTarget=true")];
        let needed = [("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")];
        let mut details = Vec::new();
        for (one, other, shown) in exclusive {
            if self.changed(&[one, other]) && self.is(one) && self.is(other) {
                details.push(format!("cannot set {one}=True and {shown} conditions"));
            }
        }
        for (last, interim) in needed {
            if self.changed(&[last, interim]) && self.is(last) && !self.is(interim) {
                details.push(format!("cannot set {last}=True condition without the {interim}=true condition"));
            }
        }
        for (other, shown) in [("Failed", "Failed=true"), ("FailureTarget", "FailureTarget=true")] {
            if self.is("SuccessCriteriaMet") && self.is(other) {
                details.push(format!("cannot set SuccessCriteriaMet=True and {shown} conditions"));
            }
        }
        if self.spec.success_policy.is_some() && self.is("Complete") && !self.is("SuccessCriteriaMet") {
            let detail = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
            details.push(detail.to_owned());
        }
        for condition in FINAL.into_iter().filter(|condition| self.was(condition) && !self.is(condition)) {
            let terminal = if condition == "SuccessCriteriaMet" { "" } else { "terminal " };
            details.push(format!("cannot disable the {terminal}{condition}=True condition"));
        }
        if self.was("Complete") && !self.was("SuccessCriteriaMet") && self.is("SuccessCriteriaMet") {
            let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            details.push(detail.to_owned());
        }
        let path = self.path.child("conditions");
        details.iter().map(|detail| FieldError::invalid_unshown(&path, detail)).collect()
    }

    fn times(&self) -> Errors {
        let (start, end) = (&self.status.start_time, &self.status.completion_time);
        let (started, ended) = (*start != self.before.start_time, *end != self.before.completion_time);
        let mut errors = Errors::new();
        let path = self.path.child("completionTime");
        if ended || self.changed(&["Complete"]) {
            match end {
                Some(_) if !self.is("Complete") => {
                    let detail = "cannot set completionTime when there is no Complete=True condition";
                    errors.push(FieldError::invalid(&path, end, detail));
                }
                None if self.is("Complete") => {
                    errors.push(FieldError::required(&path, "completionTime is required for Complete jobs"));
                }
                _ => {}
            }
        }
        if (started || ended) && start.as_ref().zip(end.as_ref()).is_some_and(|(start, end)| end.0 < start.0) {
            errors.push(FieldError::invalid(&path, end, "completionTime cannot be set before startTime"));
        }
        if ended && end.is_some() && self.before.completion_time.is_some() {
            errors.push(FieldError::invalid(&path, end, "completionTime cannot be mutated"));
        }
        let path = self.path.child("startTime");
        let suspended = self.spec.suspend == Some(true);
        let ends = started || is_finished(self.new) != is_finished(self.old);
        if ends && is_finished(self.new) && start.is_none() && !(suspended && self.spec.completions == Some(0)) {
            errors.push(FieldError::required(&path, "startTime is required for finished job"));
        }
        if started && self.before.start_time.is_some() && !suspended {
            errors.push(FieldError::required(&path, "startTime cannot be removed for unsuspended job"));
        }
        errors
    }

    /// A Job that has ended has no Pods that run, end or wait to be counted.
    fn leftovers(&self) -> Errors {
        let (status, before) = (self.status, self.before);
        let mut errors = Errors::new();
        if !is_finished(self.new) {
            return errors;
        }
        let ends = !is_finished(self.old);
        let some = |n: Option<i32>| n.is_some_and(|n| n > 0);
        if (ends || status.active != before.active) && some(status.active) {
            let detail = "active>0 is invalid for finished job";
            errors.push(FieldError::invalid(&self.path.child("active"), status.active, detail));
        }
        if (ends || status.terminating != before.terminating) && some(status.terminating) {
            let detail = "terminating>0 is invalid for finished job";
            errors.push(FieldError::invalid(&self.path.child("terminating"), status.terminating, detail));
        }
        let waits =
            |pods: &UncountedTerminatedPods| pods.succeeded.iter().chain(&pods.failed).flatten().next().is_some();
        let uncounted = &status.uncounted_terminated_pods;
        let changes = ends || *uncounted != before.uncounted_terminated_pods;
        if let Some(pods) = uncounted.as_ref().filter(|pods| changes && waits(pods)) {
            let shown = internal_form::compact("UncountedTerminatedPods", pods);
            let detail = "uncountedTerminatedPods needs to be empty for finished job";
            let path = self.path.child("uncountedTerminatedPods");
            errors.push(FieldError::invalid_shown(&path, &shown, detail));
        }
        errors
    }

    fn indexes(&self) -> Errors {
        let (status, before) = (self.status, self.before);
        let completed = status.completed_indexes.as_deref().unwrap_or_default();
        let failed = status.failed_indexes.as_deref();
        let completed_changes = completed != before.completed_indexes.as_deref().unwrap_or_default();
        let failed_changes = failed != before.failed_indexes.as_deref();
        let mut errors = Errors::new();
        let mut invalid = |field: &str, text: &str, detail: &str| {
            errors.push(FieldError::invalid(&self.path.child(field), text, detail));
        };
        let read = |text: &str| self.spec.completions.map(|most| Indexes::parse_strict(text, most));
        if completed_changes {
            if let Some(Err(why)) = read(completed) {
                invalid("completedIndexes", completed, &format!("error parsing completedIndexes: {why}"));
            }
            if !completed.is_empty() && !is_indexed(self.spec) {
                let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
                invalid("completedIndexes", completed, detail);
            }
        }
        let Some(failed) = failed else { return errors };
        if failed_changes && self.spec.backoff_limit_per_index.is_none() {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            invalid("failedIndexes", failed, detail);
        } else if failed_changes && let Some(Err(why)) = read(failed) {
            invalid("failedIndexes", failed, &format!("error parsing failedIndexes: {why}"));
        }
        if (failed_changes || completed_changes)
            && let Some(most) = self.spec.completions
        {
            let (completed, indexes) = (Indexes::parse(completed, most), Indexes::parse(failed, most));
            if let Some(index) = completed.first_common(&indexes) {
                let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
                invalid("failedIndexes", failed, &detail);
            }
        }
        errors
    }

    /// A count is not taken back, but for an indexed Job that became smaller.
    fn counters(&self) -> Errors {
        let elastic = is_indexed(self.spec) && self.spec.completions == self.spec.parallelism;
        let (status, before) = (self.status, self.before);
        let counters = [
            ("failed", status.failed, before.failed, false),
            ("succeeded", status.succeeded, before.succeeded, elastic),
        ];
        let shrunk = counters.into_iter().filter(|(_, new, old, may)| !may && new.unwrap_or(0) < old.unwrap_or(0));
        let error = |(field, new, ..): (&str, Option<i32>, Option<i32>, bool)| {
            let detail = format!("cannot decrease the {field} counter");
            FieldError::invalid(&self.path.child(field), new.unwrap_or(0), &detail)
        };
        shrunk.map(error).collect()
    }
}
