//! Strategic merge patch: a merge patch in which lists with a merge key merge item by item, with directives
//! (`$patch`, `$deleteFromPrimitiveList/…`, `$setElementOrder/…`, `$retainKeys`).
//!
//! Upstream's counterpart is apimachinery's `strategicpatch`; the rules here are those of its merge of a patch into an
//! original.

use std::collections::HashSet;

use json::{Map, Value};

use super::lists::{self, Before, DIRECTIVE, ORDER, Rule};
use crate::{
    schema::{Field, Type},
    status::StatusError,
};

const RETAIN_KEYS: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList";

type Result<T> = std::result::Result<T, StatusError>;

/// The field that a directive beside it is about.
fn about<'n>(name: &'n str, directive: &str) -> Option<&'n str> {
    name.strip_prefix(directive)?.strip_prefix('/')
}

/// Merges `patch` into `current`, an object of type `ty`.
pub fn apply(ty: &Type, current: Value, patch: &Value) -> Result<Value> {
    let (Value::Object(current), Value::Object(patch)) = (current, patch) else {
        return Err(StatusError::bad_request("invalid JSON document"));
    };
    Ok(Value::Object(merge_map(ty, current, patch)?))
}

fn merge_map(ty: &Type, mut current: Map, patch: &Map) -> Result<Map> {
    match patch.get(DIRECTIVE).map(|directive| (directive, directive.as_str())) {
        Some((_, Some("replace"))) => {
            return Ok(patch.iter().filter(|(k, _)| *k != DIRECTIVE).map(|(k, v)| (k.clone(), v.clone())).collect());
        }
        Some((_, Some("delete"))) => return Ok(Map::new()),
        Some((other, _)) => return Err(lists::bad_directive(other, patch)),
        None => {}
    }
    retain_keys(&mut current, patch)?;
    let ordered = merge_ordered(ty, &mut current, patch)?;
    delete_from_primitive_lists(&mut current, patch)?;
    for (name, value) in patch {
        let is_directive = name == RETAIN_KEYS || about(name, DELETE).is_some() || about(name, ORDER).is_some();
        if is_directive || ordered.contains(name.as_str()) {
            continue;
        }
        if value.is_null() {
            current.remove(name);
            continue;
        }
        let merged = merge_value(ty, name, current.remove(name), value)?;
        current.insert(name.clone(), merged);
    }
    Ok(current)
}

/// Merges the lists whose order the patch tells. Returns their names.
fn merge_ordered<'p>(ty: &Type, current: &mut Map, patch: &'p Map) -> Result<HashSet<&'p str>> {
    let mut names = HashSet::new();
    for (directive, order) in patch {
        let Some(name) = about(directive, ORDER) else { continue };
        let order = lists::expect_list(order)?;
        let live = current.get(name).map(lists::expect_list).transpose()?;
        let new = patch.get(name).map(lists::expect_list).transpose()?;
        let rule = list_rule(ty, name);
        lists::check_order(new.map_or(&[], Vec::as_slice), order, rule.key)?;
        names.insert(name);
        if live.is_none() && new.is_none() {
            continue;
        }
        let before = Before::of(live.map_or(&[], Vec::as_slice), rule.key)?;
        let mut merged = match current.remove(name) {
            Some(Value::Array(live)) => live,
            _ => Vec::new(),
        };
        if let Some(new) = new {
            merged = lists::merge(&rule, merged, new, &merge_map)?;
        }
        current.insert(name.to_owned(), Value::Array(before.arrange(merged, order)?));
    }
    Ok(names)
}

/// Merges one field; an original of another type is replaced.
fn merge_value(ty: &Type, name: &str, original: Option<Value>, patch: &Value) -> Result<Value> {
    match (original, patch) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let (inner, replace) = inner_type(ty, name);
            if replace {
                return Ok(patch.clone());
            }
            Ok(Value::Object(merge_map(inner, old, new)?))
        }
        (None | Some(Value::Null), Value::Object(new)) => {
            let (inner, _) = inner_type(ty, name);
            Ok(Value::Object(merge_map(inner, Map::new(), new)?))
        }
        (original, Value::Array(new)) => {
            let rule = list_rule(ty, name);
            let old = match original {
                Some(Value::Array(old)) => old,
                _ => Vec::new(),
            };
            lists::merge(&rule, old, new, &merge_map).map(Value::Array)
        }
        (_, other) => Ok(other.clone()),
    }
}

