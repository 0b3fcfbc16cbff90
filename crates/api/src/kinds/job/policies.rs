//! The policies of a Job: what a failed Pod means, when enough has succeeded, when a Pod is replaced.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
    SuccessPolicyRule,
};

use super::is_indexed;
use crate::kinds::rollout;
use crate::rules::indexes::Indexes;
use crate::validation::field::{Errors, FieldError, Path, quote};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::invalid_at;

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const CONDITIONS_MAX: usize = 20;
const SUCCEEDED_INDEXES_MAX: usize = 64 * 1024;

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: &[&str] = &["In", "NotIn"];
const STATUSES: &[&str] = &["False", "True", "Unknown"];

/// At most `most` of them.
fn bounded(path: &Path, count: usize, most: usize) -> Option<FieldError> {
    (count > most).then(|| FieldError::too_many(path, count, most))
}

/// A word that is one of these; the message about a missing one names them.
fn chosen(word: &str, words: &[&str], path: &Path) -> Option<FieldError> {
    let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
    match word {
        "" => Some(FieldError::required(path, &format!("valid values: [{}]", quoted.join(" ")))),
        word if words.contains(&word) => None,
        other => Some(FieldError::not_supported(path, other, words)),
    }
}

pub(super) fn failure(spec: &JobSpec, path: &Path) -> Errors {
    let Some(policy) = &spec.pod_failure_policy else { return Errors::new() };
    let path = path.child("rules");
    let mut errors: Errors = bounded(&path, policy.rules.len(), RULES_MAX).into_iter().collect();
    let pods = spec.template.spec.iter();
    let containers = pods.flat_map(|pod| pod.containers.iter().chain(pod.init_containers.iter().flatten()));
    let containers: BTreeSet<&str> = containers.map(|container| container.name.as_str()).collect();
    for (i, rule) in policy.rules.iter().enumerate() {
        errors.extend(failure_rule(rule, spec.backoff_limit_per_index.is_some(), &containers, &path.index(i)));
    }
    errors
}

fn failure_rule(rule: &PodFailurePolicyRule, limited: bool, containers: &BTreeSet<&str>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("action");
    if rule.action == "FailIndex" && !limited {
        errors.push(FieldError::invalid(&place, &rule.action, "requires the backoffLimitPerIndex to be set"));
    }
    errors.extend(chosen(&rule.action, ACTIONS, &place));
    if let Some(codes) = &rule.on_exit_codes {
        errors.extend(exit_codes(codes, containers, &path.child("onExitCodes")));
    }
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    errors.extend(conditions(patterns, &path.child("onPodConditions")));
    match (&rule.on_exit_codes, patterns) {
        (Some(_), [_, ..]) => {
            let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
            errors.push(FieldError::invalid_unshown(path, detail));
        }
        (None, []) => {
            let detail = "specifying one of OnExitCodes and OnPodConditions is required";
            errors.push(FieldError::invalid_unshown(path, detail));
        }
        _ => {}
    }
    errors
}

fn conditions(patterns: &[PodFailurePolicyOnPodConditionsPattern], path: &Path) -> Errors {
    let mut errors: Errors = bounded(path, patterns.len(), CONDITIONS_MAX).into_iter().collect();
    for (i, pattern) in patterns.iter().enumerate() {
        let path = path.index(i);
        errors.extend(invalid_at(&path, "type", &pattern.type_, names::qualified_name(&pattern.type_)));
        errors.extend(chosen(pattern.status.as_deref().unwrap_or_default(), STATUSES, &path.child("status")));
    }
    errors
}

fn exit_codes(codes: &PodFailurePolicyOnExitCodesRequirement, containers: &BTreeSet<&str>, path: &Path) -> Errors {
    let mut errors: Errors = chosen(&codes.operator, OPERATORS, &path.child("operator")).into_iter().collect();
    if let Some(name) = codes.container_name.as_ref().filter(|name| !containers.contains(name.as_str())) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(&path.child("containerName"), name, detail));
    }
    let path = path.child("values");
    if codes.values.is_empty() {
        errors.push(FieldError::invalid(&path, &codes.values, "at least one value is required"));
    }
    errors.extend(bounded(&path, codes.values.len(), EXIT_CODES_MAX));
    let mut seen = BTreeSet::new();
    for (i, code) in codes.values.iter().enumerate() {
        if codes.operator == "In" && *code == 0 {
            errors.push(FieldError::invalid(&path.index(i), code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            errors.push(FieldError::duplicate(&path.index(i), code));
        }
    }
    if !codes.values.is_sorted() {
        errors.push(FieldError::invalid(&path, &codes.values, "must be ordered"));
    }
    errors
}

pub(super) fn success(spec: &JobSpec, path: &Path) -> Errors {
    let Some(policy) = &spec.success_policy else { return Errors::new() };
    if !is_indexed(spec) {
        let shown = internal_form::compact("SuccessPolicy", policy);
        return vec![FieldError::invalid_shown(path, &shown, "requires indexed completion mode")];
    }
    let path = path.child("rules");
    let mut errors = Errors::new();
    if policy.rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(&path, detail));
    }
    errors.extend(bounded(&path, policy.rules.len(), RULES_MAX));
    for (i, rule) in policy.rules.iter().enumerate() {
        errors.extend(success_rule(rule, spec.completions.unwrap_or(0), &path.index(i)));
    }
    errors
}

fn success_rule(rule: &SuccessPolicyRule, completions: i32, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(FieldError::required(path, detail));
    }
    let mut listed = 0;
    if let Some(text) = &rule.succeeded_indexes {
        let place = path.child("succeededIndexes");
        if text.len() > SUCCEEDED_INDEXES_MAX {
            errors.push(FieldError::too_long(&place, SUCCEEDED_INDEXES_MAX));
        }
        match Indexes::parse_strict(text, completions) {
            Ok(indexes) => listed = indexes.len(),
            Err(why) => {
                let detail = format!("error parsing succeededIndexes: {why}");
                errors.push(FieldError::invalid(&place, text, &detail));
            }
        }
    }
    let Some(count) = rule.succeeded_count else { return errors };
    errors.extend(rollout::not_negative(path, "succeededCount", Some(count)));
    let mut at_most = |most: i32, what: &str| {
        if count > most {
            let detail = format!("must be less than or equal to {most} ({what})");
            errors.push(FieldError::invalid(&path.child("succeededCount"), count, &detail));
        }
    };
    at_most(completions, "the number of specified completions");
    if rule.succeeded_indexes.is_some() {
        at_most(listed, "the number of indexes in the specified succeededIndexes field");
    }
    errors
}

/// A failure policy decides about Pods that have failed, so these alone may be replaced under one.
pub(super) fn replacement(spec: &JobSpec, path: &Path) -> Option<FieldError> {
    let policy = spec.pod_replacement_policy.as_deref()?;
    let known: &[&str] = match spec.pod_failure_policy {
        Some(_) => &["Failed"],
        None => &["Failed", "TerminatingOrFailed"],
    };
    (!known.contains(&policy)).then(|| FieldError::not_supported(path, policy, known))
}
