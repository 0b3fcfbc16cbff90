//! The validation of a Job's spec: numbers, completion mode, restart policy, selector.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};

use super::{is_indexed, own_labels, policies, spec};
use crate::kinds::pod::{self, validate as template};
use crate::kinds::rollout;
use crate::rules::selector::Selector;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names;

/// The status of an indexed Job lists its indexes, so their number has bounds.
const INDEXED_PARALLELISM_MAX: i32 = 100_000;
const FAILED_INDEXES_MAX: i32 = 100_000;
/// Above this many completions the two bounds are narrower where each index has a limit of its own.
const MANY_COMPLETIONS: i32 = 100_000;
const MANY_PARALLELISM_MAX: i32 = 10_000;
const MANY_FAILED_INDEXES_MAX: i32 = 10_000;
const MANAGER_MAX: usize = 63;

pub(super) fn validate(job: &Job) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(job) else { return vec![FieldError::required(&path, "")] };
    let mut errors = validate_spec(spec, &path);
    match &spec.selector {
        None => errors.push(FieldError::required(&path.child("selector"), "")),
        Some(selector) => {
            errors.extend(rollout::validate_selector(selector, &path.child("selector")));
            if let Ok(rule) = Selector::of_object(Some(selector)) {
                let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.as_ref());
                errors.extend(rollout::template_matches(rule.matches(&labels), labels, &path.child("template")));
            }
        }
    }
    errors
}

/// Rules about what the server has added, and about names that an old Job may have.
pub(super) fn validate_create(job: &Job) -> Errors {
    let Some(spec) = spec(job) else { return Errors::new() };
    let mut errors = generated_selector(job, spec);
    errors.extend(last_hostname(job, spec));
    errors
}

/// A selector that the server made has to select the Job's own Pods and nobody else's.
fn generated_selector(job: &Job, spec: &JobSpec) -> Errors {
    let selector = spec.selector.as_ref().filter(|_| spec.manual_selector != Some(true));
    let Some(selector) = selector else { return Errors::new() };
    let mut errors = Errors::new();
    let (name, uid) =
        (job.metadata.name.as_deref().unwrap_or_default(), job.metadata.uid.as_deref().unwrap_or_default());
    if uid.is_empty() {
        errors.push(FieldError::required(&Path::new("metadata").child("uid"), ""));
    }
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.as_ref());
    let own = own_labels(name, uid);
    for (label, value) in own {
        match labels.and_then(|l| l.get(label)) {
            None => errors.push(FieldError::required(&path.key(label), &format!("must be '{value}'"))),
            Some(other) if other != value => {
                errors.push(FieldError::invalid(&path.key(label), labels, &format!("must be '{value}'")));
            }
            Some(_) => {}
        }
    }
    let own: BTreeMap<String, String> =
        own.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
    if Selector::of_object(Some(selector)).is_ok_and(|rule| !rule.matches(&own)) {
        let shown = internal_form::compact("LabelSelector", selector);
        let path = Path::new("spec").child("selector");
        errors.push(FieldError::invalid_shown(&path, &shown, "`selector` not auto-generated"));
    }
    errors
}

/// Pods of an indexed Job have its name and their index as hostname.
fn last_hostname(job: &Job, spec: &JobSpec) -> Option<FieldError> {
    let completions = spec.completions.filter(|n| *n > 0 && is_indexed(spec))?;
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let hostname = format!("{name}-{}", completions - 1);
    let detail = format!("will not able to create pod with invalid DNS label: {hostname}");
    let invalid = || FieldError::invalid(&Path::new("metadata").child("name"), name, &detail);
    (!names::dns1123_label(&hostname).is_empty()).then(invalid)
}

