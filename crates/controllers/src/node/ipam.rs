//! Node address ranges: gives each node a part of the cluster's Pod addresses of its own.
//! Reads: Node. Writes: Node (`spec.podCIDR`, `spec.podCIDRs`).
//! Upstream counterpart: pkg/controller/nodeipam.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use ipnet::IpNet;
use json::json;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;

pub struct NodeIpam {
    ranges: Vec<Range>,
}

/// One range of the cluster with the blocks that nodes have.
struct Range {
    cluster: IpNet,
    /// The prefix length of a node's block.
    node_prefix: u8,
    /// Blocks handed out by a plan that may not have reached the cache yet: two nodes planned at the same time must not
    /// get the same block. By node name.
    given: Mutex<Vec<(String, u128)>>,
}

impl Range {
    fn blocks(&self) -> u128 {
        1 << (self.node_prefix - self.cluster.prefix_len()).min(63)
    }

    fn step(&self) -> u32 {
        u32::from(self.cluster.max_prefix_len() - self.node_prefix)
    }

    fn block(&self, index: u128) -> IpNet {
        let address = match self.cluster.network() {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from_bits(base.to_bits() + ((index as u32) << self.step()))),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits() + (index << self.step()))),
        };
        IpNet::new(address, self.node_prefix).expect("the prefix fits the family")
    }

    /// Which blocks a network covers, as a range of indexes; `None` when it is not in this range.
    fn indexes(&self, net: &IpNet) -> Option<std::ops::RangeInclusive<u128>> {
        let number = |address: IpAddr| match address {
            IpAddr::V4(a) => u128::from(a.to_bits()),
            IpAddr::V6(a) => a.to_bits(),
        };
        let same_family = net.max_prefix_len() == self.cluster.max_prefix_len();
        if !same_family || !self.cluster.contains(&net.network()) {
            return None;
        }
        let base = number(self.cluster.network());
        Some((number(net.network()) - base) >> self.step()..=(number(net.broadcast()) - base) >> self.step())
    }
}

impl NodeIpam {
    /// For ranges with the length of the prefix of a node's block; a node gets the whole range when that is smaller.
    pub fn new(clusters: &[(IpNet, u8)]) -> Self {
        let ranges = clusters.iter().map(|(cluster, of_node)| Range {
            cluster: *cluster,
            node_prefix: *of_node.max(&cluster.prefix_len()),
            given: Mutex::default(),
        });
        NodeIpam { ranges: ranges.collect() }
    }
}

fn held(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.as_ref();
    let many = spec.and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    let one = spec.and_then(|s| s.pod_cidr.clone());
    many.into_iter().chain(one).filter_map(|text| text.parse().ok()).collect()
}

impl Controller for NodeIpam {
    const NAME: &'static str = "node-ipam-controller";
    /// One at a time: a plan must see what the one before it gave.
    const CONCURRENCY: usize = 1;
    type Object = Node;
    /// The blocks for this node, one of each range; `None` when a range has no block left.
    type Observed = Option<Vec<IpNet>>;

    fn watches(&self, _watches: &mut Watches<Node>) {}

    fn observe(&self, node: &Node, listers: &Listers) -> Self::Observed {
        if !held(node).is_empty() {
            return Some(Vec::new());
        }
        let name = node.metadata.name.as_deref().unwrap_or("");
        let nodes = listers.caches.of::<Node>().list();
        let blocks = self.ranges.iter().map(|range| {
            let mut given = range.given.lock();
            // A block that the cache shows by now, or whose node is gone, need not be remembered.
            given.retain(|(owner, _)| {
                let node = nodes.iter().find(|n| n.metadata.name.as_deref() == Some(owner));
                node.is_some_and(|n| held(n).is_empty())
            });
            if let Some((_, index)) = given.iter().find(|(owner, _)| owner == name) {
                return Some(range.block(*index));
            }
            let mut taken: Vec<_> = nodes.iter().flat_map(|n| held(n)).filter_map(|net| range.indexes(&net)).collect();
            taken.extend(given.iter().map(|(_, index)| *index..=*index));
            let free = first_free(taken, range.blocks())?;
            given.push((name.to_owned(), free));
            Some(range.block(free))
        });
        blocks.collect()
    }

    fn plan(&self, node: &Node, blocks: &Self::Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let name = node.metadata.name.as_deref().unwrap_or("");
        match blocks {
            None => {
                let message = format!("Node {name} status is now: CIDRNotAvailable");
                plan.tell(Note::normal("CIDRNotAvailable", message));
                plan.again_after(std::time::Duration::from_secs(60));
            }
            Some(blocks) if !blocks.is_empty() => {
                let texts: Vec<String> = blocks.iter().map(ToString::to_string).collect();
                let patch = json!({"spec": {"podCIDR": texts[0], "podCIDRs": texts}});
                let assigned = Write::strategic_patch(node, "", patch);
                let message = format!("Node {name} status is now: CIDRAssignmentFailed");
                plan.step(assigned.on_failure(Note::normal("CIDRAssignmentFailed", message)).tolerate(&["NotFound"]));
            }
            Some(_) => {}
        }
        plan
    }
}

/// The lowest number below `end` that no range covers.
fn first_free(mut taken: Vec<std::ops::RangeInclusive<u128>>, end: u128) -> Option<u128> {
    taken.sort_by_key(|range| *range.start());
    let mut free = 0;
    for range in taken {
        if *range.start() > free {
            break;
        }
        free = free.max(range.end() + 1);
    }
    (free < end).then_some(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_lowest_free_ones() {
        let range = |text: &str, of_node| NodeIpam::new(&[(text.parse().unwrap(), of_node)]).ranges.remove(0);
        let v4 = range("10.244.0.0/16", 24);
        let check = |range: &Range, taken: &[&str], expected: Option<&str>| {
            let taken = taken.iter().filter_map(|t| range.indexes(&t.parse().unwrap())).collect();
            let free = first_free(taken, range.blocks()).map(|i| range.block(i).to_string());
            assert_eq!(free.as_deref(), expected);
        };
        check(&v4, &[], Some("10.244.0.0/24"));
        check(&v4, &["10.244.1.0/24", "10.244.0.0/24", "192.168.0.0/24"], Some("10.244.2.0/24"));
        check(&v4, &["10.244.0.0/22"], Some("10.244.4.0/24"));
        check(&v4, &["10.244.0.0/16"], None);
        check(&range("10.244.0.0/16", 22), &["10.244.1.0/24"], Some("10.244.4.0/22"));
        check(&range("10.1.2.0/25", 24), &[], Some("10.1.2.0/25"));
        check(&range("fd00::/48", 64), &["fd00::/64"], Some("fd00:0:0:1::/64"));
    }

    #[test]
    fn a_node_keeps_what_it_has() {
        let ipam = NodeIpam::new(&[("10.244.0.0/16".parse().unwrap(), 24)]);
        let node: Node = json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let plan = |observed| ipam.plan(&node, &observed, Timestamp::UNIX_EPOCH);
        let given = plan(Some(vec!["10.244.3.0/24".parse().unwrap()]));
        let expected = json!({"spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24"]}});
        assert_eq!(given.writes().next().unwrap().body(), &expected);
        assert!(plan(Some(Vec::new())).is_empty());
        assert!(plan(None).writes().next().is_none() && plan(None).requeue_after.is_some());
    }
}
