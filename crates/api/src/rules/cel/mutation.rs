//! Expressions that change an object: the types of objects that they make, and what these become.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/cel/mutation, pkg/cel/library/jsonpatch.go.

use std::collections::BTreeMap;

use cel::{Call, Environment, EvaluationError, Library, Made, Type, Value as Cel, function};
use json::{Map, Value};

use super::admission::{self, OptionalVariables};
use crate::codec::base64;

const OBJECT: &str = "Object";
const PATCH: &str = "JSONPatch";

/// How an expression says what changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Part of an object, which is applied: `Object{spec: Object.spec{replicas: 3}}`.
    Configuration,
    /// The operations of a JSON patch: `[JSONPatch{op: "add", path: "/spec/replicas", value: 3}]`.
    Operations,
}

impl Change {
    pub fn of(patch_type: &str) -> Option<Change> {
        [Change::Configuration, Change::Operations].into_iter().find(|change| change.name() == patch_type)
    }

    /// The patch type of a mutation.
    pub const fn name(self) -> &'static str {
        match self {
            Change::Configuration => "ApplyConfiguration",
            Change::Operations => "JSONPatch",
        }
    }

    /// The type of what the expression makes.
    pub fn result(self) -> Type {
        match self {
            Change::Configuration => Type::object(OBJECT),
            Change::Operations => Type::list(Type::object(PATCH)),
        }
    }
}

const LIBRARY: Library =
    Library { functions: &[function("jsonpatch.escapeKey(string): string", escape_key)], types: &[] };

/// A key as a part of a path: `a/b~c` becomes `a~1b~0c`.
fn escape_key<'a>(call: &mut Call<'_>, given: &[Cel<'a>]) -> Result<Cel<'a>, EvaluationError> {
    let key = given[0].as_str().ok_or_else(EvaluationError::no_such_overload)?;
    call.making(key.len() * 2)?;
    Ok(Cel::string(key.replace('~', "~0").replace('/', "~1")))
}

/// The environment of expressions that change an object.
pub fn environment(params: bool) -> Environment {
    let text = |name: &str| (name.to_owned(), Type::String);
    let fields = [text("op"), text("path"), text("from"), ("value".to_owned(), Type::Dyn)];
    let all = admission::environment(OptionalVariables { params, authorizer: true });
    all.extend().library(&LIBRARY).made_openly(OBJECT).made(PATCH, fields).build()
}

/// The object that an expression made, as it is applied.
pub fn configuration(made: &Cel<'_>) -> Result<Value, String> {
    let Cel::Object(object) = made else { return Err(format!("invalid return type: {}", made.type_of())) };
    names_match(made)?;
    object_of(object)
}

/// The operations that an expression made, as a JSON patch.
pub fn operations(made: &Cel<'_>) -> Result<Value, String> {
    let Cel::List(list) = made else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let operation = |one: Cel<'_>| {
        let Cel::Object(operation) = &one else {
            return Err("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned());
        };
        let value = operation.get("value");
        value.filter(|value| matches!(value, Cel::Object(_))).map_or(Ok(()), names_match)?;
        let wrong = |why| format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}");
        let mut fields = Map::new();
        for name in ["op", "path", "from", "value"] {
            if let Some(value) = operation.get(name) {
                fields.insert(name, json_of(value).map_err(wrong)?);
            }
        }
        Ok(Value::Object(fields))
    };
    list.iter().map(operation).collect::<Result<Vec<Value>, String>>().map(Value::Array)
}

/// The name of an object's type says where the object stands below the outermost one.
fn names_match(outermost: &Cel<'_>) -> Result<(), String> {
    let Cel::Object(object) = outermost else { return Ok(()) };
    let mut wrong = Vec::new();
    misnamed(outermost, &object.name, &mut wrong);
    if wrong.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", wrong.join("\n"))) }
}

fn misnamed(value: &Cel<'_>, place: &str, wrong: &mut Vec<String>) {
    match value {
        Cel::Object(object) => {
            if &*object.name != place {
                let found = &object.name;
                wrong.push(format!(
                    "unexpected type name {found:?}, expected {place:?}, which matches field name path from root Object type"
                ));
            }
            for (name, field) in &object.fields {
                misnamed(field, &format!("{place}.{name}"), wrong);
            }
        }
        // A value that came with the request has no objects of expressions inside.
        Cel::List(cel::List::Json(_)) | Cel::Map(cel::Map::Json(_)) => {}
        Cel::List(list) => list.iter().for_each(|item| misnamed(&item, place, wrong)),
        Cel::Map(map) => {
            let values = map.keys().into_iter().filter_map(|key| map.get(&key).ok().flatten());
            values.for_each(|value| misnamed(&value, place, wrong));
        }
        _ => {}
    }
}

