//! Keeps a copy of a collection current for ever: one list, then one watch from the list's revision.
//!
//! When the watch ends it is resumed from the last revision seen; when the server no longer has that revision (410),
//! everything is listed anew. What is done with the objects is the [`Sink`]'s business.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Resource,
    api::{DynamicObject, ListParams, PartialObjectMeta, WatchParams},
    core::{ObjectList, WatchEvent},
};
use serde::de::DeserializeOwned;

/// Takes what the server says about a collection.
pub trait Sink<T>: Send + Sync {
    /// Everything there is, as of `revision`.
    fn replace(&self, objects: Vec<T>, revision: u64);
    fn apply(&self, object: T, revision: u64);
    fn delete(&self, object: T, revision: u64);
    /// A bookmark: nothing else happened up to `revision`.
    fn advance(&self, revision: u64);
}

type Events<T> = BoxStream<'static, Result<WatchEvent<T>, kube::Error>>;

/// Where the objects come from.
pub trait Source: Send + Sync {
    type Item: Resource + Clone + Send;
    fn list(&self, params: &ListParams) -> impl Future<Output = Result<ObjectList<Self::Item>, kube::Error>> + Send;
    fn watch(
        &self,
        params: &WatchParams,
        from: &str,
    ) -> impl Future<Output = Result<Events<Self::Item>, kube::Error>> + Send;
}

/// Whole objects.
pub struct Whole<K>(pub Api<K>);

impl<K> Source for Whole<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Send + Sync,
{
    type Item = K;

    async fn list(&self, params: &ListParams) -> Result<ObjectList<K>, kube::Error> {
        self.0.list(params).await
    }

    async fn watch(&self, params: &WatchParams, from: &str) -> Result<Events<K>, kube::Error> {
        Ok(self.0.watch(params, from).await?.boxed())
    }
}

/// Only `metadata`, of a kind known at run time.
pub struct MetadataOnly(pub Api<DynamicObject>);

impl Source for MetadataOnly {
    type Item = PartialObjectMeta<DynamicObject>;

    async fn list(&self, params: &ListParams) -> Result<ObjectList<Self::Item>, kube::Error> {
        self.0.list_metadata(params).await
    }

    async fn watch(&self, params: &WatchParams, from: &str) -> Result<Events<Self::Item>, kube::Error> {
        Ok(self.0.watch_metadata(params, from).await?.boxed())
    }
}

/// How long a failed list or watch waits before it is tried again, doubling from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// How many objects one request of a list asks for.
const PAGE: u32 = 500;

/// How long the server is asked to keep one watch, in seconds; a random time in this range, so that the watches of
/// many clients do not end together.
const WATCH_SECONDS: std::ops::Range<u64> = 200..290;

/// Feeds `sink` from `source`; `fields` is a field selector or empty. Never returns.
pub async fn reflect<S: Source>(source: S, fields: &str, sink: &impl Sink<S::Item>, name: &str) {
    let mut wait = RETRY.0;
    let mut from: Option<u64> = None;
    loop {
        let started = clock::Instant::now();
        let outcome = match from {
            None => list(&source, fields, sink).await.map(Some),
            Some(revision) => watch(&source, fields, sink, revision).await,
        };
        match outcome {
            Ok(next) => {
                // A watch that the server ends at once must not become a busy loop.
                if from.is_some() && next == from && started.elapsed() < RETRY.0 {
                    clock::sleep(RETRY.0).await;
                }
                from = next;
                wait = RETRY.0;
            }
            Err(error) => {
                tracing::debug!(kind = name, %error, "list or watch failed, trying again");
                let jitter = clock::random_range(0..wait.as_millis() as u64 / 2);
                clock::sleep(wait + Duration::from_millis(jitter)).await;
                wait = (wait * 2).min(RETRY.1);
            }
        }
    }
}

async fn list<S: Source>(source: &S, fields: &str, sink: &impl Sink<S::Item>) -> Result<u64, kube::Error> {
    let mut params = ListParams::default().fields(fields).limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = source.list(&params).await?;
        objects.extend(page.items);
        let revision = page.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => {
                sink.replace(objects, revision);
                return Ok(revision);
            }
        }
    }
}

/// Watches until the server ends the watch. `Ok(None)` asks for a new list, `Ok(Some(r))` for a watch from `r`.
async fn watch<S: Source>(
    source: &S,
    fields: &str,
    sink: &impl Sink<S::Item>,
    mut revision: u64,
) -> Result<Option<u64>, kube::Error> {
    let params = WatchParams::default().fields(fields).timeout(clock::random_range(WATCH_SECONDS) as u32);
    let mut events = match source.watch(&params, &revision.to_string()).await {
        Err(kube::Error::Api(status)) if status.code == 410 => return Ok(None),
        other => other?,
    };
    let revision_of =
        |object: &S::Item| object.meta().resource_version.as_deref().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                revision = revision_of(&object);
                sink.apply(object, revision);
            }
            Ok(WatchEvent::Deleted(object)) => {
                revision = revision_of(&object);
                sink.delete(object, revision);
            }
            Ok(WatchEvent::Bookmark(mark)) => {
                revision = mark.metadata.resource_version.parse().unwrap_or(revision);
                sink.advance(revision);
            }
            Ok(WatchEvent::Error(status)) if status.code == 410 => return Ok(None),
            Ok(WatchEvent::Error(status)) => return Err(kube::Error::Api(status)),
            // The connection broke: go on from where it was, without a new list.
            Err(error) => {
                tracing::debug!(%error, "watch broke off");
                break;
            }
        }
    }
    Ok(Some(revision))
}
