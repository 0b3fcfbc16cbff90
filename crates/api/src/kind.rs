//! What a kind is: the one declaration from which routes, discovery, tables, RBAC names, defaults and validation follow.
//!
//! A built-in kind is a `const` [`Kind<T>`] in its own file under `kinds/`, over its `k8s-openapi` type. The server works
//! on [`Definition`], the same thing with the type erased, which a CustomResourceDefinition can build at run time too.

use std::sync::Arc;

use serde_json::Value;

use crate::field::Errors;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// Where the scale subresource finds its numbers, as dotted paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    pub wanted: &'static str,
    pub current: &'static str,
    /// A path to a selector in text form, or to a `LabelSelector`/map of labels that is turned into text.
    pub selector: &'static str,
}

/// One subresource other than `status` and `scale` (those follow from the kind's fields).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of what it reads or writes: `("policy", "v1", "Eviction")`.
    pub object: (&'static str, &'static str, &'static str),
    pub verbs: &'static [&'static str],
}

/// One column of a Table.
pub struct Column<T: 'static> {
    pub name: &'static str,
    /// `string`, `integer`, `date`, …
    pub kind: &'static str,
    pub format: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
    /// The cell; `now` is for ages.
    pub cell: fn(&T, now: jiff::Timestamp) -> Value,
}

/// A column without its cell, for the Table's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnHeader {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub priority: i32,
    pub description: String,
}

/// What a write is, for the strategy of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The object itself: `status` of the request is ignored where the kind has a status subresource.
    Object,
    /// The status subresource: only `status` (and allowed metadata) of the request counts.
    Status,
    /// Another subresource that writes a part of the object (`resize`, `ephemeralcontainers`, `scale`, `finalize`, …).
    Other(&'static str),
}

/// The verbs of an ordinary resource.
pub const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// What a kind does with its objects, type erased. All functions are pure.
pub trait Behaviour: Send + Sync {
    /// Fills in defaults.
    fn default(&self, object: &mut Value);
    /// Checks a new object.
    fn validate(&self, object: &Value) -> Errors;
    /// Checks a change (the new object alone is checked by the same call).
    fn validate_update(&self, new: &Value, old: &Value, target: Target) -> Errors;
    /// What the server itself sets on a new object: status reset, generation and what the kind's strategy does.
    fn prepare_create(&self, object: &mut Value);
    /// The same for a change; decides too whether `metadata.generation` grows.
    fn prepare_update(&self, new: &mut Value, old: &Value, target: Target);
    /// Warnings for the client (`Warning:` headers).
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String>;
    fn columns(&self) -> Vec<ColumnHeader>;
    /// The cells of one row, in the order of `columns`.
    fn row(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value>;
    /// The value of each selectable field label (`status.phase`, `spec.nodeName`, …) besides name and namespace.
    fn selectable(&self, object: &Value) -> Vec<(&'static str, String)>;
    /// The grace period that a delete gets: `None` deletes at once. `requested` is from the delete options.
    fn grace_seconds(&self, object: &Value, requested: Option<i64>) -> Option<i64>;
}

/// One kind in one version as the server sees it.
#[derive(Clone)]
pub struct Definition {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    pub verbs: Vec<String>,
    pub status: bool,
    pub scale: Option<Scale>,
    pub subresources: Vec<Subresource>,
    /// The name of its schema in the schema table: `io.k8s.api.core.v1.Pod`.
    pub schema: String,
    /// `(group, version)` it is stored as, where several versions serve the same objects.
    pub storage: (String, String),
    /// The folder under `/registry/`: `pods`, `services/specs`, `minions`, `apiextensions.k8s.io/…`.
    pub storage_prefix: String,
    /// Field labels a field selector may name, besides `metadata.name` and `metadata.namespace`.
    pub field_labels: Vec<String>,
    pub behaviour: Arc<dyn Behaviour>,
}

impl Definition {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }
}
