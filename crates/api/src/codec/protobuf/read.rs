//! From a message to the JSON of the same object.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::{
    Malformed, Repeat, Type, fields,
    wire::{Item, Reader},
};

type Result<T> = std::result::Result<T, Malformed>;

const PROPS: &str = "apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Messages inside one another at most, against bytes made to exhaust the stack.
const MAX_DEPTH: usize = 100;

pub fn message(name: &str, bytes: &[u8]) -> Result<Value> {
    nested(name, bytes, 0)
}

fn nested(name: &str, bytes: &[u8], depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(Malformed);
    }
    if let Some(value) = special(name, bytes, depth)? {
        return Ok(value);
    }
    let mut map = Map::new();
    into(&mut map, name, bytes, depth)?;
    // The schema table knows parts of these only as any JSON, so their zero values would stay.
    if name.ends_with(".JSONSchemaProps") {
        let optional = |name: &String| fields(PROPS).iter().any(|f| f.name == name && f.optional);
        map.retain(|name, value| optional(name) || !is_zero(value));
    }
    Ok(Value::Object(map))
}

fn is_zero(value: &Value) -> bool {
    value.as_str() == Some("") || value.as_bool() == Some(false) || value.as_i64() == Some(0)
}

fn into(map: &mut Map<String, Value>, name: &str, bytes: &[u8], depth: usize) -> Result<()> {
    let fields = fields(name);
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        // Fields of a later version are passed over.
        let Ok(at) = fields.binary_search_by_key(&number, |f| f.number) else { continue };
        let field = &fields[at];
        match (field.repeat, field.ty, item) {
            (Repeat::Inline, Type::Message(inner), Item::Block(bytes)) => into(map, inner, bytes, depth + 1)?,
            (Repeat::Inline, ..) => return Err(Malformed),
            (Repeat::One, ty, item) => {
                map.insert(field.name.to_owned(), value(ty, item, depth)?);
            }
            (Repeat::List, ty, item) => {
                let item = value(ty, item, depth)?;
                let list = map.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut().ok_or(Malformed)?.push(item);
            }
            (Repeat::Map, ty, Item::Block(bytes)) => {
                let (key, item) = entry(ty, bytes, depth)?;
                let entries = map.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                entries.as_object_mut().ok_or(Malformed)?.insert(key, item);
            }
            (Repeat::Map, ..) => return Err(Malformed),
        }
    }
    Ok(())
}

fn entry(ty: Type, bytes: &[u8], depth: usize) -> Result<(String, Value)> {
    let (mut key, mut found) = (String::new(), None);
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        match (number, item) {
            (1, Item::Block(text)) => key = self::text(text)?.to_owned(),
            (2, item) => found = Some(value(ty, item, depth)?),
            _ => {}
        }
    }
    let zero = match ty {
        Type::Message(name) => nested(name, &[], depth + 1)?,
        _ => Value::String(String::new()),
    };
    Ok((key, found.unwrap_or(zero)))
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

fn value(ty: Type, item: Item<'_>, depth: usize) -> Result<Value> {
    Ok(match (ty, item) {
        (Type::String, Item::Block(bytes)) => text(bytes)?.into(),
        (Type::Bytes, Item::Block(bytes)) => STANDARD.encode(bytes).into(),
        (Type::Int32, Item::Varint(n)) => (n as i32).into(),
        (Type::Int64, Item::Varint(n)) => (n as i64).into(),
        (Type::Bool, Item::Varint(n)) => (n != 0).into(),
        (Type::Double, Item::Fixed(n)) => Number::from_f64(f64::from_bits(n)).map_or(Value::Null, Value::Number),
        (Type::Message(name), Item::Block(bytes)) => nested(name, bytes, depth + 1)?,
        _ => return Err(Malformed),
    })
}

/// The messages that have a JSON form of their own.
fn special(name: &str, bytes: &[u8], depth: usize) -> Result<Option<Value>> {
    Ok(Some(match name {
        "apimachinery.pkg.api.resource.Quantity" | "apimachinery.pkg.api.resource.QuantityValue" => {
            block(bytes, 1)?.map(text).transpose()?.unwrap_or("0").into()
        }
        "apimachinery.pkg.apis.meta.v1.Time" => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        "apimachinery.pkg.apis.meta.v1.MicroTime" => time(bytes, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        "apimachinery.pkg.util.intstr.IntOrString" => match (number(bytes, 1)?, block(bytes, 3)?) {
            (0, _) => (number(bytes, 2)? as i32).into(),
            (_, string) => text(string.unwrap_or_default())?.into(),
        },
        "apimachinery.pkg.runtime.RawExtension"
        | "apimachinery.pkg.apis.meta.v1.FieldsV1"
        | "apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON"
        | "apiextensions_apiserver.pkg.apis.apiextensions.v1beta1.JSON" => match block(bytes, 1)? {
            Some(raw) if !raw.is_empty() => serde_json::from_slice(raw).map_err(|_| Malformed)?,
            _ => Value::Null,
        },
        name if name.ends_with(".ExtraValue") || name == "apimachinery.pkg.apis.meta.v1.Verbs" => {
            let mut list = Vec::new();
            let mut reader = Reader(bytes);
            while let Some((_, item)) = reader.next()? {
                list.push(value(Type::String, item, depth)?);
            }
            Value::Array(list)
        }
        name if name.ends_with(".JSONSchemaPropsOrBool") => match block(bytes, 2)? {
            Some(schema) => nested(props(name), schema, depth + 1)?,
            None => (number(bytes, 1)? != 0).into(),
        },
        name if name.ends_with(".JSONSchemaPropsOrArray") || name.ends_with(".JSONSchemaPropsOrStringArray") => {
            match block(bytes, 1)? {
                Some(schema) => nested(props(name), schema, depth + 1)?,
                None => {
                    let ty = if name.ends_with("StringArray") { Type::String } else { Type::Message(props(name)) };
                    let mut list = Vec::new();
                    let mut reader = Reader(bytes);
                    while let Some((_, item)) = reader.next()? {
                        list.push(value(ty, item, depth)?);
                    }
                    Value::Array(list)
                }
            }
        }
        _ => return Ok(None),
    }))
}

/// The schema message beside one of its alternatives.
pub(super) fn props(name: &str) -> &'static str {
    if name.contains(".v1beta1.") {
        "apiextensions_apiserver.pkg.apis.apiextensions.v1beta1.JSONSchemaProps"
    } else {
        PROPS
    }
}

/// The last block of that number.
fn block(bytes: &[u8], wanted: u32) -> Result<Option<&[u8]>> {
    let mut reader = Reader(bytes);
    let mut found = None;
    while let Some((number, item)) = reader.next()? {
        match item {
            Item::Block(block) if number == wanted => found = Some(block),
            _ => {}
        }
    }
    Ok(found)
}

fn number(bytes: &[u8], wanted: u32) -> Result<u64> {
    let mut reader = Reader(bytes);
    let mut found = 0;
    while let Some((number, item)) = reader.next()? {
        match item {
            Item::Varint(n) if number == wanted => found = n,
            _ => {}
        }
    }
    Ok(found)
}

/// An empty message is no time at all.
fn time(bytes: &[u8], format: &str) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (seconds, nanos) = (number(bytes, 1)? as i64, number(bytes, 2)? as i32);
    let time = Timestamp::new(seconds, nanos).map_err(|_| Malformed)?;
    Ok(time.strftime(format).to_string().into())
}
