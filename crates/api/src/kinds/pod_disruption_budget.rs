//! PodDisruptionBudget and Eviction: how many Pods may be taken away on purpose, and the wish to take one.

use json::Value;
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Generation, Kind, age, col, int, name};
use crate::kinds::rollout;
use crate::validation::field::{Errors, FieldError, Path};

pub const POD_DISRUPTION_BUDGET: Kind<PodDisruptionBudget> = Kind {
    unconditional_update: false,
    short: &["pdb"],
    status: true,
    generation: Generation::CountsChangesOf("spec"),
    validate: Some(validate),
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

fn number(budget: &PodDisruptionBudget, of: fn(&PodDisruptionBudgetSpec) -> Option<&IntOrString>) -> Value {
    match budget.spec.as_ref().and_then(of) {
        Some(IntOrString::Int(n)) => Value::from(n.to_string()),
        Some(IntOrString::String(text)) => Value::from(text.as_str()),
        None => Value::from("N/A"),
    }
}

/// The body of a Pod's `eviction` subresource.
pub const EVICTION: Kind<Eviction> = Kind { verbs: &[], ..Kind::BASE };
