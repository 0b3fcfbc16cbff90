//! The form in which an object is stored and served: compact JSON, its fields in the order in which upstream writes them,
//! without its resourceVersion. That is the store's revision and is spliced in at its place when the bytes are served. Objects
//! of built-in kinds begin with kind, apiVersion and metadata. Upstream knows the fields of custom kinds by their names only and
//! sorts them: there a gap marks the place, and before it stands the generation of the definition that the object was written
//! by. An object without it, or with another one, is read through the schemas of its kind: a write that began before they were
//! changed, and those of servers that have not heard of it, come later than the change.

use std::{io::Write as _, sync::LazyLock};

use api::{
    Value,
    codec::encode,
    kind::Definition,
    schema::{self, Type},
};
use bytes::Bytes;
use json::{Map, append_string};
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;
use store::{Entry, Revision};

/// Objects of built-in kinds begin with this.
const KIND: &[u8] = b"{\"kind\":";
const METADATA: &[u8] = b"\"metadata\":{";
/// In the metadata of custom kinds a space stands where the resourceVersion belongs. No other space is outside of strings, and
/// no string can hold a quote that is not escaped: this is found nowhere else.
const GAP: &[u8] = b" ,\"uid\":\"";
/// The digits of a generation: what may stand between the parts of JSON.
const DIGITS: [u8; 4] = *b" \t\n\r";
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
    // An object that was written in another version may lack defaults of the one that is stored.
    let by = if definition.is_converted() { 0 } else { definition.generation };
    let without = Without::Revision { by };
    // Without the spare capacity: an entry may stay in memory for as long as the process.
    text(names, order(definition, stored.as_ref()), object, without).into_boxed_slice().into()
}

/// The stored form of an object of a built-in kind in its stored version.
pub fn encode_as(kind: &str, group: &str, version: &str, object: &Value) -> Vec<u8> {
    text((kind, group, version), &api::schema::of_kind(group, version, kind), object, Without::Revision { by: 0 })
}

/// An object in the version of `definition` as it is stored.
pub fn encode_in_version(definition: &Definition, object: &Value) -> Vec<u8> {
    in_version(definition, object, Without::Revision { by: 0 })
}

/// An object in the version of `definition` as it is served.
pub fn encode_served(definition: &Definition, object: &Value) -> Vec<u8> {
    in_version(definition, object, Without::Nothing)
}

/// The part of the metadata that is left out.
#[derive(Clone, Copy)]
enum Without {
    Nothing,
    /// The resourceVersion. In a custom object its place is marked, with the generation that it was written by; 0 is none.
    Revision {
        by: u64,
    },
}

impl Without {
    fn fields(self) -> &'static [&'static str] {
        match self {
            Without::Nothing => &[],
            Without::Revision { .. } => &["resourceVersion"],
        }
    }
}

fn in_version(definition: &Definition, object: &Value, without: Without) -> Vec<u8> {
    let names = (&*definition.kind, &*definition.group, &*definition.version);
    text(names, order(definition, None), object, without)
}

/// The type by which the fields of an object are put in order. Upstream knows the fields of a custom kind by their names only.
fn order<'d>(definition: &'d Definition, stored: Option<&'d Type>) -> &'d Type {
    if definition.is_custom() { &Type::Any } else { stored.unwrap_or(&definition.ty) }
}

/// JSON with kind and apiVersion and then metadata first, without some fields of the metadata.
fn text(names: (&str, &str, &str), ty: &Type, object: &Value, without: Without) -> Vec<u8> {
    let (kind, group, version) = names;
    let slash = if group.is_empty() { "" } else { "/" };
    let api_version = format!("{group}{slash}{version}");
    let none = Map::new();
    let fields = object.as_object().unwrap_or(&none);
    if matches!(ty, Type::Any) {
        return sorted(kind, &api_version, fields, without);
    }
    let mut out = Vec::with_capacity(2048);
    let _ = write!(out, "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{{");
    if let Some(metadata) = fields.get("metadata").and_then(Value::as_object) {
        let ty = ty.field("metadata").map_or(&Type::Any, |field| &field.ty);
        encode::fields(&mut out, ty, metadata, without.fields());
    }
    out.push(b'}');
    let at = out.len();
    out.push(b',');
    if !encode::fields(&mut out, ty, fields, &["kind", "apiVersion", "metadata"]) {
        out.truncate(at);
    }
    out.push(b'}');
    out
}

