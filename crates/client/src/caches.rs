//! The caches of a process: one watch and one copy per kind, shared by everyone who reads it.

use std::{
    any::{Any, TypeId},
    borrow::Cow,
    collections::BTreeMap,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::{
    Client,
    cache::Cache,
    handover,
    object::Kind,
    reflector::{Sink, reflect},
    rest::{Collection, Form, Resource},
};

/// No namespace, and no field selector.
const WHOLE: &str = "/";

/// Shared caches of one process. Cloning shares them; the reflectors end when the last clone is dropped.
#[derive(Clone)]
pub struct Caches {
    client: Client,
    inner: Arc<Inner>,
}

/// The caches of one kind, by namespace and field selector.
type Parts = BTreeMap<String, Arc<dyn Any + Send + Sync>>;

#[derive(Default)]
struct Inner {
    caches: Mutex<BTreeMap<TypeId, Parts>>,
    reflectors: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in self.reflectors.get_mut() {
            task.abort();
        }
    }
}

impl Caches {
    pub fn new(client: Client) -> Self {
        Caches { client, inner: Arc::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The cache of a kind; the first call starts its list and watch. Await [`Cache::synced`] before relying on it.
    pub fn of<K: Kind>(&self) -> Arc<Cache<K>> {
        self.selected("")
    }

    /// The cache of those objects of a kind that a field selector takes, such as `spec.nodeName=n1`.
    pub fn selected<K: Kind>(&self, field_selector: &str) -> Arc<Cache<K>> {
        let collection =
            || Collection { fields: field_selector.to_owned(), ..Collection::all(Resource::of::<K>(), Form::Whole) };
        self.known(("", field_selector), collection)
    }

    /// The cache of one object. Its reader needs rights to this name in this namespace alone.
    pub fn one<K: Kind>(&self, namespace: &str, name: &str) -> Arc<Cache<K>> {
        let collection = Collection::one(Resource::of::<K>(), namespace, name);
        let fields = collection.fields.clone();
        self.known((namespace, &fields), || collection)
    }

    /// The cache of a namespace and a field selector. Controllers ask for that of a whole kind with each change, so it is found without
    /// a text of its own.
    fn known<K: Kind>(
        &self,
        (namespace, fields): (&str, &str),
        collection: impl FnOnce() -> Collection,
    ) -> Arc<Cache<K>> {
        let mut caches = self.inner.caches.lock();
        let of_kind = caches.entry(TypeId::of::<K>()).or_default();
        let part = match (namespace, fields) {
            ("", "") => Cow::Borrowed(WHOLE),
            (namespace, fields) => Cow::Owned(format!("{namespace}/{fields}")),
        };
        let any = match of_kind.get(&*part) {
            Some(known) => known.clone(),
            None => {
                if self.client.is_in_process() {
                    handover::want::<K>();
                }
                let cache = Arc::new(Cache::<K>::default());
                self.inner.reflectors.lock().push(keep(self.client.clone(), collection(), cache.clone()));
                of_kind.insert(part.into_owned(), cache.clone());
                cache
            }
        };
        any.downcast().expect("the key holds the type")
    }
}

/// Not generic, so that the task is compiled once for all kinds.
fn keep(client: Client, collection: Collection, sink: Arc<dyn Sink>) -> JoinHandle<()> {
    tokio::spawn(async move { reflect(&client, &collection, &*sink).await })
}
