//! The machine as processors are chosen on it: threads in cores, caches, sockets and NUMA nodes. Pure; reading it is `sysfs.rs`.
//! Upstream counterpart: pkg/kubelet/cm/cpumanager/topology.

use std::collections::{BTreeMap, BTreeSet};

use super::cpuset::CpuSet;

/// The place of one processor, a thread of a core. A core's number is that of its lowest thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    pub core: u32,
    pub socket: u32,
    pub node: u32,
    /// The cache of the third level, where it is not the whole node's; otherwise the socket.
    pub uncore: u32,
}

/// The groups that processors are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Node,
    Socket,
    Uncore,
    Core,
}

impl Level {
    pub fn of(self, cpu: &Cpu) -> u32 {
        match self {
            Level::Node => cpu.node,
            Level::Socket => cpu.socket,
            Level::Uncore => cpu.uncore,
            Level::Core => cpu.core,
        }
    }
}

/// A NUMA node. It may have no processors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Bytes.
    pub memory: u64,
    /// Bytes in huge pages, by the name of the resource.
    pub huge_pages: BTreeMap<String, u64>,
    /// To each node, in their order.
    pub distances: Vec<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    pub cpus: BTreeMap<u32, Cpu>,
    pub nodes: BTreeMap<u32, NumaNode>,
}

impl Topology {
    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// The groups of a level that some of these processors are in.
    pub fn groups(&self, level: Level, cpus: &CpuSet) -> BTreeSet<u32> {
        cpus.iter().filter_map(|cpu| self.cpus.get(&cpu)).map(|cpu| level.of(cpu)).collect()
    }

    /// How many groups of that level there are.
    pub fn count(&self, level: Level) -> usize {
        self.cpus.values().map(|cpu| level.of(cpu)).collect::<BTreeSet<_>>().len()
    }

    /// Those of these processors that are in that group.
    pub fn within(&self, level: Level, group: u32, cpus: &CpuSet) -> CpuSet {
        cpus.iter().filter(|cpu| self.cpus.get(cpu).is_some_and(|cpu| level.of(cpu) == group)).collect()
    }

    /// All processors of that group.
    pub fn members(&self, level: Level, group: u32) -> CpuSet {
        self.cpus.iter().filter(|(_, cpu)| level.of(cpu) == group).map(|(number, _)| *number).collect()
    }

    /// How many processors a group of that level has, taken as if all had as many.
    pub fn each(&self, level: Level) -> usize {
        self.cpus.len().checked_div(self.count(level)).unwrap_or(0)
    }
}

/// Upstream's machines, on which its tests choose processors.
#[cfg(test)]
pub mod machines {
    use super::*;

    /// `(core, socket, node, uncore)` of each processor.
    pub fn made(count: u32, place: impl Fn(u32) -> (u32, u32, u32, u32)) -> Topology {
        let cpu = |number| {
            let (core, socket, node, uncore) = place(number);
            (number, Cpu { core, socket, node, uncore })
        };
        let cpus: BTreeMap<u32, Cpu> = (0..count).map(cpu).collect();
        let nodes = cpus.values().map(|cpu| (cpu.node, NumaNode::default())).collect();
        Topology { cpus, nodes }
    }

    pub fn single_socket_ht() -> Topology {
        made(8, |c| (c % 4, 0, 0, 0))
    }

    pub fn dual_socket_ht() -> Topology {
        made(12, |c| (c % 6, c % 2, c % 2, 0))
    }

    pub fn dual_socket() -> Topology {
        made(8, |c| (c, c / 4, c / 4, 0))
    }

    pub fn triple_socket_ht() -> Topology {
        made(18, |c| {
            let socket = [1, 0, 2][c as usize / 6];
            (c / 2, socket, socket, 0)
        })
    }

    /// Two sockets of two nodes each.
    pub fn multi_node_ht() -> Topology {
        made(80, |c| (c % 40, c % 40 / 20, c % 40 / 10, 0))
    }

    /// Two nodes of two sockets each.
    pub fn multi_socket_ht() -> Topology {
        made(80, |c| (c % 40, c % 40 / 10, c % 40 / 20, 0))
    }

    /// Two sockets of four nodes each.
    pub fn large_ht() -> Topology {
        made(256, |c| (c % 128, c % 128 / 64, c % 128 / 16, 0))
    }

    pub fn uncore_dual_socket() -> Topology {
        made(16, |c| (c, c / 8, 0, c / 4))
    }

    pub fn uncore_multi_node() -> Topology {
        made(16, |c| (c, 0, c / 8, c / 4))
    }

    pub fn uncore_smt() -> Topology {
        made(16, |c| (c % 8, 0, 0, c % 8 / 4))
    }

    pub fn uncore() -> Topology {
        made(16, |c| (c, 0, 0, c / 4))
    }
}
