//! nft text: the fixed part of the table, and changes of items as commands.

use std::fmt::Write;

use nft::{Family, Script};

use crate::{
    item::{Item, Map},
    node::Node,
};

/// The table of a family. Each network namespace has its own.
pub fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip skiff-proxy",
        Family::V6 => "ip6 skiff-proxy",
    }
}

/// Packets with this mark get the node's address as their source on the way out (upstream's mark, so that other
/// software that knows it keeps working).
pub const MASQUERADE_MARK: &str = "0x4000";
/// The bit of that mark, as configurations count it.
pub const MASQUERADE_BIT: i32 = 14;
/// The chain that sets it.
pub const MARK_CHAIN: &str = "mark-for-masquerade";

/// Ports with at most this number of endpoints share the chains of the fixed part, one for each number; others have their
/// own.
/// (nft writes rules over a map of such elements only together with the map, so these chains cannot come and go.)
pub const SHARED: usize = 64;

/// The chain that takes connections to addresses within the cluster that no Service has.
const UNALLOCATED: &str = "unallocated";

/// The rule of that chain; nothing while no range is known.
fn unallocated(node: &Node) -> String {
    let ranges: Vec<String> = node.service_cidrs.iter().map(ToString::to_string).collect();
    if ranges.is_empty() {
        String::new()
    } else {
        format!("{} daddr {{ {} }} drop", node.family.ip(), ranges.join(", "))
    }
}

/// The changes that lead the kernel from the ranges of cluster addresses that one state of the node knows to those of another.
pub fn ranges(before: &Node, now: &Node) -> Script {
    let mut script = Script::new(table(now.family));
    script.chain(UNALLOCATED, Some(&unallocated(before)), Some(&unallocated(now)));
    script
}

/// The chain that sends connections to one of `count` targets, of an address or of a node's port.
pub fn shared_chain(nodeport: bool, count: usize) -> String {
    format!("{}-{count}", if nodeport { "pick-nodeport" } else { "pick" })
}

/// The chain before `inner` that makes the node the source.
pub fn external_chain(inner: &str) -> String {
    format!("external-{inner}")
}

fn shared_chains(family: Family) -> String {
    let (mut text, ip) = (String::new(), family.ip());
    let by_address = format!("{ip} daddr . meta l4proto . th dport");
    for count in 1..=SHARED {
        for (nodeport, key, map) in
            [(false, by_address.as_str(), Map::Endpoints), (true, "meta l4proto . th dport", Map::NodePortEndpoints)]
        {
            let (name, map) = (shared_chain(nodeport, count), map.name());
            let external = external_chain(&name);
            // Writing to a text cannot fail.
            let _ = writeln!(
                text,
                "  chain {name} {{ dnat {ip} addr . port to {key} . numgen random mod {count} map @{map}; }}\n  \
                 chain {external} {{ jump {MARK_CHAIN}; goto {name}; }}"
            );
        }
    }
    text
}

