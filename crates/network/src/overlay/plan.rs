//! How the Pods of other nodes are reached, and what has to change in the kernel for it. Pure.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

use super::peers::Peer;
use crate::ipam;

/// The size of an outer header: Ethernet, the address' own, UDP and VXLAN.
pub fn overhead(outer: IpAddr) -> u32 {
    if outer.is_ipv4() { 50 } else { 70 }
}

/// The same of WireGuard in either family, rounded up as it does it itself: its packets are padded to sixteen bytes.
pub const ENCRYPTED_OVERHEAD: u32 = 80;

/// How Pods of different nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Direct routes to nodes on the same link, a tunnel to all others.
    #[default]
    Auto,
    /// Direct routes only: whatever connects the nodes must know where the Pods are, or pass them on unseen.
    Direct,
    /// A tunnel to each node, for networks that drop addresses which they did not give out.
    Vxlan,
    /// Encrypted by the kernel's WireGuard, to each node.
    Wireguard,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Mode::Auto),
            "direct" => Ok(Mode::Direct),
            "vxlan" => Ok(Mode::Vxlan),
            "wireguard" => Ok(Mode::Wireguard),
            _ => Err(format!("{text:?} is none of auto, direct, vxlan, wireguard")),
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Direct => "direct",
            Mode::Vxlan => "vxlan",
            Mode::Wireguard => "wireguard",
        })
    }
}

/// The interface that has the node's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uplink {
    pub index: u32,
    pub address: IpAddr,
    /// The addresses that are reached over it without a router.
    pub link: IpNet,
    pub mtu: u32,
}

impl Uplink {
    /// The MTU of Pods: what comes out of them fits through the uplink, whichever way it takes.
    pub fn pod_mtu(&self, mode: Mode) -> u32 {
        self.mtu.saturating_sub(match mode {
            Mode::Direct => 0,
            Mode::Auto | Mode::Vxlan => overhead(self.address),
            Mode::Wireguard => ENCRYPTED_OVERHEAD,
        })
    }
}

/// How the Pods of one node are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The node is the next hop.
    Direct { node: IpAddr },
    /// The node's end of the tunnel is the next hop.
    Tunnel { node: IpAddr, end: IpAddr, mac: [u8; 6] },
}

impl Way {
    fn to(peer: &Peer, uplink: &Uplink, mode: Mode) -> Option<Self> {
        let shares_link = uplink.link.contains(&peer.address);
        match mode {
            Mode::Auto | Mode::Direct if shares_link => Some(Way::Direct { node: peer.address }),
            // The route to the node leads to its Pods too, if those on the way know them; there is none to give here.
            Mode::Direct => None,
            // Its ways are peers of an interface, not routes.
            Mode::Wireguard => None,
            Mode::Auto | Mode::Vxlan => {
                let mac = mac(peer.address);
                let end = match peer.range {
                    IpNet::V4(_) => ipam::gateway(peer.range),
                    // The kernel looks up where a next hop is, and takes none that lies in the very range that is led elsewhere now.
                    IpNet::V6(_) => link_local(mac).into(),
                };
                Some(Way::Tunnel { node: peer.address, end, mac })
            }
        }
    }
}

/// The hardware address of a node's end of the tunnel. It follows from the node's address, so that nobody has to be told.
pub fn mac(node: IpAddr) -> [u8; 6] {
    match node {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x0a, 0x58, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d, e] = api::rules::hash::fnv_64(&v6.octets()).to_be_bytes();
            [0x0a, a, b, c, d, e]
        }
    }
}

/// The address on its link that follows from a hardware address (RFC 4291, appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f].into()
}

pub type Ways = BTreeMap<IpNet, Way>;

pub fn ways(peers: &BTreeMap<IpNet, Peer>, uplink: &Uplink, mode: Mode) -> Ways {
    peers.iter().filter_map(|(range, peer)| Some((*range, Way::to(peer, uplink, mode)?))).collect()
}

