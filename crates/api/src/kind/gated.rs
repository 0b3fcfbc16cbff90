//! The fields and texts that an object may have by the features that are on. Fields are named by path: `list[]` is every
//! item of a list, `map{}` every value of a map.

use json::{Map, Value};

use super::declaration::{Gated, GatedText};
use crate::features::Features;
use crate::validation::field::{Errors, FieldError, Path};

/// Takes the fields away of features that are off, unless the object had them before.
pub(super) fn drop_disabled(gated: &[Gated], features: Features, new: &mut Value, old: Option<&Value>) {
    for part in gated.iter().filter(|part| !features.enabled(part.feature)) {
        let in_use = |old: &Value| part.fields.iter().any(|path| present(old, path));
        if !old.is_some_and(in_use) {
            part.fields.iter().for_each(|path| remove(new, path));
        }
    }
}

/// Texts of features that are off, and lists that come with them, unless the object had such a text before.
pub(super) fn check_texts(gated: &[GatedText], features: Features, new: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Errors::new();
    for gated in gated.iter().filter(|gated| !features.enabled(gated.feature)) {
        let is_text = |value: &Value| value.as_str() == Some(gated.text);
        let texts = |object| gated.fields.iter().flat_map(move |path| places(object, path, &is_text));
        if old.is_some_and(|old| texts(old).next().is_some()) {
            continue;
        }
        errors.extend(texts(new).map(|place| FieldError::not_supported(&place, gated.text, gated.others)));
        let is_list = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
        let lists = gated.lists.iter().flat_map(|path| places(new, path, &is_list));
        errors.extend(lists.map(|place| FieldError::forbidden(&place, gated.forbidden)));
    }
    errors
}

/// The first name of a path, and the path below it. Each write asks for all paths, whose names are so short that looking at each byte is
/// the fastest way to their ends.
fn split(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'.') {
        Some(at) => (&path[..at], Some(&path[at + 1..])),
        None => (path, None),
    }
}

