//! Objects in protobuf, the form that Go clients prefer: one transcoder for all kinds, driven by the generated table
//! `tables/protobuf.tsv`. Custom resources have no such form.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use serde_json::{Map, Value};

mod read;
pub(crate) mod wire;
mod write;

use wire::{Item, Reader, Writer};

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Before every object.
const MAGIC: &[u8] = b"k8s\0";

/// Bytes that are no message of the type that they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("provided data does not appear to be a protobuf message")]
pub struct Malformed;

/// One message type; its fields are parsed when first asked for.
struct Message {
    text: &'static str,
    fields: OnceLock<Box<[Field]>>,
}

struct Field {
    number: u32,
    name: &'static str,
    ty: Type,
    repeat: Repeat,
    /// Written only when it is set; other fields are written when they are zero too.
    optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    One,
    List,
    Map,
    /// A message whose fields stand in the JSON object around it.
    Inline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    String,
    Int32,
    Int64,
    Bool,
    Double,
    Bytes,
    /// The name without `k8s.io.`.
    Message(&'static str),
}

impl Message {
    fn fields(&self) -> &[Field] {
        self.fields.get_or_init(|| {
            let mut fields: Vec<Field> =
                self.text.lines().filter(|line| !line.is_empty()).filter_map(parse_field).collect();
            fields.sort_by_key(|f| f.number);
            fields.into()
        })
    }
}

/// The fields of a message; a name that is not in the table has none.
fn fields(name: &str) -> &'static [Field] {
    static TABLE: &str = include_str!("../../../tables/protobuf.tsv");
    static ALL: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
        let blocks = TABLE.strip_prefix('=').unwrap_or(TABLE).split("\n=");
        let message = |block: &'static str| {
            let (name, text) = block.split_once('\n').unwrap_or((block, ""));
            (name, Message { text, fields: OnceLock::new() })
        };
        blocks.map(message).collect()
    });
    ALL.get(name).map_or(&[], Message::fields)
}

fn parse_field(line: &'static str) -> Option<Field> {
    let mut columns = line.split('\t');
    let (number, name, code) = (columns.next()?.parse().ok()?, columns.next()?, columns.next()?);
    let (code, optional) = code.strip_suffix('?').map_or((code, false), |code| (code, true));
    let (repeat, code) = match code.as_bytes().first()? {
        b'[' => (Repeat::List, &code[1..]),
        b'{' => (Repeat::Map, &code[1..]),
        b'^' => (Repeat::Inline, code),
        _ => (Repeat::One, code),
    };
    let ty = match code.as_bytes().first()? {
        b's' => Type::String,
        b'i' => Type::Int32,
        b'l' => Type::Int64,
        b'b' => Type::Bool,
        b'd' => Type::Double,
        b'y' => Type::Bytes,
        _ => Type::Message(&code[1..]),
    };
    Some(Field { number, name, ty, repeat, optional })
}

/// `io.k8s.api.core.v1.Pod` → `api.core.v1.Pod`, as the table names it.
fn message_name(schema: &str) -> Option<String> {
    Some(schema.strip_prefix("io.k8s.")?.replace('-', "_"))
}

/// Whether objects of a schema have a protobuf form.
pub fn has(schema: &str) -> bool {
    message_name(schema).is_some_and(|name| !fields(&name).is_empty())
}

/// Reads an object in its envelope. `apiVersion` and `kind` are those of the envelope; zero values are as on the wire, see
/// [`crate::codec::decode::normalise`]. Fields of an object of another kind mean something else and are not read: what the
/// envelope says is enough for the caller to refuse it.
pub fn decode(schema: &str, bytes: &[u8]) -> Result<Value, Malformed> {
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
    let name = message_name(schema).ok_or(Malformed)?;
    let other = !kind.is_empty() && schema.rsplit('.').next() != Some(kind);
    let mut object = if other { Value::Object(Map::new()) } else { read::message(&name, raw)? };
    if let Value::Object(map) = &mut object {
        for (name, text) in [("apiVersion", api_version), ("kind", kind)] {
            if !text.is_empty() {
                map.insert(name.to_owned(), text.into());
            }
        }
    }
    Ok(object)
}

/// Writes an object in its envelope; `None` when its schema has no protobuf form.
pub fn encode(schema: &str, object: &Value) -> Option<Vec<u8>> {
    let name = message_name(schema).filter(|_| has(schema))?;
    let mut raw = Writer::default();
    write::message(&mut raw, &name, object);
    Some(envelope(object, &raw.bytes))
}

fn envelope(object: &Value, raw: &[u8]) -> Vec<u8> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or("").as_bytes();
    let mut out = Writer { bytes: Vec::with_capacity(raw.len() + 64) };
    out.bytes.extend_from_slice(MAGIC);
    out.message(1, |m| {
        m.block(1, text("apiVersion"));
        m.block(2, text("kind"));
    });
    out.block(2, raw);
    out.block(3, b"");
    out.block(4, b"");
    out.bytes
}

/// One frame of a watch stream: `object` is what [`encode`] made. The frame's length comes first, in four bytes.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut raw = Writer::default();
    raw.block(1, event.as_bytes());
    raw.message(2, |m| m.block(1, object));
    let meta = Value::Object(Map::new());
    let event = envelope(&meta, &raw.bytes);
    let mut frame = Vec::with_capacity(event.len() + 4);
    frame.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(&event);
    frame
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
        let api_version = object["apiVersion"].as_str()?;
        let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
        let group = match group {
            "apiextensions.k8s.io" => "apiextensions_apiserver.pkg.apis.apiextensions",
            "meta.k8s.io" => "apimachinery.pkg.apis.meta",
            "internal.apiserver.k8s.io" => "api.apiserverinternal",
            other => &format!("api.{}", other.split('.').next()?),
        };
        Some(format!("io.k8s.{}.{version}.{kind}", group.replace('_', "-")))
    }

    /// Both directions, for every kind of the published fixtures.
    #[test]
    fn fixtures_survive_both_ways() {
        let (Some(json), Some(binary)) = (archive("json"), archive("pb")) else { return };
        let mut checked = 0;
        for ((stem, json), (_, bytes)) in json.iter().zip(&binary) {
            let object: Value = serde_json::from_slice(json).expect("a fixture is JSON");
            let Some(schema) = schema_of(stem, &object).filter(|s| has(s)) else {
                eprintln!("no message for {stem}");
                continue;
            };
            // Embedded objects of the server's own are outside the transcoder.
            if stem.ends_with("WatchEvent") {
                continue;
            }
            let decoded = decode(&schema, bytes).unwrap_or_else(|e| panic!("{stem}: {e}"));
            assert_eq!(encode(&schema, &object).as_ref(), Some(bytes), "{stem}: JSON to protobuf");
            assert_eq!(encode(&schema, &decoded).as_ref(), Some(bytes), "{stem}: there and back");
            // The wire has zero values that JSON leaves out.
            if let Some(ty) = crate::schema::of(&schema) {
                let normal = |value| crate::codec::decode::normalise(ty, value).map(|(value, _)| value);
                assert_eq!(normal(decoded), normal(object), "{stem}: protobuf to JSON");
            }
            checked += 1;
        }
        assert!(checked > 170, "{checked}");
    }
}
