//! From a typed [`Kind<T>`] to the [`Definition`] that the server works with. The strategy of a built-in kind decodes a
//! `Value` where a rule needs the type, and leaves it alone where it does not.

use std::sync::{Arc, OnceLock};

use json::{Map, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, NamespaceResourceScope, SubResourceScope};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::column::Column;
use super::declaration::{Generation, Kind, Scope, StatusMetadata};
use super::definition::Definition;
use super::gated;
use super::names::Names;
use super::strategy::{Checked, Strategy, Target};

use crate::codec::decode::complete;
use crate::features::Features;
use crate::meta;
use crate::object;
use crate::schema;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::object_meta::{self, Finalizers};
use crate::write::entries;
use crate::write::resets::Resets;

/// The scope that a `k8s-openapi` type carries in its type.
pub trait Scoped {
    const SCOPE: Scope;
}

impl Scoped for NamespaceResourceScope {
    const SCOPE: Scope = Scope::Namespaced;
}

impl Scoped for ClusterResourceScope {
    const SCOPE: Scope = Scope::Cluster;
}

/// Objects of subresources live where their parent lives; all that exist have namespaced parents.
impl Scoped for SubResourceScope {
    const SCOPE: Scope = Scope::Namespaced;
}

/// All that a built-in kind's type offers.
pub trait BuiltIn: Metadata<Ty = ObjectMeta> + Clone + DeserializeOwned + Serialize + Send + Sync + 'static {}

impl<T: Metadata<Ty = ObjectMeta> + Clone + DeserializeOwned + Serialize + Send + Sync + 'static> BuiltIn for T {}

impl<T: BuiltIn> Kind<T>
where
    T::Scope: Scoped,
{
    /// The definition under the type's own names, where these features are on.
    pub fn define(self, features: Features) -> Definition {
        let columns = self.columns.iter().map(Column::header).collect();
        let names = Names {
            group: T::GROUP,
            version: T::VERSION,
            kind: T::KIND,
            plural: T::URL_PATH_SEGMENT,
            short: self.short,
            categories: self.categories,
            verbs: self.verbs,
            scope: T::Scope::SCOPE,
            scale: self.scale,
            subresources: self.subresources,
            storage: self.storage,
            storage_prefix: self.storage_prefix,
            field_labels: self.field_labels,
            unknown_label: self.unknown_label,
        };
        Definition {
            status: self.status,
            create_on_update: self.create_on_update,
            unconditional_update: self.unconditional_update,
            deprecated: self.deprecated.map(str::to_owned),
            stamped: self.stamped,
            lifetime_seconds: self.lifetime_seconds,
            spec_finalizers: self.spec_finalizers,
            webhook: None,
            delete_finalizer: self.delete_finalizer,
            ..names.definition(columns, Arc::new(Typed { empty_status: OnceLock::new(), features, kind: self }))
        }
    }
}

struct Typed<T: 'static> {
    kind: Kind<T>,
    features: Features,
    /// Made for the first object: the code of all kinds need not be in memory for the few that a cluster uses.
    empty_status: OnceLock<Value>,
}

/// A status that nobody wrote yet: the fields that are always written, with their zero values.
fn empty_status<T: BuiltIn>() -> Value {
    let bare = json::json!({"status": {}});
    let whole = object::decode::<T>(&bare).ok().and_then(|typed| json::to_value(typed).ok());
    let status = whole.and_then(|mut object| object.get_mut("status").map(Value::take));
    status.unwrap_or_else(|| Value::Object(Map::new()))
}

fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, FieldError> {
    object::decode(object).map_err(of_wrong_type)
}

fn decode_metadata(object: &Value) -> Result<ObjectMeta, FieldError> {
    object::decode_metadata(object).map_err(of_wrong_type)
}

fn of_wrong_type(error: json::Error) -> FieldError {
    FieldError { path: Path::default(), cause: crate::validation::field::Cause::TypeInvalid, detail: error.to_string() }
}

