//! What a kind is: the one declaration from which routes, discovery, tables, RBAC names, defaults and validation follow.
//!
//! A built-in kind is a `const` [`Kind<T>`] in its own file under `kinds/`, over its `k8s-openapi` type. The server works
//! on [`Definition`], the same thing with the type erased, which a CustomResourceDefinition can build at run time too.

mod definition;
pub mod registry;
pub mod table;
mod typed;

use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::validation::field::Errors;
use crate::validation::names::NameRule;

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

/// Who answers the requests for a subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The API server itself.
    Own,
    /// A node or a Pod, over a connection that stays open as long as both sides like.
    Connect,
    /// The same, with any method and any path below the subresource.
    Proxy,
}

/// One subresource other than `status` and `scale` (those follow from the kind's fields).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of what it reads or writes: `("policy", "v1", "Eviction")`.
    pub object: (&'static str, &'static str, &'static str),
    pub verbs: &'static [&'static str],
    pub way: Way,
}

/// One column of a Table. Build it with [`name`], [`age`], [`col`], [`wide`], [`int`] or [`flag`].
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

impl<T> Column<T> {
    /// Shown only with `-o wide`.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    #[must_use]
    pub const fn format(mut self, format: &'static str) -> Self {
        self.format = format;
        self
    }
}

type Cell<T> = fn(&T, jiff::Timestamp) -> Value;

/// A column of text.
pub const fn col<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    Column { name, kind: "string", format: "", priority: 0, description, cell }
}

/// A column of text that is shown only with `-o wide`.
pub const fn wide<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    col(name, description, cell).wide()
}

/// A column of whole numbers.
pub const fn int<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    Column { name, kind: "integer", format: "", priority: 0, description, cell }
}

/// A column of `true` and `false`.
pub const fn flag<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    Column { name, kind: "boolean", format: "", priority: 0, description, cell }
}

/// The column that nearly every kind begins with.
pub const fn name<T: Metadata<Ty = ObjectMeta>>() -> Column<T> {
    let cell: Cell<T> = |object, _| Value::from(object.metadata().name.clone().unwrap_or_default());
    col("Name", NAME_ABOUT, cell).format("name")
}

/// Time since creation.
pub const fn age<T: Metadata<Ty = ObjectMeta>>() -> Column<T> {
    col("Age", CREATED_ABOUT, |object, now| {
        Value::from(crate::kind::table::age(object.metadata().creation_timestamp.as_ref(), now))
    })
}

/// Creation time itself: the second column of a kind that has no columns of its own.
pub const fn created<T: Metadata<Ty = ObjectMeta>>() -> Column<T> {
    let cell: Cell<T> = |object, _| serde_json::to_value(&object.metadata().creation_timestamp).unwrap_or_default();
    Column { name: "Created At", kind: "date", format: "", priority: 0, description: CREATED_ABOUT, cell }
}

/// What the API documents about `metadata.name`; clients read it in the Table's header.
pub const NAME_ABOUT: &str = "Name must be unique within a namespace. Is required when creating resources, although some \
    resources may allow a client to request the generation of an appropriate name automatically. Name is primarily \
    intended for creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// The same for `metadata.creationTimestamp`.
pub const CREATED_ABOUT: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. \
    It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. \
    It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

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

/// A field that selectors can name, with the way to its value. A label that is never set gives an empty value.
#[derive(Debug, Clone, Copy)]
pub struct FieldLabel {
    pub label: &'static str,
    pub value: fn(&Value) -> String,
}

/// The label of a field whose value is the text, number or flag at that place.
pub const fn label(label: &'static str, value: fn(&Value) -> String) -> FieldLabel {
    FieldLabel { label, value }
}

/// When the server counts `metadata.generation` up.
#[derive(Debug, Clone, Copy)]
pub enum Generation {
    /// The kind has none: a client's value is kept on create, nothing changes it later.
    None,
    /// 1 on create; one more whenever this part of the object changes.
    CountsChangesOf(&'static str),
    /// 1 on create; one more whenever the function says that something counted changed.
    Counts(fn(new: &Value, old: &Value) -> bool),
}

/// What a client should know about an object that is valid; `old` on a change.
pub type Warnings<T> = fn(new: &T, old: Option<&T>) -> Vec<String>;

/// The grace period of a deletion, of the object and of what the client asked for.
pub type GraceSeconds = fn(&Value, requested: Option<i64>) -> Option<i64>;

/// The declaration of a built-in kind. Group, version, kind, plural and scope are those of the type `T`.
pub struct Kind<T: 'static> {
    pub short: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Has a status subresource: writes of the object leave `status` alone.
    pub status: bool,
    /// A new object may bring its status along.
    pub status_on_create: bool,
    /// An update of an object that does not exist creates it.
    pub create_on_update: bool,
    /// An update need not say which version of the object it replaces.
    pub unconditional_update: bool,
    pub scale: Option<Scale>,
    pub subresources: &'static [Subresource],
    /// `(group, version)` it is stored as, when that is not its own.
    pub storage: Option<(&'static str, &'static str)>,
    /// The folder under `/registry/`, when that is not the plural.
    pub storage_prefix: Option<&'static str>,
    pub name: NameRule,
    /// Why objects of the kind change nothing, as long as that is so: part of a sentence that clients read when they
    /// create one. The field goes with the feature; the README names every kind that has it.
    pub without_effect: Option<&'static str>,
    pub generation: Generation,
    pub default: Option<fn(&mut T)>,
    pub validate: Option<fn(&T) -> Errors>,
    /// What a new object may not have besides.
    pub validate_create: Option<fn(&T) -> Errors>,
    /// What a change may not do; the new object alone is checked by `validate`. Not asked about writes of the status.
    pub validate_update: Option<fn(new: &T, old: &T, target: Target) -> Errors>,
    /// Checks a write of the status subresource. Not in its type: kubelets write status all the time.
    pub validate_status: Option<fn(new: &Value, old: &Value) -> Errors>,
    /// What the kind's strategy does to a new object after the general steps.
    pub prepare_create: Option<fn(&mut Value)>,
    /// The same for a change. For a subresource of the kind's own it decides too what the request may write.
    pub prepare_update: Option<fn(new: &mut Value, old: &Value, target: Target)>,
    pub warnings: Option<Warnings<T>>,
    pub columns: &'static [Column<T>],
    pub field_labels: &'static [FieldLabel],
    /// What a client reads about a label that is not among them, with `LABEL` for the label.
    pub unknown_label: Option<&'static str>,
    pub grace_seconds: Option<GraceSeconds>,
    /// From this version to the stored one and back, where they differ.
    pub to_storage: Option<fn(&mut Value)>,
    pub from_storage: Option<fn(&mut Value)>,
}

