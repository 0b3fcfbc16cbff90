//! The form in which an object is stored and served: compact JSON that begins with kind, apiVersion and metadata, without
//! its resourceVersion. That is the store's revision and is spliced in behind `"metadata":{` when the bytes are served.

use std::io::Write as _;

use api::{Value, kind::Definition};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use store::{Entry, Revision};

const METADATA: &[u8] = b"\"metadata\":{";
/// Kind and apiVersion are short: metadata begins within this many bytes.
const HEAD: usize = 400;

/// The stored form of an object of this kind.
pub fn encode(definition: &Definition, object: &Value) -> Bytes {
    let (group, version) = &definition.storage;
    // Without the spare capacity: an entry may stay in memory for as long as the process.
    encode_as(&definition.kind, group, version, object, None).into_boxed_slice().into()
}

/// JSON with kind, apiVersion and metadata first; `revision` becomes its resourceVersion.
pub fn encode_as(kind: &str, group: &str, version: &str, object: &Value, revision: Option<Revision>) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048);
    let slash = if group.is_empty() { "" } else { "/" };
    let _ = write!(out, "{{\"kind\":\"{kind}\",\"apiVersion\":\"{group}{slash}{version}\",\"metadata\":{{");
    let mut first = true;
    if let Some(revision) = revision {
        let _ = write!(out, "\"resourceVersion\":\"{revision}\"");
        first = false;
    }
    let fields = object.as_object();
    let metadata = fields.and_then(|o| o.get("metadata")).and_then(Value::as_object);
    for (key, value) in metadata.into_iter().flatten().filter(|(k, _)| *k != "resourceVersion") {
        field(&mut out, key, value, first);
        first = false;
    }
    out.push(b'}');
    for (key, value) in fields.into_iter().flatten() {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            field(&mut out, key, value, false);
        }
    }
    out.push(b'}');
    out
}

fn field(out: &mut Vec<u8>, key: &str, value: &Value, first: bool) {
    if !first {
        out.push(b',');
    }
    // Writing a value without custom serializers into memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(&mut *out, value);
}

/// Where metadata's fields begin, when the bytes have the form that [`encode`] gives.
fn splice_at(bytes: &[u8]) -> Option<usize> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let at = memchr::memmem::find(head, METADATA)?;
    // Only kind and apiVersion may stand before it: nothing nested.
    (!head[1..at].contains(&b'{')).then_some(at + METADATA.len())
}

/// The apiVersion of stored bytes; `None` where they have not the form that [`encode`] gives.
pub fn api_version(bytes: &[u8]) -> Option<&str> {
    const FIELD: &[u8] = b"\"apiVersion\":\"";
    let head = &bytes[..splice_at(bytes)?];
    let rest = &head[memchr::memmem::find(head, FIELD)? + FIELD.len()..];
    std::str::from_utf8(&rest[..memchr::memchr(b'"', rest)?]).ok()
}

/// Appends the object as it is served, with its resourceVersion; without kind and apiVersion when it is an item of a
/// list.
pub fn write(out: &mut Vec<u8>, bytes: &[u8], revision: Revision, item: bool) {
    let at = write_head(out, bytes, revision, item);
    out.extend_from_slice(&bytes[at..]);
}

/// Appends what differs from the stored bytes; the stored bytes from the place returned on are the rest.
pub fn write_head(out: &mut Vec<u8>, bytes: &[u8], revision: Revision, item: bool) -> usize {
    let Some(at) = splice_at(bytes) else {
        let object = value(bytes, revision);
        let _ = serde_json::to_writer(out, &object);
        return bytes.len();
    };
    if item {
        out.push(b'{');
        out.extend_from_slice(METADATA);
    } else {
        out.extend_from_slice(&bytes[..at]);
    }
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.extend_from_slice(if bytes[at] == b'}' { b"\"" } else { b"\"," });
    at
}

/// The object as it is served.
pub fn served(bytes: &[u8], revision: Revision) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 48);
    write(&mut out, bytes, revision, false);
    out
}

/// The object as a value, with its resourceVersion.
pub fn value(bytes: &[u8], revision: Revision) -> Value {
    let mut object: Value = serde_json::from_slice(bytes).unwrap_or_default();
    set_revision(&mut object, revision);
    object
}

