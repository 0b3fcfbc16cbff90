//! The validation of a DeviceTaintRule: a taint, and the devices that get it.

use json::Value;
use k8s_openapi::api::resource::v1alpha3::{DeviceTaint, DeviceTaintRule, DeviceTaintRuleStatus};

use super::parts;
use crate::object::decode;
use crate::validation::conditions;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;

const CONDITIONS_MAX: usize = 8;
const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

pub(super) fn validate(rule: &DeviceTaintRule) -> Errors {
    let path = Path::new("spec");
    let (mut errors, place) = (Errors::new(), path.child("deviceSelector"));
    if let Some(selector) = &rule.spec.device_selector {
        let given = |text: &Option<String>, field: &str, check: fn(&str, &Path) -> Errors| {
            text.as_ref().map(|text| check(text, &place.child(field))).unwrap_or_default()
        };
        errors.extend(given(&selector.driver, "driver", parts::driver));
        errors.extend(given(&selector.pool, "pool", parts::pool));
        errors.extend(given(&selector.device, "device", parts::label));
    }
    errors.extend(taint(&rule.spec.taint, &path.child("taint")));
    errors
}

/// An effect that is there already may be one that nobody knows here.
pub(super) fn validate_effect(new: &DeviceTaintRule, old: Option<&DeviceTaintRule>) -> Errors {
    let (path, effect) = (Path::new("spec").child("taint").child("effect"), &new.spec.taint.effect);
    match effect.as_str() {
        same if old.is_some_and(|old| old.spec.taint.effect == same) => Errors::new(),
        "" => vec![FieldError::required(&path, "")],
        known if EFFECTS.contains(&known) => Errors::new(),
        other => vec![FieldError::not_supported(&path, other, EFFECTS)],
    }
}

fn taint(taint: &DeviceTaint, path: &Path) -> Errors {
    let mut errors = invalid_at(path, "key", &taint.key, names::qualified_name(&taint.key));
    if let Some(value) = taint.value.as_deref().filter(|value| !value.is_empty()) {
        errors.extend(invalid_at(path, "value", value, names::label_value(value)));
    }
    errors
}

pub(super) fn validate_status(new: &Value, _: &Value) -> Errors {
    let path = Path::new("status").child("conditions");
    let status = new.get("status").map(decode::<DeviceTaintRuleStatus>);
    let list = match status {
        None => return Errors::new(),
        Some(Err(why)) => return vec![FieldError::invalid(&Path::new("status"), "", &why.to_string())],
        Some(Ok(status)) => status.conditions.unwrap_or_default(),
    };
    let mut errors = conditions::validate(&list, &path);
    if list.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(&path, list.len(), CONDITIONS_MAX));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn a_rule_has_a_taint_and_perhaps_a_selector() {
        let check = |spec: Value, expected: &[&str]| {
            let rule: DeviceTaintRule =
                json::from_value(json!({"metadata": {"name": "r"}, "spec": spec})).expect("a rule");
            let errors = [validate(&rule), validate_effect(&rule, None)].concat();
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said.len(), expected.len(), "{said:?}");
            assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{said:?}");
            assert_eq!(validate_effect(&rule, Some(&rule)), [], "what is there stays");
        };
        let taint = || json!({"key": "example.com/broken", "effect": "NoExecute"});
        check(json!({"taint": taint()}), &[]);
        check(json!({"taint": taint(), "deviceSelector": {}}), &[]);
        let selector = json!({"driver": "gpu.example.com", "pool": "a/b", "device": "gpu-0"});
        check(json!({"taint": taint(), "deviceSelector": selector}), &[]);
        check(
            json!({"taint": taint(), "deviceSelector": {"driver": "", "pool": "a//b", "device": "A"}}),
            &[
                "spec.deviceSelector.driver: Required",
                "spec.deviceSelector.pool: Invalid",
                "spec.deviceSelector.device: Invalid",
            ],
        );
        check(
            json!({"taint": {"key": "", "value": "a b", "effect": ""}}),
            &[
                "spec.taint.key: Invalid value: \"\": name part must be non-empty",
                "spec.taint.key: Invalid value: \"\": name part must consist of",
                "spec.taint.value: Invalid",
                "spec.taint.effect: Required",
            ],
        );
        check(
            json!({"taint": {"key": "a", "effect": "PreferNoSchedule"}}),
            &[
                "spec.taint.effect: Unsupported value: \"PreferNoSchedule\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
            ],
        );
    }

    #[test]
    fn the_status_has_a_few_conditions() {
        let check = |count: usize, expected: &str| {
            let one = |i| json!({"type": format!("T{i}"), "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"});
            let conditions: Vec<Value> = (0..count).map(one).collect();
            let said = validate_status(&json!({"status": {"conditions": conditions}}), &Value::Null);
            assert_eq!(said.first().map(ToString::to_string).unwrap_or_default(), expected);
        };
        check(0, "");
        check(8, "");
        check(9, "status.conditions: Too many: 9: must have at most 8 items");
    }
}
