//! Whether an applied configuration fits its schema, in the words of upstream's structured-merge-diff: every value of a
//! wrong type, every field that the schema does not name, every item that occurs twice or cannot be told apart.
//!
//! Upstream's counterpart is structured-merge-diff's `typed` package, its validating walker.

use std::collections::HashSet;

use json::{Map, Value};

use crate::{
    codec::{
        bounds::{Room, SHOWN_MAX, cut},
        go,
    },
    schema::{Key, List, ListKind, Type},
    write::field_set::{self, element},
};

/// The values that do not fit, in one message; `None` when all fit.
pub fn misfit(ty: &Type, value: &Value) -> Option<String> {
    let mut walk = Walk { room: Room::new(), found: Vec::new() };
    walk.value(ty, value, &Place::Root);
    match walk.found.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

/// Where a value stands. A path is only written out for a message.
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
    /// An item by its identity, as owners of fields name it.
    Item(&'a Place<'a>, &'a str),
}

impl Place<'_> {
    fn write(&self, out: &mut String) {
        let (above, step) = match self {
            Place::Root => return,
            Place::Field(above, name) => (above, field_set::step(&format!("f:{name}"))),
            Place::Index(above, at) => (above, format!("[{at}]")),
            Place::Item(above, key) => (above, field_set::step(key)),
        };
        above.write(out);
        out.push_str(&step);
    }
}

/// The scalars that a type takes.
enum Scalar {
    Numeric,
    String,
    Bool,
    Any,
}

struct Walk {
    room: Room,
    found: Vec<String>,
}

impl Walk {
    fn error(&mut self, at: &Place<'_>, message: &str) {
        let mut text = String::new();
        at.write(&mut text);
        let text = if text.is_empty() { message.to_owned() } else { format!("{text}: {message}") };
        if self.room.take(text.len()) {
            self.found.push(text);
        }
    }

    /// Null is a value of every type.
    fn value(&mut self, ty: &Type, value: &Value, at: &Place<'_>) {
        if value.is_null() || !self.room.is_left() {
            return;
        }
        match ty.resolve() {
            Type::Int32 | Type::Int64 | Type::Number => self.scalar(&Scalar::Numeric, value, at),
            Type::String | Type::Bytes => self.scalar(&Scalar::String, value, at),
            Type::Bool => self.scalar(&Scalar::Bool, value, at),
            // Their texts are read when the object is: the schema of an apply only knows that they are scalars.
            Type::Quantity | Type::Time | Type::MicroTime | Type::Scalar => self.scalar(&Scalar::Any, value, at),
            Type::List(list) => match value {
                Value::Array(items) => self.list(list, items, at),
                other => self.expected("list", other, at),
            },
            ty @ (Type::Map(_) | Type::Object(_) | Type::Raw) => match value {
                Value::Object(map) => self.map(ty, map, at),
                _ if matches!(ty, Type::Object(object) if object.untyped) => {}
                other => self.expected("map", other, at),
            },
            // Numbers or texts have no type of their own there.
            Type::IntOrString | Type::Any | Type::Ref(_) | Type::Later(_) => {}
        }
    }

    /// Upstream prints the wrapper of the value here, by its pointer.
    fn expected(&mut self, what: &str, found: &Value, at: &Place<'_>) {
        self.error(at, &format!("expected {what}, got &{{{}}}", cut(&go::plain(found), SHOWN_MAX)));
    }

    fn scalar(&mut self, scalar: &Scalar, value: &Value, at: &Place<'_>) {
        match scalar {
            Scalar::Numeric if !value.is_number() => {
                self.error(at, &format!("expected numeric (int or float), got {}", go::type_name(value)));
            }
            Scalar::String if !value.is_string() => {
                let shown = go::source(value);
                let shown = cut(&shown, SHOWN_MAX);
                self.error(at, &format!("expected string, got &value.valueUnstructured{{Value:{shown}}}"));
            }
            Scalar::Bool if value.as_bool().is_none() => self.expected("boolean", value, at),
            Scalar::Any if value.is_object() || value.is_array() => self.expected("any scalar", value, at),
            _ => {}
        }
    }

