//! The checksums of upstream's checkpoints: FNV-1a over a value as Go's package `spew` writes it, with the names of upstream's types.
//! Pure. Upstream counterpart: pkg/kubelet/checkpointmanager/checksum.

use std::{collections::BTreeMap, fmt::Display};

use super::memory::tables::{Block, Blocks, Nodes, Table};

fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn joined<T>(all: impl IntoIterator<Item = T>, one: impl Fn(T) -> String) -> String {
    all.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

fn map<K: Display, V>(all: &BTreeMap<K, V>, one: impl Fn(&V) -> String) -> String {
    format!("map[{}]", joined(all, |(key, value)| format!("{key}:{}", one(value))))
}

fn numbers(all: &[u32]) -> String {
    format!("([]int)[{}]", joined(all, u32::to_string))
}

/// Of processors, as they are written.
pub fn of_cpus(policy: &str, shared: &str, entries: &BTreeMap<String, BTreeMap<String, String>>) -> u32 {
    let entries = map(entries, |containers| map(containers, String::clone));
    fnv(&format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){shared} \
         Entries:(map[string]map[string]string){entries} Checksum:(checksum.Checksum)0}}"
    ))
}

fn table(table: &Table) -> String {
    let Table { total, system_reserved, allocatable, reserved, free } = table;
    format!(
        "<*>{{TotalMemSize:(uint64){total} SystemReserved:(uint64){system_reserved} Allocatable:(uint64){allocatable} \
         Reserved:(uint64){reserved} Free:(uint64){free}}}"
    )
}

fn block(block: &Block) -> String {
    let (nodes, sort, size) = (numbers(&block.numa_affinity), &block.sort, block.size);
    format!("{{NUMAAffinity:{nodes} Type:(v1.ResourceName){sort} Size:(uint64){size}}}")
}

/// Of memory.
pub fn of_memory(policy: &str, nodes: &Nodes, entries: &Blocks) -> u32 {
    let nodes = map(nodes, |node| {
        let (count, tables, cells) = (node.number_of_assignments, map(&node.memory_map, table), numbers(&node.cells));
        format!(
            "<*>{{NumberOfAssignments:(int){count} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:{cells}}}"
        )
    });
    let entries = map(entries, |containers| map(containers, |blocks| format!("[{}]", joined(blocks, block))));
    fnv(&format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap){nodes} \
         Entries:(state.ContainerMemoryAssignments){entries} Checksum:(checksum.Checksum)0}}"
    ))
}
