//! What the kinds that run Pods from a template have in common: their selector, their counts, the room they have while
//! they roll out.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::field::{Errors, FieldError, Path};
use crate::names;
use crate::object_meta;
use crate::selector::Selector;

/// What is valid in a template, and hardly meant.
pub(crate) fn template_warnings(spec: Option<&PodSpec>) -> Vec<String> {
    let path = Path::new("spec").child("template").child("spec");
    spec.map(|spec| crate::kinds::pod::spec_warnings(spec, &path)).unwrap_or_default()
}

pub(crate) fn not_negative(path: &Path, value: Option<i32>) -> Errors {
    match value.filter(|v| *v < 0) {
        Some(value) => vec![FieldError::invalid(path, value, "must be greater than or equal to 0")],
        None => Errors::new(),
    }
}

/// A selector object, wherever it stands.
pub(crate) fn validate_selector(selector: &LabelSelector, path: &Path) -> Errors {
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
            let place = path.child("values").index(i);
            errors.extend(object_meta::invalid(&place, value, names::label_value(value)));
        }
    }
    errors
}

/// The selector is given and selects the Pods that the template makes.
pub(crate) fn selector_selects(selector: &LabelSelector, template: &PodTemplateSpec, path: &Path) -> Errors {
    let place = path.child("selector");
    let mut errors = validate_selector(selector, &place);
    let empty = selector.match_labels.as_ref().is_none_or(|m| m.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if empty {
        errors.push(FieldError::required(&place, ""));
    }
    let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
    let selects = |s: Selector| !empty && s.matches(&labels);
    if !Selector::of_object(Some(selector)).is_ok_and(selects) {
        let path = path.child("template").child("metadata").child("labels");
        let none = std::collections::BTreeMap::new();
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(&path, labels.unwrap_or(&none), detail));
    }
    errors
}

pub(crate) fn selector_is_fixed(new: Option<&LabelSelector>, old: Option<&LabelSelector>) -> Errors {
    if new == old {
        return Errors::new();
    }
    vec![FieldError::invalid(&Path::new("spec").child("selector"), new, "field is immutable")]
}

/// Pods of these controllers always restart.
pub(crate) fn always_restarts(template: &PodTemplateSpec, path: &Path) -> Errors {
    let spec = template.spec.as_ref();
    let path = path.child("spec");
    let mut errors = Errors::new();
    let policy = spec.and_then(|s| s.restart_policy.as_deref()).unwrap_or_default();
    if policy != "Always" {
        errors.push(FieldError::not_supported(&path.child("restartPolicy"), policy, &["Always"]));
    }
    if spec.is_some_and(|s| s.active_deadline_seconds.is_some()) {
        let detail = "activeDeadlineSeconds in ReplicaSet is not Supported";
        errors.push(FieldError::forbidden(&path.child("activeDeadlineSeconds"), detail));
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

fn is_zero(value: Option<&IntOrString>) -> bool {
    match value {
        None => true,
        Some(IntOrString::Int(n)) => *n == 0,
        Some(IntOrString::String(text)) => percent(text) == Some(0),
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
    if let Some(IntOrString::String(text)) = unavailable
        && percent(text).is_some_and(|p| p > 100)
    {
        errors.push(FieldError::invalid(&place, text, "must not be greater than 100%"));
    }
    errors
}
