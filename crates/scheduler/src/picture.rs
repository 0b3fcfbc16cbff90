//! The scheduler's picture of the cluster: nodes, the Pods on them, and the classes of Pods, by number.
//!
//! Changes are applied in place, so nothing is copied per Pod: a cycle reads the picture that the last one left.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use client::Key;
use clock::Timestamp;
use k8s_openapi::api::core::v1;

use crate::{
    class::{self, Class, ClassId, Labels},
    node::{Group, Node, NodeId, Offer},
    plugin::Change,
    resources::ResourceNames,
    tally::{self, Tally},
    topology::{KeyId, Topologies},
};

/// A Pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub node: NodeId,
    pub class: ClassId,
    pub terminating: bool,
    /// Decided by us, but not yet seen in the API.
    pub assumed: bool,
    pub priority: i32,
    /// When the Pod started on its node.
    pub started: Option<Timestamp>,
}

struct Known {
    class: Arc<Class>,
    identity: Arc<[u8]>,
    /// Pods and queue entries of the class.
    users: u32,
    /// What was worked out for the class; kept while it is among the most recently scheduled ones.
    memo: Option<Box<Memo>>,
}

/// What is remembered about a class between cycles.
#[derive(Default)]
pub struct Memo {
    pub tallies: Vec<Tally>,
    /// The tallies follow changes of Pods; anything else that changes makes them be built anew.
    pub built: bool,
    /// By node: the version looked at, and which fixed filter turned it away.
    pub fixed: Vec<Option<(u32, Option<u8>)>>,
    /// Why the class fitted nowhere, as of this generation of the picture.
    pub failure: Option<(u64, Arc<crate::failure::Failure>)>,
    used: u64,
}

/// How many classes are remembered with their tallies.
const MEMOS: usize = 64;

#[derive(Default)]
pub struct Picture {
    pub nodes: Vec<Option<Node>>,
    by_name: HashMap<Arc<str>, NodeId>,
    /// Known nodes in the order in which they are tried, zones in turn. Empty when it must be worked out.
    order: Vec<NodeId>,
    pods: HashMap<Key, Placed>,
    classes: Vec<Option<Known>>,
    by_identity: HashMap<Arc<[u8]>, ClassId>,
    free_classes: Vec<ClassId>,
    memos: Vec<ClassId>,
    clock: u64,
    pub topologies: Topologies,
    pub resources: ResourceNames,
    pub namespaces: BTreeMap<String, Labels>,
    /// On how many nodes each image is.
    pub images: HashMap<String, u32>,
    /// How many placed Pods have required anti-affinity, or preferences, over each key.
    refusing: BTreeMap<KeyId, u32>,
    preferring: BTreeMap<KeyId, u32>,
    /// How many placed Pods have each priority.
    priorities: BTreeMap<i32, u32>,
    /// Grows with every change that can alter a verdict.
    pub generation: u64,
}