/// One change in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Adds the way, or takes it instead of the one that leads to the range now.
    Lead(IpNet, Way),
    Remove(IpNet, Way),
    /// Forgets what an old way used beside the route, which leads elsewhere now.
    Forget(Way),
}

/// From one state to another: a node that changed costs steps, others none.
pub fn steps(have: &Ways, want: &Ways) -> Vec<Step> {
    let gone =
        have.iter().filter(|(range, _)| !want.contains_key(*range)).map(|(range, way)| Step::Remove(*range, *way));
    let mut steps: Vec<Step> = gone.collect();
    for (range, way) in want.iter().filter(|(range, way)| have.get(*range) != Some(*way)) {
        steps.push(Step::Lead(*range, *way));
        steps.extend(have.get(range).map(|old| Step::Forget(*old)));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uplink() -> Uplink {
        Uplink { index: 2, address: "192.0.2.1".parse().unwrap(), link: "192.0.2.0/24".parse().unwrap(), mtu: 1500 }
    }

    fn peers(list: &[(&str, &str)]) -> BTreeMap<IpNet, Peer> {
        let peer = |(address, range): &(&str, &str)| Peer {
            address: address.parse().unwrap(),
            range: range.parse().unwrap(),
            key: None,
        };
        list.iter().map(peer).map(|peer| (peer.range, peer)).collect()
    }

    fn text(way: &Way) -> String {
        match way {
            Way::Direct { node } => format!("via {node}"),
            Way::Tunnel { node, end, mac } => format!("tunnel to {node}, {end} {mac:02x?}"),
        }
    }

    #[test]
    fn a_node_on_the_same_link_is_the_next_hop_and_another_is_reached_through_the_tunnel() {
        let peers = peers(&[("192.0.2.2", "10.244.1.0/24"), ("198.51.100.7", "10.244.2.0/24")]);
        let check = |mode: &str, expected: &[&str]| {
            let ways = ways(&peers, &uplink(), mode.parse().unwrap());
            assert_eq!(ways.values().map(text).collect::<Vec<_>>(), expected);
        };
        let far = "tunnel to 198.51.100.7, 10.244.2.1 [0a, 58, c6, 33, 64, 07]";
        check("auto", &["via 192.0.2.2", far]);
        check("direct", &["via 192.0.2.2"]);
        check("vxlan", &["tunnel to 192.0.2.2, 10.244.1.1 [0a, 58, c0, 00, 02, 02]", far]);
        assert_eq!("bridge".parse::<Mode>().unwrap_err(), "\"bridge\" is none of auto, direct, vxlan, wireguard");
        let all = [Mode::Auto, Mode::Direct, Mode::Vxlan, Mode::Wireguard];
        assert_eq!(all.map(|mode| uplink().pod_mtu(mode)), [1450, 1500, 1450, 1420]);
        assert_eq!(all.map(|mode| mode.to_string().parse()), all.map(Ok));
    }

    #[test]
    fn a_change_costs_its_own_node_alone() {
        let state = |list: &[(&str, &str)]| ways(&peers(list), &uplink(), Mode::Auto);
        let before = state(&[("192.0.2.2", "10.244.1.0/24"), ("198.51.100.7", "10.244.2.0/24")]);
        assert_eq!(steps(&before, &before), []);
        let moved = state(&[("192.0.2.2", "10.244.1.0/24"), ("198.51.100.8", "10.244.2.0/24")]);
        let (range, other) = ("10.244.2.0/24".parse().unwrap(), "10.244.1.0/24".parse().unwrap());
        assert_eq!(steps(&before, &moved), [Step::Lead(range, moved[&range]), Step::Forget(before[&range])]);
        let left = state(&[("198.51.100.7", "10.244.2.0/24")]);
        assert_eq!(steps(&before, &left), [Step::Remove(other, before[&other])]);
        assert_eq!(steps(&Ways::new(), &left), [Step::Lead(range, left[&range])]);
    }
}
