//! The conditions that most kinds' status has.
//! Upstream counterpart: `ValidateConditions` of apimachinery's meta/v1/validation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::field::{Errors, FieldError, Path};
use super::names;
use super::object_meta::invalid;
use crate::object::ZERO_TIME;

/// The errors of a list of conditions.
pub fn validate(conditions: &[Condition], path: &Path) -> Errors {
    let one = |(i, one): (usize, &Condition)| condition(one, &conditions[..i], &path.index(i));
    conditions.iter().enumerate().flat_map(one).collect()
}

const REASON_MAX: usize = 1024;
const MESSAGE_MAX: usize = 32 * 1024;

fn condition(condition: &Condition, before: &[Condition], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("type");
    if before.iter().any(|other| other.type_ == condition.type_) {
        errors.push(FieldError::duplicate(&place, &condition.type_));
    }
    errors.extend(invalid(&place, &condition.type_, names::qualified_name(&condition.type_)));
    if !["True", "False", "Unknown"].contains(&&*condition.status) {
        let place = path.child("status");
        errors.push(FieldError::not_supported(&place, &condition.status, &["False", "True", "Unknown"]));
    }
    if let Some(generation) = condition.observed_generation.filter(|generation| *generation < 0) {
        let detail = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(&path.child("observedGeneration"), generation, detail));
    }
    if condition.last_transition_time.0.to_string() == ZERO_TIME {
        errors.push(FieldError::required(&path.child("lastTransitionTime"), "must be set"));
    }
    let place = path.child("reason");
    match condition.reason.as_str() {
        "" => errors.push(FieldError::required(&place, "must be set")),
        reason if reason.len() > REASON_MAX => errors.push(FieldError::too_long(&place, REASON_MAX)),
        reason => errors.extend(invalid(&place, reason, names::condition_reason(reason))),
    }
    if condition.message.len() > MESSAGE_MAX {
        errors.push(FieldError::too_long(&path.child("message"), MESSAGE_MAX));
    }
    errors
}
