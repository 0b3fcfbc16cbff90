//! Values seen through their schema, after upstream's structured-merge-diff: which fields an object has, which fields
//! two objects differ in, how an applied configuration merges into an object, and what removing fields leaves.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    iter,
};

use json::{Key, Map, Value};

use crate::{
    schema::{Field, List, ListKind, Object, Type, Zero},
    write::field_set::{self, Set, element, tie},
};

/// How the parts of a value are told apart.
enum Shape<'t> {
    /// Only as a whole.
    Leaf,
    /// By key. The type of an entry is found by [`entry`].
    Map(&'t Type),
    /// By identity of the items.
    List(&'t List),
}

/// The shape of one or two values of a type; a value that does not have its type's form is a leaf.
fn shape<'t>(ty: &'t Type, values: [Option<&Value>; 2]) -> Shape<'t> {
    let all = |is: fn(&Value) -> bool| values.iter().flatten().all(|v| v.is_null() || is(v));
    match ty.resolve() {
        Type::Object(object) if !object.atomic && all(Value::is_object) => Shape::Map(ty.resolve()),
        Type::Map(map) if !map.atomic && all(Value::is_object) => Shape::Map(ty.resolve()),
        Type::Any | Type::Raw if all(Value::is_object) => Shape::Map(&Type::Any),
        Type::List(list) if list.kind != ListKind::Atomic && all(Value::is_array) => Shape::List(list),
        _ => Shape::Leaf,
    }
}

/// The type of an entry, and the field that it is where the schema names it.
fn entry<'t>(ty: &'t Type, name: &str) -> (&'t Type, Option<&'t Field>) {
    match ty {
        Type::Object(object) => object.field(name).map_or((&Type::Any, None), |field| (&field.ty, Some(field))),
        Type::Map(map) => (&map.values, None),
        _ => (&Type::Any, None),
    }
}

/// The name of an entry in managed fields.
fn element_of(field: Option<&Field>, name: &Key) -> Key {
    field.map_or_else(|| Key::joined("f:", name), |field| field.element.clone())
}

fn leaf() -> Option<Value> {
    Some(Value::Object(Map::new()))
}

/// The fields an applied configuration sets.
pub fn fields_of(ty: &Type, value: &Value) -> Set {
    let mut set = Map::new();
    match shape(ty, [Some(value), None]) {
        Shape::Map(ty) => {
            for (name, child) in value.as_object().into_iter().flatten() {
                let (inner, named) = entry(ty, name);
                let empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
                let member = named.is_none() || empty || matches!(shape(inner, [Some(child), None]), Shape::Leaf);
                if let Some(node) = tie(fields_of(inner, child), member) {
                    set.insert(element_of(named, name), node);
                }
            }
        }
        Shape::List(list) => put_items(&mut set, list, value, |item| tie(fields_of(&list.items, item), true)),
        Shape::Leaf => {}
    }
    set
}

/// Puts the nodes of a list's items into a set. Items that have one identity together are one leaf for whoever owns them.
fn put_items(set: &mut Set, list: &List, value: &Value, node: impl Fn(&Value) -> Option<Value>) {
    for item in value.as_array().into_iter().flatten() {
        let key = Key::from(element(list, item));
        let node = if set.contains_key(&key) { leaf() } else { node(item) };
        set.extend(node.map(|node| (key, node)));
    }
}

/// The node of a part that stands on one side alone, with all that is below it: each is a member. A create is made of such parts, so
/// the nodes are put down as they come, in the order of their names.
fn whole(ty: &Type, value: &Value) -> Value {
    Value::Object(match (shape(ty, [Some(value), None]), value) {
        (Shape::Map(ty), Value::Object(map)) if !map.is_empty() => {
            field_set::member(map.iter().map(|(name, child)| {
                let (inner, named) = entry(ty, name);
                (element_of(named, name), whole(inner, child))
            }))
        }
        (Shape::List(list), Value::Array(items)) if !items.is_empty() => {
            let mut set = field_set::member(iter::empty());
            put_items(&mut set, list, value, |item| Some(whole(&list.items, item)));
            set
        }
        _ => Map::new(),
    })
}

/// The differences between two objects.
#[derive(Debug, Default, PartialEq)]
pub struct Difference {
    /// Added or modified.
    pub changed: Set,
    pub removed: Set,
}