fn inner_type<'t>(ty: &'t Type, name: &str) -> (&'t Type, bool) {
    match ty.resolve() {
        Type::Object(object) => object.field(name).map_or((&Type::Any, false), |f| (f.ty.resolve(), f.replace)),
        Type::Map(map) => (map.values.resolve(), false),
        _ => (&Type::Any, false),
    }
}

fn list_rule<'t>(ty: &'t Type, name: &str) -> Rule<'t> {
    let field: Option<&'t Field> = ty.field(name);
    let Some(field) = field else { return Rule { merge: false, key: "", items: &Type::Any } };
    let items = match field.ty.resolve() {
        Type::List(list) => list.items.resolve(),
        _ => &Type::Any,
    };
    Rule { merge: field.merge, key: &field.merge_key, items }
}

/// Keeps only the fields that `$retainKeys` names; the patch must not set others.
fn retain_keys(current: &mut Map, patch: &Map) -> Result<()> {
    let Some(value) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let bad = || StatusError::bad_request("invalid patch format of retainKeys");
    let keys: Option<HashSet<&str>> = value.as_array().and_then(|a| a.iter().map(Value::as_str).collect());
    let keys = keys.ok_or_else(bad)?;
    let set = patch.iter().filter(|(k, v)| !k.starts_with('$') && !v.is_null());
    if set.into_iter().any(|(k, _)| !keys.contains(k.as_str())) {
        return Err(bad());
    }
    current.retain(|name, _| keys.contains(name.as_str()));
    Ok(())
}

