//! Follows the ConfigMaps and Secrets that a Pod's volumes show: one watch for each.

use std::{sync::Arc, time::Duration};

use client::Client;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, runtime::watcher};
use tokio::{sync::Notify, task::JoinSet};

use crate::pod::{desired::DesiredPod, mounts};

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
        let (maps, secrets) = mounts::followed(desired);
        for name in maps {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), desired.namespace());
            self.watches.spawn(follow(api, name, self.changed.clone()));
        }
        for name in secrets {
            let api: Api<Secret> = Api::namespaced(client.clone(), desired.namespace());
            self.watches.spawn(follow(api, name, self.changed.clone()));
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

async fn follow<K: client::Kind>(api: Api<K>, name: String, changed: Arc<Notify>) {
    let mut changes = watcher::watch_object(api, &name).boxed();
    // The first is what the volume was made from.
    let mut first = true;
    while let Some(change) = changes.next().await {
        match change {
            Ok(_) if std::mem::take(&mut first) => {}
            Ok(_) => changed.notify_one(),
            Err(error) => {
                tracing::debug!(name, %error, "a watched object is out of reach");
                clock::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}
