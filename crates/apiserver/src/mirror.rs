//! All objects of one kind as values, kept up to date by the feed: for the server's own lookups (roles, bindings,
//! namespaces), which happen on every request.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use api::{Value, kind::Definition};
use parking_lot::RwLock;
use store::{Event, Range, Revision, Store};

use crate::object;

/// A live copy of a kind's objects, keyed by their storage key.
pub struct Mirror {
    pub definition: Arc<Definition>,
    objects: RwLock<HashMap<Arc<str>, (Revision, Arc<Value>)>>,
    generation: AtomicU64,
}

impl Mirror {
    pub(crate) fn new(definition: Arc<Definition>) -> Self {
        Mirror { definition, objects: RwLock::default(), generation: AtomicU64::new(0) }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = object::key(&self.definition, namespace, name);
        self.objects.read().get(key.as_str()).map(|(_, object)| object.clone())
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<Value>> {
        self.objects.read().values().map(|(_, object)| object.clone()).collect()
    }

    /// Grows with every change: what was derived at one generation holds as long as it stays the same.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads everything; what events brought since stays.
    pub(crate) async fn fill(&self, store: &dyn Store) -> store::Result<()> {
        let page = store.range(Range::prefix(&object::key(&self.definition, "", ""))).await?;
        let mut objects = self.objects.write();
        objects.retain(|_, (revision, _)| *revision > page.revision);
        for entry in page.entries {
            let known = objects.get(&entry.key).is_some_and(|(revision, _)| *revision > entry.modified);
            if !known {
                let value = Arc::new(object::of_entry(&self.definition, &entry));
                objects.insert(entry.key.clone(), (entry.modified, value));
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(crate) fn apply(&self, event: &Event) {
        match &event.entry {
            Some(entry) => {
                let value = Arc::new(object::of_entry(&self.definition, entry));
                self.objects.write().insert(entry.key.clone(), (entry.modified, value));
            }
            None => {
                self.objects.write().remove(&event.key);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }
}
