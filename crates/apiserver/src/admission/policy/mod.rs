//! Admission policies: rules of the cluster's administrators, in expressions, about writes. Validating ones say what must be so,
//! mutating ones change the object before that. Both are about what their constraints and a binding name, once for each object
//! of params that the binding gives them.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/policy.

mod authority;
#[cfg(test)]
mod case_tests;
mod changes;
pub(super) mod conditions;
mod evaluation;
mod expressions;
pub(super) mod input;
mod invocations;
pub(super) mod matching;
mod metrics;
mod mutating;
#[cfg(test)]
mod mutating_tests;
mod params;
pub mod source;
#[cfg(test)]
mod tests;
mod validating;

use api::features::Feature;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Plugin, done},
};

/// There is nothing to change in a request that deletes.
pub const MUTATING: Plugin = Plugin {
    name: "MutatingAdmissionPolicy",
    concerns: |attributes| judged(attributes) && attributes.operation != Operation::Delete,
    admit: Some(|context, attributes| {
        let hooks = context.policies.mutating.hooks();
        let on = context.features.enabled(Feature::MutatingAdmissionPolicy);
        if !on || hooks.is_empty() { done(Ok(())) } else { Box::pin(mutating::admit(context, attributes, hooks)) }
    }),
    validate: None,
};

pub const VALIDATING: Plugin = Plugin {
    name: "ValidatingAdmissionPolicy",
    concerns: judged,
    admit: None,
    validate: Some(|context, attributes| {
        let hooks = context.policies.validating.hooks();
        if hooks.is_empty() { done(Ok(())) } else { Box::pin(validating::validate(context, attributes, hooks)) }
    }),
};

/// The most that the expressions of one kind in one run may cost together.
const BUDGET: u64 = 10_000_000;

/// The kinds that configure admission are exempt: otherwise a policy could be made that nobody can delete.
const EXEMPT: [&str; 6] = [
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Questions that nodes and other servers ask about users: a policy about everything would break the cluster with them.
/// Upstream counterpart: pkg/kubeapiserver/admission/exclusion.
const QUESTIONS: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Whether policies may say anything about a write.
fn judged(attributes: &Attributes<'_>) -> bool {
    let definition = attributes.definition;
    concerns(attributes) && !QUESTIONS.contains(&(definition.group.as_str(), definition.plural.as_str()))
}

/// Whether policies and webhooks may say anything about a write.
pub(super) fn concerns(attributes: &Attributes<'_>) -> bool {
    let definition = attributes.definition;
    definition.group != source::GROUP || !EXEMPT.contains(&definition.plural.as_str())
}
