//! Whole objects within custom ones (`x-kubernetes-embedded-resource`): their kind and metadata have the form that those
//! of every object have.
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/schema/objectmeta.

use json::{Key, Map, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::structural::Structural;
use crate::kind::Scope;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{NameRule, dns1035_label};
use crate::validation::object_meta::{self, Finalizers};

/// The errors of the objects within a value, and of the value if it is such an object as a `whole`.
pub fn check(value: &Value, schema: &Structural, whole: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    walk(value, schema, whole, path, &mut errors);
    errors
}

fn walk(value: &Value, schema: &Structural, whole: bool, path: &Path, errors: &mut Errors) {
    if let (true, Value::Object(map)) = (whole || schema.embedded, value) {
        object(map, path, errors);
    }
    schema.below(value, path, &mut |value, of, path| walk(value, of, false, path, errors));
}

/// Brings the metadata of an object that somebody stored unchecked, and of the objects within it, into the form that every
/// object's have: fields that are unknown or malformed are left out.
pub fn repair(object: &mut Value, schema: &Structural) {
    repair_within(object, schema);
    let Some(map) = object.as_object_mut() else { return };
    repair_metadata(map);
    // Very old objects have none.
    if let Some(Value::Object(metadata)) = map.get_mut("metadata")
        && metadata.get("generation").is_none_or(|generation| generation == &Value::from(0))
    {
        metadata.insert("generation", Value::from(1));
    }
}

fn repair_within(value: &mut Value, schema: &Structural) {
    match value {
        Value::Object(map) => {
            if schema.embedded {
                map.retain(|name, value| !matches!(name.as_str(), "apiVersion" | "kind") || value.is_string());
                repair_metadata(map);
            }
            for (name, value) in map {
                if let Some(of) = schema.field(name) {
                    repair_within(value, of);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| repair_within(item, items));
            }
        }
        _ => {}
    }
}

fn repair_metadata(map: &mut Map) {
    let Some(Value::Object(metadata)) = map.get_mut("metadata") else { return };
    let typed = |fields: &Value| ObjectMeta::deserialize(fields).ok().and_then(|typed| json::to_value(typed).ok());
    let whole = Value::Object(std::mem::take(metadata));
    let known = typed(&whole).unwrap_or_else(|| {
        let mut known = Map::new();
        for (name, value) in whole.as_object().into_iter().flatten() {
            let mut alone = Map::new();
            alone.insert(name.clone(), value.clone());
            if let (true, Value::Object(texts)) = (matches!(name.as_str(), "annotations" | "labels"), value) {
                let texts: Map = texts.iter().filter(|(_, text)| text.is_string()).map(owned).collect();
                alone.insert(name.clone(), Value::Object(texts));
            }
            let fields = typed(&Value::Object(alone));
            known.extend(fields.as_ref().and_then(Value::as_object).into_iter().flatten().map(owned));
        }
        Value::Object(known)
    });
    if let Value::Object(known) = known {
        *metadata = known;
    }
}

fn owned((name, value): (&Key, &Value)) -> (Key, Value) {
    (name.clone(), value.clone())
}

fn object(map: &Map, path: &Path, errors: &mut Errors) {
    for name in ["apiVersion", "kind"] {
        let place = path.child(name);
        match map.get(name) {
            None => errors.push(FieldError::required(&place, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(&place, text, "must not be empty"));
            }
            Some(Value::String(text)) if name == "kind" => {
                let wrong = dns1035_label(&text.to_lowercase());
                if !wrong.is_empty() {
                    let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.push(FieldError::invalid(&place, text, &detail));
                }
            }
            Some(Value::String(text)) if text.matches('/').count() > 1 => {
                let detail = format!("unexpected GroupVersion string: {text}");
                errors.push(FieldError::invalid(&place, text, &detail));
            }
            Some(Value::String(_)) => {}
            Some(other) => errors.push(FieldError::invalid(&place, other, "must be a string")),
        }
    }
    let Some(metadata) = map.get("metadata") else { return };
    let place = path.child("metadata");
    match ObjectMeta::deserialize(metadata) {
        Err(why) => errors.push(FieldError::invalid(&place, metadata, &why.to_string())),
        Ok(mut metadata) => {
            metadata.name.get_or_insert_with(|| "fakename".to_owned());
            let scope = if metadata.namespace.is_some() { Scope::Namespaced } else { Scope::Cluster };
            let found = object_meta::validate(&metadata, scope, NameRule::PathSegment, Finalizers::Any);
            // The general check speaks of the metadata of the request's own object.
            errors.extend(found.into_iter().map(|e| FieldError { path: path.child(&e.path.to_string()), ..e }));
        }
    }
}
