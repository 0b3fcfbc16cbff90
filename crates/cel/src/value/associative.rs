//! Lists that are sets, or maps by keys of their items: they are equal in any order, and what is joined to one replaces what
//! it has already.
//! Upstream counterpart: the values of apiserver/pkg/cel/common (UnstructuredToVal).

use std::collections::HashMap;
use std::sync::Arc;

use super::Value;
use super::aggregate::{Associative, Key, List};
use crate::error::EvaluationError;

/// The keys that tell an item apart from others. Items of a set that are no simple values have none that can be looked
/// up.
type Identity = Vec<Option<Key>>;
type Places = HashMap<Identity, usize>;

/// Compares two values, within a budget.
pub(crate) trait Same: FnMut(&Value<'_>, &Value<'_>) -> Result<bool, EvaluationError> {}

impl<T: FnMut(&Value<'_>, &Value<'_>) -> Result<bool, EvaluationError>> Same for T {}

impl<'a> Associative<'a> {
    fn identity(&self, item: &Value<'_>) -> Option<Identity> {
        if self.keys.is_empty() {
            return Key::of(item).map(|key| vec![Some(key)]);
        }
        let Value::Map(fields) = item else { return None };
        let key = |name: &str| fields.get(&Value::str(name)).ok().flatten().as_ref().and_then(Key::of);
        Some(self.keys.iter().map(|name| key(name)).collect())
    }

    fn places(&self) -> Places {
        let identified = self.items.iter().enumerate();
        identified.filter_map(|(at, item)| Some((self.identity(item)?, at))).collect()
    }

    /// The place of the item that another one stands for.
    fn place(&self, places: &Places, item: &Value<'_>, same: &mut impl Same) -> Result<Option<usize>, EvaluationError> {
        if let Some(identity) = self.identity(item) {
            return Ok(places.get(&identity).copied());
        }
        for (at, own) in self.items.iter().enumerate() {
            if same(own, item)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Whether a list of the same length has the same items, in whatever order.
    pub(super) fn equals(&self, other: &List<'_>, mut same: impl Same) -> Result<bool, EvaluationError> {
        let places = self.places();
        for item in other.iter() {
            let Some(at) = self.place(&places, &item, &mut same)? else { return Ok(false) };
            if !same(&self.items[at], &item)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// With the items of another list: in the places of those that they stand for, and else behind.
    pub(crate) fn join(&self, other: &List<'a>, mut same: impl Same) -> Result<List<'a>, EvaluationError> {
        let (mut places, mut joined) = (self.places(), self.clone());
        for item in other.iter() {
            match joined.place(&places, &item, &mut same)? {
                Some(at) => joined.items[at] = item,
                None => {
                    places.extend(self.identity(&item).map(|identity| (identity, joined.items.len())));
                    joined.items.push(item);
                }
            }
        }
        Ok(List::Associative(Arc::new(joined)))
    }
}
