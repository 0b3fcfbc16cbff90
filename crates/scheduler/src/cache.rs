//! The scheduler's cache: the facts about nodes, the Pods on them, and the classes of Pods, by number.
//!
//! Events and decisions are applied in place and a cycle reads the cache itself. There is no snapshot to copy, because one
//! task owns the engine and no event comes in during a cycle.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use client::Key;
use clock::Timestamp;
use k8s_openapi::api::core::v1::{self, TopologySpreadConstraint};

use crate::{
    args::Spreading,
    attachable::Attachables,
    change::Change,
    claims::Claims,
    class::{self, Class, ClassId, Spread},
    devices::Devices,
    node::{Node, NodeFacts},
    node_id::NodeId,
    resources::ResourceNames,
    selectors::Selectors,
    topology::{KeyId, Labels, Topologies},
};

/// A Pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub node: NodeId,
    pub class: ClassId,
    pub terminating: bool,
    /// The engine decided it, and the API has not shown it yet.
    pub assumed: bool,
    pub priority: i32,
    /// It leaves, or is about to leave, to make room for a Pod of greater priority.
    pub preempted: bool,
    /// When the Pod started on its node.
    pub started: Option<Timestamp>,
}

struct Known {
    class: Arc<Class>,
    identity: Arc<[u8]>,
    /// Pods and queue entries of the class.
    users: u32,
}

#[derive(Default)]
pub struct Cache {
    pub nodes: Vec<Option<Node>>,
    by_name: HashMap<Arc<str>, NodeId>,
    /// Known nodes in the order in which they are tried, zones in turn. Empty when it must be worked out.
    order: Vec<NodeId>,
    pods: HashMap<Arc<Key>, Placed>,
    /// The Pods on each node, so that preemption looks through one node's Pods and not through all.
    members: Vec<Vec<Arc<Key>>>,
    classes: Vec<Option<Known>>,
    by_identity: HashMap<Arc<[u8]>, ClassId>,
    free_classes: Vec<ClassId>,
    /// How many Node objects were seen, counted with every change of one.
    versions: u32,
    pub topologies: Topologies,
    pub resources: ResourceNames,
    pub namespaces: BTreeMap<String, Labels>,
    /// On how many nodes each image is.
    pub images: HashMap<String, u32>,
    /// How many placed Pods have required anti-affinity, or preferences, over each key.
    refusing: BTreeMap<KeyId, u32>,
    preferring: BTreeMap<KeyId, u32>,
    /// The claims of Pods.
    pub claims: Claims,
    pub devices: Devices,
    /// Volumes that are attached to nodes.
    pub attachables: Attachables,
    /// How many placed Pods use each PersistentVolumeClaim.
    claim_uses: HashMap<Key, u32>,
    /// The selectors from which default constraints are made, and those constraints by the scheduler's name.
    pub selectors: Selectors,
    default_spread: Vec<(String, Vec<Spread>)>,
    /// How many placed Pods have each priority.
    priorities: BTreeMap<i32, u32>,
    /// The nodes where Pods came or went lately, and how many were so before.
    touched: Vec<NodeId>,
    touched_before: u64,
    /// Grows with every change that can alter a verdict.
    pub generation: u64,
    /// Grows with every change after which counts of Pods by domain have to be made anew, not only brought up to date.
    pub structure: u64,
}

/// How many of the latest changes are held.
const TOUCHED: usize = 256;

/// One Pod that came to a node (`sign` 1) or left it (-1).
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub node: NodeId,
    pub class: ClassId,
    pub terminating: bool,
    pub sign: i64,
}

