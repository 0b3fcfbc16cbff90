//! Memory that containers have for themselves on NUMA nodes: the static policy. Pure.
//! Upstream counterpart: policy_static.go of pkg/kubelet/cm/memorymanager.

pub mod tables;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use api::rules::{
    pod::is_sidecar,
    quantity::{Format, Quantity},
};
use k8s_openapi::api::core::v1::{Container, Pod};

use self::tables::{Block, MemoryState, Nodes};
use super::{
    hints::{self, Hint, Hints, NodeMask},
    requests::{self, Memory},
    topology::Topology,
};
use crate::configuration::affinity::ReservedMemory;

/// The memory that init containers have had, by its nodes and sort: those after them can have it.
pub type Reusable = BTreeMap<(NodeMask, String), u64>;

/// The static policy on a machine.
#[derive(Debug)]
pub struct MemoryPolicy {
    topology: Arc<Topology>,
    reserved: BTreeMap<u32, Memory>,
}

fn words(why: &str) -> String {
    format!("[memorymanager] {why}")
}

/// The best hint: a preferred one, of the fewest nodes.
fn best(hints: impl IntoIterator<Item = Hint>) -> Option<Hint> {
    let is_better = |hint: &Hint, than: &Hint| match (hint.nodes, than.nodes) {
        _ if hint.preferred != than.preferred => hint.preferred,
        (Some(nodes), Some(others)) => nodes.is_narrower(others),
        _ => false,
    };
    hints.into_iter().reduce(|best, hint| if is_better(&hint, &best) { hint } else { best })
}

/// The hints about regular memory. Those about huge pages are the same.
fn about_memory(hints: &Hints) -> Vec<Hint> {
    hints.get("memory").cloned().flatten().unwrap_or_default()
}

/// A node gives memory alone or together with others, and then always with the same.
fn mixes(nodes: &Nodes, mask: NodeMask) -> bool {
    let cells: Vec<u32> = mask.nodes().collect();
    let used = cells.iter().filter_map(|number| nodes.get(number)).filter(|node| node.number_of_assignments > 0);
    let is_other = |cells_of: &[u32]| cells_of.len() == 1 || !tables::are_same_cells(cells_of, &cells);
    cells.len() > 1 && used.into_iter().any(|node| is_other(&node.cells))
}

impl MemoryPolicy {
    /// `in_all` is how much of each sort is kept from Pods on the whole machine: the reservations of the nodes have to come to the same.
    pub fn new(topology: Arc<Topology>, given: &[ReservedMemory], in_all: &Memory) -> Result<Self, String> {
        let (mut reserved, mut sums) = (BTreeMap::<u32, Memory>::new(), Memory::new());
        for part in given {
            let number = part.node;
            if !topology.nodes.contains_key(&number) {
                let which = format!("references a NUMA node {number} that does not exist on this machine");
                return Err(format!("the reserved memory configuration {which}"));
            }
            for (sort, amount) in &part.limits {
                let bytes = u64::try_from(amount.value()).unwrap_or(0);
                reserved.entry(number).or_default().insert(sort.clone(), bytes);
                *sums.entry(sort.clone()).or_default() += bytes;
            }
        }
        for sort in sums.keys().chain(in_all.keys()) {
            let of = |all: &Memory| all.get(sort).copied().unwrap_or(0);
            if of(&sums) != of(in_all) {
                let text =
                    |bytes| Quantity::new(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi).to_string();
                let (here, there) = (text(of(&sums)), text(of(in_all)));
                return Err(format!(
                    "the total amount \"{here}\" of type {sort:?} is not equal to the value \"{there}\" determined by Node Allocatable feature"
                ));
            }
        }
        if sums.get("memory").is_none_or(|bytes| *bytes == 0) {
            return Err(words("you should specify the system reserved memory"));
        }
        Ok(MemoryPolicy { topology, reserved })
    }

    /// Takes up what an earlier kubelet has left, if the machine is still the same and so is what is reserved.
    pub fn start(&self, state: &mut MemoryState) -> Result<(), String> {
        let mut expected = tables::fresh(&self.topology, &self.reserved);
        if state.nodes.is_empty() {
            if !state.assigned.is_empty() {
                return Err(words("machine state can not be empty when it has memory assignments"));
            }
            state.nodes = expected;
            return Ok(());
        }
        for (pod, containers) in &state.assigned {
            for (container, blocks) in containers {
                for block in blocks {
                    let whose = |what: &str| {
                        words(&format!("(pod: {pod}, container: {container}) the memory assignment uses {what}"))
                    };
                    for number in &block.numa_affinity {
                        let node = expected.get(number).ok_or_else(|| whose("the NUMA that does not exist"))?;
                        if !node.memory_map.contains_key(&block.sort) {
                            return Err(whose("memory resource that does not exist"));
                        }
                    }
                    tables::give(&mut expected, &block.numa_affinity, &block.sort, block.size);
                }
            }
        }
        if tables::are_same(&state.nodes, &expected) {
            Ok(())
        } else {
            Err(words("the expected machine state is different from the real one"))
        }
    }

