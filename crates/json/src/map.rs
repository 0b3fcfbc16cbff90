//! The fields of an object, sorted by name. Few of them (all but some maps that users fill) stand in one piece of memory;
//! many stand in a tree, so that no sequence of names makes each insertion as dear as the map is long.

use std::{
    collections::{BTreeMap, btree_map},
    fmt, hash,
    ops::{Index, IndexMut},
    slice, vec,
};

use crate::Key;

/// With more fields than this a map is a tree.
const FEW: usize = 64;
/// Up to here looking at all names is faster than halving.
const LOOK_AT_ALL: usize = 12;

#[derive(Clone)]
pub struct Map<V>(Fields<V>);

#[derive(Clone)]
#[allow(
    clippy::box_collection,
    reason = "in a box the tree is no larger than the list, and a value no larger than with the list alone"
)]
enum Fields<V> {
    Few(Vec<(Key, V)>),
    Many(Box<BTreeMap<Key, V>>),
}

impl<V> Fields<V> {
    /// Fields that have become too many to be searched one by one.
    fn many(few: &mut Vec<(Key, V)>) -> Self {
        Fields::Many(Box::new(std::mem::take(few).into_iter().collect()))
    }
}

fn place<V>(fields: &[(Key, V)], key: &str) -> Result<usize, usize> {
    match fields.last() {
        None => Err(0),
        Some((last, _)) if last.as_str() < key => Err(fields.len()),
        _ => fields.binary_search_by(|(name, _)| name.as_str().cmp(key)),
    }
}

fn find<V>(fields: &[(Key, V)], key: &str) -> Option<usize> {
    match fields.len() {
        0..=LOOK_AT_ALL => fields.iter().position(|(name, _)| name.as_str() == key),
        _ => place(fields, key).ok(),
    }
}

impl<V> Map<V> {
    pub const fn new() -> Map<V> {
        Map(Fields::Few(Vec::new()))
    }

    pub fn with_capacity(fields: usize) -> Map<V> {
        Map(Fields::Few(Vec::with_capacity(fields.min(FEW))))
    }

    /// Of equal names the last one counts.
    pub(crate) fn of(mut fields: Vec<(Key, V)>) -> Map<V> {
        let in_order = fields.is_sorted_by(|a, b| a.0 < b.0);
        if fields.len() > FEW {
            return Map(Fields::Many(Box::new(fields.into_iter().collect())));
        }
        if !in_order {
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            fields.dedup_by(|later, earlier| {
                let equal = later.0 == earlier.0;
                if equal {
                    std::mem::swap(later, earlier);
                }
                equal
            });
        }
        Map(Fields::Few(fields))
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Fields::Few(fields) => fields.len(),
            Fields::Many(fields) => fields.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&mut self) {
        *self = Map::new();
    }

