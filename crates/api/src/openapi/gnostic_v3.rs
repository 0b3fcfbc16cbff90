//! A document of version 3 in protobuf: the message `openapi.v3.Document` of google/gnostic-models, which clients ask for by
//! `application/com.github.proto-openapi.spec.v3@v1.0+protobuf`.

use json::Value;

use super::gnostic::{Parts, entries, extensions, items};
use crate::codec::protobuf::wire::Writer;

/// Encodes a document as [`super::v3`] makes it.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(1, document.get("openapi"));
    out.message(2, |m| {
        m.text(1, document["info"].get("title"));
        m.text(6, document["info"].get("version"));
    });
    out.message(4, |m| {
        for (path, item) in entries(document.get("paths")) {
            m.named(1, path, |m| path_item(m, item));
        }
    });
    let components = &document["components"];
    out.message(5, |m| {
        m.message(1, |m| {
            for (name, schema) in entries(components.get("schemas")) {
                m.named(1, name, |m| self::schema(m, schema));
            }
        });
        m.message(7, |m| {
            for (name, scheme) in entries(components.get("securitySchemes")) {
                m.named(1, name, |m| m.message(1, |m| security_scheme(m, scheme)));
            }
        });
    });
    out.bytes
}

fn security_scheme(m: &mut Writer, scheme: &Value) {
    for (field, name) in [(1, "type"), (2, "description"), (3, "name"), (4, "in")] {
        m.text(field, scheme.get(name));
    }
}

fn path_item(m: &mut Writer, item: &Value) {
    for (name, field) in [("get", 4), ("put", 5), ("post", 6), ("delete", 7), ("patch", 10)] {
        if let Some(operation) = item.get(name) {
            m.message(field, |m| self::operation(m, operation));
        }
    }
    for parameter in items(item.get("parameters")) {
        m.message(13, |m| self::parameter(m, parameter));
    }
}

fn operation(m: &mut Writer, operation: &Value) {
    m.texts(1, operation.get("tags"));
    m.text(3, operation.get("description"));
    m.text(5, operation.get("operationId"));
    for parameter in items(operation.get("parameters")) {
        m.message(6, |m| self::parameter(m, parameter));
    }
    if let Some(body) = operation.get("requestBody") {
        m.message(7, |m| {
            m.message(1, |m| {
                m.text(1, body.get("description"));
                content(m, 2, body);
                m.flag(3, body.get("required"));
            });
        });
    }
    m.message(8, |m| {
        for (code, response) in entries(operation.get("responses")) {
            m.named(2, code, |m| {
                m.message(1, |m| {
                    m.text(1, response.get("description"));
                    content(m, 3, response);
                });
            });
        }
    });
    extensions(m, 13, operation);
}

/// The schemas of a body by its media types.
fn content(m: &mut Writer, field: u32, of: &Value) {
    if of.get("content").is_none() {
        return;
    }
    m.message(field, |m| {
        for (media_type, about) in entries(of.get("content")) {
            m.named(1, media_type, |m| one(m, 1, about.get("schema")));
        }
    });
}

/// A `ParameterOrReference`.
fn parameter(m: &mut Writer, parameter: &Value) {
    m.message(1, |m| {
        for (field, name) in [(1, "name"), (2, "in"), (3, "description")] {
            m.text(field, parameter.get(name));
        }
        m.flag(4, parameter.get("required"));
        one(m, 10, parameter.get("schema"));
    });
}

/// A schema, if there is one.
fn one(m: &mut Writer, field: u32, schema: Option<&Value>) {
    if let Some(schema) = schema {
        m.message(field, |m| self::schema(m, schema));
    }
}

/// A `SchemaOrReference`.
fn schema(m: &mut Writer, schema: &Value) {
    match schema.get("$ref") {
        Some(reference) => m.message(2, |m| m.text(1, Some(reference))),
        None => m.message(1, |m| bare(m, schema)),
    }
}

/// A `Schema`.
fn bare(m: &mut Writer, schema: &Value) {
    m.flag(1, schema.get("nullable"));
    m.text(9, schema.get("title"));
    for (field, name) in [(10, "multipleOf"), (11, "maximum"), (13, "minimum")] {
        double(m, field, schema.get(name));
    }
    for (field, name) in [(12, "exclusiveMaximum"), (14, "exclusiveMinimum"), (20, "uniqueItems")] {
        m.flag(field, schema.get(name));
    }
    for (field, name) in [
        (15, "maxLength"),
        (16, "minLength"),
        (18, "maxItems"),
        (19, "minItems"),
        (21, "maxProperties"),
        (22, "minProperties"),
    ] {
        if let Some(number) = schema.get(name).and_then(Value::as_i64) {
            m.varint(field, number as u64);
        }
    }
    m.text(17, schema.get("pattern"));
    m.texts(23, schema.get("required"));
    for value in items(schema.get("enum")) {
        m.message(24, |m| m.block(2, value.to_string().as_bytes()));
    }
    m.text(25, schema.get("type"));
    for (field, name) in [(26, "allOf"), (27, "oneOf"), (28, "anyOf")] {
        items(schema.get(name)).for_each(|part| one(m, field, Some(part)));
    }
    if let Some(not) = schema.get("not") {
        m.message(29, |m| bare(m, not));
    }
    if let Some(items) = schema.get("items") {
        m.message(30, |m| one(m, 1, Some(items)));
    }
    if schema.get("properties").is_some() {
        m.message(31, |m| {
            for (name, property) in entries(schema.get("properties")) {
                m.named(1, name, |m| self::schema(m, property));
            }
        });
    }
    if let Some(additional) = schema.get("additionalProperties") {
        m.message(32, |m| match additional {
            Value::Bool(allowed) => m.varint(2, u64::from(*allowed)),
            schema => one(m, 1, Some(schema)),
        });
    }
    default(m, schema.get("default"));
    m.text(34, schema.get("description"));
    m.text(35, schema.get("format"));
    extensions(m, 36, schema);
}

/// A `DefaultType`, which has no form for objects and lists.
fn default(m: &mut Writer, value: Option<&Value>) {
    match value {
        Some(Value::Number(_)) => m.message(33, |m| double(m, 1, value)),
        Some(Value::Bool(value)) => m.message(33, |m| m.varint(2, u64::from(*value))),
        Some(Value::String(text)) => m.message(33, |m| m.block(3, text.as_bytes())),
        _ => {}
    }
}

fn double(m: &mut Writer, field: u32, value: Option<&Value>) {
    if let Some(number) = value.and_then(Value::as_f64) {
        m.double(field, number);
    }
}