impl Cache {
    pub fn class(&self, id: ClassId) -> &Arc<Class> {
        &self.classes[id.index()].as_ref().expect("a class lives while it is used").class
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

    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    pub fn placed(&self, key: &Key) -> Option<&Placed> {
        self.pods.get(key)
    }

    pub fn pods(&self) -> impl Iterator<Item = (&Key, &Placed)> {
        self.pods.iter().map(|(key, placed)| (&**key, placed))
    }

    /// The Pods on one node.
    pub fn pods_on(&self, node: NodeId) -> impl Iterator<Item = (&Key, &Placed)> {
        self.members.get(node.index()).into_iter().flatten().map(|key| (&**key, &self.pods[key]))
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
            zones.entry(node.facts.zone()).or_default().push(id);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        let rounds = (0..longest).flat_map(|i| zones.values().filter_map(move |z| z.get(i).copied()));
        self.order = rounds.collect();
    }

    /// Nodes that have a Node object, in the order of [`Cache::arrange`].
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    // Changes.

    /// Where the list of nodes on which Pods came or went ends now.
    pub fn position(&self) -> u64 {
        self.touched_before + self.touched.len() as u64
    }

    /// The nodes on which Pods came or went since; `None` when that is forgotten.
    pub fn touched_since(&self, position: u64) -> Option<&[NodeId]> {
        let from = position.checked_sub(self.touched_before)?;
        self.touched.get(usize::try_from(from).ok()?..)
    }

    /// Nobody can say any more what changed before.
    pub fn forget_touched(&mut self) {
        self.touched_before = self.position() + 1;
        self.touched.clear();
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
            self.classes[id.index()].as_mut().expect("indexed classes live").users += 1;
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
        self.classes[id.index()] = Some(Known { class: Arc::new(class), identity, users: 1 });
        id
    }

    /// The constraints that Pods of a scheduler have when they have none of their own.
    pub fn set_default_spread(&mut self, scheduler: &str, spreading: &Spreading) {
        let any_key = *spreading == Spreading::System;
        let compile = |constraint: &TopologySpreadConstraint| Spread {
            any_key,
            ..class::spread(constraint, &Labels::new(), &mut self.topologies)
        };
        let constraints = spreading.constraints().iter().map(compile).collect();
        self.default_spread.push((scheduler.to_owned(), constraints));
    }

    /// The class, with the constraints that it has by default.
    pub fn with_defaults(&self, id: ClassId) -> Arc<Class> {
        let class = self.class(id);
        let selector = class.defaults.as_ref().and_then(|owner| self.selectors.of(class, owner));
        let Some(selector) = selector else { return class.clone() };
        let constraints = self.default_spread.iter().find(|(scheduler, _)| *scheduler == class.scheduler);
        let constraints = constraints.into_iter().flat_map(|(_, list)| list);
        let spread = constraints.map(|constraint| constraint.selecting(selector.clone())).collect();
        Arc::new(Class { spread, ..Class::clone(class) })
    }

    fn place_nodes(&mut self, key: KeyId) {
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(node) = node {
                self.topologies.place(key, NodeId(i as u32), &node.facts.labels);
            }
        }
    }

    /// One user of the class less. Says whether it was the last, so that the class is gone.
    pub fn leave_class(&mut self, id: ClassId) -> bool {
        let known = self.classes[id.index()].as_mut().expect("a class lives while it is used");
        known.users -= 1;
        if known.users > 0 {
            return false;
        }
        let identity = known.identity.clone();
        self.by_identity.remove(&identity);
        self.classes[id.index()] = None;
        self.free_classes.push(id);
        true
    }

