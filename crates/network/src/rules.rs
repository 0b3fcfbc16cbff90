//! The Pod network's own nftables rules: masquerading of what leaves the cluster, and host ports. Pure text.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

pub const TABLE: &str = "ip skiff-network";

/// Packets from a Pod to a host port carry it: the Pod may be its own target, so the node becomes their source.
const FROM_POD_MARK: &str = "0x8000";

/// The tunnel's interface. Links of the Pod network begin alike, so that they are removed together.
pub const TUNNEL: &str = "skf-vxlan";
/// Where nodes receive each other's tunnelled packets: flannel's port on Linux.
pub const TUNNEL_PORT: u16 = 8472;

/// Whether two ranges have an address in common.
pub fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The table as it must be. Host ports and the tunnel's peers live in maps and sets whose elements survive a rewrite of the
/// chains. Packets that come through the tunnel are taken from nodes alone: anybody else could speak as any Pod.
pub fn table(range: Ipv4Net, cluster: Ipv4Net) -> String {
    let local = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto { tcp, udp, sctp }";
    let lead = "dnat ip addr . port to meta l4proto . th dport map @host-ports";
    format!(
        "add table {TABLE}
add map {TABLE} host-ports {{ type inet_proto . inet_service : ipv4_addr . inet_service; }}
add set {TABLE} open-ports {{ type inet_proto . inet_service; }}
add set {TABLE} tunnel-peers {{ type ipv4_addr; }}
add chain {TABLE} input {{ type filter hook input priority filter; }}
add chain {TABLE} prerouting {{ type nat hook prerouting priority -101; }}
add chain {TABLE} output {{ type nat hook output priority -101; }}
add chain {TABLE} postrouting {{ type nat hook postrouting priority srcnat; }}
flush chain {TABLE} input
flush chain {TABLE} prerouting
flush chain {TABLE} output
flush chain {TABLE} postrouting
add rule {TABLE} input udp dport {TUNNEL_PORT} ip saddr != @tunnel-peers drop
add rule {TABLE} prerouting ip saddr {range} {local} meta l4proto . th dport @open-ports \
meta mark set meta mark or {FROM_POD_MARK}
add rule {TABLE} prerouting {local} {lead}
add rule {TABLE} output {local} {lead}
add rule {TABLE} postrouting meta mark & {FROM_POD_MARK} != 0 masquerade fully-random
add rule {TABLE} postrouting ip saddr {range} ip daddr != {cluster} masquerade fully-random
"
    )
}

/// The nodes from which tunnelled packets are taken, and no others.
pub fn tunnel_peers(nodes: impl Iterator<Item = Ipv4Addr>) -> String {
    let nodes: std::collections::BTreeSet<String> = nodes.map(|node| node.to_string()).collect();
    let mut text = format!("flush set {TABLE} tunnel-peers\n");
    if !nodes.is_empty() {
        let list = nodes.into_iter().collect::<Vec<_>>().join(", ");
        text += &format!("add element {TABLE} tunnel-peers {{ {list} }}\n");
    }
    text
}

/// One host port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    pub protocol: String,
    pub host_port: u16,
    pub container_port: u16,
}

impl HostPort {
    fn key(&self) -> String {
        format!("{} . {}", self.protocol.to_ascii_lowercase(), self.host_port)
    }

    /// Leads the host port to a Pod; fails when another Pod has it.
    pub fn open(&self, pod: Ipv4Addr) -> String {
        let key = self.key();
        format!(
            "create element {TABLE} host-ports {{ {key} : {pod} . {} }}\nadd element {TABLE} open-ports {{ {key} }}\n",
            self.container_port
        )
    }

    /// Leads it to the Pod that has it already.
    pub fn open_again(&self, pod: Ipv4Addr) -> String {
        self.open(pod).replacen("create", "add", 1)
    }

    /// Closes it again.
    pub fn close(&self) -> String {
        let key = self.key();
        format!("delete element {TABLE} host-ports {{ {key} }}\ndelete element {TABLE} open-ports {{ {key} }}\n")
    }
}