/// The metadata of every object that may change without a word to most kinds' rules.
const LABELS_AND_THE_LIKE: &[&str] =
    &["labels", "finalizers", "ownerReferences", "managedFields", "generation", "resourceVersion"];

/// Whether two objects are the same but for fields of these names.
fn same_but_for(new: &Value, old: &Value, names: &[&str]) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new == old };
    let others = |map: &'_ Map| map.keys().filter(|name| !names.contains(&name.as_str())).count();
    let mut wanted = new.iter().filter(|(name, _)| !names.contains(&name.as_str()));
    others(new) == others(old) && wanted.all(|(name, value)| old.get(name.as_str()) == Some(value))
}

/// The typed forms of two objects. A part outside of the metadata is decoded once where it is the same.
fn decode_both<T: BuiltIn>(new: &Value, old: &Value, same: bool) -> Result<(T, T), FieldError> {
    let typed: T = decode(new)?;
    if !same {
        return Ok((typed, decode(old)?));
    }
    let mut before = typed.clone();
    *before.metadata_mut() = decode_metadata(old)?;
    Ok((typed, before))
}

fn validate_metadata(new: &Value, old: &Value, names: Finalizers) -> Errors {
    match (decode_metadata(new), decode_metadata(old)) {
        (Ok(new), Ok(old)) => object_meta::validate_update(&new, &old, names),
        (Err(error), _) | (_, Err(error)) => vec![error],
    }
}

/// Checks a write of the status. Decodes no more than it needs: kubelets write status all the time.
fn validate_status(check: Option<fn(&Value, &Value) -> Errors>, new: &Value, old: &Value, names: Finalizers) -> Errors {
    let mut errors = validate_metadata(new, old, names);
    errors.extend(check.map(|check| check(new, old)).unwrap_or_default());
    errors
}

impl<T: BuiltIn> Typed<T>
where
    T::Scope: Scoped,
{
    fn finalizers() -> Finalizers {
        Finalizers::of_group(T::GROUP)
    }

    /// The outcome of a check that found these errors: without any, the warnings count.
    fn checked(&self, errors: Errors, new: &T, old: Option<&T>) -> Result<Vec<String>, Errors> {
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(self.kind.warnings.map(|warnings| warnings(new, old)).unwrap_or_default())
    }

    /// Checks a change of the object; `same` says that nothing outside of its metadata is different.
    fn check_whole(&self, new: &Value, old: &Value, target: Target, same: bool) -> Result<Vec<String>, Errors> {
        let texts = gated::check_texts(self.kind.gated_texts, self.features, new, Some(old));
        let (new, old): (T, T) = decode_both(new, old, same).map_err(|error| vec![error])?;
        let mut errors = object_meta::validate_update(new.metadata(), old.metadata(), Self::finalizers());
        errors.extend(self.kind.validate.map(|check| check(&new)).unwrap_or_default());
        let refused = self.kind.refuse_update.map(|check| check(&new, &old, target, self.features));
        match refused.filter(|refused| !refused.is_empty()) {
            Some(refused) => errors.extend(refused),
            None => errors.extend(self.kind.validate_update.map(|check| check(&new, &old, target)).unwrap_or_default()),
        }
        errors.extend(texts);
        self.checked(errors, &new, Some(&old))
    }

    fn generation_counts(&self, new: &Value, old: &Value) -> bool {
        match self.kind.generation {
            Generation::None => false,
            Generation::CountsChangesOf(field) | Generation::CountsLaterChangesOf(field) => {
                new.get(field) != old.get(field)
            }
            Generation::Counts(changed) => changed(new, old),
        }
    }
}