    /// Upstream leaves a map at the first field that the schema does not name, in an order that changes from run to run;
    /// the order here is the one of the document, and the fields behind are looked at too.
    fn map(&mut self, ty: &Type, map: &Map, at: &Place<'_>) {
        for (name, child) in map {
            let at = Place::Field(at, name);
            match ty {
                Type::Map(ty) => self.value(&ty.values, child, &at),
                Type::Object(object) => match object.field(name) {
                    Some(field) => self.value(&field.ty, child, &at),
                    // One without any fields is free.
                    None if object.applied_freely || object.fields.is_empty() => {}
                    None => self.error(&at, "field not declared in schema"),
                },
                _ => {}
            }
        }
    }

    fn list(&mut self, list: &List, items: &[Value], at: &Place<'_>) {
        if list.kind == ListKind::Atomic {
            for (index, item) in items.iter().enumerate() {
                self.value(&list.items, item, &Place::Index(at, index));
            }
            return;
        }
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            if let Some(why) = without_identity(&list.kind, item) {
                // The items behind cannot be named reliably either.
                self.error(at, &format!("element {index}: {why}"));
                return;
            }
            let key = element(list, item);
            if seen.contains(&key) {
                self.error(at, &format!("duplicate entries for key {}", field_set::step(&key)));
            }
            self.value(&list.items, item, &Place::Item(at, &key));
            seen.insert(key);
        }
    }
}

/// Why an item of a list that is no atomic one cannot be told apart from the others, in upstream's words.
fn without_identity(kind: &ListKind, item: &Value) -> Option<String> {
    let why = match (kind, item) {
        (ListKind::Map(keys), Value::Object(map)) => return lacks_keys(keys, map),
        (ListKind::Map(_), Value::Null) => "associative list with keys may not have a null element",
        (ListKind::Map(_), _) => "associative list with keys may not have non-map elements",
        (_, Value::Object(_)) => "associative list without keys has an element that's a map type",
        (_, Value::Array(_)) => "not supported: associative list with lists as elements",
        (_, Value::Null) => "associative list without keys has an element that's an explicit null",
        _ => return None,
    };
    Some(why.to_owned())
}

