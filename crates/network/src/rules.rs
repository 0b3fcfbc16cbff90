//! The Pod network's own nftables rules: masquerading of what leaves the cluster, and host ports. Pure text.

use std::net::IpAddr;

use ipnet::IpNet;
use nft::Family;

use crate::link::PREFIX;

/// The table of a family.
pub fn table_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip skiff-network",
        Family::V6 => "ip6 skiff-network",
    }
}

/// Packets from a Pod to a host port carry it: the Pod may be its own target, so the node becomes their source.
const FROM_POD_MARK: &str = "0x8000";

/// The interface of the tunnel between the addresses of a family. Links of the Pod network begin alike, so that they are removed
/// together.
pub fn tunnel(family: Family) -> &'static str {
    match family {
        Family::V4 => "skf-vxlan",
        Family::V6 => "skf-vxlan6",
    }
}

/// The interface of encrypted ways between the addresses of a family.
pub fn encrypted(family: Family) -> &'static str {
    match family {
        Family::V4 => "skf-wg",
        Family::V6 => "skf-wg6",
    }
}

/// Where nodes receive each other's tunnelled packets: flannel's port on Linux.
pub const TUNNEL_PORT: u16 = 8472;

/// Whether two ranges have an address in common.
pub fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The table of a family as it must be. Host ports and the tunnel's peers live in maps and sets whose elements survive a rewrite of
/// the chains. Packets that come through the tunnel are taken from nodes alone: anybody else could speak as any Pod.
///
/// A host port with an address of the host comes before one without. The machine itself reaches them at its loopback address too,
/// where the kernel can (IPv4, `route_localnet` of the Pod's link); no Pod reaches the machine's loopback addresses by that.
pub fn table(range: IpNet, cluster: IpNet) -> String {
    let family = Family::of(range.addr());
    let (table, ip, address, loopback) = (table_name(family), family.ip(), family.address_type(), family.loopback());
    let local = "fib daddr type local meta l4proto { tcp, udp, sctp }";
    let from_elsewhere = format!("{ip} daddr != {loopback} {local}");
    let from_here = match family {
        Family::V4 => local.to_owned(),
        Family::V6 => from_elsewhere.clone(),
    };
    let at = format!("{ip} daddr . meta l4proto . th dport");
    let lead_at = format!("dnat {ip} addr . port to {at} map @host-ports-at");
    let lead = format!("dnat {ip} addr . port to meta l4proto . th dport map @host-ports");
    let mark = format!("meta mark set meta mark or {FROM_POD_MARK}");
    format!(
        "add table {table}
add map {table} host-ports {{ type inet_proto . inet_service : {address} . inet_service; }}
add map {table} host-ports-at {{ type {address} . inet_proto . inet_service : {address} . inet_service; }}
add set {table} open-ports {{ type inet_proto . inet_service; }}
add set {table} open-ports-at {{ type {address} . inet_proto . inet_service; }}
add set {table} tunnel-peers {{ type {address}; }}
add chain {table} loopback {{ type filter hook prerouting priority raw; }}
add chain {table} input {{ type filter hook input priority filter; }}
add chain {table} prerouting {{ type nat hook prerouting priority -101; }}
add chain {table} output {{ type nat hook output priority -101; }}
add chain {table} postrouting {{ type nat hook postrouting priority srcnat; }}
flush chain {table} loopback
flush chain {table} input
flush chain {table} prerouting
flush chain {table} output
flush chain {table} postrouting
add rule {table} loopback iifname \"{PREFIX}*\" {ip} daddr {loopback} drop
add rule {table} input udp dport {TUNNEL_PORT} {ip} saddr != @tunnel-peers drop
add rule {table} prerouting {ip} saddr {range} {from_elsewhere} {at} @open-ports-at {mark}
add rule {table} prerouting {ip} saddr {range} {from_elsewhere} meta l4proto . th dport @open-ports {mark}
add rule {table} prerouting {from_elsewhere} {lead_at}
add rule {table} prerouting {from_elsewhere} {lead}
add rule {table} output {from_here} {lead_at}
add rule {table} output {from_here} {lead}
add rule {table} postrouting meta mark & {FROM_POD_MARK} != 0 masquerade fully-random
add rule {table} postrouting {ip} saddr {loopback} oifname \"{PREFIX}*\" masquerade fully-random
add rule {table} postrouting {ip} saddr {range} {ip} daddr != {cluster} masquerade fully-random
"
    )
}

/// The nodes from which tunnelled packets are taken, and no others.
pub fn tunnel_peers(family: Family, nodes: impl Iterator<Item = IpAddr>) -> String {
    let table = table_name(family);
    let nodes: std::collections::BTreeSet<String> = nodes.map(|node| node.to_string()).collect();
    let mut text = format!("flush set {table} tunnel-peers\n");
    if !nodes.is_empty() {
        let list = nodes.into_iter().collect::<Vec<_>>().join(", ");
        text += &format!("add element {table} tunnel-peers {{ {list} }}\n");
    }
    text
}

/// One host port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    pub protocol: String,
    /// The address of the host at which alone it is.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

impl HostPort {
    /// Whether it is at addresses of this family.
    pub fn is_of(&self, family: Family) -> bool {
        self.host_ip.is_none_or(|ip| Family::of(ip) == family)
    }

    /// The end of the names of its map and set, and its key there.
    fn place(&self) -> (&'static str, String) {
        let port = format!("{} . {}", self.protocol.to_ascii_lowercase(), self.host_port);
        match self.host_ip.filter(|ip| !ip.is_unspecified()) {
            Some(ip) => ("-at", format!("{ip} . {port}")),
            None => ("", port),
        }
    }

    /// Leads the host port to a Pod; fails when another Pod has it.
    pub fn open(&self, pod: IpAddr) -> String {
        let ((end, key), table) = (self.place(), table_name(Family::of(pod)));
        format!(
            "create element {table} host-ports{end} {{ {key} : {pod} . {} }}\nadd element {table} open-ports{end} {{ {key} }}\n",
            self.container_port
        )
    }

    /// Leads it to the Pod that has it already.
    pub fn open_again(&self, pod: IpAddr) -> String {
        self.open(pod).replacen("create", "add", 1)
    }

    /// Closes what leads to a Pod of this family.
    pub fn close(&self, family: Family) -> String {
        let ((end, key), table) = (self.place(), table_name(family));
        format!(
            "delete element {table} host-ports{end} {{ {key} }}\ndelete element {table} open-ports{end} {{ {key} }}\n"
        )
    }
}
