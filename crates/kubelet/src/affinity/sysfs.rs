//! Reads which processors, caches and NUMA nodes the machine has, as the kernel tells it below `/sys/devices/system`.
//! Upstream counterpart: the machine information of cAdvisor.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{
    cpuset::CpuSet,
    topology::{Cpu, NumaNode, Topology},
};
use crate::node::huge_pages;

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<u32> {
    // A machine that knows nothing of sockets says -1.
    text(path)?.parse::<i64>().ok().map(|number| u32::try_from(number).unwrap_or(0))
}

/// The folders below one whose names are that word and a number.
fn numbered(folder: &Path, word: &str) -> BTreeMap<u32, PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let one = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix(word)?.parse().ok()?;
        Some((number, entry.path()))
    };
    entries.filter_map(one).collect()
}

/// The machine, whose memory counts as that of its only node where the kernel knows of no nodes.
pub fn read(folder: &Path, memory: u64) -> Result<Topology, String> {
    let folders: BTreeMap<u32, PathBuf> = numbered(&folder.join("cpu"), "cpu")
        .into_iter()
        // A processor that is switched off has no place.
        .filter(|(_, path)| text(&path.join("online")).as_deref() != Some("0") && path.join("topology").is_dir())
        .collect();
    if folders.is_empty() {
        return Err("could not detect number of cpus".to_owned());
    }
    let node_folders = numbered(&folder.join("node"), "node");
    let mut nodes: BTreeMap<u32, NumaNode> = node_folders.iter().map(|(number, path)| (*number, node(path))).collect();
    let mut on_node: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for (number, path) in &node_folders {
        let listed = CpuSet::read(&text(&path.join("cpulist")).unwrap_or_default())?;
        on_node.insert(*number, listed.iter().filter(|cpu| folders.contains_key(cpu)).collect());
    }
    if nodes.is_empty() {
        nodes.insert(0, NumaNode { memory, ..NumaNode::default() });
        on_node.insert(0, folders.keys().copied().collect());
    }
    let cpus = places(&folders, &on_node);
    if cpus.len() != folders.len() {
        return Err("some processors are on no NUMA node".to_owned());
    }
    Ok(Topology { cpus, nodes })
}

fn places(folders: &BTreeMap<u32, PathBuf>, on_node: &BTreeMap<u32, CpuSet>) -> BTreeMap<u32, Cpu> {
    let mut first = BTreeMap::new();
    let mut cpus = BTreeMap::new();
    for (cpu, path) in folders {
        let Some((node, members)) = on_node.iter().find(|(_, members)| members.contains(*cpu)) else { continue };
        let socket = number(&path.join("topology/physical_package_id")).unwrap_or(0);
        let core = number(&path.join("topology/core_id")).unwrap_or(*cpu);
        // Numbers of cores are only different within a socket.
        let core = *first.entry((socket, core)).or_insert(*cpu);
        let uncore = cache(path, members.len()).unwrap_or(socket);
        cpus.insert(*cpu, Cpu { core, socket, node: *node, uncore });
    }
    cpus
}

/// The cache of the third level, unless all of the node's processors share it.
fn cache(path: &Path, on_node: usize) -> Option<u32> {
    let all = numbered(&path.join("cache"), "index").into_values();
    let mut found = all.filter(|cache| number(&cache.join("level")).is_some_and(|level| level > 2)).filter(|cache| {
        let shared = CpuSet::read(&text(&cache.join("shared_cpu_list")).unwrap_or_default());
        shared.is_ok_and(|shared| shared.len() != on_node)
    });
    number(&found.next()?.join("id"))
}

fn node(path: &Path) -> NumaNode {
    let meminfo = text(&path.join("meminfo")).unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.split_once("MemTotal:")?.1.split_whitespace().next()?.parse().ok());
    let distances = text(&path.join("distance")).unwrap_or_default();
    let pages = huge_pages::read(&path.join("hugepages")).into_iter();
    let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or_default();
    NumaNode {
        memory: total.map_or(0, |kib: u64| kib.saturating_mul(1024)),
        huge_pages: pages.map(|pages| (huge_pages::resource(pages.page), bytes(pages.bytes))).collect(),
        distances: distances.split_whitespace().filter_map(|number| number.parse().ok()).collect(),
    }
}