fn lacks_keys(keys: &[Key], item: &Map) -> Option<String> {
    let known = |key: &Key| key.default.is_some() || item.get(&key.name).is_some_and(|value| !value.is_null());
    if keys.iter().any(known) {
        return None;
    }
    let names: Vec<String> = keys.iter().map(|key| format!("{:?}", key.name)).collect();
    Some(format!(
        "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any \
         key fields)",
        names.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::schema;

    fn check(ty: &Type, value: Value, expected: &str) {
        assert_eq!(misfit(ty, &value).unwrap_or_default(), expected, "{value}");
    }

    fn pod(spec: Value) -> Value {
        json!({"spec": spec})
    }

    #[test]
    fn wrong_types_of_a_built_in_kind_are_named() {
        let ty = schema::of("io.k8s.api.core.v1.Pod").expect("known");
        let check = |spec: Value, expected: &str| check(ty, pod(spec), expected);
        check(json!({"priority": "1"}), ".spec.priority: expected numeric (int or float), got string");
        check(json!({"priority": {}}), ".spec.priority: expected numeric (int or float), got map[string]interface {}");
        check(json!({"nodeName": 1}), ".spec.nodeName: expected string, got &value.valueUnstructured{Value:1}");
        check(json!({"hostNetwork": "yes"}), ".spec.hostNetwork: expected boolean, got &{yes}");
        check(json!({"containers": {"a": 1}}), ".spec.containers: expected list, got &{map[a:1]}");
        check(json!({"nodeSelector": ["a"]}), ".spec.nodeSelector: expected map, got &{[a]}");
        check(
            json!({"nodeSelector": {"a": true}}),
            ".spec.nodeSelector.a: expected string, got &value.valueUnstructured{Value:true}",
        );
        check(json!("x"), ".spec: expected map, got &{x}");
        check(json!({"overhead": {"cpu": [1]}}), ".spec.overhead.cpu: expected any scalar, got &{[1]}");
        check(json!({"overhead": {"cpu": 1}, "nodeName": null, "containers": null}), "");
        check(
            json!({"containers": [{"name": "a", "args": ["x", 1]}]}),
            ".spec.containers[name=\"a\"].args[1]: expected string, got &value.valueUnstructured{Value:1}",
        );
        check(
            json!({"tolerations": [{"key": "a", "foo": 1}]}),
            ".spec.tolerations[0].foo: field not declared in schema",
        );
    }

    #[test]
    fn several_errors_are_joined() {
        let ty = schema::of("io.k8s.api.core.v1.Pod").expect("known");
        let both = json!({"nodeName": true, "priority": "1"});
        let Some(found) = misfit(ty, &pod(both)) else { panic!("two errors") };
        let mut lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines.remove(0), "errors:");
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "  .spec.nodeName: expected string, got &value.valueUnstructured{Value:true}",
                "  .spec.priority: expected numeric (int or float), got string",
            ]
        );
    }

    #[test]
    fn items_must_be_told_apart() {
        let ty = schema::of("io.k8s.api.core.v1.Pod").expect("known");
        let containers = |items: Value, expected: &str| {
            check(ty, pod(json!({"containers": items})), &format!(".spec.containers: {expected}"));
        };
        containers(json!([{"name": "a"}, {"name": "a"}]), "duplicate entries for key [name=\"a\"]");
        containers(json!([null]), "element 0: associative list with keys may not have a null element");
        containers(json!([1]), "element 0: associative list with keys may not have non-map elements");
        let finalizers = |items: Value, expected: &str| {
            check(ty, json!({"metadata": {"finalizers": items}}), &format!(".metadata.finalizers: {expected}"));
        };
        finalizers(json!(["a", "a"]), "duplicate entries for key [=\"a\"]");
        finalizers(json!([{}]), "element 0: associative list without keys has an element that's a map type");
        finalizers(json!([[]]), "element 0: not supported: associative list with lists as elements");
        finalizers(json!([null]), "element 0: associative list without keys has an element that's an explicit null");
    }

    #[test]
    fn custom_kinds_are_held_to_their_schema() {
        let ty = schema::custom(
            "Widget",
            &json!({"type": "object", "properties": {"spec": {"type": "object",
            "properties": {
                "size": {"type": "integer"},
                "port": {"x-kubernetes-int-or-string": true},
                "when": {"type": "string", "format": "date-time"},
                "bare": {"type": "object"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "any": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"n": {"type": "integer"},
                    "tight": {"type": "object", "properties": {"n": {"type": "integer"}}}}},
            }}}}),
        );
        let check = |spec: Value, expected: &str| check(&ty, json!({"kind": "Widget", "spec": spec}), expected);
        check(json!({"size": "large"}), ".spec.size: expected numeric (int or float), got string");
        check(json!({"when": {}}), ".spec.when: expected any scalar, got &{map[]}");
        check(json!({"when": 5, "port": {"a": []}, "bare": {"a": 1}}), "");
        check(json!({"colour": 1}), ".spec.colour: field not declared in schema");
        check(json!({"free": {"any": [1]}, "port": "http", "size": 1}), "");
        for any in [json!("text"), json!(1), json!([{"n": "x"}]), json!({"n": 1, "m": "x"}), json!({})] {
            check(json!({ "any": any }), "");
        }
        check(json!({"any": {"tight": {"m": "x"}}}), "");
        check(json!({"any": {"n": "x"}}), ".spec.any.n: expected numeric (int or float), got string");
        check(json!({"tags": ["a", "b", "a"]}), ".spec.tags: duplicate entries for key [=\"a\"]");
    }

    #[test]
    fn messages_are_bounded() {
        let ty = schema::of("io.k8s.api.core.v1.ConfigMap").expect("known");
        let data: Map = (0..5000).map(|i| (format!("k{i}"), 1.into())).collect();
        let found = misfit(ty, &json!({"data": data})).expect("errors");
        assert_eq!(found.lines().count(), 1001);
    }
}
