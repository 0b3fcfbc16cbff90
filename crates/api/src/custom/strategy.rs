//! The strategy that all custom kinds share.
//! Upstream counterpart: apiextensions-apiserver/pkg/registry/customresource.

use std::sync::Arc;

use jiff::Timestamp;
use json::{Key, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::json_path::JsonPath;
use super::version::{Compiled, Version};
use super::{
    defaults::{default, drop_nulls, prune},
    embedded,
    list_types::check as check_lists,
    values::check as check_value,
};
use crate::codec::go;
use crate::kind::define::{keep_metadata, keep_server_metadata, only_status, put};
use crate::kind::{Checked, Scale, Scope, StatusMetadata, Strategy, Target, cell};
use crate::meta;
use crate::validation::field::{Cause, Errors, FieldError, Path};
use crate::validation::names::{NameRule, qualified_name};
use crate::validation::object_meta::{self, Finalizers};
use crate::write::resets::Resets;

/// The rules of one version.
pub struct Custom {
    pub version: Arc<Version>,
    /// All versions of the kind: an object may be stored in any.
    pub versions: Arc<[Arc<Version>]>,
    /// The version that objects are stored as.
    pub storage: Arc<Version>,
    pub scope: Scope,
    pub status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
}

/// A column behind that of the name.
pub struct Column {
    pub kind: String,
    /// Nothing is shown where it is no path.
    pub path: Option<JsonPath>,
}

fn metadata(object: &Value) -> Result<ObjectMeta, Errors> {
    let metadata = object.get("metadata").map_or_else(|| Ok(ObjectMeta::default()), ObjectMeta::deserialize);
    metadata.map_err(|why| vec![FieldError::invalid_unshown(&Path::new("metadata"), &why.to_string())])
}

/// Brings what is stored into the shape that the schema of its version describes, whoever stored it.
pub fn shaped(object: &mut Value, compiled: &Compiled) {
    fitted(object, compiled);
    embedded::repair(object, &compiled.schema);
    default(object, &compiled.schema);
}

/// Takes out what a schema does not know.
fn fitted(object: &mut Value, compiled: &Compiled) {
    prune(object, &compiled.schema, true);
    drop_nulls(object, &compiled.schema);
}

impl Custom {
    /// `errors` with those that the schema finds in an object, or in the part of it that a change is about.
    fn by_schema(&self, mut errors: Errors, new: &Value, old: Option<&Value>, target: Target) -> Errors {
        let Compiled { schema, rules } = self.version.compiled();
        errors.extend(match (target, schema.properties.get("status")) {
            (Target::Status, None) => Errors::new(),
            (Target::Status, Some(of)) => new.get("status").map_or_else(Errors::new, |status| {
                check_value(status, old.and_then(|old| old.get("status")), of, "status")
            }),
            _ => check_value(new, old, schema, ""),
        });
        errors.extend(self.replicas(new, target));
        errors.extend(embedded::check(new, schema, false, &Path::default()));
        if old.is_none_or(|old| check_lists(old, schema, &Path::default()).is_empty()) {
            errors.extend(check_lists(new, schema, &Path::default()));
        }
        let Some(rules) = rules else { return errors };
        let blocking = |error: &FieldError| {
            matches!(
                error.cause,
                Cause::NotSupported | Cause::Required | Cause::TooLong | Cause::TooMany | Cause::TypeInvalid
            )
        };
        if errors.iter().any(blocking) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                          complete validation";
            errors.push(FieldError::invalid(&Path::new("<nil>"), Value::Null, detail));
        } else {
            errors.extend(rules.check(schema, new, old, None));
        }
        errors
    }

    /// The errors of the numbers and the selector that the scale subresource shows.
    fn replicas(&self, object: &Value, target: Target) -> Errors {
        let Some(Scale { wanted, current, selector }) = &self.scale else { return Errors::new() };
        let mut errors = Errors::new();
        for path in [(target != Target::Status).then_some(wanted), Some(current)].into_iter().flatten() {
            let place = Path::new(&format!(".{path}"));
            match find(object, path) {
                Err((path, value)) => {
                    let place = Path::new(&format!(".{path}"));
                    errors.push(accessor(&place, path, value, Value::from(0), "map[string]interface{}"));
                }
                Ok(None) => {}
                Ok(Some(value)) => match value.as_i64() {
                    None => errors.push(accessor(&place, path, value, Value::from(0), "int64")),
                    Some(n) if n < 0 => {
                        errors.push(FieldError::invalid(&place, n, "should be a non-negative integer"));
                    }
                    Some(n) if n > i64::from(i32::MAX) => {
                        let detail = format!("should be less than or equal to {}", i32::MAX);
                        errors.push(FieldError::invalid(&place, n, &detail));
                    }
                    Some(_) => {}
                },
            }
        }
        if let Some(path) = selector
            && let Ok(Some(value)) = find(object, path)
            && !value.is_string()
        {
            errors.push(accessor(&Path::new(&format!(".{path}")), path, value, Value::from(""), "string"));
        }
        errors
    }
}

/// The value at a path. What is no object on the way there is an error, with the path up to the field that it cannot have.
fn find<'a>(object: &'a Value, path: &'a str) -> Result<Option<&'a Value>, (&'a str, &'a Value)> {
    let (mut value, mut end) = (object, 0);
    for name in path.split('.') {
        end += name.len() + usize::from(end > 0);
        value = match value {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(name) {
                None => return Ok(None),
                Some(value) => value,
            },
            other => return Err((&path[..end], other)),
        };
    }
    Ok(Some(value))
}

