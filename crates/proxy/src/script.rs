//! nft text: the fixed part of the table, and the difference between two pictures as commands.

use std::fmt::Write;

use crate::picture::{Map, Picture, Set};

/// The table, with its family. Each network namespace has its own.
pub const TABLE: &str = "ip skiff-proxy";

/// Packets with this mark get the node's address as their source on the way out (upstream's mark, so that other
/// software that knows it keeps working).
pub const MASQUERADE_MARK: &str = "0x4000";

/// Commands that leave an empty table with all hooks and maps, whatever was there before.
///
/// Dispatch is by one lookup in a verdict map, so the cost for a packet does not grow with the number of Services.
/// Only the first packet of a connection passes the nat chains.
pub fn fresh_table() -> String {
    let services = "ip daddr . meta l4proto . th dport vmap @service-ips";
    let ports = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports";
    let refuse = "ct state new ip daddr . meta l4proto . th dport vmap @refused-ips";
    let refuse_ports = "ct state new fib daddr type local ip daddr != 127.0.0.0/8 \
                        meta l4proto . th dport vmap @refused-nodeports";
    let mark = MASQUERADE_MARK;
    format!(
        "add table {TABLE}
delete table {TABLE}
table {TABLE} {{
  comment \"rules for Kubernetes Services, written by skiff\"
  map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map service-nodeports {{ type inet_proto . inet_service : verdict; }}
  map refused-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map refused-nodeports {{ type inet_proto . inet_service : verdict; }}
  set hairpins {{ type ipv4_addr . ipv4_addr; }}
  chain refuse {{ reject; }}
  chain discard {{ drop; }}
  chain mark-for-masquerade {{ meta mark set meta mark or {mark}; }}
  chain nat-prerouting {{ type nat hook prerouting priority dstnat; {services}; {ports}; }}
  chain nat-output {{ type nat hook output priority -100; {services}; {ports}; }}
  chain nat-postrouting {{
    type nat hook postrouting priority srcnat;
    meta mark & {mark} != 0 meta mark set meta mark xor {mark} masquerade fully-random;
    ct status dnat ip saddr . ip daddr @hairpins masquerade fully-random;
  }}
  chain filter-input {{ type filter hook input priority -110; {refuse}; {refuse_ports}; }}
  chain filter-forward {{ type filter hook forward priority -110; {refuse}; }}
  chain filter-output {{ type filter hook output priority -110; {refuse}; {refuse_ports}; }}
}}
"
    )
}

/// One transaction in the making. Its parts run in the order in which they depend on each other: elements that go
/// (they name chains), chains and sets that come or change, elements that come, chains and sets that go.
#[derive(Debug, Default)]
pub struct Script {
    leaving_elements: String,
    sets: String,
    chains: String,
    rules: String,
    elements: String,
    leaving_chains: String,
    leaving_sets: String,
}

impl Script {
    /// Adds what leads from `old` to `new`, both pictures of the same Service.
    pub fn difference(&mut self, old: &Picture, new: &Picture) {
        for ((map, key), value) in &old.elements {
            if new.elements.get(&(*map, key.clone())) != Some(value) {
                self.element_out(*map, key);
            }
        }
        for ((map, key), value) in &new.elements {
            if old.elements.get(&(*map, key.clone())) != Some(value) {
                self.element_in(*map, key, value);
            }
        }
        for (name, rules) in &new.chains {
            match old.chains.get(name) {
                Some(had) if had == rules => {}
                had => self.chain_in(name, rules, had.is_some()),
            }
        }
        for name in old.chains.keys().filter(|n| !new.chains.contains_key(*n)) {
            // All chains that go are emptied before any of them is deleted, because they may jump to each other.
            let _ = writeln!(self.chains, "flush chain {TABLE} {name}");
            let _ = writeln!(self.leaving_chains, "delete chain {TABLE} {name}");
        }
        self.sets(old, new);
    }

    fn sets(&mut self, old: &Picture, new: &Picture) {
        for Set { name, timeout_seconds } in new.sets.difference(&old.sets) {
            let body = format!("type ipv4_addr; flags dynamic,timeout; timeout {timeout_seconds}s;");
            let _ = writeln!(self.sets, "add set {TABLE} {name} {{ {body} }}");
        }
        for Set { name, .. } in old.sets.difference(&new.sets) {
            let _ = writeln!(self.leaving_sets, "delete set {TABLE} {name}");
        }
    }

    fn chain_in(&mut self, name: &str, rules: &[String], exists: bool) {
        let _ = writeln!(self.chains, "add chain {TABLE} {name}");
        if exists {
            let _ = writeln!(self.chains, "flush chain {TABLE} {name}");
        }
        for rule in rules {
            let _ = writeln!(self.rules, "add rule {TABLE} {name} {rule}");
        }
    }

    fn element_in(&mut self, map: Map, key: &str, value: &str) {
        let separator = if value.is_empty() { "" } else { " : " };
        let _ = writeln!(self.elements, "add element {TABLE} {} {{ {key}{separator}{value} }}", map.name());
    }

    fn element_out(&mut self, map: Map, key: &str) {
        let _ = writeln!(self.leaving_elements, "delete element {TABLE} {} {{ {key} }}", map.name());
    }

    pub fn is_empty(&self) -> bool {
        self.text().is_empty()
    }

    pub fn text(&self) -> String {
        let parts = [
            &self.leaving_elements,
            &self.sets,
            &self.chains,
            &self.rules,
            &self.elements,
            &self.leaving_chains,
            &self.leaving_sets,
        ];
        parts.into_iter().map(String::as_str).collect()
    }
}
