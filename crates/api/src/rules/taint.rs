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

/// Whether whatever the second toleration covers is covered by the first one, too.
pub fn covers(first: &Toleration, second: &Toleration) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let operator = |toleration: &Toleration| match text(&toleration.operator).as_str() {
        "" => "Equal".to_owned(),
        other => other.to_owned(),
    };
    let every_key = text(&first.key).is_empty() && operator(first) == "Exists";
    if !every_key && text(&first.key) != text(&second.key) {
        return false;
    }
    let effect = text(&first.effect);
    if !effect.is_empty() && effect != text(&second.effect) {
        return false;
    }
    if effect == NO_EXECUTE
        && let Some(seconds) = first.toleration_seconds
        && second.toleration_seconds.is_none_or(|longer| longer > seconds)
    {
        return false;
    }
    match operator(first).as_str() {
        "Exists" => true,
        "Equal" => operator(second) == "Equal" && text(&first.value) == text(&second.value),
        _ => first == second,
    }
}

/// Tolerations with others behind them, without those that another one covers.
pub fn merged(tolerations: &[Toleration], more: &[Toleration]) -> Vec<Toleration> {
    let all: Vec<&Toleration> = tolerations.iter().chain(more).collect();
    let mut merged: Vec<Toleration> = Vec::new();
    for (at, one) in all.iter().enumerate() {
        // Of equal ones the first stays.
        let later = all[at + 1..].iter().any(|other| other != one && covers(other, one));
        if !later && !merged.iter().any(|earlier| covers(earlier, one)) {
            merged.push((*one).clone());
        }
    }
    merged
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

    #[test]
    fn tolerations_are_merged_without_what_others_cover() {
        let parse = |text: &str| -> Vec<Toleration> {
            let one = |part: &str| {
                let mut words = part.split(' ');
                let mut next = || words.next().filter(|word| *word != "-").map(str::to_owned);
                let (key, value, effect) = (next(), next(), next());
                let operator = value.is_none().then(|| "Exists".to_owned());
                let toleration_seconds = next().map(|seconds| seconds.parse().unwrap());
                Toleration { effect, key, operator, toleration_seconds, value }
            };
            text.split(", ").filter(|part| !part.is_empty()).map(one).collect()
        };
        let check = |first: &str, second: &str, expected: &str| {
            assert_eq!(merged(&parse(first), &parse(second)), parse(expected), "{first} and {second}");
        };
        check("", "", "");
        check("a b", "a b", "a b");
        check("a b", "c d", "a b, c d");
        check("a b", "a c", "a b, a c");
        check("a b NoSchedule", "a -", "a -");
        check("a -", "a b NoSchedule", "a -");
        check("- -", "a b, c -", "- -");
        check("a - NoExecute 10", "a - NoExecute 20", "a - NoExecute 20");
        check("a - NoExecute 20", "a - NoExecute", "a - NoExecute");
        check("a - NoSchedule", "a - NoExecute", "a - NoSchedule, a - NoExecute");
    }
}
