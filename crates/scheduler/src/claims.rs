//! The claims that Pods name, and what there is to know of PersistentVolumeClaims and their volumes: the facts that decide
//! where a Pod can go, and whether it can go anywhere yet. Those about ResourceClaims are in `devices`.

use std::collections::{BTreeSet, HashMap};

use api::rules::{
    pod::{self, DeviceClaim, VolumeClaim},
    quantity::{self, Quantity},
    selector::Selector,
    volume::{self, NO_PROVISIONER, Offer, SELECTED_NODE, Wish},
};
use client::Key;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, TopologySelectorTerm},
        storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
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
    /// Where a volume is being made for it.
    pub selected_node: Option<String>,
    pub wish: Wish,
}

impl Claim {
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let meta = &claim.metadata;
        let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let (volume, wish) = (volume::volume_of(claim).to_owned(), Wish::of(claim));
        Claim {
            bound: !volume.is_empty() && volume::is_bind_completed(claim),
            volume,
            lost: claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost"),
            leaving: meta.deletion_timestamp.is_some(),
            class: wish.class.clone(),
            owner: controller.map(|owner| owner.uid.clone()),
            selected_node: volume::annotation(meta, SELECTED_NODE).map(str::to_owned),
            wish,
        }
    }

    /// Whether one Pod alone may use the claim.
    pub fn is_for_one_pod(&self) -> bool {
        self.wish.is_for_one_pod()
    }
}

/// The facts about a PersistentVolume.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// The parts of the object that decide who can have it and where.
    object: PersistentVolume,
}

impl Volume {
    pub fn of(volume: &PersistentVolume) -> Self {
        let mut object = volume.clone();
        let (meta, status) = (&volume.metadata, object.status.take().unwrap_or_default());
        object.metadata = ObjectMeta {
            name: meta.name.clone(),
            labels: Some(meta.labels.clone().unwrap_or_default()),
            annotations: meta.annotations.clone(),
            deletion_timestamp: meta.deletion_timestamp.clone(),
            ..ObjectMeta::default()
        };
        object.status.get_or_insert_default().phase = status.phase;
        Volume { object }
    }

    pub fn offer(&self) -> Offer<'_> {
        Offer::of(&self.object)
    }

    /// Whether a Pod on this node can use the volume.
    pub fn reaches(&self, node: &str, labels: &Labels) -> bool {
        self.offer().reaches(node, labels)
    }

    pub fn labels(&self) -> &Labels {
        self.object.metadata.labels.as_ref().expect("every volume is given a map")
    }

    /// The list of volumes among which it is looked for: those that any claim of a class can have, or those of one claim.
    fn place(&self) -> Place {
        match self.offer().claim() {
            None => Place::Class(volume::class_of_volume(&self.object).to_owned()),
            Some(claim) => {
                Place::Claim(Key::new(claim.namespace.as_deref().unwrap_or(""), claim.name.as_deref().unwrap_or("")))
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Place {
    Class(String),
    Claim(Key),
}

/// The facts about a StorageClass.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Its claims are bound when a Pod that uses them has a node.
    waits_for_pod: bool,
    /// The provisioner of its volumes; `None` when somebody makes them by hand.
    provisioner: Option<String>,
    topologies: Vec<TopologySelectorTerm>,
}

impl Class {
    pub fn of(class: &StorageClass) -> Self {
        Class {
            waits_for_pod: volume::waits_for_consumer(class),
            provisioner: Some(class.provisioner.clone()).filter(|p| !p.is_empty() && p != NO_PROVISIONER),
            topologies: class.allowed_topologies.clone().unwrap_or_default(),
        }
    }

    /// Whether a volume can be made for a Pod on a node with these labels.
    pub fn provisions_for(&self, labels: &Labels) -> bool {
        let term = |term: &TopologySelectorTerm| {
            let mut expressions = term.match_label_expressions.iter().flatten();
            expressions.all(|e| labels.get(&e.key).is_some_and(|value| e.values.contains(value)))
        };
        self.provisioner.is_some() && (self.topologies.is_empty() || self.topologies.iter().any(term))
    }
}

/// How much room a storage system says it has for a class, and for which nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    class: String,
    /// The largest volume that can be made.
    most: Option<Quantity>,
    nodes: Option<Selector>,
}

impl Capacity {
    pub fn of(capacity: &CSIStorageCapacity) -> Self {
        let most = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        let nodes = capacity.node_topology.as_ref();
        Capacity {
            class: capacity.storage_class_name.clone(),
            most: most.map(quantity::parse),
            nodes: nodes.map(|nodes| Selector::of_object(Some(nodes)).unwrap_or(Selector::NOTHING)),
        }
    }

    fn is_enough(&self, wish: &Wish, labels: &Labels) -> bool {
        self.class == wish.class
            && self.most.is_some_and(|most| most >= wish.size)
            && self.nodes.as_ref().is_some_and(|nodes| nodes.matches(labels))
    }
}

/// Whether a driver tells how much room it has.
pub fn tells_capacity(driver: &CSIDriver) -> bool {
    driver.spec.storage_capacity == Some(true)
}

/// All that is known of claims on volumes and of what they ask for.
#[derive(Debug, Default)]
pub struct Claims {
    pub claims: HashMap<Key, Claim>,
    pub volumes: HashMap<String, Volume>,
    pub classes: HashMap<String, Class>,
    pub capacities: HashMap<Key, Capacity>,
    /// CSI drivers, with whether they tell how much room they have.
    pub drivers: HashMap<String, bool>,
    places: HashMap<Place, BTreeSet<String>>,
    /// Free volumes that were chosen for a claim of a Pod that is being bound.
    taken: HashMap<String, Taken>,
}

#[derive(Debug)]
struct Taken {
    claim: Key,
    pod: Key,
}

/// Where the claims of a Pod that wait for it get their volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Claims with the volumes that they get.
    pub given: Vec<(Key, String)>,
    /// Claims for which a volume is to be made.
    pub made: Vec<Key>,
}

