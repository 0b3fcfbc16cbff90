//! One kind in one version as the server sees it. Every field is owned, so that it can be built at run time.

use std::borrow::Cow;
use std::sync::Arc;

use json::Value;

use super::column::ColumnHeader;
use super::declaration::{Scale, Scope, Subresource, Way};
use super::gated;
use super::strategy::Strategy;
use super::webhook::Webhook;
use crate::codec::decode::Gvk;
use crate::meta;
use crate::schema::Type;
use crate::status::StatusError;

/// One kind in one version.
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
    /// Times that the server sets where a client has not said them.
    pub stamped: &'static [&'static str],
    /// The store deletes each object by itself when it has this age.
    pub lifetime_seconds: Option<u32>,
    /// `spec.finalizers` hold a deletion up as those of the metadata do.
    pub spec_finalizers: bool,
    /// A finalizer that an object gets when its deletion is asked for.
    pub delete_finalizer: Option<&'static str>,
    /// The kind is about to go: its objects are deleted, and there will be no new ones.
    pub terminating: bool,
    /// The warning that everybody gets who asks for the version.
    pub deprecated: Option<String>,
    /// The revision at which a custom kind was defined. Objects that were written before are of another kind that had its name.
    pub defined: u64,
    /// The generation of the schemas of a custom kind. Objects that do not bear it were written by other schemas, or by another
    /// server: they are read through the strategy.
    pub generation: u64,
    /// Converts objects between the versions of a custom kind. They are converted when they come out of the store and before
    /// they go into it; who reads them then finds them in this version.
    pub webhook: Option<Arc<dyn Webhook>>,
    pub scale: Option<Scale>,
    pub subresources: Vec<Subresource>,
    /// The shape of its objects, by which they are decoded, patched and applied.
    pub ty: Type,
    /// The name of its schema in OpenAPI documents: `io.k8s.api.core.v1.Pod`.
    pub schema: String,
    /// The `openAPIV3Schema` of a custom kind. Built-in kinds are described from their Rust types, in `openapi/`.
    pub open_api: Option<Arc<CustomSchema>>,
    /// `(group, version)` it is stored as, where several versions serve the same objects.
    pub storage: (String, String),
    /// The folder under `/registry/`: `pods`, `services/specs`, `minions`, `apiextensions.k8s.io/…`.
    pub storage_prefix: String,
    pub columns: Vec<ColumnHeader>,
    /// The fields that a selector may name, besides `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<SelectableField>,
    /// The message about a field label that is not selectable, with `LABEL` for the label.
    pub unknown_label: String,
    pub strategy: Arc<dyn Strategy>,
}

impl Definition {
    /// One without names that says nothing special: what each declaration begins with.
    pub(crate) fn bare(scope: Scope, ty: Type, strategy: Arc<dyn Strategy>) -> Definition {
        Definition {
            group: String::new(),
            version: String::new(),
            kind: String::new(),
            list_kind: String::new(),
            plural: String::new(),
            singular: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            scope,
            verbs: Vec::new(),
            status: false,
            create_on_update: false,
            unconditional_update: false,
            stamped: &[],
            lifetime_seconds: None,
            spec_finalizers: false,
            delete_finalizer: None,
            terminating: false,
            deprecated: None,
            defined: 0,
            generation: 0,
            webhook: None,
            scale: None,
            subresources: Vec::new(),
            ty,
            schema: String::new(),
            open_api: None,
            storage: Default::default(),
            storage_prefix: String::new(),
            columns: Vec::new(),
            selectable: Vec::new(),
            unknown_label: String::new(),
            strategy,
        }
    }
}

/// The source of a custom kind's documents. It is read again for each document, so that nobody has to keep it.
pub struct CustomSchema {
    /// Changes with the schema.
    pub fingerprint: String,
    pub read: Box<dyn Fn() -> Value + Send + Sync>,
}

/// A field that selectors can name.
#[derive(Debug, Clone)]
pub struct SelectableField {
    pub label: String,
    pub value: FieldValue,
}

/// The way from an object to the value of a selectable field.
#[derive(Debug, Clone)]
pub enum FieldValue {
    /// The text, number or flag at this path of field names, or nothing.
    At(Vec<String>),
    Computed(fn(&Value) -> String),
}

impl Definition {
    pub fn gvk(&self) -> Gvk<'_> {
        Gvk { group: &self.group, version: &self.version, kind: &self.kind }
    }

    /// Refuses an object that has the kind's shape and is none all the same.
    pub fn refuse_unreadable(&self, object: &Value) -> Result<(), StatusError> {
        self.strategy.unreadable(object).map_or(Ok(()), |why| Err(self.gvk().cannot_handle(&why)))
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Defaults, and the times that are the server's to say. `now` in whole seconds.
    pub fn default(&self, object: &mut Value, now: impl FnOnce() -> String) {
        self.strategy.default(object);
        self.stamp(object, now);
    }

    /// Defaults and times of an object that takes the place of another.
    pub fn default_changed(&self, object: &mut Value, old: &Value, now: impl FnOnce() -> String) {
        self.strategy.default_changed(object, old);
        self.stamp(object, now);
    }

    fn stamp(&self, object: &mut Value, now: impl FnOnce() -> String) {
        if !self.stamped.is_empty() {
            let now = Value::from(now());
            self.stamped.iter().for_each(|path| gated::fill(object, path, &now));
        }
    }

    /// Whether its objects are stored in another version than this one.
    pub fn is_converted(&self) -> bool {
        self.storage.0 != self.group || self.storage.1 != self.version
    }

    /// An object of this version as it is stored, where the kind itself converts it: rules about a kind are written for that
    /// shape.
    pub fn as_stored<'o>(&self, object: &'o Value) -> Cow<'o, Value> {
        if self.webhook.is_some() || !self.is_converted() {
            return Cow::Borrowed(object);
        }
        let mut stored = object.clone();
        self.strategy.to_storage(&mut stored);
        Cow::Owned(stored)
    }

    /// Whether users have defined it.
    pub fn is_custom(&self) -> bool {
        self.open_api.is_some()
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// The verbs that a subresource takes and how they are answered; `None` when the kind does not have it.
    pub fn subresource(&self, name: &str) -> Option<(&'static str, &'static [&'static str], Way)> {
        const USUAL: &[&str] = &["get", "patch", "update"];
        match name {
            "status" if self.status => Some(("status", USUAL, Way::Own)),
            "scale" if self.scale.is_some() => Some(("scale", USUAL, Way::Own)),
            other => self.subresources.iter().find(|s| s.name == other).map(|s| (s.name, s.verbs, s.way)),
        }
    }

    /// The label and the value of each selectable field besides name and namespace.
    pub fn field_values<'d>(&'d self, object: &Value) -> impl Iterator<Item = (&'d str, String)> {
        self.selectable.iter().map(|field| {
            let value = match &field.value {
                FieldValue::At(path) => meta::field_text(object, path),
                FieldValue::Computed(of) => of(object),
            };
            (&*field.label, value)
        })
    }

    /// Whether a field selector may name this label; the error is the message for the client.
    pub fn check_field_label(&self, label: &str) -> Result<(), String> {
        let known = match label {
            "metadata.name" => true,
            // Kinds without labels of their own take both, also those that have no namespace.
            "metadata.namespace" => self.namespaced() || self.selectable.is_empty(),
            other => self.selectable.iter().any(|field| field.label == other),
        };
        if known { Ok(()) } else { Err(self.unknown_label.replace("LABEL", label)) }
    }
}
