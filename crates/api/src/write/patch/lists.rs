//! Lists in a strategic merge patch: how one meets the list in the object, and in which order its items stand afterwards.

use std::collections::{HashMap, HashSet};

use json::{Map, Value};

use crate::{codec::go, schema::Type, status::StatusError};

pub const DIRECTIVE: &str = "$patch";
pub const ORDER: &str = "$setElementOrder";

type Result<T> = std::result::Result<T, StatusError>;

/// Merges an item of a patch into that of the object.
pub type MergeItem<'m> = &'m dyn Fn(&Type, Map, &Map) -> Result<Map>;

/// How the list in a patch meets the list in the object.
pub struct Rule<'t> {
    pub merge: bool,
    /// The field that tells the items apart; empty where they are scalars.
    pub key: &'t str,
    /// The type of the items.
    pub items: &'t Type,
}

/// Upstream answers so where it has no better word.
pub fn failed(why: String) -> StatusError {
    StatusError::new(500, "", why)
}

pub fn bad_directive(directive: &Value, map: &Map) -> StatusError {
    let shown = go::plain(&Value::Object(map.clone()));
    failed(format!("unknown patch type: {} in map: {shown}", go::plain(directive)))
}

/// A value that has to be of another type of Go's.
fn bad_type(expected: &str, found: &Value) -> StatusError {
    let found = if found.is_null() { "%!s(<nil>)" } else { go::type_name(found) };
    failed(format!("expected a {expected}, but received a {found}"))
}

pub fn expect_list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().ok_or_else(|| bad_type("[]interface {}", value))
}

fn key_of<'v>(map: &'v Map, key: &str) -> Result<&'v Value> {
    map.get(key).ok_or_else(|| {
        let shown = go::plain(&Value::Object(map.clone()));
        failed(format!("map: {shown} does not contain declared merge key: {key}"))
    })
}

/// By what an item is known in its list.
fn identity<'v>(item: &'v Value, key: &str) -> Result<&'v Value> {
    match item {
        scalar if key.is_empty() => Ok(scalar),
        Value::Object(map) => key_of(map, key),
        other => Err(bad_type("map[string]interface {}", other)),
    }
}

/// Where the first item of each identity stands.
fn places<'v>(list: &'v [Value], key: &str) -> Result<HashMap<&'v Value, usize>> {
    let mut places = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        places.entry(identity(item, key)?).or_insert(at);
    }
    Ok(places)
}

/// The list after the patch.
pub fn merge(rule: &Rule<'_>, old: Vec<Value>, patch: &[Value], item: MergeItem<'_>) -> Result<Vec<Value>> {
    if !rule.merge {
        return Ok(without_directives(patch));
    }
    if patch.iter().chain(&old).any(Value::is_array) {
        return Err(StatusError::new(422, "", "lists of lists are not supported"));
    }
    if patch.iter().chain(&old).map(go::type_name).collect::<HashSet<_>>().len() > 1 {
        let both = Value::Array(vec![Value::Array(old), Value::Array(patch.to_vec())]);
        return Err(failed(format!("list element types are not identical: {}", go::plain(&both))));
    }
    if rule.key.is_empty() { merge_scalars(&old, patch) } else { merge_objects(rule, old, patch, item) }
}

/// A list that replaces: an item that is only `$patch: replace` marks that and is no item.
fn without_directives(patch: &[Value]) -> Vec<Value> {
    let marker = |v: &Value| v.as_object().is_some_and(|m| m.len() == 1 && m.contains_key(DIRECTIVE));
    patch.iter().filter(|v| !marker(v)).cloned().collect()
}

/// The union.
fn merge_scalars(old: &[Value], patch: &[Value]) -> Result<Vec<Value>> {
    let (before, wanted) = (places(old, "")?, places(patch, "")?);
    let mut known = HashSet::with_capacity(old.len() + patch.len());
    let union = old.iter().chain(patch).filter(|value| known.insert(*value));
    let placed = union.map(|value| Placed {
        item: value.clone(),
        wanted: wanted.get(value).copied(),
        before: before.get(value).copied(),
    });
    Ok(arrange(placed.collect()))
}

/// The items of a patch, by what it says of them.
#[derive(Default)]
struct Sorted<'p> {
    items: Vec<&'p Map>,
    deleted: HashSet<&'p Value>,
    replaces: bool,
}

fn sorted<'p>(patch: &'p [Value], key: &str) -> Result<Sorted<'p>> {
    let mut sorted = Sorted::default();
    for item in patch {
        let map = item.as_object().ok_or_else(|| bad_type("map[string]interface {}", item))?;
        match map.get(DIRECTIVE).map(|directive| (directive, directive.as_str())) {
            None => sorted.items.push(map),
            Some((_, Some("replace"))) => sorted.replaces = true,
            Some((_, Some("delete"))) => drop(sorted.deleted.insert(identity(item, key)?)),
            Some((_, Some("merge"))) => {
                return Err(failed("merging lists cannot yet be specified in the patch".to_owned()));
            }
            Some((other, _)) => return Err(bad_directive(other, map)),
        }
    }
    Ok(sorted)
}