/// JSON with all fields in the order of their names.
fn sorted(kind: &str, api_version: &str, fields: &Map, without: Without) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048);
    let named = ["apiVersion", "kind", "metadata"];
    let others = fields.keys().map(|name| name.as_str()).filter(|name| !named.contains(name));
    let mut names: Vec<&str> = others.chain(named).collect();
    names.sort_unstable();
    for (at, name) in names.into_iter().enumerate() {
        out.push(if at == 0 { b'{' } else { b',' });
        append_string(&mut out, name);
        out.push(b':');
        match (name, fields.get(name)) {
            ("apiVersion", _) => append_string(&mut out, api_version),
            ("kind", _) => append_string(&mut out, kind),
            ("metadata", metadata) => sorted_metadata(&mut out, metadata, without),
            (_, value) => value.unwrap_or(&Value::Null).append_to(&mut out),
        }
    }
    out.push(b'}');
    out
}

/// Appends metadata in the order of its names, with the gap where there is to be no resourceVersion.
fn sorted_metadata(out: &mut Vec<u8>, metadata: Option<&Value>, without: Without) {
    out.push(b'{');
    let fields = metadata.and_then(Value::as_object).into_iter().flatten();
    for (at, (name, value)) in fields.filter(|(name, _)| !without.fields().contains(&name.as_str())).enumerate() {
        if at > 0 {
            if let Without::Revision { by } = without
                && name.as_str() == "uid"
                && value.is_string()
            {
                append_generation(out, by);
                out.push(b' ');
            }
            out.push(b',');
        }
        append_string(out, name);
        out.push(b':');
        value.append_to(out);
    }
    out.push(b'}');
}

/// Appends a generation in digits of two bits, the highest first.
fn append_generation(out: &mut Vec<u8>, generation: u64) {
    let digits = (u64::BITS - generation.leading_zeros()).div_ceil(2);
    out.extend((0..digits).rev().map(|at| DIGITS[(generation >> (2 * at)) as usize % 4]));
}

/// The generation of the definition by which a custom object was written.
fn generation(bytes: &[u8]) -> Option<u64> {
    let head = &bytes[..gap(bytes)?];
    let digits = &head[head.trim_ascii_end().len()..];
    let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte);
    let read = digits.iter().try_fold(0u64, |so_far, byte| Some(so_far.checked_mul(4)? + digit(byte)? as u64));
    read.filter(|generation| *generation > 0)
}

/// Whether an object is stored as the present schemas of its kind have it. Schemas of built-in kinds do not change.
pub fn is_settled(definition: &Definition, entry: &Entry) -> bool {
    !definition.is_custom()
        || entry.modified > definition.defined && generation(&entry.value) == Some(definition.generation)
}

/// Whether an object has to pass the strategy before it is shown. A webhook's kinds have passed the webhook.
pub fn reads_through(definition: &Definition, entry: &Entry) -> bool {
    definition.webhook.is_none() && (definition.is_converted() || !is_settled(definition, entry))
}

/// Whether the same is stored, by whichever generation.
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let parts = |bytes| gap(bytes).map(|at| (bytes[..at].trim_ascii_end(), &bytes[at..]));
    one == other || parts(one).is_some_and(|parts_of_one| parts(other) == Some(parts_of_one))
}

/// Where the resourceVersion belongs in an object of a custom kind: behind it the gap is left out.
fn gap(bytes: &[u8]) -> Option<usize> {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(GAP));
    (!bytes.starts_with(KIND)).then(|| FINDER.find(bytes)).flatten()
}

/// Where metadata's fields begin, when the bytes have the form that [`encode`] gives.
fn metadata_at(bytes: &[u8]) -> Option<usize> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let at = memchr::memmem::find(head, METADATA)?;
    // Only kind and apiVersion may stand before it: nothing nested.
    (!head[1..at].contains(&b'{')).then_some(at + METADATA.len())
}

/// How long the fields are, of these of metadata, that stand before the resourceVersion. A field that is not in their order, as
/// that of custom objects that others stored, follows it.
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
    if at > 0 {
        out.push(b',');
    }
    append_revision(out, revision);
    if at == 0 && metadata.first() != Some(&b'}') {
        out.push(b',');
    }
    at
}

fn append_revision(out: &mut Vec<u8>, revision: Revision) {
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.push(b'"');
}

