//! The declaration of a built-in kind: data and pure functions over its type.

use json::Value;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::column::{Column, created, name};
use super::strategy::Target;
use crate::features::{Feature, Features};
use crate::validation::field::Errors;
use crate::validation::names::NameRule;
use crate::write::resets::Resets;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// Where the scale subresource finds its numbers, as dotted paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale<S = String> {
    pub wanted: S,
    pub current: S,
    /// A path to a selector in text form, or to a `LabelSelector`/map of labels that is turned into text.
    pub selector: Option<S>,
}

/// How the requests for a subresource are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The API server itself.
    Own,
    /// A node or a Pod, over a connection that stays open as long as both sides like.
    Connect,
    /// A node, a Pod or a Service, with any method and any path below the subresource.
    Proxy,
}

/// One subresource other than `status` and `scale`, which follow from the kind's fields. Custom kinds have no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of what it reads or writes: `("policy", "v1", "Eviction")`.
    pub object: (&'static str, &'static str, &'static str),
    pub verbs: &'static [&'static str],
    pub way: Way,
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

/// Fields that belong to a feature. While it is off a write loses them, unless the object had some before.
#[derive(Debug, Clone, Copy)]
pub struct Gated {
    pub feature: Feature,
    /// Each a path of names with dots between them: `list[]` stands for all items, `map{}` for all values. A last name `field?inner`
    /// stands for a field that has a text in that place inside.
    pub fields: &'static [&'static str],
}

/// A text that fields take only where a feature is on. An object that had it before keeps it.
#[derive(Debug, Clone, Copy)]
pub struct GatedText {
    pub feature: Feature,
    pub text: &'static str,
    /// The texts that the fields take otherwise.
    pub others: &'static [&'static str],
    /// Each a path as in [`Gated`].
    pub fields: &'static [&'static str],
    /// Lists that the feature allows too, and the reason why they are forbidden otherwise. In their paths `list[name=text]` stands for
    /// the items that have this text there.
    pub lists: &'static [&'static str],
    pub forbidden: &'static str,
}