/// Why the claims of a Pod cannot get their volumes on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    Volume,
    Room,
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

    /// A volume as it is now; `None` when it is gone. Says whether that is news.
    pub fn set_volume(&mut self, name: &str, volume: Option<Volume>) -> bool {
        if let Some(old) = self.volumes.get(name).filter(|old| Some(*old) != volume.as_ref()) {
            let place = old.place();
            let left = self.places.get_mut(&place).map_or(0, |names| {
                names.remove(name);
                names.len()
            });
            if left == 0 {
                self.places.remove(&place);
            }
        }
        // The choice of this volume has been written, or the volume is somebody else's now.
        if !volume.as_ref().is_some_and(|volume| volume.offer().is_free()) {
            self.taken.remove(name);
        }
        if let Some(volume) = &volume {
            self.places.entry(volume.place()).or_default().insert(name.to_owned());
        }
        set(&mut self.volumes, name.to_owned(), volume)
    }

    fn at<'a>(&'a self, place: &Place) -> impl Iterator<Item = (&'a str, &'a Volume)> + use<'a> {
        let names = self.places.get(place).into_iter().flatten();
        names.filter_map(|name| Some((name.as_str(), self.volumes.get(name)?)))
    }

    /// The volumes that the waiting claims among these get for a Pod on a node: each the smallest of those that are there
    /// and suit it, the smallest claim first; for the others one is made.
    pub fn choose(&self, waiting: &[Key], node: &str, labels: &Labels) -> Result<Choice, Lack> {
        let mut choice = Choice::default();
        let mut seeking: Vec<(&Key, &Claim)> = Vec::new();
        for (key, claim) in waiting.iter().filter_map(|key| Some((key, self.claims.get(key)?))) {
            match &claim.selected_node {
                Some(selected) if selected != node => return Err(Lack::Volume),
                Some(_) => choice.made.push(key.clone()),
                None => seeking.push((key, claim)),
            }
        }
        seeking.sort_by_key(|(_, claim)| claim.wish.size);
        for (key, claim) in seeking {
            match self.find(key, claim, node, labels, &choice) {
                Some(volume) => choice.given.push((key.clone(), volume.to_owned())),
                None => choice.made.push(key.clone()),
            }
        }
        for claim in choice.made.iter().filter_map(|key| self.claims.get(key)) {
            let class =
                self.classes.get(&claim.class).filter(|class| class.provisions_for(labels)).ok_or(Lack::Volume)?;
            if !self.has_room(class, &claim.wish, labels) {
                return Err(Lack::Room);
            }
        }
        Ok(choice)
    }

    /// The volume for a claim on a node. One that is reserved for it is the only one that it can have.
    fn find<'a>(&'a self, key: &Key, claim: &Claim, node: &str, labels: &Labels, choice: &Choice) -> Option<&'a str> {
        let reserved = self.at(&Place::Claim(key.clone())).find(|(_, volume)| volume.offer().suits(&claim.wish));
        if let Some((name, volume)) = reserved {
            return volume.reaches(node, labels).then_some(name);
        }
        let is_left = |name: &str| {
            choice.given.iter().all(|(_, given)| given != name)
                && self.taken.get(name).is_none_or(|taken| taken.claim == *key)
        };
        let free = self.at(&Place::Class(claim.class.clone())).map(|(name, volume)| (name, volume, volume.offer()));
        let suiting = free
            .filter(|(name, volume, offer)| offer.suits(&claim.wish) && is_left(name) && volume.reaches(node, labels));
        suiting.min_by_key(|(name, _, offer)| (offer.size, *name)).map(|(name, ..)| name)
    }

    /// Whether a volume of this size can be made for a node. Drivers that do not tell how much room they have are asked
    /// when it is made.
    fn has_room(&self, class: &Class, wish: &Wish, labels: &Labels) -> bool {
        let tells = class.provisioner.as_ref().and_then(|driver| self.drivers.get(driver)) == Some(&true);
        !tells || self.capacities.values().any(|capacity| capacity.is_enough(wish, labels))
    }

    /// Nobody else gets the chosen volumes while the Pod is being bound.
    pub fn take(&mut self, pod: &Key, choice: &Choice) {
        for (claim, volume) in &choice.given {
            self.taken.insert(volume.clone(), Taken { claim: claim.clone(), pod: pod.clone() });
        }
    }

    /// The volumes that are taken for the claims of a Pod.
    pub fn taken_for(&self, pod: &Key) -> Vec<(Key, String)> {
        let taken = self.taken.iter().filter(|(_, taken)| taken.pod == *pod);
        taken.map(|(volume, taken)| (taken.claim.clone(), volume.clone())).collect()
    }

    pub fn give_back(&mut self, pod: &Key) {
        self.taken.retain(|_, taken| taken.pod != *pod);
    }
}
