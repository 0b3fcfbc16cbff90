//! One entry of `metadata.managedFields`, who writes it, and how it goes into objects and out of them.

use jiff::Timestamp;
use json::{Map, Value};

use crate::{
    meta,
    write::{
        field_set::{self, Set},
        resets::Resets,
        structured_merge::Difference,
        versions::Versions,
    },
};

/// Fields of the server's own, never owned.
const SERVER_METADATA: [&str; 9] = [
    "f:clusterName",
    "f:creationTimestamp",
    "f:generation",
    "f:managedFields",
    "f:name",
    "f:namespace",
    "f:resourceVersion",
    "f:selfLink",
    "f:uid",
];

/// The writer of a change, and the operation through which it writes.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// `fieldManager` of the request, or what [`default_manager`] makes of the user agent.
    pub manager: &'a str,
    /// Of the object in the request.
    pub api_version: &'a str,
    /// `status`, `scale`, …; empty for the object itself.
    pub subresource: &'a str,
    pub now: Timestamp,
    /// The fields that the kind's strategy sets back.
    pub resets: Resets,
    /// Where a webhook converts the kind's versions.
    pub versions: Option<&'a Versions>,
}

pub fn is_valid(entry: &Value) -> bool {
    let text = |name| entry.get(name).and_then(Value::as_str).unwrap_or("");
    matches!(text("operation"), "Apply" | "Update")
        && text("fieldsType") == "FieldsV1"
        && !text("apiVersion").is_empty()
        && fields(entry).is_some()
}

pub(crate) fn new_entry(operation: &str, fields: Set, by: &Writer<'_>) -> Value {
    let manager = if by.manager.is_empty() { "unknown" } else { by.manager };
    // Member by member: `json!` would write the tree of fields once more.
    let mut entry = Map::new();
    entry.insert("apiVersion", by.api_version.into());
    entry.insert("fieldsType", "FieldsV1".into());
    entry.insert("fieldsV1", Value::Object(fields));
    entry.insert("manager", manager.into());
    entry.insert("operation", operation.into());
    if !by.subresource.is_empty() {
        entry.insert("subresource", by.subresource.into());
    }
    let mut entry = Value::Object(entry);
    stamp(&mut entry, by);
    entry
}

/// Keeps the time of the change. Upstream loses it on the way from a Scale to the object behind it.
pub(crate) fn stamp(entry: &mut Value, by: &Writer<'_>) {
    if by.subresource != "scale" {
        entry["time"] = time(by.now);
    }
}

/// The parts of an entry that tell its owner from others. An applier is one owner in whatever version it applies.
fn owner([operation, manager, subresource, version]: [&str; 4]) -> [&str; 4] {
    [operation, manager, subresource, if operation == "Apply" { "" } else { version }]
}

pub(crate) fn owner_of(entry: &Value) -> [&str; 4] {
    let text = |name| entry.get(name).and_then(Value::as_str).unwrap_or("");
    owner(["operation", "manager", "subresource", "apiVersion"].map(text))
}

/// Whether an entry is the writer's own for an operation.
pub(crate) fn is_of(entry: &Value, operation: &str, by: &Writer<'_>) -> bool {
    let manager = if by.manager.is_empty() { "unknown" } else { by.manager };
    owner_of(entry) == owner([operation, manager, by.subresource, by.api_version])
}

/// Whether two entries are of one owner.
pub(crate) fn is_same(a: &Value, b: &Value) -> bool {
    owner_of(a) == owner_of(b)
}

fn time(now: Timestamp) -> Value {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

pub(crate) fn version(entry: &Value) -> &str {
    entry.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn fields(entry: &Value) -> Option<&Set> {
    entry.get("fieldsV1").and_then(Value::as_object)
}

pub(crate) fn fields_mut(entry: &mut Value) -> Option<&mut Set> {
    entry.get_mut("fieldsV1").and_then(Value::as_object_mut)
}

/// The entries an object carries.
pub(crate) fn entries(object: &Value) -> Vec<Value> {
    let list = object.get("metadata").and_then(|m| m.get("managedFields")).and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

/// Takes the entries out of an object.
pub(crate) fn take(object: &mut Value) -> Option<Vec<Value>> {
    match object.get_mut("metadata")?.as_object_mut()?.remove("managedFields") {
        Some(Value::Array(list)) => Some(list),
        _ => None,
    }
}

/// Puts entries into an object; an empty list is not written.
pub(crate) fn put(object: &mut Value, entries: Vec<Value>) {
    if entries.is_empty() {
        return;
    }
    if let Some(metadata) = meta::metadata_mut(object) {
        metadata.insert("managedFields", Value::Array(entries));
    }
}

/// Takes the server's own fields out of a set.
pub(crate) fn strip(set: &mut Set) {
    set.remove("f:apiVersion");
    set.remove("f:kind");
    let Some(Value::Object(metadata)) = set.get_mut("f:metadata") else { return };
    metadata.remove(".");
    for name in SERVER_METADATA {
        metadata.remove(name);
    }
    if metadata.is_empty() {
        set.remove("f:metadata");
    }
}

/// Takes what a write changed from a manager; false when nothing is left that it owns.
pub(crate) fn give_up(entry: &mut Value, change: &Difference) -> bool {
    let Some(fields) = fields_mut(entry) else { return false };
    field_set::subtract(fields, &change.changed);
    field_set::subtract(fields, &change.removed);
    !fields.is_empty()
}