    /// All that somebody may get for itself, by node and sort.
    pub fn allocatable(state: &MemoryState) -> Vec<Block> {
        let of = |number: &u32, (sort, table): (&String, &tables::Table)| Block {
            numa_affinity: vec![*number],
            sort: sort.clone(),
            size: table.allocatable,
        };
        let all = state.nodes.iter().flat_map(|(number, node)| node.memory_map.iter().map(move |one| of(number, one)));
        all.filter(|block| block.size > 0).collect()
    }

    /// Gives a container what it asks for, from these NUMA nodes if they have it. Whether it was given now.
    pub fn allocate(
        &self,
        state: &mut MemoryState,
        reusable: &mut Reusable,
        (pod, container): (&Pod, &Container),
        hint: Hint,
    ) -> Result<bool, String> {
        let Some(requested) = requests::memory(pod, container) else { return Ok(false) };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(held) = state.assigned.get(uid).and_then(|all| all.get(&container.name)) {
            hand_on(reusable, (pod, container), held);
            return Ok(false);
        }
        let nodes = self.choose(&state.nodes, reusable, &requested, hint)?;
        let numa_affinity: Vec<u32> = nodes.nodes().collect();
        let mut blocks = Vec::new();
        for (sort, size) in requested {
            let had = reusable.get(&(nodes, sort.clone())).copied().unwrap_or(0);
            tables::give(&mut state.nodes, &numa_affinity, &sort, size.saturating_sub(had));
            blocks.push(Block { numa_affinity: numa_affinity.clone(), sort, size });
        }
        hand_on(reusable, (pod, container), &blocks);
        let of_pod = state.assigned.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), blocks.clone());
        count_once(of_pod, pod, container, &blocks);
        Ok(true)
    }

    fn choose(&self, nodes: &Nodes, reusable: &Reusable, requested: &Memory, hint: Hint) -> Result<NodeMask, String> {
        let hints = || self.hints_for(nodes, reusable, requested);
        let (mask, preferred) = match hint.nodes {
            Some(mask) => (mask, hint.preferred),
            None => {
                let why = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
                let own = best(about_memory(&hints())).ok_or_else(|| words(why))?;
                if hint.preferred && !own.preferred {
                    return Err(words("failed to find the default preferred hint"));
                }
                (own.nodes.unwrap_or_default(), own.preferred)
            }
        };
        let has = requested.iter().all(|(sort, size)| tables::sum(nodes, mask, sort, |table| table.free) >= *size);
        if has {
            return if mixes(nodes, mask) {
                Err(words("preferred hint violates NUMA node allocation"))
            } else {
                Ok(mask)
            };
        }
        // The nodes that all resources have in common may be fewer than this one needs.
        let wider =
            about_memory(&hints()).into_iter().filter(|hint| hint.nodes.is_some_and(|nodes| mask.is_within(nodes)));
        let wider =
            best(wider).ok_or_else(|| words("failed to find NUMA nodes to extend the current topology hint"))?;
        if preferred && !wider.preferred {
            return Err(words("failed to find the extended preferred hint"));
        }
        let mask = wider.nodes.unwrap_or_default();
        if mixes(nodes, mask) { Err(words("preferred hint violates NUMA node allocation")) } else { Ok(mask) }
    }

    /// The NUMA nodes that a container could get its memory from.
    pub fn hints(&self, state: &MemoryState, reusable: &Reusable, (pod, container): (&Pod, &Container)) -> Hints {
        let Some(requested) = requests::memory(pod, container) else { return Hints::new() };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        match state.assigned.get(uid).and_then(|all| all.get(&container.name)) {
            Some(held) => held_hints(held, &requested),
            None => self.hints_for(&state.nodes, reusable, &requested),
        }
    }

    /// The NUMA nodes that a whole Pod could get its memory from.
    pub fn hints_of_pod(&self, state: &MemoryState, pod: &Pod) -> Hints {
        let Some(requested) = requests::memory_of_pod(pod) else { return Hints::new() };
        let held = state.assigned.get(pod.metadata.uid.as_deref().unwrap_or_default());
        let held = held.and_then(|all| requests::containers(pod).find_map(|container| all.get(&container.name)));
        match held {
            Some(held) => held_hints(held, &requested),
            None => self.hints_for(&state.nodes, &Reusable::new(), &requested),
        }
    }

    /// The NUMA nodes of the memory that a container has, or the first of the Pod's that has some, however much it asks for.
    pub fn hints_held(state: &MemoryState, pod: &Pod, container: Option<&Container>) -> Hints {
        let held = state.assigned.get(pod.metadata.uid.as_deref().unwrap_or_default());
        let held = held.and_then(|all| match container {
            Some(container) => all.get(&container.name),
            None => requests::containers(pod).find_map(|container| all.get(&container.name)),
        });
        held.map(|held| hints_of(held)).unwrap_or_default()
    }

    fn hints_for(&self, nodes: &Nodes, reusable: &Reusable, requested: &Memory) -> Hints {
        let numbers: Vec<u32> = nodes.keys().copied().collect();
        let could = |mask| {
            requested.iter().all(|(sort, size)| tables::sum(nodes, mask, sort, |table| table.allocatable) >= *size)
        };
        let has = |mask: NodeMask| {
            let free = |sort: &String| {
                let had = reusable.get(&(mask, sort.clone())).copied().unwrap_or(0);
                tables::sum(nodes, mask, sort, |table| table.free).saturating_add(had)
            };
            let is_grouped = |number: u32| nodes.get(&number).is_some_and(|node| node.cells.len() > 1);
            let alone = mask.count() == 1 && mask.nodes().any(is_grouped);
            could(mask) && !alone && !mixes(nodes, mask) && requested.iter().all(|(sort, size)| free(sort) >= *size)
        };
        let (masks, least) = hints::judged(&numbers, could, has);
        let hint = |mask: &NodeMask| Hint { nodes: Some(*mask), preferred: mask.count() == least };
        let list: Vec<Hint> = masks.iter().map(hint).collect();
        // Without any nodes nothing is said, as upstream: whoever gives the memory then refuses.
        if list.is_empty() {
            Hints::new()
        } else {
            requested.keys().map(|sort| (sort.clone(), Some(list.clone()))).collect()
        }
    }

    /// Nothing of the Pod runs any more: what it had is free. Whether it had something.
    pub fn release(state: &mut MemoryState, uid: &str) -> bool {
        let Some(held) = state.assigned.remove(uid) else { return false };
        held.values().flatten().for_each(|block| tables::take_back(&mut state.nodes, block));
        true
    }
}

