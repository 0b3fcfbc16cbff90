//! MutatingAdmissionPolicy and its binding: changes that are made to an object before it is written.
//! Upstream counterpart: pkg/apis/admissionregistration, pkg/registry/admissionregistration/mutatingadmissionpolicy.

use json::Value;
use k8s_openapi::api::admissionregistration::v1beta1::{
    self, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
};

use super::{default_match, mutations, params, params_kind, stable, validation};
use crate::features::Feature;
use crate::kind::{Generation, Kind, Older, age, cell, col, int, name};
use crate::validation::field::{Errors, FieldError, Path, one_of};

/// The operations whose objects can be changed: a request that deletes brings no object.
const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

pub const MUTATING_POLICY: Kind<MutatingAdmissionPolicy> = Kind {
    gate: Some(Feature::MutatingAdmissionPolicy),
    unconditional_update: false,
    categories: &["api-extensions"],
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|policy| {
        let spec = policy.spec.get_or_insert_default();
        spec.failure_policy.get_or_insert_with(|| "Fail".to_owned());
        default_match!(spec.match_constraints.as_mut());
    }),
    validate_create: Some(|created| policy(created, true)),
    validate_update: Some(|new, old, _| policy(new, about_conditions(new) != about_conditions(old))),
    columns: &[
        name(),
        int("Mutations", "Mutation indicates the number of mutations rules defined in this configuration", |p, _| {
            Value::from(p.spec.as_ref().and_then(|s| s.mutations.as_ref()).map_or(0, Vec::len))
        }),
        col("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy", |p, _| {
            let kind = p.spec.as_ref().and_then(|s| s.param_kind.as_ref());
            params_kind(kind.map(stable::param_kind).as_ref())
        }),
        age(),
    ],
    ..Kind::BASE
};

pub const MUTATING_BINDING: Kind<MutatingAdmissionPolicyBinding> = Kind {
    gate: Some(Feature::MutatingAdmissionPolicy),
    unconditional_update: false,
    categories: &["api-extensions"],
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|binding| default_match!(binding.spec.get_or_insert_default().match_resources.as_mut())),
    validate: Some(binding),
    columns: &[
        name(),
        col("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to", |b, _| {
            cell::text(b.spec.as_ref().and_then(|s| s.policy_name.as_ref()))
        }),
        col("ParamRef", "ParamRef indicates the param resource which sets the configuration param", |b, _| {
            let reference = b.spec.as_ref().and_then(|s| s.param_ref.as_ref());
            Value::from(params(reference.map(stable::param_ref).as_ref()))
        }),
        age(),
    ],
    ..Kind::BASE
};

/// In the first version a missing parameter refuses the request when nothing is said about it.
pub const MUTATING_BINDING_V1ALPHA1: Older = Older {
    to_current: |binding| {
        let reference = binding.get_mut("spec").and_then(|spec| spec.get_mut("paramRef"));
        if let Some(reference) = reference.and_then(Value::as_object_mut)
            && reference.get("parameterNotFoundAction").is_none_or(Value::is_null)
        {
            reference.insert("parameterNotFoundAction", Value::from("Deny"));
        }
    },
    ..Older::named("v1alpha1")
};

/// The fields that its conditions depend on: where they stay, conditions do not have to be checked again.
fn about_conditions(
    policy: &MutatingAdmissionPolicy,
) -> (Option<&v1beta1::ParamKind>, Option<&Vec<v1beta1::MatchCondition>>) {
    let spec = policy.spec.as_ref();
    (spec.and_then(|spec| spec.param_kind.as_ref()), spec.and_then(|spec| spec.match_conditions.as_ref()))
}

pub(super) fn policy(policy: &MutatingAdmissionPolicy, conditions: bool) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = &policy.spec else { return vec![FieldError::required(&path, "")] };
    let failure = spec.failure_policy.as_deref().unwrap_or_default();
    let mut errors: Errors = one_of(failure, &["Fail", "Ignore"], &path, "failurePolicy").into_iter().collect();
    if let Some(kind) = &spec.param_kind {
        errors.extend(validation::param_kind(&stable::param_kind(kind), &path.child("paramKind")));
    }
    let place = path.child("matchConstraints");
    match &spec.match_constraints {
        None => errors.push(FieldError::required(&place, "")),
        Some(constraints) => {
            errors.extend(validation::match_constraints(&stable::match_resources(constraints), &place));
            errors.extend(operations(constraints, &place));
        }
    }
    errors.extend(mutations::validate(spec, conditions, &path));
    let again = spec.reinvocation_policy.as_deref().unwrap_or_default();
    errors.extend(one_of(again, &["IfNeeded", "Never"], &path, "reinvocationPolicy"));
    errors
}

pub(super) fn binding(binding: &MutatingAdmissionPolicyBinding) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = &binding.spec else { return vec![FieldError::required(&path, "")] };
    let mut errors = validation::policy_name(spec.policy_name.as_deref(), &path);
    if let Some(reference) = &spec.param_ref {
        errors.extend(validation::param_ref(&stable::param_ref(reference), &path.child("paramRef")));
    }
    if let Some(resources) = &spec.match_resources {
        let place = path.child("matchResources");
        errors.extend(validation::match_resources(&stable::match_resources(resources), &place));
        errors.extend(operations(resources, &place));
    }
    errors
}

fn operations(resources: &MatchResources, path: &Path) -> Errors {
    let path = path.child("resourceRules").child("operations");
    let rules = resources.resource_rules.iter().flatten();
    let operations = rules.flat_map(|rule| rule.operations.iter().flatten());
    let wrong = operations.filter(|operation| !OPERATIONS.contains(&operation.as_str()));
    wrong.map(|operation| FieldError::not_supported(&path, operation, &OPERATIONS)).collect()
}
