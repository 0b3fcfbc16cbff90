//! Admission: what the server changes in a write, or refuses, beyond what its kind's own rules say.
//!
//! One file per plugin, and one ordered list of them. A plugin first says by a glance whether a write concerns it, so
//! that the many writes that don't cost nothing; only plugins that must read are slow.

pub mod attributes;
pub mod certificate_requests;
pub mod cluster_trust_bundle_attest;
pub mod configuration;
pub mod default_storage_class;
pub mod default_toleration_seconds;
pub mod device_admin_access;
pub mod limit_ranger;
pub mod namespace_lifecycle;
pub mod node_declared_feature_validator;
pub mod node_restriction;
pub mod persistent_volume_claim_resize;
pub mod plugin;
pub mod pod_certificate_requests;
pub mod pod_security;
pub mod policy;
pub mod policy_params_access;
pub mod priority;
pub mod quota;
pub mod rbac_escalation;
pub mod runtime_class;
pub mod service_account;
mod shape;
pub mod storage_object_in_use_protection;
pub mod taint_nodes_by_condition;
mod token_audience;
pub mod webhook;

use api::status::StatusError;

use attributes::{Admission, Attributes};
use plugin::{Outcome, Plugin, Step};

pub use configuration::Configuration;
pub use plugin::Context;
pub use quota::charges::Charges;

/// All plugins in the order in which they run.
pub const PLUGINS: &[&Plugin] = &[
    &namespace_lifecycle::PLUGIN,
    &limit_ranger::PLUGIN,
    &service_account::PLUGIN,
    &node_restriction::PLUGIN,
    &taint_nodes_by_condition::PLUGIN,
    &pod_security::PLUGIN,
    &priority::PLUGIN,
    &default_toleration_seconds::PLUGIN,
    &default_storage_class::PLUGIN,
    &storage_object_in_use_protection::PLUGIN,
    &persistent_volume_claim_resize::PLUGIN,
    &runtime_class::PLUGIN,
    &certificate_requests::PLUGIN,
    &pod_certificate_requests::PLUGIN,
    &cluster_trust_bundle_attest::PLUGIN,
    &rbac_escalation::PLUGIN,
    &policy_params_access::PLUGIN,
    &device_admin_access::PLUGIN,
    &node_declared_feature_validator::PLUGIN,
    &policy::MUTATING,
    &webhook::MUTATING,
    &policy::VALIDATING,
    &webhook::VALIDATING,
    // Last, so that nothing is charged for what another plugin refuses.
    &quota::PLUGIN,
];

/// The plugins that are on.
pub struct Plugins {
    context: Context,
    enabled: Vec<&'static Plugin>,
}

impl Plugins {
    /// All of them but the `disabled`. A name that is no plugin's is an error.
    pub fn new(context: Context, disabled: &[&str]) -> Result<Self, String> {
        if let Some(unknown) = disabled.iter().find(|name| !PLUGINS.iter().any(|p| p.name == **name)) {
            return Err(format!("there is no admission plugin {unknown:?}"));
        }
        let enabled = PLUGINS.iter().copied().filter(|p| !disabled.contains(&p.name)).collect();
        Ok(Plugins { context, enabled })
    }

    async fn run(&self, attributes: &mut Attributes<'_>, step: fn(&Plugin) -> Option<Step>) -> Result<(), StatusError> {
        for plugin in &self.enabled {
            if let Some(step) = step(plugin)
                && (plugin.concerns)(attributes)
            {
                let done = step(&self.context, attributes).await;
                done.map_err(|error| StatusError { warnings: std::mem::take(&mut attributes.warnings), ..error })?;
            }
        }
        Ok(())
    }
}

impl Admission for Plugins {
    fn admit<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
        Box::pin(async {
            self.run(attributes, |plugin| plugin.admit).await?;
            if attributes.reinvocation.begin() {
                self.run(attributes, |plugin| plugin.admit).await?;
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
        Box::pin(self.run(attributes, |plugin| plugin.validate))
    }
}
