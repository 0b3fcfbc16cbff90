//! Admission: what the server changes in a write, or refuses, beyond what its kind's own rules say.
//!
//! One file per plugin, and one ordered list of them. A plugin first says by a glance whether a write concerns it, so
//! that the many writes that don't cost nothing; only plugins that must read are slow.

pub mod attributes;
pub mod certificates;
pub mod configuration;
pub mod default_ingress_class;
pub mod default_storage_class;
pub mod default_toleration_seconds;
pub mod deletions;
pub mod device_admin_access;
pub mod limit_ranger;
pub mod metrics;
pub mod namespace_lifecycle;
pub mod node_declared_feature_validator;
pub mod node_restriction;
pub mod optional;
pub mod persistent_volume_claim_resize;
pub mod plugin;
pub mod pod_security;
pub mod pod_topology_labels;
pub mod policy;
pub mod policy_params_access;
pub mod priority;
pub mod quota;
pub mod rbac_escalation;
pub(crate) mod reasons;
pub mod runtime_class;
pub mod service_account;
mod shape;
pub mod storage_object_in_use_protection;
pub mod taint_nodes_by_condition;
pub mod webhook;

use api::status::StatusError;
use clock::Instant;

use attributes::{Admission, Attributes};
use certificates::{approval, cluster_trust_bundle_attest, pod_request, request, signing, subject_restriction};
use metrics::{Counts, Sort};
use optional::{
    always, always_pull_images, deny_service_external_ips, event_rate_limit, extended_resource_toleration,
    image_policy_webhook, limit_pod_hard_anti_affinity_topology, namespace_auto_provision, namespace_exists,
    owner_references_permission_enforcement, pod_node_selector, pod_toleration_restriction,
};
use plugin::{Outcome, Plugin};

pub use configuration::Configuration;
pub use default_toleration_seconds::SECONDS as TOLERATION_SECONDS;
pub use plugin::Context;
pub use quota::charges::Charges;

/// When a plugin is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Always: a rule that upstream has elsewhere, and nobody can turn off.
    Always,
    /// Unless `--disable-admission-plugins` names it.
    On,
    /// When `--enable-admission-plugins` names it.
    Off,
}

use Standing::{Always, Off, On};

/// All plugins in the order in which they run, which is upstream's.
const PLUGINS: &[(Standing, &Plugin)] = &[
    (Off, &always::ADMIT),
    (Off, &namespace_auto_provision::PLUGIN),
    (On, &namespace_lifecycle::PLUGIN),
    (Off, &namespace_exists::PLUGIN),
    (Off, &limit_pod_hard_anti_affinity_topology::PLUGIN),
    (On, &limit_ranger::PLUGIN),
    (On, &service_account::PLUGIN),
    // Upstream leaves it to its operators to ask for this one.
    (On, &node_restriction::PLUGIN),
    (On, &taint_nodes_by_condition::PLUGIN),
    (Off, &always_pull_images::PLUGIN),
    (Off, &image_policy_webhook::PLUGIN),
    (On, &pod_security::PLUGIN),
    (Off, &pod_node_selector::PLUGIN),
    (On, &priority::PLUGIN),
    (On, &default_toleration_seconds::PLUGIN),
    (Off, &pod_toleration_restriction::PLUGIN),
    (Off, &event_rate_limit::PLUGIN),
    (Off, &extended_resource_toleration::PLUGIN),
    (On, &default_storage_class::PLUGIN),
    (On, &storage_object_in_use_protection::PLUGIN),
    (Off, &owner_references_permission_enforcement::PLUGIN),
    (On, &persistent_volume_claim_resize::PLUGIN),
    (On, &runtime_class::PLUGIN),
    (Always, &request::PLUGIN),
    (On, &approval::PLUGIN),
    (On, &signing::PLUGIN),
    (Always, &pod_request::PLUGIN),
    (On, &cluster_trust_bundle_attest::PLUGIN),
    (On, &subject_restriction::PLUGIN),
    (On, &default_ingress_class::PLUGIN),
    (Off, &deny_service_external_ips::PLUGIN),
    (On, &pod_topology_labels::PLUGIN),
    (Always, &rbac_escalation::PLUGIN),
    (Always, &policy_params_access::PLUGIN),
    (Always, &device_admin_access::PLUGIN),
    (On, &node_declared_feature_validator::PLUGIN),
    (On, &policy::MUTATING),
    (On, &webhook::MUTATING),
    (On, &policy::VALIDATING),
    (On, &webhook::VALIDATING),
    // Last, so that nothing is charged for what another plugin refuses.
    (On, &quota::PLUGIN),
    (Off, &always::DENY),
];

/// Which plugins are at work, as the flags say.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub enable: Vec<String>,
    pub disable: Vec<String>,
}

impl Choice {
    /// Names that are no plugin's, or that are in both lists, are an error.
    pub fn check(&self) -> Result<(), String> {
        for (flag, names) in [("enable", &self.enable), ("disable", &self.disable)] {
            if let Some(unknown) = names.iter().find(|name| !names_of_plugins().any(|known| known == *name)) {
                let known = names_of_plugins().collect::<Vec<_>>().join(", ");
                return Err(format!("{flag}-admission-plugins plugin {unknown:?} is unknown; there are {known}"));
            }
        }
        match self.enable.iter().find(|name| self.disable.contains(name)) {
            Some(both) => Err(format!(
                "[{both}] in enable-admission-plugins and disable-admission-plugins overlapped; take it out of one of them"
            )),
            None => Ok(()),
        }
    }

