//! Admission: what the server changes in a write, or refuses, beyond what its kind's own rules say.
//!
//! One file per plugin, and one ordered list of them. A plugin first says by a glance whether a write concerns it, so
//! that the many writes that don't cost nothing; only plugins that must read are slow.

pub mod attributes;
pub mod certificate_requests;
pub mod configuration;
pub mod default_storage_class;
pub mod default_toleration_seconds;
pub mod namespace_lifecycle;
pub mod node_restriction;
pub mod pod_security;
pub mod priority;
pub mod rbac_escalation;
pub mod runtime_class;
pub mod service_account;
pub mod taint_nodes_by_condition;
mod token_audience;

use std::sync::Arc;

use api::status::StatusError;
use api::{Value, meta};
use futures::future::BoxFuture;

use crate::admission::attributes::{Admission, Attributes, Operation};
use crate::auth::Authorizer;
use crate::auth::rbac::Rbac;
use crate::storage::loopback::Loopback;

pub use configuration::Configuration;

/// Everything that plugins decide from.
pub struct Context {
    pub objects: Arc<Loopback>,
    pub rbac: Arc<Rbac>,
    pub authorizer: Arc<dyn Authorizer>,
    pub configuration: Configuration,
}

pub type Outcome<'a> = BoxFuture<'a, Result<(), StatusError>>;
type Step = for<'a, 'r> fn(&'a Context, &'a mut Attributes<'r>) -> Outcome<'a>;

/// One plugin.
pub struct Plugin {
    /// As upstream's flags name it.
    pub name: &'static str,
    /// Whether a write concerns it at all.
    pub concerns: fn(&Attributes<'_>) -> bool,
    /// Changes the object (or refuses early).
    pub admit: Option<Step>,
    /// Refuses.
    pub validate: Option<Step>,
}

/// All plugins in the order in which they run.
pub const PLUGINS: &[&Plugin] = &[
    &namespace_lifecycle::PLUGIN,
    &service_account::PLUGIN,
    &node_restriction::PLUGIN,
    &taint_nodes_by_condition::PLUGIN,
    &pod_security::PLUGIN,
    &priority::PLUGIN,
    &default_toleration_seconds::PLUGIN,
    &default_storage_class::PLUGIN,
    &runtime_class::PLUGIN,
    &certificate_requests::PLUGIN,
    &rbac_escalation::PLUGIN,
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
                step(&self.context, attributes).await?;
            }
        }
        Ok(())
    }
}

impl Admission for Plugins {
    fn admit<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
        Box::pin(self.run(attributes, |plugin| plugin.admit))
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
        Box::pin(self.run(attributes, |plugin| plugin.validate))
    }
}

/// Whether the write is of this kind and subresource.
fn is(attributes: &Attributes<'_>, group: &str, plural: &str, subresource: &str) -> bool {
    attributes.definition.plural == plural
        && attributes.definition.group == group
        && attributes.subresource == subresource
}

/// A refusal: `pods "web" is forbidden: WHY`.
fn forbid(attributes: &Attributes<'_>, why: impl std::fmt::Display) -> StatusError {
    let (group, plural) = (&attributes.definition.group, &attributes.definition.plural);
    let name = if attributes.name.is_empty() { "Unknown" } else { attributes.name };
    let what = if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") };
    StatusError::forbidden(group, plural, name, format!("{what} \"{name}\" is forbidden: {why}"))
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    meta::at(object, path).and_then(Value::as_str).unwrap_or("")
}

fn items<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    meta::at(object, path).and_then(Value::as_array).into_iter().flatten()
}

/// The list at `/spec/FIELD`, made when it is absent.
fn spec_list<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Vec<Value>> {
    let list = object.get_mut("spec")?.as_object_mut()?.entry(field).or_insert_with(|| Value::Array(Vec::new()));
    if list.is_null() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut()
}

/// A plugin without waiting: runs a plain function.
fn done<'a>(result: Result<(), StatusError>) -> Outcome<'a> {
    Box::pin(std::future::ready(result))
}

#[cfg(test)]
pub(crate) mod fake;
