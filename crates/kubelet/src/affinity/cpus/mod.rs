//! Processors that containers have for themselves, and those that all others share: the static policy. Pure.
//! Upstream counterpart: policy_static.go of pkg/kubelet/cm/cpumanager.

mod spread;
mod take;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, Pod};

use self::take::Way;
use super::{
    cpuset::CpuSet,
    hints::{self, Hint, NodeMask},
    options::CpuOptions,
    requests,
    topology::{Level, Topology},
};
use crate::pod::admit::Refusal;

/// The processors of containers by their names, of Pods by their uids.
pub type Assigned = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// The owners of processors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuState {
    /// Of all that have none for themselves.
    pub shared: CpuSet,
    pub assigned: Assigned,
}

impl CpuState {
    pub fn of(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.assigned.get(uid)?.get(container)
    }

    /// All that are somebody's own.
    pub fn exclusive(&self) -> CpuSet {
        self.assigned.values().flat_map(BTreeMap::values).fold(CpuSet::default(), |all, one| all.union(one))
    }

    /// Nothing of the Pod runs any more: what it had is shared. Whether it had something.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(held) = self.assigned.remove(uid) else { return false };
        self.shared = held.values().fold(self.shared.clone(), |all, one| all.union(one));
        true
    }
}

/// The static policy on a machine.
#[derive(Debug)]
pub struct CpuPolicy {
    topology: Arc<Topology>,
    options: CpuOptions,
    /// Nobody gets these for itself.
    pub reserved: CpuSet,
    /// All threads of their cores.
    reserved_cores: CpuSet,
}

/// The words of a refusal, for a shortage that was not foreseen.
fn smt(why: &str) -> Refusal {
    Refusal::new("SMTAlignmentError", format!("SMT Alignment Error: {why}"))
}

impl CpuPolicy {
    /// This number of processors is reserved: those that are named, or the first ones.
    pub fn new(topology: Arc<Topology>, options: CpuOptions, count: usize, named: &CpuSet) -> Result<Self, String> {
        let mut policy = CpuPolicy { topology, options, reserved: named.clone(), reserved_cores: CpuSet::default() };
        let all = policy.topology.all();
        if named.is_empty() {
            policy.reserved = policy.take(&all, count).unwrap_or_default();
        }
        let reserved = &policy.reserved;
        if reserved.len() != count {
            let words = "[cpumanager] unable to reserve the required amount of CPUs";
            return Err(format!("{words} (size of {reserved} did not equal {count})"));
        }
        if let Some(cpu) = reserved.minus(&all).iter().next() {
            let words = "[cpumanager] unable to build the reserved physical CPUs from the reserved set";
            return Err(format!("{words}: unknown CPU ID: {cpu}"));
        }
        let cores = policy.topology.groups(Level::Core, reserved).into_iter();
        let members = cores.map(|core| policy.topology.members(Level::Core, core));
        policy.reserved_cores = members.fold(CpuSet::default(), |all, core| all.union(&core));
        Ok(policy)
    }