/// The nodes from which a container has what it asks for; nothing is said when it has something else.
fn held_hints(held: &[Block], requested: &Memory) -> Hints {
    let fits =
        held.len() == requested.len() && held.iter().all(|block| requested.get(&block.sort) == Some(&block.size));
    if fits { hints_of(held) } else { Hints::new() }
}

fn hints_of(held: &[Block]) -> Hints {
    let hint = |block: &Block| vec![Hint { nodes: Some(block.nodes()), preferred: true }];
    held.iter().map(|block| (block.sort.clone(), Some(hint(block)))).collect()
}

/// The memory of an init container is for those after it; that of another container is for none of them.
fn hand_on(reusable: &mut Reusable, (pod, container): (&Pod, &Container), blocks: &[Block]) {
    let ends = requests::makes_way(pod, &container.name);
    for block in blocks {
        let key = (block.nodes(), block.sort.clone());
        if ends {
            let most = reusable.entry(key).or_default();
            *most = block.size.max(*most);
        } else if let Some(left) = reusable.get_mut(&key) {
            *left = left.saturating_sub(block.size);
        }
    }
}

/// The memory that a container has of an init container before it counts once: as its own.
fn count_once(of_pod: &mut BTreeMap<String, Vec<Block>>, pod: &Pod, container: &Container, blocks: &[Block]) {
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let before: Vec<&Container> = inits.take_while(|init| init.name != container.name).collect();
    for block in blocks {
        let mut size = block.size;
        for init in before.iter().filter(|init| !is_sidecar(init)) {
            let held = of_pod.get_mut(&init.name).into_iter().flatten();
            for other in held.filter(|other| other.sort == block.sort && other.nodes() == block.nodes()) {
                let part = other.size.min(size);
                other.size -= part;
                size -= part;
            }
        }
    }
}
