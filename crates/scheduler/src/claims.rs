//! What Pods ask for by claims: volumes through PersistentVolumeClaims, devices through ResourceClaims. The facts about
//! both that decide where a Pod can go, and whether it can go anywhere yet.

use std::collections::HashMap;

use api::rules::{
    node_affinity,
    pod::{self, DeviceClaim, VolumeClaim},
    quantity,
    selector::Selector,
};
use client::Key;
use k8s_openapi::api::{
    core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim, Pod, TopologySelectorTerm},
    resource::v1::ResourceClaim,
    storage::v1::StorageClass,
};
use serde::Serialize;

use crate::topology::Labels;

/// A Pod for which alone a claim was made: its name and UID.
pub type MadeFor = Option<(String, String)>;

/// A claim that a Pod names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Named {
    /// `None` when it has no name yet, because nobody has made it.
    pub name: Option<String>,
    pub made_for: MadeFor,
}

/// The PersistentVolumeClaims that a Pod names.
pub fn volume_claims(pod: &Pod) -> Vec<Named> {
    let named = |claim: VolumeClaim| Named { name: Some(claim.name), made_for: claim.is_own.then(|| identity(pod)) };
    pod::volume_claims(pod).map(named).collect()
}

/// The ResourceClaims that a Pod names.
pub fn device_claims(pod: &Pod) -> Vec<Named> {
    let named = |claim: DeviceClaim| Named { name: claim.name, made_for: claim.is_own.then(|| identity(pod)) };
    pod::device_claims(pod).map(named).collect()
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.uid.clone().unwrap_or_default())
}

/// The state of a PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The volume that it names, whether or not both sides have agreed on it.
    pub volume: String,
    /// Both sides have.
    pub bound: bool,
    pub lost: bool,
    pub leaving: bool,
    pub class: String,
    pub owner: Option<String>,
    access_modes: Vec<String>,
    bytes: i64,
    mode: String,
    selector: Option<Selector>,
}

/// The mode of a volume that names none.
const FILESYSTEM: &str = "Filesystem";
/// Set on a claim when its volume has it as its claim.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The class of claims and volumes before they had a field for it.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes whose volumes somebody makes by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

impl Claim {
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|map| map.get(name)).cloned();
        let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
        let volume = spec.volume_name.unwrap_or_default();
        Claim {
            bound: !volume.is_empty() && annotation(BIND_COMPLETED).is_some(),
            volume,
            lost: claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost"),
            leaving: meta.deletion_timestamp.is_some(),
            class: annotation(CLASS_ANNOTATION).or(spec.storage_class_name).unwrap_or_default(),
            owner: controller.map(|owner| owner.uid.clone()),
            access_modes: spec.access_modes.unwrap_or_default(),
            bytes: requests.and_then(|r| r.get("storage")).map_or(0, |q| quantity::parse(q).value()),
            mode: spec.volume_mode.unwrap_or_else(|| FILESYSTEM.to_owned()),
            selector: spec.selector.as_ref().map(|s| Selector::of_object(Some(s)).unwrap_or(Selector::NOTHING)),
        }
    }
}

impl Claim {
    /// Whether one Pod alone may use the claim.
    pub fn is_for_one_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }
}

/// What is known of a PersistentVolume.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    nodes: Option<NodeSelector>,
    /// It waits for any claim, or for this one.
    free_for: Option<Option<Key>>,
    class: String,
    access_modes: Vec<String>,
    bytes: i64,
    mode: String,
    labels: Labels,
}

impl Volume {
    pub fn of(volume: &PersistentVolume) -> Self {
        let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let claim = spec
            .claim_ref
            .as_ref()
            .map(|c| Key::new(c.namespace.clone().unwrap_or_default(), c.name.clone().unwrap_or_default()));
        let old_class = meta.annotations.as_ref().and_then(|map| map.get(CLASS_ANNOTATION)).cloned();
        Volume {
            nodes: spec.node_affinity.and_then(|affinity| affinity.required),
            free_for: (phase == Some("Available") && meta.deletion_timestamp.is_none()).then_some(claim),
            class: old_class.or(spec.storage_class_name).unwrap_or_default(),
            access_modes: spec.access_modes.unwrap_or_default(),
            bytes: spec.capacity.as_ref().and_then(|c| c.get("storage")).map_or(0, |q| quantity::parse(q).value()),
            mode: spec.volume_mode.unwrap_or_else(|| FILESYSTEM.to_owned()),
            labels: meta.labels.clone().unwrap_or_default(),
        }
    }

