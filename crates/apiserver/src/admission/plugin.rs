//! What a plugin is, what it decides from, and the small steps that several plugins take.

use json::Key;
use std::sync::Arc;

use api::{Value, features::Features, meta, status::StatusError};
use futures::future::BoxFuture;

use super::{
    attributes::Attributes, pod_security::configuration::Configuration, policy::source::Policies,
    quota::charges::Charges, webhook::source::Webhooks,
};
use crate::{
    auth::{Authorizer, rbac::Rbac},
    storage::loopback::Loopback,
};

/// Everything that plugins decide from.
pub struct Context {
    pub objects: Arc<Loopback>,
    pub rbac: Arc<Rbac>,
    pub authorizer: Arc<dyn Authorizer>,
    /// The settings of PodSecurity.
    pub pod_security: Configuration,
    /// What is being charged to quotas, and the settings of ResourceQuota.
    pub charges: Charges,
    /// The admission policies with their bindings.
    pub policies: Arc<Policies>,
    /// The admission webhooks.
    pub webhooks: Arc<Webhooks>,
    /// Which features are on.
    pub features: Features,
}

pub type Outcome<'a> = BoxFuture<'a, Result<(), StatusError>>;
pub type Step = for<'a, 'r> fn(&'a Context, &'a mut Attributes<'r>) -> Outcome<'a>;

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

/// Whether the write is of this kind and subresource.
pub(super) fn is(attributes: &Attributes<'_>, group: &str, plural: &str, subresource: &str) -> bool {
    attributes.definition.plural == plural
        && attributes.definition.group == group
        && attributes.subresource == subresource
}

/// A refusal: `pods "web" is forbidden: WHY`.
pub(super) fn forbid(attributes: &Attributes<'_>, why: impl std::fmt::Display) -> StatusError {
    let (group, plural) = (&attributes.definition.group, &attributes.definition.plural);
    // Before a name is generated there is its beginning.
    let given = |field: &str| attributes.object.as_ref().and_then(|object| object["metadata"][field].as_str());
    let named = [Some(attributes.name), given("name"), given("generateName")];
    let name = named.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or("Unknown");
    let what = if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") };
    StatusError::forbidden(group, plural, name, format!("{what} \"{name}\" is forbidden: {why}"))
}

pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    meta::at(object, path).and_then(Value::as_str).unwrap_or("")
}

pub(super) fn items<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    meta::at(object, path).and_then(Value::as_array).into_iter().flatten()
}

/// The list at `/spec/FIELD`, made when it is absent.
pub(super) fn spec_list<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Vec<Value>> {
    let list =
        object.get_mut("spec")?.as_object_mut()?.entry(Key::of(field)).or_insert_with(|| Value::Array(Vec::new()));
    if list.is_null() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut()
}

/// What a rule says of a write: why it refuses it.
pub(super) type Verdict = Result<(), String>;

pub(super) fn require(condition: bool, why: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { Err(why()) }
}

/// A plugin without waiting: runs a plain function.
pub(super) fn done<'a>(result: Result<(), StatusError>) -> Outcome<'a> {
    Box::pin(std::future::ready(result))
}
