//! Sets of fields in the form of `fieldsV1`: a tree of JSON objects whose keys are path elements (`f:name`, `k:{…}`,
//! `v:…`, `i:…`). An empty node is a member; a node with children is a member when it has the child `.`. Working on
//! the wire form itself means that nothing is converted on the way of a write.

use std::iter;

use json::{Key, Map, Value};

use crate::codec::bounds::{self, Room, STEP_MAX};
use crate::schema::{List, ListKind, Type};

/// The root of a tree, never a member itself.
pub type Set = Map;

const SELF: &str = ".";
const SELF_KEY: Key = Key::fixed(SELF);

fn node(value: &Value) -> Option<&Set> {
    value.as_object()
}

/// Whether a node (not the root) is a member.
pub fn is_member(node: &Set) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// A node made from its children.
pub fn tie(mut children: Set, member: bool) -> Option<Value> {
    children.remove(SELF);
    if children.is_empty() && !member {
        return None;
    }
    if member && !children.is_empty() {
        children.insert(SELF_KEY, Value::Object(Map::new()));
    }
    Some(Value::Object(children))
}

/// A node that is a member, made from its children in their order.
pub(crate) fn member(children: impl Iterator<Item = (Key, Value)>) -> Set {
    iter::once((SELF_KEY, Value::Object(Map::new()))).chain(children).collect()
}

/// Adds the members of `from`.
pub fn union(into: &mut Set, from: &Set) {
    for (key, theirs) in from.iter().filter(|(k, _)| *k != SELF) {
        match (into.get_mut(key), theirs) {
            (Some(Value::Object(ours)), Value::Object(theirs)) => {
                let member = is_member(ours) || is_member(theirs);
                union(ours, theirs);
                if member && !ours.is_empty() {
                    ours.insert(SELF_KEY, Value::Object(Map::new()));
                }
            }
            _ => {
                into.insert(key.clone(), theirs.clone());
            }
        }
    }
}

/// Takes away the members of `what`; says whether there were any.
pub fn subtract(from: &mut Set, what: &Set) -> bool {
    let mut changed = false;
    for (key, theirs) in what.iter().filter(|(k, _)| *k != SELF) {
        let (Some(Value::Object(ours)), Value::Object(theirs)) = (from.get_mut(key), theirs) else { continue };
        let was = is_member(ours);
        let member = was && !is_member(theirs);
        changed |= was && !member;
        ours.remove(SELF);
        changed |= subtract(ours, theirs);
        if ours.is_empty() && !member {
            from.remove(key);
        } else if member && !ours.is_empty() {
            ours.insert(SELF_KEY, Value::Object(Map::new()));
        }
    }
    changed
}

/// The members of both.
pub fn intersection(a: &Set, b: &Set) -> Set {
    let mut both = Map::new();
    for (key, ours) in a.iter().filter(|(k, _)| *k != SELF) {
        if let (Some(ours), Some(theirs)) = (node(ours), b.get(key).and_then(node)) {
            let member = is_member(ours) && is_member(theirs);
            if let Some(tied) = tie(intersection(ours, theirs), member) {
                both.insert(key.clone(), tied);
            }
        }
    }
    both
}

/// Takes away a field, given by names, with all that is below it.
pub fn subtract_tree(from: &mut Set, path: &[&str]) {
    let Some((first, rest)) = path.split_first().filter(|_| !from.is_empty()) else { return };
    let key = format!("f:{first}");
    match from.get_mut(&key) {
        Some(Value::Object(inner)) if !rest.is_empty() && !inner.is_empty() => {
            subtract_tree(inner, rest);
            if inner.is_empty() {
                from.remove(&key);
            }
        }
        Some(_) if rest.is_empty() => {
            from.remove(&key);
        }
        _ => {}
    }
}

