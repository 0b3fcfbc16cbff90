//! All objects of one kind, kept up to date by the store's changes: for the server's own lookups (namespaces, accounts),
//! which happen on every request, and for its own parts that follow a kind (authorizers).

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use api::{Value, kind::Definition};
use parking_lot::RwLock;
use store::{Entry, Event, Page, Range, Revision, Store, StoreError};

use crate::storage::{object, recent::Recent};

/// Is told of every change of a kind's objects.
pub trait EventHandler: Send + Sync {
    /// Whether the stored bytes matter at all; what does not is treated as gone, without being decoded.
    fn wants(&self, _stored: &[u8]) -> bool {
        true
    }
    /// Takes the stored bytes as they are; true when that was all it wants of them.
    fn stored(&self, _name: &str, _entry: &Entry) -> bool {
        false
    }
    /// `object` is what it is now, but for its resourceVersion and managers; `None` when it is gone.
    fn changed(&self, definition: &Definition, namespace: &str, name: &str, object: Option<&Value>);
}

/// Objects by storage key, each with the revision it was read at.
type Objects = BTreeMap<Arc<str>, (Revision, Arc<Value>)>;

/// A live copy of a kind's objects, keyed by their storage key. With an event handler only the keys are kept.
pub struct Informer {
    pub definition: Arc<Definition>,
    objects: RwLock<Objects>,
    generation: AtomicU64,
    handler: Option<Arc<dyn EventHandler>>,
    recent: Arc<Recent>,
}

impl Informer {
    pub(crate) fn new(
        definition: Arc<Definition>,
        handler: Option<Arc<dyn EventHandler>>,
        recent: Arc<Recent>,
    ) -> Self {
        Informer { definition, objects: RwLock::default(), generation: AtomicU64::new(0), handler, recent }
    }

    pub(crate) fn has_handler(&self) -> bool {
        self.handler.is_some()
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = object::key(&self.definition, namespace, name);
        self.objects.read().get(key.as_str()).map(|(_, object)| object.clone())
    }

    /// All objects, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Value>> {
        self.objects.read().values().map(|(_, object)| object.clone()).collect()
    }

    /// The objects of one namespace, in the order of their keys.
    pub fn all_in(&self, namespace: &str) -> Vec<Arc<Value>> {
        let prefix = object::key(&self.definition, namespace, "");
        let objects = self.objects.read();
        let start: &str = &prefix;
        let all = objects
            .range::<str, _>((Bound::Included(start), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(start));
        all.map(|(_, (_, object))| object.clone()).collect()
    }

    /// Grows with every change: what was derived at one generation holds as long as it stays the same.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads everything that can be read; what events brought since stays.
    pub(crate) async fn fill(&self, store: &dyn Store) -> store::Result<()> {
        let page = readable(store, Range::prefix(&object::key(&self.definition, "", ""))).await?;
        let mut objects = self.objects.write();
        let present: std::collections::HashSet<&str> = page.entries.iter().map(|e| &*e.key).collect();
        objects.retain(|key, (revision, _)| {
            let stays = *revision > page.revision || present.contains(&**key);
            if !stays {
                self.tell(key, None);
            }
            stays
        });
        for entry in &page.entries {
            let known = objects.get(&entry.key).is_some_and(|(revision, _)| *revision >= entry.modified);
            if !known {
                objects.insert(entry.key.clone(), (entry.modified, self.take(entry)));
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(crate) fn apply(&self, event: &Event) {
        match &event.entry {
            Some(entry) => {
                let value = self.take(entry);
                self.objects.write().insert(entry.key.clone(), (entry.modified, value));
            }
            None => {
                self.objects.write().remove(&event.key);
                self.tell(&event.key, None);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The part that is kept of an entry.
    fn take(&self, entry: &Entry) -> Arc<Value> {
        let Some(handler) = &self.handler else {
            return Arc::new(object::without_managers(&self.definition, entry));
        };
        if handler.stored(object::names(&self.definition, &entry.key).1, entry) {
            return Arc::new(Value::Null);
        }
        let read = || Arc::new(object::without_managers(&self.definition, entry));
        let wanted = handler.wants(&entry.value);
        let object = wanted.then(|| self.recent.find(&self.definition, entry).unwrap_or_else(read));
        self.tell(&entry.key, object.as_deref());
        Arc::new(Value::Null)
    }

    fn tell(&self, key: &str, object: Option<&Value>) {
        if let Some(handler) = &self.handler {
            let (namespace, name) = object::names(&self.definition, key);
            handler.changed(&self.definition, namespace, name, object);
        }
    }
}

/// A range without the values that cannot be read. One that nobody can read is an error to the clients who ask for it, and no reason
/// for the server not to start.
async fn readable(store: &dyn Store, mut range: Range) -> store::Result<Page> {
    let mut entries = Vec::new();
    loop {
        let (key, why) = match store.range(range.clone()).await {
            Err(StoreError::Unreadable { key, why }) if *key >= *range.start => (key, why),
            other => {
                let page = other?;
                entries.extend(page.entries);
                return Ok(Page { entries, ..page });
            }
        };
        tracing::warn!(key, why, "a stored value cannot be read");
        // It is the first one.
        let before = store.range(Range { end: key.clone(), ..range.clone() }).await?;
        entries.extend(before.entries);
        range = Range { start: format!("{key}\0"), revision: Some(before.revision), ..range };
    }
}

#[cfg(test)]
mod tests {
    use encryption::{Current, Encrypted, Table};
    use store::{Change, Commit, Expect, embedded::Embedded};

    use super::*;
    use crate::storage::{foreign, object_store::ObjectStore};

    #[tokio::test(start_paused = true)]
    async fn values_that_nobody_can_read_are_left_out() {
        let below = Arc::new(Embedded::memory());
        for name in ["a", "b", "c", "d", "e"] {
            let value = match name {
                "a" | "c" | "e" => foreign::arriving("{\"kind\":".into()),
                _ => format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#).into(),
            };
            let change = Change::Put { value, ttl_seconds: None };
            let key = format!("/registry/configmaps/n/{name}").into();
            below.commit(Commit { key, expect: Expect::Absent, change }).await.unwrap();
        }
        let above = Encrypted::new(below, Current::new(Table::default())).reading(foreign::as_text);
        let objects = ObjectStore::new(Arc::new(above)).await.unwrap();
        let informer = objects.informer(&objects.definition("", "configmaps").unwrap()).await.unwrap();
        let names: Vec<String> = informer.all().iter().map(|map| api::meta::name(map).to_owned()).collect();
        assert_eq!(names, ["b", "d"]);
    }
}