/// The apiVersion of stored bytes; `None` where they have not the form that [`encode`] gives.
pub fn api_version(bytes: &[u8]) -> Option<&str> {
    const FIELD: &[u8] = b"\"apiVersion\":\"";
    let first = bytes.strip_prefix(b"{").and_then(|fields| fields.strip_prefix(FIELD));
    let rest = match first {
        Some(rest) => rest,
        None => {
            let head = &bytes[..metadata_at(bytes)?];
            &head[memchr::memmem::find(head, FIELD)? + FIELD.len()..]
        }
    };
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
    if let Some(at) = gap(bytes) {
        out.extend_from_slice(bytes[..at].trim_ascii_end());
        out.push(b',');
        append_revision(out, revision);
        return at + 1;
    }
    let Some(at) = metadata_at(bytes) else {
        value(bytes, revision).append_to(out);
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
    convert(definition, &mut object, entry);
    object
}

/// The object of an entry without `metadata.managedFields`, to be looked at and never written back.
pub fn without_managers(definition: &Definition, entry: &Entry) -> Value {
    let mut object: Value = api::object::without_managers(&entry.value).unwrap_or_default();
    set_revision(&mut object, entry.modified);
    convert(definition, &mut object, entry);
    object
}

/// Turns the object of an entry into the version of `definition`.
pub fn convert(definition: &Definition, object: &mut Value, entry: &Entry) {
    if !reads_through(definition, entry) {
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

/// The fields of the object that begins before them, with the brace that ends it, where that is JSON.
fn fields_from(text: &[u8], at: usize) -> Option<&[u8]> {
    let object = std::str::from_utf8(&text[at - 1..]).ok()?;
    Some(&text[at..at - 1 + json::length_of_value(object)?])
}

/// The text of the object's metadata, with its resourceVersion, its fields in the order in which upstream declares them.
pub fn metadata(bytes: &[u8], revision: Revision) -> Vec<u8> {
    let known = bytes.starts_with(KIND).then(|| metadata_at(bytes)).flatten();
    let known = known.and_then(|at| fields_from(bytes, at));
    let Some(fields) = known else {
        let Ok(head) = serde_json::from_slice::<Head<'_>>(bytes) else { return b"{}".to_vec() };
        let mut metadata = json::parse(head.metadata.get()).unwrap_or_default();
        if let Some(fields) = metadata.as_object_mut() {
            fields.insert("resourceVersion", Value::from(revision.to_string()));
        }
        return encode::text(&schema::of_kind("meta.k8s.io", "v1", "ObjectMeta"), &metadata);
    };
    let mut out = Vec::with_capacity(fields.len() + 48);
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

    /// Where upstream's servers keep objects, so that either finds what the other stored (test/integration/etcd/data.go).
    #[test]
    fn keys_are_upstreams() {
        let gates = api::features::settings("AllAlpha=true,AllBeta=true").unwrap();
        let features = api::features::Features::set(&gates).unwrap();
        let served = api::features::RuntimeConfig::parse(&["api/all=true".to_owned()]).unwrap();
        let kinds = api::kinds::table(features, &served).0;
        assert!(kinds.all().len() > 70, "{}", kinds.all().len());
        // Measurements are stored by nobody.
        for definition in kinds.all().iter().filter(|definition| definition.group != "metrics.k8s.io") {
            let folder = match (&*definition.group, &*definition.plural) {
                ("", "services") => "services/specs",
                ("", "endpoints") => "services/endpoints",
                ("", "nodes") => "minions",
                ("", "replicationcontrollers") => "controllers",
                ("networking.k8s.io", "ingresses") => "ingress",
                ("apiregistration.k8s.io", "apiservices") => "apiregistration.k8s.io/apiservices",
                ("apiextensions.k8s.io", "customresourcedefinitions") => {
                    "apiextensions.k8s.io/customresourcedefinitions"
                }
                (_, plural) => plural,
            };
            let expected = if definition.namespaced() { "n/x" } else { "x" };
            assert_eq!(key(definition, "n", "x"), format!("/registry/{folder}/{expected}"));
        }
    }

    #[test]
    fn custom_objects_are_sorted_whole() {
        let object = json::json!({
            "spec": {"b": 1, "a": "x<y"}, "data": {"metadata": {"uid": " ,\"uid\":\""}}, "zone": null,
            "metadata": {
                "uid": "u", "name": "n", "namespace": "s", "resourceVersion": "3", "labels": {"uid": "l"},
                "ownerReferences": [{"name": "o", "uid": "o"}],
            },
        });
        let stored = text(("Box", "a.io", "v1"), &Type::Any, &object, Without::Revision { by: 6 });
        let expected = concat!(
            r#"{"apiVersion":"a.io/v1","data":{"metadata":{"uid":" ,\"uid\":\""}},"kind":"Box","metadata":{"labels":{"uid":"l"},"#,
            r#""name":"n","namespace":"s","ownerReferences":[{"name":"o","uid":"o"}],"resourceVersion":"7","uid":"u"},"#,
            r#""spec":{"a":"x\u003cy","b":1},"zone":null}"#,
        );
        assert_eq!(String::from_utf8(served(&stored, 7)).unwrap(), expected);
        assert_eq!(api_version(&stored), Some("a.io/v1"));
        assert_eq!(value(&stored, 7), json::parse(expected).unwrap());
        let metadata =
            r#"{"name":"n","namespace":"s","uid":"u","resourceVersion":"7","labels":{"uid":"l"},"ownerReferences":[{"#;
        assert!(String::from_utf8(super::metadata(&stored, 7)).unwrap().starts_with(metadata));
        let as_served = text(("Box", "a.io", "v1"), &Type::Any, &value(&stored, 7), Without::Nothing);
        assert_eq!(String::from_utf8(as_served).unwrap(), expected);
        let bare = text(
            ("Box", "a.io", "v1"),
            &Type::Any,
            &json::json!({"metadata": {"name": "n"}}),
            Without::Revision { by: 6 },
        );
        let expected = r#"{"apiVersion":"a.io/v1","kind":"Box","metadata":{"name":"n","resourceVersion":"7"}}"#;
        assert_eq!(String::from_utf8(served(&bare, 7)).unwrap(), expected);
    }

    #[test]
    fn custom_objects_bear_the_generation_that_they_were_written_by() {
        let object = json::json!({"metadata": {"name": "n", "uid": "u"}, "spec": {"a": " ,\"uid\":\""}});
        let written = |by: u64| text(("Box", "a.io", "v1"), &Type::Any, &object, Without::Revision { by });
        let shown = served(&written(0), 7);
        for by in [1, 2, 3, 4, 5, 15, 16, 1000, u64::MAX] {
            let stored = written(by);
            assert_eq!(generation(&stored), Some(by));
            assert_eq!(served(&stored, 7), shown);
            assert!(is_same(&stored, &written(6)) && stored != written(6));
        }
        assert_eq!(generation(&written(0)), None);
        let others = json::json!({"metadata": {"name": "m", "uid": "u"}});
        let others = text(("Box", "a.io", "v1"), &Type::Any, &others, Without::Revision { by: 6 });
        assert!(!is_same(&others, &written(6)));
        for foreign in [&b"{\"metadata\":{\"name\":\"n\",\"uid\":\"u\"}}"[..], b"{}", b""] {
            assert_eq!(generation(foreign), None);
        }
    }

    #[test]
    fn metadata_ends_with_its_own_brace() {
        let check = |stored: &str, expected: &str| {
            assert_eq!(String::from_utf8(metadata(stored.as_bytes(), 7)).unwrap(), expected, "{stored}");
        };
        let named =
            |name: &str, rest: &str| format!(r#"{{"kind":"A","apiVersion":"v1","metadata":{{"name":"{name}"}}{rest}"#);
        for rest in ["}", r#","spec":{"a":"}"}}"#] {
            check(&named("a", rest), r#"{"name":"a","resourceVersion":"7"}"#);
        }
        let odd = r#""labels":{"a":"}\\","b":"\"{"},"annotations":{}"#;
        let stored = format!(r#"{{"kind":"A","apiVersion":"v1","metadata":{{"uid":"u",{odd}}},"spec":{{}}}}"#);
        check(&stored, &format!(r#"{{"uid":"u","resourceVersion":"7",{odd}}}"#));
        check(
            r#"{"kind":"A","spec":{"metadata":{}},"metadata":{"name":"a"}}"#,
            r#"{"name":"a","resourceVersion":"7"}"#,
        );
        for torn in [
            r#"{"kind":"A","apiVersion":"v1","metadata":{"name":"a"#,
            r#"{"kind":"A","apiVersion":"v1","metadata":{"a":{}"#,
        ] {
            check(torn, "{}");
        }
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