/// Takes away all but the fields at these paths, with what is on the way to them and below them; `*` is any element.
pub fn keep_trees(set: &mut Set, paths: &[&[&str]]) {
    set.retain(|key, child| {
        let at = |name: &str| name == "*" || key.strip_prefix("f:") == Some(name);
        let rests =
            paths.iter().filter_map(|path| path.split_first().filter(|(first, _)| at(first)).map(|(_, rest)| rest));
        let rests: Vec<&[&str]> = rests.collect();
        let Some(child) = child.as_object_mut().filter(|_| !rests.is_empty()) else { return key == SELF };
        if rests.iter().any(|rest| rest.is_empty()) {
            return true;
        }
        let member = is_member(child);
        keep_trees(child, &rests);
        if child.len() == 1 && child.contains_key(SELF) {
            child.remove(SELF);
        }
        member || !child.is_empty()
    });
}

/// Every struct field above a member becomes a member too.
pub fn with_parents(ty: &Type, set: &Set) -> Set {
    let mut out = Map::new();
    for (key, child) in set.iter().filter(|(k, _)| *k != SELF) {
        let Some(child) = node(child) else { continue };
        let (inner, named) = child_type(ty, key);
        if let Some(tied) = tie(with_parents(inner, child), named || is_member(child)) {
            out.insert(key.clone(), tied);
        }
    }
    out
}

/// The type below an element, and whether the element is a field that the schema names.
pub fn child_type<'t>(ty: &'t Type, element: &str) -> (&'t Type, bool) {
    match (ty.resolve(), element.strip_prefix("f:")) {
        (Type::Object(object), Some(name)) => {
            object.field(name).map_or((&Type::Any, false), |f| (f.ty.resolve(), true))
        }
        (Type::Map(map), Some(_)) => (map.values.resolve(), false),
        (Type::List(list), None) => (list.items.resolve(), false),
        _ => (&Type::Any, false),
    }
}

/// Makes leaves of what has become atomic since the set was made: who owned a part of it owns the whole now. What is not atomic any
/// more is taken as if it never had been.
pub fn reconcile(ty: &Type, set: &mut Set) {
    for (key, child) in set.iter_mut().filter(|(key, _)| **key != *SELF) {
        let Some(child) = child.as_object_mut().filter(|child| !child.is_empty()) else { continue };
        let inner = child_type(ty, key).0;
        let atomic = match inner {
            Type::List(list) => list.kind == ListKind::Atomic,
            Type::Object(object) => object.atomic,
            Type::Map(map) => map.atomic,
            _ => continue,
        };
        if atomic {
            child.clear();
        } else {
            reconcile(inner, child);
        }
    }
}

/// The length of most elements that stand for items.
const ELEMENT_ROOM: usize = 48;

/// The element that stands for an item of a list that is not atomic.
pub fn element(list: &List, item: &Value) -> String {
    let ListKind::Map(keys) = &list.kind else { return format!("v:{item}") };
    let mut text = String::with_capacity(ELEMENT_ROOM);
    text.push_str("k:{");
    // Keys come in the order of their names, as upstream writes them; they are kept sorted in the type.
    for key in keys {
        let Some(value) = item.get(&*key.name).filter(|v| !v.is_null()).or(key.default.as_ref()) else { continue };
        text.push_str(if text.len() > 3 { ",\"" } else { "\"" });
        text.push_str(&key.name);
        match value {
            // Names and the like: nothing that JSON would escape.
            Value::String(plain) if plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/ ".contains(&b)) => {
                text.push_str("\":\"");
                text.push_str(plain);
                text.push('"');
            }
            other => {
                text.push_str("\":");
                text.push_str(&other.to_string());
            }
        }
    }
    text.push('}');
    text
}

/// How many members there are.
pub fn count(set: &Set) -> usize {
    let children = set.iter().filter(|(k, _)| *k != SELF).filter_map(|(_, child)| node(child));
    children.map(|child| usize::from(is_member(child)) + count(child)).sum()
}

