//! ValidatingAdmissionPolicy: rules of the cluster's administrators, in expressions, that writes must keep.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating.

use std::sync::Arc;

use api::k8s_openapi::{
    api::admissionregistration::v1::ValidatingAdmissionPolicySpec, apimachinery::pkg::apis::meta::v1::StatusCause,
};
use api::{Value, kind::Definition, status::StatusError};
use clock::Duration;

use super::super::{
    attributes::Attributes,
    plugin::{Context, forbid},
};
use super::evaluation::{Audit, Decision, Denial};
use super::input::Input;
use super::invocations::{self, Invocation, Misconfigured};
use super::metrics::Counts;
use super::source::{self, Binding, Policy};
use crate::audit::structure;

type Hook = source::Hook<ValidatingAdmissionPolicySpec>;

const FAILURE_ANNOTATION: &str = "validation.policy.admission.k8s.io/validation_failure";
const LONGEST_ANNOTATION: usize = 10 * 1024;

/// A refusal with the policy and binding that it comes from.
struct Refusal {
    policy: String,
    binding: Option<String>,
    denial: Denial,
}

pub(super) async fn validate(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hooks: Arc<Vec<Hook>>,
) -> Result<(), StatusError> {
    let namespace = invocations::namespace(context, attributes).await?;
    let mut refusals = Vec::new();
    let mut audits = Vec::new();
    let mut seen: Option<(Arc<Definition>, Input)> = None;
    for found in invocations::select(context, attributes, &hooks, namespace.as_deref()).await {
        let invocation = match found {
            Ok(invocation) => invocation,
            Err(misconfigured) => {
                refusals.extend(Refusal::of(misconfigured));
                continue;
            }
        };
        let Invocation { policy, binding, params, definition } = invocation;
        if !seen.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, &definition)) {
            let asked = (&*context.objects, context.authorizer.clone());
            match Input::new(asked, attributes, &definition, namespace.clone()).await {
                Ok(made) => seen = Some((definition, made)),
                Err(error) => {
                    let why = format!("failed to convert object version: {}", error.message);
                    refusals.extend(Refusal::of(Misconfigured { policy, binding: Some(binding), why }));
                    continue;
                }
            }
        }
        let Some((_, input)) = &seen else { continue };
        let outcome = input.settled(|| policy.evaluator().validate(input, params.as_deref())).await;
        let counts = &context.policies.metrics;
        counts.conditions(("policy", "validate", &policy.name), attributes.operation, outcome.conditions);
        let said = Said { policy: &policy, binding: &binding, counts };
        for (index, (decision, took)) in outcome.decisions.into_iter().enumerate() {
            match decision {
                Decision::Admit => {}
                Decision::Ignored(why) => said.count(&why, "allow", took),
                Decision::Deny(denial) => refusals.extend(said.deny(attributes, index, denial, took)),
            }
        }
        for audit in outcome.audits {
            match audit {
                Audit::Publish { key, value } => audits.push((format!("{}/{key}", policy.name), value)),
                Audit::Failed { why, took } => {
                    said.count(&why, "deny", took);
                    refusals.push(said.refusal(Denial::error(why)));
                }
            }
        }
        // An evaluation may take as long as its budget allows.
        tokio::task::yield_now().await;
    }
    publish(attributes, audits);
    refusals.into_iter().next().map_or(Ok(()), |first| Err(refuse(attributes, first)))
}

impl Refusal {
    /// A policy that cannot be applied refuses everything, unless it is to be ignored then.
    fn of(wrong: Misconfigured<ValidatingAdmissionPolicySpec>) -> Option<Refusal> {
        let denial = Denial::error(wrong.message());
        let Misconfigured { policy, binding, .. } = wrong;
        let (policy, binding, refuses) =
            (policy.name.clone(), binding.map(|b| b.name.clone()), !policy.about.ignores_failures);
        refuses.then_some(Refusal { policy, binding, denial })
    }
}

/// The origin of a decision: a policy with a binding.
struct Said<'a> {
    policy: &'a Policy<ValidatingAdmissionPolicySpec>,
    binding: &'a Binding,
    counts: &'a Counts,
}

impl Said<'_> {
    fn refusal(&self, denial: Denial) -> Refusal {
        Refusal { policy: self.policy.name.clone(), binding: Some(self.binding.name.clone()), denial }
    }

    fn count(&self, why: &str, action: &str, took: Duration) {
        self.counts.checked((&self.policy.name, &self.binding.name), why, action, took);
    }

    /// Does what the binding wants done about a denial.
    fn deny(&self, attributes: &mut Attributes<'_>, index: usize, denial: Denial, took: Duration) -> Option<Refusal> {
        let actions = &self.binding.actions;
        actions.iter().for_each(|action| self.count(&denial.message, &action.to_lowercase(), took));
        let (policy, binding, message) = (&self.policy.name, &self.binding.name, &denial.message);
        if actions.iter().any(|a| a == "Audit") {
            let failure = structure([
                ("message", Value::from(message.as_str())),
                ("policy", Value::from(policy.as_str())),
                ("binding", Value::from(binding.as_str())),
                ("expressionIndex", Value::from(index)),
                ("validationActions", Value::from(actions.clone())),
            ]);
            attributes.trail.annotate(FAILURE_ANNOTATION, format!("[{failure}]"));
        }
        if actions.iter().any(|a| a == "Warn") {
            let about = format!("Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}'");
            attributes.warnings.push(format!("{about}: {message}"));
        }
        actions.iter().any(|a| a == "Deny").then(|| self.refusal(denial))
    }
}

/// Hands the policies' audit annotations on. Different values of one key, which params make, become one list.
fn publish(attributes: &mut Attributes<'_>, audits: Vec<(String, String)>) {
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
        attributes.trail.annotate(key, values.join(", "));
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