impl Picture {
    pub fn class(&self, id: ClassId) -> &Arc<Class> {
        &self.classes[id.0 as usize].as_ref().expect("a class lives while it is used").class
    }

    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.index()].as_ref().expect("a node lives while it is referred to")
    }

    pub fn node_id(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(i, n)| Some((NodeId(i as u32), n.as_ref()?)))
    }

    pub fn placed(&self, key: &Key) -> Option<&Placed> {
        self.pods.get(key)
    }

    pub fn pods(&self) -> impl Iterator<Item = (&Key, &Placed)> {
        self.pods.iter()
    }

    pub fn refusing_keys(&self) -> impl Iterator<Item = KeyId> {
        self.refusing.keys().copied()
    }

    pub fn preferring_keys(&self) -> impl Iterator<Item = KeyId> {
        self.preferring.keys().copied()
    }

    /// Works out the order in which nodes are tried, where it changed: one of each zone in turn.
    pub fn arrange(&mut self) {
        if !self.order.is_empty() {
            return;
        }
        let mut zones: BTreeMap<(&str, &str), Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.nodes().filter(|(_, n)| n.known) {
            zones.entry(node.offer.zone()).or_default().push(id);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        let rounds = (0..longest).flat_map(|i| zones.values().filter_map(move |z| z.get(i).copied()));
        self.order = rounds.collect();
    }

    /// Nodes that have a Node object, in the order of [`Picture::arrange`].
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    // Classes.

    /// How many classes are in use.
    pub fn classes(&self) -> usize {
        self.by_identity.len()
    }

    /// The class of a Pod, with one more user.
    pub fn enter_class(&mut self, pod: &v1::Pod) -> ClassId {
        let identity = class::identity(pod);
        if let Some(&id) = self.by_identity.get(identity.as_slice()) {
            self.classes[id.0 as usize].as_mut().expect("indexed classes live").users += 1;
            return id;
        }
        let class = class::compile(pod, &mut self.resources, &mut self.topologies);
        for key in self.topologies.take_fresh() {
            self.place_nodes(key);
        }
        let id = self.free_classes.pop().unwrap_or_else(|| {
            self.classes.push(None);
            ClassId(self.classes.len() as u32 - 1)
        });
        let identity: Arc<[u8]> = identity.into();
        self.by_identity.insert(identity.clone(), id);
        self.classes[id.0 as usize] = Some(Known { class: Arc::new(class), identity, users: 1, memo: None });
        id
    }

    fn place_nodes(&mut self, key: KeyId) {
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(node) = node {
                self.topologies.place(key, NodeId(i as u32), &node.offer.labels);
            }
        }
    }

    /// One user of the class less.
    pub fn leave_class(&mut self, id: ClassId) {
        let known = self.classes[id.0 as usize].as_mut().expect("a class lives while it is used");
        known.users -= 1;
        if known.users > 0 {
            return;
        }
        let identity = known.identity.clone();
        self.by_identity.remove(&identity);
        self.classes[id.0 as usize] = None;
        self.free_classes.push(id);
        self.memos.retain(|m| *m != id);
        for memo in self.memos.clone() {
            let known = self.classes[memo.0 as usize].as_mut().expect("remembered classes live");
            known.memo.iter_mut().flat_map(|m| &mut m.tallies).for_each(|t| t.forget(id));
        }
    }

    /// Takes out what is remembered about a class, ready for a cycle. Give it back with [`Picture::put_memo`].
    pub fn take_memo(&mut self, id: ClassId) -> Box<Memo> {
        let known = self.classes[id.0 as usize].as_mut().expect("a class lives while it is used");
        let class = known.class.clone();
        let mut memo = known.memo.take().unwrap_or_default();
        self.memos.retain(|m| *m != id);
        if !memo.built {
            memo.tallies = tally::needed(&class, self);
            memo.built = true;
        }
        memo.tallies.iter_mut().for_each(Tally::refresh);
        memo.fixed.resize(self.nodes.len(), None);
        memo
    }

    pub fn put_memo(&mut self, id: ClassId, mut memo: Box<Memo>) {
        self.clock += 1;
        memo.used = self.clock;
        if self.memos.len() >= MEMOS {
            let used = |id: &ClassId| self.classes[id.0 as usize].as_ref().and_then(|k| Some(k.memo.as_ref()?.used));
            let oldest = (0..self.memos.len()).min_by_key(|i| used(&self.memos[*i])).expect("there are some");
            let oldest = self.memos.swap_remove(oldest);
            self.classes[oldest.0 as usize].as_mut().expect("remembered classes live").memo = None;
        }
        self.memos.push(id);
        self.classes[id.0 as usize].as_mut().expect("a class lives while it is used").memo = Some(memo);
    }

    fn rebuild_tallies(&mut self) {
        self.generation += 1;
        for id in &self.memos {
            let known = self.classes[id.0 as usize].as_mut().expect("remembered classes live");
            known.memo.iter_mut().for_each(|m| m.built = false);
        }
    }

    // Nodes.

    /// The node of this name, made if nothing is known about it yet.
    pub fn enter_node(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.node_id(name) {
            return id;
        }
        let name: Arc<str> = Arc::from(name);
        let free = self.nodes.iter().position(Option::is_none).filter(|_| self.by_name.len() < self.nodes.len());
        let id = NodeId(free.unwrap_or(self.nodes.len()) as u32);
        if free.is_none() {
            self.nodes.push(None);
        }
        self.nodes[id.index()] = Some(Node::new(name.clone()));
        self.by_name.insert(name, id);
        for key in self.topologies.all() {
            self.topologies.place(key, id, &Labels::new());
        }
        id
    }

    /// The Node object as it is now. Answers with the changes that matter, as bits of [`Change`].
    pub fn set_node(&mut self, object: &v1::Node) -> (NodeId, u16) {
        let offer = Offer::of(object, &mut self.resources);
        let id = self.enter_node(object.metadata.name.as_deref().unwrap_or(""));
        let node = self.nodes[id.index()].as_mut().expect("just entered");
        if node.known && node.offer == offer {
            return (id, 0);
        }
        let changes = if node.known { offer.changes(&node.offer) } else { Change::NodeAdded as u16 };
        let old = std::mem::replace(&mut node.offer, offer);
        // A verdict is kept per version, so a new node in an old place must not repeat one.
        self.clock += 1;
        node.version = self.clock as u32;
        node.known = true;
        let node = self.nodes[id.index()].as_ref().expect("just entered");
        count_images(&mut self.images, &old.images, -1);
        count_images(&mut self.images, &node.offer.images, 1);
        if changes & (Change::NodeAdded as u16 | Change::NodeLabels as u16 | Change::NodeTaints as u16) != 0 {
            for key in self.topologies.all() {
                self.topologies.place(key, id, &node.offer.labels);
            }
            self.order.clear();
            self.rebuild_tallies();
        }
        self.generation += 1;
        (id, changes)
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(id) = self.node_id(name) else { return };
        let node = self.nodes[id.index()].as_mut().expect("indexed nodes live");
        node.known = false;
        let old = std::mem::take(&mut node.offer);
        count_images(&mut self.images, &old.images, -1);
        for key in self.topologies.all() {
            self.topologies.place(key, id, &Labels::new());
        }
        self.order.clear();
        self.drop_if_unused(id);
        if self.topologies.most_domains() > 2 * self.by_name.len() + 100 {
            self.topologies.renumber();
            for key in self.topologies.take_fresh() {
                self.place_nodes(key);
            }
        }
        self.rebuild_tallies();
    }

    fn drop_if_unused(&mut self, id: NodeId) {
        let node = self.node(id);
        if !node.known && node.pods == 0 {
            let name = node.name.clone();
            self.by_name.remove(&name);
            self.nodes[id.index()] = None;
        }
    }

    // Pods on nodes.

    /// A Pod is on a node now. Takes over one use of its class.
    pub fn place(&mut self, key: Key, pod: Placed) {
        self.count(pod.node, pod.class, pod.terminating, 1);
        *self.priorities.entry(pod.priority).or_default() += 1;
        self.pods.insert(key, pod);
    }

    /// A Pod is on no node any more. Gives one use of its class back to the caller.
    pub fn unplace(&mut self, key: &Key) -> Option<Placed> {
        let placed = self.pods.remove(key)?;
        self.count(placed.node, placed.class, placed.terminating, -1);
        if let Some(pods) = self.priorities.get_mut(&placed.priority) {
            *pods -= 1;
            if *pods == 0 {
                self.priorities.remove(&placed.priority);
            }
        }
        self.drop_if_unused(placed.node);
        Some(placed)
    }

    /// The least priority of any Pod that has a node.
    pub fn least_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// The API shows what was assumed.
    pub fn confirm(&mut self, key: &Key, started: Option<Timestamp>) {
        if let Some(placed) = self.pods.get_mut(key) {
            placed.assumed = false;
            placed.started = started;
        }
    }

    fn count(&mut self, id: NodeId, class: ClassId, terminating: bool, sign: i64) {
        self.generation += 1;
        let of_pod = self.class(class).clone();
        self.nodes[id.index()].as_mut().expect("Pods are on entered nodes").count(class, &of_pod, terminating, sign);
        let new_keys = count_keys(&mut self.refusing, of_pod.anti_affinity.iter().map(|t| t.key), sign)
            | count_keys(
                &mut self.preferring,
                of_pod.affinity.iter().chain(of_pod.preferred.iter().map(|p| &p.1)).map(|t| t.key),
                sign,
            );
        if new_keys {
            self.rebuild_tallies();
            return;
        }
        let group = Group { class, terminating, pods: 1 };
        for i in 0..self.memos.len() {
            let slot = self.memos[i].0 as usize;
            let known = self.classes[slot].as_mut().expect("remembered classes live");
            let Some(mut memo) = known.memo.take_if(|m| m.built && !m.tallies.is_empty()) else { continue };
            let counting = known.class.clone();
            memo.tallies.iter_mut().for_each(|t| t.count(&counting, id, &group, sign, self));
            self.classes[slot].as_mut().expect("remembered classes live").memo = Some(memo);
        }
    }

    // Namespaces.

    /// The labels of a namespace; `None` when it is gone. Says whether that is news.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) -> bool {
        if self.namespaces.get(name) == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        self.rebuild_tallies();
        true
    }
}

fn count_images(images: &mut HashMap<String, u32>, of_node: &HashMap<String, i64>, sign: i32) {
    for name in of_node.keys() {
        let nodes = images.entry(name.clone()).or_default();
        *nodes = nodes.saturating_add_signed(sign);
        if *nodes == 0 {
            images.remove(name);
        }
    }
}

/// Says whether a key came that was not there.
fn count_keys(counts: &mut BTreeMap<KeyId, u32>, keys: impl Iterator<Item = KeyId>, sign: i64) -> bool {
    let mut fresh = false;
    for key in keys {
        let count = counts.entry(key).or_default();
        fresh |= *count == 0;
        *count = count.saturating_add_signed(sign as i32);
        if *count == 0 {
            counts.remove(&key);
        }
    }
    fresh
}