/// Whether an object has a field of that path.
pub(super) fn present(object: &Value, path: &str) -> bool {
    let (name, rest) = split(path);
    let Some(rest) = rest else { return object.get(name.split('?').next().unwrap_or(name)).is_some() };
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

/// The places of the fields of that path that are meant.
pub(super) fn places(object: &Value, path: &str, is_meant: &dyn Fn(&Value) -> bool) -> Vec<Path> {
    fn walk(object: &Value, path: &str, is_meant: &dyn Fn(&Value) -> bool, place: &Path, found: &mut Vec<Path>) {
        let (name, rest) = split(path);
        let Some(rest) = rest else {
            if object.get(name).is_some_and(is_meant) {
                found.push(place.child(name));
            }
            return;
        };
        if let Some((name, such)) = name.strip_suffix(']').and_then(|name| name.split_once('[')) {
            let fits = |item: &Value| match such.split_once('=') {
                Some((field, text)) => item.get(field).and_then(Value::as_str) == Some(text),
                None => true,
            };
            let items = object.get(name).and_then(Value::as_array).into_iter().flatten().enumerate();
            let items = items.filter(|(_, item)| fits(item));
            items.for_each(|(i, item)| walk(item, rest, is_meant, &place.child(name).index(i), found));
        } else if let Some(name) = name.strip_suffix("{}") {
            let values = object.get(name).and_then(Value::as_object).into_iter().flatten();
            values.for_each(|(key, value)| walk(value, rest, is_meant, &place.child(name).key(key), found));
        } else if let Some(inner) = object.get(name) {
            walk(inner, rest, is_meant, &place.child(name), found);
        }
    }
    let mut found = Vec::new();
    walk(object, path, is_meant, &Path::default(), &mut found);
    found
}

/// Everything that has a place for the last name of the path.
fn each(object: &mut Value, path: &str, act: &mut dyn FnMut(&mut Map, &str)) {
    let (name, rest) = split(path);
    let Some(map) = object.as_object_mut() else { return };
    let Some(rest) = rest else { return act(map, name) };
    if let Some(name) = name.strip_suffix("[]") {
        let items = map.get_mut(name).and_then(Value::as_array_mut);
        items.into_iter().flatten().for_each(|item| each(item, rest, act));
    } else if let Some(name) = name.strip_suffix("{}") {
        let values = map.get_mut(name).and_then(Value::as_object_mut);
        values.into_iter().flat_map(|map| map.values_mut()).for_each(|value| each(value, rest, act));
    } else if let Some(inner) = map.get_mut(name) {
        each(inner, rest, act);
    }
}

/// Takes the fields of that path away.
pub(super) fn remove(object: &mut Value, path: &str) {
    each(object, path, &mut |map, name| {
        let (name, inner) = name.split_once('?').map_or((name, None), |(name, inner)| (name, Some(inner)));
        let says =
            |inner| map.get(name).and_then(|value| value.get(inner)?.as_str()).is_some_and(|text| !text.is_empty());
        if inner.is_none_or(says) {
            map.remove(name);
        }
    });
}

/// Sets the fields of that path that are not there.
pub(super) fn fill(object: &mut Value, path: &str, value: &Value) {
    each(object, path, &mut |map, name| {
        if map.get(name).is_none_or(Value::is_null) {
            map.insert(name.to_owned(), value.clone());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn paths_lead_through_lists_and_maps() {
        let check = |mut object: Value, path: &str, expected: Value| {
            assert_eq!(present(&object, path), object != expected, "{object} {path}");
            remove(&mut object, path);
            assert_eq!(object, expected, "{path}");
        };
        check(json!({"a": 1, "b": 2}), "a", json!({"b": 2}));
        check(json!({"a": {"b": 1, "c": 2}}), "a.b", json!({"a": {"c": 2}}));
        check(json!({"a": {"b": {"c": "x"}}}), "a.b?c", json!({"a": {}}));
        for other in [json!({"c": ""}), json!({"d": "x"})] {
            let mut object = json!({"a": {"b": other}});
            remove(&mut object, "a.b?c");
            assert!(present(&object, "a.b?c"), "{object}");
        }
        check(json!({"a": [{"b": 1}, {"c": 2}, 3]}), "a[].b", json!({"a": [{}, {"c": 2}, 3]}));
        check(json!({"a": {"x": {"b": [{"c": 1}]}, "y": {}}}), "a{}.b[].c", json!({"a": {"x": {"b": [{}]}, "y": {}}}));
        let found = |path: &str| {
            let object = json!({"a": {"x": {"b": [{"c": "t"}, {"c": "u"}, {"c": "t"}]}, "y": {}}, "d": "t"});
            places(&object, path, &|value| value.as_str() == Some("t"))
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("a{}.b[].c"), ["a[x].b[0].c", "a[x].b[2].c"]);
        assert_eq!(found("a{}.b[c=t].c"), ["a[x].b[0].c", "a[x].b[2].c"]);
        assert_eq!(found("d"), ["d"]);
        assert!(found("a.b").is_empty() && found("a{}.b[].z").is_empty() && found("a{}.b[c=u].c").is_empty());
        let mut object = json!({"a": [{"b": {"t": 1}}, {"b": {}}, {"b": {"t": null}}, {"c": {}}]});
        fill(&mut object, "a[].b.t", &json!(2));
        assert_eq!(object, json!({"a": [{"b": {"t": 1}}, {"b": {"t": 2}}, {"b": {"t": 2}}, {"c": {}}]}));
        for other in [json!({}), json!({"a": null}), json!({"a": 1}), json!(null), json!({"a": {"c": 1}})] {
            for path in ["a.b", "a[].b", "a{}.b", "z"] {
                check(other.clone(), path, other.clone());
            }
        }
    }
}
