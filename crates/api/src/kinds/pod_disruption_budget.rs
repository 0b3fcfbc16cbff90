//! PodDisruptionBudget and Eviction: how many Pods may be taken away on purpose, and the wish to take one.

use json::Value;
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

use crate::kind::{Generation, Kind, age, col, int, name};
use crate::kinds::rollout;
use crate::validation::conditions;
use crate::validation::field::{Errors, FieldError, Path};

pub const POD_DISRUPTION_BUDGET: Kind<PodDisruptionBudget> = Kind {
    unconditional_update: false,
    short: &["pdb"],
    status: true,
    generation: Generation::CountsChangesOf("spec"),
    validate: Some(validate),
    validate_status: Some(|new, _| validate_status(new)),
    columns: &[
        name(),
        col("Min Available", "The minimum number of pods that must be available.", |b, _| {
            number(b, |s| s.min_available.as_ref())
        }),
        col("Max Unavailable", "The maximum number of pods that may be unavailable.", |b, _| {
            number(b, |s| s.max_unavailable.as_ref())
        }),
        int("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time.", |b, _| {
            Value::from(b.status.as_ref().map_or(0, |s| s.disruptions_allowed))
        }),
        age(),
    ],
    ..Kind::BASE
};

fn validate(budget: &PodDisruptionBudget) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = &budget.spec else { return Errors::new() };
    let mut errors = Errors::new();
    if spec.min_available.is_some() && spec.max_unavailable.is_some() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid(&path, spec, detail));
    }
    for (field, count) in [("minAvailable", &spec.min_available), ("maxUnavailable", &spec.max_unavailable)] {
        errors.extend(rollout::count_or_percent(count.as_ref(), &path.child(field)));
        errors.extend(rollout::at_most_all(count.as_ref(), &path.child(field)));
    }
    errors.extend(spec.selector.iter().flat_map(|s| rollout::validate_selector(s, &path.child("selector"))));
    let policy = spec.unhealthy_pod_eviction_policy.as_deref();
    let known = &["AlwaysAllow", "IfHealthyBudget"];
    if let Some(policy) = policy.filter(|p| !known.contains(p)) {
        errors.push(FieldError::not_supported(&path.child("unhealthyPodEvictionPolicy"), policy, known));
    }
    errors
}

fn validate_status(new: &Value) -> Errors {
    let given = new.get("status").and_then(|status| status.get("conditions"));
    let given = given.and_then(|list| Vec::<Condition>::deserialize(list).ok()).unwrap_or_default();
    let mut errors = conditions::validate(&given, &Path::new("status").child("conditions"));
    let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    errors.extend(rollout::status_counts(new, &counts, &[]));
    errors
}

fn number(budget: &PodDisruptionBudget, of: fn(&PodDisruptionBudgetSpec) -> Option<&IntOrString>) -> Value {
    match budget.spec.as_ref().and_then(of) {
        Some(IntOrString::Int(n)) => Value::from(n.to_string()),
        Some(IntOrString::String(text)) => Value::from(text.as_str()),
        None => Value::from("N/A"),
    }
}

/// The body of a Pod's `eviction` subresource.
pub const EVICTION: Kind<Eviction> = Kind { verbs: &[], ..Kind::BASE };

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_status_has_counts_and_conditions() {
        let check = |new: Value, expected: &[&str]| {
            rollout::check_status(POD_DISRUPTION_BUDGET.validate_status, &new, &Value::Null, expected);
        };
        let condition = |status: &str| {
            json!({"type": "DisruptionAllowed", "status": status, "reason": "Enough",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let counts = json!({"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
            "conditions": [condition("True")]});
        check(counts, &[]);
        check(
            json!({"disruptionsAllowed": -1, "expectedPods": -2, "conditions": [condition("Maybe")]}),
            &[
                "status.conditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
                "status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0",
                "status.expectedPods: Invalid value: -2: must be greater than or equal to 0",
            ],
        );
    }
}
