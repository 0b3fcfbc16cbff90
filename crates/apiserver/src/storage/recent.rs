//! Objects that were written a moment ago, as trees. A reader that comes at once after a write (a binding after a
//! create, the node authorizer after both) would otherwise read the bytes again that were made of the tree just before.
//!
//! A tree is found by its key and by the bytes that were made of it. The same bytes are the same object, whatever came
//! of the write: one that failed leaves a tree that nobody finds, and no order between writers and readers matters.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use api::{Value, kind::Definition};
use bytes::Bytes;
use parking_lot::Mutex;
use store::Entry;

use crate::storage::object;

/// The most trees that are kept; a later one takes the place of another. Not many: the parts of a tree that was put away long ago are
/// no longer in the processor's cache, and giving each back is a tenth of a create.
const PLACES: usize = 64;
/// Larger objects are not kept.
const BYTES_MAX: usize = 16 << 10;

struct Written {
    stored: Bytes,
    object: Arc<Value>,
}

pub struct Recent {
    places: Box<[Mutex<Option<Written>>]>,
    /// Keyed, so that nobody makes names that drive out the trees of others.
    hasher: RandomState,
}

impl Default for Recent {
    fn default() -> Self {
        Recent { places: (0..PLACES).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl Recent {
    fn place(&self, key: &str) -> &Mutex<Option<Written>> {
        &self.places[self.hasher.hash_one(key) as usize % PLACES]
    }

    /// Keeps the tree that bytes were made of. Its resourceVersion means nothing: the write decides about that.
    pub fn keep(&self, definition: &Definition, key: &str, stored: &Bytes, object: Arc<Value>) {
        // The bytes name the kind whatever the tree says.
        let text = |field| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let named = text("kind") == definition.kind && text("apiVersion") == definition.api_version();
        if definition.is_converted() || stored.len() > BYTES_MAX || !named {
            return;
        }
        let replaced = self.place(key).lock().replace(Written { stored: stored.clone(), object });
        drop(replaced);
    }

    /// The tree of a stored object, where it is here, but for its resourceVersion.
    pub fn find(&self, definition: &Definition, entry: &Entry) -> Option<Arc<Value>> {
        let place = self.place(&entry.key).lock();
        Some(Self::right(definition, entry, place.as_ref()?)?.object.clone())
    }

    /// The tree for a caller who changes it: it goes from here, so that it need not be copied.
    pub fn take(&self, definition: &Definition, entry: &Entry) -> Option<Value> {
        let mut place = self.place(&entry.key).lock();
        Self::right(definition, entry, place.as_ref()?)?;
        let written = place.take()?;
        drop(place);
        Some(Arc::unwrap_or_clone(written.object))
    }

    fn right<'w>(definition: &Definition, entry: &Entry, written: &'w Written) -> Option<&'w Written> {
        let same = !definition.is_converted()
            && !object::reads_through(definition, entry)
            && written.stored.len() == entry.value.len()
            && (written.stored.as_ptr() == entry.value.as_ptr() || written.stored == entry.value);
        debug_assert!(!same || is_of(&written.object, &entry.value), "the tree is not what its bytes say");
        same.then_some(written)
    }
}

/// Whether reading the bytes gives this tree, but for the ways to write a number.
fn is_of(object: &Value, stored: &Bytes) -> bool {
    let text = |value: &Value| {
        let mut text = Vec::new();
        value.append_to(&mut text);
        text
    };
    let read: Result<Value, _> = serde_json::from_slice(stored);
    let mut object = object.clone();
    api::meta::metadata_mut(&mut object).map(|metadata| metadata.remove("resourceVersion"));
    read.is_ok_and(|read| text(&read) == text(&object))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn entry(key: &str, value: &Bytes, modified: u64) -> Entry {
        Entry { key: key.into(), value: value.clone(), created: 1, modified }
    }

    #[test]
    fn a_tree_is_found_by_its_bytes() {
        let kinds = crate::storage::kinds::Kinds::default();
        let pods = kinds.stored("", "pods").unwrap();
        let recent = Recent::default();
        let pod =
            |label: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"l": label}}});
        let (one, two) = (object::encode(&pods, &pod("1")), object::encode(&pods, &pod("2")));
        let at = |value: &Bytes| entry("/registry/pods/n/a", value, 7);
        assert!(recent.find(&pods, &at(&one)).is_none());
        recent.keep(&pods, "/registry/pods/n/a", &one, Arc::new(pod("1")));
        assert_eq!(recent.find(&pods, &at(&one)).as_deref(), Some(&pod("1")));
        let elsewhere = Bytes::copy_from_slice(&one);
        assert_eq!(recent.find(&pods, &at(&elsewhere)).as_deref(), Some(&pod("1")));
        // A write that failed, and what somebody else wrote instead.
        assert!(recent.find(&pods, &at(&two)).is_none());
        assert!(recent.take(&pods, &at(&two)).is_none());
        assert_eq!(recent.take(&pods, &at(&one)), Some(pod("1")));
        assert!(recent.take(&pods, &at(&one)).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let kinds = crate::storage::kinds::Kinds::default();
        let maps = kinds.stored("", "configmaps").unwrap();
        let recent = Recent::default();
        let map = |name: &str, text: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": text}});
        for i in 0..PLACES * 4 {
            let (name, key) = (i.to_string(), format!("/registry/configmaps/n/{i}"));
            let object = map(&name, "");
            recent.keep(&maps, &key, &object::encode(&maps, &object), Arc::new(object));
        }
        let large = map("large", &"x".repeat(BYTES_MAX));
        let stored = object::encode(&maps, &large);
        recent.keep(&maps, "/registry/configmaps/n/large", &stored, Arc::new(large));
        assert!(recent.find(&maps, &entry("/registry/configmaps/n/large", &stored, 7)).is_none());
        assert!(recent.places.iter().filter(|place| place.lock().is_some()).count() <= PLACES);
    }
}
