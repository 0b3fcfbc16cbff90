//! From the JSON of an object to its message.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::Value;

use super::{Field, Repeat, Type, fields, read::props, wire::Writer};

pub fn message(out: &mut Writer, name: &str, value: &Value) {
    if special(out, name, value) {
        return;
    }
    for field in fields(name) {
        if let (Repeat::Inline, Type::Message(inner)) = (field.repeat, field.ty) {
            out.message(field.number, |m| message(m, inner, value));
            continue;
        }
        let found = value.get(field.name).filter(|v| !v.is_null());
        match (field.repeat, found) {
            (Repeat::List, found) => {
                for item in found.and_then(Value::as_array).into_iter().flatten() {
                    one(out, field.number, field.ty, item);
                }
            }
            (Repeat::Map, found) => {
                for (key, item) in found.and_then(Value::as_object).into_iter().flatten() {
                    out.message(field.number, |m| {
                        m.block(1, key.as_bytes());
                        one(m, 2, field.ty, item);
                    });
                }
            }
            (_, Some(item)) => one(out, field.number, field.ty, item),
            (_, None) => zero(out, field),
        }
    }
}

/// A field that is not set: upstream writes its zero value where the Go type is no pointer.
fn zero(out: &mut Writer, field: &Field) {
    let nothing = field.optional || field.ty == Type::Bytes;
    if !nothing {
        one(out, field.number, field.ty, &Value::Null);
    }
}

fn one(out: &mut Writer, number: u32, ty: Type, value: &Value) {
    match ty {
        Type::String => out.block(number, value.as_str().unwrap_or("").as_bytes()),
        Type::Bytes => out.block(number, &STANDARD.decode(value.as_str().unwrap_or("")).unwrap_or_default()),
        // Negative numbers are extended to 64 bits.
        Type::Int32 | Type::Int64 => out.varint(number, value.as_i64().unwrap_or(0) as u64),
        Type::Bool => out.varint(number, u64::from(value.as_bool().unwrap_or(false))),
        Type::Double => out.double(number, value.as_f64().unwrap_or(0.0)),
        Type::Message(name) => out.message(number, |m| message(m, name, value)),
    }
}

/// The messages that have a JSON form of their own.
fn special(out: &mut Writer, name: &str, value: &Value) -> bool {
    match name {
        "apimachinery.pkg.api.resource.Quantity" | "apimachinery.pkg.api.resource.QuantityValue" => {
            out.block(1, value.as_str().unwrap_or("0").as_bytes());
        }
        "apimachinery.pkg.apis.meta.v1.Time" | "apimachinery.pkg.apis.meta.v1.MicroTime" => {
            if let Some(time) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
                out.varint(1, time.as_second() as u64);
                out.varint(2, time.subsec_nanosecond() as u64);
            }
        }
        "apimachinery.pkg.util.intstr.IntOrString" => {
            out.varint(1, u64::from(value.is_string()));
            out.varint(2, value.as_i64().unwrap_or(0) as u64);
            out.block(3, value.as_str().unwrap_or("").as_bytes());
        }
        "apimachinery.pkg.runtime.RawExtension"
        | "apimachinery.pkg.apis.meta.v1.FieldsV1"
        | "apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON"
        | "apiextensions_apiserver.pkg.apis.apiextensions.v1beta1.JSON" => {
            if !value.is_null() {
                out.block(1, value.to_string().as_bytes());
            }
        }
        name if name.ends_with(".ExtraValue") || name == "apimachinery.pkg.apis.meta.v1.Verbs" => {
            for item in value.as_array().into_iter().flatten() {
                one(out, 1, Type::String, item);
            }
        }
        name if name.ends_with(".JSONSchemaPropsOrBool") => {
            let schema = value.is_object();
            out.varint(1, u64::from(schema || value.as_bool().unwrap_or(false)));
            if schema {
                out.message(2, |m| message(m, props(name), value));
            }
        }
        name if name.ends_with(".JSONSchemaPropsOrArray") || name.ends_with(".JSONSchemaPropsOrStringArray") => {
            let ty = if name.ends_with("StringArray") { Type::String } else { Type::Message(props(name)) };
            match value {
                Value::Array(list) => list.iter().for_each(|item| one(out, 2, ty, item)),
                schema => out.message(1, |m| message(m, props(name), schema)),
            }
        }
        _ => return false,
    }
    true
}
