//! Lists that are sets or maps have no item twice.
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/schema/listtype.

use std::collections::HashMap;

use json::{Map, Value};

use super::structural::Structural;
use crate::validation::field::{Errors, FieldError, Path};

/// The errors of the lists in a value.
pub fn check(value: &Value, schema: &Structural, path: &Path) -> Errors {
    let mut errors = Errors::new();
    walk(value, schema, path, &mut errors);
    errors
}

fn walk(value: &Value, schema: &Structural, path: &Path, errors: &mut Errors) {
    if let Value::Array(list) = value {
        match &*schema.list_type {
            "set" => {
                errors.extend(repeated(list).into_iter().map(|at| FieldError::duplicate(&path.index(at), &list[at])));
            }
            "map" => map(list, &schema.list_keys, path, errors),
            _ => {}
        }
    }
    schema.below(value, path, &mut |value, of, path| walk(value, of, path, errors));
}

fn map(list: &[Value], keys: &[Box<str>], path: &Path, errors: &mut Errors) {
    if let Some(at) = list.iter().position(|item| !item.is_null() && !item.is_object()) {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(&path.index(at), &list[at], detail));
        return;
    }
    let key = |item: &Value| -> Value {
        let fields = keys.iter().filter_map(|name| Some((name.to_string(), item.get(&**name)?.clone())));
        Value::Object(fields.collect::<Map>())
    };
    let keys: Vec<Value> = list.iter().map(key).collect();
    errors.extend(repeated(&keys).into_iter().map(|at| FieldError::duplicate(&path.index(at), &keys[at])));
}

/// The place of the first repetition of each item that is there more than once.
pub(super) fn repeated(list: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = Vec::new();
    for (at, item) in list.iter().enumerate() {
        let times = seen.entry(item.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            found.push(at);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn items_of_sets_and_maps_are_unique() {
        let check = |of: Value, given: Value, expected: &[&str]| {
            let schema = json!({"properties": {"l": of}});
            let schema = Structural::of(&json::from_value(schema).expect("a schema"));
            let found: Vec<String> =
                super::check(&json!({"l": given}), &schema, &Path::default()).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
        };
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        check(set.clone(), json!(["a", "b"]), &[]);
        check(set, json!(["a", "b", "a", "a"]), &["l[2]: Duplicate value: \"a\""]);
        let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
            "items": {"type": "object"}});
        check(map.clone(), json!([{"a": 1, "b": 1}, {"a": 1, "b": 2}]), &[]);
        check(map.clone(), json!([{"a": 1}, {"a": 1, "c": 1}]), &["l[1]: Duplicate value: {\"a\":1}"]);
        check(map.clone(), json!([{}, null]), &["l[1]: Duplicate value: {}"]);
        check(map, json!([{}, 1]), &["l[1]: Invalid value: 1: must be an object for an array of list-type map"]);
    }
}
