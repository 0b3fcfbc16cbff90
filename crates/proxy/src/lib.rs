//! kube-proxy: makes Service addresses reachable on this node by rewriting packets in the kernel with nftables.
//!
//! [`picture`] renders what one Service needs (pure), [`script`] turns the difference of two pictures into one nft
//! transaction (pure), [`apply`] gives it to the kernel. A change of one Service costs the work for one Service.
//! Reads: Service, EndpointSlice. Writes: the kernel's table `ip skiff-proxy`.
//! Upstream counterpart: pkg/proxy/nftables.

pub mod apply;
pub mod picture;
pub mod script;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{
    Cache, Caches, Change, Key,
    slices::{BY_SERVICE, index_by_service, service_of},
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::picture::{Node, Picture};

/// What the proxy needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
}

/// Runs until cancelled: brings the table to what the API says now, then follows every change.
pub async fn run(caches: Caches, config: Config) {
    let services = caches.of::<Service>();
    let slices = caches.of::<EndpointSlice>();
    index_by_service(&slices);
    let mut proxy = Proxy {
        service_changes: services.subscribe(),
        slice_changes: slices.subscribe(),
        services,
        slices,
        node: Node { name: config.node_name },
        applied: BTreeMap::new(),
    };
    proxy.services.synced().await;
    proxy.slices.synced().await;
    proxy.rebuild().await;
    loop {
        let keys = proxy.next_changes().await;
        proxy.sync(keys).await;
    }
}

struct Proxy {
    services: Arc<Cache<Service>>,
    slices: Arc<Cache<EndpointSlice>>,
    service_changes: Receiver<Change<Service>>,
    slice_changes: Receiver<Change<EndpointSlice>>,
    node: Node,
    /// What the kernel holds, by Service.
    applied: BTreeMap<Key, Picture>,
}

/// The keys that a received change concerns; `None` when changes were lost and everything must be looked at.
type Changed = Option<BTreeSet<Key>>;

fn changed<K>(received: Result<Change<K>, RecvError>, keys_of: impl Fn(&Change<K>) -> BTreeSet<Key>) -> Changed {
    received.ok().map(|change| keys_of(&change))
}

fn keys_of_service(change: &Change<Service>) -> BTreeSet<Key> {
    BTreeSet::from([change.key.clone()])
}

fn keys_of_slice(change: &Change<EndpointSlice>) -> BTreeSet<Key> {
    [&change.old, &change.new].into_iter().flatten().filter_map(|s| service_of(s)).collect()
}

impl Proxy {
    /// Waits for a change, then takes all that are already there with it, so that a burst is one transaction.
    async fn next_changes(&mut self) -> Changed {
        let mut keys = tokio::select! {
            c = self.service_changes.recv() => changed(c, keys_of_service),
            c = self.slice_changes.recv() => changed(c, keys_of_slice),
        }?;
        while let Ok(change) = self.service_changes.try_recv() {
            keys.extend(keys_of_service(&change));
        }
        while let Ok(change) = self.slice_changes.try_recv() {
            keys.extend(keys_of_slice(&change));
        }
        Some(keys)
    }

    fn render(&self, key: &Key) -> Picture {
        let Some(service) = self.services.get(key) else { return Picture::default() };
        picture::render(&service, &self.slices.by_index(BY_SERVICE, &key.to_string()), &self.node)
    }

    async fn sync(&mut self, changed: Changed) {
        let Some(keys) = changed else { return self.rebuild().await };
        waypoint::proxy::sync("services");
        let mut script = script::Script::default();
        let fresh: Vec<(Key, Picture)> = keys.into_iter().map(|key| (key.clone(), self.render(&key))).collect();
        let empty = Picture::default();
        for (key, new) in &fresh {
            script.difference(self.applied.get(key).unwrap_or(&empty), new);
        }
        if script.is_empty() {
            return;
        }
        match apply::transaction(&script.text()).await {
            Ok(()) => {
                for (key, new) in fresh {
                    if new == empty {
                        self.applied.remove(&key)
                    } else {
                        self.applied.insert(key, new)
                    };
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the kernel refused a change of Service rules, rebuilding all of them");
                self.rebuild().await;
            }
        }
    }

    /// Replaces the whole table in one transaction, trying until the kernel takes it.
    async fn rebuild(&mut self) {
        let mut wait = Duration::from_secs(1);
        loop {
            let mut script = script::Script::default();
            let mut taken = BTreeSet::new();
            self.applied.clear();
            for key in self.services.list().iter().map(|s| Key::of(s.as_ref())) {
                // Two Services may claim one external address; the first by name keeps it, the other is left out.
                let (picture, refused) = self.render(&key).without_claimed(&mut taken);
                if refused {
                    tracing::warn!(service = %key, "an address and port of this Service is taken by another Service");
                }
                script.difference(&Picture::default(), &picture);
                self.applied.insert(key, picture);
            }
            match apply::transaction(&format!("{}{}", script::fresh_table(), script.text())).await {
                Ok(()) => return,
                Err(error) => tracing::error!(%error, "cannot write the Service rules, trying again"),
            }
            clock::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
    }
}