impl Difference {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    /// Adds what is different in the items of one identity.
    fn items(&mut self, list: &List, key: String, of: &Sides<'_>) {
        let ([old, new], [olds, news]) = (of.first, of.more.each_ref().map(|more| !more.is_empty()));
        let whole = |side: &mut Set, key: &str| side.extend(leaf().map(|leaf| (Key::from(key.to_owned()), leaf)));
        match (olds, news) {
            _ if old == new && of.more[0] == of.more[1] => {}
            (false, false) => self.child(|| Key::from(key), &list.items, old, new),
            (true, true) => whole(&mut self.changed, &key),
            (true, false) => {
                if new.is_some() {
                    self.child(|| Key::from(&key), &list.items, None, new);
                }
                whole(&mut self.removed, &key);
            }
            (false, true) => {
                if old.is_some() {
                    self.child(|| Key::from(&key), &list.items, old, None);
                }
                whole(&mut self.changed, &key);
            }
        }
    }

    /// Adds what is different in a child; both states are known to be.
    fn child(&mut self, element: impl FnOnce() -> Key, ty: &Type, old: Option<&Value>, new: Option<&Value>) {
        let (changed, removed) = compare_node(ty, old, new);
        match (changed, removed) {
            (None, None) => {}
            (Some(changed), None) => {
                self.changed.insert(element(), changed);
            }
            (None, Some(removed)) => {
                self.removed.insert(element(), removed);
            }
            (Some(changed), Some(removed)) => {
                let element = element();
                self.changed.insert(element.clone(), changed);
                self.removed.insert(element, removed);
            }
        }
    }
}

/// Compares two objects of one type in one walk.
pub fn compare(ty: &Type, old: &Value, new: &Value) -> Difference {
    match shape(ty, [Some(old), Some(new)]) {
        Shape::Map(ty) => compare_maps(ty, old.as_object(), new.as_object()),
        _ => Difference::default(),
    }
}

type Nodes = (Option<Value>, Option<Value>);

fn compare_node(ty: &Type, old: Option<&Value>, new: Option<&Value>) -> Nodes {
    let (Some(old), Some(new)) = (old, new) else {
        return (new.map(|new| whole(ty, new)), old.map(|old| whole(ty, old)));
    };
    let difference = match shape(ty, [Some(old), Some(new)]) {
        Shape::Map(ty) => {
            let (old, new) = (old.as_object(), new.as_object());
            let empty = |m: Option<&Map>| m.is_none_or(Map::is_empty);
            (!(empty(old) && empty(new))).then(|| compare_maps(ty, old, new))
        }
        Shape::List(list) => {
            let items = |v: &Value| v.as_array().is_some_and(|a| !a.is_empty());
            (items(old) || items(new)).then(|| compare_lists(list, old, new))
        }
        Shape::Leaf => None,
    };
    match difference {
        // Unequal as a whole.
        None => (leaf(), None),
        Some(d) => (tie(d.changed, false), tie(d.removed, false)),
    }
}

/// Both maps are sorted: they are walked side by side.
fn compare_maps(ty: &Type, old: Option<&Map>, new: Option<&Map>) -> Difference {
    let mut difference = Difference::default();
    let mut old = old.into_iter().flatten().peekable();
    let mut new = new.into_iter().flatten().peekable();
    loop {
        let (name, before, after) = match (old.peek(), new.peek()) {
            (None, None) => return difference,
            (Some(&(o, ov)), Some(&(n, nv))) if o == n => (o, Some(ov), Some(nv)),
            (Some(&(o, ov)), Some(&(n, _))) if o < n => (o, Some(ov), None),
            (Some(&(o, ov)), None) => (o, Some(ov), None),
            (_, Some(&(n, nv))) => (n, None, Some(nv)),
        };
        if before.is_some() {
            old.next();
        }
        if after.is_some() {
            new.next();
        }
        if before != after {
            let (inner, named) = entry(ty, name);
            difference.child(|| element_of(named, name), inner, before, after);
        }
    }
}

fn compare_lists(list: &List, old: &Value, new: &Value) -> Difference {
    let mut items: BTreeMap<String, Sides<'_>> = BTreeMap::new();
    for (side, value) in [old, new].into_iter().enumerate() {
        for item in value.as_array().into_iter().flatten() {
            let sides = items.entry(element(list, item)).or_default();
            match sides.first[side] {
                None => sides.first[side] = Some(item),
                Some(_) => sides.more[side].push(item),
            }
        }
    }
    let mut difference = Difference::default();
    for (key, sides) in items {
        difference.items(list, key, &sides);
    }
    difference
}

