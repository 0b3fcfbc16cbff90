//! The changes that a Job that exists may undergo.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Affinity, PodSpec, PodTemplateSpec};

use super::{is_indexed, spec};
use crate::validation::field::{Errors, FieldError, Path, show};
use crate::validation::internal_form;

const IMMUTABLE: &str = "field is immutable";

pub(super) fn validate_update(new_job: &Job, old_job: &Job) -> Errors {
    let (Some(new), Some(old)) = (spec(new_job), spec(old_job)) else { return Errors::new() };
    let path = Path::new("spec");
    let mut errors: Errors = completions(new, old, &path.child("completions")).into_iter().collect();
    let mut fixed = |field: &str, same: bool, shown: &dyn Fn() -> String| {
        if !same {
            errors.push(FieldError::invalid_shown(&path.child(field), &shown(), IMMUTABLE));
        }
    };
    fixed("selector", new.selector == old.selector, &|| internal_form::compact("LabelSelector", &new.selector));
    let started = old_job.status.as_ref().is_some_and(|status| status.start_time.is_some());
    let movable = old.suspend == Some(true) && !started;
    fixed("template", same_template(&new.template, &old.template, movable), &|| {
        internal_form::compact("PodTemplateSpec", internal_form::pod_template(&new.template))
    });
    fixed("completionMode", new.completion_mode == old.completion_mode, &|| show(&new.completion_mode));
    fixed("podFailurePolicy", new.pod_failure_policy == old.pod_failure_policy, &|| {
        shown("PodFailurePolicy", new.pod_failure_policy.as_ref())
    });
    fixed("backoffLimitPerIndex", new.backoff_limit_per_index == old.backoff_limit_per_index, &|| {
        show(new.backoff_limit_per_index)
    });
    fixed("managedBy", new.managed_by == old.managed_by, &|| show(&new.managed_by));
    fixed("successPolicy", new.success_policy == old.success_policy, &|| {
        shown("SuccessPolicy", new.success_policy.as_ref())
    });
    errors
}

fn shown(ty: &str, value: Option<&impl serde::Serialize>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| internal_form::compact(ty, value))
}

/// An indexed Job grows and shrinks together with its parallelism.
fn completions(new: &JobSpec, old: &JobSpec, path: &Path) -> Option<FieldError> {
    if new.completions == old.completions {
        return None;
    }
    let detail = match is_indexed(new) {
        // Its absence is an error of its own.
        true if new.completions.is_none() || new.completions == new.parallelism => return None,
        true => "can only be modified in tandem with spec.parallelism",
        false => IMMUTABLE,
    };
    Some(FieldError::invalid(path, new.completions, detail))
}

/// Where its Pods go may change while the Job waits to be started for the first time.
fn same_template(new: &PodTemplateSpec, old: &PodTemplateSpec, movable: bool) -> bool {
    if new == old || !movable {
        return new == old;
    }
    let mut allowed = old.clone();
    let (labels, annotations) =
        new.metadata.as_ref().map(|m| (m.labels.clone(), m.annotations.clone())).unwrap_or_default();
    if new.metadata.is_some() || allowed.metadata.is_some() {
        let metadata = allowed.metadata.get_or_insert_default();
        (metadata.labels, metadata.annotations) = (labels, annotations);
    }
    if let (Some(allowed), Some(new)) = (&mut allowed.spec, &new.spec) {
        move_to(allowed, new);
    }
    allowed.spec == new.spec && allowed.metadata.unwrap_or_default() == new.metadata.clone().unwrap_or_default()
}

/// Gives a Pod the other's place: what decides which nodes it may go to, without what relates it to other Pods.
fn move_to(pod: &mut PodSpec, other: &PodSpec) {
    pod.node_selector.clone_from(&other.node_selector);
    pod.tolerations.clone_from(&other.tolerations);
    pod.scheduling_gates.clone_from(&other.scheduling_gates);
    let node_affinity = other.affinity.as_ref().and_then(|a| a.node_affinity.clone());
    match (&mut pod.affinity, &other.affinity) {
        (None, None) => {}
        (None, Some(_)) => pod.affinity = Some(Affinity { node_affinity, ..Affinity::default() }),
        (Some(affinity), _) => affinity.node_affinity = node_affinity,
    }
    if other.affinity.is_none() && pod.affinity == Some(Affinity::default()) {
        pod.affinity = None;
    }
}
