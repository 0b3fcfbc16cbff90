//! The view that expressions have of a custom object: its types, and its values where they are not simply JSON.
//! Upstream counterpart: SchemaDeclType of apiserver/pkg/cel/common, and values.go beside it.

use std::sync::Arc;

use base64::Engine;
use cel::{Map, Type, Value, escaped, timestamp};
use jiff::Timestamp;
use json::Value as Json;

use crate::custom::formats::go_duration;
use crate::custom::structural::Structural;

/// The object types that a schema needs, by name.
pub type Objects = Vec<(String, Vec<(String, Type)>)>;

/// The type of a schema's values; `None` where nothing is known about them, so that expressions cannot reach them.
/// `whole` is for what has kind and metadata of its own.
pub fn type_of(schema: &Structural, whole: bool, name: &str, objects: &mut Objects) -> Option<Type> {
    if schema.int_or_string {
        return Some(Type::Dyn);
    }
    Some(match &*schema.ty {
        _ if whole => object(schema, true, name, objects),
        "array" => {
            let items = schema.items.as_deref()?;
            Type::list(type_of(items, items.embedded, &format!("{name}.@items"), objects)?)
        }
        "object" => match schema.values() {
            Some(values) => {
                Type::map(Type::String, type_of(values, values.embedded, &format!("{name}.@values"), objects)?)
            }
            None => object(schema, false, name, objects),
        },
        "string" => match &*schema.shown_format {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Timestamp,
            _ => Type::String,
        },
        "boolean" => Type::Bool,
        "number" => Type::Double,
        "integer" => Type::Int,
        _ => return None,
    })
}

fn object(schema: &Structural, whole: bool, name: &str, objects: &mut Objects) -> Type {
    let own = schema.properties.iter().filter(|(field, _)| !(whole && is_meta(field)));
    let mut fields: Vec<(String, Type)> = Vec::with_capacity(schema.properties.len());
    for (field, of) in own {
        let path = format!("{name}.{field}");
        if let (Some(spelled), Some(ty)) = (escaped(field), type_of(of, of.embedded, &path, objects)) {
            fields.push((spelled, ty));
        }
    }
    if whole {
        let metadata = format!("{name}.metadata");
        fields.extend(["apiVersion", "kind"].map(|field| (field.to_owned(), Type::String)));
        fields.push(("metadata".to_owned(), Type::object(&metadata)));
        objects.push((metadata, ["name", "generateName"].map(|field| (field.to_owned(), Type::String)).to_vec()));
    }
    objects.push((name.to_owned(), fields));
    Type::object(name)
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// A value as expressions see it. Nothing is copied where that is the JSON that it is.
pub fn value<'v>(json: &'v Json, schema: &Structural) -> Value<'v> {
    if schema.plain {
        return Value::json(json);
    }
    match json {
        Json::Object(fields) => {
            let mut map = Map::empty();
            // A field that is null is one that is not there. An entry of a map is there all the same.
            let absent = |json: &Json| json.is_null() && !schema.properties.is_empty();
            let mut hidden = 0;
            for (name, json) in fields {
                if absent(json) {
                    hidden += 1;
                    continue;
                }
                let known = schema.field(name);
                let spelled = schema.properties.get(name.as_str()).and_then(|_| escaped(name));
                let key = spelled.map_or_else(|| Value::str(name), Value::string);
                let value = known.map_or_else(|| Value::json(json), |of| value(json, of));
                // Names of fields are texts and are there once, so that none is refused.
                map = map.insert(key, value).unwrap_or_else(|_| Map::empty());
            }
            Value::Map(map.with_hidden(hidden))
        }
        Json::Array(items) => match &schema.items {
            Some(of) => {
                let items = items.iter().map(|item| value(item, of)).collect();
                if schema.is_associative() {
                    let spelled = |name: &str| escaped(name).unwrap_or_else(|| name.to_owned()).into();
                    Value::associative(items, schema.list_keys.iter().map(|name| spelled(name)).collect())
                } else {
                    Value::list(items)
                }
            }
            None => Value::json(json),
        },
        Json::Number(number) if &*schema.ty == "number" => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => formatted(text, &schema.shown_format).unwrap_or_else(|| Value::json(json)),
        _ => Value::json(json),
    }
}

fn formatted(text: &str, format: &str) -> Option<Value<'static>> {
    Some(match format {
        "byte" => Value::Bytes(Arc::from(base64::engine::general_purpose::STANDARD.decode(text).ok()?)),
        "duration" => Value::Duration(go_duration(text)?),
        "date" => {
            let day: jiff::civil::Date = text.parse().ok()?;
            Value::Timestamp(day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().into())
        }
        "date-time" => {
            // The format also takes texts that the language does not.
            let other = || Some(text.parse::<Timestamp>().ok()?.into());
            Value::Timestamp(timestamp(text).or_else(other)?)
        }
        _ => return None,
    })
}