    #[inline]
    pub fn get(&self, key: &str) -> Option<&V> {
        match &self.0 {
            Fields::Few(fields) => find(fields, key).map(|at| &fields[at].1),
            Fields::Many(fields) => fields.get(key),
        }
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        match &mut self.0 {
            Fields::Few(fields) => find(fields, key).map(|at| &mut fields[at].1),
            Fields::Many(fields) => fields.get_mut(key),
        }
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Puts a value under the name, and returns the one that stood there before.
    pub fn insert(&mut self, key: impl Into<Key>, value: V) -> Option<V> {
        let key = key.into();
        if let Fields::Few(fields) = &mut self.0 {
            match place(fields, &key) {
                Ok(at) => return Some(std::mem::replace(&mut fields[at].1, value)),
                Err(at) if fields.len() < FEW => {
                    fields.insert(at, (key, value));
                    return None;
                }
                Err(_) => self.0 = Fields::many(fields),
            }
        }
        match &mut self.0 {
            Fields::Many(fields) => fields.insert(key, value),
            Fields::Few(_) => unreachable!("few fields were dealt with above"),
        }
    }

    /// Puts a value under the name where its place is known: the number of those before it.
    pub fn put_at(&mut self, place: usize, key: &Key, value: V) {
        let Fields::Few(fields) = &mut self.0 else { return drop(self.insert(key, value)) };
        let at = |at: usize| fields.get(at).map(|(name, _)| name);
        debug_assert!(place.checked_sub(1).is_none_or(|before| at(before).is_some_and(|name| name < key)));
        debug_assert!(at(place).is_none_or(|name| name >= key));
        let has_room = fields.len() < FEW;
        match fields.get_mut(place) {
            Some((name, there)) if name == key => *there = value,
            _ if has_room => fields.insert(place, (key.clone(), value)),
            _ => drop(self.insert(key, value)),
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<V> {
        self.remove_entry(key).map(|(_, value)| value)
    }

    pub fn remove_entry(&mut self, key: &str) -> Option<(Key, V)> {
        match &mut self.0 {
            Fields::Few(fields) => find(fields, key).map(|at| fields.remove(at)),
            Fields::Many(fields) => fields.remove_entry(key),
        }
    }

    pub fn append(&mut self, other: &mut Map<V>) {
        self.extend(std::mem::take(other));
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Key, &mut V) -> bool) {
        match &mut self.0 {
            Fields::Few(fields) => fields.retain_mut(|(key, value)| keep(key, value)),
            Fields::Many(fields) => fields.retain(keep),
        }
    }

    /// The value under the name; where there is none, one is put there.
    pub(crate) fn made(&mut self, name: &str, key: impl FnOnce() -> Key, value: impl FnOnce() -> V) -> &mut V {
        let found = match &self.0 {
            Fields::Few(fields) => place(fields, name),
            Fields::Many(_) => Err(FEW),
        };
        if let (Err(_), Fields::Few(fields)) = (found, &mut self.0)
            && fields.len() >= FEW
        {
            self.0 = Fields::many(fields);
        }
        match &mut self.0 {
            Fields::Few(fields) => {
                let at = found.unwrap_or_else(|at| {
                    fields.insert(at, (key(), value()));
                    at
                });
                &mut fields[at].1
            }
            Fields::Many(fields) => fields.entry(key()).or_insert_with(value),
        }
    }

    pub fn entry(&mut self, key: impl Into<Key>) -> Entry<'_, V> {
        Entry { map: self, key: key.into() }
    }

    pub fn iter(&self) -> Iter<'_, V> {
        match &self.0 {
            Fields::Few(fields) => Iter(Either::Few(fields.iter())),
            Fields::Many(fields) => Iter(Either::Many(fields.iter())),
        }
    }

    pub fn iter_mut(&mut self) -> IterMut<'_, V> {
        match &mut self.0 {
            Fields::Few(fields) => IterMut(Either::Few(fields.iter_mut())),
            Fields::Many(fields) => IterMut(Either::Many(fields.iter_mut())),
        }
    }

    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> + DoubleEndedIterator + Clone {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + DoubleEndedIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut V> + DoubleEndedIterator {
        self.iter_mut().map(|(_, value)| value)
    }

    pub fn into_values(self) -> impl ExactSizeIterator<Item = V> + DoubleEndedIterator {
        self.into_iter().map(|(_, value)| value)
    }
}

/// The place of one name, taken or not.
pub struct Entry<'m, V> {
    map: &'m mut Map<V>,
    key: Key,
}

impl<'m, V> Entry<'m, V> {
    pub fn or_insert(self, value: V) -> &'m mut V {
        self.or_insert_with(|| value)
    }

    pub fn or_insert_with(self, value: impl FnOnce() -> V) -> &'m mut V {
        let Entry { map, key } = self;
        let name = key.clone();
        map.made(&name, || key, value)
    }
}

enum Either<F, M> {
    Few(F),
    Many(M),
}

macro_rules! iterator {
    ($name:ident<$($of:tt),*>, $item:ty, $split:expr) => {
        impl<$($of),*> Iterator for $name<$($of),*> {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                match &mut self.0 {
                    Either::Few(fields) => fields.next().map($split),
                    Either::Many(fields) => fields.next(),
                }
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                match &self.0 {
                    Either::Few(fields) => fields.size_hint(),
                    Either::Many(fields) => fields.size_hint(),
                }
            }
        }

        impl<$($of),*> DoubleEndedIterator for $name<$($of),*> {
            fn next_back(&mut self) -> Option<Self::Item> {
                match &mut self.0 {
                    Either::Few(fields) => fields.next_back().map($split),
                    Either::Many(fields) => fields.next_back(),
                }
            }
        }

        impl<$($of),*> ExactSizeIterator for $name<$($of),*> {}
    };
}

