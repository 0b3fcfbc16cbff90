//! Takes processors so that they lie close together: whole NUMA nodes and sockets, whole caches where that is asked for, whole
//! cores, and then single threads, always where least is free. Pure.
//! Upstream counterpart: cpu_assignment.go of pkg/kubelet/cm/cpumanager.

use crate::affinity::{
    cpuset::CpuSet,
    topology::{Level, Topology},
};

/// How processors are taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Way {
    /// From different cores rather than from the same one.
    pub spread: bool,
    /// Of few caches of the third level.
    pub by_cache: bool,
}

/// The free processors, and those that are taken of them.
struct Taking<'a> {
    topology: &'a Topology,
    free: CpuSet,
    taken: CpuSet,
    needed: usize,
    way: Way,
}

/// The words of a shortage.
pub fn too_few(wanted: usize, free: &CpuSet) -> String {
    let there = free.len();
    format!("not enough cpus available to satisfy request: requested={wanted}, available={there}")
}

/// This number of the free processors.
pub fn packed(topology: &Topology, free: &CpuSet, count: usize, way: Way) -> Result<CpuSet, String> {
    let free: CpuSet = free.iter().filter(|cpu| topology.cpus.contains_key(cpu)).collect();
    if count > free.len() {
        return Err(too_few(count, &free));
    }
    let mut taking = Taking { topology, free, taken: CpuSet::default(), needed: count, way };
    let [first, second] =
        if has_nodes_above(topology) { [Level::Node, Level::Socket] } else { [Level::Socket, Level::Node] };
    taking.take_whole(first);
    taking.take_whole(second);
    if way.by_cache {
        taking.take_caches();
    }
    if !way.spread {
        taking.take_whole(Level::Core);
    }
    taking.take_threads();
    Ok(taking.taken)
}

/// A NUMA node has one or more sockets, not the other way round.
fn has_nodes_above(topology: &Topology) -> bool {
    topology.count(Level::Socket) >= topology.count(Level::Node)
}

/// The way from the widest groups down to those of a level.
fn path(topology: &Topology, level: Level) -> &'static [Level] {
    use Level::{Core, Node, Socket, Uncore};
    match (has_nodes_above(topology), level) {
        (true, Node) => &[Node],
        (true, Socket) => &[Node, Socket],
        (true, Uncore) => &[Node, Uncore],
        (true, Core) => &[Node, Socket, Core],
        (false, Socket) => &[Socket],
        (false, Node) => &[Socket, Node],
        (false, Uncore) => &[Socket, Node, Uncore],
        (false, Core) => &[Socket, Node, Core],
    }
}

/// The groups of a level that have free processors: those where least is free come first, within the groups above them in the
/// same order.
pub fn sorted(topology: &Topology, level: Level, free: &CpuSet) -> Vec<u32> {
    sorted_on(topology, path(topology, level), free)
}

fn sorted_on(topology: &Topology, path: &[Level], free: &CpuSet) -> Vec<u32> {
    let [above @ .., level] = path else { return Vec::new() };
    let in_order = |part: &CpuSet| {
        let mut groups: Vec<u32> = topology.groups(*level, part).into_iter().collect();
        groups.sort_by_cached_key(|group| (topology.within(*level, *group, free).len(), *group));
        groups
    };
    let Some(wider) = above.last() else { return in_order(free) };
    let all = sorted_on(topology, above, free).into_iter();
    all.flat_map(|group| in_order(&topology.within(*wider, group, free))).collect()
}