/// The spec of a Job, or of the template of one. The selector is the Job's alone.
pub(crate) fn validate_spec(spec: &JobSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value) in [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished.map(i64::from)),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.map(i64::from)),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ] {
        errors.extend(rollout::not_negative(path, field, value));
    }
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        let detail = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(&path.child("backoffLimitPerIndex"), detail));
    }
    if let Some(manager) = &spec.managed_by {
        errors.extend(names::domain_prefixed_path(manager, &path.child("managedBy")));
        if manager.len() > MANAGER_MAX {
            errors.push(FieldError::too_long(&path.child("managedBy"), MANAGER_MAX));
        }
    }
    errors.extend(completion_mode(spec, path));
    errors.extend(policies::failure(spec, &path.child("podFailurePolicy")));
    errors.extend(policies::success(spec, &path.child("successPolicy")));
    errors.extend(policies::replacement(spec, &path.child("podReplacementPolicy")));
    errors.extend(template::validate_template(&spec.template, &path.child("template")));
    errors.extend(restart_policy(spec, &path.child("template").child("spec").child("restartPolicy")));
    errors
}

fn completion_mode(spec: &JobSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match spec.completion_mode.as_deref() {
        None | Some("NonIndexed") => {
            for (field, value) in
                [("backoffLimitPerIndex", spec.backoff_limit_per_index), ("maxFailedIndexes", spec.max_failed_indexes)]
            {
                let invalid = |n| FieldError::invalid(&path.child(field), n, "requires indexed completion mode");
                errors.extend(value.map(invalid));
            }
        }
        Some("Indexed") => {
            if spec.completions.is_none() {
                let detail = "when completion mode is Indexed";
                errors.push(FieldError::required(&path.child("completions"), detail));
            }
            errors.extend(index_bounds(spec, path));
        }
        Some(other) => {
            errors.push(FieldError::not_supported(&path.child("completionMode"), other, &["NonIndexed", "Indexed"]));
        }
    }
    errors
}

fn index_bounds(spec: &JobSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut above = |field: &str, value: Option<i32>, most: i32, detail: &str| {
        let invalid = |n| FieldError::invalid(&path.child(field), n, detail);
        errors.extend(value.filter(|n| *n > most).map(invalid));
    };
    let detail = format!("must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed");
    above("parallelism", spec.parallelism, INDEXED_PARALLELISM_MAX, &detail);
    if let Some(completions) = spec.completions {
        let detail = "must be less than or equal to completions";
        above("maxFailedIndexes", spec.max_failed_indexes, completions, detail);
    }
    let detail = format!("must be less than or equal to {FAILED_INDEXES_MAX}");
    above("maxFailedIndexes", spec.max_failed_indexes, FAILED_INDEXES_MAX, &detail);
    let many = spec.completions.is_some_and(|n| n > MANY_COMPLETIONS) && spec.backoff_limit_per_index.is_some();
    if !many {
        return errors;
    }
    let detail = |most: i32| {
        format!(
            "must be less than or equal to {most} when completions are above {MANY_COMPLETIONS} and used with backoff limit \
             per index"
        )
    };
    above("parallelism", spec.parallelism, MANY_PARALLELISM_MAX, &detail(MANY_PARALLELISM_MAX));
    above("maxFailedIndexes", spec.max_failed_indexes, MANY_FAILED_INDEXES_MAX, &detail(MANY_FAILED_INDEXES_MAX));
    if spec.max_failed_indexes.is_none() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.push(FieldError::required(&path.child("maxFailedIndexes"), &detail));
    }
    errors
}

fn restart_policy(spec: &JobSpec, path: &Path) -> Option<FieldError> {
    match spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or_default() {
        // Always is what a template gets that says nothing.
        "" | "Always" => Some(FieldError::required(path, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if spec.pod_failure_policy.is_some() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            Some(FieldError::invalid(path, "OnFailure", detail))
        }
        "OnFailure" | "Never" => None,
        other => Some(FieldError::not_supported(path, other, &["OnFailure", "Never"])),
    }
}

/// Warnings about a spec that is valid but hardly meant.
pub(crate) fn warnings(spec: &JobSpec, path: &Path) -> Vec<String> {
    let (completions, parallelism) = (spec.completions.unwrap_or(0), spec.parallelism.unwrap_or(0));
    let many = is_indexed(spec) && completions > MANY_COMPLETIONS && parallelism > MANY_PARALLELISM_MAX;
    let of_numbers = many.then(|| {
        format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        )
    });
    let of_pods = pod::warnings::of_template(&spec.template, &path.child("template"));
    of_numbers.into_iter().chain(of_pods).collect()
}