pub struct Iter<'m, V>(Either<slice::Iter<'m, (Key, V)>, btree_map::Iter<'m, Key, V>>);
iterator!(Iter<'m, V>, (&'m Key, &'m V), |(key, value)| (key, value));

pub struct IterMut<'m, V>(Either<slice::IterMut<'m, (Key, V)>, btree_map::IterMut<'m, Key, V>>);
iterator!(IterMut<'m, V>, (&'m Key, &'m mut V), |(key, value)| (&*key, value));

pub struct IntoIter<V>(Either<vec::IntoIter<(Key, V)>, btree_map::IntoIter<Key, V>>);
iterator!(IntoIter<V>, (Key, V), |field| field);

impl<V> Clone for Iter<'_, V> {
    fn clone(&self) -> Self {
        Iter(match &self.0 {
            Either::Few(fields) => Either::Few(fields.clone()),
            Either::Many(fields) => Either::Many(fields.clone()),
        })
    }
}

impl<'m, V> IntoIterator for &'m Map<V> {
    type Item = (&'m Key, &'m V);
    type IntoIter = Iter<'m, V>;

    fn into_iter(self) -> Iter<'m, V> {
        self.iter()
    }
}

impl<'m, V> IntoIterator for &'m mut Map<V> {
    type Item = (&'m Key, &'m mut V);
    type IntoIter = IterMut<'m, V>;

    fn into_iter(self) -> IterMut<'m, V> {
        self.iter_mut()
    }
}

impl<V> IntoIterator for Map<V> {
    type Item = (Key, V);
    type IntoIter = IntoIter<V>;

    fn into_iter(self) -> IntoIter<V> {
        match self.0 {
            Fields::Few(fields) => IntoIter(Either::Few(fields.into_iter())),
            Fields::Many(fields) => IntoIter(Either::Many(fields.into_iter())),
        }
    }
}

impl<K: Into<Key>, V> FromIterator<(K, V)> for Map<V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(fields: I) -> Map<V> {
        Map::of(fields.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }
}

impl<K: Into<Key>, V> Extend<(K, V)> for Map<V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, fields: I) {
        for (key, value) in fields {
            self.insert(key, value);
        }
    }
}

impl<V> Default for Map<V> {
    fn default() -> Map<V> {
        Map::new()
    }
}

impl<V: PartialEq> PartialEq for Map<V> {
    fn eq(&self, other: &Map<V>) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for Map<V> {}

impl<V: hash::Hash> hash::Hash for Map<V> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|field| field.hash(state));
    }
}

impl<V: fmt::Debug> fmt::Debug for Map<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<V> Index<&str> for Map<V> {
    type Output = V;

    fn index(&self, key: &str) -> &V {
        self.get(key).expect("no field of this name")
    }
}

impl<V> IndexMut<&str> for Map<V> {
    fn index_mut(&mut self, key: &str) -> &mut V {
        self.get_mut(key).expect("no field of this name")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::BTreeMap;
    use crate::{Map, Value};

    /// A change to a map, drawn at random.
    #[derive(Clone, Debug)]
    enum Act {
        Insert(u8, u8),
        Remove(u8),
        OrInsert(u8, u8),
        RetainEven,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            8 => (any::<u8>(), any::<u8>()).prop_map(|(k, v)| Act::Insert(k, v)),
            3 => any::<u8>().prop_map(Act::Remove),
            3 => (any::<u8>(), any::<u8>()).prop_map(|(k, v)| Act::OrInsert(k, v)),
            1 => Just(Act::RetainEven),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map_whether_few_or_many(acts in proptest::collection::vec(act(), 0..400)) {
            let (mut map, mut model) = (Map::new(), BTreeMap::new());
            let even = |value: &Value| value.as_u64().is_some_and(|n| n % 2 == 0);
            for act in acts {
                match act {
                    Act::Insert(k, v) => {
                        prop_assert_eq!(map.insert(k.to_string(), v.into()), model.insert(k.to_string(), Value::from(v)));
                    }
                    Act::Remove(k) => prop_assert_eq!(map.remove(&k.to_string()), model.remove(&k.to_string())),
                    Act::OrInsert(k, v) => {
                        let put = map.entry(k.to_string()).or_insert(v.into()).clone();
                        prop_assert_eq!(&put, model.entry(k.to_string()).or_insert(v.into()));
                    }
                    Act::RetainEven => {
                        map.retain(|_, value| even(value));
                        model.retain(|_, value| even(value));
                    }
                }
                prop_assert_eq!(map.len(), model.len());
            }
            prop_assert!(map.iter().map(|(k, v)| (k.as_str(), v)).eq(model.iter().map(|(k, v)| (k.as_str(), v))));
            prop_assert!(map.keys().rev().eq(model.keys().rev()));
            let again: Map = model.into_iter().rev().collect();
            prop_assert_eq!(again, map);
        }
    }

    #[test]
    fn of_equal_names_the_last_counts() {
        let map: Map = [("b", Value::from(1)), ("a", Value::from(2)), ("b", Value::from(3))].into_iter().collect();
        assert_eq!(Value::from(map).to_string(), r#"{"a":2,"b":3}"#);
    }
}
