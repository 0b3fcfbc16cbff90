//! Which policies a write is to pass: each that is about it, with each of its bindings that is, with each object of params.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/generic/policy_dispatcher.go.

use std::sync::Arc;

use api::{Value, kind::Definition, status::StatusError};

use super::super::{attributes::Attributes, plugin::Context};
use super::matching::{self, Facts};
use super::params;
use super::source::{Binding, Hook, Policy, Spec};

pub(super) struct Invocation<S: Spec> {
    pub policy: Arc<Policy<S>>,
    pub binding: Arc<Binding>,
    pub params: Option<Arc<Value>>,
    /// The kind in which the policy sees the object: one value for all invocations of a policy.
    pub definition: Arc<Definition>,
}

/// A policy that cannot be applied to the write, or not with a binding.
pub(super) struct Misconfigured<S: Spec> {
    pub policy: Arc<Policy<S>>,
    pub binding: Option<Arc<Binding>>,
    pub why: String,
}

impl<S: Spec> Misconfigured<S> {
    pub(super) fn message(&self) -> String {
        let what = if self.binding.is_some() { "binding" } else { "policy" };
        format!("failed to configure {what}: {}", self.why)
    }
}

type Found<S> = Result<Invocation<S>, Misconfigured<S>>;

/// The namespace that the object of a write is in.
pub(super) async fn namespace(
    context: &Context,
    attributes: &Attributes<'_>,
) -> Result<Option<Arc<Value>>, StatusError> {
    match attributes.namespace {
        "" => Ok(None),
        name => context.objects.get("", "namespaces", "", name).await,
    }
}

/// The invocations in the order of the policies and of their bindings, and what is wrong with others in its place.
pub(super) async fn select<S: Spec>(
    context: &Context,
    attributes: &Attributes<'_>,
    hooks: &[Hook<S>],
    namespace: Option<&Value>,
) -> Vec<Found<S>> {
    let equivalents = context.objects.equivalents(attributes.definition);
    let facts = Facts { attributes, namespace, equivalents: &equivalents };
    let mut found = Vec::new();
    for hook in hooks {
        match of_hook(context, &facts, hook).await {
            Ok(invocations) => found.extend(invocations),
            Err(why) => found.push(Err(Misconfigured { policy: hook.policy.clone(), binding: None, why })),
        }
    }
    found
}

async fn of_hook<S: Spec>(context: &Context, facts: &Facts<'_>, hook: &Hook<S>) -> Result<Vec<Found<S>>, String> {
    let policy = &hook.policy;
    let matched = matching::matches(policy.about.constraints.as_ref(), facts).map_err(|why| why.to_string())?;
    let Some(definition) = matched.map(Arc::new) else { return Ok(Vec::new()) };
    let params_of = params::definition(context, policy.about.param_kind.as_ref())?;
    let mut found = Vec::new();
    for binding in &hook.bindings {
        match of_binding(context, facts, params_of.as_deref(), binding).await {
            Ok(all) => found.extend(all.into_iter().map(|params| {
                let (policy, binding, definition) = (policy.clone(), binding.clone(), definition.clone());
                Ok(Invocation { policy, binding, params, definition })
            })),
            Err(why) => {
                let (policy, binding) = (policy.clone(), Some(binding.clone()));
                found.push(Err(Misconfigured { policy, binding, why }));
            }
        }
    }
    Ok(found)
}

/// The params to run a policy with; none when the binding is not about the write.
async fn of_binding(
    context: &Context,
    facts: &Facts<'_>,
    params_of: Option<&Definition>,
    binding: &Binding,
) -> Result<Vec<Option<Arc<Value>>>, String> {
    if let Some(resources) = &binding.resources
        && matching::matches(Some(resources), facts).map_err(|why| why.to_string())?.is_none()
    {
        return Ok(Vec::new());
    }
    params::collect(context, params_of, binding.params.as_ref(), facts.attributes.namespace).await
}
