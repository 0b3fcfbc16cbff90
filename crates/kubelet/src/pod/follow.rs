//! Follows the ConfigMaps and Secrets that a Pod's volumes show: one watch for each.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use client::{
    Client,
    object::MetadataOnly,
    reflector::{One, reflect},
    rest::{Collection, Resource},
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use tokio::{sync::Notify, task::JoinSet};

use crate::{
    pod::desired::DesiredPod,
    volumes::{self, plugin::Followed},
};

/// Dropping it ends the watches.
#[derive(Default)]
pub struct Follower {
    watches: JoinSet<()>,
    changed: Arc<Notify>,
    has_begun: bool,
}

impl Follower {
    /// A second call does nothing.
    pub fn begin(&mut self, client: &Client, desired: &DesiredPod) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        for object in volumes::followed(&desired.pod) {
            let (resource, name) = match object {
                Followed::ConfigMap(name) => (Resource::of::<ConfigMap>(), name),
                Followed::Secret(name) => (Resource::of::<Secret>(), name),
            };
            let source = Collection::one(resource, desired.namespace(), &name);
            self.watches.spawn(follow(client.clone(), source, self.changed.clone()));
        }
    }

    pub fn end(&mut self) {
        self.watches.abort_all();
    }

    /// Volumes may show something that is no longer so.
    pub fn note_change(&self) {
        self.changed.notify_one();
    }

    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Tells of every change of the one object of `source`.
async fn follow(client: Client, source: Collection, changed: Arc<Notify>) {
    // The first state is what the volume was made from.
    let is_first = AtomicBool::new(true);
    let sink = One::<MetadataOnly, _>::new(|_| {
        if !is_first.swap(false, Ordering::Relaxed) {
            changed.notify_one();
        }
    });
    reflect(&client, &source, &sink).await;
}