    /// The processors that somebody may get for itself.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all().minus(&self.reserved)
    }

    /// Those of them that nobody has.
    pub fn available(&self, state: &CpuState) -> CpuSet {
        state.shared.minus(&self.reserved)
    }

    /// How many processors are somebody's own on each NUMA node.
    pub fn on_each_node(&self, state: &CpuState) -> BTreeMap<u32, usize> {
        let (all, exclusive) = (self.topology.all(), state.exclusive());
        let nodes = self.topology.groups(Level::Node, &all).into_iter();
        nodes.map(|node| (node, self.topology.within(Level::Node, node, &exclusive).len())).collect()
    }

    /// Takes up what an earlier kubelet has left, if the machine is still the same and so is what is reserved.
    pub fn start(&self, state: &mut CpuState) -> Result<(), String> {
        let mut all = self.topology.all();
        if self.options.strict {
            all = all.minus(&self.reserved);
        }
        if state.shared.is_empty() {
            if !state.assigned.is_empty() {
                return Err("default cpuset cannot be empty".to_owned());
            }
            state.shared = all;
            return Ok(());
        }
        let (shared, reserved) = (&state.shared, &self.reserved);
        let common = reserved.common(shared);
        if self.options.strict && !common.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{common}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        if !self.options.strict && common != *reserved {
            return Err(format!("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\""));
        }
        let mut all_held = state.assigned.iter().flat_map(|(pod, all)| all.iter().map(move |one| (pod, one)));
        if let Some((pod, (container, cpus))) = all_held.find(|(_, (_, cpus))| !cpus.common(shared).is_empty()) {
            let whose = format!("pod: {pod}, container: {container} cpuset: \"{cpus}\"");
            return Err(format!("{whose} overlaps with default cpuset \"{shared}\""));
        }
        let known = state.exclusive().union(shared);
        if known != all {
            return Err(format!(
                "current set of available CPUs \"{all}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        Ok(())
    }

    /// Gives a container what it asks for, from these NUMA nodes as far as they have it. `reusable` is what init containers before it
    /// have had, and is kept up. How many were given for the first time.
    pub fn allocate(
        &self,
        state: &mut CpuState,
        reusable: &mut CpuSet,
        (pod, container): (&Pod, &Container),
        nodes: Option<NodeMask>,
    ) -> Result<Option<CpuSet>, Refusal> {
        let count = requests::cpus(pod, container);
        if count == 0 {
            return Ok(None);
        }
        self.check_cores(state, count)?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let held = state.of(uid, &container.name).cloned();
        let cpus = match &held {
            Some(held) => held.clone(),
            None => {
                let free = self.available(state).union(reusable);
                let cpus = self.choose(&free, count, nodes).map_err(|why| Refusal::unexpected(&why))?;
                state.shared = state.shared.minus(&cpus);
                let of_pod = state.assigned.entry(uid.to_owned()).or_default();
                of_pod.insert(container.name.clone(), cpus.clone());
                cpus
            }
        };
        let ends = requests::makes_way(pod, &container.name);
        *reusable = if ends { reusable.union(&cpus) } else { reusable.minus(&cpus) };
        Ok(Some(cpus).filter(|_| held.is_none()))
    }

    /// Where cores are given as a whole, what is asked for has to be whole cores, and there.
    fn check_cores(&self, state: &CpuState, count: usize) -> Result<(), Refusal> {
        if !self.options.full_cores {
            return Ok(());
        }
        let each = self.topology.each(Level::Core).max(1);
        if !count.is_multiple_of(each) {
            return Err(smt(&format!("requested {count} cpus not multiple cpus per core = {each}")));
        }
        let there = state.shared.minus(&self.reserved_cores).len();
        if count > there {
            let amounts =
                format!("available physical CPUs = {there}, requested CPUs = {count}, CPUs per core = {each}");
            return Err(smt(&format!("not enough free physical CPUs: {amounts}")));
        }
        Ok(())
    }

    fn choose(&self, free: &CpuSet, count: usize, nodes: Option<NodeMask>) -> Result<CpuSet, String> {
        let near = nodes.map(|nodes| self.near(nodes, free)).unwrap_or_default();
        let taken = self.take(&near, count.min(near.len()))?;
        let rest = self.take(&free.minus(&taken), count - taken.len())?;
        Ok(taken.union(&rest))
    }

    /// Those of the free ones that are on these nodes, or on their sockets.
    fn near(&self, nodes: NodeMask, free: &CpuSet) -> CpuSet {
        let cpus = free.iter().filter(|cpu| self.topology.cpus.get(cpu).is_some_and(|cpu| nodes.contains(cpu.node)));
        if !self.options.by_socket {
            return cpus.collect();
        }
        let sockets = self.sockets(nodes);
        free.iter().filter(|cpu| self.topology.cpus.get(cpu).is_some_and(|cpu| sockets.contains(&cpu.socket))).collect()
    }

    fn sockets(&self, nodes: NodeMask) -> BTreeSet<u32> {
        let cpus = self.topology.cpus.values();
        cpus.filter(|cpu| nodes.contains(cpu.node)).map(|cpu| cpu.socket).collect()
    }

    fn take(&self, free: &CpuSet, count: usize) -> Result<CpuSet, String> {
        let CpuOptions { full_cores, across_nodes, across_cores, by_cache, .. } = self.options;
        if across_nodes {
            let group = if full_cores { self.topology.each(Level::Core) } else { 1 };
            return spread::distributed(&self.topology, free, count, group, across_cores);
        }
        take::packed(&self.topology, free, count, Way { spread: across_cores, by_cache })
    }

    /// Whether all of these processors have one cache of the third level.
    pub fn has_one_cache(&self, cpus: &CpuSet) -> bool {
        self.topology.groups(Level::Uncore, cpus).len() == 1
    }

    /// The NUMA nodes that a container could get its processors from; `None` when it asks for none.
    pub fn hints(
        &self,
        state: &CpuState,
        reusable: &CpuSet,
        (pod, container): (&Pod, &Container),
    ) -> Option<Vec<Hint>> {
        let count = requests::cpus(pod, container);
        if count == 0 {
            return None;
        }
        match state.of(pod.metadata.uid.as_deref().unwrap_or_default(), &container.name) {
            // With another number than it asks for there is no way to please it.
            Some(held) if held.len() != count => Some(Vec::new()),
            Some(held) => Some(self.hints_for(held, &CpuSet::default(), count)),
            None => Some(self.hints_for(&self.available(state), reusable, count)),
        }
    }

    /// The NUMA nodes that a whole Pod could get its processors from.
    pub fn hints_of_pod(&self, state: &CpuState, pod: &Pod) -> Option<Vec<Hint>> {
        let count = requests::cpus_of_pod(pod);
        if count == 0 {
            return None;
        }
        let (uid, mut held) = (pod.metadata.uid.as_deref().unwrap_or_default(), CpuSet::default());
        for container in requests::containers(pod) {
            match state.of(uid, &container.name) {
                Some(cpus) if cpus.len() != requests::cpus(pod, container) => return Some(Vec::new()),
                Some(cpus) => held = held.union(cpus),
                None => {}
            }
        }
        Some(match held.len() == count {
            true => self.hints_for(&held, &CpuSet::default(), count),
            false => self.hints_for(&self.available(state), &held, count),
        })
    }

    /// The NUMA nodes of the processors that a container has, or the whole Pod, however many it asks for; `None` when it has none.
    pub fn hints_held(&self, state: &CpuState, pod: &Pod, container: Option<&Container>) -> Option<Vec<Hint>> {
        let of_pod = state.assigned.get(pod.metadata.uid.as_deref().unwrap_or_default())?.iter();
        let of = of_pod.filter(|(name, _)| container.is_none_or(|container| container.name == **name));
        let held = of.fold(CpuSet::default(), |all, (_, cpus)| all.union(cpus));
        (!held.is_empty()).then(|| self.hints_for(&held, &CpuSet::default(), held.len()))
    }

    fn hints_for(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<Hint> {
        let on = |cpus: &CpuSet, mask: NodeMask| {
            cpus.iter().filter(|cpu| self.topology.cpus.get(cpu).is_some_and(|cpu| mask.contains(cpu.node))).count()
        };
        let all = self.topology.all();
        let nodes: Vec<u32> = self.topology.groups(Level::Node, &all).into_iter().collect();
        let could = |mask| on(&all, mask) >= count;
        // Whatever the Pod has already it has to keep.
        let has = |mask| on(reusable, mask) == reusable.len() && reusable.len() + on(available, mask) >= count;
        let (masks, least) = hints::judged(&nodes, could, has);
        let preferred =
            |mask: NodeMask| mask.count() == least || self.options.by_socket && self.fits_sockets(mask, least);
        masks.into_iter().map(|mask| Hint { nodes: Some(mask), preferred: preferred(mask) }).collect()
    }

    /// Whether these nodes are on no more sockets than `least` nodes have to be on.
    fn fits_sockets(&self, mask: NodeMask, least: u32) -> bool {
        let each = self.topology.count(Level::Node) / self.topology.count(Level::Socket).max(1);
        each > 0 && self.sockets(mask).len() == (least as usize).div_ceil(each)
    }
}
