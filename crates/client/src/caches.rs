//! The caches of a process: one watch and one copy per kind, shared by everyone who reads it.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt::Debug,
    sync::Arc,
};

use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::{
    cache::Cache,
    reflector::{Whole, reflect},
};

/// A typed API kind, as `k8s-openapi` declares them.
pub trait Kind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Kind for K {}

/// Shared caches of one process. Cloning shares them; the reflectors end when the last clone is dropped.
#[derive(Clone)]
pub struct Caches {
    client: Client,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    caches: Mutex<HashMap<(TypeId, String), Arc<dyn Any + Send + Sync>>>,
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
        let id = (TypeId::of::<K>(), field_selector.to_owned());
        let mut caches = self.inner.caches.lock();
        let any = caches.entry(id).or_insert_with(|| {
            let cache = Arc::new(Cache::<K>::default());
            let (source, fields, sink) =
                (Whole(Api::all(self.client.clone())), field_selector.to_owned(), cache.clone());
            let task = tokio::spawn(async move { reflect(source, &fields, &*sink, &K::kind(&())).await });
            self.inner.reflectors.lock().push(task);
            cache
        });
        any.clone().downcast().expect("the key holds the type")
    }
}
