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

use super::{
    counters::Counters,
    gates::{Gates, Taint},
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
    /// Where it is, when its slice leaves that to each device.
    reach: Option<Reach>,
    /// Whoever has it stays on the node for which it was given.
    pub(super) binds_to_node: bool,
    pub(super) taints: Vec<Taint>,
    /// The counters of its pool that it takes.
    pub(super) takes: Counters,
    /// Several claims can have shares of it.
    pub(super) is_shared: bool,
    /// The conditions that the binding of its Pod waits for, and those that end the wait.
    pub(super) conditions: Option<Conditions>,
}

impl Device {
    fn of(device: &v1::Device, pool: &PoolId) -> Self {
        let id = DeviceId { driver: pool.driver.clone(), pool: pool.pool.clone(), device: device.name.clone() };
        let taint = |taint: &v1::DeviceTaint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        };
        let reach = Reach::of(device.node_name.as_ref(), device.all_nodes, device.node_selector.as_ref());
        let (attributes, capacity) = (device.attributes.clone(), device.capacity.clone());
        Device {
            id,
            facts: Facts::new(&pool.driver, attributes.unwrap_or_default(), capacity.unwrap_or_default()),
            reach: Some(reach).filter(|reach| *reach != Reach::Nobody),
            binds_to_node: device.binds_to_node == Some(true),
            taints: device.taints.iter().flatten().map(taint).collect(),
            takes: Counters::taken_by(device.consumes_counters.as_ref()),
            is_shared: device.allow_multiple_allocations == Some(true),
            conditions: Conditions::of(device),
        }
    }

    /// Whether a node can use it, as far as the device itself says.
    pub(super) fn reaches(&self, slice: &Slice, node: &Node) -> bool {
        slice.reach != Reach::Each || self.reach.as_ref().is_some_and(|reach| reach.includes(node))
    }

    /// Where it is, by itself or by its slice.
    pub(super) fn place<'a>(&'a self, slice: &'a Slice) -> &'a Reach {
        match &slice.reach {
            Reach::Each => self.reach.as_ref().unwrap_or(&Reach::Nobody),
            of_slice => of_slice,
        }
    }
}

/// The conditions that the binding of a Pod waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conditions {
    pub waits: Vec<String>,
    pub fails: Vec<String>,
}

impl Conditions {
    fn of(device: &v1::Device) -> Option<Self> {
        let waits = device.binding_conditions.clone().filter(|list| !list.is_empty())?;
        Some(Conditions { waits, fails: device.binding_failure_conditions.clone().unwrap_or_default() })
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
    /// Each device says it for itself.
    Each,
    /// Nothing is said that is understood here.
    Nobody,
}

impl Reach {
    fn of(name: Option<&String>, all: Option<bool>, nodes: Option<&NodeSelector>) -> Self {
        match (name, nodes) {
            (Some(name), _) if !name.is_empty() => Reach::Node(name.clone()),
            _ if all == Some(true) => Reach::All,
            (_, Some(nodes)) => Reach::Nodes(nodes.clone()),
            _ => Reach::Nobody,
        }
    }

    fn includes(&self, node: &Node) -> bool {
        match self {
            Reach::Node(name) => **name == *node.name,
            Reach::All => true,
            Reach::Nodes(nodes) => api::rules::node_affinity::matches(nodes, &node.facts.labels, &node.name),
            Reach::Each | Reach::Nobody => false,
        }
    }
}

/// The facts about a ResourceSlice.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    pool: PoolId,
    generation: i64,
    /// How many slices the pool has in this generation.
    count: i64,
    pub(super) reach: Reach,
    pub(super) devices: Vec<Device>,
    /// It belongs to a pool of partitions, which is a feature of its own.
    partitions: bool,
    /// The counters that the devices of the pool share; `None` when it names a set of them twice.
    counters: Option<Counters>,
}

impl Slice {
    pub fn of(slice: &ResourceSlice) -> Self {
        let spec = &slice.spec;
        let pool = PoolId { driver: spec.driver.clone(), pool: spec.pool.name.clone() };
        let shared = spec.shared_counters.as_deref().unwrap_or_default();
        let reach = match spec.per_device_node_selection {
            Some(true) => Reach::Each,
            _ => Reach::of(spec.node_name.as_ref(), spec.all_nodes, spec.node_selector.as_ref()),
        };
        Slice {
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            reach,
            devices: spec.devices.iter().flatten().map(|device| Device::of(device, &pool)).collect(),
            partitions: spec.per_device_node_selection.is_some() || !shared.is_empty(),
            counters: Counters::offered(shared),
            pool,
        }
    }

    /// It tells of counters, which count for the pool wherever the slice is.
    fn has_counters(&self) -> bool {
        self.counters.as_ref().is_none_or(|counters| !counters.is_empty())
    }

    fn has_conditions(&self) -> bool {
        self.devices.iter().any(|device| device.conditions.is_some())
    }

