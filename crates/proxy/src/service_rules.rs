//! The rules of one Service: all that it needs in the kernel, as map elements, chains and sets. Pure.
//!
//! Most ports need elements only: one that leads the address to the chain for its number of endpoints, which all Services
//! share, and one for each endpoint. So ten thousand Services are ten thousand elements, not ten thousand chains. Ports
//! with session affinity or an external policy `Local` have chains of their own. Without endpoints, connections are
//! refused rather than lost.
//! Upstream counterpart: pkg/proxy/nftables/proxier.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use ipnet::Ipv4Net;
use k8s_openapi::api::{
    core::v1::{Service, ServicePort, ServiceSpec},
    discovery::v1::EndpointSlice,
};

use crate::{
    endpoints::{self, Target, Targets},
    item::{Door, Item, Map},
    node::Node,
    script::{MARK_CHAIN, SHARED, external_chain, shared_chain},
};

/// The port that a load balancer asks, and what it hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    pub local_endpoints: usize,
}

/// All that one Service needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceRules {
    pub items: BTreeMap<Item, String>,
    /// The targets that UDP flows through each door may have.
    pub flows: BTreeMap<Door, BTreeSet<Target>>,
    pub health: Option<HealthCheck>,
}

/// The labels with which a Service says that it is not this proxy's.
const NOT_OURS: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

/// Renders one Service from its slices. Headless and ExternalName Services need nothing in the kernel.
pub fn render(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> ServiceRules {
    let mut rules = ServiceRules::default();
    let Some(spec) = &service.spec else { return rules };
    let labelled = service.metadata.labels.iter().flat_map(|l| l.keys()).any(|k| NOT_OURS.contains(&k.as_str()));
    let cluster_ips = ipv4(spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
    if labelled || cluster_ips.is_empty() || spec.type_.as_deref() == Some("ExternalName") {
        return rules;
    }
    for ip in &cluster_ips {
        rules.items.insert(Item::Element(Map::ClusterIps, ip.to_string()), String::new());
    }
    for port in spec.ports.iter().flatten() {
        let targets = endpoints::targets(port, slices, node);
        if let Some(ways) = PortRules::new(service, spec, port, node, &targets, &mut rules) {
            ways.render(&cluster_ips);
        }
    }
    let check = spec.health_check_node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
    if spec.external_traffic_policy.as_deref() == Some("Local") {
        rules.health = check.map(|port| HealthCheck { port, local_endpoints: endpoints::local_ready(slices, node) });
    }
    rules
}

fn ipv4<'a>(addresses: impl Iterator<Item = &'a String>) -> BTreeSet<Ipv4Addr> {
    addresses.filter_map(|a| api::rules::ip::parse_v4(a)).collect()
}

/// A short stable hash for names (FNV-1a), so that long Service names fit into the kernel's limit.
fn hash(text: &str) -> String {
    format!("{:010x}", api::rules::hash::fnv_64(text.as_bytes()) >> 24)
}

struct PortRules<'a> {
    service: &'a Service,
    spec: &'a ServiceSpec,
    protocol: String,
    port: u16,
    node_port: Option<u16>,
    /// `namespace/name/protocol/port`, readable in `nft list ruleset`.
    id: String,
    node: &'a Node,
    targets: &'a Targets,
    of_service: &'a mut ServiceRules,
}

impl<'a> PortRules<'a> {
    fn new(
        service: &'a Service,
        spec: &'a ServiceSpec,
        port: &'a ServicePort,
        node: &'a Node,
        targets: &'a Targets,
        of_service: &'a mut ServiceRules,
    ) -> Option<Self> {
        let protocol = port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
        let name = port.name.clone().unwrap_or_else(|| port.port.to_string());
        let meta = &service.metadata;
        let (namespace, service_name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
        Some(PortRules {
            id: format!("{namespace}/{service_name}/{protocol}/{name}"),
            port: u16::try_from(port.port).ok()?,
            node_port: port.node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0),
            service,
            spec,
            protocol,
            node,
            targets,
            of_service,
        })
    }

