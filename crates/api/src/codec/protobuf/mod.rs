//! Objects in protobuf, the form that Go clients prefer: one transcoder for all kinds, driven by the generated table
//! `tables/protobuf.tsv`. Custom resources have no such form.

use json::{Map, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

mod read;
mod table;
mod tree;
pub(crate) mod wire;
mod write;

pub use table::Message;
use wire::{Item, Reader};
pub use write::{Encoder, Misfit, items_of};

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Before every object.
const MAGIC: &[u8] = b"k8s\0";

/// Bytes that are no message of the type that they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("provided data does not appear to be a protobuf message")]
pub struct Malformed;

/// Whether objects of a schema have a protobuf form.
pub fn has(schema: &str) -> bool {
    Message::of(schema).is_some()
}

/// The envelope of an object: its `apiVersion`, its `kind`, and its own bytes.
fn envelope(bytes: &[u8]) -> Result<(&str, &str, &[u8]), Malformed> {
    let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(Malformed)?);
    let (mut api_version, mut kind, mut raw) = ("", "", &[][..]);
    while let Some((field, item)) = reader.next()? {
        match (field, item) {
            (1, Item::Block(type_meta)) => {
                let mut inner = Reader(type_meta);
                while let Some((field, Item::Block(text))) = inner.next()? {
                    let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
                    match field {
                        1 => api_version = text,
                        2 => kind = text,
                        _ => {}
                    }
                }
            }
            (2, Item::Block(block)) => raw = block,
            _ => {}
        }
    }
    Ok((api_version, kind, raw))
}

/// The `apiVersion` and the `kind` that bytes in protobuf say of themselves; `None` when these are no such bytes.
pub fn named(bytes: &[u8]) -> Option<Result<(&str, &str), Malformed>> {
    bytes.starts_with(MAGIC).then(|| envelope(bytes).map(|(api_version, kind, _)| (api_version, kind)))
}

/// Reads an object in its envelope. `apiVersion` and `kind` are those of the envelope; zero values are as on the wire, see
/// [`crate::codec::decode::normalise`]. Fields of an object of another kind mean something else and are not read: what the
/// envelope says is enough for the caller to refuse it.
pub fn decode(schema: &str, bytes: &[u8]) -> Result<Value, Malformed> {
    let (api_version, kind, raw) = envelope(bytes)?;
    let of = Message::of(schema).ok_or(Malformed)?;
    let other = !kind.is_empty() && schema.rsplit('.').next() != Some(kind);
    let mut object = if other { Value::Object(Map::new()) } else { read::message(of, raw)? };
    if let Value::Object(map) = &mut object {
        for (name, text) in [("apiVersion", api_version), ("kind", kind)] {
            if !text.is_empty() {
                map.insert(name.to_owned(), text.into());
            }
        }
    }
    Ok(object)
}

/// Writes an object in its envelope; `None` when its schema has no protobuf form, or the object is none of that schema.
pub fn encode(schema: &str, object: &Value) -> Option<Vec<u8>> {
    let (of, text) = (Message::of(schema)?, object.to_string());
    let [api_version, kind] = type_of(text.as_bytes());
    let bytes = Encoder::default().object(of, [&api_version, &kind], text.as_bytes()).map(<[u8]>::to_vec);
    bytes.ok()
}

/// The `apiVersion` and the `kind` that JSON text says of itself. Objects that are stored say it first: no more is read than
/// has to be.
pub fn type_of(json: &[u8]) -> [String; 2] {
    let mut found = [None, None];
    // The end of the search is an error too.
    let _ = TypeSeed(&mut found).deserialize(&mut serde_json::Deserializer::from_slice(json));
    found.map(Option::unwrap_or_default)
}

struct TypeSeed<'f>(&'f mut [Option<String>; 2]);

