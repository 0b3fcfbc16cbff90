//! Rules of the kinds that run Pods from a template: their selector, their counts, the room they have while they roll out.

use std::collections::BTreeMap;

use json::Value;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::rules::selector::Selector;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta;

/// A count, where it is given.
pub(crate) fn not_negative<N: Into<i64> + Copy>(path: &Path, field: &str, value: Option<N>) -> Option<FieldError> {
    let value: i64 = value?.into();
    let wrong = || FieldError::invalid(&path.child(field), value, "must be greater than or equal to 0");
    (value < 0).then(wrong)
}

pub(crate) const MORE_THAN_ALL: &str = "cannot be greater than status.replicas";
pub(crate) const MORE_THAN_READY: &str = "cannot be greater than readyReplicas";

/// The parts of `replicas` that several kinds' status has.
pub(crate) const READY_PARTS: [(&str, &str, &str); 3] = [
    ("readyReplicas", "replicas", MORE_THAN_ALL),
    ("availableReplicas", "replicas", MORE_THAN_ALL),
    ("availableReplicas", "readyReplicas", MORE_THAN_READY),
];

fn status_count(object: &Value, field: &str) -> Option<i64> {
    object.get("status")?.get(field)?.as_i64()
}

/// The counts of a status: none is negative, and each of `parts` is at most the count beside it, as its text says.
pub(crate) fn status_counts(object: &Value, counts: &[&str], parts: &[(&str, &str, &str)]) -> Errors {
    let path = Path::new("status");
    let negative = counts.iter().filter_map(|field| not_negative(&path, field, status_count(object, field)));
    let count = |field: &str| status_count(object, field).unwrap_or(0);
    let greater = parts.iter().filter(|(part, whole, _)| count(part) > count(whole));
    let greater = greater.map(|(part, _, detail)| FieldError::invalid(&path.child(part), count(part), detail));
    negative.chain(greater).collect()
}

/// The counts of the status of a ReplicaSet or ReplicationController.
pub(crate) fn replica_counts(object: &Value) -> Errors {
    let counts = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "terminatingReplicas",
        "observedGeneration",
    ];
    let [ready, available, available_of_ready] = READY_PARTS;
    let labelled = ("fullyLabeledReplicas", "replicas", MORE_THAN_ALL);
    status_counts(object, &counts, &[labelled, ready, available, available_of_ready])
}

/// The same of a kind with revisions, which also counts the names that were taken.
pub(crate) fn revision_counts(new: &Value, old: &Value, counts: &[&str], parts: &[(&str, &str, &str)]) -> Errors {
    let mut errors = status_counts(new, counts, parts);
    errors.extend(fewer_collisions(new, old));
    errors
}

/// The number of names that were taken only grows, so that no name is tried twice.
fn fewer_collisions(new: &Value, old: &Value) -> Option<FieldError> {
    let count = |object| status_count(object, "collisionCount");
    let now = count(new);
    let path = Path::new("status").child("collisionCount");
    let error = || FieldError::invalid(&path, now.unwrap_or(0), "cannot be decremented");
    count(old).is_some_and(|before| now.is_none_or(|now| now < before)).then(error)
}

/// Compares what a kind says of a change of the status.
#[cfg(test)]
pub(crate) fn check_status(check: Option<fn(&Value, &Value) -> Errors>, new: &Value, old: &Value, expected: &[&str]) {
    let whole = |status: &Value| json::json!({"status": status.clone()});
    let errors = check.map(|check| check(&whole(new), &whole(old))).unwrap_or_default();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors, expected, "{old} {new}");
}

/// A selector object, wherever it stands.
pub(crate) fn validate_selector(selector: &LabelSelector, path: &Path) -> Errors {
    selector_of(selector, names::label_value, path)
}

/// A selector that may ask for values that no label has.
pub(crate) fn validate_selector_of_any_values(selector: &LabelSelector, path: &Path) -> Errors {
    selector_of(selector, |_| Vec::new(), path)
}