#[cfg(test)]
pub mod fixture {
    use super::*;

    /// A machine as the kernel would tell of it, with that number of GiB on each node.
    pub fn write(folder: &Path, topology: &Topology, gib: u64) {
        let put = |path: PathBuf, text: String| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        };
        for (number, cpu) in &topology.cpus {
            let at = folder.join(format!("cpu/cpu{number}"));
            put(at.join("topology/physical_package_id"), cpu.socket.to_string());
            put(at.join("topology/core_id"), cpu.core.to_string());
            let shared: CpuSet =
                topology.cpus.iter().filter(|(_, c)| c.uncore == cpu.uncore).map(|(n, _)| *n).collect();
            for (index, level, list) in [(0, 1, number.to_string()), (3, 3, shared.to_string())] {
                put(at.join(format!("cache/index{index}/level")), level.to_string());
                put(at.join(format!("cache/index{index}/id")), cpu.uncore.to_string());
                put(at.join(format!("cache/index{index}/shared_cpu_list")), list);
            }
        }
        for node in topology.nodes.keys() {
            let at = folder.join(format!("node/node{node}"));
            let members: CpuSet = topology.cpus.iter().filter(|(_, c)| c.node == *node).map(|(n, _)| *n).collect();
            put(at.join("cpulist"), members.to_string());
            put(at.join("meminfo"), format!("Node {node} MemTotal:       {} kB\nNode {node} MemFree: 1 kB", gib << 20));
            let distances = topology.nodes.keys().map(|other| if other == node { "10" } else { "20" });
            put(at.join("distance"), distances.collect::<Vec<_>>().join(" "));
            put(at.join("hugepages/hugepages-2048kB/nr_hugepages"), "512".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::topology::machines::*;

    fn check(topology: Topology) {
        let folder = tempfile::tempdir().unwrap();
        fixture::write(folder.path(), &topology, 4);
        let read = read(folder.path(), 1).unwrap();
        assert_eq!(read.cpus, topology.cpus);
        assert_eq!(read.nodes.len(), topology.nodes.len());
        let node = &read.nodes[&0];
        assert_eq!((node.memory, node.distances[0]), (4 << 30, 10));
        assert_eq!(node.huge_pages, [("hugepages-2Mi".to_owned(), 1 << 30)].into());
    }

    #[test]
    fn machines_are_read_as_the_kernel_tells_of_them() {
        check(multi_node_ht());
        check(uncore_smt());
        check(uncore_dual_socket());
        check(dual_socket_ht());
    }

    #[test]
    fn switched_off_processors_and_machines_without_nodes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), 7).unwrap_err(), "could not detect number of cpus");
        fixture::write(folder.path(), &single_socket_ht(), 4);
        fs::write(folder.path().join("cpu/cpu3/online"), "0\n").unwrap();
        fs::write(folder.path().join("cpu/cpu7/online"), "1\n").unwrap();
        fs::create_dir(folder.path().join("cpu/cpuidle")).unwrap();
        let with = read(folder.path(), 7).unwrap();
        assert_eq!(with.all().to_string(), "0-2,4-7");
        assert_eq!(with.cpus[&7].core, 7, "its other thread is not there");
        fs::remove_dir_all(folder.path().join("node")).unwrap();
        let without = read(folder.path(), 7).unwrap();
        assert_eq!((without.all(), without.nodes[&0].memory), (with.all(), 7));
        // A processor that no node lists.
        fs::create_dir_all(folder.path().join("node/node0")).unwrap();
        fs::write(folder.path().join("node/node0/cpulist"), "0-2").unwrap();
        assert!(read(folder.path(), 7).is_err());
    }

    #[test]
    fn this_machine_is_understood() {
        let here = read(Path::new("/sys/devices/system"), 1 << 30).unwrap();
        assert!(!here.cpus.is_empty() && !here.nodes.is_empty());
    }
}
