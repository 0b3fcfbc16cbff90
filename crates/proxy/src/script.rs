//! nft text: the fixed part of the table, and changes of items as commands in an order that the kernel takes.

use std::{collections::BTreeMap, fmt::Write};

use ipnet::Ipv4Net;

use crate::item::{Item, Map};

/// The table, with its family. Each network namespace has its own.
pub const TABLE: &str = "ip skiff-proxy";

/// Packets with this mark get the node's address as their source on the way out (upstream's mark, so that other
/// software that knows it keeps working).
pub const MASQUERADE_MARK: &str = "0x4000";
/// The chain that sets it.
pub const MARK_CHAIN: &str = "mark-for-masquerade";

/// Ports with at most this number of endpoints share the chains of the fixed part, one for each number; others have their
/// own.
/// (nft writes rules over a map of such elements only together with the map, so these chains cannot come and go.)
pub const SHARED: usize = 64;

/// The chain that sends connections to one of `count` targets, of an address or of a node's port.
pub fn shared_chain(nodeport: bool, count: usize) -> String {
    format!("{}-{count}", if nodeport { "pick-nodeport" } else { "pick" })
}

/// The chain before `inner` that makes the node the source.
pub fn external_chain(inner: &str) -> String {
    format!("external-{inner}")
}

fn shared_chains() -> String {
    let mut text = String::new();
    for count in 1..=SHARED {
        for (nodeport, key, map) in [
            (false, "ip daddr . meta l4proto . th dport", Map::Endpoints),
            (true, "meta l4proto . th dport", Map::NodePortEndpoints),
        ] {
            let (name, map) = (shared_chain(nodeport, count), map.name());
            let external = external_chain(&name);
            // Writing to a text cannot fail.
            let _ = writeln!(
                text,
                "  chain {name} {{ dnat ip addr . port to {key} . numgen random mod {count} map @{map}; }}\n  \
                 chain {external} {{ jump {MARK_CHAIN}; goto {name}; }}"
            );
        }
    }
    text
}

/// Elements in one command. More make nft's parser slow, fewer make many commands.
const BATCH: usize = 500;