fn selector_of(selector: &LabelSelector, wrong: fn(&str) -> Vec<String>, path: &Path) -> Errors {
    let mut errors = object_meta::labels(selector.match_labels.as_ref(), &path.child("matchLabels"));
    for (i, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = expression.values.as_deref().unwrap_or_default();
        match expression.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&path.child("values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let path = path.child("operator");
                errors.push(FieldError::invalid(&path, other, "not a valid selector operator"));
            }
        }
        errors.extend(object_meta::invalid_at(&path, "key", &expression.key, names::qualified_name(&expression.key)));
        for (i, value) in values.iter().enumerate() {
            errors.extend(object_meta::invalid(&path.child("values").index(i), value, wrong(value)));
        }
    }
    errors
}

/// The selector is given and selects the Pods that the template makes. `kind` is how messages name the kind.
pub(crate) fn selector_selects(
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    kind: &str,
    path: &Path,
) -> Errors {
    let place = path.child("selector");
    let mut errors = validate_selector(selector, &place);
    let given = selector.match_labels.is_some() || selector.match_expressions.is_some();
    let empty = selector.match_labels.as_ref().is_none_or(|m| m.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if !given {
        errors.push(FieldError::required(&place, ""));
    } else if empty {
        let shown = internal_form::compact("LabelSelector", selector);
        errors.push(FieldError::invalid_shown(&place, &shown, &format!("empty selector is invalid for {kind}")));
        return errors;
    }
    match Selector::of_object(Some(selector)) {
        Err(_) => {
            let shown = internal_form::compact("LabelSelector", selector);
            errors.push(FieldError::invalid_shown(&place, &shown, "invalid label selector"));
        }
        Ok(rule) => {
            let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
            errors.extend(template_matches(given && rule.matches(&labels), labels, &path.child("template")));
        }
    }
    errors
}

pub(crate) fn template_matches(
    matches: bool,
    labels: Option<&BTreeMap<String, String>>,
    path: &Path,
) -> Option<FieldError> {
    let detail = "`selector` does not match template `labels`";
    (!matches).then(|| FieldError::invalid(&path.child("metadata").child("labels"), labels, detail))
}

/// Pods of these controllers always restart. `kind` is how messages name the kind.
pub(crate) fn always_restarts(template: &PodTemplateSpec, kind: &str, path: &Path) -> Errors {
    let spec = template.spec.as_ref();
    let path = path.child("spec");
    let mut errors = Errors::new();
    let policy = spec.and_then(|s| s.restart_policy.as_deref()).unwrap_or_default();
    if policy != "Always" {
        errors.push(FieldError::not_supported(&path.child("restartPolicy"), policy, &["Always"]));
    }
    if spec.is_some_and(|s| s.active_deadline_seconds.is_some()) {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(FieldError::forbidden(&path.child("activeDeadlineSeconds"), &detail));
    }
    errors
}

/// A count or a percentage. The error says which part of the text is wrong.
pub(crate) fn count_or_percent(value: Option<&IntOrString>, path: &Path) -> Errors {
    match value {
        Some(IntOrString::Int(n)) if *n < 0 => {
            vec![FieldError::invalid(path, n, "must be greater than or equal to 0")]
        }
        Some(IntOrString::String(text)) if percent(text).is_none() => {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
                          regex used for validation is '[0-9]+%')";
            vec![FieldError::invalid(path, text, detail)]
        }
        _ => Errors::new(),
    }
}

fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A text that is no number counts as none.
pub(crate) fn is_zero(value: Option<&IntOrString>) -> bool {
    match value {
        None => true,
        Some(IntOrString::Int(n)) => *n == 0,
        Some(IntOrString::String(text)) => percent(text).or_else(|| text.parse().ok()).unwrap_or(0) == 0,
    }
}

pub(crate) fn at_most_all(value: Option<&IntOrString>, path: &Path) -> Option<FieldError> {
    match value {
        Some(IntOrString::String(text)) if percent(text).is_some_and(|p| p > 100) => {
            Some(FieldError::invalid(path, text, "must not be greater than 100%"))
        }
        _ => None,
    }
}

/// How many Pods may be missing, and how many too many there may be, while a rollout runs; one of them at least.
pub(crate) fn budget(unavailable: Option<&IntOrString>, surge: Option<&IntOrString>, path: &Path) -> Errors {
    let place = path.child("maxUnavailable");
    let mut errors = count_or_percent(unavailable, &place);
    errors.extend(count_or_percent(surge, &path.child("maxSurge")));
    if is_zero(unavailable) && is_zero(surge) {
        let detail = "may not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid(&place, unavailable, detail));
    }
    errors.extend(at_most_all(unavailable, &place));
    errors
}