/// When the server counts `metadata.generation` up.
#[derive(Debug, Clone, Copy)]
pub enum Generation {
    /// The kind has none: a client's value is kept on create, nothing changes it later.
    None,
    /// 1 on create; one more whenever this part of the object changes.
    CountsChangesOf(&'static str),
    /// None on create; one more, the first included, whenever this part of the object changes.
    CountsLaterChangesOf(&'static str),
    /// 1 on create; one more whenever the function says that something counted changed.
    Counts(fn(new: &Value, old: &Value) -> bool),
}

/// The metadata that a write of the status may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusMetadata {
    /// All that a write of the object may change.
    Changes,
    /// All that a write of the object may change, but for the labels.
    KeepsLabels,
    /// Labels, annotations, finalizers and owners stay as they are.
    Stays,
}

/// Warnings to the client about an object that is valid; `old` on a change.
pub type Warnings<T> = fn(new: &T, old: Option<&T>) -> Vec<String>;

/// The errors of a change that features which are off refuse.
pub type Refuse<T> = fn(new: &T, old: &T, target: Target, features: Features) -> Errors;

/// The grace period of a deletion, of the object and of what the client asked for.
pub type GraceSeconds = fn(&Value, requested: Option<i64>) -> Option<i64>;

/// The declaration of a built-in kind. Group, version, kind, plural and scope are those of the type `T`.
pub struct Kind<T: 'static> {
    pub short: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Has a status subresource: writes of the object leave `status` alone.
    pub status: bool,
    pub status_metadata: StatusMetadata,
    /// The fields that writes cannot set, where they are others than `status` in a write of the object, and the spec with
    /// the metadata that stays in a write of the status.
    pub resets: &'static [(Target, Resets)],
    /// A new object may bring its status along.
    pub status_on_create: bool,
    /// An update of an object that does not exist creates it.
    pub create_on_update: bool,
    /// An update need not say which version of the object it replaces.
    pub unconditional_update: bool,
    pub scale: Option<Scale<&'static str>>,
    pub subresources: &'static [Subresource],
    /// `(group, version)` it is stored as, when that is not its own.
    pub storage: Option<(&'static str, &'static str)>,
    /// The folder under `/registry/`, when that is not the plural.
    pub storage_prefix: Option<&'static str>,
    pub name: NameRule,
    /// The warning that everybody gets who asks for the kind.
    pub deprecated: Option<&'static str>,
    pub generation: Generation,
    /// Brings an object into a form that its type can hold, where the type is stricter than the API, and makes fields agree
    /// that say one thing twice. This is the part of upstream's conversion that is more than a copy.
    pub fit: Option<fn(&mut Value)>,
    pub default: Option<fn(&mut T)>,
    /// The same in its JSON, after those of its type: what would be dear to decode for a few fields.
    pub default_in_place: Option<fn(&mut Value)>,
    /// Its defaults are fields of the spec that follow from others there: an object whose spec is as it was has them.
    pub default_within_spec: bool,
    /// Its validation and warnings ask nothing about labels, finalizers, owners and field managers: an object in which
    /// nothing else changed is as valid as it was, and checked by its metadata alone.
    pub indifferent_to_labels: bool,
    pub validate: Option<fn(&T) -> Errors>,
    /// Checks that only a new object must pass.
    pub validate_create: Option<fn(&T) -> Errors>,
    /// Checks of a change; `validate` checks the new object alone. Writes of the status do not pass here.
    pub validate_update: Option<fn(new: &T, old: &T, target: Target) -> Errors>,
    /// Why features that are off refuse a change. Where they do, `validate_update` is not asked.
    pub refuse_update: Option<Refuse<T>>,
    /// Checks a write of the status subresource. Not in its type: kubelets write status all the time.
    pub validate_status: Option<fn(new: &Value, old: &Value) -> Errors>,
    /// Without it the kind is not served.
    pub gate: Option<Feature>,
    /// Fields that features add.
    pub gated: &'static [Gated],
    /// Texts that features add to fields.
    pub gated_texts: &'static [GatedText],
    /// Times that the server sets where a client has not said them, each a path as in [`Gated`].
    pub stamped: &'static [&'static str],
    /// Changes a new object after the general steps.
    /// Why an object that has the kind's shape is none all the same: upstream cannot convert it to its internal form.
    pub unreadable: Option<fn(&Value) -> Option<String>>,
    pub prepare_create: Option<fn(&mut Value)>,
    /// Like `prepare_create`, for what its author is warned about, since nobody sees it afterwards.
    pub prepare_create_warning: Option<fn(&mut Value) -> Vec<String>>,
    /// Changes a changed object after the general steps. For a subresource of the kind's own it
    /// decides too what the request may write.
    pub prepare_update: Option<fn(new: &mut Value, old: &Value, target: Target)>,
    pub warnings: Option<Warnings<T>>,
    pub columns: &'static [Column<T>],
    pub field_labels: &'static [FieldLabel],
    /// The message about a label that is not among them, with `LABEL` for the label.
    pub unknown_label: Option<&'static str>,
    pub grace_seconds: Option<GraceSeconds>,
    /// The store deletes each object by itself when it has this age.
    pub lifetime_seconds: Option<u32>,
    /// `spec.finalizers` hold a deletion up as those of the metadata do.
    pub spec_finalizers: bool,
    /// A finalizer that an object gets when its deletion is asked for.
    pub delete_finalizer: Option<&'static str>,
    /// The strategy's change to an object that stays in the store while its deletion is under way.
    pub prepare_delete: Option<fn(&mut Value)>,
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
        status_metadata: StatusMetadata::Changes,
        deprecated: None,
        resets: &[],
        status_on_create: false,
        create_on_update: false,
        unconditional_update: true,
        scale: None,
        subresources: &[],
        storage: None,
        storage_prefix: None,
        name: NameRule::Subdomain,
        generation: Generation::None,
        fit: None,
        default: None,
        default_in_place: None,
        default_within_spec: false,
        indifferent_to_labels: false,
        validate: None,
        validate_create: None,
        validate_update: None,
        refuse_update: None,
        validate_status: None,
        gate: None,
        gated: &[],
        gated_texts: &[],
        stamped: &[],
        unreadable: None,
        prepare_create: None,
        prepare_create_warning: None,
        prepare_update: None,
        warnings: None,
        columns: &[name(), created()],
        field_labels: &[],
        unknown_label: None,
        grace_seconds: None,
        lifetime_seconds: None,
        spec_finalizers: false,
        delete_finalizer: None,
        prepare_delete: None,
        to_storage: None,
        from_storage: None,
    };
}