/// The complaint about a field that has another type than the scale subresource needs.
fn accessor(place: &Path, path: &str, value: &Value, zero: Value, wanted: &str) -> FieldError {
    let found = go::type_name(value);
    let shown = go::plain(value);
    let detail = format!(".{path} accessor error: {shown} is of the type {found}, expected {wanted}");
    FieldError::invalid(place, zero, &detail)
}

/// Warnings about finalizers that are new and have odd names.
fn about_finalizers(new: &Value, old: Option<&Value>) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let known: Vec<&str> = old.into_iter().flat_map(meta::finalizers).collect();
    let mut names: Vec<&str> = meta::finalizers(new).filter(|name| !known.contains(name)).collect();
    names.sort_unstable();
    names.dedup();
    let mut warnings = Vec::new();
    for name in names {
        warnings.extend(qualified_name(name).into_iter().map(|why| format!("metadata.finalizers: {name:?}: {why}")));
        if !name.contains('/') && !STANDARD.contains(&name) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            let why = "to avoid accidental conflicts with other finalizer writers";
            warnings
                .push(format!("metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} {why}"));
        }
    }
    warnings
}

impl Strategy for Custom {
    fn default(&self, object: &mut Value) {
        default(object, &self.version.compiled().schema);
    }

    fn drop_nulls(&self, object: &mut Value) {
        drop_nulls(object, &self.version.compiled().schema);
    }

    fn check(&self, object: &Value) -> Result<Checked, Errors> {
        let errors = object_meta::validate(&metadata(object)?, self.scope, NameRule::Subdomain, Finalizers::Any);
        let errors = self.by_schema(errors, object, None, Target::Object);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Checked { warnings: about_finalizers(object, None), typed: None })
    }

    fn check_update(&self, new: &Value, old: &Value, target: Target) -> Result<Vec<String>, Errors> {
        let errors = object_meta::validate_update(&metadata(new)?, &metadata(old)?, Finalizers::Any);
        let errors = self.by_schema(errors, new, Some(old), target);
        if errors.is_empty() { Ok(about_finalizers(new, Some(old))) } else { Err(errors) }
    }

    fn prepare_create(&self, object: &mut Value) -> Vec<String> {
        if let Some(metadata) = meta::metadata_mut(object) {
            metadata.insert("generation", Value::from(1));
        }
        if let Some(map) = object.as_object_mut().filter(|_| self.status) {
            map.remove("status");
        }
        Vec::new()
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, target: Target) {
        keep_server_metadata(new, old);
        match target {
            Target::Status => {
                only_status(new, old);
                keep_metadata(new, old, StatusMetadata::Stays);
            }
            _ if self.status && target == Target::Object => {
                if let Some(map) = new.as_object_mut() {
                    put(map, "status", old.get("status"));
                }
            }
            _ => {}
        }
        let part = |object: &'_ Value| -> Vec<(Key, Value)> {
            let fields = object.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata");
            fields.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        if target != Target::Status && part(new) != part(old) {
            let next = meta::generation(old) + 1;
            if let Some(metadata) = meta::metadata_mut(new) {
                metadata.insert("generation", Value::from(next));
            }
        }
    }

    fn resets(&self, target: Target) -> Resets {
        match target {
            Target::Object if self.status => Resets::STATUS,
            // The metadata stays too, but upstream lets whoever states some with a status own it.
            Target::Status => Resets::SPEC,
            _ => Resets::NONE,
        }
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let shown = |column: &Column| -> Value {
            let found = column.path.as_ref().and_then(|path| path.first(object)).filter(|value| !value.is_null());
            found.map_or(Value::Null, |value| shown(&column.kind, value, now))
        };
        std::iter::once(Value::from(meta::name(object))).chain(self.columns.iter().map(shown)).collect()
    }

    fn grace_seconds(&self, _object: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    fn to_storage(&self, object: &mut Value) {
        prune(object, &self.storage.compiled().schema, true);
    }

    fn from_storage(&self, object: &mut Value) {
        let named = object["apiVersion"].as_str().and_then(|text| text.rsplit('/').next()).unwrap_or_default();
        let stored = self.versions.iter().find(|version| version.name() == named).unwrap_or(&self.version);
        shaped(object, stored.compiled());
        // Another version shows no defaults of its own.
        if stored.name() != self.version.name() {
            fitted(object, self.version.compiled());
        }
    }
}

/// The cell of a value in a column of this type; nothing for a value that does not fit.
fn shown(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", Value::String(text)) => text.as_str().into(),
        ("string", other) => other.to_string().into(),
        #[expect(clippy::cast_possible_truncation)]
        ("integer", Value::Number(n)) => n.as_i64().or_else(|| n.as_f64().map(|n| n as i64)).into(),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) if text.is_empty() => cell::since(None, now).into(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(then) => cell::since(Some(then), now).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn dates_are_shown_as_ages() {
        let now: Timestamp = "2024-01-01T00:00:30Z".parse().expect("a time");
        let check = |value: Value, expected: Value| assert_eq!(shown("date", &value, now), expected, "{value}");
        check(json!("2024-01-01T00:00:00Z"), json!("30s"));
        check(json!(""), json!("<unknown>"));
        check(json!("soon"), json!("<invalid>"));
        check(json!(1), Value::Null);
    }
}
