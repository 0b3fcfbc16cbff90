//! ResourceSlices: the devices that drivers offer, in pools, and which pools a node can use.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/structured (pools).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use api::rules::device_selector::Device as Facts;
use k8s_openapi::api::{
    core::v1::NodeSelector,
    resource::v1::{self, ResourceSlice},
};

use crate::node::Node;

/// The name of a device in the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    pub driver: String,
    pub pool: String,
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// One device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub id: DeviceId,
    pub facts: Facts,
    /// It can be used only with a feature that is off, so nobody gets it.
    pub(super) needs_more: bool,
}

impl Device {
    fn of(device: &v1::Device, pool: &PoolId) -> Self {
        let id = DeviceId { driver: pool.driver.clone(), pool: pool.pool.clone(), device: device.name.clone() };
        let has = |list: Option<usize>| list.is_some_and(|count| count > 0);
        let (attributes, capacity) = (device.attributes.clone(), device.capacity.clone());
        Device {
            id,
            facts: Facts::new(&pool.driver, attributes.unwrap_or_default(), capacity.unwrap_or_default()),
            needs_more: has(device.binding_conditions.as_ref().map(Vec::len))
                || has(device.consumes_counters.as_ref().map(Vec::len)),
        }
    }
}

/// The name of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    pub driver: String,
    pub pool: String,
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// The nodes that can use the devices of a slice.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reach {
    Node(String),
    All,
    Nodes(NodeSelector),
    /// The slice says it in a way that belongs to a feature that is off.
    Nobody,
}

/// What is known of a ResourceSlice.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    pool: PoolId,
    generation: i64,
    /// How many slices the pool has in this generation.
    count: i64,
    pub(super) reach: Reach,
    pub(super) devices: Vec<Device>,
}

impl Slice {
    pub fn of(slice: &ResourceSlice) -> Self {
        let spec = &slice.spec;
        let pool = PoolId { driver: spec.driver.clone(), pool: spec.pool.name.clone() };
        let partitions = spec.per_device_node_selection.is_some() || spec.shared_counters.iter().flatten().count() > 0;
        let reach = match (&spec.node_name, &spec.node_selector) {
            _ if partitions => Reach::Nobody,
            (Some(name), _) if !name.is_empty() => Reach::Node(name.clone()),
            _ if spec.all_nodes == Some(true) => Reach::All,
            (_, Some(nodes)) => Reach::Nodes(nodes.clone()),
            _ => Reach::Nobody,
        };
        let devices = spec.devices.iter().flatten().map(|device| Device::of(device, &pool)).collect();
        Slice { generation: spec.pool.generation, count: spec.pool.resource_slice_count, reach, devices, pool }
    }

    fn reaches(&self, node: &Node) -> bool {
        match &self.reach {
            Reach::Node(name) => **name == *node.name,
            Reach::All => true,
            Reach::Nodes(nodes) => api::rules::node_affinity::matches(nodes, &node.facts.labels, &node.name),
            Reach::Nobody => false,
        }
    }

    /// The node whose own the slice is.
    fn home(&self) -> Option<&str> {
        match &self.reach {
            Reach::Node(name) => Some(name),
            _ => None,
        }
    }
}

/// A pool as one node sees it.
pub(super) enum Pool<'a> {
    Ready(Vec<&'a Slice>),
    /// Its driver is about to publish more of it.
    Incomplete(&'a PoolId),
    /// Two of its devices have the same name.
    Invalid(&'a PoolId),
}

/// All ResourceSlices.
#[derive(Debug, Default)]
pub struct Slices {
    by_name: HashMap<String, Arc<Slice>>,
    /// The slices of each pool by their names, whatever their generation.
    pools: BTreeMap<PoolId, BTreeMap<String, Arc<Slice>>>,
    /// The pools with slices for one node each, by its name, and those with others.
    near: HashMap<String, BTreeMap<PoolId, usize>>,
    wide: BTreeMap<PoolId, usize>,
}

impl Slices {
    /// A slice as it is now; `None` when it is gone. Says whether that is news.
    pub fn set(&mut self, name: &str, slice: Option<Slice>) -> bool {
        if self.by_name.get(name).map(|held| &**held) == slice.as_ref() {
            return false;
        }
        if let Some(old) = self.by_name.remove(name) {
            if let Some(pool) = self.pools.get_mut(&old.pool) {
                pool.remove(name);
                if pool.is_empty() {
                    self.pools.remove(&old.pool);
                }
            }
            self.count(&old, false);
        }
        if let Some(slice) = slice.map(Arc::new) {
            self.pools.entry(slice.pool.clone()).or_default().insert(name.to_owned(), slice.clone());
            self.count(&slice, true);
            self.by_name.insert(name.to_owned(), slice);
        }
        true
    }

    /// Counts a slice among those that have something for a node.
    fn count(&mut self, slice: &Slice, comes: bool) {
        if slice.reach == Reach::Nobody {
            return;
        }
        let pools = match slice.home() {
            Some(node) => self.near.entry(node.to_owned()).or_default(),
            None => &mut self.wide,
        };
        let held = pools.entry(slice.pool.clone()).or_default();
        *held = if comes { *held + 1 } else { held.saturating_sub(1) };
        if *held == 0 {
            pools.remove(&slice.pool);
        }
        if let Some(node) = slice.home().filter(|node| self.near.get(*node).is_some_and(BTreeMap::is_empty)) {
            self.near.remove(node);
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// The pools with devices for a node, in the order of their names.
    pub(super) fn pools(&self, node: &Node) -> Vec<Pool<'_>> {
        let near = self.near.get(&*node.name).into_iter().flatten();
        let names: BTreeSet<&PoolId> = near.chain(&self.wide).map(|(name, _)| name).collect();
        names.into_iter().filter_map(|name| self.pool(name, node)).collect()
    }

    fn pool<'a>(&'a self, id: &'a PoolId, node: &Node) -> Option<Pool<'a>> {
        let all = &self.pools.get(id)?;
        let here: Vec<&Slice> = all.values().map(|slice| &**slice).filter(|slice| slice.reaches(node)).collect();
        let newest = here.iter().map(|slice| slice.generation).max()?;
        let here: Vec<&Slice> = here.into_iter().filter(|slice| slice.generation == newest).collect();
        let count = here[0].count;
        if here.len() as i64 != count {
            // The others may be for other nodes. A newer generation without anything for this node makes these obsolete.
            if all.values().any(|slice| slice.generation > newest) {
                return None;
            }
            if all.values().filter(|slice| slice.generation == newest).count() as i64 != count {
                return Some(Pool::Incomplete(id));
            }
        }
        let mut names = HashSet::new();
        let unique = here.iter().flat_map(|slice| &slice.devices).all(|device| names.insert(&device.id.device));
        Some(if unique { Pool::Ready(here) } else { Pool::Invalid(id) })
    }
}