    /// Whether a Pod on this node can use the volume.
    pub fn reaches(&self, node: &str, labels: &Labels) -> bool {
        self.nodes.as_ref().is_none_or(|selector| node_affinity::matches(selector, labels, node))
    }

    /// Whether the volume can become the claim's.
    pub fn suits(&self, key: &Key, claim: &Claim) -> bool {
        let free = match &self.free_for {
            Some(Some(only)) => only == key,
            Some(None) => claim.selector.as_ref().is_none_or(|selector| selector.matches(&self.labels)),
            None => false,
        };
        free && self.class == claim.class
            && self.mode == claim.mode
            && self.bytes >= claim.bytes
            && claim.access_modes.iter().all(|mode| self.access_modes.contains(mode))
    }

    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    pub fn bytes(&self) -> i64 {
        self.bytes
    }
}

/// What is known of a StorageClass.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Its claims are bound when a Pod that uses them has a node.
    waits_for_pod: bool,
    provisions: bool,
    topologies: Vec<TopologySelectorTerm>,
}

impl Class {
    pub fn of(class: &StorageClass) -> Self {
        Class {
            waits_for_pod: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            provisions: class.provisioner != NO_PROVISIONER,
            topologies: class.allowed_topologies.clone().unwrap_or_default(),
        }
    }

    /// Whether a volume can be made for a Pod on a node with these labels.
    pub fn provisions_for(&self, labels: &Labels) -> bool {
        let term = |term: &TopologySelectorTerm| {
            let mut expressions = term.match_label_expressions.iter().flatten();
            expressions.all(|e| labels.get(&e.key).is_some_and(|value| e.values.contains(value)))
        };
        self.provisions && (self.topologies.is_empty() || self.topologies.iter().any(term))
    }
}

/// The state of a ResourceClaim.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// The nodes where its devices are, once it has some; all nodes when none are named.
    pub allocated: Option<Option<NodeSelector>>,
    pub leaving: bool,
    pub owner: Option<String>,
}

impl Device {
    pub fn of(claim: &ResourceClaim) -> Self {
        let owners = claim.metadata.owner_references.iter().flatten();
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        Device {
            allocated: allocation.map(|allocation| allocation.node_selector.clone()),
            leaving: claim.metadata.deletion_timestamp.is_some(),
            owner: owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()),
        }
    }
}

/// All that is known of claims and of what they ask for.
#[derive(Debug, Default)]
pub struct Claims {
    pub claims: HashMap<Key, Claim>,
    pub volumes: HashMap<String, Volume>,
    pub classes: HashMap<String, Class>,
    pub devices: HashMap<Key, Device>,
}

/// Notes a fact, and says whether it is news.
pub fn set<K: std::hash::Hash + Eq, V: PartialEq>(map: &mut HashMap<K, V>, key: K, value: Option<V>) -> bool {
    if map.get(&key) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => _ = map.insert(key, value),
        None => _ = map.remove(&key),
    }
    true
}

impl Claims {
    /// A claim that is bound only when its Pod has a node, and has no volume yet.
    pub fn waits_for_pod(&self, claim: &Claim) -> bool {
        claim.volume.is_empty() && self.classes.get(&claim.class).is_some_and(|class| class.waits_for_pod)
    }

    /// Whether a claim that waits for its Pod can have a volume for a node: one that is there, or one that is made.
    pub fn can_bind_on(&self, key: &Key, claim: &Claim, node: &str, labels: &Labels) -> bool {
        let made = self.classes.get(&claim.class).is_some_and(|class| class.provisions_for(labels));
        let mut free = self.volumes.values().filter(|volume| volume.suits(key, claim));
        made || free.any(|volume| volume.reaches(node, labels))
    }
}
