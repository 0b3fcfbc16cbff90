//! The webhooks of all configurations, kept up to date by the store's changes. Conditions are compiled when a request first
//! meets them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use api::k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, RuleWithOperations,
};
use api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use api::kind::webhook::Client;
use api::rules::cel::admission::{OptionalVariables, environment};
use api::{Value, kind::Definition};
use parking_lot::RwLock;
use serde::Deserialize;

use super::super::policy::conditions::Conditions;
use super::metrics::Metrics;
use super::review::Version;
use super::shown::Shown;
use crate::{
    outbound::{self, credentials::Credentials},
    storage::informer::EventHandler,
};

pub const GROUP: &str = "admissionregistration.k8s.io";
pub const MUTATING: &str = "mutatingwebhookconfigurations";
pub const VALIDATING: &str = "validatingwebhookconfigurations";

/// As both kinds of configurations have it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Webhook {
    name: String,
    client_config: Client,
    rules: Option<Vec<RuleWithOperations>>,
    failure_policy: Option<String>,
    match_policy: Option<String>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
    side_effects: Option<String>,
    timeout_seconds: Option<u64>,
    admission_review_versions: Option<Vec<String>>,
    match_conditions: Option<Vec<MatchCondition>>,
    reinvocation_policy: Option<String>,
}

/// The longest time that a webhook can be given, which one without a time has too.
const PATIENCE: u64 = 30;

/// A webhook that is asked.
pub struct Hook {
    pub name: String,
    pub configuration: String,
    /// Tells it apart from all others, also from those of its name.
    pub key: String,
    pub client: Client,
    /// The writes that it is about.
    pub resources: MatchResources,
    pub ignores_failures: bool,
    /// A dry run stays one.
    pub takes_dry_runs: bool,
    pub seconds: u64,
    /// The form of its questions: the first in its list that this server knows.
    pub version: Option<Version>,
    /// It is asked again about what others changed after it.
    pub reinvocable: bool,
    match_conditions: Vec<MatchCondition>,
    conditions: OnceLock<Conditions>,
}

impl Hook {
    fn new(configuration: &str, index: usize, webhook: Webhook) -> Self {
        let named = |rule: RuleWithOperations| NamedRuleWithOperations {
            api_groups: rule.api_groups,
            api_versions: rule.api_versions,
            operations: rule.operations,
            resource_names: None,
            resources: rule.resources,
            scope: rule.scope,
        };
        Hook {
            key: format!("{configuration}/{index}/{}", webhook.name),
            configuration: configuration.to_owned(),
            client: webhook.client_config,
            resources: MatchResources {
                exclude_resource_rules: None,
                match_policy: webhook.match_policy,
                namespace_selector: webhook.namespace_selector,
                object_selector: webhook.object_selector,
                resource_rules: webhook.rules.map(|rules| rules.into_iter().map(named).collect()),
            },
            ignores_failures: webhook.failure_policy.as_deref() == Some("Ignore"),
            takes_dry_runs: matches!(webhook.side_effects.as_deref(), Some("None" | "NoneOnDryRun")),
            seconds: webhook.timeout_seconds.map_or(PATIENCE, |seconds| seconds.clamp(1, PATIENCE)),
            version: webhook.admission_review_versions.iter().flatten().find_map(|name| Version::named(name)),
            reinvocable: webhook.reinvocation_policy.as_deref() == Some("IfNeeded"),
            match_conditions: webhook.match_conditions.unwrap_or_default(),
            conditions: OnceLock::new(),
            name: webhook.name,
        }
    }

    /// A webhook without rules is about nothing. It has a place among the others all the same.
    pub(super) fn has_rules(&self) -> bool {
        self.resources.resource_rules.as_ref().is_some_and(|rules| !rules.is_empty())
    }

    /// Its match conditions, if it has any.
    pub(super) fn conditions(&self) -> Option<&Conditions> {
        let make = || {
            let environment = environment(OptionalVariables { params: false, authorizer: true });
            Conditions::new(&environment, &self.match_conditions, self.ignores_failures)
        };
        (!self.match_conditions.is_empty()).then(|| self.conditions.get_or_init(make))
    }
}

/// The configurations of one kind, and their webhooks in the order in which they are asked.
#[derive(Default)]
pub struct Configurations {
    held: RwLock<BTreeMap<String, Vec<Arc<Hook>>>>,
    hooks: RwLock<Arc<Vec<Arc<Hook>>>>,
}

impl Configurations {
    pub fn hooks(&self) -> Arc<Vec<Arc<Hook>>> {
        self.hooks.read().clone()
    }

    /// Takes in that a configuration is now this, or gone.
    pub fn changed(&self, name: &str, configuration: Option<&Value>) {
        let mut held = self.held.write();
        match configuration {
            Some(configuration) => drop(held.insert(name.to_owned(), read(name, configuration))),
            None => drop(held.remove(name)),
        }
        *self.hooks.write() = Arc::new(held.values().flatten().cloned().collect());
    }
}

/// The webhooks of a configuration.
fn read(name: &str, configuration: &Value) -> Vec<Arc<Hook>> {
    let all = configuration["webhooks"].as_array().into_iter().flatten();
    let read = all.filter_map(|webhook| match json::from_value::<Webhook>(webhook.clone()) {
        Ok(webhook) => Some(webhook),
        Err(error) => {
            tracing::warn!(configuration = name, %error, "a stored webhook cannot be read and is not asked");
            None
        }
    });
    read.enumerate().map(|(index, webhook)| Arc::new(Hook::new(name, index, webhook))).collect()
}

/// The way to webhooks, and what those of each sort are shown.
pub struct Way {
    pub(super) webhooks: Arc<outbound::webhook::Webhooks>,
    shown: Shown,
}

impl Way {
    pub(super) fn credentials(&self, mutating: bool) -> &Credentials {
        if mutating { &self.shown.mutating } else { &self.shown.validating }
    }
}

/// The webhooks of the cluster, and the way to them.
#[derive(Default)]
pub struct Webhooks {
    pub(super) mutating: Configurations,
    pub(super) validating: Configurations,
    way: Option<Way>,
    pub metrics: Metrics,
}

impl Webhooks {
    pub(crate) fn new(webhooks: Arc<outbound::webhook::Webhooks>, shown: Shown) -> Self {
        Webhooks { way: Some(Way { webhooks, shown }), ..Webhooks::default() }
    }

    pub(super) fn way(&self) -> Option<&Way> {
        self.way.as_ref()
    }

    /// Takes in that a configuration is now this, or gone.
    pub fn object_changed(&self, plural: &str, name: &str, object: Option<&Value>) {
        let configurations = if plural == MUTATING { &self.mutating } else { &self.validating };
        configurations.changed(name, object);
    }
}

impl EventHandler for Webhooks {
    fn changed(&self, definition: &Definition, _namespace: &str, name: &str, object: Option<&Value>) {
        self.object_changed(&definition.plural, name, object);
    }
}