    fn render(mut self, cluster_ips: &BTreeSet<Ipv4Addr>) {
        for target in &self.targets.here {
            let pair = format!("{} . {}", target.ip, target.ip);
            self.of_service.items.insert(Item::Element(Map::Hairpins, pair), String::new());
        }
        let targets = self.targets;
        let internal_local = self.spec.internal_traffic_policy.as_deref() == Some("Local");
        for ip in cluster_ips {
            let inside = if internal_local { &targets.local } else { &targets.cluster };
            let purpose = if internal_local { "local" } else { "service" };
            self.plain(Door::Address(*ip, self.port), purpose, inside, false);
        }
        let external_local = self.spec.external_traffic_policy.as_deref() == Some("Local");
        let outside = self.external_ips().into_iter().map(|ip| Door::Address(ip, self.port));
        for door in outside.chain(self.node_port.map(Door::NodePort)).collect::<Vec<_>>() {
            if external_local {
                self.keeping_the_source(door);
            } else {
                self.plain(door, "service", &targets.cluster, true);
            }
        }
        self.firewall();
    }

    /// Addresses of load balancers that deliver packets as they are; a proxying one sends to the node's port itself.
    fn balancer_ips(&self) -> BTreeSet<Ipv4Addr> {
        let ingress = self.service.status.iter().filter_map(|s| s.load_balancer.as_ref());
        let delivered =
            ingress.flat_map(|b| b.ingress.iter().flatten()).filter(|i| i.ip_mode.as_deref() != Some("Proxy"));
        ipv4(delivered.filter_map(|i| i.ip.as_ref()))
    }

    fn external_ips(&self) -> BTreeSet<Ipv4Addr> {
        ipv4(self.spec.external_ips.iter().flatten()).into_iter().chain(self.balancer_ips()).collect()
    }

    /// Leads a door to targets. `masquerade`: the source becomes the node, so that answers come back through it.
    fn plain(&mut self, door: Door, purpose: &str, targets: &[Target], masquerade: bool) {
        self.flow(door, targets);
        let Some(mut chain) = self.chain(door, purpose, targets) else { return self.refuse(door) };
        if masquerade {
            let inner = chain;
            chain = external_chain(&inner);
            if self.of_service.items.contains_key(&Item::Chain(inner.clone())) {
                self.add_chain(&chain, &[format!("jump {MARK_CHAIN}"), format!("goto {inner}")]);
            }
        }
        self.lead(door, &chain);
    }

