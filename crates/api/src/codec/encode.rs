//! Values as JSON text, with the fields of an object in the order in which upstream declares them: people and scripts read
//! the text. A value that has no type is written in the order of its names, as upstream does with custom kinds and maps.

use json::{Key, Map, Value};

use crate::schema::{self, Field, Object, Type};

/// Appends the fields of an object but for some, with commas between them and no braces. True when there were any.
pub fn fields(out: &mut Vec<u8>, ty: &Type, map: &Map, without: &[&str]) -> bool {
    let wanted = |name: &Key| !without.contains(&name.as_str());
    Encoder { out, waiting: Vec::with_capacity(64) }.fields(ty.object(), map, wanted)
}

/// The text of a value of this type.
pub fn text(ty: &Type, value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    Encoder { out: &mut out, waiting: Vec::new() }.value(ty, value);
    out
}

/// The text of a value that says itself what it is; a value of an unknown kind is written in the order of its names.
pub fn described(value: &Value) -> Vec<u8> {
    text(&schema::of_object(value), value)
}

/// A field that is to be written: its place among the others, and its type where that says something about the order.
struct Waiting<'v> {
    place: u16,
    ty: Option<&'v Type>,
    name: &'v Key,
    value: &'v Value,
}

const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Whether the field of a schema holds a schema although it has no type, because it takes other things too.
fn is_schema(object: Option<&Object>, field: &Field) -> bool {
    matches!(field.ty, Type::Any)
        && matches!(field.name.as_str(), "items" | "additionalProperties")
        && object.is_some_and(|object| &*object.name == SCHEMA)
}

struct Encoder<'o, 'v> {
    out: &'o mut Vec<u8>,
    /// The fields of the objects that are being written, those of the innermost last.
    waiting: Vec<Waiting<'v>>,
}

impl<'v> Encoder<'_, 'v> {
    fn value(&mut self, ty: &'v Type, value: &'v Value) {
        match (value, ty.resolve()) {
            (Value::Object(map), Type::Object(object)) if !object.custom => {
                self.out.push(b'{');
                self.fields(Some(object), map, |_| true);
                self.out.push(b'}');
            }
            (Value::Object(map), Type::Map(of)) if of.values.object().is_some() => {
                self.out.push(b'{');
                for (at, (name, value)) in map.iter().enumerate() {
                    self.name(name, at == 0);
                    self.value(&of.values, value);
                }
                self.out.push(b'}');
            }
            (Value::Array(items), Type::List(of)) if of.items.object().is_some() => {
                self.out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    self.value(&of.items, item);
                }
                self.out.push(b']');
            }
            _ => value.append_to(self.out),
        }
    }

    fn fields(&mut self, object: Option<&'v Object>, map: &'v Map, wanted: impl Fn(&Key) -> bool) -> bool {
        let start = self.waiting.len();
        for (name, value) in map.iter().filter(|(name, _)| wanted(name)) {
            // Of a name of the schema's own it is known that it stands in JSON as it is.
            let (place, ty, name) = match object.and_then(|object| object.field(name)) {
                Some(field) if is_schema(object, field) => (field.place, schema::of(SCHEMA), &field.name),
                Some(field) => (field.place, Some(&field.ty), &field.name),
                None => (u16::MAX, None, name),
            };
            self.waiting.push(Waiting { place, ty, name, value });
        }
        let by_place = |a: &Waiting<'_>, b: &Waiting<'_>| a.place.cmp(&b.place).then_with(|| a.name.cmp(b.name));
        self.waiting[start..].sort_unstable_by(by_place);
        let end = self.waiting.len();
        for at in start..end {
            let Waiting { ty, name, value, .. } = self.waiting[at];
            self.name(name, at == start);
            match ty {
                Some(ty) => self.value(ty, value),
                None => value.append_to(self.out),
            }
        }
        self.waiting.truncate(start);
        end > start
    }

    fn name(&mut self, name: &Key, first: bool) {
        if !first {
            self.out.push(b',');
        }
        json::append_name(self.out, name);
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn fields_stand_where_upstream_declares_them() {
        let check = |value: Value, expected: &str| {
            assert_eq!(String::from_utf8(described(&value)).expect("UTF-8"), expected);
        };
        check(
            json!({
                "apiVersion": "v1", "kind": "Pod", "spec": {
                    "containers": [{"image": "i", "name": "c", "env": [{"value": "v", "name": "n"}], "args": []}],
                    "volumes": [], "nodeSelector": {"b": "1", "a": "2"},
                },
                "metadata": {"uid": "u", "labels": {"name": "x", "a": "\"y\""}, "namespace": "s", "name": "p"},
            }),
            concat!(
                r#"{"kind":"Pod","apiVersion":"v1","#,
                r#""metadata":{"name":"p","namespace":"s","uid":"u","labels":{"a":"\"y\"","name":"x"}},"#,
                r#""spec":{"volumes":[],"containers":[{"name":"c","image":"i","args":[],"env":[{"name":"n","value":"v"}]}],"#,
                r#""nodeSelector":{"a":"2","b":"1"}}}"#,
            ),
        );
        // Fields that the type does not know, and kinds that nobody knows.
        check(
            json!({"kind": "ConfigMap", "apiVersion": "v1", "b": 1, "a": [{}], "data": null}),
            r#"{"kind":"ConfigMap","apiVersion":"v1","data":null,"a":[{}],"b":1}"#,
        );
        check(
            json!({"kind": "ConfigMap", "apiVersion": "example.com/v1", "metadata": {"name": "a", "labels": {}}}),
            r#"{"apiVersion":"example.com/v1","kind":"ConfigMap","metadata":{"labels":{},"name":"a"}}"#,
        );
        check(
            json!({"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound", "status": "Failure"}),
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#,
        );
        check(
            json!({
                "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "spec": {"versions": [{"schema": {
                    "openAPIV3Schema": {"properties": {"a": {"items": {"type": "string", "description": "d"}}}, "type": "object"},
                }, "name": "v1"}]},
            }),
            concat!(
                r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","spec":{"versions":[{"name":"v1","#,
                r#""schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"items":{"description":"d","type":"string"}}}}}"#,
                r#"}]}}"#,
            ),
        );
        check(json!([1, null]), "[1,null]");
    }
}