/// Commands that leave an empty table with all hooks and maps, whatever was there before.
///
/// Dispatch is by one lookup in a verdict map, so the cost for a packet does not grow with the number of Services.
/// Only the first packet of a connection passes the nat chains. A packet that has no way through them is refused by the filter
/// chains, which come after (TCP by a reset: a local caller would only hear an ICMP message when it asks again, a second
/// later); load balancers' firewalls come before, because they ask for the address that was called.
pub fn fresh_table(node: &Node) -> String {
    let family = node.family;
    let (table, ip, address, loopback) = (table(family), family.ip(), family.address_type(), family.loopback());
    let services = format!("{ip} daddr . meta l4proto . th dport vmap @service-ips");
    let own = match node.node_ports.as_deref() {
        None => format!("{ip} daddr != {loopback}"),
        // No address of this family: none is in this range and not in it.
        Some([]) => format!("{ip} daddr {loopback} {ip} daddr != {loopback}"),
        Some(ranges) => {
            let ranges: std::collections::BTreeSet<String> = ranges.iter().map(ToString::to_string).collect();
            format!("{ip} daddr != {loopback} {ip} daddr {{ {} }}", ranges.into_iter().collect::<Vec<_>>().join(", "))
        }
    };
    let here = format!("fib daddr type local {own} meta l4proto . th dport");
    let refuse = format!("ct state new {ip} daddr . meta l4proto . th dport vmap @refused-ips");
    let firewall = format!("ct state new {ip} daddr . meta l4proto . th dport vmap @firewall");
    // A packet to an address that no Service has would leave the machine, for somebody out there to answer.
    let unknown = format!("ct state new {ip} daddr @cluster-ips goto refuse; ct state new jump {UNALLOCATED}");
    let unallocated = unallocated(node);
    let (mark, shared) = (MASQUERADE_MARK, shared_chains(family));
    // A caller of a cluster's address from outside the Pod network must hear the answer through this node.
    let off_cluster = match &node.pods {
        _ if node.masquerade_all => format!("{ip} daddr @cluster-ips jump {MARK_CHAIN};"),
        Some(pods) => format!("{ip} daddr @cluster-ips {} jump {MARK_CHAIN};", pods.no()),
        None => String::new(),
    };
    format!(
        "add table {table}
delete table {table}
table {table} {{
  comment \"rules for Kubernetes Services, written by skiff\"
  map service-ips {{ type {address} . inet_proto . inet_service : verdict; }}
  map service-nodeports {{ type inet_proto . inet_service : verdict; }}
  map endpoints {{ typeof {ip} daddr . meta l4proto . th dport . numgen random mod 2 : {ip} daddr . th dport; }}
  map nodeport-endpoints {{ typeof meta l4proto . th dport . numgen random mod 2 : {ip} daddr . th dport; }}
  map refused-ips {{ type {address} . inet_proto . inet_service : verdict; }}
  map refused-nodeports {{ type inet_proto . inet_service : verdict; }}
  map firewall {{ type {address} . inet_proto . inet_service : verdict; }}
  set cluster-ips {{ type {address}; }}
  set hairpins {{ type {address} . {address}; }}
  chain refuse {{ meta l4proto tcp reject with tcp reset; reject; }}
  chain discard {{ drop; }}
  chain {UNALLOCATED} {{ {unallocated}; }}
  chain {MARK_CHAIN} {{ meta mark set meta mark or {mark}; }}
{shared}  chain filter-prerouting {{ type filter hook prerouting priority dstnat - 10; {firewall}; }}
  chain filter-output-first {{ type filter hook output priority -110; {firewall}; }}
  chain nat-prerouting {{ type nat hook prerouting priority dstnat; {off_cluster} {services}; {here} vmap @service-nodeports; }}
  chain nat-output {{ type nat hook output priority -100; {off_cluster} {services}; {here} vmap @service-nodeports; }}
  chain nat-postrouting {{
    type nat hook postrouting priority srcnat;
    meta mark & {mark} != 0 meta mark set meta mark xor {mark} masquerade fully-random;
    ct status dnat {ip} saddr . {ip} daddr @hairpins masquerade fully-random;
  }}
  chain filter-input {{
    type filter hook input priority filter; {refuse}; ct state new {here} vmap @refused-nodeports;
  }}
  chain filter-forward {{ type filter hook forward priority filter; {refuse}; {unknown}; }}
  chain filter-output {{
    type filter hook output priority filter; {refuse}; ct state new {here} vmap @refused-nodeports; {unknown};
  }}
}}
"
    )
}

/// Adds what leads an item from one value to another; `None` is its absence.
pub fn change(script: &mut Script, item: &Item, before: Option<&str>, now: Option<&str>) {
    match item {
        Item::Element(map, key) => script.element(map.name(), key, before, now),
        Item::Chain(name) => script.chain(name, before, now),
        Item::Set(name) => script.set(name, before, now),
        // Of the other writer.
        Item::Line(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_service_has_lead_nowhere_once_their_ranges_are_known() {
        let bare = Node::default();
        let known = |ranges: &[&str]| Node {
            service_cidrs: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ..Node::default()
        };
        let (one, two) = (known(&["10.96.0.0/16"]), known(&["10.96.0.0/16", "10.200.0.0/24"]));
        let chain = |node: &Node| {
            let text = fresh_table(node);
            text.lines().find(|line| line.contains("chain unallocated")).unwrap().trim().to_owned()
        };
        assert_eq!(chain(&bare), "chain unallocated { ; }");
        assert_eq!(chain(&two), "chain unallocated { ip daddr { 10.96.0.0/16, 10.200.0.0/24 } drop; }");
        let flush = "flush chain ip skiff-proxy unallocated\n";
        let add = "add rule ip skiff-proxy unallocated ip daddr { 10.96.0.0/16 } drop\n";
        assert_eq!(ranges(&bare, &one).text(), format!("{flush}{add}"));
        assert_eq!(ranges(&two, &bare).text(), flush);
        assert!(ranges(&one, &one).is_empty());
    }
}
