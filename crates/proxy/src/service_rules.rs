//! The rules of one Service: all that it needs in the kernel, as map elements, chains and sets. Pure.
//!
//! Most ports need elements only: one that leads the address to the chain for its number of endpoints, which all Services
//! share, and one for each endpoint. So ten thousand Services are ten thousand elements, not ten thousand chains. Ports
//! with session affinity or an external policy `Local` have chains of their own. Without endpoints, connections are
//! refused rather than lost.
//! Upstream counterpart: pkg/proxy/nftables/proxier.go.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};

pub use crate::ports::{HealthCheck, ServiceRules};
use crate::{
    endpoints::{Target, Targets},
    item::{Door, Item, Map},
    node::Node,
    ports::{self, Port},
    script::{MARK_CHAIN, SHARED, external_chain, shared_chain},
};

/// Renders one Service from its slices.
pub fn render(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> ServiceRules {
    let Some(ports) = ports::of(service, slices, node) else { return ServiceRules::default() };
    let mut items = BTreeMap::new();
    for ip in &ports.cluster_ips {
        items.insert(Item::Element(Map::ClusterIps, ip.to_string()), String::new());
    }
    for port in &ports.all {
        PortRules::new(&ports.service, port, node, &mut items).render();
    }
    ports.rules(items)
}

/// A short stable hash for names (FNV-1a), so that long Service names fit into the kernel's limit.
fn hash(text: &str) -> String {
    format!("{:010x}", api::rules::hash::fnv_64(text.as_bytes()) >> 24)
}

struct PortRules<'a> {
    ways: &'a Port,
    /// `namespace/name/protocol/port`, readable in `nft list ruleset`.
    id: String,
    node: &'a Node,
    items: &'a mut BTreeMap<Item, String>,
}

impl<'a> PortRules<'a> {
    fn new(service: &str, ways: &'a Port, node: &'a Node, items: &'a mut BTreeMap<Item, String>) -> Self {
        let name = if ways.name.is_empty() { ways.port.to_string() } else { ways.name.clone() };
        PortRules { id: format!("{service}/{}/{name}", ways.protocol), ways, node, items }
    }

    fn render(mut self) {
        let ways = self.ways;
        for target in &ways.targets.here {
            let pair = format!("{} . {}", target.ip, target.ip);
            self.items.insert(Item::Element(Map::Hairpins, pair), String::new());
        }
        for ip in &ways.cluster_ips {
            let purpose = if ways.internal_local { "local" } else { "service" };
            self.plain(Door::Address(*ip, ways.port), purpose, ways.inside(), false);
        }
        for door in ways.outside() {
            if ways.external_local {
                self.keeping_the_source(door);
            } else {
                self.plain(door, "service", &ways.targets.cluster, true);
            }
        }
        self.firewall();
    }

    /// Leads a door to targets. `masquerade`: the source becomes the node, so that answers come back through it.
    fn plain(&mut self, door: Door, purpose: &str, targets: &[Target], masquerade: bool) {
        let Some(mut chain) = self.chain(door, purpose, targets) else { return self.refuse(door) };
        if masquerade {
            let inner = chain;
            chain = external_chain(&inner);
            if self.items.contains_key(&Item::Chain(inner.clone())) {
                self.add_chain(&chain, &[format!("jump {MARK_CHAIN}"), format!("goto {inner}")]);
            }
        }
        self.lead(door, &chain);
    }

    /// The external policy `Local`: traffic from outside stays on this node and keeps its source. Traffic from the
    /// cluster itself takes the cluster's way, as if it had gone out to a load balancer and come back.
    fn keeping_the_source(&mut self, door: Door) {
        let Targets { cluster, local, .. } = &self.ways.targets;
        let anywhere = self.chain(door, "service", cluster);
        let here = self.chain(door, "local", local);
        let mut rules = Vec::new();
        if let Some(anywhere) = &anywhere {
            if let Some(pods) = &self.node.pods {
                rules.push(format!("{} goto {anywhere}", pods.yes()));
            }
            rules.push(format!("fib saddr type local jump {MARK_CHAIN}"));
            rules.push(format!("fib saddr type local goto {anywhere}"));
        }
        match &here {
            Some(here) => rules.push(format!("goto {here}")),
            None => self.refuse(door),
        }
        if !rules.is_empty() {
            let sort = if matches!(door, Door::NodePort(_)) { "/nodeport" } else { "" };
            let chain = self.own_chain("external", sort);
            self.add_chain(&chain, &rules);
            self.lead(door, &chain);
        }
    }

    fn key(&self, door: Door) -> String {
        match door {
            Door::Address(ip, _) => self.ways.at(ip),
            Door::NodePort(port) => format!("{} . {port}", self.ways.protocol),
        }
    }

    fn lead(&mut self, door: Door, chain: &str) {
        let map = if matches!(door, Door::NodePort(_)) { Map::NodePorts } else { Map::ServiceIps };
        let key = self.key(door);
        self.items.insert(Item::Element(map, key), format!("goto {chain}"));
    }

