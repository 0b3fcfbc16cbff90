//! The form in which an object is stored and served: compact JSON that begins with kind, apiVersion and metadata, its fields in
//! the order in which upstream writes them, without its resourceVersion. That is the store's revision and is spliced in at its
//! place when the bytes are served.

use std::io::Write as _;

use api::{Value, codec::encode, kind::Definition, schema::Type};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use store::{Entry, Revision};

const METADATA: &[u8] = b"\"metadata\":{";
/// Kind and apiVersion are short: metadata begins within this many bytes.
const HEAD: usize = 400;
/// The fields of metadata that stand before the resourceVersion.
const IDENTITY: [&[u8]; 5] =
    [b"\"name\":\"", b"\"generateName\":\"", b"\"namespace\":\"", b"\"selfLink\":\"", b"\"uid\":\""];

/// The stored form of an object of this kind.
pub fn encode(definition: &Definition, object: &Value) -> Bytes {
    let (group, version) = &definition.storage;
    let stored = definition.is_converted().then(|| api::schema::of_kind(group, version, &definition.kind));
    let names = (&*definition.kind, &**group, &**version);
    // Without the spare capacity: an entry may stay in memory for as long as the process.
    text(names, order(definition, stored.as_ref()), object, &["resourceVersion"]).into_boxed_slice().into()
}

/// The stored form of an object of a built-in kind in its stored version.
pub fn encode_as(kind: &str, group: &str, version: &str, object: &Value) -> Vec<u8> {
    text((kind, group, version), &api::schema::of_kind(group, version, kind), object, &["resourceVersion"])
}

/// An object in the version of `definition` as it is stored.
pub fn encode_in_version(definition: &Definition, object: &Value) -> Vec<u8> {
    in_version(definition, object, &["resourceVersion"])
}

/// An object in the version of `definition` as it is served.
pub fn encode_served(definition: &Definition, object: &Value) -> Vec<u8> {
    in_version(definition, object, &[])
}

fn in_version(definition: &Definition, object: &Value, without: &[&str]) -> Vec<u8> {
    let names = (&*definition.kind, &*definition.group, &*definition.version);
    text(names, order(definition, None), object, without)
}

/// The type by which the fields of an object are put in order. Upstream knows the fields of a custom kind by their names only.
fn order<'d>(definition: &'d Definition, stored: Option<&'d Type>) -> &'d Type {
    if definition.is_custom() { &Type::Any } else { stored.unwrap_or(&definition.ty) }
}

/// JSON with kind and apiVersion and then metadata first, without some fields of the metadata.
fn text((kind, group, version): (&str, &str, &str), ty: &Type, object: &Value, without: &[&str]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048);
    let slash = if group.is_empty() { "" } else { "/" };
    let (kind, api_version) = (format!("\"kind\":\"{kind}\""), format!("\"apiVersion\":\"{group}{slash}{version}\""));
    let (first, second) = if matches!(ty, Type::Any) { (api_version, kind) } else { (kind, api_version) };
    let _ = write!(out, "{{{first},{second},\"metadata\":{{");
    let fields = object.as_object();
    if let Some(metadata) = fields.and_then(|o| o.get("metadata")).and_then(Value::as_object) {
        let ty = ty.field("metadata").map_or(&Type::Any, |field| &field.ty);
        encode::fields(&mut out, ty, metadata, without);
    }
    out.push(b'}');
    if let Some(fields) = fields {
        let at = out.len();
        out.push(b',');
        if !encode::fields(&mut out, ty, fields, &["kind", "apiVersion", "metadata"]) {
            out.truncate(at);
        }
    }
    out.push(b'}');
    out
}

/// Where metadata's fields begin, when the bytes have the form that [`encode`] gives.
fn metadata_at(bytes: &[u8]) -> Option<usize> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let at = memchr::memmem::find(head, METADATA)?;
    // Only kind and apiVersion may stand before it: nothing nested.
    (!head[1..at].contains(&b'{')).then_some(at + METADATA.len())
}

/// How long the fields are, of these of metadata, that stand before the resourceVersion. A field that is not in their order, as
/// that of custom kinds, follows it.
fn identity(metadata: &[u8]) -> usize {
    let mut end = 0;
    for field in IDENTITY {
        let from = if metadata.get(end) == Some(&b',') { end + 1 } else { end };
        let Some(value) = metadata.get(from..).and_then(|rest| rest.strip_prefix(field)) else { continue };
        match memchr::memchr2(b'"', b'\\', value) {
            Some(length) if value[length] == b'"' => end = from + field.len() + length + 1,
            _ => return end,
        }
    }
    end
}

/// Appends the fields of metadata up to and with the resourceVersion; the rest follows in `metadata` at the place returned.
fn splice(out: &mut Vec<u8>, metadata: &[u8], revision: Revision) -> usize {
    let at = identity(metadata);
    out.extend_from_slice(&metadata[..at]);
    out.extend_from_slice(if at == 0 { b"\"resourceVersion\":\"" } else { b",\"resourceVersion\":\"" });
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    let followed = at == 0 && metadata.first() != Some(&b'}');
    out.extend_from_slice(if followed { b"\"," } else { b"\"" });
    at
}

/// The apiVersion of stored bytes; `None` where they have not the form that [`encode`] gives.
pub fn api_version(bytes: &[u8]) -> Option<&str> {
    const FIELD: &[u8] = b"\"apiVersion\":\"";
    let head = &bytes[..metadata_at(bytes)?];
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
    let Some(at) = metadata_at(bytes) else {
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
    at + splice(out, &bytes[at..], revision)
}

/// The object as it is served.
pub fn served(bytes: &[u8], revision: Revision) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 48);
    write(&mut out, bytes, revision, false);
    out
}

/// The object that is stored in these bytes. The server wrote them, so that they are JSON; a store that was tampered with
/// shows nothing.
pub fn stored(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).ok().and_then(|text| json::parse(text).ok()).unwrap_or_default()
}

/// The object as a value, with its resourceVersion.
pub fn value(bytes: &[u8], revision: Revision) -> Value {
    let mut object = stored(bytes);
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

/// The object of an entry without `metadata.managedFields`, to be looked at and never written back.
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
    let fields = text.get(1..).unwrap_or(b"}").trim_ascii_start();
    let mut out = Vec::with_capacity(text.len() + 48);
    out.push(b'{');
    let at = splice(&mut out, fields, revision);
    out.extend_from_slice(&fields[at..]);
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
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#,
        );
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"b","uid":"c","generation":1}}"#,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"b","uid":"c","resourceVersion":"7","generation":1}}"#,
        );
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{"uid":"x"},"name":"a","uid":"c"}}"#,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"uid":"x"},"name":"a","uid":"c"}}"#,
        );
        check(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a\"b","uid":"c"}}"#,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"a\"b","uid":"c"}}"#,
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
