//! Admission policies and their bindings: rules in CEL that an object must keep, changes in CEL that are made to it, and where
//! they hold.

pub(crate) mod expressions;
mod mutating;
#[cfg(test)]
mod mutating_tests;
mod mutations;
pub mod stable;
mod status;
#[cfg(test)]
mod tests;
pub(crate) mod validation;

use json::Value;
use k8s_openapi::api::admissionregistration::v1::{
    ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};

use crate::kind::cell;
pub use mutating::{MUTATING_BINDING, MUTATING_BINDING_V1ALPHA1, MUTATING_POLICY};

use crate::kind::{Generation, Kind, StatusMetadata, age, col, int, name};

/// The defaults of what a policy or binding is about. Each version of the group has types of its own with the same fields.
macro_rules! default_match {
    ($resources:expr) => {
        if let Some(resources) = $resources {
            resources.match_policy.get_or_insert_with(|| "Equivalent".to_owned());
            resources.namespace_selector.get_or_insert_default();
            resources.object_selector.get_or_insert_default();
            let rules = resources.resource_rules.iter_mut().chain(&mut resources.exclude_resource_rules).flatten();
            for rule in rules {
                rule.scope.get_or_insert_with(|| "*".to_owned());
            }
        }
    };
}
use default_match;

pub const POLICY: Kind<ValidatingAdmissionPolicy> = Kind {
    unconditional_update: false,
    categories: &["api-extensions"],
    status: true,
    status_metadata: StatusMetadata::Stays,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|policy| {
        let spec = policy.spec.get_or_insert_default();
        spec.failure_policy.get_or_insert_with(|| "Fail".to_owned());
        default_match!(spec.match_constraints.as_mut());
    }),
    validate_create: Some(validation::policy),
    validate_update: Some(|new, old, _| validation::policy_update(new, old)),
    validate_status: Some(status::validate),
    columns: &[
        name(),
        int(
            "Validations",
            "Validations indicates the number of validation rules defined in this configuration",
            |p, _| Value::from(p.spec.as_ref().and_then(|s| s.validations.as_ref()).map_or(0, Vec::len)),
        ),
        col("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy", |p, _| {
            params_kind(p.spec.as_ref().and_then(|s| s.param_kind.as_ref()))
        }),
        age(),
    ],
    ..Kind::BASE
};

pub const BINDING: Kind<ValidatingAdmissionPolicyBinding> = Kind {
    unconditional_update: false,
    categories: &["api-extensions"],
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|binding| default_match!(binding.spec.get_or_insert_default().match_resources.as_mut())),
    validate: Some(validation::binding),
    columns: &[
        name(),
        col("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to", |b, _| {
            cell::text(b.spec.as_ref().and_then(|s| s.policy_name.as_ref()))
        }),
        col("ParamRef", "ParamRef indicates the param resource which sets the configuration param", |b, _| {
            Value::from(params(b.spec.as_ref().and_then(|s| s.param_ref.as_ref())))
        }),
        age(),
    ],
    ..Kind::BASE
};

fn params_kind(kind: Option<&ParamKind>) -> Value {
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    cell::shown_or(kind.map(|k| format!("{}/{}", part(&k.api_version), part(&k.kind))), "<unset>")
}

fn params(param: Option<&ParamRef>) -> String {
    let Some(param) = param else { return "<unset>".to_owned() };
    let name = param.name.as_deref().filter(|n| !n.is_empty()).unwrap_or("*");
    match param.namespace.as_deref().filter(|n| !n.is_empty()) {
        Some(namespace) => format!("{namespace}/{name}"),
        None => format!("*/{name}"),
    }
}
