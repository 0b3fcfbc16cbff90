//! The watches of the garbage collector: one per kind, whose changes go into the graph. Pods, of which there are the most and
//! the most changes, are followed in the cache that other controllers read them from.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use client::{
    Change, Sink,
    object::{Kind, MetadataOnly, Object as _},
    reflector::{Listing, reflect, revision_of},
    rest::{Collection, Form, Resource},
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use tokio::task::JoinSet;

use super::{collector::Collector, graph::Object};
use crate::discovery::{Offered, discover};

/// The longest wait for the lists of all kinds.
const PATIENCE: Duration = Duration::from_secs(30);

/// One watch per kind; the set of kinds follows discovery, which is asked again when
/// CustomResourceDefinitions or APIServices change.
pub async fn watch_all(collector: Arc<Collector>) {
    let mut tasks = JoinSet::new();
    let mut watched: BTreeMap<Resource, (tokio::task::AbortHandle, Arc<AtomicBool>)> = BTreeMap::new();
    let mut retry = Duration::from_secs(1);
    loop {
        let (answered, complete) = match discover(&collector.setup.client).await {
            Ok((offered, failed)) => {
                let wanted: Vec<Resource> =
                    offered.iter().filter(|o| is_collected(o)).map(|o| o.resource.clone()).collect();
                watched.retain(|resource, (task, _)| {
                    let keep = wanted.contains(resource) || !failed.is_empty();
                    if !keep {
                        task.abort();
                        collector.update(|graph| graph.replace(resource, Vec::new()));
                    }
                    keep
                });
                for resource in wanted {
                    watched.entry(resource.clone()).or_insert_with(|| {
                        let listed = Arc::new(AtomicBool::new(false));
                        let monitor = Monitor {
                            collector: collector.clone(),
                            resource: Arc::new(resource.clone()),
                            listed: listed.clone(),
                        };
                        (tasks.spawn(monitor.work()), listed)
                    });
                }
                *collector.offered.lock() = offered;
                (true, failed.is_empty())
            }
            Err(error) => {
                tracing::debug!(%error, "discovery failed, trying again");
                (false, false)
            }
        };
        let unlisted = || !watched.is_empty() && !watched.values().all(|(_, listed)| listed.load(Ordering::Acquire));
        let listing = async {
            while unlisted() {
                collector.changed.notified().await;
            }
        };
        // Another API server may tell of resources that it then does not list: that holds nobody else up for long.
        if clock::timeout(PATIENCE, listing).await.is_err() {
            tracing::info!("not all kinds could be listed; the garbage collector goes on without them");
        }
        // A group whose server does not answer keeps its own objects only: what belongs to an owner of it waits for that owner.
        if answered && !watched.is_empty() && !collector.ready.swap(true, Ordering::AcqRel) {
            tracing::debug!(objects = collector.graph.lock().len(), "the garbage collector knows all objects");
            collector.update(|graph| graph.doubtful());
        }
        if complete {
            retry = Duration::from_secs(1);
            collector.kinds_changed.notified().await;
            // A new kind is served a moment after its definition was written.
            clock::sleep(Duration::from_secs(1)).await;
        } else {
            clock::sleep(retry).await;
            retry = (retry * 2).min(Duration::from_secs(30));
        }
    }
}

/// Events come and go by their own time to live, and nothing owns or is owned by them.
fn is_collected(offered: &Offered) -> bool {
    let is_event = offered.resource.plural == "events" && matches!(&*offered.resource.group, "" | "events.k8s.io");
    offered.can(&["list", "watch", "delete"]) && !is_event
}

/// Feeds the graph with one kind.
struct Monitor {
    collector: Arc<Collector>,
    resource: Arc<Resource>,
    listed: Arc<AtomicBool>,
}

impl Monitor {
    fn work(self) -> BoxFuture<'static, ()> {
        if *self.resource == Resource::of::<Pod>() { self.follow::<Pod>().boxed() } else { self.watch().boxed() }
    }

    async fn watch(self) {
        let collection = Collection::all((*self.resource).clone(), Form::Metadata);
        reflect(&self.collector.setup.client, &collection, &self).await;
    }

    /// A cache tells of each change after it holds it, and of the next one when this was heard. So a list that is taken while the
    /// graph is locked is at least as new as every change that was heard, and those after it are heard when it is in the graph.
    async fn follow<K: Kind>(self) {
        let cache = self.collector.setup.caches.of::<K>();
        let monitor = Arc::new(self);
        let told = monitor.clone();
        let _following = cache.follow(move |change: &Change<K>| {
            let uid = |object: &Option<Arc<K>>| object.as_ref().and_then(|object| object.metadata().uid.clone());
            let (old, new) = (uid(&change.old), uid(&change.new));
            if old != new {
                told.remove(old);
            }
            if let Some(object) = &change.new {
                told.put(object.metadata());
            }
        });
        cache.synced().await;
        let objects = || {
            let all = cache.list();
            all.iter().filter_map(|object| monitor.named(object.metadata())).collect()
        };
        monitor.replace(objects);
        std::future::pending().await
    }

    fn named(&self, metadata: &ObjectMeta) -> Option<(String, Object)> {
        Some((metadata.uid.clone()?, Object::of(&self.resource, metadata)))
    }

    fn put(&self, metadata: &ObjectMeta) {
        if let Some(uid) = &metadata.uid {
            self.collector.update(|graph| graph.apply(uid, Object::of(&self.resource, metadata)));
            self.note_kinds();
        }
    }

    fn remove(&self, uid: Option<String>) {
        if let Some(uid) = uid {
            self.collector.update(|graph| graph.remove(&uid));
            self.note_kinds();
        }
    }

    /// These are all there are. They are asked for while nothing else changes the graph.
    fn replace(&self, objects: impl FnOnce() -> Vec<(String, Object)>) {
        self.collector.update(|graph| graph.replace(&self.resource, objects()));
        self.note_kinds();
        self.listed.store(true, Ordering::Release);
        self.collector.changed.notify_one();
    }

    fn note_kinds(&self) {
        if matches!(&*self.resource.plural, "customresourcedefinitions" | "apiservices")
            && self.listed.load(Ordering::Acquire)
        {
            self.collector.kinds_changed.notify_one();
        }
    }
}

impl Sink for Monitor {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Listed { monitor: self, objects: Vec::new() })
    }

    fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
        let MetadataOnly { metadata } = MetadataOnly::from_json(object)?;
        self.put(&metadata);
        Ok(revision_of(&metadata))
    }

    fn delete(&self, object: &str) -> Result<u64, serde_json::Error> {
        let MetadataOnly { metadata } = MetadataOnly::from_json(object)?;
        let revision = revision_of(&metadata);
        self.remove(metadata.uid);
        Ok(revision)
    }

    fn advance(&self, _revision: u64) {}
}

/// All objects of a kind, by UID, as a list brings them.
struct Listed<'a> {
    monitor: &'a Monitor,
    objects: Vec<(String, Object)>,
}

impl Listing for Listed<'_> {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error> {
        let MetadataOnly { metadata } = MetadataOnly::from_json(object)?;
        self.objects.extend(self.monitor.named(&metadata));
        Ok(())
    }

    fn finish(self: Box<Self>, _revision: u64) {
        let Listed { monitor, objects } = *self;
        monitor.replace(|| objects);
    }
}
