//! Topology keys (`kubernetes.io/hostname`, `topology.kubernetes.io/zone`, …) and the domain each node is in, by number.

use std::collections::{BTreeMap, HashMap};

use crate::node_id::NodeId;

pub type Labels = BTreeMap<String, String>;

/// An interned topology key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

/// The number of a key's value. Numbers are dense per key.
pub type Domain = u32;

struct Topology {
    key: String,
    domains: HashMap<String, Domain>,
    /// By node.
    of_node: Vec<Option<Domain>>,
}

/// All keys that some class speaks about. They are few: terms and constraints name a handful of keys per cluster.
#[derive(Default)]
pub struct Topologies {
    keys: Vec<Topology>,
    /// Keys that were named since the nodes were last looked through.
    fresh: Vec<KeyId>,
}

impl Topologies {
    pub fn key(&mut self, key: &str) -> KeyId {
        if let Some(found) = self.keys.iter().position(|t| t.key == key) {
            return KeyId(found as u32);
        }
        let id = KeyId(self.keys.len() as u32);
        self.keys.push(Topology { key: key.to_owned(), domains: HashMap::new(), of_node: Vec::new() });
        self.fresh.push(id);
        id
    }

    /// The keys that need [`Topologies::place`] for every node; they are handed out once.
    pub fn take_fresh(&mut self) -> Vec<KeyId> {
        std::mem::take(&mut self.fresh)
    }

    pub fn all(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.keys.len() as u32).map(KeyId)
    }

    /// Notes which domain of `key` a node with these labels is in.
    pub fn place(&mut self, key: KeyId, node: NodeId, labels: &Labels) {
        let topology = &mut self.keys[key.0 as usize];
        let next = topology.domains.len() as Domain;
        let domain = labels.get(&topology.key).map(|v| *topology.domains.entry(v.clone()).or_insert(next));
        if topology.of_node.len() <= node.index() {
            topology.of_node.resize(node.index() + 1, None);
        }
        topology.of_node[node.index()] = domain;
    }

    pub fn domain(&self, key: KeyId, node: NodeId) -> Option<Domain> {
        self.keys[key.0 as usize].of_node.get(node.index()).copied().flatten()
    }

    /// How many domains were ever seen: one more than the greatest number.
    pub fn domains(&self, key: KeyId) -> usize {
        self.keys[key.0 as usize].domains.len()
    }

    pub fn is_hostname(&self, key: KeyId) -> bool {
        self.keys[key.0 as usize].key == "kubernetes.io/hostname"
    }

    /// Forgets all domains, for a new numbering when many of them are no longer in use.
    pub fn renumber(&mut self) {
        self.fresh = self.all().collect();
        for topology in &mut self.keys {
            topology.domains.clear();
            topology.of_node.clear();
        }
    }

    /// The greatest number of domains of any key.
    pub fn most_domains(&self) -> usize {
        self.keys.iter().map(|t| t.domains.len()).max().unwrap_or(0)
    }
}