    fn concerns(&self, node: &Node, gates: Gates) -> bool {
        let here = || match &self.reach {
            Reach::Each => self.devices.iter().any(|device| device.reaches(self, node)),
            reach => reach.includes(node),
        };
        (gates.partitions || !self.partitions) && (self.has_counters() || here())
    }

    /// The nodes whose own the slice is; `None` when it may be for any.
    fn homes(&self) -> Option<BTreeSet<String>> {
        let home = |reach: &'_ Reach| match reach {
            Reach::Node(name) => Some(name.clone()),
            _ => None,
        };
        match &self.reach {
            Reach::Each => self.devices.iter().map(|device| device.reach.as_ref().and_then(home)).collect(),
            // Where counters are told of does not matter: other slices of the pool say where its devices are.
            _ if self.has_counters() => Some(BTreeSet::new()),
            reach => home(reach).map(|name| BTreeSet::from([name])),
        }
    }
}

/// A pool as one node sees it.
pub(super) enum Pool<'a> {
    Ready(Ready<'a>),
    /// Its driver is about to publish more of it.
    Incomplete(&'a PoolId),
    /// Two of its devices have the same name, or they take of counters that are not there.
    Invalid(&'a PoolId),
}

/// A pool that is as its driver wants it.
#[derive(Default)]
pub(super) struct Ready<'a> {
    /// The slices with devices for the node, and the others.
    pub here: Vec<&'a Slice>,
    pub elsewhere: Vec<&'a Slice>,
    /// The counters that its devices share.
    pub counters: Counters,
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
        let Some(homes) = slice.homes() else { return count(&mut self.wide, &slice.pool, comes) };
        for node in homes {
            let pools = self.near.entry(node.clone()).or_default();
            count(pools, &slice.pool, comes);
            if pools.is_empty() {
                self.near.remove(&node);
            }
        }
    }

    /// The nodes that can use a pool; `None` if any node may.
    pub(super) fn homes(&self, pool: &PoolId) -> Option<BTreeSet<String>> {
        let slices = self.pools.get(pool).into_iter().flat_map(BTreeMap::values);
        slices.map(|slice| slice.homes()).try_fold(BTreeSet::new(), |mut all, homes| {
            all.extend(homes?);
            Some(all)
        })
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// The pools with devices for a node, in the order of their names. Devices whose binding waits for nothing come first.
    pub(super) fn pools(&self, node: &Node, gates: Gates) -> Vec<Pool<'_>> {
        let near = self.near.get(&*node.name).into_iter().flatten();
        let names: BTreeSet<&PoolId> = near.chain(&self.wide).map(|(name, _)| name).collect();
        let mut pools: Vec<Pool> = names.into_iter().filter_map(|name| self.pool(name, node, gates)).collect();
        if gates.conditions {
            pools.sort_by_key(
                |pool| matches!(pool, Pool::Ready(ready) if ready.here.iter().any(|s| s.has_conditions())),
            );
        }
        pools
    }

    fn pool<'a>(&'a self, id: &'a PoolId, node: &Node, gates: Gates) -> Option<Pool<'a>> {
        let all = self.pools.get(id)?;
        let here = all.values().map(|slice| &**slice).filter(|slice| slice.concerns(node, gates));
        let here: Vec<&Slice> = here.collect();
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
        let of_generation = all.values().map(|slice| &**slice).filter(|slice| slice.generation == newest);
        let ready = Ready::of(here, of_generation.filter(|slice| !slice.concerns(node, gates)), gates);
        Some(ready.map_or(Pool::Invalid(id), Pool::Ready))
    }
}

impl<'a> Ready<'a> {
    /// `None` when the slices contradict each other.
    fn of(slices: Vec<&'a Slice>, elsewhere: impl Iterator<Item = &'a Slice>, gates: Gates) -> Option<Self> {
        let (with_counters, mut here): (Vec<&Slice>, Vec<&Slice>) =
            slices.into_iter().partition(|slice| slice.has_counters());
        if gates.conditions {
            here.sort_by_key(|slice| slice.has_conditions());
        }
        let mut names = HashSet::new();
        if !here.iter().flat_map(|slice| &slice.devices).all(|device| names.insert(&device.id.device)) {
            return None;
        }
        let mut counters = Counters::default();
        if !with_counters.iter().all(|slice| slice.counters.as_ref().is_some_and(|own| counters.join(own))) {
            return None;
        }
        // Devices elsewhere matter only for what they take of the counters.
        let elsewhere: Vec<&Slice> = elsewhere.filter(|_| !counters.is_empty()).collect();
        let known = || here.iter().chain(&elsewhere).flat_map(|slice| &slice.devices).all(|d| counters.know(&d.takes));
        (!gates.partitions || known()).then_some(Ready { here, elsewhere, counters })
    }
}

fn count(pools: &mut BTreeMap<PoolId, usize>, pool: &PoolId, comes: bool) {
    let held = pools.entry(pool.clone()).or_default();
    *held = if comes { *held + 1 } else { held.saturating_sub(1) };
    if *held == 0 {
        pools.remove(pool);
    }
}
