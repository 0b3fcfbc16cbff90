//! The one set of NUMA nodes that all resources of a container, or of a Pod, are to come from. Pure.
//! Upstream counterpart: policy.go, numa_info.go and the policies of pkg/kubelet/cm/topologymanager.

use std::collections::{BTreeMap, BTreeSet};

use super::hints::{Hint, Hints, NodeMask};
use crate::configuration::affinity::TopologyPolicy;

/// How hints are merged.
#[derive(Debug, Clone, Default)]
pub struct Merger {
    pub policy: TopologyPolicy,
    /// The machine's nodes.
    pub nodes: NodeMask,
    /// The distances between them, where the nearest are to be taken.
    pub distances: Option<BTreeMap<u32, Vec<u64>>>,
}

/// A choice of a hint for each of several resources: what they have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merged {
    nodes: NodeMask,
    /// Some hint named nodes. As long as it is preferred, all that did named these.
    named: bool,
    preferred: bool,
}

/// The hints about each resource, each of which has to be heeded.
fn lists(providers: &[Hints]) -> Vec<Vec<Hint>> {
    let any = |preferred| vec![Hint { nodes: None, preferred }];
    let of_provider = |hints: &Hints| match hints.is_empty() {
        true => vec![any(true)],
        false => hints
            .values()
            .map(|list| match list.as_deref() {
                None => any(true),
                Some([]) => any(false),
                Some(list) => list.to_vec(),
            })
            .collect(),
    };
    providers.iter().flat_map(of_provider).collect()
}

impl Merger {
    /// The best set of nodes, and whether the policy admits it.
    pub fn merge(&self, providers: &[Hints]) -> (Hint, bool) {
        let mut lists = lists(providers);
        if self.policy == TopologyPolicy::SingleNumaNode {
            let fits = |hint: &Hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1);
            lists.iter_mut().for_each(|list| list.retain(fits));
        }
        let best = self.best(&lists);
        match self.policy {
            TopologyPolicy::None | TopologyPolicy::BestEffort => (best, true),
            TopologyPolicy::Restricted => (best, best.preferred),
            TopologyPolicy::SingleNumaNode => {
                let nodes = best.nodes.filter(|nodes| *nodes != self.nodes);
                (Hint { nodes, ..best }, best.preferred)
            }
        }
    }

    /// The best of what any choice of one hint from each list has in common. Choices that come to the same are followed once, so a Pod
    /// that asks for many resources is no more work than these and the sets of nodes.
    fn best(&self, lists: &[Vec<Hint>]) -> Hint {
        let mut all = BTreeSet::from([Merged { nodes: self.nodes, named: false, preferred: true }]);
        for list in lists {
            all = all.iter().flat_map(|merged| list.iter().map(|hint| self.step(*merged, hint))).collect();
        }
        let widest = lists.iter().filter_map(|list| {
            let named = list.iter().filter_map(|hint| hint.nodes);
            named.reduce(|best, other| if other.is_narrower(best) { other } else { best }).map(NodeMask::count)
        });
        let count = widest.max().unwrap_or(0);
        let common = all.into_iter().filter(|merged| merged.nodes.count() > 0);
        let best = common.reduce(|best, other| if self.is_better(other, best, count) { other } else { best });
        best.map_or(Hint { nodes: Some(self.nodes), preferred: false }, |best| Hint {
            nodes: Some(best.nodes),
            preferred: best.preferred,
        })
    }

    fn step(&self, merged: Merged, hint: &Hint) -> Merged {
        let (nodes, same) = match hint.nodes {
            None => (merged.nodes, true),
            Some(nodes) => {
                let nodes = nodes.common(self.nodes);
                (merged.nodes.common(nodes), !merged.named || merged.nodes == nodes)
            }
        };
        let preferred = merged.preferred && hint.preferred && same;
        Merged { nodes, named: merged.named || hint.nodes.is_some() || !preferred, preferred }
    }

    /// Whether a set is to be taken in place of another. Among those that are not preferred as many nodes are best as the resource needs
    /// that needs most.
    fn is_better(&self, candidate: Merged, current: Merged, count: u32) -> bool {
        if candidate.preferred != current.preferred {
            return candidate.preferred;
        }
        let (now, then) = (current.nodes.count(), candidate.nodes.count());
        let fits_better = || self.fits_better(candidate.nodes, current.nodes);
        match () {
            () if current.preferred || now > count => fits_better(),
            () if now == count => then == count && fits_better(),
            () if then > count => false,
            () if then != now => then > now,
            () => fits_better(),
        }
    }

    fn fits_better(&self, candidate: NodeMask, current: NodeMask) -> bool {
        let by_distance = self.policy != TopologyPolicy::SingleNumaNode && candidate.count() == current.count();
        match &self.distances {
            Some(distances) if by_distance => {
                let (then, now) = (mean(distances, candidate), mean(distances, current));
                if then == now { candidate.is_lower(current) } else { then < now }
            }
            _ => candidate.is_narrower(current),
        }
    }
}

