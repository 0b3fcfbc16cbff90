//! The NUMA nodes that something could come from: sets of nodes, and how good they are. Pure.
//! Upstream counterpart: pkg/kubelet/cm/topologymanager/bitmask.

use std::collections::BTreeMap;

/// All sets of nodes are looked at, so there must not be more nodes than this.
pub const MOST_NODES: usize = 16;

/// A set of NUMA nodes by their numbers, which are below 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeMask(u64);

impl NodeMask {
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub fn contains(self, node: u32) -> bool {
        node < u64::BITS && self.0 & (1 << node) != 0
    }

    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |node| self.contains(*node))
    }

    pub fn common(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & other.0)
    }

    pub fn is_within(self, other: NodeMask) -> bool {
        self.common(other) == self
    }

    /// It has fewer nodes, or of as many those with lower numbers.
    pub fn is_narrower(self, other: NodeMask) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    pub fn is_lower(self, other: NodeMask) -> bool {
        self.0 < other.0
    }
}

impl FromIterator<u32> for NodeMask {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        NodeMask(nodes.into_iter().filter(|node| *node < u64::BITS).fold(0, |mask, node| mask | 1 << node))
    }
}

/// The nodes that an amount could come from; any when `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    pub nodes: Option<NodeMask>,
    /// It takes no more nodes than it must.
    pub preferred: bool,
}

/// The hints about each resource. Without a list any nodes will do, with an empty one none does.
pub type Hints = BTreeMap<String, Option<Vec<Hint>>>;

/// Every set of some of these nodes, the smaller ones first.
pub fn masks(nodes: &[u32]) -> Vec<NodeMask> {
    let nodes = &nodes[..nodes.len().min(MOST_NODES)];
    let chosen =
        |bits: u32| nodes.iter().enumerate().filter(move |(at, _)| bits & (1 << at) != 0).map(|(_, node)| *node);
    let mut all: Vec<NodeMask> = (1..1_u32 << nodes.len()).map(|bits| chosen(bits).collect()).collect();
    all.sort_by_key(|mask| (mask.count(), *mask));
    all
}

/// The sets that have enough, each with whether it is as small as any that could ever have enough. `could` and `has` are asked of
/// every set: whether it has enough when nobody else has anything, and now.
pub fn judged(nodes: &[u32], could: impl Fn(NodeMask) -> bool, has: impl Fn(NodeMask) -> bool) -> (Vec<NodeMask>, u32) {
    let all = masks(nodes);
    let least = all.iter().filter(|mask| could(**mask)).map(|mask| mask.count()).min();
    let most = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    (all.into_iter().filter(|mask| has(*mask)).collect(), least.unwrap_or(most).min(most))
}

#[cfg(test)]
pub mod fixture {
    use super::*;

    /// `0,1` is that set, preferred; `-0,1` is not preferred; `any` is no set.
    pub fn hint(text: &str) -> Hint {
        let (preferred, list) = text.strip_prefix('-').map_or((true, text), |rest| (false, rest));
        let nodes = || list.split(',').map(|node| node.parse::<u32>().unwrap()).collect();
        Hint { nodes: (list != "any").then(nodes), preferred }
    }

    /// Hints in the same words, in order.
    pub fn words(hints: &[Hint]) -> String {
        let one = |hint: &Hint| {
            let nodes = hint.nodes.map_or("any".to_owned(), |mask| {
                mask.nodes().map(|node| node.to_string()).collect::<Vec<_>>().join(",")
            });
            format!("{}{nodes}", if hint.preferred { "" } else { "-" })
        };
        hints.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_listed_from_the_smallest() {
        let lists: Vec<Vec<u32>> = masks(&[0, 2, 5]).into_iter().map(|mask| mask.nodes().collect()).collect();
        assert_eq!(lists, [vec![0], vec![2], vec![5], vec![0, 2], vec![0, 5], vec![2, 5], vec![0, 2, 5]]);
        let of = |nodes: &[u32]| nodes.iter().copied().collect::<NodeMask>();
        assert!(of(&[7]).is_narrower(of(&[0, 1])) && of(&[0, 1]).is_narrower(of(&[0, 2])));
        assert!(!of(&[0]).is_narrower(of(&[0])) && of(&[1, 99]) == of(&[1]));
    }
}
