//! The caches' view of one node's volumes: those that its Pods want, those that are attached, and which other nodes
//! have them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use client::{Caches, Key};
use clock::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};

use super::{BY_NODE, BY_VOLUME, volume};
use crate::{node::on_node, storage::claim_protection::BY_CLAIM};

/// Another node that has a volume, and the Pods there that use it.
#[derive(Debug, Clone, Default)]
pub struct Rival {
    pub pods: Vec<Key>,
}

/// A volume that Pods on the node use.
pub struct DesiredVolume {
    pub volume: Arc<PersistentVolume>,
    pub pods: Vec<Arc<Pod>>,
    pub attachment: Option<Arc<VolumeAttachment>>,
    /// Only for a volume that one node may have.
    pub rivals: Vec<Rival>,
    /// This node was last asked to have it, and the caches show no attachment there: not yet, or no longer.
    pub perhaps_of: Option<String>,
    /// The event about it was told.
    pub is_told: bool,
}

impl DesiredVolume {
    pub fn name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or("")
    }

    /// The error that the attacher told, as the message of an event.
    pub fn failure(&self) -> Option<String> {
        let status = self.attachment.as_ref()?.status.as_ref().filter(|status| !status.attached)?;
        let message = status.attach_error.as_ref()?.message.as_deref().unwrap_or("");
        Some(format!("AttachVolume.Attach failed for volume {:?} : {message}", self.name()))
    }

    /// The trouble to tell once, and again when it or the Pods are others.
    pub fn trouble(&self) -> String {
        let pods: Vec<&str> = self.pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        format!("{} {:?} {pods:?}", self.rivals.len(), self.failure())
    }
}

#[derive(Default)]
pub struct Observed {
    /// By the volume's name.
    pub wanted: BTreeMap<String, DesiredVolume>,
    /// The node's attachments, of volumes that there are.
    pub attachments: Vec<(Arc<VolumeAttachment>, Arc<PersistentVolume>)>,
    /// Since when attachments that no Pod needs have been so, by name.
    pub unused_since: HashMap<String, Timestamp>,
    /// A volume is another node's for a moment.
    pub look_again: bool,
}

impl Observed {
    pub fn of(node: &str, caches: &Caches) -> Self {
        let mut observed = Observed { attachments: attachments(node, caches), ..Observed::default() };
        let (claims, volumes, drivers) = (caches.of(), caches.of(), caches.of());
        for pod in on_node::pods(caches, node).into_iter().filter(|pod| !volume::is_over(pod)) {
            let used = volume::volumes(&pod, &claims, &volumes).into_iter();
            for volume in used.filter(|v| volume::is_attachable(v, &drivers)) {
                let name = volume.metadata.name.clone().unwrap_or_default();
                let wanted = observed.wanted.entry(name.clone()).or_insert_with(|| DesiredVolume {
                    attachment: observed
                        .attachments
                        .iter()
                        .find(|(_, held)| held.metadata.name.as_ref() == Some(&name))
                        .map(|(attachment, _)| attachment.clone()),
                    rivals: rivals(&volume, node, caches),
                    volume,
                    pods: Vec::new(),
                    perhaps_of: None,
                    is_told: false,
                });
                wanted.pods.push(pod.clone());
            }
        }
        observed
    }

    /// The attachments that no Pod needs.
    pub fn unused(&self) -> impl Iterator<Item = &VolumeAttachment> {
        let unused = |volume: &PersistentVolume| {
            volume.metadata.name.as_ref().is_some_and(|name| !self.wanted.contains_key(name))
        };
        self.attachments.iter().filter(move |(_, volume)| unused(volume)).map(|(attachment, _)| &**attachment)
    }
}

fn attachments(node: &str, caches: &Caches) -> Vec<(Arc<VolumeAttachment>, Arc<PersistentVolume>)> {
    let volumes = caches.of::<PersistentVolume>();
    let all = caches.of::<VolumeAttachment>().by_index(BY_NODE, node).into_iter();
    all.filter_map(|attachment| {
        let volume = volumes.get(&Key::new("", attachment.spec.source.persistent_volume_name.clone()?))?;
        let driver = volume::handle(&volume)?.0 == attachment.spec.attacher;
        driver.then_some((attachment, volume))
    })
    .collect()
}

/// The other nodes that have a volume which only one may have.
fn rivals(volume: &PersistentVolume, node: &str, caches: &Caches) -> Vec<Rival> {
    if volume::is_shared(volume) {
        return Vec::new();
    }
    let name = volume.metadata.name.as_deref().unwrap_or("");
    let held = caches.of::<VolumeAttachment>().by_index(BY_VOLUME, name);
    let elsewhere = held.iter().filter(|attachment| attachment.spec.node_name != node);
    elsewhere
        .map(|attachment| {
            let pods = users(volume, &attachment.spec.node_name, caches);
            Rival { pods: pods.iter().map(|pod| Key::of(&**pod)).collect() }
        })
        .collect()
}

/// The Pods that name the claim of a volume.
fn naming(volume: &PersistentVolume, caches: &Caches) -> Vec<Arc<Pod>> {
    let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let Some(claim) = claim else { return Vec::new() };
    let key = Key::new(claim.namespace.as_deref().unwrap_or(""), claim.name.as_deref().unwrap_or(""));
    caches.of::<Pod>().by_index(BY_CLAIM, &key.to_string())
}

/// The Pods on a node that use a volume.
pub fn users(volume: &PersistentVolume, node: &str, caches: &Caches) -> Vec<Arc<Pod>> {
    let mut pods = naming(volume, caches);
    pods.retain(|pod| on_node::node_of(pod) == node && !volume::is_over(pod));
    pods
}

/// The node that a Pod is on.
pub fn node_key(pod: &Pod) -> Option<Key> {
    Some(on_node::node_of(pod)).filter(|node| !node.is_empty()).map(|node| Key::new("", node))
}

pub fn concerned_by_claim(claim: &PersistentVolumeClaim, caches: &Caches) -> Vec<Key> {
    let pods = caches.of::<Pod>().by_index(BY_CLAIM, &Key::of(claim).to_string());
    pods.iter().filter_map(|pod| node_key(pod)).collect()
}

/// The nodes of Pods that use a volume, and those that have it.
pub fn concerned_by_volume(volume: &PersistentVolume, caches: &Caches) -> Vec<Key> {
    if volume::handle(volume).is_none() {
        return Vec::new();
    }
    let name = volume.metadata.name.as_deref().unwrap_or("");
    let held = caches.of::<VolumeAttachment>().by_index(BY_VOLUME, name);
    let nodes = held.iter().map(|attachment| Key::new("", attachment.spec.node_name.as_str()));
    nodes.chain(naming(volume, caches).iter().filter_map(|pod| node_key(pod))).collect()
}
