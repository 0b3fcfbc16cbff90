//! How much memory of which sort each NUMA node has, and who has how much of it: the bookkeeping of the memory manager, in the shape
//! of upstream's checkpoint. Pure. Upstream counterpart: pkg/kubelet/cm/memorymanager/state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::affinity::{
    hints::NodeMask,
    requests::Memory,
    topology::{NumaNode, Topology},
};

/// One sort of memory of one node, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Table {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeState {
    pub number_of_assignments: i64,
    pub memory_map: BTreeMap<String, Table>,
    /// The node with those that it has given memory together with.
    pub cells: Vec<u32>,
}

/// Memory of one sort that a container has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    pub numa_affinity: Vec<u32>,
    #[serde(rename = "type")]
    pub sort: String,
    pub size: u64,
}

impl Block {
    pub fn nodes(&self) -> NodeMask {
        self.numa_affinity.iter().copied().collect()
    }
}

pub type Nodes = BTreeMap<u32, NodeState>;
pub type Blocks = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub nodes: Nodes,
    pub assigned: Blocks,
}

fn table(total: u64, taken: u64, reserved: u64) -> Table {
    let allocatable = total.saturating_sub(taken).saturating_sub(reserved);
    Table { total, system_reserved: reserved, allocatable, reserved: 0, free: allocatable }
}

fn of_node(number: u32, node: &NumaNode, reserved: &Memory) -> NodeState {
    let reserved = |sort: &str| reserved.get(sort).copied().unwrap_or(0);
    let pages = node.huge_pages.iter();
    let mut memory_map: BTreeMap<String, Table> =
        pages.map(|(sort, total)| (sort.clone(), table(*total, 0, reserved(sort)))).collect();
    let in_pages = node.huge_pages.values().sum();
    memory_map.insert("memory".to_owned(), table(node.memory, in_pages, reserved("memory")));
    NodeState { number_of_assignments: 0, memory_map, cells: vec![number] }
}

/// A machine of which nobody has anything, but for what is reserved on each node.
pub fn fresh(topology: &Topology, reserved: &BTreeMap<u32, Memory>) -> Nodes {
    let none = Memory::new();
    let nodes = topology.nodes.iter();
    nodes.map(|(number, node)| (*number, of_node(*number, node, reserved.get(number).unwrap_or(&none)))).collect()
}

/// Counts memory as given by these nodes, the first of them first. Some of it may have been given before.
pub fn give(nodes: &mut Nodes, from: &[u32], sort: &str, size: u64) {
    let mut size = size;
    for number in from {
        let Some(node) = nodes.get_mut(number) else { continue };
        node.number_of_assignments += 1;
        node.cells = from.to_vec();
        if let Some(table) = node.memory_map.get_mut(sort) {
            let part = table.free.min(size);
            table.reserved += part;
            table.free -= part;
            size -= part;
        }
    }
}

/// Counts memory as given back.
pub fn take_back(nodes: &mut Nodes, block: &Block) {
    let mut size = block.size;
    for number in &block.numa_affinity {
        let Some(node) = nodes.get_mut(number) else { continue };
        node.number_of_assignments -= 1;
        if node.number_of_assignments == 0 {
            node.cells = vec![*number];
        }
        if let Some(table) = node.memory_map.get_mut(&block.sort) {
            let part = table.reserved.min(size);
            table.free += part;
            table.reserved -= part;
            size -= part;
        }
    }
}

/// How much of a sort these nodes have, as `of` tells of each.
pub fn sum(nodes: &Nodes, mask: NodeMask, sort: &str, of: impl Fn(&Table) -> u64) -> u64 {
    let tables = mask.nodes().filter_map(|number| nodes.get(&number)?.memory_map.get(sort));
    tables.map(of).fold(0, u64::saturating_add)
}

fn sorted(cells: &[u32]) -> Vec<u32> {
    let mut cells = cells.to_vec();
    cells.sort_unstable();
    cells
}

pub fn are_same_cells(one: &[u32], other: &[u32]) -> bool {
    sorted(one) == sorted(other)
}

/// Whether both say the same of the machine and of what is given in all. Which node of a group has given what may differ.
pub fn are_same(one: &Nodes, other: &Nodes) -> bool {
    let all = |nodes: &Nodes, cells: &[u32], sort: &str| {
        let mask: NodeMask = cells.iter().copied().collect();
        (sum(nodes, mask, sort, |table| table.free), sum(nodes, mask, sort, |table| table.reserved))
    };
    let is_same_table = |a: &Table, b: &Table| {
        (a.total, a.system_reserved, a.allocatable) == (b.total, b.system_reserved, b.allocatable)
    };
    let is_same_node = |a: &NodeState, b: &NodeState| {
        a.number_of_assignments == b.number_of_assignments
            && are_same_cells(&a.cells, &b.cells)
            && a.memory_map.len() == b.memory_map.len()
            && a.memory_map.iter().all(|(sort, table)| {
                b.memory_map.get(sort).is_some_and(|held| is_same_table(table, held))
                    && all(one, &a.cells, sort) == all(other, &a.cells, sort)
            })
    };
    one.len() == other.len() && one.iter().all(|(number, a)| other.get(number).is_some_and(|b| is_same_node(a, b)))
}