/// Keeps the metadata that a new object may leave out or says in vain: what a client exported long ago, or took from
/// another object, replaces this one all the same. A difference that is left is refused by validation.
pub(crate) fn keep_server_metadata(new: &mut Value, old: &Value) {
    let old = old.get("metadata").and_then(Value::as_object);
    let Some(metadata) = meta::metadata_mut(new) else { return };
    for field in ["creationTimestamp", "deletionTimestamp", "uid", "deletionGracePeriodSeconds"] {
        let ignored = matches!(field, "creationTimestamp" | "deletionTimestamp");
        let absent = metadata.get(field).is_none_or(|v| v.is_null() || v.as_str() == Some(""));
        if let (true, Some(value)) = (ignored || absent, old.and_then(|o| o.get(field))) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    metadata.remove("selfLink");
    put(metadata, "generation", old.and_then(|o| o.get("generation")));
}

/// Sets or removes one field.
pub(crate) fn put(map: &mut Map, field: &str, value: Option<&Value>) {
    match value {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

/// Takes everything from the old object but `status` and the metadata a status writer may change.
pub(crate) fn only_status(new: &mut Value, old: &Value) {
    let Some(map) = new.as_object_mut() else { return };
    let status = map.remove("status");
    let metadata = map.remove("metadata");
    map.clear();
    for (field, value) in old.as_object().into_iter().flatten().filter(|(f, _)| *f != "status" && *f != "metadata") {
        map.insert(field.clone(), value.clone());
    }
    if let Some(metadata) = metadata {
        map.insert("metadata", metadata);
    }
    if let Some(status) = status {
        map.insert("status", status);
    }
}

/// Takes the metadata from the old object that a write of the status may not change.
pub(crate) fn keep_metadata(new: &mut Value, old: &Value, may: StatusMetadata) {
    let kept: &[&str] = match may {
        StatusMetadata::Changes => &[],
        StatusMetadata::KeepsLabels => &["labels"],
        StatusMetadata::Stays => &["labels", "annotations", "finalizers", "ownerReferences"],
    };
    if let Some(metadata) = meta::metadata_mut(new) {
        kept.iter().for_each(|field| put(metadata, field, old.get("metadata").and_then(|m| m.get(*field))));
    }
}

/// The type leaves out times that nobody has set, which are written as null. Of the kinds that get defaults in their type, they are
/// in statuses alone.
fn complete_status<T: BuiltIn>(object: &mut Value) {
    let status = object.get_mut("status").filter(|status| status.as_object().is_some_and(|fields| !fields.is_empty()));
    if let Some(status) = status
        && let Some(field) = schema::of_kind(T::GROUP, T::VERSION, T::KIND).field("status")
    {
        complete(&field.ty, status);
    }
}

impl<T: BuiltIn> Strategy for Typed<T>
where
    T::Scope: Scoped,
{
    fn default(&self, object: &mut Value) {
        if let Some(fit) = self.kind.fit {
            fit(object);
        }
        if let Some(default) = self.kind.default {
            // A part that the typed form leaves out goes around it.
            let managers = entries::take(object);
            if let Ok(mut typed) = object::decode::<T>(object) {
                default(&mut typed);
                if let Ok(value) = json::to_value(typed) {
                    *object = value;
                    complete_status::<T>(object);
                }
            }
            entries::put(object, managers.unwrap_or_default());
        }
        if let Some(default) = self.kind.default_in_place {
            default(object);
        }
    }

    fn default_changed(&self, object: &mut Value, old: &Value) {
        if !self.kind.default_within_spec || object.get("spec") != old.get("spec") {
            self.default(object);
        } else if let Some(fit) = self.kind.fit {
            fit(object);
        }
    }

    fn check(&self, object: &Value) -> Result<Checked, Errors> {
        let typed: T = decode(object).map_err(|error| vec![error])?;
        let mut errors = object_meta::validate(typed.metadata(), T::Scope::SCOPE, self.kind.name, Self::finalizers());
        for check in [self.kind.validate, self.kind.validate_create].into_iter().flatten() {
            errors.extend(check(&typed));
        }
        errors.extend(gated::check_texts(self.kind.gated_texts, self.features, object, None));
        let warnings = self.checked(errors, &typed, None)?;
        Ok(Checked { warnings, typed: Some(Arc::new(typed)) })
    }

    fn check_update(&self, new: &Value, old: &Value, target: Target) -> Result<Vec<String>, Errors> {
        // A status write carries the stored spec, which was checked, and warned about, when it was written.
        if target == Target::Status {
            let errors = validate_status(self.kind.validate_status, new, old, Self::finalizers());
            return if errors.is_empty() { Ok(Vec::new()) } else { Err(errors) };
        }
        let same = same_but_for(new, old, &["metadata"]);
        let relabelled = same && same_but_for(&new["metadata"], &old["metadata"], LABELS_AND_THE_LIKE);
        if relabelled && self.kind.indifferent_to_labels {
            let errors = validate_metadata(new, old, Self::finalizers());
            let outcome = if errors.is_empty() { Ok(Vec::new()) } else { Err(errors) };
            let whole = |new: &Value| self.check_whole(new, old, target, true);
            debug_assert!(
                whole(old).is_err() || whole(new) == outcome,
                "{} asks about labels",
                std::any::type_name::<T>()
            );
            return outcome;
        }
        self.check_whole(new, old, target, same)
    }

    fn unreadable(&self, object: &Value) -> Option<String> {
        self.kind.unreadable.and_then(|unreadable| unreadable(object))
    }

    fn prepare_create(&self, object: &mut Value) -> Vec<String> {
        if !matches!(self.kind.generation, Generation::None | Generation::CountsLaterChangesOf(_))
            && let Some(metadata) = meta::metadata_mut(object)
        {
            metadata.insert("generation", Value::from(1));
        }
        if let Some(map) = object.as_object_mut().filter(|_| self.kind.status && !self.kind.status_on_create) {
            map.insert("status", self.empty_status.get_or_init(empty_status::<T>).clone());
        }
        gated::drop_disabled(self.kind.gated, self.features, object, None);
        if let Some(prepare) = self.kind.prepare_create {
            prepare(object);
        }
        self.kind.prepare_create_warning.map(|prepare| prepare(object)).unwrap_or_default()
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, target: Target) {
        keep_server_metadata(new, old);
        match target {
            Target::Status => {
                only_status(new, old);
                keep_metadata(new, old, self.kind.status_metadata);
            }
            Target::Object if self.kind.status => {
                if let Some(map) = new.as_object_mut() {
                    put(map, "status", old.get("status"));
                }
            }
            _ => {}
        }
        gated::drop_disabled(self.kind.gated, self.features, new, Some(old));
        if let Some(prepare) = self.kind.prepare_update {
            prepare(new, old, target);
        }
        if target != Target::Status && self.generation_counts(new, old) {
            let next = meta::generation(old) + 1;
            if let Some(metadata) = meta::metadata_mut(new) {
                metadata.insert("generation", Value::from(next));
            }
        }
    }

    fn resets(&self, target: Target) -> Resets {
        if let Some((_, own)) = self.kind.resets.iter().find(|(of, _)| *of == target) {
            return *own;
        }
        match (target, self.kind.status_metadata) {
            (Target::Object, _) if self.kind.status => Resets::STATUS,
            (Target::Status, StatusMetadata::Changes) => Resets::SPEC,
            (Target::Status, StatusMetadata::KeepsLabels) => Resets::These(&[&["spec"], &["metadata", "labels"]]),
            (Target::Status, StatusMetadata::Stays) => Resets::SPEC_AND_METADATA,
            _ => Resets::NONE,
        }
    }

    fn row(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let Ok(typed) = object::decode::<T>(object) else { return vec![Value::Null; self.kind.columns.len()] };
        self.kind.columns.iter().map(|c| (c.cell)(&typed, now)).collect()
    }

    fn grace_seconds(&self, object: &Value, requested: Option<i64>) -> Option<i64> {
        self.kind.grace_seconds.and_then(|grace| grace(object, requested))
    }

    fn prepare_delete(&self, object: &mut Value) -> bool {
        if let Some(prepare) = self.kind.prepare_delete {
            prepare(object);
        }
        self.kind.prepare_delete.is_some()
    }

    fn to_storage(&self, object: &mut Value) {
        if let Some(convert) = self.kind.to_storage {
            convert(object);
        }
    }

    fn from_storage(&self, object: &mut Value) {
        if let Some(convert) = self.kind.from_storage {
            convert(object);
        }
    }
}
