//! The version 2 document in protobuf: the message `openapi.v2.Document` of google/gnostic, which client-go's discovery
//! asks for by `application/com.github.proto-openapi.spec.v2@v1.0+protobuf` and cannot do without.

use json::{Key, Map, Value};

use crate::codec::protobuf::wire::Writer;

/// Encodes a document as [`super::v2`] makes it.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(1, document.get("swagger"));
    out.message(2, |m| {
        m.text(1, document["info"].get("title"));
        m.text(2, document["info"].get("version"));
    });
    out.message(8, |paths| {
        for (path, item) in entries(document.get("paths")) {
            paths.named(2, path, |m| path_item(m, item));
        }
    });
    out.message(9, |definitions| {
        for (name, schema) in entries(document.get("definitions")) {
            definitions.named(1, name, |m| self::schema(m, schema));
        }
    });
    for requirement in items(document.get("security")) {
        out.message(12, |m| {
            for (name, scopes) in entries(Some(requirement)) {
                m.named(1, name, |m| m.texts(1, Some(scopes)));
            }
        });
    }
    out.message(13, |m| {
        for (name, security) in entries(document.get("securityDefinitions")) {
            m.named(1, name, |m| m.message(2, |m| api_key(m, security)));
        }
    });
    out.bytes
}

pub(super) fn entries(value: Option<&Value>) -> impl Iterator<Item = (&Key, &Value)> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

pub(super) fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn api_key(m: &mut Writer, security: &Value) {
    m.text(1, security.get("type"));
    m.text(2, security.get("name"));
    m.text(3, security.get("in"));
    m.text(4, security.get("description"));
}

fn path_item(m: &mut Writer, item: &Value) {
    for (name, field) in [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("patch", 8)] {
        if let Some(operation) = item.get(name) {
            m.message(field, |m| self::operation(m, operation));
        }
    }
    for parameter in items(item.get("parameters")) {
        m.message(9, |m| self::parameter(m, parameter));
    }
}

fn operation(m: &mut Writer, operation: &Value) {
    m.texts(1, operation.get("tags"));
    m.text(3, operation.get("description"));
    m.text(5, operation.get("operationId"));
    m.texts(6, operation.get("produces"));
    m.texts(7, operation.get("consumes"));
    for parameter in items(operation.get("parameters")) {
        m.message(8, |m| self::parameter(m, parameter));
    }
    m.message(9, |m| {
        for (code, response) in entries(operation.get("responses")) {
            m.named(1, code, |m| m.message(1, |m| self::response(m, response)));
        }
    });
    m.texts(10, operation.get("schemes"));
    extensions(m, 13, operation);
}

fn response(m: &mut Writer, response: &Value) {
    m.text(1, response.get("description"));
    if let Some(schema) = response.get("schema") {
        m.message(2, |m| m.message(1, |m| self::schema(m, schema)));
    }
}

/// A `ParametersItem`: the parameter stands in three nested alternatives.
fn parameter(m: &mut Writer, parameter: &Value) {
    let place = parameter.get("in").and_then(Value::as_str).unwrap_or("");
    m.message(1, |m| match place {
        "body" => m.message(1, |m| {
            m.text(2, parameter.get("name"));
            m.text(3, parameter.get("in"));
            m.flag(4, parameter.get("required"));
            if let Some(schema) = parameter.get("schema") {
                m.message(5, |m| self::schema(m, schema));
            }
        }),
        // Path and query parameters differ in their numbers only.
        _ => m.message(2, |m| {
            let (alternative, ty, unique) = if place == "path" { (4, 5, 19) } else { (3, 6, 20) };
            m.message(alternative, |m| {
                m.flag(1, parameter.get("required"));
                m.text(2, parameter.get("in"));
                m.text(3, parameter.get("description"));
                m.text(4, parameter.get("name"));
                m.text(ty, parameter.get("type"));
                m.flag(unique, parameter.get("uniqueItems"));
            });
        }),
    });
}

fn schema(m: &mut Writer, schema: &Value) {
    m.text(1, schema.get("$ref"));
    m.text(2, schema.get("format"));
    m.text(4, schema.get("description"));
    m.texts(19, schema.get("required"));
    for value in items(schema.get("enum")) {
        m.message(20, |m| m.block(2, value.to_string().as_bytes()));
    }
    if let Some(additional) = schema.get("additionalProperties") {
        m.message(21, |m| match additional {
            Value::Bool(_) => m.flag(2, Some(additional)),
            schema => m.message(1, |m| self::schema(m, schema)),
        });
    }
    if let Some(ty) = schema.get("type") {
        m.message(22, |m| m.text(1, Some(ty)));
    }
    if let Some(items) = schema.get("items") {
        m.message(23, |m| m.message(1, |m| self::schema(m, items)));
    }
    if schema.get("properties").is_some() {
        m.message(25, |m| {
            for (name, property) in entries(schema.get("properties")) {
                m.named(1, name, |m| self::schema(m, property));
            }
        });
    }
    extensions(m, 31, schema);
}

/// Fields that start with `x-`, each as a piece of YAML (JSON is YAML).
pub(super) fn extensions(m: &mut Writer, field: u32, of: &Value) {
    for (name, value) in entries(Some(of)).filter(|(name, _)| name.starts_with("x-")) {
        m.named(field, name, |m| m.block(2, value.to_string().as_bytes()));
    }
}

/// Writers for the document's parts, beyond the wire format.
pub(super) trait Parts {
    fn text(&mut self, field: u32, value: Option<&Value>);
    fn texts(&mut self, field: u32, values: Option<&Value>);
    fn flag(&mut self, field: u32, value: Option<&Value>);
    /// A name with a message as its value.
    fn named(&mut self, field: u32, name: &str, write: impl FnOnce(&mut Writer));
}

impl Parts for Writer {
    fn text(&mut self, field: u32, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.block(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u32, values: Option<&Value>) {
        items(values).for_each(|value| self.text(field, Some(value)));
    }

    fn flag(&mut self, field: u32, value: Option<&Value>) {
        if value == Some(&Value::Bool(true)) {
            self.varint(field, 1);
        }
    }

    fn named(&mut self, field: u32, name: &str, write: impl FnOnce(&mut Writer)) {
        self.message(field, |m| {
            m.block(1, name.as_bytes());
            m.message(2, write);
        });
    }
}