    fn takes(&self, standing: Standing, name: &str) -> bool {
        let is_in = |names: &[String]| names.iter().any(|given| given == name);
        match standing {
            Always => true,
            On => !is_in(&self.disable),
            Off => is_in(&self.enable),
        }
    }
}

/// The plugins that the flags may name.
fn names_of_plugins() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().filter(|(standing, _)| *standing != Always).map(|(_, plugin)| plugin.name)
}

/// The plugins that are on.
pub struct Plugins {
    context: Context,
    enabled: Vec<&'static Plugin>,
    counts: Counts,
}

impl Plugins {
    pub fn new(context: Context, choice: &Choice) -> Result<Self, String> {
        choice.check()?;
        let on = PLUGINS.iter().filter(|(standing, plugin)| choice.takes(*standing, plugin.name));
        let enabled: Vec<&Plugin> = on.map(|(_, plugin)| *plugin).collect();
        if context.optional.event_limits.is_empty() && enabled.iter().any(|p| p.name == event_rate_limit::PLUGIN.name) {
            return Err("the admission plugin EventRateLimit needs limits: write them into the file of \
                        --admission-control-config-file"
                .to_owned());
        }
        if !context.optional.image_policy.is_configured()
            && enabled.iter().any(|p| p.name == image_policy_webhook::PLUGIN.name)
        {
            return Err("the admission plugin ImagePolicyWebhook needs an imagePolicy: write it into the file of \
                        --admission-control-config-file"
                .to_owned());
        }
        Ok(Plugins { context, counts: Counts::of(enabled.len()), enabled })
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.counts.render() + &self.context.pod_security_counts.render()
    }

    async fn run(&self, attributes: &mut Attributes<'_>, sort: Sort) -> Result<(), StatusError> {
        let (began, operation) = (Instant::now(), attributes.operation);
        let done = self.each(attributes, sort).await;
        self.counts.ended(None, (sort, operation), &done, began.elapsed());
        done
    }

    async fn each(&self, attributes: &mut Attributes<'_>, sort: Sort) -> Result<(), StatusError> {
        let step = |plugin: &Plugin| match sort {
            Sort::Admit => plugin.admit,
            Sort::Validate => plugin.validate,
        };
        // One plugin begins when the one before it has ended: the clock is read once for each.
        let mut began = Instant::now();
        for (at, plugin) in self.enabled.iter().enumerate() {
            if let Some(step) = step(plugin)
                && (plugin.concerns)(attributes)
            {
                let operation = attributes.operation;
                let done = step(&self.context, attributes).await;
                let ended = Instant::now();
                self.counts.ended(Some((at, plugin.name)), (sort, operation), &done, ended - began);
                began = ended;
                done.map_err(|error| StatusError { warnings: std::mem::take(&mut attributes.warnings), ..error })?;
            }
        }
        Ok(())
    }
}

impl Admission for Plugins {
    fn admit<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
        Box::pin(async {
            self.run(attributes, Sort::Admit).await?;
            if attributes.reinvocation.begin() {
                self.run(attributes, Sort::Admit).await?;
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
        Box::pin(self.run(attributes, Sort::Validate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::context;

    async fn plugins(enable: &[&str], disable: &[&str]) -> Result<Vec<&'static str>, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let choice = Choice { enable: owned(enable), disable: owned(disable) };
        let plugins = Plugins::new(context(Vec::new()).await, &choice)?;
        Ok(plugins.enabled.iter().map(|plugin| plugin.name).collect())
    }

    #[tokio::test]
    async fn flags_choose_the_plugins() {
        let usual = plugins(&[], &[]).await.unwrap();
        assert!(usual.contains(&"PodSecurity") && !usual.contains(&"AlwaysDeny"));
        let chosen = plugins(&["AlwaysPullImages", "PodSecurity"], &["ResourceQuota"]).await.unwrap();
        let expected: Vec<&str> = usual.iter().copied().filter(|name| *name != "ResourceQuota").collect();
        let without: Vec<&str> = chosen.iter().copied().filter(|name| *name != "AlwaysPullImages").collect();
        assert_eq!(without, expected);
        let at = |name: &str| chosen.iter().position(|other| *other == name).unwrap();
        assert!(at("TaintNodesByCondition") < at("AlwaysPullImages") && at("AlwaysPullImages") < at("PodSecurity"));
    }

    #[tokio::test]
    async fn the_page_tells_what_plugins_count_of_their_own() {
        let plugins = Plugins::new(context(Vec::new()).await, &Choice::default()).unwrap();
        assert!(plugins.render().contains("pod_security_exemptions_total{request_operation=\"create\","));
    }

    #[tokio::test]
    async fn wrong_choices_are_told() {
        let check = async |enable: &[&str], disable: &[&str], expected: &str| {
            let error = plugins(enable, disable).await.unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        };
        check(&["X"], &[], "enable-admission-plugins plugin \"X\" is unknown; there are AlwaysAdmit, ").await;
        check(&[], &["RbacEscalation"], "disable-admission-plugins plugin \"RbacEscalation\" is unknown").await;
        let both = "[PodSecurity] in enable-admission-plugins and disable-admission-plugins overlapped";
        check(&["PodSecurity"], &["PodSecurity"], both).await;
        check(&["EventRateLimit"], &[], "the admission plugin EventRateLimit needs limits").await;
    }
}
