//! The sources of the engine's events: the caches of the kinds that it reads, and their changes in the order in which
//! they come.

use std::{collections::BTreeSet, sync::Arc};

use api::{features::Feature, rules::selector::Selector};
use client::{Cache, Caches, Change, Changes, Key, Kind};
use clock::{Duration, Instant};
use futures::future::{BoxFuture, select_all};
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service},
    policy::v1::PodDisruptionBudget,
    resource::{
        v1::{DeviceClass, ResourceClaim, ResourceSlice},
        v1alpha3::DeviceTaintRule,
    },
    scheduling::v1alpha1::Workload,
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use tokio::sync::broadcast::{error::RecvError, error::TryRecvError};

use crate::{
    attachable::{self, Attachable, Attachment, Limits},
    claims::{self, Capacity, Claim, Volume},
    class::OwnerKind,
    devices,
    engine::Engine,
    gangs,
};

/// Tells the engine of one object; `None` when it is gone.
type Apply<K> = fn(&mut Engine, &Key, Option<&K>);

/// One kind's cache with the changes that the engine has not seen.
struct Feed<K> {
    cache: Arc<Cache<K>>,
    changes: Changes<K>,
    /// A change that was waited for, or `None` for some that were lost.
    next: Option<Option<Arc<Change<K>>>>,
    held: fn(&Engine) -> Vec<Key>,
    apply: Apply<K>,
}

trait Source: Send + Sync {
    fn synced(&self) -> BoxFuture<'_, ()>;
    /// Hands over everything that the cache holds, and what the engine holds beyond that as gone.
    fn replay(&self, engine: &mut Engine);
    /// Hands over all changes that are there.
    fn drain(&mut self, engine: &mut Engine);
    /// Until there is a change.
    fn wait(&mut self) -> BoxFuture<'_, ()>;
}