fn object_of(object: &Made<'_>) -> Result<Value, String> {
    let field = |(name, value): &(_, Cel<'_>)| -> Result<(String, Value), String> {
        let name: &std::sync::Arc<str> = name;
        let value = json_of(value).map_err(|why| format!("fail to convert field {name:?}: {why}"))?;
        Ok((name.to_string(), value))
    };
    let fields: BTreeMap<String, Value> = object.fields.iter().map(field).collect::<Result<_, String>>()?;
    Ok(Value::Object(fields.into_iter().collect()))
}

/// A value as JSON.
fn json_of(value: &Cel<'_>) -> Result<Value, String> {
    Ok(match value {
        Cel::Null | Cel::Optional(None) => Value::Null,
        Cel::Optional(Some(inner)) => json_of(inner)?,
        Cel::Bool(flag) => Value::from(*flag),
        Cel::Int(int) => Value::from(*int),
        Cel::Uint(uint) => Value::from(*uint),
        Cel::Double(double) if double.is_finite() => Value::from(*double),
        Cel::String(text) => Value::from(&**text),
        Cel::Bytes(bytes) => Value::from(base64::encode(bytes)),
        Cel::Timestamp(at) => Value::from(at.to_string()),
        #[expect(clippy::cast_precision_loss)]
        Cel::Duration(nanos) => Value::from(format!("{}s", *nanos as f64 / 1e9)),
        Cel::List(list) => list.iter().map(|item| json_of(&item)).collect::<Result<Vec<Value>, String>>()?.into(),
        Cel::Map(map) => {
            let mut fields = Map::new();
            for key in map.keys() {
                let kind = key.type_of();
                let name = key.as_str().ok_or_else(|| format!("map key {key} is of type {kind}, not string"))?;
                let value = map.get(&key).map_err(|why| why.to_string())?.unwrap_or_default();
                fields.insert(name.to_owned(), json_of(&value)?);
            }
            Value::Object(fields)
        }
        Cel::Object(object) => object_of(object)?,
        other => return Err(format!("unsupported type {}", other.type_of())),
    })
}

#[cfg(test)]
mod tests {
    use cel::{Budget, Variables};
    use json::json;

    use super::*;

