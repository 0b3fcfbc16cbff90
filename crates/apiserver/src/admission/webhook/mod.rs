//! Admission webhooks: servers of the cluster's administrators that are asked about writes, over HTTPS. Some change the object,
//! others only refuse. A delay or a wrong answer of one ends with the request that it was asked about.
//!
//! `source` keeps the configurations, `scene` says which webhooks a write concerns and in which version they see it, `review` is
//! the question and the answer, `call` asks one webhook. Rules, selectors and conditions are those of policies.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook.

mod annotations;
mod call;
mod metrics;
mod mutating;
mod review;
mod scene;
pub mod shown;
pub mod source;
#[cfg(test)]
mod tests;
mod validating;

use super::{
    plugin::{Plugin, done},
    policy,
};

pub const MUTATING: Plugin = Plugin {
    name: "MutatingAdmissionWebhook",
    concerns: policy::concerns,
    admit: Some(|context, attributes| {
        let hooks = context.webhooks.mutating.hooks();
        if hooks.is_empty() { done(Ok(())) } else { Box::pin(mutating::admit(context, attributes, hooks)) }
    }),
    validate: None,
};

pub const VALIDATING: Plugin = Plugin {
    name: "ValidatingAdmissionWebhook",
    concerns: policy::concerns,
    admit: None,
    validate: Some(|context, attributes| {
        let hooks = context.webhooks.validating.hooks();
        if hooks.is_empty() { done(Ok(())) } else { Box::pin(validating::validate(context, attributes, hooks)) }
    }),
};
