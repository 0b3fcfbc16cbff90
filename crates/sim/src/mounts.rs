//! The volumes of a hollow node's Pods: the node says which it has in use, and starts a Pod when those of the Pod are
//! attached, in this order. So whoever detaches can know of every volume that is mounted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::rules::{
    pod::{is_terminal, volume_claims},
    volume::volume_of,
};
use client::{
    Client, Kind,
    rest::{self, Form, Resource, Verb},
};
use json::json;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use serde::de::DeserializeOwned;

/// The annotation of a node that leaves attaching to the controller.
pub const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

#[derive(Default)]
pub struct Mounts {
    /// The names of the volumes that each Pod has or needs until it ends, by its UID.
    volumes: BTreeMap<String, Vec<String>>,
    /// The volumes that the node has told to be in use. A node that has just started has told nothing that it knows of.
    told: Option<BTreeSet<String>>,
}

/// The name of a volume in a node's status, for one that is attached.
pub fn unique_name(volume: &PersistentVolume) -> Option<String> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(format!("kubernetes.io/csi/{}^{}", source.driver, source.volume_handle))
}

async fn read<K: Kind + DeserializeOwned>(client: &Client, namespace: &str, name: &str) -> Option<K> {
    let path = Resource::of::<K>().path(namespace, name, "");
    let bytes = rest::read(client, &path, Form::Whole).await.ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// `None` if they could not be learned now.
async fn volumes(client: &Client, pod: &Pod) -> Option<Vec<String>> {
    let (namespace, mut names) = (pod.metadata.namespace.as_deref().unwrap_or_default(), Vec::new());
    for claim in volume_claims(pod) {
        let claim: PersistentVolumeClaim = read(client, namespace, &claim.name).await?;
        let volume: PersistentVolume = read(client, "", volume_of(&claim)).await?;
        names.extend(unique_name(&volume));
    }
    Some(names)
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

impl Mounts {
    /// Tells what these Pods of the node use. Returns whether everything is known and told.
    pub async fn tell(&mut self, client: &Client, node: &str, pods: &[Arc<Pod>]) -> bool {
        let users = || pods.iter().filter(|pod| !is_terminal(pod) && volume_claims(pod).next().is_some());
        self.volumes.retain(|known, _| users().any(|pod| uid(pod) == known));
        let mut all_known = true;
        for pod in users() {
            if !self.volumes.contains_key(uid(pod)) {
                match volumes(client, pod).await {
                    Some(volumes) => _ = self.volumes.insert(uid(pod).to_owned(), volumes),
                    None => all_known = false,
                }
            }
        }
        let in_use: BTreeSet<String> = self.volumes.values().flatten().cloned().collect();
        // One that does not know of all that it has does not say that it has let go of anything.
        if self.told.as_ref() == Some(&in_use) || (self.told.is_none() && !all_known) {
            return all_known;
        }
        let patch = Verb::MergePatch(json!({"status": {"volumesInUse": in_use}}));
        let told = rest::write(client, &Resource::of::<Node>(), "", node, "status", &patch).await.is_ok();
        if told {
            self.told = Some(in_use);
        }
        told && all_known
    }

    /// Whether a Pod may start: it was told that its volumes are in use, and they are attached.
    pub async fn are_attached(&self, client: &Client, node: &str, pod: &Pod) -> bool {
        if volume_claims(pod).next().is_none() {
            return true;
        }
        let (Some(volumes), Some(told)) = (self.volumes.get(uid(pod)), &self.told) else { return false };
        if volumes.is_empty() {
            return true;
        }
        if !volumes.iter().all(|volume| told.contains(volume)) {
            return false;
        }
        let Some(node) = read::<Node>(client, "", node).await else { return false };
        let attached = node.status.and_then(|s| s.volumes_attached).unwrap_or_default();
        volumes.iter().all(|volume| attached.iter().any(|held| held.name == *volume))
    }
}