impl<K: Kind> Source for Feed<K> {
    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { _ = self.cache.synced().await })
    }

    fn replay(&self, engine: &mut Engine) {
        let objects = self.cache.list();
        let there: BTreeSet<Key> = objects.iter().map(|o| Key::of(&**o)).collect();
        // In an order that does not depend on how the engine keeps them.
        let gone: BTreeSet<Key> = (self.held)(engine).into_iter().filter(|key| !there.contains(key)).collect();
        gone.iter().for_each(|key| (self.apply)(engine, key, None));
        objects.iter().for_each(|o| (self.apply)(engine, &Key::of(&**o), Some(o)));
    }

    fn drain(&mut self, engine: &mut Engine) {
        match self.next.take() {
            Some(Some(change)) => (self.apply)(engine, &change.key, change.new.as_deref()),
            Some(None) => self.replay(engine),
            None => {}
        }
        loop {
            match self.changes.try_recv() {
                Ok(change) => (self.apply)(engine, &change.key, change.new.as_deref()),
                Err(TryRecvError::Lagged(_)) => {
                    self.changes = self.changes.resubscribe();
                    self.replay(engine);
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn wait(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            match self.changes.recv().await {
                Ok(change) => self.next = Some(Some(change)),
                Err(RecvError::Lagged(_)) => self.next = Some(None),
                Err(RecvError::Closed) => std::future::pending().await,
            }
        })
    }
}

/// How long the start waits for a kind of a feature that is on. Its version may be off, and Pods that do not need it go on.
const UNSERVED: Duration = Duration::from_secs(10);

/// All kinds that the engine is told of. The kinds that decide about Pods come before them.
pub(crate) struct Sources(Vec<Box<dyn Source>>);

impl Sources {
    /// Subscribes before it reads, so that nothing falls between.
    pub async fn start(caches: &Caches, engine: &mut Engine) -> Self {
        fn feed<K: Kind>(caches: &Caches, held: fn(&Engine) -> Vec<Key>, apply: Apply<K>) -> Box<dyn Source> {
            let cache = caches.of::<K>();
            Box::new(Feed { changes: cache.subscribe(), cache, next: None, held, apply })
        }
        let mut sources = Sources(vec![
            feed::<PodDisruptionBudget>(caches, Engine::budget_keys, budget),
            feed::<Namespace>(caches, Engine::namespace_keys, namespace),
            feed::<Service>(caches, Engine::service_keys, service),
            feed::<ReplicationController>(
                caches,
                |engine| engine.owner_keys(OwnerKind::ReplicationController),
                replication_controller,
            ),
            feed::<ReplicaSet>(caches, |engine| engine.owner_keys(OwnerKind::ReplicaSet), replica_set),
            feed::<StatefulSet>(caches, |engine| engine.owner_keys(OwnerKind::StatefulSet), stateful_set),
            feed::<StorageClass>(caches, Engine::storage_class_keys, storage_class),
            feed::<CSIDriver>(caches, Engine::driver_keys, driver),
            feed::<CSIStorageCapacity>(caches, Engine::capacity_keys, capacity),
            feed::<PersistentVolume>(caches, Engine::volume_keys, volume),
            feed::<PersistentVolumeClaim>(caches, Engine::claim_keys, claim),
            feed::<CSINode>(caches, Engine::volume_limit_keys, csi_node),
            feed::<VolumeAttachment>(caches, Engine::attachment_keys, attachment),
            feed::<DeviceClass>(caches, Engine::device_class_keys, device_class),
            feed::<ResourceSlice>(caches, Engine::slice_keys, slice),
            feed::<ResourceClaim>(caches, Engine::device_claim_keys, device_claim),
            feed::<Node>(caches, Engine::node_keys, node),
            feed::<Pod>(caches, Engine::pod_keys, pod),
        ]);
        let (features, always) = (engine.settings.features, sources.0.len());
        if features.enabled(Feature::GangScheduling) {
            sources.0.insert(0, feed::<Workload>(caches, Engine::workload_keys, workload));
        }
        if features.enabled(Feature::DRADeviceTaintRules) {
            sources.0.insert(0, feed::<DeviceTaintRule>(caches, Engine::taint_rule_keys, taint_rule));
        }
        let behind_gates = sources.0.len() - always;
        for source in &sources.0[..behind_gates] {
            if clock::timeout(UNSERVED, source.synced()).await.is_err() {
                tracing::warn!("a kind of a feature that is on cannot be read; is its version on (--runtime-config)?");
            }
        }
        for source in &sources.0[behind_gates..] {
            source.synced().await;
        }
        sources.0.iter().for_each(|source| source.replay(engine));
        sources
    }

    pub fn drain(&mut self, engine: &mut Engine) {
        self.0.iter_mut().for_each(|source| source.drain(engine));
    }

    /// Waits for a change, which the next [`Sources::drain`] hands over.
    pub async fn wait(&mut self) {
        select_all(self.0.iter_mut().map(|source| source.wait())).await;
    }
}

fn budget(engine: &mut Engine, key: &Key, budget: Option<&PodDisruptionBudget>) {
    match budget {
        Some(budget) => engine.set_budget(budget),
        None => engine.remove_budget(key),
    }
}

fn namespace(engine: &mut Engine, key: &Key, namespace: Option<&Namespace>) {
    match namespace {
        Some(namespace) => engine.set_namespace(namespace, Instant::now()),
        None => engine.remove_namespace(&key.name, Instant::now()),
    }
}

fn service(engine: &mut Engine, key: &Key, service: Option<&Service>) {
    let selector = service.and_then(|s| s.spec.as_ref()).and_then(|s| s.selector.clone());
    engine.set_service(key, selector, Instant::now());
}

fn replication_controller(engine: &mut Engine, key: &Key, controller: Option<&ReplicationController>) {
    let labels = controller.and_then(|c| c.spec.as_ref()).and_then(|s| s.selector.as_ref());
    engine.set_owner(OwnerKind::ReplicationController, key, labels.map(Selector::of_labels), Instant::now());
}

fn replica_set(engine: &mut Engine, key: &Key, set: Option<&ReplicaSet>) {
    let selector = set.and_then(|s| s.spec.as_ref()).and_then(|s| Selector::of_object(Some(&s.selector)).ok());
    engine.set_owner(OwnerKind::ReplicaSet, key, selector, Instant::now());
}

fn stateful_set(engine: &mut Engine, key: &Key, set: Option<&StatefulSet>) {
    let selector = set.and_then(|s| s.spec.as_ref()).and_then(|s| Selector::of_object(Some(&s.selector)).ok());
    engine.set_owner(OwnerKind::StatefulSet, key, selector, Instant::now());
}

fn storage_class(engine: &mut Engine, key: &Key, class: Option<&StorageClass>) {
    engine.set_provisioner(key, class.map(attachable::provisioner), Instant::now());
    engine.set_storage_class(key, class.map(claims::Class::of), Instant::now());
}

fn driver(engine: &mut Engine, key: &Key, driver: Option<&CSIDriver>) {
    engine.set_driver(key, driver.map(claims::tells_capacity), Instant::now());
}

fn capacity(engine: &mut Engine, key: &Key, capacity: Option<&CSIStorageCapacity>) {
    engine.set_capacity(key, capacity.map(Capacity::of), Instant::now());
}

fn volume(engine: &mut Engine, key: &Key, volume: Option<&PersistentVolume>) {
    engine.set_attachable(key, volume.and_then(Attachable::of_volume), Instant::now());
    engine.set_volume(key, volume.map(Volume::of), Instant::now());
}

fn csi_node(engine: &mut Engine, key: &Key, node: Option<&CSINode>) {
    engine.set_volume_limits(key, node.map(Limits::of), Instant::now());
}

fn attachment(engine: &mut Engine, key: &Key, attachment: Option<&VolumeAttachment>) {
    engine.set_attachment(key, attachment.and_then(Attachment::of), Instant::now());
}

fn claim(engine: &mut Engine, key: &Key, claim: Option<&PersistentVolumeClaim>) {
    engine.set_claim(key, claim.map(Claim::of), Instant::now());
}

fn device_class(engine: &mut Engine, key: &Key, class: Option<&DeviceClass>) {
    engine.set_device_class(key, class.map(devices::Class::of), Instant::now());
}

fn slice(engine: &mut Engine, key: &Key, slice: Option<&ResourceSlice>) {
    engine.set_slice(key, slice.map(devices::Slice::of), Instant::now());
}

fn taint_rule(engine: &mut Engine, key: &Key, rule: Option<&DeviceTaintRule>) {
    engine.set_taint_rule(key, rule.map(devices::TaintRule::of), Instant::now());
}

fn workload(engine: &mut Engine, key: &Key, workload: Option<&Workload>) {
    engine.set_workload(key, workload.map(gangs::Workload::of), Instant::now());
}

fn device_claim(engine: &mut Engine, key: &Key, claim: Option<&ResourceClaim>) {
    engine.set_device_claim(key, claim.map(devices::Claim::of), Instant::now());
}

fn node(engine: &mut Engine, key: &Key, node: Option<&Node>) {
    match node {
        Some(node) => engine.set_node(node, Instant::now()),
        None => engine.remove_node(&key.name, Instant::now()),
    }
}

fn pod(engine: &mut Engine, key: &Key, pod: Option<&Pod>) {
    match pod {
        Some(pod) => engine.set_pod(pod, Instant::now()),
        None => engine.remove_pod(key, Instant::now()),
    }
}
