//! Takes processors in equal parts from several NUMA nodes where one node has not enough of them, so that what is left is balanced, too.
//! Pure. Upstream counterpart: cpu_assignment.go of pkg/kubelet/cm/cpumanager, and KEP-2902.

use std::collections::BTreeMap;

use super::take::{self, Way};
use crate::affinity::{
    cpuset::CpuSet,
    topology::{Level, Topology},
};

/// How many processors are free on each node.
type Left = BTreeMap<u32, usize>;

/// Nodes to take from, those of them that give a group more, and how uneven the nodes are afterwards.
struct Choice {
    nodes: Vec<u32>,
    more: Vec<u32>,
    unevenness: f64,
}

/// The processors that are wanted, in groups of that size: all threads of a core, or single ones.
#[derive(Clone, Copy)]
struct Wanted {
    count: usize,
    group: usize,
}

/// This number of the free processors, taken in groups of that size.
pub fn distributed(
    topology: &Topology,
    free: &CpuSet,
    count: usize,
    group: usize,
    spread: bool,
) -> Result<CpuSet, String> {
    let (way, group) = (Way { spread, by_cache: false }, group.max(1));
    if !count.is_multiple_of(group) || count == 0 {
        return take::packed(topology, free, count, way);
    }
    if count > free.len() {
        return Err(take::too_few(count, free));
    }
    let (nodes, wanted) = (take::sorted(topology, Level::Node, free), Wanted { count, group });
    let left: Left = nodes.iter().map(|node| (*node, topology.within(Level::Node, *node, free).len())).collect();
    for some in needed(topology, &nodes, wanted) {
        let choices = combinations(&nodes, some).into_iter().filter_map(|nodes| judge(nodes, &left, wanted));
        if let Some(choice) = first_best(choices) {
            return take_from(topology, free, &choice, wanted, way);
        }
    }
    take::packed(topology, free, count, way)
}

/// The least number of nodes that could have what is wanted, up to the greatest.
fn needed(topology: &Topology, nodes: &[u32], Wanted { count, group }: Wanted) -> std::ops::RangeInclusive<usize> {
    let on_each = topology.cpus.len().div_ceil(group).div_ceil(topology.count(Level::Node).max(1));
    let groups = count.div_ceil(group);
    groups.div_ceil(on_each.max(1))..=groups.min(nodes.len())
}

/// All choices of that number of them, in order.
fn combinations(of: &[u32], count: usize) -> Vec<Vec<u32>> {
    match (count, of) {
        (0, _) => vec![Vec::new()],
        (_, []) => Vec::new(),
        (_, [first, rest @ ..]) => {
            let with = combinations(rest, count - 1).into_iter().map(|mut tail| {
                tail.insert(0, *first);
                tail
            });
            with.chain(combinations(rest, count)).collect()
        }
    }
}

fn first_best(choices: impl Iterator<Item = Choice>) -> Option<Choice> {
    choices.reduce(|best, other| if other.unevenness < best.unevenness { other } else { best })
}

fn share(wanted: Wanted, nodes: usize) -> usize {
    wanted.count / nodes / wanted.group * wanted.group
}

/// The best way to take what is wanted from these nodes, if they have it in equal parts.
fn judge(nodes: Vec<u32>, left: &Left, wanted: Wanted) -> Option<Choice> {
    let on = |node: &u32| left.get(node).copied().unwrap_or(0);
    let share = share(wanted, nodes.len());
    let in_groups: usize = nodes.iter().map(|node| on(node) / wanted.group * wanted.group).sum();
    if in_groups < wanted.count || nodes.iter().any(|node| on(node) < share) {
        return None;
    }
    let mut after = left.clone();
    nodes.iter().for_each(|node| *after.entry(*node).or_default() -= share);
    let rest = wanted.count - share * nodes.len();
    if rest == 0 {
        return Some(Choice { nodes, more: Vec::new(), unevenness: deviation(&after) });
    }
    let givers: Vec<u32> = nodes.iter().copied().filter(|node| after[node] >= wanted.group).collect();
    let subsets = (1..=givers.len()).rev().flat_map(|count| combinations(&givers, count));
    let one = |more: Vec<u32>| {
        let after = take_rest(&after, &more, rest, wanted.group)?;
        Some(Choice { nodes: nodes.clone(), more, unevenness: deviation(&after) })
    };
    first_best(subsets.filter_map(one))
}

