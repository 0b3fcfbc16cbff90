//! Strategic merge patch: a merge patch in which lists with a merge key merge item by item, with directives
//! (`$patch`, `$deleteFromPrimitiveList/…`, `$setElementOrder/…`, `$retainKeys`).
//!
//! Upstream's counterpart is apimachinery's `strategicpatch`; the rules here are those of its merge of a patch into an
//! original.

use std::collections::{HashMap, HashSet};

use json::{Map, Value};

use crate::{
    schema::{Field, Type},
    status::StatusError,
};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";
const ORDER_PREFIX: &str = "$setElementOrder/";

type Result<T> = std::result::Result<T, StatusError>;

/// How a list in a patch meets the list in the object.
struct Rule<'t> {
    merge: bool,
    key: &'t str,
    /// The type of the items.
    items: &'t Type,
}

/// Merges `patch` into `current`, an object of type `ty`.
pub fn apply(ty: &Type, current: Value, patch: &Value) -> Result<Value> {
    let (Value::Object(current), Value::Object(patch)) = (current, patch) else {
        return Err(StatusError::bad_request("invalid JSON document"));
    };
    Ok(Value::Object(merge_map(ty, current, patch)?))
}

fn bad_directive(directive: &Value, map: &Map) -> StatusError {
    let name = directive.as_str().map_or_else(|| directive.to_string(), str::to_owned);
    let shown = Value::Object(map.clone());
    StatusError::new(500, "", format!("unknown patch type [{name}] in map: [{shown}]"))
}

fn merge_map(ty: &Type, mut current: Map, patch: &Map) -> Result<Map> {
    match patch.get(DIRECTIVE) {
        Some(Value::String(d)) if d == "replace" => {
            return Ok(patch.iter().filter(|(k, _)| *k != DIRECTIVE).map(|(k, v)| (k.clone(), v.clone())).collect());
        }
        Some(Value::String(d)) if d == "delete" => return Ok(Map::new()),
        Some(Value::String(d)) if d == "merge" => {}
        Some(other) => return Err(bad_directive(other, patch)),
        None => {}
    }
    retain_keys(&mut current, patch)?;
    delete_from_primitive_lists(&mut current, patch)?;
    for (name, value) in patch {
        if name == DIRECTIVE || name == RETAIN_KEYS || name.starts_with(DELETE_PREFIX) || name.starts_with(ORDER_PREFIX)
        {
            continue;
        }
        if value.is_null() {
            current.remove(name);
            continue;
        }
        let merged = merge_value(ty, name, current.remove(name), value)?;
        current.insert(name.clone(), merged);
    }
    set_orders(ty, &mut current, patch)?;
    Ok(current)
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
            merge_list(&rule, old, new).map(Value::Array)
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
        let Some(name) = directive.strip_prefix(DELETE_PREFIX) else { continue };
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

fn merge_list(rule: &Rule<'_>, old: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>> {
    if !rule.merge {
        return Ok(without_directives(patch));
    }
    if patch.iter().chain(&old).any(Value::is_array) {
        return Err(StatusError::new(422, "", "lists of lists are not supported"));
    }
    if rule.key.is_empty() {
        return Ok(merge_scalars(old, patch));
    }
    merge_objects(rule, old, patch)
}

/// A list that replaces: an item that is only `$patch: replace` marks that and is no item.
fn without_directives(patch: &[Value]) -> Vec<Value> {
    let marker = |v: &Value| v.as_object().is_some_and(|m| m.len() == 1 && m.contains_key(DIRECTIVE));
    patch.iter().filter(|v| !marker(v)).cloned().collect()
}

/// The union, the patch's new items last.
fn merge_scalars(mut old: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut known: HashSet<&Value> = old.iter().collect();
    let new: Vec<Value> = patch.iter().filter(|value| known.insert(value)).cloned().collect();
    old.extend(new);
    old
}

fn merge_objects(rule: &Rule<'_>, mut old: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>> {
    let mut items: Vec<&Map> = Vec::with_capacity(patch.len());
    let mut deleted: HashSet<&Value> = HashSet::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(map) = item else {
            return Err(StatusError::new(500, "", "invalid patch format: list of objects expected"));
        };
        match map.get(DIRECTIVE).map(|d| (d, d.as_str())) {
            Some((_, Some("replace"))) => replace = true,
            Some((_, Some("delete"))) => drop(deleted.insert(key_of(map, rule.key)?)),
            Some((_, Some("merge"))) | None => items.push(map),
            Some((other, _)) => return Err(bad_directive(other, map)),
        }
    }
    if replace {
        return Ok(patch.iter().filter(|v| v.get(DIRECTIVE).is_none()).cloned().collect());
    }
    old.retain(|o| o.get(rule.key).is_none_or(|key| !deleted.contains(key)));
    // Where the first item of each key stands, those that the patch adds behind the others.
    let mut places: HashMap<&Value, usize> = HashMap::with_capacity(old.len());
    for (at, item) in old.iter().enumerate() {
        if let Some(key) = item.get(rule.key) {
            places.entry(key).or_insert(at);
        }
    }
    let mut end = old.len();
    let mut placed = Vec::with_capacity(items.len());
    for map in items {
        let at = *places.entry(key_of(map, rule.key)?).or_insert(end);
        end += usize::from(at == end);
        placed.push((at, map));
    }
    for (at, map) in placed {
        match old.get_mut(at).map(Value::take) {
            Some(Value::Object(original)) => old[at] = Value::Object(merge_map(rule.items, original, map)?),
            Some(_) => {}
            None => old.push(Value::Object(merge_map(rule.items, Map::new(), map)?)),
        }
    }
    Ok(old)
}

