//! Taints of devices: which of them a claim puts up with.

use k8s_openapi::api::resource::v1::DeviceToleration;

/// A device with this taint goes to claims that tolerate it only.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// Beyond that, Pods with other claims on it are evicted.
pub const NO_EXECUTE: &str = "NoExecute";
/// Nothing happens; a rule with it tells what would.
pub const NONE: &str = "None";

/// Whether a toleration is about a taint with this key, value and effect. A field that it leaves out fits everything; a
/// value is compared unless the operator is `Exists`.
pub fn tolerates(toleration: &DeviceToleration, key: &str, value: &str, effect: &str) -> bool {
    let fits = |wanted: Option<&String>, own: &str| wanted.is_none_or(|wanted| wanted.is_empty() || wanted == own);
    let by_value = match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == value,
        "Exists" => true,
        _ => false,
    };
    fits(toleration.effect.as_ref(), effect) && fits(toleration.key.as_ref(), key) && by_value
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[test]
    fn tolerations_fit_by_key_value_and_effect() {
        let check = |toleration: Value, expected: bool| {
            let toleration: DeviceToleration = json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, "k", "v", NO_EXECUTE), expected, "{toleration:?}");
        };
        check(json!({"operator": "Exists"}), true);
        check(json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), true);
        check(json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false);
        check(json!({"key": "other", "operator": "Exists"}), false);
        check(json!({"key": "k", "operator": "Equal", "value": "v"}), true);
        check(json!({"key": "k", "value": "v"}), true);
        check(json!({"key": "k", "value": "other"}), false);
        check(json!({"key": "k"}), false);
        check(json!({"key": "k", "operator": "Gt"}), false);
    }
}