impl<T: Metadata<Ty = ObjectMeta>> Kind<T> {
    /// An ordinary kind: all verbs, no subresources, names are DNS subdomains, columns are name and creation time.
    pub const BASE: Kind<T> = Kind {
        short: &[],
        categories: &[],
        verbs: ALL_VERBS,
        status: false,
        status_on_create: false,
        create_on_update: false,
        unconditional_update: true,
        scale: None,
        subresources: &[],
        storage: None,
        storage_prefix: None,
        name: NameRule::Subdomain,
        without_effect: None,
        generation: Generation::None,
        default: None,
        validate: None,
        validate_create: None,
        validate_update: None,
        validate_status: None,
        prepare_create: None,
        prepare_update: None,
        warnings: None,
        columns: &[name(), created()],
        field_labels: &[],
        unknown_label: None,
        grace_seconds: None,
        to_storage: None,
        from_storage: None,
    };
}

/// What a kind does with its objects, type erased. All functions are pure.
pub trait Behaviour: Send + Sync {
    /// Fills in defaults. An object that does not decode stays as it is: `validate` says why.
    fn default(&self, object: &mut Value);
    /// Checks a new object: what is wrong with it, or else the warnings for the client (`Warning:` headers). One call,
    /// because both need the object in its type, and decoding is what costs.
    fn check(&self, object: &Value) -> Result<Vec<String>, Errors>;
    /// The same for a change (the new object alone is checked by the same call).
    fn check_update(&self, new: &Value, old: &Value, target: Target) -> Result<Vec<String>, Errors>;
    /// What is wrong with a new object.
    fn validate(&self, object: &Value) -> Errors {
        self.check(object).err().unwrap_or_default()
    }
    /// What is wrong with a change.
    fn validate_update(&self, new: &Value, old: &Value, target: Target) -> Errors {
        self.check_update(new, old, target).err().unwrap_or_default()
    }
    /// What the server itself sets on a new object: status reset, generation and what the kind's strategy does.
    fn prepare_create(&self, object: &mut Value);
    /// The same for a change; decides too whether `metadata.generation` grows.
    fn prepare_update(&self, new: &mut Value, old: &Value, target: Target);
    fn columns(&self) -> Vec<ColumnHeader>;
    /// The cells of one row, in the order of `columns`.
    fn row(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value>;
    /// The value of each selectable field label (`status.phase`, `spec.nodeName`, …) besides name and namespace.
    fn selectable(&self, object: &Value) -> Vec<(&'static str, String)>;
    /// The grace period that a delete gets: `None` deletes at once. `requested` is from the delete options.
    fn grace_seconds(&self, object: &Value, requested: Option<i64>) -> Option<i64>;
    /// Adds the kind's own schema, with the texts for people, and all it refers to. A custom resource puts its
    /// `openAPIV3Schema` into `definitions_mut()`, under the name in [`Definition::schema`].
    fn describe(&self, schemas: &mut schemars::SchemaGenerator);
    /// Turns an object of this version into the stored version, in place; nothing to do for most kinds.
    fn to_storage(&self, _object: &mut Value) {}
    /// Turns a stored object into this version, in place.
    #[expect(clippy::wrong_self_convention, reason = "the counterpart of `to_storage`, on an object")]
    fn from_storage(&self, _object: &mut Value) {}
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
    pub create_on_update: bool,
    pub unconditional_update: bool,
    /// Why objects of the kind change nothing, as long as that is so.
    pub without_effect: Option<&'static str>,
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
    /// What a client reads about a field label that is not selectable, with `LABEL` for the label.
    pub unknown_label: String,
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

    /// The verbs that a subresource takes and who answers them; `None` when the kind does not have it.
    pub fn subresource(&self, name: &str) -> Option<(&'static str, &'static [&'static str], Way)> {
        const USUAL: &[&str] = &["get", "patch", "update"];
        match name {
            "status" if self.status => Some(("status", USUAL, Way::Own)),
            "scale" if self.scale.is_some() => Some(("scale", USUAL, Way::Own)),
            other => self.subresources.iter().find(|s| s.name == other).map(|s| (s.name, s.verbs, s.way)),
        }
    }

    /// Whether a field selector may name this label; the error is the message for the client.
    pub fn check_field_label(&self, label: &str) -> Result<(), String> {
        let known = match label {
            "metadata.name" => true,
            // Kinds without labels of their own take both, also those that have no namespace.
            "metadata.namespace" => self.namespaced() || self.field_labels.is_empty(),
            other => self.field_labels.iter().any(|l| l == other),
        };
        if known { Ok(()) } else { Err(self.unknown_label.replace("LABEL", label)) }
    }
}
