//! The expressions of a mutating policy: each is there, compiles, and makes what its patch type asks for.

use cel::Environment;
use k8s_openapi::api::admissionregistration::v1beta1::{MutatingAdmissionPolicySpec, Mutation};

use super::{expressions, stable};
use crate::rules::cel::admission::{OptionalVariables, environment};
use crate::rules::cel::mutation::{self, Change};
use crate::validation::field::{Errors, FieldError, Path};

const TYPES: [&str; 2] = [Change::Configuration.name(), Change::Operations.name()];

/// `conditions` is whether those are checked, too, before which a policy is asked about an object.
pub(super) fn validate(spec: &MutatingAdmissionPolicySpec, conditions: bool, path: &Path) -> Errors {
    let params = spec.param_kind.is_some();
    let conditions = spec.match_conditions.as_deref().filter(|_| conditions).unwrap_or_default();
    let conditions = stable::match_conditions(conditions);
    let mut errors = expressions::match_conditions(&conditions, params, &path.child("matchConditions"));
    let mut asking = environment(OptionalVariables { params, authorizer: true });
    let mut changing = mutation::environment(params);
    for (i, one) in stable::variables(spec.variables.as_deref().unwrap_or_default()).iter().enumerate() {
        errors.extend(expressions::variable(one, &mut asking, &mut changing, &path.child("variables").index(i)));
    }
    let mutations = spec.mutations.as_deref().unwrap_or_default();
    if mutations.is_empty() {
        errors.push(FieldError::required(&path.child("mutations"), "mutations must contain at least one item"));
    }
    for (i, one) in mutations.iter().enumerate() {
        errors.extend(validate_one(one, &changing, &path.child("mutations").index(i)));
    }
    errors
}

fn validate_one(one: &Mutation, changing: &Environment, path: &Path) -> Errors {
    let apply = one.apply_configuration.as_ref().map(|a| a.expression.as_deref().unwrap_or_default());
    let patch = one.json_patch.as_ref().map(|p| p.expression.as_deref().unwrap_or_default());
    let change = match one.patch_type.as_str() {
        "" => return vec![FieldError::required(&path.child("patchType"), "")],
        other => Change::of(other),
    };
    let ((field, wanted), (other_field, other)) = match change {
        Some(Change::Configuration) => (("applyConfiguration", apply), ("jsonPatch", patch)),
        Some(Change::Operations) => (("jsonPatch", patch), ("applyConfiguration", apply)),
        None => return vec![FieldError::not_supported(&path.child("patchType"), &one.patch_type, &TYPES)],
    };
    let kind = &one.patch_type;
    let mut errors = Errors::new();
    match wanted {
        None => {
            let detail = format!("must be specified when patchType is {kind}");
            errors.push(FieldError::required(&path.child(field), &detail));
        }
        Some(text) => {
            let place = path.child(field).child("expression");
            match text.trim() {
                "" => errors.push(FieldError::required(&place, "")),
                _ => errors.extend(change.and_then(|c| expressions::compiles(changing, text, &[c.result()], &place))),
            }
        }
    }
    if other.is_some() {
        let detail = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(&path.child(other_field), format!("{{{other_field}}}"), &detail));
    }
    errors
}