    fn made(change: Change, text: &str) -> Result<Value, String> {
        let program = admission::compile(&environment(false), text, &[change.result()])?;
        let object = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"replicas": 1, "list": [{"a": null}]}});
        let variables = Variables::new().with("object", Cel::json(&object));
        let value = program.evaluate(&variables, &mut Budget::default()).map_err(|why| why.to_string())?;
        match change {
            Change::Configuration => configuration(&value),
            Change::Operations => operations(&value),
        }
    }

    #[test]
    fn objects_become_configurations() {
        let check = |text: &str, expected: Value| assert_eq!(made(Change::Configuration, text), Ok(expected), "{text}");
        check("Object{}", json!({}));
        check("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}", json!({"spec": {"replicas": 2}}));
        check(
            "Object{metadata: Object.metadata{labels: object.metadata.labels, ?name: object.?metadata.?name}}",
            json!({"metadata": {"labels": {"a": "1"}}}),
        );
        check(
            "Object{spec: Object.spec{list: object.spec.list, more: [Object.spec.more{a: {'b': 1.5}}], no: null}}",
            json!({"spec": {"list": [{"a": null}], "more": [{"a": {"b": 1.5}}], "no": null}}),
        );
        check(
            "Object{a: b'hi', b: duration('1500ms'), c: timestamp('2024-01-01T00:00:00Z'), d: 3u, e: optional.of(1)}",
            json!({"a": "aGk=", "b": "1.5s", "c": "2024-01-01T00:00:00Z", "d": 3, "e": 1}),
        );
    }

    #[test]
    fn names_of_types_say_where_objects_stand() {
        let check = |change, text: &str, expected: &str| {
            let why = made(change, text).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        };
        let wrong = |found: &str, expected: &str| {
            format!(
                "type mismatch: unexpected type name {found:?}, expected {expected:?}, which matches field name path from root \
                 Object type"
            )
        };
        let spec = wrong("Object.specx", "Object.spec");
        check(Change::Configuration, "Object{spec: Object.specx{}}", &spec);
        check(Change::Configuration, "Object{spec: [Object.specx{}]}", &spec);
        check(Change::Configuration, "Object{spec: {'a': Object.specx{}}}", &spec);
        let ports = "[JSONPatch{op: 'add', path: '/a', value: Object.spec{ports: [Object.spec.portsZ{port: 1}]}}]";
        check(Change::Operations, ports, &wrong("Object.spec.portsZ", "Object.spec.ports"));
        check(Change::Configuration, "Object{a: {1: 2}}", "map key 1 is of type int, not string");
        check(Change::Configuration, "Object{a: type(1)}", "unsupported type type(dyn)");
    }

    #[test]
    fn operations_become_a_patch() {
        let check = |text: &str, expected: Value| assert_eq!(made(Change::Operations, text), Ok(expected), "{text}");
        check(
            "[JSONPatch{op: 'copy', from: '/a', path: '/b'}, JSONPatch{op: 'add', path: '/c', value: null}]",
            json!([{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/c", "value": null}]),
        );
        check(
            "has(object.metadata.none) ? [] : [JSONPatch{op: 'add', path: '/a', value: Object.a{b: 1}}]",
            json!([{"op": "add", "path": "/a", "value": {"b": 1}}]),
        );
        check(
            "[JSONPatch{op: 'remove', path: '/' + jsonpatch.escapeKey('k8s.io/my~label')}]",
            json!([{"op": "remove", "path": "/k8s.io~1my~0label"}]),
        );
    }

    /// Upstream's TestTypeResolver and TestCELOptional.
    #[test]
    fn types_are_known_by_where_they_stand() {
        let check = |text: &str, expected: Value| {
            let program = environment(false).compile_any(text).expect(text);
            let value = program.evaluate(&Variables::new(), &mut Budget::default()).expect(text);
            assert_eq!(json_of(&value), Ok(expected), "{text}");
        };
        check("string(114514)", json!("114514"));
        check("Object{}", json!({}));
        check("Object{spec: Object.spec{replicas: 3}}", json!({"spec": {"replicas": 3}}));
        check("Object{intList: [1, 2, 3]}", json!({"intList": [1, 2, 3]}));
        check("Object{annotations: {'foo': 'bar'}}", json!({"annotations": {"foo": "bar"}}));
        check("Object{intList: [1, 2, 3]}.intList.sum()", json!(6));
        check("Object{spec: Object.spec{replicas: 3}} == Object{spec: Object.spec{replicas: 1 + 2}}", json!(true));
        check("Object{?existing: optional.none()}", json!({}));
        check("Object{?spec: optional.ofNonZeroValue(Object.spec{?replicas: Object{}.?replicas})}", json!({}));
        check("Object{}.?existing.hasValue()", json!(false));
        check("{'foo': 1}[?'bar'].hasValue()", json!(false));
        check("{'foo': 1}[?'foo'].value()", json!(1));
        check("has({'foo': 1}.bar)", json!(false));
        check("has({'foo': 1}.foo)", json!(true));
        let replicas = "path: '/spec/replicas'";
        let either =
            format!("[true ? JSONPatch{{op: 'add', {replicas}, value: 3}} : JSONPatch{{op: 'remove', {replicas}}}]");
        let add = json!([{"op": "add", "path": "/spec/replicas", "value": 3}]);
        assert_eq!(made(Change::Operations, &either), Ok(add));
        for (fields, expected) in [
            ("op: 'remove', path: '/a'", json!({"op": "remove", "path": "/a"})),
            ("op: 'replace', path: '/a', value: 3", json!({"op": "replace", "path": "/a", "value": 3})),
            ("op: 'move', from: '/b', path: '/a'", json!({"op": "move", "from": "/b", "path": "/a"})),
            ("op: 'copy', from: '/b', path: '/a'", json!({"op": "copy", "from": "/b", "path": "/a"})),
            ("op: 'test', path: '/a', value: 3", json!({"op": "test", "path": "/a", "value": 3})),
        ] {
            let text = format!("[JSONPatch{{{fields}}}]");
            assert_eq!(made(Change::Operations, &text), Ok(json!([expected])), "{text}");
        }
        let refused = |text: &str, expected: &str| {
            let why = environment(false).compile_any(text).err().map(|why| why.to_string()).unwrap_or_default();
            assert!(if expected.is_empty() { why.is_empty() } else { why.contains(expected) }, "{text}: {why}");
        };
        let unknown = "undeclared reference to 'Invalid'";
        refused("Invalid{}", unknown);
        // The values of an operation are not known before it is carried out.
        refused("JSONPatch{op: 'invalid', path: '/spec/replicas', value: 3}", "");
        refused("JSONPatch{op: 'add', value: 3}", "");
        refused("JSONPatch{op: 'add', path: '/spec/replicas'}", "");
        refused("JSONPatch{op: 'add', path: '/spec/replicas', value: Invalid{}}", unknown);
        refused("JSONPatch{op: 'add', path: Invalid{}, value: 3}", unknown);
        refused("JSONPatch{op: 'move', from: Invalid{}, path: '/spec/replicas'}", unknown);
        for field in ["op", "path", "from"] {
            let expected = format!("expected type of field '{field}' is 'string' but provided type is 'int'");
            refused(&format!("JSONPatch{{{field}: 1}}"), &expected);
        }
    }
}