/// The processors that are left once these nodes have given the rest, a group each in turn; `None` when they do not have it.
fn take_rest(after: &Left, from: &[u32], rest: usize, group: usize) -> Option<Left> {
    let (mut after, mut rest) = (after.clone(), rest);
    while rest > 0 {
        let before = rest;
        for node in from {
            let left = after.get_mut(node)?;
            if rest > 0 && *left >= group {
                *left -= group;
                rest -= group;
            }
        }
        if rest == before {
            return None;
        }
    }
    Some(after)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The standard deviation, as exact as upstream has it.
fn deviation(left: &Left) -> f64 {
    let count = left.len() as f64;
    let mean = rounded(left.values().map(|n| *n as f64).sum::<f64>() / count);
    rounded((left.values().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / count).sqrt())
}

fn take_from(topology: &Topology, free: &CpuSet, choice: &Choice, wanted: Wanted, way: Way) -> Result<CpuSet, String> {
    let mut taken = CpuSet::default();
    let take = |taken: &mut CpuSet, node: u32, count: usize| {
        let there = topology.within(Level::Node, node, &free.minus(taken));
        let cpus = take::packed(topology, &there, count, way)?;
        *taken = taken.union(&cpus);
        Ok::<_, String>(cpus.len())
    };
    for node in &choice.nodes {
        take(&mut taken, *node, share(wanted, choice.nodes.len()))?;
    }
    while taken.len() < wanted.count {
        let before = taken.len();
        for node in &choice.more {
            let there = topology.within(Level::Node, *node, &free.minus(&taken)).len();
            if taken.len() < wanted.count && there >= wanted.group {
                take(&mut taken, *node, wanted.group)?;
            }
        }
        if taken.len() == before {
            return Err("failed to allocate cpus".to_owned());
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::topology::machines::*;

    fn check(topology: Topology, free: &str, (count, group): (usize, usize), expected: &str) {
        let got = distributed(&topology, &CpuSet::read(free).unwrap(), count, group, false);
        let expected = CpuSet::read(expected).unwrap().to_string();
        assert_eq!(got.unwrap().to_string(), expected, "{count} by {group} of {free}");
    }

    #[test]
    fn several_nodes_give_equal_parts() {
        check(single_socket_ht(), "0-7", (1, 1), "0");
        check(single_socket_ht(), "1,3,5-7", (1, 1), "6");
        check(dual_socket_ht(), "0-11", (6, 1), "0,2,4,6,8,10");
        check(multi_node_ht(), "0-79", (60, 1), "0-29,40-69");
        check(multi_node_ht(), "1-39,41-79", (60, 1), "10-39,50-79");
        check(dual_socket_ht(), "0-11", (8, 1), "0,6,2,8,1,7,3,9");
        check(multi_node_ht(), "0-79", (64, 1), "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77");
        check(multi_node_ht(), "0-79", (48, 1), "0-7,10-17,20-27,40-47,50-57,60-67");
        check(multi_node_ht(), "1-29,32-39,41-69,72-79", (48, 1), "1-8,10-17,20-27,41-48,50-57,60-67");
        check(multi_node_ht(), "2-29,31-39,42-69,71-79", (48, 1), "10-17,20-27,31-38,50-57,60-67,71-78");
        let each = "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71";
        check(multi_node_ht(), each, (16, 1), "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71");
    }

    #[test]
    fn a_rest_is_taken_where_it_keeps_the_balance() {
        check(dual_socket_ht(), "1-5,7-11", (1, 1), "1");
        check(dual_socket_ht(), "1-5,7-11", (1, 2), "2");
        check(multi_node_ht(), "0-79", (26, 1), "0-6,10-16,40-45,50-55");
        check(multi_node_ht(), "0-79", (26, 2), "0-6,10-15,40-46,50-55");
        check(multi_node_ht(), "0-79", (62, 1), "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76");
        check(multi_node_ht(), "0-79", (62, 2), "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76");
        let most = "0-8,10-18,20-39,40-48,50-58,60-79";
        check(multi_node_ht(), most, (62, 1), "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77");
        check(multi_node_ht(), most, (62, 2), "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77");
        let uneven = "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76";
        check(multi_node_ht(), uneven, (34, 1), "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74");
        let live = "0,128,30,31,158,159,43-47,171-175,62,63,190,191,75-79,203-207,94,96,222,223,101-111,229-239,126,127,254,255";
        check(large_ht(), live, (28, 1), "43-47,75-79,96,101-105,171-174,203-206,229-232");
    }

    #[test]
    fn nodes_that_cannot_give_a_whole_group_do_not_hold_it_up() {
        // Two of these nodes have six left between them, and cannot give three groups of two.
        let free = "0-2,40-41,10-12,50-51,20-21,60-61,30-31,70-71";
        check(multi_node_ht(), free, (14, 2), "0-1,40-41,10-11,50-51,20-21,60-61,30,70");
        // Each node has three, and groups of two are wanted: what there is is packed.
        check(multi_node_ht(), "0-2,10-12,20-22,30-32", (12, 2), "0-2,10-12,20-22,30-32");
    }
}
