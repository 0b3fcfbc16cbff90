//! Which changes of objects may give a quota back: of Pods, Services and claims what the caches tell, of every other kind that a
//! quota names one watch of metadata.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::rules::quota::{Counter, Usage, is_in_all, scopes};
use client::{
    Caches, Change, Client, Key, Kind, Sink,
    object::{MetadataOnly, Object as _},
    reflector::{Listing, reflect, revision_of},
    rest::{Collection, Form},
};
use controller::{Queue, Watches};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service},
    resource::v1::{DeviceClass, ResourceClaim},
};
use tokio::{
    sync::broadcast::error::RecvError,
    task::{AbortHandle, JoinSet},
};

use super::{count, extended, limited};

/// How soon a resource is looked for again that the server does not have (yet).
const MISSING: Duration = Duration::from_secs(30);

pub fn watches(watches: &mut Watches<ResourceQuota>) {
    counted::<Pod>(watches, || Counter::Pods);
    counted::<Service>(watches, || Counter::Services);
    counted::<PersistentVolumeClaim>(watches, || Counter::VolumeClaims);
    counted::<ResourceClaim>(watches, || Counter::DeviceClaims);
    let caches = watches.caches().clone();
    watches.fed_by(|queue| follow(caches, queue));
}

/// Claims change what is used of extended resources, and so does what their classes stand for.
pub fn extended(watches: &mut Watches<ResourceQuota>) {
    let concerned = |quotas: Vec<Arc<ResourceQuota>>| -> Vec<Key> {
        let limits = |quota: &&Arc<ResourceQuota>| !extended::names(quota, &limited(quota)).is_empty();
        quotas.iter().filter(limits).map(|quota| Key::of(&**quota)).collect()
    };
    watches.changed::<ResourceClaim>(move |change, caches| {
        let spec = |claim: &Option<Arc<ResourceClaim>>| claim.as_ref().map(|claim| claim.spec.devices.clone());
        if spec(&change.old) == spec(&change.new) {
            return Vec::new();
        }
        concerned(caches.of::<ResourceQuota>().list_in(&change.key.namespace))
    });
    watches.changed::<DeviceClass>(move |change, caches| {
        let resource = |class: &Option<Arc<DeviceClass>>| class.as_ref()?.spec.extended_resource_name.clone();
        if resource(&change.old) == resource(&change.new) {
            return Vec::new();
        }
        concerned(caches.of::<ResourceQuota>().list())
    });
}

fn counted<K: Kind + Usage>(watches: &mut Watches<ResourceQuota>, counter: fn() -> Counter) {
    watches.changed::<K>(move |change, caches| {
        let quotas = caches.of::<ResourceQuota>().list_in(&change.key.namespace);
        let concerned = quotas.iter().filter(|quota| counts(quota, &counter()) && changes(quota, change));
        concerned.map(|quota| Key::of(&**quota)).collect()
    });
}

fn counts(quota: &ResourceQuota, counter: &Counter) -> bool {
    limited(quota).iter().any(|(_, of, ..)| of == counter)
}

/// Whether the object uses something else of the quota than before.
fn changes<K: Usage>(quota: &ResourceQuota, change: &Change<K>) -> bool {
    let scopes = quota.spec.as_ref().map(scopes).unwrap_or_default();
    let now = clock::now();
    let used = |object: &Arc<K>| is_in_all(&**object, &scopes).then(|| object.used(now));
    change.old.as_ref().and_then(used) != change.new.as_ref().and_then(used)
}

/// The resources that quotas count by the number of their objects.
fn named(caches: &Caches) -> BTreeSet<(String, String)> {
    let quotas = caches.of::<ResourceQuota>().list();
    let counted = quotas.iter().flat_map(|quota| limited(quota));
    let objects = counted.filter(|(_, counter, ..)| matches!(counter, Counter::Objects { .. }));
    objects.map(|(_, _, group, plural)| (group, plural)).collect()
}

/// Keeps one watch for each of them. There are no more than the server has kinds: what it does not have is no watch.
async fn follow(caches: Caches, queue: Arc<Queue>) {
    let mut changes = caches.of::<ResourceQuota>().subscribe();
    let mut tasks = JoinSet::new();
    let mut watched: BTreeMap<(String, String), AbortHandle> = BTreeMap::new();
    loop {
        let wanted = named(&caches);
        watched.retain(|resource, task| {
            let keep = wanted.contains(resource);
            if !keep {
                task.abort();
            }
            keep
        });
        for resource in wanted {
            let (group, plural) = resource.clone();
            watched.entry(resource).or_insert_with(|| {
                let objects = Objects { group, plural, caches: caches.clone(), queue: queue.clone() };
                tasks.spawn(watch(caches.client().clone(), objects))
            });
        }
        while tasks.try_join_next().is_some() {}
        if let Err(RecvError::Closed) = changes.recv().await {
            return;
        }
    }
}

async fn watch(client: Client, objects: Objects) {
    loop {
        match count::resource(&client, &objects.group, &objects.plural).await {
            Ok(Some(resource)) => {
                return reflect(&client, &Collection::all(resource, Form::Metadata), &objects).await;
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(group = objects.group, %error, "a group cannot be read, trying again"),
        }
        clock::sleep(MISSING).await;
    }
}

/// Tells the quotas of the objects of one resource.
struct Objects {
    group: String,
    plural: String,
    caches: Caches,
    queue: Arc<Queue>,
}

impl Objects {
    /// Enqueues the quotas that count the resource, of one namespace or (`None`) of all.
    fn tell(&self, namespace: Option<&str>) {
        let Some(counter) = Counter::of(&self.group, &self.plural) else { return };
        let cache = self.caches.of::<ResourceQuota>();
        let quotas = namespace.map_or_else(|| cache.list(), |namespace| cache.list_in(namespace));
        for quota in quotas.iter().filter(|quota| counts(quota, &counter)) {
            self.queue.add(Key::of(&**quota));
        }
    }
}

impl Sink for Objects {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Listed(self))
    }

    /// Whether it is new is not known; a quota that is told too often rests between its counts.
    fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
        let MetadataOnly { metadata } = MetadataOnly::from_json(object)?;
        self.tell(Some(metadata.namespace.as_deref().unwrap_or("")));
        Ok(revision_of(&metadata))
    }

    fn delete(&self, object: &str) -> Result<u64, serde_json::Error> {
        self.apply(object)
    }

    fn advance(&self, _: u64) {}
}

/// An object that went while nobody watched is not in a list: all quotas of the resource count again.
struct Listed<'a>(&'a Objects);

impl Listing for Listed<'_> {
    fn add(&mut self, _: &str) -> Result<(), serde_json::Error> {
        Ok(())
    }

    fn finish(self: Box<Self>, _: u64) {
        self.0.tell(None);
    }
}
