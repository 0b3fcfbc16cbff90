//! The caches of a process: one watch and one copy per kind, shared by everyone who reads it.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    api::{ListParams, WatchParams},
    core::WatchEvent,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::cache::{Cache, Key};

/// A typed API kind, as `k8s-openapi` declares them.
pub trait Kind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Kind for K {}

/// Short form of the metadata accessor, usable on any kind.
pub(crate) fn revision_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

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
            let task = tokio::spawn(reflect(self.client.clone(), field_selector.to_owned(), cache.clone()));
            self.inner.reflectors.lock().push(task);
            cache
        });
        any.clone().downcast().expect("the key holds the type")
    }
}

/// How long a failed list or watch waits before it is tried again, doubling from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Keeps a cache current for ever: list, then watch from the list's revision; when the watch ends, watch on; when the
/// server no longer has that revision (410), list again.
async fn reflect<K: Kind>(client: Client, field_selector: String, cache: Arc<Cache<K>>) {
    let api: Api<K> = Api::all(client);
    let mut wait = RETRY.0;
    let mut from: Option<u64> = None;
    loop {
        let outcome = match from {
            None => list(&api, &field_selector, &cache).await.map(Some),
            Some(revision) => watch(&api, &field_selector, &cache, revision).await,
        };
        match outcome {
            Ok(next) => {
                from = next;
                wait = RETRY.0;
            }
            Err(error) => {
                tracing::debug!(kind = %K::kind(&()), %error, "list or watch failed, trying again");
                clock::sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
            }
        }
    }
}

async fn list<K: Kind>(api: &Api<K>, field_selector: &str, cache: &Cache<K>) -> Result<u64, kube::Error> {
    let list = api.list(&ListParams::default().fields(field_selector)).await?;
    let revision = list.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
    cache.replace(list.items, revision);
    Ok(revision)
}

/// Watches until the server ends the watch. `Ok(None)` asks for a new list, `Ok(Some(r))` for a watch from `r`.
async fn watch<K: Kind>(
    api: &Api<K>,
    field_selector: &str,
    cache: &Cache<K>,
    mut revision: u64,
) -> Result<Option<u64>, kube::Error> {
    let params = WatchParams::default().fields(field_selector).timeout(290);
    let mut events = match api.watch(&params, &revision.to_string()).await {
        Ok(stream) => stream.boxed(),
        Err(kube::Error::Api(status)) if status.code == 410 => return Ok(None),
        Err(error) => return Err(error),
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                revision = revision_of(object.meta());
                cache.apply(object, revision);
            }
            Ok(WatchEvent::Deleted(object)) => {
                revision = revision_of(object.meta());
                cache.delete(Key::of(&object), revision);
            }
            Ok(WatchEvent::Bookmark(mark)) => {
                revision = mark.metadata.resource_version.parse().unwrap_or(revision);
                cache.advance(revision);
            }
            Ok(WatchEvent::Error(status)) if status.code == 410 => return Ok(None),
            Ok(WatchEvent::Error(status)) => return Err(kube::Error::Api(status)),
            Err(error) => {
                tracing::debug!(kind = %K::kind(&()), %error, "watch broke off");
                break;
            }
        }
    }
    Ok(Some(revision))
}
