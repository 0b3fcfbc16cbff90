//! The type of a plugin, the context that it decides from, and the small steps that several plugins take.

use json::Key;
use std::sync::Arc;

use api::{
    Value, features::Features, k8s_openapi::api::core::v1::Toleration, meta, rules::taint, status::StatusError,
    validation::field::Path,
};
use futures::future::BoxFuture;

use super::{
    attributes::{Attributes, Operation},
    deletions::Deletions,
    optional::settings::Settings,
    pod_security::{configuration::Configuration, metrics::Counts},
    policy::source::Policies,
    quota::charges::Charges,
    webhook::source::Webhooks,
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
    /// The counts of PodSecurity.
    pub pod_security_counts: Counts,
    /// The settings of the plugins that are off unless they are asked for.
    pub optional: Settings,
    /// How many seconds a Pod stays on a node that is not ready, and on one that cannot be reached.
    pub toleration_seconds: (i64, i64),
    /// The charges to quotas that are under way, and the settings of ResourceQuota.
    pub charges: Charges,
    /// The namespaces that were deleted a moment ago.
    pub deletions: Deletions,
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

/// Whether the object of the write is in a namespace.
pub(super) fn is_inside(attributes: &Attributes<'_>) -> bool {
    let is_namespace = attributes.definition.group.is_empty() && attributes.definition.plural == "namespaces";
    !attributes.namespace.is_empty() && !is_namespace
}

/// A refusal: `pods "web" is forbidden: WHY`.
pub(super) fn forbid(attributes: &Attributes<'_>, why: impl std::fmt::Display) -> StatusError {
    let (group, plural) = (&attributes.definition.group, &attributes.definition.plural);
    // Before a name is generated there is its beginning.
    let given = |field: &str| attributes.object.as_ref().and_then(|object| object["metadata"][field].as_str());
    // A request about a collection names none of its objects.
    let asked = Some(attributes.name).filter(|_| !attributes.collection);
    let named = [asked, given("name"), given("generateName")];
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

/// The tolerations in the list at a path; none, where the list cannot be read.
pub(super) fn tolerations_at(object: &Value, path: &str) -> Vec<Toleration> {
    meta::at(object, path).and_then(|list| json::from_value(list.clone()).ok()).unwrap_or_default()
}

/// A Pod gets these tolerations, too.
pub(super) fn tolerate(pod: &mut Value, more: &[Toleration]) {
    if more.is_empty() {
        return;
    }
    let merged = taint::merged(&tolerations_at(pod, "/spec/tolerations"), more);
    if let (Some(list), Ok(Value::Array(merged))) = (spec_list(pod, "tolerations"), json::to_value(merged)) {
        *list = merged;
    }
}

/// Whether a Pod is written itself, with its object.
pub(super) fn is_written_pod(attributes: &Attributes<'_>) -> bool {
    matches!(attributes.operation, Operation::Create | Operation::Update)
        && is(attributes, "", "pods", "")
        && attributes.object.is_some()
}

/// The containers of a Pod, each with its place in `spec`.
pub(super) fn containers(pod: &Value) -> impl Iterator<Item = (Path, &Value)> {
    CONTAINERS.iter().flat_map(move |list| {
        let place = move |(at, container)| (Path::new("spec").child(list).index(at), container);
        items(pod, &format!("/spec/{list}")).enumerate().map(place).collect::<Vec<_>>()
    })
}

/// The lists of a Pod's containers.
pub(super) const CONTAINERS: &[&str] = &["initContainers", "containers", "ephemeralContainers"];

/// The verdict of a rule about a write: why it refuses it.
pub(super) type Verdict = Result<(), String>;

pub(super) fn require(condition: bool, why: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { Err(why()) }
}

/// A plugin without waiting: runs a plain function.
pub(super) fn done<'a>(result: Result<(), StatusError>) -> Outcome<'a> {
    Box::pin(std::future::ready(result))
}