impl<'j> DeserializeSeed<'j> for TypeSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'j>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'j> Visitor<'j> for TypeSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'j>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<std::borrow::Cow<'_, str>>()? {
            match &*key {
                "apiVersion" => self.0[0] = fields.next_value()?,
                "kind" => self.0[1] = fields.next_value()?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
            if self.0.iter().all(Option::is_some) {
                return Err(A::Error::custom("both are found"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Each file of an archive of fixtures by its name without the extension; `None` where the archive is absent.
    fn archive(format: &str) -> Option<Vec<(String, Vec<u8>)>> {
        let path = crate::shared_reference::path(&format!("api-fixtures/{format}.tar.gz"))?;
        let path = path.to_str()?;
        let run = |args: &[&str]| Command::new("tar").args(args).output().expect("tar runs").stdout;
        let names = String::from_utf8(run(&["tzf", path])).expect("names are text");
        let files = names.lines().filter(|name| name.ends_with(format)).map(|name| {
            let stem = name.trim_start_matches("v1.35.0/").trim_end_matches(format).trim_end_matches('.');
            (stem.to_owned(), run(&["xzOf", path, name]))
        });
        Some(files.collect())
    }

    /// `apps.v1.Deployment` → its message, by the last three parts of the name.
    fn schema_of(stem: &str, object: &Value) -> Option<String> {
        let kind = stem.rsplit('.').next()?;
        let api_version = object["apiVersion"].as_str().unwrap_or("v1");
        let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
        let group = match group {
            "apiextensions.k8s.io" => "apiextensions_apiserver.pkg.apis.apiextensions",
            "internal.apiserver.k8s.io" => "api.apiserverinternal",
            other => &format!("api.{}", other.split('.').next()?),
        };
        let own = format!("io.k8s.{}.{version}.{kind}", group.replace('_', "-"));
        let schemas = [own, format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")];
        schemas.into_iter().find(|schema| has(schema))
    }

    #[track_caller]
    fn both_ways(stem: &str, object: Value, bytes: &[u8]) {
        let schema = schema_of(stem, &object).unwrap_or_else(|| panic!("no message for {stem}"));
        let decoded = decode(&schema, bytes).unwrap_or_else(|e| panic!("{stem}: {e}"));
        assert_eq!(encode(&schema, &object).as_deref(), Some(bytes), "{stem}: JSON to protobuf");
        assert_eq!(encode(&schema, &decoded).as_deref(), Some(bytes), "{stem}: there and back");
        // The wire has zero values that JSON leaves out.
        if let Some(ty) = crate::schema::of(&schema) {
            let normal = |value| crate::codec::decode::normalise(ty, value).map(|(value, _)| value);
            assert_eq!(normal(decoded), normal(object), "{stem}: protobuf to JSON");
        }
    }

    /// Both directions, for every kind of the published fixtures.
    #[test]
    fn fixtures_survive_both_ways() {
        let (Some(json), Some(binary)) = (archive("json"), archive("pb")) else { return };
        for ((stem, json), (_, bytes)) in json.iter().zip(&binary) {
            both_ways(stem, serde_json::from_slice(json).expect("a fixture is JSON"), bytes);
        }
        assert_eq!((json.len(), binary.len()), (187, 187));
    }

    /// Some of them where the others are not at hand.
    #[test]
    fn upstreams_bytes_survive_both_ways() {
        for line in include_str!("../../../tests/protobuf.tsv").lines() {
            let [stem, json, hex] = line.split('\t').collect::<Vec<_>>().try_into().expect("three columns");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            both_ways(stem, serde_json::from_str(json).expect("JSON"), &bytes);
        }
    }

    #[test]
    fn order_null_and_repetition_in_json_do_not_matter() {
        let check = |one: &str, other: &str| {
            let of = Message::of("io.k8s.api.core.v1.ConfigMap").expect("it has a message");
            let encode =
                |json: &str| Encoder::default().object(of, ["v1", "ConfigMap"], json.as_bytes()).map(<[u8]>::to_vec);
            assert_eq!(encode(one).expect(one), encode(other).expect(other));
        };
        check("{}", r#" {"metadata": null, "data": null, "unknown": {"a": [1, {}]}} "#);
        check(r#"{"data": {"a": "1", "b": "2"}}"#, r#"{"data": {"b": "2", "a": "0", "a": "1"}, "data2": 1}"#);
        check(
            r#"{"immutable": true, "data": {"a": "1"}, "metadata": {"uid": "u", "name": "n"}}"#,
            r#"{"metadata": {"name": "\u006e", "uid": "u"}, "data": {"\u0061": "1"}, "immutable": false, "immutable": true}"#,
        );
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let check = |json: &str, expected: &str| {
            let of = Message::of("io.k8s.api.core.v1.Pod").expect("it has a message");
            let error = Encoder::default().object(of, ["v1", "Pod"], json.as_bytes()).map(<[u8]>::to_vec);
            let text = error.expect_err(json).to_string();
            assert!(text.contains(expected), "{text}");
        };
        check(r#"{"spec": 1}"#, "the object does not fit its type: the number 1 where another type is expected");
        check(r#"{"spec": {"nodeName": 1}}"#, "the number 1 where another type is expected");
        check(r#"{"spec": {"nodeName": {}}}"#, "an object where another type is expected");
        check(r#"{"spec": {"hostNetwork": "yes"}}"#, "invalid value: string \"yes\", expected a number or a flag");
        check(r#"{"spec": {"priority": 3000000000}}"#, "the number 3000000000 where one of 32 bits is expected");
        check(r#"{"spec": {"containers": {}}}"#, "invalid type: map, expected a list");
        check(r#"{"metadata": {"labels": []}}"#, "invalid type: sequence, expected a map");
        check(r#"{"metadata": {"creationTimestamp": "soon"}}"#, "expected a time");
        check("[]", "invalid type: sequence, expected Pod");
        check(r#"{"spec": {}"#, "EOF while parsing an object");
    }

    #[test]
    fn deep_values_end() {
        let encode = |schema: &str, json: String| {
            let of = Message::of(schema).expect("it has a message");
            Encoder::default().object(of, ["", ""], json.as_bytes()).map(<[u8]>::to_vec)
        };
        let deep = |open: &str, close: &str| format!("{}{{}}{}", open.repeat(200), close.repeat(200));
        let schema = format!(r#"{{"openAPIV3Schema":{}}}"#, deep(r#"{"not":"#, "}"));
        let validation = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceValidation";
        let error = encode(validation, schema).expect_err("too deep").to_string();
        assert!(error.contains("recursion limit exceeded"), "{error}");
        // Text that is taken as it is, and fields that are not known, are passed over without a stack.
        let raw = format!(r#"{{"data":{},"x":{}}}"#, deep("[", "]"), deep("[", "]"));
        assert!(encode("io.k8s.api.apps.v1.ControllerRevision", raw).is_ok());
    }

    #[test]
    fn type_and_version_are_found_wherever_they_stand() {
        let check = |json: &str, expected: [&str; 2]| assert_eq!(type_of(json.as_bytes()), expected, "{json}");
        check(r#"{"kind":"Pod","apiVersion":"v1",no JSON"#, ["v1", "Pod"]);
        check(r#"{"items":[{"kind":"Pod","apiVersion":"v1"}],"kind":"PodList"}"#, ["", "PodList"]);
        check("[]", ["", ""]);
    }

    /// An event of a watch, and a list of two items: how they are read is the wire format's.
    #[test]
    fn events_and_lists_have_their_frames() {
        let of = |kind: &str| Message::of(&format!("io.k8s.api.core.v1.{kind}")).expect("it has a message");
        let map = br#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#;
        let mut encoder = Encoder::default();
        let object = encoder.object(of("ConfigMap"), ["v1", "ConfigMap"], map).expect("fits").to_vec();
        let frame = encoder.event("ADDED", of("ConfigMap"), ["v1", "ConfigMap"], map).expect("fits").to_vec();
        let (length, event) = frame.split_at(4);
        assert_eq!(length, u32::try_from(event.len()).expect("short").to_be_bytes());
        let mut event = Reader(event);
        assert_eq!(event.next(), Ok(Some((1, Item::Block(b"ADDED")))));
        let Ok(Some((2, Item::Block(raw)))) = event.next() else { panic!("no object") };
        assert_eq!((Reader(raw).next(), event.next()), (Ok(Some((1, Item::Block(&object)))), Ok(None)));

        let item = encoder.field(2, of("ConfigMap"), map).expect("fits").to_vec();
        let list = r#"{"metadata":{"resourceVersion":"7"}}"#;
        let type_of = ["v1", "ConfigMapList"];
        let framed = encoder.list(of("ConfigMapList"), type_of, list.as_bytes(), 2 * item.len());
        let (head, tail) = framed.expect("fits");
        let map = String::from_utf8_lossy(map);
        let whole = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{map},{map}]}}"#);
        let whole = encoder.object(of("ConfigMapList"), type_of, whole.as_bytes()).expect("fits");
        assert_eq!([head, item.clone(), item, tail].concat(), whole);
    }
}