/// The items that have one identity, in the old list and in the new one. More than one are compared and owned as a whole.
#[derive(Default)]
struct Sides<'v> {
    first: [Option<&'v Value>; 2],
    more: [Vec<&'v Value>; 2],
}

/// An object of the type before anything is set: upstream compares a create against it, so fields that are
/// always written are nobody's unless they differ from it.
pub fn blank(ty: &Type) -> Value {
    fn fill(object: &Object) -> Value {
        let always = object.fields.iter().filter(|f| f.zero == Zero::Fill);
        let filled = always.map(|f| {
            let value = match f.ty.resolve() {
                Type::Object(inner) => fill(inner),
                other => crate::codec::decode::zero(other).unwrap_or(Value::Null),
            };
            (f.name.clone(), value)
        });
        Value::Object(filled.collect())
    }
    ty.object().map_or_else(|| Value::Object(Map::new()), fill)
}

/// Merges an applied configuration into an object.
pub fn merge(ty: &Type, live: Value, config: &Value) -> Value {
    match shape(ty, [Some(&live), Some(config)]) {
        Shape::Map(ty) => {
            let (mut out, config) = match (live, config) {
                (Value::Object(out), Value::Object(config)) => (out, config),
                // Nothing is stated: what is there stays, unless that is nothing either.
                (Value::Object(out), Value::Null) if !out.is_empty() => return Value::Object(out),
                _ => return config.clone(),
            };
            for (name, theirs) in config {
                let merged = match out.remove(name) {
                    Some(ours) => merge(entry(ty, name).0, ours, theirs),
                    None => theirs.clone(),
                };
                out.insert(name.clone(), merged);
            }
            Value::Object(out)
        }
        Shape::List(list) => match (live, config) {
            (Value::Array(live), Value::Array(config)) => Value::Array(merge_lists(list, live, config)),
            (Value::Array(live), Value::Null) if !live.is_empty() => Value::Array(live),
            (_, config) => config.clone(),
        },
        Shape::Leaf => config.clone(),
    }
}

/// The applied items come in the applied order; items that are only in the object keep their place among them.
fn merge_lists(list: &List, live: Vec<Value>, config: &[Value]) -> Vec<Value> {
    let live_keys: Vec<String> = live.iter().map(|v| element(list, v)).collect();
    let keys: Vec<String> = config.iter().map(|v| element(list, v)).collect();
    let mut live: Vec<Option<Value>> = live.into_iter().map(Some).collect();
    // Where the item of each key stands in the object. Those that stand twice are replaced, not merged.
    let mut places: HashMap<&String, Option<usize>> = HashMap::with_capacity(live_keys.len());
    for (at, key) in live_keys.iter().enumerate() {
        places.entry(key).and_modify(|place| *place = None).or_insert(Some(at));
    }
    let applied: HashSet<&String> = keys.iter().collect();
    let mut shared = keys.iter().filter(|k| places.contains_key(k)).peekable();
    let mut done: HashSet<&String> = HashSet::new();
    let mut out = Vec::with_capacity(live.len() + config.len());
    let (mut l, mut r) = (0, 0);
    while l < live_keys.len() || r < keys.len() {
        let theirs = live_keys.get(l).filter(|k| applied.contains(k));
        if let (Some(key), Some(wanted)) = (theirs, keys.get(r))
            && key != wanted
            && shared.peek().is_some_and(|next| *next != key)
        {
            // Applied too, but not the one whose turn it is.
            l += 1;
            continue;
        }
        if l < live_keys.len() && theirs.is_none() {
            out.extend(live[l].take());
            l += 1;
            continue;
        }
        if theirs.is_some_and(|key| done.contains(&key)) {
            l += 1;
            continue;
        }
        if let Some(key) = keys.get(r) {
            let ours = places.get(key).copied().flatten().and_then(|at| live[at].take());
            out.push(match ours {
                Some(ours) => merge(&list.items, ours, &config[r]),
                None => config[r].clone(),
            });
            if shared.peek() == Some(&key) {
                shared.next();
            }
            if theirs == Some(key) {
                l += 1;
            }
            done.insert(key);
            r += 1;
        } else {
            l += 1;
        }
    }
    out
}

/// Takes the members of a set out of a value, with all that is below them; containers that become empty go too.
pub fn remove(ty: &Type, value: &mut Value, set: &Set) {
    match (shape(ty, [Some(value), None]), value) {
        (Shape::Map(ty), Value::Object(map)) => {
            for (key, node) in set {
                let (Some(name), Value::Object(node)) = (key.strip_prefix("f:"), node) else { continue };
                if field_set::is_member(node) {
                    map.remove(name);
                } else if let Some(child) = map.get_mut(name) {
                    remove(entry(ty, name).0, child, node);
                    if is_empty(child) {
                        map.remove(name);
                    }
                }
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            items.retain_mut(|item| match set.get(&element(list, item)) {
                Some(Value::Object(node)) if field_set::is_member(node) => false,
                Some(Value::Object(node)) => {
                    remove(&list.items, item, node);
                    true
                }
                _ => true,
            });
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}