fn key_of<'v>(map: &'v Map, key: &str) -> Result<&'v Value> {
    map.get(key).ok_or_else(|| {
        let shown = Value::Object(map.clone());
        StatusError::new(500, "", format!("map: {shown} does not contain declared merge key: {key}"))
    })
}

/// Puts the items of the lists that `$setElementOrder` names into its order. Items it does not name are the server's own:
/// they keep their place relative to the named items before them.
fn set_orders(ty: &Type, current: &mut Map, patch: &Map) -> Result<()> {
    for (directive, order) in patch {
        let Some(name) = directive.strip_prefix(ORDER_PREFIX) else { continue };
        let Some(order) = order.as_array() else {
            return Err(StatusError::bad_request("invalid patch format of setElementOrder list"));
        };
        let rule = list_rule(ty, name);
        if let Some(Value::Array(list)) = current.get_mut(name) {
            let identity = |v: &Value| if rule.key.is_empty() { Some(v.clone()) } else { v.get(rule.key).cloned() };
            let order: Vec<Value> = order.iter().filter_map(identity).collect();
            *list = reorder(std::mem::take(list), &order, identity);
        }
    }
    Ok(())
}

fn reorder(list: Vec<Value>, order: &[Value], identity: impl Fn(&Value) -> Option<Value>) -> Vec<Value> {
    let mut ranks: HashMap<&Value, usize> = HashMap::with_capacity(order.len());
    for (at, id) in order.iter().enumerate() {
        ranks.entry(id).or_insert(at);
    }
    let rank = |v: &Value| identity(v).and_then(|id| ranks.get(&id).copied());
    let mut named: Vec<(usize, Value)> = Vec::new();
    // An item of the server's own with the number of named items that stood before it.
    let mut others: Vec<(usize, Value)> = Vec::new();
    for item in list {
        match rank(&item) {
            Some(at) => named.push((at, item)),
            None => others.push((named.len(), item)),
        }
    }
    named.sort_by_key(|(at, _)| *at);
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (at, (_, item)) in named.into_iter().enumerate() {
        while let Some((_, other)) = others.next_if(|(before, _)| *before <= at) {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(others.map(|(_, other)| other));
    out
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
            json!({"containers": [{"name": "a", "image": "2"}, {"name": "b"}, {"name": "c"}]}),
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
        let patch = json!({"finalizers": names(MANY), "$setElementOrder/finalizers": order});
        let merged = apply(ty, json!({"finalizers": names(0)}), &patch).expect("merges");
        let list = merged["finalizers"].as_array().expect("a list");
        assert_eq!((list.len(), &list[0], &list[MANY]), (2 * MANY, &order[0], &"a/100000".into()));
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
    fn refusals_use_upstreams_words() {
        let check = |patch, expected: &str| {
            assert_eq!(pod_spec(json!({"containers": [{"name": "a"}]}), patch), Err(expected.to_owned()));
        };
        check(
            json!({"containers": [{"image": "x"}]}),
            "map: {\"image\":\"x\"} does not contain declared merge key: name",
        );
        check(json!({"$retainKeys": "x"}), "invalid patch format of retainKeys");
        check(json!({"$patch": "x"}), "unknown patch type [x] in map: [{\"$patch\":\"x\"}]");
    }
}