    /// The external policy `Local`: traffic from outside stays on this node and keeps its source. Traffic from the
    /// cluster itself takes the cluster's way, as if it had gone out to a load balancer and come back.
    fn keeping_the_source(&mut self, door: Door) {
        let Targets { cluster, local, .. } = self.targets;
        self.flow(door, cluster);
        self.flow(door, local);
        let anywhere = self.chain(door, "service", cluster);
        let here = self.chain(door, "local", local);
        let mut rules = Vec::new();
        if let Some(anywhere) = &anywhere {
            if let Some(pods) = self.node.pods {
                rules.push(format!("ip saddr {pods} goto {anywhere}"));
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
            Door::Address(ip, port) => format!("{ip} . {} . {port}", self.protocol),
            Door::NodePort(port) => format!("{} . {port}", self.protocol),
        }
    }

    fn lead(&mut self, door: Door, chain: &str) {
        let map = if matches!(door, Door::NodePort(_)) { Map::NodePorts } else { Map::ServiceIps };
        let key = self.key(door);
        self.of_service.items.insert(Item::Element(map, key), format!("goto {chain}"));
    }

    /// Refuses when there is no endpoint at all, discards when there is none on this node.
    fn refuse(&mut self, door: Door) {
        let map = if matches!(door, Door::NodePort(_)) { Map::RefusedNodePorts } else { Map::RefusedIps };
        let verdict = if self.targets.any { "goto discard" } else { "goto refuse" };
        let key = self.key(door);
        self.of_service.items.insert(Item::Element(map, key), verdict.to_owned());
    }

    fn flow(&mut self, door: Door, targets: &[Target]) {
        if self.protocol == "udp" {
            self.of_service.flows.entry(door).or_default().extend(targets);
        }
    }

    /// The chain that sends a connection through this door to one of the targets; `None` when there are none.
    fn chain(&mut self, door: Door, purpose: &str, targets: &[Target]) -> Option<String> {
        if targets.is_empty() {
            return None;
        }
        if self.spec.session_affinity.as_deref() == Some("ClientIP") {
            return Some(self.sticky(purpose, targets));
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
            self.of_service.items.insert(Item::Element(map, format!("{key} . {i}")), value);
        }
        Some(shared_chain(nodeport, targets.len()))
    }

    /// With two sorts of targets behind one door, the door does not say which is meant.
    fn needs_own_chains(&self, door: Door) -> bool {
        let cluster_ip = matches!(door, Door::Address(ip, _) if !self.external_ips().contains(&ip));
        self.spec.external_traffic_policy.as_deref() == Some("Local") && !cluster_ip
    }

    fn own_chain(&self, purpose: &str, extra: &str) -> String {
        let id = &self.id;
        let name = format!("{purpose}-{}-{id}{extra}", hash(&format!("{id}{extra}")));
        name.chars().take(120).collect()
    }

    fn add_chain(&mut self, name: &str, rules: &[String]) {
        self.of_service.items.insert(Item::Chain(name.to_owned()), rules.join("\n"));
    }

    fn in_turn(&self, targets: &[Target]) -> String {
        let protocol = &self.protocol;
        match targets {
            [one] => format!("meta l4proto {protocol} dnat to {}:{}", one.ip, one.port),
            many => {
                let list: Vec<String> =
                    many.iter().enumerate().map(|(i, t)| format!("{i} : {} . {}", t.ip, t.port)).collect();
                let (count, list) = (many.len(), list.join(", "));
                format!("meta l4proto {protocol} dnat ip addr . port to numgen random mod {count} map {{ {list} }}")
            }
        }
    }

    /// Each endpoint remembers its clients; new ones go to any.
    fn sticky(&mut self, purpose: &str, targets: &[Target]) -> String {
        let config = self.spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
        let seconds = config.and_then(|c| c.timeout_seconds).unwrap_or(10_800);
        let name = self.own_chain(purpose, "");
        let mut rules = Vec::new();
        let mut choices = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            let extra = format!("/{}/{}", target.ip, target.port);
            // A set's timeout cannot be changed, so it is part of its name.
            let set = self.own_chain("clients", &format!("{extra}/{seconds}"));
            let chain = self.own_chain("endpoint", &format!("{extra}/{seconds}"));
            let to_endpoint = [format!("update @{set} {{ ip saddr }}"), self.in_turn(&[*target])];
            self.add_chain(&chain, &to_endpoint);
            rules.push(format!("ip saddr @{set} goto {chain}"));
            choices.push(format!("{i} : goto {chain}"));
            let declaration = format!("type ipv4_addr; flags dynamic,timeout; timeout {seconds}s;");
            self.of_service.items.insert(Item::Set(set), declaration);
        }
        rules.push(format!("numgen random mod {} vmap {{ {} }}", choices.len(), choices.join(", ")));
        self.add_chain(&name, &rules);
        name
    }

    /// Drops what comes to a load balancer's address from where it may not.
    fn firewall(&mut self) {
        let ranges: Vec<Ipv4Net> =
            self.spec.load_balancer_source_ranges.iter().flatten().filter_map(|r| r.trim().parse().ok()).collect();
        let balancers = self.balancer_ips();
        if self.spec.load_balancer_source_ranges.iter().flatten().next().is_none() || balancers.is_empty() {
            return;
        }
        let mut allowed: Vec<String> = ranges.iter().map(|r| r.trunc().to_string()).collect();
        // Where the balancer's address is one of this node's, its own requests carry it as their source.
        if self.node.ip.is_some_and(|own| ranges.iter().any(|r| r.contains(&own))) {
            allowed.extend(balancers.iter().map(Ipv4Addr::to_string));
        }
        let rule = match allowed.as_slice() {
            [] => "drop".to_owned(),
            allowed => format!("ip saddr != {{ {} }} drop", allowed.join(", ")),
        };
        let chain = self.own_chain("firewall", "");
        self.add_chain(&chain, &[rule]);
        for ip in balancers {
            let key = self.key(Door::Address(ip, self.port));
            self.of_service.items.insert(Item::Element(Map::Firewall, key), format!("goto {chain}"));
        }
    }
}

#[cfg(test)]
#[path = "service_rules_tests.rs"]
mod tests;
