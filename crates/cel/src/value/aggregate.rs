//! Lists and maps: JSON of the input, what an expression made, or maps that their owner looks up on demand.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use json::{Map as JsonMap, Value as Json};

use super::{Text, Value};
use crate::error::EvaluationError;

/// A map that is not held as one: fields that are computed when they are asked for, or defaults for unknown keys.
pub trait Lookup: Sync {
    /// The value of a key; `None` when there is none.
    fn get(&self, key: &str) -> Result<Option<Value<'_>>, EvaluationError>;
    /// Whether `in` finds the key, which it does not for a default.
    fn has(&self, key: &str) -> Result<bool, EvaluationError> {
        Ok(self.get(key)?.is_some())
    }
    /// The keys that there are, in a fixed order.
    fn keys(&self) -> Vec<&str>;
}

#[derive(Clone)]
pub enum List<'a> {
    Json(&'a [Json]),
    Values(Arc<Vec<Value<'a>>>),
    Associative(Arc<Associative<'a>>),
}

/// A list in which the order counts for nothing.
#[derive(Clone)]
pub struct Associative<'a> {
    pub(super) items: Vec<Value<'a>>,
    /// The fields that tell items apart; none for a set, whose items do so themselves.
    pub(super) keys: Arc<[Box<str>]>,
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            List::Json(items) => items.len(),
            List::Values(items) => items.len(),
            List::Associative(list) => list.items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            List::Json(items) => items.get(index).map(Value::json),
            List::Values(items) => items.get(index).cloned(),
            List::Associative(list) => list.items.get(index).cloned(),
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Value<'a>> + ExactSizeIterator {
        (0..self.len()).map(|i| self.get(i).expect("it is below the length"))
    }
}

impl Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A key of a map, so that numbers which are equal are the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    Bool(bool),
    /// Every whole number of the three number types.
    Number(i128),
    String(Arc<str>),
}

impl Key {
    pub fn of(value: &Value<'_>) -> Option<Key> {
        Some(match value {
            Value::Bool(b) => Key::Bool(*b),
            Value::Int(i) => Key::Number((*i).into()),
            Value::Uint(u) => Key::Number((*u).into()),
            Value::Double(d) if d.fract() == 0.0 && d.abs() < 1e30 =>
            {
                #[expect(clippy::cast_possible_truncation)]
                Key::Number(*d as i128)
            }
            Value::String(Text::Shared(text)) => Key::String(text.clone()),
            Value::String(text) => Key::String((**text).into()),
            _ => return None,
        })
    }
}

/// Entries in the order in which they came.
#[derive(Clone, Default)]
pub struct Entries<'a> {
    entries: Vec<(Value<'a>, Value<'a>)>,
    places: HashMap<Key, usize>,
    /// Entries that count and that nobody finds.
    hidden: usize,
}

#[derive(Clone)]
pub enum Map<'a> {
    Json(&'a JsonMap),
    Lookup(&'a dyn Lookup),
    Values(Arc<Entries<'a>>),
}

impl<'a> Map<'a> {
    pub fn empty() -> Self {
        Map::Values(Arc::default())
    }

    pub fn len(&self) -> usize {
        match self {
            Map::Json(fields) => fields.len(),
            Map::Lookup(map) => map.keys().len(),
            Map::Values(map) => map.entries.len() + map.hidden,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, EvaluationError> {
        match self {
            Map::Values(map) => {
                let place = Key::of(key).and_then(|k| map.places.get(&k));
                Ok(place.map(|at| map.entries[*at].1.clone()))
            }
            _ => key.as_str().map_or(Ok(None), |name| self.field(name)),
        }
    }

    /// Whether the key is there itself, and not only a default for it.
    pub fn has(&self, key: &Value<'_>) -> Result<bool, EvaluationError> {
        match self {
            Map::Lookup(map) => key.as_str().map_or(Ok(false), |name| map.has(name)),
            _ => Ok(self.get(key)?.is_some()),
        }
    }

    pub fn field(&self, name: &str) -> Result<Option<Value<'a>>, EvaluationError> {
        match self {
            Map::Json(fields) => Ok(fields.get(name).map(Value::json)),
            Map::Lookup(map) => {
                let map: &'a dyn Lookup = *map;
                map.get(name)
            }
            Map::Values(_) => self.get(&Value::string(name)),
        }
    }

    /// The keys. Maps are bounded by the request or the budget, so they are copied for walking over them.
    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Json(fields) => fields.keys().map(|k| Value::str(k)).collect(),
            Map::Lookup(map) => {
                let map: &'a dyn Lookup = *map;
                map.keys().into_iter().map(Value::str).collect()
            }
            Map::Values(map) => map.entries.iter().map(|(k, _)| k.clone()).collect(),
        }
    }

    /// With this number of fields more that are null. Upstream counts them and does not find them, so that an object with one is
    /// equal to none, not even to itself.
    #[must_use]
    pub fn with_hidden(self, hidden: usize) -> Map<'a> {
        match self {
            Map::Values(mut map) => {
                Arc::make_mut(&mut map).hidden = hidden;
                Map::Values(map)
            }
            other => other,
        }
    }

    /// Adds an entry to a map that an expression makes; an error if the key is there or can be none.
    pub fn insert(self, key: Value<'a>, value: Value<'a>) -> Result<Map<'a>, EvaluationError> {
        if matches!(self.get(&key), Ok(Some(_))) {
            return Err(EvaluationError::new(format!("insert failed: key {key} already exists")));
        }
        self.put(key, value)
    }

    /// The same for an entry that is written out: the last of a key counts.
    pub fn put(self, key: Value<'a>, value: Value<'a>) -> Result<Map<'a>, EvaluationError> {
        let Some(hashed) = Key::of(&key).filter(|_| !matches!(key, Value::Double(_))) else {
            return Err(EvaluationError::new(format!("unsupported key type: {}", key.type_of())));
        };
        let mut map = match self {
            Map::Values(map) => map,
            other => {
                let mut copy = Entries::default();
                for key in other.keys() {
                    let value = other.get(&key)?.unwrap_or(Value::Null);
                    copy.places.extend(Key::of(&key).map(|k| (k, copy.entries.len())));
                    copy.entries.push((key, value));
                }
                Arc::new(copy)
            }
        };
        let entries = Arc::make_mut(&mut map);
        match entries.places.get(&hashed) {
            Some(place) => entries.entries[*place] = (key, value),
            None => {
                entries.places.insert(hashed, entries.entries.len());
                entries.entries.push((key, value));
            }
        }
        Ok(Map::Values(map))
    }
}

impl Debug for Map<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |key: &Value<'_>| self.get(key).ok().flatten();
        f.debug_map().entries(self.keys().into_iter().map(|k| (format!("{k:?}"), value(&k)))).finish()
    }
}
