//! Fields named by path: whether an object has them, and taking them away. `list[]` is every item of a list, `map{}` every
//! value of a map.

use serde_json::Value;

/// The first name of a path, and the path below it.
fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)))
}

/// Whether an object has a field of that path.
pub(super) fn present(object: &Value, path: &str) -> bool {
    let (name, rest) = split(path);
    let Some(rest) = rest else { return object.get(name).is_some() };
    if let Some(name) = name.strip_suffix("[]") {
        let items = object.get(name).and_then(Value::as_array);
        items.is_some_and(|items| items.iter().any(|item| present(item, rest)))
    } else if let Some(name) = name.strip_suffix("{}") {
        let values = object.get(name).and_then(Value::as_object);
        values.is_some_and(|map| map.values().any(|value| present(value, rest)))
    } else {
        object.get(name).is_some_and(|inner| present(inner, rest))
    }
}

/// Takes the fields of that path away.
pub(super) fn remove(object: &mut Value, path: &str) {
    let (name, rest) = split(path);
    let Some(rest) = rest else {
        object.as_object_mut().map(|map| map.remove(name));
        return;
    };
    if let Some(name) = name.strip_suffix("[]") {
        let items = object.get_mut(name).and_then(Value::as_array_mut);
        items.into_iter().flatten().for_each(|item| remove(item, rest));
    } else if let Some(name) = name.strip_suffix("{}") {
        let values = object.get_mut(name).and_then(Value::as_object_mut);
        values.into_iter().flat_map(|map| map.values_mut()).for_each(|value| remove(value, rest));
    } else if let Some(inner) = object.get_mut(name) {
        remove(inner, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_through_lists_and_maps() {
        let check = |mut object: Value, path: &str, expected: Value| {
            assert_eq!(present(&object, path), object != expected, "{object} {path}");
            remove(&mut object, path);
            assert_eq!(object, expected, "{path}");
        };
        check(json!({"a": 1, "b": 2}), "a", json!({"b": 2}));
        check(json!({"a": {"b": 1, "c": 2}}), "a.b", json!({"a": {"c": 2}}));
        check(json!({"a": [{"b": 1}, {"c": 2}, 3]}), "a[].b", json!({"a": [{}, {"c": 2}, 3]}));
        check(json!({"a": {"x": {"b": [{"c": 1}]}, "y": {}}}), "a{}.b[].c", json!({"a": {"x": {"b": [{}]}, "y": {}}}));
        for other in [json!({}), json!({"a": null}), json!({"a": 1}), json!(null), json!({"a": {"c": 1}})] {
            for path in ["a.b", "a[].b", "a{}.b", "z"] {
                check(other.clone(), path, other.clone());
            }
        }
    }
}
