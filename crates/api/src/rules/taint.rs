//! Which taints a Pod tolerates.

use k8s_openapi::api::core::v1::{Taint, Toleration};

pub const NO_SCHEDULE: &str = "NoSchedule";
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";

/// Whether one toleration covers one taint: an empty effect covers all effects, an empty key with `Exists` all keys.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    let wanted = toleration.value.as_deref().unwrap_or_default();
    let value = taint.value.as_deref().unwrap_or_default();
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => wanted == value,
        "Exists" => true,
        _ => false,
    }
}

pub fn tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| tolerates(t, taint))
}

/// The first taint with one of these effects that nothing tolerates.
pub fn first_untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    taints.iter().find(|t| effects.contains(&t.effect.as_str()) && !tolerated(tolerations, t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn tolerations_cover_taints() {
        let taint: Taint = json::from_value(json!({"key": "a", "value": "b", "effect": "NoSchedule"})).unwrap();
        for (toleration, expected) in [
            (json!({"key": "a", "value": "b", "effect": "NoSchedule"}), true),
            (json!({"key": "a", "value": "b"}), true),
            (json!({"key": "a", "operator": "Equal", "value": "c"}), false),
            (json!({"key": "a", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "b", "operator": "Exists"}), false),
            (json!({"key": "a"}), false),
        ] {
            let toleration: Toleration = json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
    }
}