fn delete_from_primitive_lists(current: &mut Map, patch: &Map) -> Result<()> {
    for (directive, values) in patch {
        let Some(name) = about(directive, DELETE) else { continue };
        let Some(values) = values.as_array() else {
            return Err(StatusError::bad_request("invalid patch format of primitive list"));
        };
        if let Some(Value::Array(list)) = current.get_mut(name) {
            let values: HashSet<&Value> = values.iter().collect();
            list.retain(|item| !values.contains(item));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;
    use json::json;

    fn pod_spec(current: Value, patch: Value) -> std::result::Result<Value, String> {
        let ty = schema::of("io.k8s.api.core.v1.PodSpec").expect("known");
        apply(ty, current, &patch).map_err(|e| e.message)
    }

    #[test]
    fn lists_with_a_merge_key_merge_item_by_item() {
        let check = |current, patch, expected| assert_eq!(pod_spec(current, patch), Ok(expected));
        check(
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "image": "2"}, {"name": "c"}]}),
            json!({"containers": [{"name": "a", "image": "2"}, {"name": "c"}, {"name": "b"}]}),
        );
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b"}]}),
        );
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "c"}, {"$patch": "replace"}]}),
            json!({"containers": [{"name": "c"}]}),
        );
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "b", "image": "2"}, {"name": "a"}]}),
        );
        check(
            json!({"tolerations": [{"key": "a"}]}),
            json!({"tolerations": [{"key": "b"}]}),
            json!({"tolerations": [{"key": "b"}]}),
        );
        check(
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        );
        check(
            json!({"nodeSelector": {"a": "1", "b": "2"}}),
            json!({"nodeSelector": {"a": null, "c": "3"}, "hostname": null}),
            json!({"nodeSelector": {"b": "2", "c": "3"}}),
        );
    }

    #[test]
    fn lists_of_scalars_merge_where_the_schema_says_so() {
        let ty = schema::of("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("known");
        let check = |current: Value, patch: Value, expected: Value| {
            assert_eq!(apply(ty, current, &patch), Ok(expected));
        };
        check(
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["b", "c"]}),
            json!({"finalizers": ["a", "b", "c"]}),
        );
        check(
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["c", "b"]}),
            json!({"finalizers": ["c", "a", "b"]}),
        );
        check(
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
            json!({"finalizers": ["b"]}),
        );
    }

    /// A search through the list for each item would take hours here.
    #[test]
    fn long_lists_merge_by_lookup() {
        const MANY: usize = 100_000;
        let ty = schema::of("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("known");
        let names = |from: usize| (from..from + MANY).map(|i| Value::from(format!("a/{i}"))).collect::<Vec<_>>();
        let mut order = names(0);
        order.reverse();
        order.extend(names(MANY));
        let patch = json!({"finalizers": names(MANY), "$setElementOrder/finalizers": order});
        let merged = apply(ty, json!({"finalizers": names(0)}), &patch).expect("merges");
        assert_eq!(merged["finalizers"], Value::from(order));
        let less = apply(ty, merged, &json!({"$deleteFromPrimitiveList/finalizers": names(0)})).expect("merges");
        assert_eq!(less["finalizers"], Value::from(names(MANY)));

        let containers = |from: usize| {
            (from..from + MANY).map(|i| json!({"name": format!("c{i}"), "image": "i"})).collect::<Vec<_>>()
        };
        let mut patch = json!({"containers": containers(MANY / 2)});
        for item in patch["containers"].as_array_mut().expect("a list").iter_mut().take(10) {
            item["$patch"] = "delete".into();
        }
        let merged = pod_spec(json!({"containers": containers(0)}), patch).expect("merges");
        assert_eq!(merged["containers"].as_array().map(Vec::len), Some(MANY * 3 / 2 - 10));
    }

    #[test]
    fn items_stand_in_upstreams_order() {
        let named = |names: &str| names.split_terminator(',').map(|name| json!({"name": name})).collect::<Vec<_>>();
        let check = |live: &str, order: Option<&str>, items: &str, expected: &str| {
            let mut patch = json!({});
            if let Some(order) = order {
                patch["$setElementOrder/containers"] = named(order).into();
            }
            if !items.is_empty() {
                patch["containers"] = named(items).into();
            }
            let merged = pod_spec(json!({"containers": named(live)}), patch);
            assert_eq!(merged, Ok(json!({"containers": named(expected)})), "{live}, {order:?}, {items}");
        };
        check("s1,a,s2,b", None, "n", "n,s1,a,s2,b");
        check("s1,a,s2,b", None, "b,a", "s1,s2,b,a");
        check("s1,a,s2,b", None, "a,n", "s1,a,n,s2,b");
        check("s1,a,s2,b", Some("b,a"), "", "s1,s2,b,a");
        check("s1,a,s2,b", Some("a,n"), "n", "s1,a,n,s2,b");
        check("a,b", Some("b,c,a"), "c", "b,c,a");
        check("a", Some("a"), "a", "a");
        check("", Some("b,a"), "b,a", "b,a");
    }

    #[test]
    fn refusals_use_upstreams_words() {
        let check = |patch, expected: &str| {
            assert_eq!(pod_spec(json!({"containers": [{"name": "a"}]}), patch), Err(expected.to_owned()));
        };
        check(json!({"containers": [{"image": "x"}]}), "map: map[image:x] does not contain declared merge key: name");
        check(json!({"$retainKeys": "x"}), "invalid patch format of retainKeys");
        check(json!({"$patch": "x"}), "unknown patch type: x in map: map[$patch:x]");
        check(json!({"$patch": "merge"}), "unknown patch type: merge in map: map[$patch:merge]");
        check(
            json!({"containers": [{"$patch": "merge", "name": "a"}]}),
            "merging lists cannot yet be specified in the patch",
        );
        check(
            json!({"containers": [{"$patch": "frob", "name": "c"}]}),
            "unknown patch type: frob in map: map[$patch:frob name:c]",
        );
        check(json!({"$setElementOrder/containers": "x"}), "expected a []interface {}, but received a string");
        check(
            json!({"$setElementOrder/containers": [{"name": "a"}], "containers": null}),
            "expected a []interface {}, but received a %!s(<nil>)",
        );
        check(
            json!({"$setElementOrder/containers": [{"name": "z"}], "containers": [{"name": "n", "image": "w"}]}),
            "The order in patch list:\n[map[image:w name:n]]\n doesn't match $setElementOrder list:\n[map[name:z]]\n",
        );
        check(
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a"}, {"name": "b"}]}),
            "The order in patch list:\n[map[name:a] map[name:b]]\n doesn't match $setElementOrder list:\n[map[name:b] map[name:a]]\n",
        );
        check(
            json!({"$setElementOrder/containers": [{"x": "z"}], "containers": [{"name": "n"}]}),
            "map: map[x:z] does not contain declared merge key: name",
        );
    }
}
