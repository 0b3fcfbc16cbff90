//! Reading and writing `metadata` of an object of any kind, as plain JSON.

use json::{Map, Value};

/// The parts of a kind's `apiVersion`.
pub fn group_and_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or("")
}

pub fn name(object: &Value) -> &str {
    text(object, "name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

pub fn generation(object: &Value) -> i64 {
    object.get("metadata").and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0)
}

pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    object.get("metadata").and_then(|m| m.get("deletionTimestamp")).and_then(Value::as_str)
}

pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let list = object.get("metadata").and_then(|m| m.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

pub fn labels(object: &Value) -> Option<&Map> {
    object.get("metadata").and_then(|m| m.get("labels")).and_then(Value::as_object)
}

pub fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    let annotations = object.get("metadata").and_then(|m| m.get("annotations"));
    annotations.and_then(|a| a.get(name)).and_then(Value::as_str)
}

/// The value at a place in an object: names, each behind a slash (`/spec/nodeName`). Nothing is unescaped and nothing is
/// allocated, unlike with a JSON pointer: the paths are the program's own.
pub fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let (mut value, mut rest) = (object, path);
    while let Some(behind) = rest.strip_prefix('/') {
        let end = behind.bytes().position(|byte| byte == b'/').unwrap_or(behind.len());
        value = value.get(&behind[..end])?;
        rest = &behind[end..];
    }
    Some(value)
}

/// The text, number or flag at a place in an object; empty when there is none.
pub fn field_text(object: &Value, path: &[impl AsRef<str>]) -> String {
    match path.iter().try_fold(object, |value, field| value.get(field.as_ref())) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
        _ => String::new(),
    }
}

/// The text, number or flag at a place in an object, or a word for nothing.
pub fn field_text_or(object: &Value, path: &[&str], none: &str) -> String {
    let text = field_text(object, path);
    if text.is_empty() { none.to_owned() } else { text }
}

/// `metadata` as a map that can be written; made when absent. `None` when the object is not a JSON object.
pub fn metadata_mut(object: &mut Value) -> Option<&mut Map> {
    let metadata = object.as_object_mut()?.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut()
}