/// Commands that leave an empty table with all hooks and maps, whatever was there before.
///
/// Dispatch is by one lookup in a verdict map, so the cost for a packet does not grow with the number of Services.
/// Only the first packet of a connection passes the nat chains. What has no way through them is refused by the filter
/// chains, which come after (TCP by a reset: a local caller would only hear an ICMP message when it asks again, a second
/// later); load balancers' firewalls come before, because they ask for the address that was called.
pub fn fresh_table(pods: Option<Ipv4Net>) -> String {
    let services = "ip daddr . meta l4proto . th dport vmap @service-ips";
    let here = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport";
    let refuse = "ct state new ip daddr . meta l4proto . th dport vmap @refused-ips";
    let firewall = "ct state new ip daddr . meta l4proto . th dport vmap @firewall";
    let unknown = "ct state new ip daddr @cluster-ips goto refuse";
    let (mark, shared) = (MASQUERADE_MARK, shared_chains());
    // A caller of a cluster's address from outside the Pod network must hear the answer through this node.
    let off_cluster =
        pods.map_or(String::new(), |pods| format!("ip daddr @cluster-ips ip saddr != {pods} jump {MARK_CHAIN};"));
    format!(
        "add table {TABLE}
delete table {TABLE}
table {TABLE} {{
  comment \"rules for Kubernetes Services, written by skiff\"
  map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map service-nodeports {{ type inet_proto . inet_service : verdict; }}
  map endpoints {{ typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport; }}
  map nodeport-endpoints {{ typeof meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport; }}
  map refused-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map refused-nodeports {{ type inet_proto . inet_service : verdict; }}
  map firewall {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  set cluster-ips {{ type ipv4_addr; }}
  set hairpins {{ type ipv4_addr . ipv4_addr; }}
  chain refuse {{ meta l4proto tcp reject with tcp reset; reject; }}
  chain discard {{ drop; }}
  chain {MARK_CHAIN} {{ meta mark set meta mark or {mark}; }}
{shared}  chain filter-prerouting {{ type filter hook prerouting priority dstnat - 10; {firewall}; }}
  chain filter-output-first {{ type filter hook output priority -110; {firewall}; }}
  chain nat-prerouting {{ type nat hook prerouting priority dstnat; {off_cluster} {services}; {here} vmap @service-nodeports; }}
  chain nat-output {{ type nat hook output priority -100; {off_cluster} {services}; {here} vmap @service-nodeports; }}
  chain nat-postrouting {{
    type nat hook postrouting priority srcnat;
    meta mark & {mark} != 0 meta mark set meta mark xor {mark} masquerade fully-random;
    ct status dnat ip saddr . ip daddr @hairpins masquerade fully-random;
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

/// One transaction in the making. Its parts run in the order in which they depend on each other: elements that go
/// (they name chains), sets and chains that come or change, elements that come, chains and sets that go.
#[derive(Debug, Default)]
pub struct Script {
    leaving: BTreeMap<Map, Vec<String>>,
    sets: String,
    chains: String,
    rules: String,
    coming: BTreeMap<Map, Vec<String>>,
    leaving_chains: String,
    leaving_sets: String,
}

impl Script {
    /// Adds what leads an item from one value to another; `None` is its absence.
    pub fn change(&mut self, item: &Item, before: Option<&str>, now: Option<&str>) {
        if before == now {
            return;
        }
        match item {
            Item::Element(map, key) => self.element(*map, key, before, now),
            Item::Chain(name) => self.chain(name, before, now),
            Item::Set(name) => self.set(name, before, now),
        }
    }

    fn element(&mut self, map: Map, key: &str, before: Option<&str>, now: Option<&str>) {
        if before.is_some() {
            self.leaving.entry(map).or_default().push(key.to_owned());
        }
        match now {
            Some("") => self.coming.entry(map).or_default().push(key.to_owned()),
            Some(value) => self.coming.entry(map).or_default().push(format!("{key} : {value}")),
            None => {}
        }
    }

    fn chain(&mut self, name: &str, before: Option<&str>, now: Option<&str>) {
        // All chains that go are emptied before any of them is deleted, because they may jump to each other. Writing to a
        // text cannot fail.
        let _ = match before {
            None => writeln!(self.chains, "add chain {TABLE} {name}"),
            Some(_) => writeln!(self.chains, "flush chain {TABLE} {name}"),
        };
        for rule in now.iter().flat_map(|rules| rules.lines()) {
            let _ = writeln!(self.rules, "add rule {TABLE} {name} {rule}");
        }
        if now.is_none() {
            let _ = writeln!(self.leaving_chains, "delete chain {TABLE} {name}");
        }
    }

    fn set(&mut self, name: &str, before: Option<&str>, now: Option<&str>) {
        let _ = match (before, now) {
            (None, Some(declaration)) => writeln!(self.sets, "add set {TABLE} {name} {{ {declaration} }}"),
            (Some(_), None) => writeln!(self.leaving_sets, "delete set {TABLE} {name}"),
            // The declaration is part of a set's name, so it never changes.
            _ => Ok(()),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.text().is_empty()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        elements(&mut text, "delete", &self.leaving);
        for part in [&self.sets, &self.chains, &self.rules] {
            text.push_str(part);
        }
        elements(&mut text, "add", &self.coming);
        text.push_str(&self.leaving_chains);
        text.push_str(&self.leaving_sets);
        text
    }
}

fn elements(text: &mut String, verb: &str, by_map: &BTreeMap<Map, Vec<String>>) {
    for (map, elements) in by_map {
        for batch in elements.chunks(BATCH) {
            let _ = writeln!(text, "{verb} element {TABLE} {} {{ {} }}", map.name(), batch.join(", "));
        }
    }
}
