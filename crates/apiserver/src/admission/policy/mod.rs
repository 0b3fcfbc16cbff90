//! ValidatingAdmissionPolicy: rules of the cluster's administrators, in expressions, that writes must keep.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating.

mod authority;
pub(super) mod conditions;
mod evaluation;
mod expressions;
pub(super) mod input;
pub(super) mod matching;
mod params;
pub mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::k8s_openapi::{
    api::admissionregistration::v1::ValidatingAdmissionPolicyBindingSpec,
    apimachinery::pkg::apis::meta::v1::StatusCause,
};
use api::status::StatusError;
use json::json;

use super::{
    attributes::Attributes,
    plugin::{Context, Plugin, done, forbid},
};
use evaluation::{Audit, Decision, Denial};
use input::Input;
use matching::Facts;
use source::{Binding, Hook, Policy};

pub const PLUGIN: Plugin = Plugin {
    name: "ValidatingAdmissionPolicy",
    concerns,
    admit: None,
    validate: Some(|context, attributes| {
        let hooks = context.policies.hooks();
        if hooks.is_empty() { done(Ok(())) } else { Box::pin(validate(context, attributes, hooks)) }
    }),
};

const FAILURE_ANNOTATION: &str = "validation.policy.admission.k8s.io/validation_failure";
const LONGEST_ANNOTATION: usize = 10 * 1024;

/// The kinds that configure admission are exempt: otherwise a policy could be made that nobody can delete.
const EXEMPT: [&str; 6] = [
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Whether policies and webhooks may say anything about a write.
pub(super) fn concerns(attributes: &Attributes<'_>) -> bool {
    let definition = attributes.definition;
    definition.group != source::GROUP || !EXEMPT.contains(&definition.plural.as_str())
}

/// A refusal with the policy and binding that it comes from.
struct Refusal {
    policy: String,
    binding: Option<String>,
    denial: Denial,
}

async fn validate(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hooks: Arc<Vec<Hook>>,
) -> Result<(), StatusError> {
    let namespace = match attributes.namespace {
        "" => None,
        name => context.objects.get("", "namespaces", "", name).await?,
    };
    let mut refusals = Vec::new();
    for hook in hooks.iter() {
        let policy = &hook.policy;
        let equivalents = context.objects.equivalents(attributes.definition);
        let matched = {
            let facts = Facts { attributes, namespace: namespace.as_deref(), equivalents: &equivalents };
            matching::matches(policy.spec.match_constraints.as_ref(), &facts)
        };
        let definition = match matched {
            Ok(Some(definition)) => definition,
            Ok(None) => continue,
            Err(why) => {
                refusals.extend(misconfigured(policy, None, &why.to_string()));
                continue;
            }
        };
        let params_of = match params::definition(context, policy.spec.param_kind.as_ref()) {
            Ok(found) => found,
            Err(why) => {
                refusals.extend(misconfigured(policy, None, &why));
                continue;
            }
        };
        let mut input = None;
        let mut audits = Vec::new();
        for binding in &hook.bindings {
            let facts = Facts { attributes, namespace: namespace.as_deref(), equivalents: &equivalents };
            let applies = match &binding.spec.match_resources {
                Some(resources) => matching::matches(Some(resources), &facts).map(|found| found.is_some()),
                None => Ok(true),
            };
            match applies {
                Ok(true) => {}
                Ok(false) => continue,
                Err(why) => {
                    refusals.extend(misconfigured(policy, Some(binding), &why.to_string()));
                    continue;
                }
            }
            let reference = binding.spec.param_ref.as_ref();
            let params = match params::collect(context, params_of.as_deref(), reference, attributes.namespace).await {
                Ok(params) => params,
                Err(why) => {
                    refusals.extend(misconfigured(policy, Some(binding), &why));
                    continue;
                }
            };
            for params in params {
                if input.is_none() {
                    let asked = (&*context.objects, context.authorizer.clone());
                    match Input::new(asked, attributes, &definition, namespace.clone()).await {
                        Ok(made) => input = Some(made),
                        Err(error) => {
                            let why = format!("failed to convert object version: {}", error.message);
                            refusals.extend(misconfigured(policy, Some(binding), &why));
                        }
                    }
                }
                let Some(input) = &input else { break };
                let outcome = policy.evaluator().validate(input, params.as_deref());
                let said = Said { policy, binding: &binding.name, spec: &binding.spec };
                for (index, decision) in outcome.decisions.into_iter().enumerate() {
                    if let Decision::Deny(denial) = decision {
                        refusals.extend(said.deny(attributes, index, denial));
                    }
                }
                for audit in outcome.audits {
                    match audit {
                        Audit::Publish { key, value } => audits.push((key, value)),
                        Audit::Failed(message) => refusals.push(said.refusal(Denial::error(message))),
                    }
                }
                // An evaluation may take as long as its budget allows.
                tokio::task::yield_now().await;
            }
        }
        publish(attributes, &policy.name, audits);
    }
    refusals.into_iter().next().map_or(Ok(()), |first| Err(refuse(attributes, first)))
}

/// A policy that cannot be applied refuses everything, unless it is to be ignored then.
fn misconfigured(policy: &Policy, binding: Option<&Arc<Binding>>, why: &str) -> Option<Refusal> {
    if policy.ignores_failures() {
        return None;
    }
    let what = if binding.is_some() { "binding" } else { "policy" };
    let denial = Denial::error(format!("failed to configure {what}: {why}"));
    Some(Refusal { policy: policy.name.clone(), binding: binding.map(|b| b.name.clone()), denial })
}

/// What follows from one decision of a policy with a binding.
struct Said<'a> {
    policy: &'a Policy,
    binding: &'a str,
    spec: &'a ValidatingAdmissionPolicyBindingSpec,
}