/// The paths of the members, as far as there is room for them, in the words of conflict messages:
/// `.spec.containers[name="a"].image`.
pub(crate) fn paths(set: &Set, room: &mut Room) -> Vec<String> {
    fn visit(set: &Set, prefix: &str, room: &mut Room, out: &mut Vec<String>) {
        for (key, child) in set.iter().filter(|(k, _)| *k != SELF) {
            let Some(child) = node(child) else { continue };
            if !room.is_left() {
                return;
            }
            let path = format!("{prefix}{}", step(key));
            if is_member(child) && room.take(path.len()) {
                out.push(path.clone());
            }
            visit(child, &path, room, out);
        }
    }
    let mut out = Vec::new();
    visit(set, "", room, &mut out);
    out
}

/// One element as messages show it: `.name`, `[name="a"]`.
pub(crate) fn step(element: &str) -> String {
    match bounds::cut(element, STEP_MAX).split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("v", value)) => format!("[={value}]"),
        Some(("i", index)) => format!("[{index}]"),
        Some(("k", keys)) => {
            let keys: Map = serde_json::from_str(keys).unwrap_or_default();
            let list: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("[{}]", list.join(","))
        }
        _ => element.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn set(value: Value) -> Set {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn algebra() {
        let both = |a: Value, b: Value| {
            let (a, b) = (set(a), set(b));
            let mut sum = a.clone();
            union(&mut sum, &b);
            let mut rest = a.clone();
            subtract(&mut rest, &b);
            (Value::Object(sum), Value::Object(rest), Value::Object(intersection(&a, &b)))
        };
        assert_eq!(
            both(json!({"f:a": {"f:b": {}, "f:c": {}}}), json!({"f:a": {".": {}, "f:b": {}}, "f:d": {}})),
            (
                json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}, "f:d": {}}),
                json!({"f:a": {"f:c": {}}}),
                json!({"f:a": {"f:b": {}}}),
            )
        );
        assert_eq!(
            both(json!({"f:a": {".": {}, "f:b": {}}}), json!({"f:a": {"f:b": {}}})),
            (json!({"f:a": {".": {}, "f:b": {}}}), json!({"f:a": {}}), json!({"f:a": {"f:b": {}}}))
        );
        assert_eq!(
            both(json!({"f:a": {}}), json!({"f:a": {"f:b": {}}})),
            (json!({"f:a": {".": {}, "f:b": {}}}), json!({"f:a": {}}), json!({}))
        );
    }

    #[test]
    fn trees_are_kept_with_the_way_to_them() {
        let check = |fields: Value, kept: Value| {
            let mut left = set(fields.clone());
            keep_trees(&mut left, &[&["spec", "list", "*", "a"], &["spec", "b"]]);
            assert_eq!(Value::Object(left), kept, "{fields}");
        };
        let item = |fields: Value| json!({"f:spec": {"f:list": {"k:{\"n\":1}": fields}}});
        check(json!({"f:status": {}, "f:metadata": {"f:labels": {}}}), json!({}));
        check(item(json!({".": {}, "f:n": {}, "f:a": {"f:x": {}}})), item(json!({".": {}, "f:a": {"f:x": {}}})));
        check(item(json!({".": {}, "f:n": {}})), item(json!({})));
        check(item(json!({"f:n": {}})), json!({}));
        check(json!({"f:spec": {"f:b": {"v:1": {}}, "f:c": {}}}), json!({"f:spec": {"f:b": {"v:1": {}}}}));
    }

    #[test]
    fn paths_read_as_upstreams() {
        let fields = set(json!({"f:spec": {"f:ports": {
            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}, "f:set": {"v:\"a\"": {}}}}));
        assert_eq!(
            paths(&fields, &mut Room::new()),
            [
                ".spec.ports[containerPort=80,protocol=\"TCP\"]",
                ".spec.ports[containerPort=80,protocol=\"TCP\"].name",
                ".spec.set[=\"a\"]"
            ]
        );
    }
}
