//! Taints of devices in slices, and what claims tolerate.

use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceToleration};

use crate::rules::device_taint::{NO_EXECUTE, NO_SCHEDULE, NONE};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

/// The most taints of a device, and tolerations of a request.
pub(super) const TAINTS_MAX: usize = 16;
const EFFECTS: &[&str] = &[NO_EXECUTE, NO_SCHEDULE, NONE];

pub(super) fn taint(taint: &DeviceTaint, path: &Path) -> Errors {
    let mut errors = key(&taint.key, path);
    errors.extend(taint.value.iter().filter(|text| !text.is_empty()).flat_map(|text| value(text, path)));
    let place = path.child("effect");
    match taint.effect.as_str() {
        "" => errors.push(FieldError::required(&place, "")),
        known if EFFECTS.contains(&known) => {}
        other => errors.push(FieldError::not_supported(&place, other, EFFECTS)),
    }
    errors
}

pub(super) fn toleration(toleration: &DeviceToleration, path: &Path) -> Errors {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut errors: Errors = toleration.key.iter().filter(|k| !k.is_empty()).flat_map(|k| key(k, path)).collect();
    match text(&toleration.operator).as_str() {
        "Exists" => {
            let given = toleration.value.iter().filter(|value| !value.is_empty());
            let wrong =
                |v: &String| FieldError::invalid(&path.child("value"), v, "must be empty for operator `Exists`");
            errors.extend(given.map(wrong));
        }
        "Equal" => errors.extend(value(&text(&toleration.value), path)),
        "" => errors.push(FieldError::required(&path.child("operator"), "")),
        other => errors.push(FieldError::not_supported(&path.child("operator"), other, &["Equal", "Exists"])),
    }
    let effect = text(&toleration.effect);
    if !effect.is_empty() && !EFFECTS.contains(&effect.as_str()) {
        errors.push(FieldError::not_supported(&path.child("effect"), &effect, EFFECTS));
    }
    errors
}

fn key(key: &str, path: &Path) -> Errors {
    invalid(&path.child("key"), key, names::qualified_name(key)).collect()
}

fn value(value: &str, path: &Path) -> Errors {
    invalid(&path.child("value"), value, names::label_value(value)).collect()
}