    fn restructure(&mut self) {
        self.generation += 1;
        self.structure += 1;
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
        let facts = NodeFacts::of(object, &mut self.resources);
        let id = self.enter_node(object.metadata.name.as_deref().unwrap_or(""));
        let node = self.nodes[id.index()].as_mut().expect("just entered");
        if node.known && *node.facts == facts {
            return (id, 0);
        }
        let changes = if node.known { facts.changes(&node.facts) } else { Change::NodeAdded as u16 };
        let old = std::mem::replace(&mut node.facts, Arc::new(facts));
        // A verdict is kept per version, so a new node in an old place must not repeat one.
        self.versions = self.versions.wrapping_add(1);
        node.version = self.versions;
        node.known = true;
        let node = self.nodes[id.index()].as_ref().expect("just entered");
        count_images(&mut self.images, &old.images, -1);
        count_images(&mut self.images, &node.facts.images, 1);
        if changes & (Change::NodeAdded as u16 | Change::NodeLabels as u16 | Change::NodeTaints as u16) != 0 {
            for key in self.topologies.all() {
                self.topologies.place(key, id, &node.facts.labels);
            }
            self.order.clear();
            self.restructure();
        }
        self.generation += 1;
        (id, changes)
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(id) = self.node_id(name) else { return };
        let node = self.nodes[id.index()].as_mut().expect("indexed nodes live");
        node.known = false;
        let old = std::mem::take(&mut node.facts);
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
        self.restructure();
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
    pub fn place(&mut self, key: Key, pod: Placed) -> Counted {
        let counted = Counted { node: pod.node, class: pod.class, terminating: pod.terminating, sign: 1 };
        self.count(counted);
        *self.priorities.entry(pod.priority).or_default() += 1;
        let key = Arc::new(key);
        if self.members.len() <= pod.node.index() {
            self.members.resize_with(pod.node.index() + 1, Vec::new);
        }
        self.members[pod.node.index()].push(key.clone());
        self.pods.insert(key, pod);
        counted
    }

    /// A Pod is on no node any more. Gives one use of its class back to the caller.
    pub fn unplace(&mut self, key: &Key) -> Option<(Placed, Counted)> {
        let (key, placed) = self.pods.remove_entry(key)?;
        let there = &mut self.members[placed.node.index()];
        if let Some(at) = there.iter().position(|held| Arc::ptr_eq(held, &key)) {
            there.swap_remove(at);
        }
        let counted = Counted { node: placed.node, class: placed.class, terminating: placed.terminating, sign: -1 };
        self.count(counted);
        if let Some(pods) = self.priorities.get_mut(&placed.priority) {
            *pods -= 1;
            if *pods == 0 {
                self.priorities.remove(&placed.priority);
            }
        }
        self.drop_if_unused(placed.node);
        Some((placed, counted))
    }

    /// The least priority of any Pod that has a node.
    pub fn least_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// The API shows what was assumed.
    pub fn confirm(&mut self, key: &Key, started: Option<Timestamp>, preempted: bool) {
        if let Some(placed) = self.pods.get_mut(key) {
            placed.assumed = false;
            placed.started = started;
            placed.preempted = preempted;
        }
    }

    /// The Pod is (or after all is not) to leave for a Pod of greater priority.
    pub fn set_preempted(&mut self, key: &Key, preempted: bool) {
        if let Some(placed) = self.pods.get_mut(key) {
            placed.preempted = preempted;
        }
    }

    /// A Pod of this class was nominated for a node (`sign` 1), or is so no longer (-1). Filters ask what its
    /// anti-affinity says, so its keys must be among those that are counted.
    pub fn count_nominated(&mut self, id: ClassId, sign: i64) {
        let class = self.class(id).clone();
        if count_keys(&mut self.refusing, class.anti_affinity.iter().map(|t| t.key), sign) {
            self.restructure();
        }
    }

    fn count(&mut self, Counted { node, class: id, terminating, sign }: Counted) {
        self.generation += 1;
        if self.touched.len() == TOUCHED {
            self.forget_touched();
        }
        self.touched.push(node);
        let class = self.class(id).clone();
        self.nodes[node.index()].as_mut().expect("Pods are on entered nodes").count(id, &class, terminating, sign);
        for name in class.claims.iter().filter_map(|named| named.name.as_deref()) {
            let uses = self.claim_uses.entry(Key::new(class.namespace.as_str(), name)).or_default();
            *uses = uses.saturating_add_signed(sign as i32);
            if *uses == 0 {
                self.claim_uses.remove(&Key::new(class.namespace.as_str(), name));
            }
        }
        let preferring = class.affinity.iter().chain(class.preferred.iter().map(|p| &p.1)).map(|t| t.key);
        let new_keys = count_keys(&mut self.refusing, class.anti_affinity.iter().map(|t| t.key), sign)
            | count_keys(&mut self.preferring, preferring, sign);
        if new_keys {
            self.restructure();
        }
    }

    /// How many placed Pods use a PersistentVolumeClaim.
    pub fn uses(&self, claim: &Key) -> u32 {
        self.claim_uses.get(claim).copied().unwrap_or(0)
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
        self.restructure();
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