    /// Refuses when there is no endpoint at all, discards when there is none on this node.
    fn refuse(&mut self, door: Door) {
        let map = if matches!(door, Door::NodePort(_)) { Map::RefusedNodePorts } else { Map::RefusedIps };
        let verdict = if self.ways.targets.any { "goto discard" } else { "goto refuse" };
        let key = self.key(door);
        self.items.insert(Item::Element(map, key), verdict.to_owned());
    }

    /// The chain that sends a connection through this door to one of the targets; `None` when there are none.
    fn chain(&mut self, door: Door, purpose: &str, targets: &[Target]) -> Option<String> {
        if targets.is_empty() {
            return None;
        }
        if let Some(seconds) = self.ways.affinity {
            return Some(self.sticky(purpose, targets, seconds));
        }
        if targets.len() > SHARED || self.needs_own_chains(door) {
            let name = self.own_chain(purpose, "");
            let rule = self.in_turn(targets);
            self.add_chain(&name, &[rule]);
            return Some(name);
        }
        let nodeport = matches!(door, Door::NodePort(_));
        let map = if nodeport { Map::NodePortEndpoints } else { Map::Endpoints };
        let key = self.key(door);
        for (i, target) in targets.iter().enumerate() {
            let value = format!("{} . {}", target.ip, target.port);
            self.items.insert(Item::Element(map, format!("{key} . {i}")), value);
        }
        Some(shared_chain(nodeport, targets.len()))
    }

    /// With two sorts of targets behind one door, the door does not say which is meant.
    fn needs_own_chains(&self, door: Door) -> bool {
        let cluster_ip = matches!(door, Door::Address(ip, _) if !self.ways.outside_ips().contains(&ip));
        self.ways.external_local && !cluster_ip
    }

    fn own_chain(&self, purpose: &str, extra: &str) -> String {
        let id = &self.id;
        let name = format!("{purpose}-{}-{id}{extra}", hash(&format!("{id}{extra}")));
        // nft takes no colon in a name; the hash tells addresses apart.
        name.chars().take(120).map(|c| if c == ':' { '.' } else { c }).collect()
    }

    fn add_chain(&mut self, name: &str, rules: &[String]) {
        self.items.insert(Item::Chain(name.to_owned()), rules.join("\n"));
    }

    fn in_turn(&self, targets: &[Target]) -> String {
        let (protocol, ip) = (&self.ways.protocol, self.node.family.ip());
        match targets {
            [one] => format!("meta l4proto {protocol} dnat to {}", SocketAddr::new(one.ip, one.port)),
            many => {
                let list: Vec<String> =
                    many.iter().enumerate().map(|(i, t)| format!("{i} : {} . {}", t.ip, t.port)).collect();
                let (count, list) = (many.len(), list.join(", "));
                format!("meta l4proto {protocol} dnat {ip} addr . port to numgen random mod {count} map {{ {list} }}")
            }
        }
    }

    /// Each endpoint remembers its clients; new ones go to any.
    fn sticky(&mut self, purpose: &str, targets: &[Target], seconds: i32) -> String {
        let name = self.own_chain(purpose, "");
        let (mut rules, mut choices) = (Vec::new(), Vec::new());
        let (ip, address_type) = (self.node.family.ip(), self.node.family.address_type());
        for (i, target) in targets.iter().enumerate() {
            let extra = format!("/{}/{}", target.ip, target.port);
            // A set's timeout cannot be changed, so it is part of its name.
            let set = self.own_chain("clients", &format!("{extra}/{seconds}"));
            let chain = self.own_chain("endpoint", &format!("{extra}/{seconds}"));
            let to_endpoint = [format!("update @{set} {{ {ip} saddr }}"), self.in_turn(&[*target])];
            self.add_chain(&chain, &to_endpoint);
            rules.push(format!("{ip} saddr @{set} goto {chain}"));
            choices.push(format!("{i} : goto {chain}"));
            let declaration = format!("type {address_type}; flags dynamic,timeout; timeout {seconds}s;");
            self.items.insert(Item::Set(set), declaration);
        }
        rules.push(format!("numgen random mod {} vmap {{ {} }}", choices.len(), choices.join(", ")));
        self.add_chain(&name, &rules);
        name
    }

    /// Drops what comes to a load balancer's address from where it may not.
    fn firewall(&mut self) {
        let (ways, balancers) = (self.ways, &self.ways.balancer_ips);
        let Some(ranges) = ways.allowed.as_ref().filter(|_| !balancers.is_empty()) else { return };
        let mut allowed: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        // Where the balancer's address is one of this node's, its own requests carry it as their source.
        if self.node.ip.is_some_and(|own| ranges.iter().any(|r| r.contains(&own))) {
            allowed.extend(balancers.iter().map(IpAddr::to_string));
        }
        let rule = match allowed.as_slice() {
            [] => "drop".to_owned(),
            allowed => format!("{} saddr != {{ {} }} drop", self.node.family.ip(), allowed.join(", ")),
        };
        let chain = self.own_chain("firewall", "");
        self.add_chain(&chain, &[rule]);
        for ip in balancers {
            let key = self.key(Door::Address(*ip, ways.port));
            self.items.insert(Item::Element(Map::Firewall, key), format!("goto {chain}"));
        }
    }
}

#[cfg(test)]
#[path = "service_rules_tests.rs"]
mod tests;
