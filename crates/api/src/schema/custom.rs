//! From the structural schema of a CustomResourceDefinition to a [`Type`].

use std::sync::Arc;

use json::{Map as JsonMap, Value};

use super::{Field, Key, List, ListKind, Map, Object, Type};

const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The type of a custom kind; `schema` is `openAPIV3Schema` of one version.
pub fn custom(kind: &str, schema: &Value) -> Type {
    Type::Object(Arc::new(object(kind, schema, true, false)))
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn text<'v>(schema: &'v Value, name: &str) -> &'v str {
    schema.get(name).and_then(Value::as_str).unwrap_or("")
}

/// `whole` is for what has `apiVersion`, `kind` and `metadata` of its own: the resource and embedded ones. `within` something
/// that keeps unknown fields an apply may state some too.
fn object(name: &str, schema: &Value, whole: bool, within: bool) -> Object {
    let open = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let properties: Option<&JsonMap> = schema.get("properties").and_then(Value::as_object);
    let own = properties.into_iter().flatten().filter(|(name, _)| !(whole && is_meta(name)));
    let mut fields: Vec<Field> = own.map(|(name, schema)| Field::new(name, ty(name, schema, within || open))).collect();
    if whole {
        fields.extend(["apiVersion", "kind"].map(|name| Field::new(name, Type::String)));
        let metadata = super::named(OBJECT_META).map_or(Type::Raw, Type::Ref);
        fields.push(Field::new("metadata", metadata));
    }
    Object {
        atomic: text(schema, "x-kubernetes-map-type") == "atomic",
        open,
        applied_freely: within || open,
        untyped: schema.get("type").is_none() && !whole,
        custom: true,
        ..Object::new(name, fields)
    }
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

fn ty(name: &str, schema: &Value, within: bool) -> Type {
    match text(schema, "type") {
        // Validation reads the text: an apply only asks whether it is a scalar.
        "string" if !matches!(text(schema, "format"), "" | "byte") => Type::Scalar,
        "string" => Type::String,
        "integer" => Type::Int64,
        "number" => Type::Number,
        "boolean" => Type::Bool,
        "array" => list(name, schema, within),
        "object" => fields_or_map(name, schema, within),
        // Any type will do ([`Object::untyped`]), but of an object some fields are known.
        "" if schema.get("properties").is_some() => fields_or_map(name, schema, within),
        _ => Type::Any,
    }
}

fn fields_or_map(name: &str, schema: &Value, within: bool) -> Type {
    let within = within || flag(schema, "x-kubernetes-preserve-unknown-fields");
    let values = match schema.get("additionalProperties") {
        Some(Value::Bool(true)) => Some(Type::Any),
        Some(values @ Value::Object(_)) => Some(ty(name, values, within)),
        _ => None,
    };
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    match values {
        Some(values) if schema.get("properties").is_none() => {
            let atomic = text(schema, "x-kubernetes-map-type") == "atomic";
            Type::Map(Arc::new(Map { values, atomic }))
        }
        _ => Type::Object(Arc::new(object(name, schema, embedded, within))),
    }
}

fn list(name: &str, schema: &Value, within: bool) -> Type {
    let items = schema.get("items").unwrap_or(&Value::Null);
    let kind = match text(schema, "x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => {
            let names = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
            let key = |name: &str| {
                let default = items.get("properties").and_then(|p| p.get(name)).and_then(|p| p.get("default"));
                Key { name: name.into(), default: default.cloned() }
            };
            ListKind::map(names.filter_map(Value::as_str).map(key).collect())
        }
        _ => ListKind::Atomic,
    };
    Type::List(Arc::new(List { items: ty(name, items, within), kind }))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::codec::decode::normalise;

    #[test]
    fn a_broken_head_of_an_object_within_is_told_with_its_place() {
        let whole = json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true});
        let list = json!({"type": "array", "items": whole});
        let ty = custom("Widget", &json!({"type": "object", "properties": {"one": whole, "list": list}}));
        let check =
            |given: Value, expected: &str| assert_eq!(normalise(&ty, given.clone()).expect_err("refused"), expected);
        check(
            json!({"one": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": 42}}}),
            "one.metadata: Invalid value: {\"name\":\"a\",\"namespace\":42}: json: cannot unmarshal number into Go struct \
             field ObjectMeta.namespace of type string",
        );
        check(json!({"list": [{"apiVersion": "v1", "kind": 1}]}), "list[0].kind: Invalid value: 1: must be a string");
        let given =
            json!({"one": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "x": 1}, "x": {"kind": 1}}});
        let (value, unknown) = normalise(&ty, given).expect("nothing is refused");
        assert_eq!(
            value["one"],
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "x": {"kind": 1}})
        );
        assert_eq!(unknown, ["unknown field \"one.metadata.x\""]);
    }

    #[test]
    fn numbers_are_whole_as_far_as_upstreams_are() {
        let schema = json!({"type": "object", "properties": {"i": {"type": "integer"}, "n": {"type": "number"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        let ty = custom("Widget", &schema);
        let check = |given: &str, expected: &str| {
            for place in [r#"{"i":N}"#, r#"{"n":N}"#, r#"{"free":{"l":[N]}}"#] {
                let given = json::parse(&place.replace('N', given)).expect("JSON");
                let (value, _) = normalise(&ty, given).expect("nothing is refused");
                let mut text = Vec::new();
                value.append_to(&mut text);
                assert_eq!(String::from_utf8_lossy(&text), place.replace('N', expected));
            }
        };
        for exact in ["9007199254740993", "-9007199254740993", "9223372036854775807", "-9223372036854775808"] {
            check(exact, exact);
        }
        check("9223372036854775808", "9223372036854776000");
        check("9223372036854775809", "9223372036854776000");
        check("18446744073709551615", "18446744073709552000");
        check("1e3", "1000");
    }

    #[test]
    fn custom_resources_are_pruned_and_keep_what_validation_must_see() {
        let schema = json!({ "type": "object", "properties": {
            "spec": { "type": "object", "properties": {
                "size": { "type": "integer" },
                "port": { "x-kubernetes-int-or-string": true },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": { "tight": { "type": "object" } } },
                "items": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                    "items": { "type": "object", "properties": { "id": { "type": "string", "default": "x" } } } },
            } },
        } });
        let ty = custom("Widget", &schema);
        let given = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "a", "foo": 1 },
            "spec": { "size": "large", "port": "http", "labels": { "a": "b" }, "x": 1, "items": [{ "id": "1", "y": 2 }],
                "free": { "any": { "thing": [null] }, "tight": { "z": 3 } } } });
        let (value, unknown) = normalise(&ty, given).expect("nothing is refused");
        assert_eq!(value["spec"]["size"], "large");
        assert_eq!(value["spec"]["free"], json!({ "any": { "thing": [null] }, "tight": {} }));
        assert_eq!(
            unknown,
            ["metadata.foo", "spec.free.tight.z", "spec.items[0].y", "spec.x"].map(|f| format!("unknown field {f:?}"))
        );
        let Some(Type::List(list)) = ty.at(&["spec", "items"]) else { panic!("a list") };
        assert_eq!(list.kind, ListKind::Map(Box::new([Key { name: "id".into(), default: Some("x".into()) }])));
        let metadata = normalise(&ty, json!({ "metadata": { "labels": { "a": 1 } } })).expect_err("refused");
        assert_eq!(metadata, "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string");
        let metadata = normalise(&ty, json!({ "metadata": [] })).expect_err("refused");
        assert_eq!(metadata, "json: cannot unmarshal array into Go value of type v1.ObjectMeta");
    }
}
