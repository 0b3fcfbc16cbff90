//! The other nodes, as far as the Pod network needs them: an address, the range of their Pods' addresses, and a key. Pure.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use nft::Family;

use api::rules::ip::{Special, special};

use super::key::PublicKey;
use crate::rules::overlap;

/// The annotation of a Node with the public key of its encrypted ways, in base64. The node writes it.
pub const KEY_ANNOTATION: &str = "skiff.dev/wireguard-public-key";

/// Another node, which has the Pods of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub address: IpAddr,
    pub range: IpNet,
    /// With which it takes part in encrypted ways.
    pub key: Option<PublicKey>,
}

/// The public key that a Node tells, if it is one.
pub fn key_of(node: &Node) -> Option<PublicKey> {
    node.metadata.annotations.as_ref()?.get(KEY_ANNOTATION)?.parse().ok()
}

/// The ranges of the node's Pods in the node's order, the first of each family.
pub fn ranges_of(node: &Node) -> Vec<IpNet> {
    let mut ranges: Vec<IpNet> = Vec::new();
    let spec = node.spec.iter();
    for text in spec.flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr)) {
        let range: Option<IpNet> = text.parse().ok();
        ranges.extend(range.filter(|r| !ranges.iter().any(|other| Family::of(other.addr()) == Family::of(r.addr()))));
    }
    ranges
}

fn range_of(node: &Node, family: Family) -> Option<IpNet> {
    ranges_of(node).into_iter().find(|range| Family::of(range.addr()) == family)
}

/// The address, the range of a family and the key in a Node, or nothing as long as it lacks one of the first two.
pub fn peer(node: &Node, family: Family) -> Option<Peer> {
    let addresses = node.status.as_ref()?.addresses.as_deref().unwrap_or_default();
    let mut internal = addresses.iter().filter(|a| a.type_ == "InternalIP");
    let address = internal.find_map(|a| a.address.parse().ok().filter(|ip| Family::of(*ip) == family))?;
    Some(Peer { address, range: range_of(node, family)?, key: key_of(node) })
}

/// The peers of the node `own` in the family of the cluster's range, in the order of their ranges. A node writes its own
/// address, and may ask for a range when it
/// registers: what could take over somebody else's Pods counts for nothing. Of two that claim the same addresses the older
/// Node has them, on each node alike.
pub fn peers(own: &Node, nodes: &[Arc<Node>], cluster: IpNet) -> BTreeMap<IpNet, Peer> {
    let family = Family::of(cluster.addr());
    let age = |node: &Node| (node.metadata.creation_timestamp.as_ref().map(|t| t.0), node.metadata.name.clone());
    let mut oldest_first: Vec<&Arc<Node>> = nodes.iter().collect();
    oldest_first.sort_by_key(|node| age(node));
    let own_address = peer(own, family).map(|own| own.address);
    let mut taken: Vec<IpNet> = range_of(own, family).into_iter().collect();
    let mut peers = BTreeMap::new();
    for node in oldest_first {
        if node.metadata.name == own.metadata.name {
            continue;
        }
        let Some(peer) = peer(node, family) else { continue };
        let Peer { address, range, .. } = peer;
        let belongs = cluster.contains(&range) && !taken.iter().any(|other| overlap(*other, range));
        // Addresses on one link alone are some clouds' own for IPv4, and say nothing without the link for IPv6.
        let of_a_machine = !matches!(
            (special(address), address),
            (Some(Special::LinkLocal), IpAddr::V6(_))
                | (
                    Some(
                        Special::Loopback
                            | Special::Unspecified
                            | Special::Multicast
                            | Special::LinkLocalMulticast
                            | Special::Broadcast
                    ),
                    _
                )
        );
        let reachable = of_a_machine && !cluster.contains(&address) && Some(address) != own_address;
        if belongs {
            taken.push(range);
        }
        if belongs && reachable {
            peers.insert(range, peer);
        }
    }
    peers
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    /// `name address range second`, in which `-` is nothing.
    fn node(text: &str) -> Arc<Node> {
        let words: Vec<&str> = text.split(' ').collect();
        let addresses: Vec<_> = [json!({"type": "Hostname", "address": words[0]})]
            .into_iter()
            .chain((words[1] != "-").then(|| json!({"type": "InternalIP", "address": words[1]})))
            .collect();
        let made = format!("2026-01-01T00:00:{:02}Z", words.get(3).map_or(0, |s| s.parse::<u32>().unwrap()));
        let spec = if words[2] == "-" { json!({}) } else { json!({"podCIDR": words[2], "podCIDRs": [words[2]]}) };
        Arc::new(
            json::from_value(json!({
                "metadata": {"name": words[0], "creationTimestamp": made}, "spec": spec, "status": {"addresses": addresses},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn nobody_takes_over_the_addresses_of_others() {
        let own = node("own 192.0.2.1 10.244.0.0/24 5");
        let check = |nodes: &[&str], expected: &[&str]| {
            let nodes: Vec<_> = nodes.iter().map(|n| node(n)).chain([own.clone()]).collect();
            let found = peers(&own, &nodes, "10.244.0.0/16".parse().unwrap());
            let found: Vec<String> = found.values().map(|p| format!("{} {}", p.address, p.range)).collect();
            assert_eq!(found, expected);
        };
        check(
            &["a 192.0.2.2 10.244.1.0/24", "b 192.0.2.3 10.244.2.0/24"],
            &["192.0.2.2 10.244.1.0/24", "192.0.2.3 10.244.2.0/24"],
        );
        check(&["young 192.0.2.2 -", "new - 10.244.1.0/24"], &[]);
        check(&["outside 192.0.2.2 10.96.0.0/24", "all 192.0.2.3 0.0.0.0/0"], &[]);
        check(&["same 192.0.2.2 10.244.0.0/24 1", "part 192.0.2.3 10.244.0.128/25 2"], &[]);
        check(
            &["late 192.0.2.3 10.244.0.0/20 9", "thief 192.0.2.4 10.244.1.0/24 8", "a 192.0.2.2 10.244.1.0/24 7"],
            &["192.0.2.2 10.244.1.0/24"],
        );
        check(&["liar 192.0.2.1 10.244.1.0/24", "pod 10.244.3.3 10.244.2.0/24", "lo 127.0.0.1 10.244.4.0/24"], &[]);
        check(&["six 2001:db8::1 10.244.1.0/24"], &[]);
    }

    #[test]
    fn a_range_stays_with_the_older_node_also_while_that_one_has_no_address_to_use() {
        let own = node("own 192.0.2.1 10.244.0.0/24");
        let nodes = [node("old 127.0.0.1 10.244.1.0/24 1"), node("thief 192.0.2.4 10.244.1.0/24 2")];
        assert_eq!(peers(&own, &nodes, "10.244.0.0/16".parse().unwrap()).len(), 0);
    }
}