fn mean(distances: &BTreeMap<u32, Vec<u64>>, mask: NodeMask) -> f64 {
    let to = |from: u32, to: u32| distances.get(&from).and_then(|row| row.get(to as usize)).copied().unwrap_or(0);
    let all: Vec<u64> = mask.nodes().flat_map(|from| mask.nodes().map(move |node| to(from, node))).collect();
    if all.is_empty() { 0.0 } else { all.iter().sum::<u64>() as f64 / all.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::hints::fixture::{hint, words};
    use TopologyPolicy::{BestEffort, Restricted, SingleNumaNode};

    /// Providers between `|`, their resources between `;`, and hints with spaces: `none` is no list, nothing an empty one.
    fn providers(text: &str) -> Vec<Hints> {
        let list = |text: &str| match text.trim() {
            "none" => None,
            hints => Some(hints.split_whitespace().map(hint).collect()),
        };
        let provider = |text: &str| match text.trim() {
            "nothing" => Hints::new(),
            all => all.split(';').enumerate().map(|(at, text)| (at.to_string(), list(text))).collect(),
        };
        if text.is_empty() { Vec::new() } else { text.split('|').map(provider).collect() }
    }

    fn merger(policy: TopologyPolicy, nodes: u32) -> Merger {
        Merger { policy, nodes: (0..nodes).collect(), distances: None }
    }

    fn check(policies: &[TopologyPolicy], text: &str, expected: &str) {
        for policy in policies {
            let (best, admitted) = merger(*policy, 4).merge(&providers(text));
            assert_eq!(words(&[best]), expected, "{policy:?}: {text}");
            assert_eq!(admitted, *policy == BestEffort || best.preferred, "{policy:?}: {text}");
        }
    }

    #[test]
    fn resources_meet_on_the_fewest_nodes() {
        let all = [BestEffort, Restricted, SingleNumaNode];
        check(&all, "0 | 0", "0");
        check(&all, "1 | 1", "1");
        check(&all, "nothing | 0", "0");
        check(&all, "nothing | 1", "1");
        check(&all, "0 1 | 0", "0");
        check(&all, "0 1 | 1", "1");
        check(&all, "0 1 | 0 -0,1", "0");
        check(&all, "1 -0,1 | 0 1 -0,1", "1");
        check(&all, "1 -0,1 ; 0 1 -0,1", "1");
    }

    #[test]
    fn what_does_not_meet_is_not_preferred() {
        let wide = [BestEffort, Restricted];
        check(&wide, "0,1 0,2 | 0,1 0,2", "0,1");
        for any in ["", "nothing", "none", "any"] {
            check(&wide, any, "0,1,2,3");
        }
        check(&wide, " | nothing", "-0,1,2,3");
        check(&wide, "-any", "-0,1,2,3");
        check(&wide, "0 | 1", "-0,1,2,3");
        check(&wide, "0 | -0", "-0");
        check(&wide, "1 | -1", "-1");
        check(&wide, "0 | 0,1", "-0");
        check(&wide, "1 | 0,1", "-1");
        check(&wide, "0 1 | -0,1", "-0");
        check(&wide, "-0,1,2,3 -0,1 | -0,1", "-0,1");
        check(&wide, "-0,1,2,3 -0,1 | -0,3", "-0,3");
        check(&wide, "-0,1,2,3 -0,1 | -1,2", "-1,2");
    }

    #[test]
    fn one_node_has_all_or_nothing_is_let_in() {
        let one = [SingleNumaNode];
        for any in ["", "nothing", "none", "any"] {
            check(&one, any, "any");
        }
        for none in [" | nothing", "-any", "0 | 1", "0 | -0", "0 | 0,1", "0 1 | -0,1", "0,1 0,2 | 0,1 0,2"] {
            check(&one, none, "-any");
        }
        check(&one, "0 1 -0,1 | 0 1 -0,1", "0");
        check(&one, "0 1 | 1 ; none", "1");
        check(&one, "0 1 -0,1 | -0,1", "-any");
        // Where there is one node only, nothing has to be said of it.
        let (best, admitted) = merger(SingleNumaNode, 1).merge(&providers("0 | 0"));
        assert_eq!((words(&[best]).as_str(), admitted), ("any", true));
    }

    #[test]
    fn of_as_many_nodes_the_nearest_are_taken_where_that_is_asked_for() {
        let distances = [[10, 30, 11, 30], [30, 10, 30, 30], [11, 30, 10, 30], [30, 30, 30, 10]];
        let rows = distances.iter().enumerate().map(|(node, row)| (node as u32, row.to_vec()));
        let near = Merger { distances: Some(rows.collect()), ..merger(BestEffort, 4) };
        let best = |text: &str| words(&[near.merge(&providers(text)).0]);
        assert_eq!(best("0,1 0,2 0,3"), "0,2");
        assert_eq!(best("0,1 1,3"), "0,1");
        assert_eq!(best("2 0,2"), "2");
        assert_eq!(words(&[merger(BestEffort, 4).merge(&providers("0,1 0,2 0,3")).0]), "0,1");
    }

    #[test]
    fn a_pod_that_asks_for_very_much_costs_no_more() {
        // Each choice by itself would be 255 to the power of 40.
        let all = crate::affinity::hints::masks(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let list: Vec<Hint> =
            all.iter().map(|mask| Hint { nodes: Some(*mask), preferred: mask.count() == 1 }).collect();
        let hints: Hints = (0..40).map(|n| (format!("a.io/{n}"), Some(list.clone()))).collect();
        let (best, admitted) = merger(Restricted, 8).merge(&[hints]);
        assert_eq!((words(&[best]).as_str(), admitted), ("0", true));
    }
}
