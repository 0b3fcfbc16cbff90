//! Services together with their EndpointSlices: the label that ties them, the cache index over it, and one stream of the
//! Services that changed in either.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use tokio::sync::broadcast::error::RecvError;

use crate::{
    cache::{Cache, Change, Changes, Key},
    caches::Caches,
};

/// The label by which an EndpointSlice names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The name of the index that [`index_by_service`] adds; its values are `namespace/name`.
pub const BY_SERVICE: &str = "service";

/// The Service that a slice belongs to.
pub fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name.clone()))
}

/// Makes `cache.by_index(BY_SERVICE, "namespace/name")` give a Service's slices.
pub fn index_by_service(cache: &Cache<EndpointSlice>) {
    cache.add_index(BY_SERVICE, |slice| service_of(slice).map(|k| k.to_string()).into_iter().collect());
}

/// Follows all Services with their slices.
pub struct Services {
    services: Arc<Cache<Service>>,
    slices: Arc<Cache<EndpointSlice>>,
    service_changes: Changes<Service>,
    slice_changes: Changes<EndpointSlice>,
}

/// The Services that changed, themselves or in their slices.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed {
    These(BTreeSet<Key>),
    /// Changes were lost: any Service may have changed.
    Any,
}

impl Changed {
    fn add<K>(&mut self, received: Result<Arc<Change<K>>, RecvError>, keys_of: impl Fn(&Change<K>) -> Vec<Key>) {
        match (received, self) {
            (Ok(change), Changed::These(keys)) => keys.extend(keys_of(&change)),
            (Ok(_), Changed::Any) => {}
            (Err(_), whatever) => *whatever = Changed::Any,
        }
    }
}

fn of_service(change: &Change<Service>) -> Vec<Key> {
    vec![change.key.clone()]
}

fn of_slice(change: &Change<EndpointSlice>) -> Vec<Key> {
    [&change.old, &change.new].into_iter().flatten().filter_map(|s| service_of(s)).collect()
}

impl Services {
    pub fn follow(caches: &Caches) -> Self {
        let (services, slices) = (caches.of::<Service>(), caches.of::<EndpointSlice>());
        index_by_service(&slices);
        Services { service_changes: services.subscribe(), slice_changes: slices.subscribe(), services, slices }
    }

    /// Ready when both caches hold their first list.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
    }

    /// Waits for a change, then takes all that are there already with it, so that a burst is one piece of work.
    pub async fn changed(&mut self) -> Changed {
        let mut changed = Changed::These(BTreeSet::new());
        tokio::select! {
            change = self.service_changes.recv() => changed.add(change, of_service),
            change = self.slice_changes.recv() => changed.add(change, of_slice),
        }
        while let Ok(change) = self.service_changes.try_recv() {
            changed.add(Ok(change), of_service);
        }
        while let Ok(change) = self.slice_changes.try_recv() {
            changed.add(Ok(change), of_slice);
        }
        changed
    }

    /// The names of all Services.
    pub fn keys(&self) -> BTreeSet<Key> {
        self.services.list().iter().map(|s| Key::of(&**s)).collect()
    }

    /// A Service and its slices; `None` when there is no such Service.
    pub fn get(&self, key: &Key) -> Option<(Arc<Service>, Vec<Arc<EndpointSlice>>)> {
        let service = self.services.get(key)?;
        Some((service, self.slices.by_index(BY_SERVICE, &key.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_name_their_services_and_lost_ones_name_all() {
        let slice = |service: &str| {
            let mut slice = EndpointSlice::default();
            slice.metadata.namespace = Some("d".to_owned());
            slice.metadata.labels = Some([(SERVICE_NAME_LABEL.to_owned(), service.to_owned())].into());
            Some(Arc::new(slice))
        };
        let moved = Change { key: Key::new("d", "slice"), old: slice("a"), new: slice("b") };
        let mut changed = Changed::These(BTreeSet::new());
        changed.add(Ok(Arc::new(moved)), of_slice);
        changed.add(Ok(Arc::new(Change::<Service> { key: Key::new("d", "c"), old: None, new: None })), of_service);
        assert_eq!(changed, Changed::These(["a", "b", "c"].map(|n| Key::new("d", n)).into()));
        changed.add(Err(RecvError::Lagged(1)), of_service);
        assert_eq!(changed, Changed::Any);
    }
}
