//! Running a changed object through the schema where it changed. An object that was in its normal form stays in it wherever
//! it stays as it was, and most patches touch little.

use json::{Key, Map, Value};

use super::{Words, normalise_in};
use crate::schema::Type;

/// The objects whose fields are looked at one by one. They are structs in every kind: however few of their fields are
/// there, the schema makes the same of each of them.
const STRUCTS: &[&str] = &["metadata", "spec", "status"];

/// The result of [`super::normalise`] for a value, by way of the value before: `before` is in its normal form.
pub fn normalise_changed(ty: &Type, value: Value, before: &Value) -> Result<(Value, Vec<String>), String> {
    normalise_changed_in(Words::Json, ty, value, before)
}

/// The same, with a wrong type refused in these words.
pub fn normalise_changed_in(
    words: Words,
    ty: &Type,
    value: Value,
    before: &Value,
) -> Result<(Value, Vec<String>), String> {
    if !cfg!(debug_assertions) {
        return where_changed(words, ty, value, before);
    }
    let whole = normalise_in(words, ty, value.clone());
    let parts = where_changed(words, ty, value, before);
    let normal = normalise_in(words, ty, before.clone()).is_ok_and(|(normal, _)| normal == *before);
    assert!(!normal || parts == whole, "in parts {parts:?}, as a whole {whole:?}");
    parts
}

fn where_changed(words: Words, ty: &Type, value: Value, before: &Value) -> Result<(Value, Vec<String>), String> {
    // A stored object of a custom kind may be older than its schema.
    let built_in = ty.object().is_some_and(|object| !object.custom);
    let Some(before) = before.as_object().filter(|_| built_in) else { return normalise_in(words, ty, value) };
    let Value::Object(mut value) = value else { return normalise_in(words, ty, value) };
    let mut same: Vec<(Key, Map)> = Vec::new();
    for name in STRUCTS {
        if let (Some(Value::Object(new)), Some(Value::Object(old))) = (value.get_mut(name), before.get(name)) {
            same.push((Key::from(*name), take_same(new, old)));
        }
    }
    let rest = take_same(&mut value, before);
    let (mut normal, unknown) = normalise_in(words, ty, Value::Object(value))?;
    let Some(object) = normal.as_object_mut() else { return Ok((normal, unknown)) };
    for (name, fields) in same {
        if fields.is_empty() {
            continue;
        }
        if object.get(&name).is_none_or(|struct_| !struct_.is_object()) {
            object.insert(name.clone(), Value::Object(Map::new()));
        }
        if let Some(struct_) = object.get_mut(&name).and_then(Value::as_object_mut) {
            struct_.extend(fields);
        }
    }
    object.extend(rest);
    Ok((normal, unknown))
}

/// Takes out the fields that are as they were.
fn take_same(new: &mut Map, old: &Map) -> Map {
    let names: Vec<Key> =
        new.iter().filter(|(name, value)| old.get(name) == Some(*value)).map(|(n, _)| n.clone()).collect();
    names.into_iter().filter_map(|name| new.remove(&name).map(|value| (name, value))).collect()
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::super::normalise;
    use super::*;

    /// The outcome of a change of a Pod; that it is the same as a whole is asserted by the function itself.
    fn check(change: impl FnOnce(&mut Value), expected: Result<(&str, Value), &str>) {
        let ty = crate::schema::of("io.k8s.api.core.v1.Pod").expect("a Pod");
        let before = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"x": "1"}, "annotations": {"n": "1"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}], "nodeName": "n"},
            "status": {"phase": "Running"}});
        let (before, _) = normalise(ty, before).expect("a Pod");
        let mut changed = before.clone();
        change(&mut changed);
        match (normalise_changed(ty, changed, &before), expected) {
            (Ok((value, unknown)), Ok((path, at))) => {
                assert_eq!(value.pointer(path).cloned().unwrap_or_default(), at, "{value}");
                assert!(unknown.is_empty(), "{unknown:?}");
            }
            (Ok((_, unknown)), Err(wanted)) => assert_eq!(unknown, [wanted]),
            (Err(why), Err(wanted)) => assert_eq!(why, wanted),
            (Err(why), Ok(_)) => panic!("{why}"),
        }
    }

    #[test]
    fn what_changed_comes_into_its_normal_form() {
        check(|_| {}, Ok(("/spec/nodeName", json!("n"))));
        check(|p| p["metadata"]["labels"]["y"] = json!("2"), Ok(("/metadata/labels", json!({"x": "1", "y": "2"}))));
        check(|p| p["metadata"]["labels"] = json!({}), Ok(("/metadata/labels", json!(null))));
        check(|p| p["metadata"]["labels"] = json!(null), Ok(("/metadata/labels", json!(null))));
        let cpu = "/spec/containers/0/resources/limits/cpu";
        check(|p| p["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!(2), Ok((cpu, json!("2"))));
        check(|p| p["spec"]["priority"] = json!(0), Ok(("/spec/priority", json!(0))));
        check(|p| p["spec"]["hostNetwork"] = json!(false), Ok(("/spec/hostNetwork", json!(null))));
        check(|p| drop(p.as_object_mut().map(|p| p.remove("status"))), Ok(("/spec/nodeName", json!("n"))));
        check(|p| p["spec"] = json!(null), Ok(("/metadata/name", json!("a"))));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_whole_path() {
        check(|p| p["spec"]["containers"][0]["imag"] = json!("j"), Err("unknown field \"spec.containers[0].imag\""));
        check(|p| p["speck"] = json!({}), Err("unknown field \"speck\""));
        let why = "json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string";
        check(|p| p["spec"]["containers"][0]["image"] = json!(7), Err(why));
        let why = "json: cannot unmarshal string into Go struct field Pod.metadata of type v1.ObjectMeta";
        check(|p| p["metadata"] = json!("x"), Err(why));
    }
}