impl Said<'_> {
    fn refusal(&self, denial: Denial) -> Refusal {
        Refusal { policy: self.policy.name.clone(), binding: Some(self.binding.to_owned()), denial }
    }

    /// Does what the binding wants done about a denial.
    fn deny(&self, attributes: &mut Attributes<'_>, index: usize, denial: Denial) -> Option<Refusal> {
        let actions = self.spec.validation_actions.as_deref().unwrap_or_default();
        let (policy, binding, message) = (&self.policy.name, self.binding, &denial.message);
        if actions.iter().any(|a| a == "Audit") {
            let failure = json!([{"message": message, "policy": policy, "binding": binding, "expressionIndex": index,
                "validationActions": actions}]);
            attributes.annotations.push((FAILURE_ANNOTATION.to_owned(), failure.to_string()));
        }
        if actions.iter().any(|a| a == "Warn") {
            let about = format!("Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}'");
            attributes.warnings.push(format!("{about}: {message}"));
        }
        actions.iter().any(|a| a == "Deny").then(|| self.refusal(denial))
    }
}

/// Hands a policy's audit annotations on. Different values of one key, which params make, become one list.
fn publish(attributes: &mut Attributes<'_>, policy: &str, audits: Vec<(String, String)>) {
    let mut joined: Vec<(String, Vec<String>)> = Vec::new();
    for (key, mut value) in audits {
        if value.len() > LONGEST_ANNOTATION {
            let end = (0..=LONGEST_ANNOTATION).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
            value.truncate(end);
        }
        match joined.iter_mut().find(|(k, _)| *k == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => joined.push((key, vec![value])),
        }
    }
    for (key, values) in joined {
        attributes.annotations.push((format!("{policy}/{key}"), values.join(", ")));
    }
}

fn refuse(attributes: &Attributes<'_>, refusal: Refusal) -> StatusError {
    let Refusal { policy, binding, denial } = refusal;
    let who = match binding {
        Some(binding) => format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}'"),
        None => format!("ValidatingAdmissionPolicy '{policy}'"),
    };
    let message = format!("{who} denied request: {}", denial.message);
    let mut error = forbid(attributes, &message);
    let (code, reason) = match denial.reason.as_str() {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    (error.code, error.reason) = (code, reason.into());
    if let Some(details) = &mut error.details {
        let cause = StatusCause { message: Some(message), ..StatusCause::default() };
        details.causes.get_or_insert_default().push(cause);
    }
    error
}