pub fn set_revision(object: &mut Value, revision: Revision) {
    if let Some(metadata) = api::meta::metadata_mut(object) {
        metadata.insert("resourceVersion", Value::from(revision.to_string()));
    }
}

/// A stored entry as a value in the version of `definition`.
pub fn of_entry(definition: &Definition, entry: &Entry) -> Value {
    let mut object = value(&entry.value, entry.modified);
    convert(definition, &mut object, entry.modified);
    object
}

/// The same without `metadata.managedFields`, for what is looked at and never written back.
pub fn without_managers(definition: &Definition, entry: &Entry) -> Value {
    let mut object: Value = api::object::without_managers(&entry.value).unwrap_or_default();
    set_revision(&mut object, entry.modified);
    convert(definition, &mut object, entry.modified);
    object
}

/// Turns an object that was stored at a revision into the version of `definition`.
pub fn convert(definition: &Definition, object: &mut Value, written: Revision) {
    if !definition.reads_through(written) {
        return;
    }
    definition.strategy.from_storage(object);
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion", Value::from(definition.api_version()));
        map.insert("kind", Value::from(definition.kind.clone()));
    }
}

/// An object of one version as another version of the same objects shows it.
pub fn between(from: &Definition, to: &Definition, object: &Value) -> Value {
    let mut object = object.clone();
    if from.group == to.group && from.version == to.version {
        return object;
    }
    from.strategy.to_storage(&mut object);
    to.strategy.from_storage(&mut object);
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion", Value::from(to.api_version()));
        map.insert("kind", Value::from(to.kind.clone()));
    }
    object
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

/// The text of the object's metadata, with its resourceVersion.
pub fn metadata(bytes: &[u8], revision: Revision) -> Vec<u8> {
    let Ok(head) = serde_json::from_slice::<Head<'_>>(bytes) else { return b"{}".to_vec() };
    let text = head.metadata.get().as_bytes();
    let mut out = Vec::with_capacity(text.len() + 48);
    let _ = write!(out, "{{\"resourceVersion\":\"{revision}\"");
    let rest = text.get(1..).unwrap_or(b"}").trim_ascii_start();
    if !rest.starts_with(b"}") {
        out.push(b',');
    }
    out.extend_from_slice(rest);
    out
}

/// The storage key of an object; with an empty name the prefix of all objects (of the namespace).
pub fn key(definition: &Definition, namespace: &str, name: &str) -> String {
    let prefix = &definition.storage_prefix;
    let mut key = String::with_capacity(prefix.len() + namespace.len() + name.len() + 14);
    key.push_str("/registry/");
    key.push_str(prefix);
    key.push('/');
    if definition.namespaced() && !namespace.is_empty() {
        key.push_str(namespace);
        key.push('/');
    }
    key.push_str(name);
    key
}

/// Namespace and name in a key behind its storage prefix.
pub fn names<'k>(definition: &Definition, key: &'k str) -> (&'k str, &'k str) {
    let start = "/registry/".len() + definition.storage_prefix.len() + 1;
    let rest = key.get(start..).unwrap_or("");
    if definition.namespaced() { rest.split_once('/').unwrap_or(("", rest)) } else { ("", rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_canonical_bytes_is_read_at_once() {
        let check = |stored: &str, expected: Option<&str>| assert_eq!(api_version(stored.as_bytes()), expected);
        check(r#"{"kind":"A","apiVersion":"a.io/v1","metadata":{"name":"a"}}"#, Some("a.io/v1"));
        check(r#"{"kind":"A","metadata":{"name":"a"},"apiVersion":"a.io/v1"}"#, None);
        check(r#"{"spec":{"apiVersion":"x"},"apiVersion":"a.io/v1","metadata":{"name":"a"}}"#, None);
    }

    #[test]
    fn the_revision_is_spliced_into_canonical_and_foreign_bytes() {
        let check = |stored: &str, expected: &str| {
            assert_eq!(String::from_utf8(served(stored.as_bytes(), 7)).unwrap(), expected);
        };
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{}}"#,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"a"},"spec":{}}"#,
        );
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7"}}"#,
        );
        check(
            r#"{"apiVersion":"v1","data":{"metadata":{}},"metadata":{"name":"a"}}"#,
            r#"{"apiVersion":"v1","data":{"metadata":{}},"metadata":{"name":"a","resourceVersion":"7"}}"#,
        );
    }
}