impl Taking<'_> {
    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free = self.free.minus(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    fn is_whole(&self, level: Level, group: u32) -> bool {
        let free = self.topology.within(level, group, &self.free).len();
        match level {
            Level::Node | Level::Uncore => free == self.topology.members(level, group).len(),
            Level::Socket | Level::Core => free == self.topology.each(level),
        }
    }

    fn whole(&self, level: Level) -> Vec<u32> {
        sorted(self.topology, level, &self.free).into_iter().filter(|group| self.is_whole(level, *group)).collect()
    }

    /// Whole groups, as long as as many are needed.
    fn take_whole(&mut self, level: Level) {
        for group in self.whole(level) {
            let members = self.topology.members(level, group);
            if self.needed >= members.len() {
                self.take(&members);
            }
        }
    }

    fn take_caches(&mut self) {
        for group in sorted(self.topology, Level::Uncore, &self.free) {
            if self.needed >= self.topology.each(Level::Uncore) {
                self.take_whole(Level::Uncore);
            }
            if self.needed == 0 {
                return;
            }
            self.take_part_of_cache(group);
            if self.needed == 0 {
                return;
            }
        }
    }

    /// All that is needed, if the first cores of one cache have it.
    fn take_part_of_cache(&mut self, group: u32) {
        let threads = self.topology.each(Level::Core);
        let cores = self.topology.groups(Level::Core, &self.topology.within(Level::Uncore, group, &self.free));
        let cores = cores.into_iter().take(self.needed.div_ceil(threads.max(1)));
        let mut cpus =
            cores.fold(CpuSet::default(), |all, core| all.union(&self.topology.within(Level::Core, core, &self.free)));
        if !self.needed.is_multiple_of(2) && threads > 1 && cpus.len() > self.needed {
            let count = cpus.len() - 1;
            cpus = cpus.iter().take(count).collect();
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn take_threads(&mut self) {
        // Spread, they come as they are numbered in a socket: one of each core first.
        let level = if self.way.spread { Level::Socket } else { Level::Core };
        let groups = sorted(self.topology, level, &self.free).into_iter();
        let all: Vec<u32> = groups
            .flat_map(|group| self.topology.within(level, group, &self.free).iter().collect::<Vec<_>>())
            .collect();
        for cpu in all {
            if self.needed == 0 {
                return;
            }
            if self.free.contains(cpu) {
                self.take(&[cpu].into_iter().collect());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::topology::machines::*;

    fn set(text: &str) -> CpuSet {
        CpuSet::read(text).unwrap()
    }

    fn check_way(topology: Topology, way: Way, free: &str, count: usize, expected: &str) {
        let got = packed(&topology, &set(free), count, way);
        let got = got.map_or_else(|why| why, |cpus| cpus.to_string());
        let expected = CpuSet::read(expected).map_or(expected.to_owned(), |cpus| cpus.to_string());
        assert_eq!(got, expected, "{count} of {free}");
    }

    fn check(topology: Topology, free: &str, count: usize, expected: &str) {
        check_way(topology, Way::default(), free, count, expected);
    }

    #[test]
    fn whatever_is_whole_is_taken_whole() {
        let few = "not enough cpus available to satisfy request: requested=5, available=4";
        check(single_socket_ht(), "0,2,4,6", 5, few);
        check(single_socket_ht(), "0-7", 0, "");
        check(single_socket_ht(), "0-7", 1, "0");
        check(single_socket_ht(), "1,3,5-7", 1, "6");
        check(single_socket_ht(), "0-7", 2, "0,4");
        check(single_socket_ht(), "0-7", 8, "0-7");
        check(single_socket_ht(), "0-3,6", 2, "2,6");
        check(dual_socket_ht(), "0-11", 6, "0,2,4,6,8,10");
        check(multi_node_ht(), "0-79", 40, "0-19,40-59");
        check(multi_node_ht(), "0-79", 20, "0-9,40-49");
        check(multi_node_ht(), "10-39,50-79", 20, "10-19,50-59");
        check(multi_node_ht(), "0-79", 60, "0-29,40-69");
        check(multi_node_ht(), "1-39,41-79", 60, "10-39,50-79");
        check(dual_socket_ht(), "1-5,7-11", 1, "2");
        check(dual_socket_ht(), "0-11", 8, "0,6,2,8,4,10,1,7");
        check(multi_node_ht(), "0-79", 64, "0-29,40-69,30,31,70,71");
        // A number that the machine does not have is nobody's.
        check(single_socket_ht(), "0,99", 2, "not enough cpus available to satisfy request: requested=2, available=1");
    }

    #[test]
    fn few_caches_are_touched_where_that_is_asked_for() {
        let check = |topology, free, count, expected| {
            check_way(topology, Way { by_cache: true, ..Way::default() }, free, count, expected);
        };
        check(uncore(), "1-15", 10, "1,2,4-11");
        check(dual_socket_ht(), "1-5,7-11", 1, "1");
        check(uncore_dual_socket(), "0-15", 4, "0-3");
        check(uncore_dual_socket(), "2-15", 6, "2-7");
        check(uncore_dual_socket(), "8-15", 4, "8-11");
        check(uncore_multi_node(), "3,4-8,12", 2, "4,5");
        check(uncore_smt(), "2-3,10-11,4-7,12-15", 6, "4-6,12-14");
        check(uncore_smt(), "1-7,9-15", 10, "4-7,12-15,1,9");
    }

    #[test]
    fn spread_processors_are_of_different_cores() {
        let check = |topology, free, count, expected| {
            check_way(topology, Way { spread: true, ..Way::default() }, free, count, expected);
        };
        check(single_socket_ht(), "0-7", 3, "0-2");
        check(dual_socket_ht(), "0-11", 2, "0,2");
        check(dual_socket_ht(), "0-11", 3, "0,2,4");
        check(dual_socket_ht(), "0-11", 6, "0,2,4,6,8,10");
        check(dual_socket_ht(), "0-11", 8, "0,2,4,6,8,10,1,3");
        check(dual_socket(), "0-7", 2, "0-1");
        check(multi_node_ht(), "0-79", 8, "0-7");
    }

    #[test]
    fn groups_come_in_the_order_of_what_is_free_in_them() {
        let whole = |topology: Topology, level, free: &str| {
            let taking = Taking {
                topology: &topology,
                free: set(free),
                taken: CpuSet::default(),
                needed: 0,
                way: Way::default(),
            };
            taking.whole(level)
        };
        assert_eq!(whole(dual_socket_ht(), Level::Core, "0-11"), [0, 2, 4, 1, 3, 5]);
        assert_eq!(whole(dual_socket_ht(), Level::Core, "1-5,7-11"), [2, 4, 1, 3, 5]);
        assert_eq!(whole(dual_socket_ht(), Level::Core, "2-5,8-11"), [2, 4, 3, 5]);
        assert_eq!(whole(single_socket_ht(), Level::Core, "0-3"), [0_u32; 0]);
        assert_eq!(whole(multi_node_ht(), Level::Node, "1-9,11-59,61-79"), [3]);
        assert_eq!(whole(multi_node_ht(), Level::Node, "1-59,61-79"), [1, 3]);
        assert_eq!(whole(multi_socket_ht(), Level::Node, "0-9,11-79"), [1]);
        assert_eq!(whole(multi_socket_ht(), Level::Socket, "1-19,21-38,41-60,61-78"), [1]);
        assert_eq!(sorted(&triple_socket_ht(), Level::Core, &set("0-3,6-13")), [6, 0, 1, 3, 4, 5]);
    }
}