fn merge_objects(rule: &Rule<'_>, mut old: Vec<Value>, patch: &[Value], item: MergeItem<'_>) -> Result<Vec<Value>> {
    let Sorted { items, deleted, replaces } = sorted(patch, rule.key)?;
    if replaces {
        let items: Vec<_> = items.into_iter().cloned().map(Value::Object).collect();
        places(&items, rule.key)?;
        return Ok(items);
    }
    if !deleted.is_empty() {
        old.retain(|item| item.get(rule.key).is_none_or(|key| !deleted.contains(key)));
    }
    // Where the first item of each key stands, those that the patch adds behind the others.
    let mut known = places(&old, rule.key)?;
    let before: Vec<usize> = old.iter().filter_map(|item| known.get(item.get(rule.key)?).copied()).collect();
    let (mut end, mut wanted, mut met) = (old.len(), vec![None; old.len()], Vec::with_capacity(items.len()));
    for (rank, map) in items.into_iter().enumerate() {
        let at = *known.entry(key_of(map, rule.key)?).or_insert(end);
        if at == end {
            end += 1;
            wanted.push(None);
        }
        wanted[at].get_or_insert(rank);
        met.push((at, map));
    }
    drop(known);
    for (at, map) in met {
        match old.get_mut(at).map(Value::take) {
            Some(Value::Object(original)) => old[at] = Value::Object(item(rule.items, original, map)?),
            Some(_) => {}
            None => old.push(Value::Object(item(rule.items, Map::new(), map)?)),
        }
    }
    let placed = old.into_iter().enumerate().map(|(at, item)| {
        let before = before.get(at).copied();
        Placed { item, wanted: wanted[before.unwrap_or(at)], before }
    });
    Ok(arrange(placed.collect()))
}

/// An item with its place in the list that tells the order, and in the list as it was before the patch.
struct Placed {
    item: Value,
    wanted: Option<usize>,
    before: Option<usize>,
}

/// The items whose order is told stand in it, the others as they stood. Which of one and the other comes first is as it was before; one
/// that was not there before comes as early as it can.
fn arrange(items: Vec<Placed>) -> Vec<Value> {
    let mut list = Vec::with_capacity(items.len());
    let (mut told, mut others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.wanted.is_some());
    told.sort_by_key(|item| item.wanted);
    others.sort_by_key(|item| item.before);
    let mut told = told.into_iter().peekable();
    for other in others {
        let stood_behind = |next: &Placed| next.before.zip(other.before).is_some_and(|(next, other)| next > other);
        while let Some(next) = told.next_if(|next| !stood_behind(next)) {
            list.push(next.item);
        }
        list.push(other.item);
    }
    list.extend(told.map(|next| next.item));
    list
}

/// The list as it was, for [`Before::arrange`] once it is merged.
pub struct Before<'k> {
    identities: Vec<Value>,
    key: &'k str,
}

impl<'k> Before<'k> {
    pub fn of(list: &[Value], key: &'k str) -> Result<Before<'k>> {
        let identities = list.iter().map(|item| identity(item, key).cloned()).collect::<Result<_>>()?;
        Ok(Before { identities, key })
    }

    /// Puts a merged list into the order that a patch tells.
    pub fn arrange(&self, merged: Vec<Value>, order: &[Value]) -> Result<Vec<Value>> {
        let (wanted, before) = (places(order, self.key)?, places(&self.identities, "")?);
        let mut placed = Vec::with_capacity(merged.len());
        for item in merged {
            let known = identity(&item, self.key)?;
            let (wanted, before) = (wanted.get(known).copied(), before.get(known).copied());
            placed.push(Placed { item, wanted, before });
        }
        Ok(arrange(placed))
    }
}

/// Refuses items of a patch that its own order does not name, or names in another order.
pub fn check_order(items: &[Value], order: &[Value], key: &str) -> Result<()> {
    if items.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut order_left = order.iter();
    for item in items.iter().filter(|item| !has_directive(item)) {
        let known = identity(item, key)?;
        loop {
            let Some(next) = order_left.next() else {
                let shown = |list: &[Value]| go::plain(&Value::Array(list.to_vec()));
                return Err(failed(format!(
                    "The order in patch list:\n{}\n doesn't match {ORDER} list:\n{}\n",
                    shown(items),
                    shown(order)
                )));
            };
            if identity(next, key)? == known {
                break;
            }
        }
    }
    Ok(())
}

fn has_directive(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key(DIRECTIVE) || map.values().any(has_directive),
        Value::Array(items) => items.iter().any(has_directive),
        _ => false,
    }
}
