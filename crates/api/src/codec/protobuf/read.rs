//! From a message to the JSON of the same object.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use json::{Map, Number, Value};

use super::{
    Malformed,
    table::{Form, Message, Repeat, Type},
    wire::{Item, Reader},
};

type Result<T> = std::result::Result<T, Malformed>;

/// Messages inside one another at most, against bytes made to exhaust the stack.
const MAX_DEPTH: usize = 100;

pub fn message(of: &'static Message, bytes: &[u8]) -> Result<Value> {
    nested(of, bytes, 0)
}

fn nested(of: &'static Message, bytes: &[u8], depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(Malformed);
    }
    if of.form != Form::Fields {
        return special(of, bytes, depth);
    }
    let mut map = Map::new();
    into(&mut map, of, bytes, depth)?;
    // The schema table knows parts of these only as any JSON, so their zero values would stay.
    if of.name.ends_with(".JSONSchemaProps") {
        let optional = |name: &str| of.fields().iter().any(|f| f.name == name && f.optional);
        map.retain(|name, value| optional(name) || !is_zero(value));
    }
    Ok(Value::Object(map))
}

fn is_zero(value: &Value) -> bool {
    value.as_str() == Some("") || value.as_bool() == Some(false) || value.as_i64() == Some(0)
}

fn into(map: &mut Map, of: &'static Message, bytes: &[u8], depth: usize) -> Result<()> {
    let mut reader = Reader(bytes);
    while let Some((number, item)) = reader.next()? {
        // Fields of a later version are passed over.
        let Some(field) = of.by_number(number) else { continue };
        match (field.repeat, field.ty, item) {
            (Repeat::Inline, Type::Message(inner), Item::Block(bytes)) => into(map, inner, bytes, depth + 1)?,
            (Repeat::Inline, ..) => return Err(Malformed),
            (Repeat::One, ty, item) => {
                map.insert(field.name, value(ty, item, depth)?);
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
        Type::Message(of) => nested(of, &[], depth + 1)?,
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
        (Type::Message(of), Item::Block(bytes)) => nested(of, bytes, depth + 1)?,
        _ => return Err(Malformed),
    })
}

/// The messages that have a JSON form of their own.
fn special(of: &'static Message, bytes: &[u8], depth: usize) -> Result<Value> {
    Ok(match of.form {
        Form::Fields => Value::Null,
        Form::Quantity => block(bytes, 1)?.map(text).transpose()?.unwrap_or("0").into(),
        Form::Time => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        Form::MicroTime => time(bytes, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        Form::IntOrString => match (number(bytes, 1)?, block(bytes, 3)?) {
            (0, _) => (number(bytes, 2)? as i32).into(),
            (_, string) => text(string.unwrap_or_default())?.into(),
        },
        Form::Raw => match block(bytes, 1)? {
            Some(raw) if !raw.is_empty() => serde_json::from_slice(raw).map_err(|_| Malformed)?,
            _ => Value::Null,
        },
        Form::Strings => list(Type::String, bytes, depth)?,
        Form::SchemaOrBool => match block(bytes, 2)? {
            Some(schema) => nested(of.props(), schema, depth + 1)?,
            None => (number(bytes, 1)? != 0).into(),
        },
        Form::SchemaOrArray | Form::SchemaOrStrings => match block(bytes, 1)? {
            Some(schema) => nested(of.props(), schema, depth + 1)?,
            None if of.form == Form::SchemaOrStrings => list(Type::String, bytes, depth)?,
            None => list(Type::Message(of.props()), bytes, depth)?,
        },
    })
}

fn list(ty: Type, bytes: &[u8], depth: usize) -> Result<Value> {
    let mut list = Vec::new();
    let mut reader = Reader(bytes);
    while let Some((_, item)) = reader.next()? {
        list.push(value(ty, item, depth)?);
    }
    Ok(Value::Array(list))
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
