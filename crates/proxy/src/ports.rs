//! The ports of a Service as they are to be reached: addresses, endpoints, policies. The one source of every writer of rules. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Service, ServicePort, ServiceSpec},
    discovery::v1::EndpointSlice,
};
use nft::Family;

use crate::{
    endpoints::{self, Target, Targets},
    item::{Door, Item, Right},
    node::Node,
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
    /// The addresses with protocol and port that the Service claims, as [`Item::address`] has them, each with its best right.
    pub addresses: BTreeMap<String, Right>,
    /// Since when the Service is there, in seconds of the epoch.
    pub created: i64,
    /// The targets that UDP flows through each door may have.
    pub flows: BTreeMap<Door, BTreeSet<Target>>,
    pub health: Option<HealthCheck>,
    /// Ports with a policy `Local`, internal and external, whose endpoints are all on other nodes.
    pub without_local: [usize; 2],
    /// How many endpoints its ports have, whether they take traffic or not.
    pub endpoints: usize,
}

/// A Service that this node leads packets to.
#[derive(Debug)]
pub struct Ports {
    /// `namespace/name`.
    pub service: String,
    pub created: i64,
    pub cluster_ips: BTreeSet<IpAddr>,
    pub all: Vec<Port>,
    pub health: Option<HealthCheck>,
}

/// A port of a Service, in one family of addresses.
#[derive(Debug)]
pub struct Port {
    /// As the Service names it; empty where it does not.
    pub name: String,
    /// In small letters.
    pub protocol: String,
    pub port: u16,
    pub node_port: Option<u16>,
    pub cluster_ips: BTreeSet<IpAddr>,
    pub external_ips: BTreeSet<IpAddr>,
    /// Addresses of load balancers that deliver packets as they are; a proxying one sends to the node's port itself.
    pub balancer_ips: BTreeSet<IpAddr>,
    pub internal_local: bool,
    pub external_local: bool,
    /// How long a client comes to the same endpoint again, in seconds; nothing where each connection goes to any.
    pub affinity: Option<i32>,
    /// The only ranges from which the load balancers' addresses take packets, if the Service names any.
    pub allowed: Option<Vec<IpNet>>,
    pub targets: Targets,
}

/// The labels with which a Service says that it is not this proxy's.
const NOT_OURS: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

/// A Service's ports, by its slices. Headless and ExternalName Services need nothing in the kernel.
pub fn of(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> Option<Ports> {
    let spec = service.spec.as_ref()?;
    let labelled = service.metadata.labels.iter().flat_map(|l| l.keys()).any(|k| NOT_OURS.contains(&k.as_str()));
    let cluster_ips = addresses(node, spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
    if labelled || cluster_ips.is_empty() || spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let plain = |name: &Option<String>| name.clone().filter(|name| is_plain(name));
    let (namespace, name) = (plain(&service.metadata.namespace)?, plain(&service.metadata.name)?);
    let check = spec.health_check_node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
    let check = check.filter(|_| spec.external_traffic_policy.as_deref() == Some("Local"));
    let port = |port| Port::new(service, spec, port, node, endpoints::targets(port, slices, node));
    Some(Ports {
        service: format!("{namespace}/{name}"),
        created: service.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        cluster_ips,
        all: spec.ports.iter().flatten().filter_map(port).collect(),
        health: check.map(|port| HealthCheck { port, local_endpoints: endpoints::local_ready(slices, node) }),
    })
}

/// Whether a name can stand in rules. An API server lets no other one in; one that does must not write rules by it.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

/// Those of the family that the rules are for.
fn addresses<'a>(node: &Node, texts: impl Iterator<Item = &'a String>) -> BTreeSet<IpAddr> {
    texts.filter_map(|text| node.address(text)).collect()
}

impl Ports {
    /// All that the Service needs, with what a writer makes of it.
    pub fn rules(&self, items: BTreeMap<Item, String>) -> ServiceRules {
        let mut rules = ServiceRules { items, created: self.created, health: self.health, ..ServiceRules::default() };
        for port in &self.all {
            port.claim(&mut rules.addresses);
            port.count_without_local(&mut rules.without_local);
            rules.endpoints += port.targets.known;
            port.remember_flows(&mut rules.flows);
        }
        rules
    }
}

impl Port {
    fn new(service: &Service, spec: &ServiceSpec, port: &ServicePort, node: &Node, targets: Targets) -> Option<Self> {
        let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
        let client = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        let seconds = client.and_then(|client| client.timeout_seconds).unwrap_or(10_800);
        let ingress = service.status.iter().filter_map(|status| status.load_balancer.as_ref());
        let delivered =
            ingress.flat_map(|b| b.ingress.iter().flatten()).filter(|i| i.ip_mode.as_deref() != Some("Proxy"));
        let ranges = || {
            let all = spec.load_balancer_source_ranges.iter().flatten().filter_map(|range| range.trim().parse().ok());
            all.filter(|range: &IpNet| Family::of(range.addr()) == node.family).map(|range| range.trunc()).collect()
        };
        let protocol = port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
        let name = port.name.clone().unwrap_or_default();
        if !is_plain(&name) || !matches!(protocol.as_str(), "tcp" | "udp" | "sctp") {
            return None;
        }
        Some(Port {
            name,
            protocol,
            port: u16::try_from(port.port).ok()?,
            node_port: port.node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0),
            cluster_ips: addresses(node, spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip)),
            external_ips: addresses(node, spec.external_ips.iter().flatten()),
            balancer_ips: addresses(node, delivered.filter_map(|ingress| ingress.ip.as_ref())),
            internal_local: is_local(&spec.internal_traffic_policy),
            external_local: is_local(&spec.external_traffic_policy),
            affinity: (spec.session_affinity.as_deref() == Some("ClientIP")).then_some(seconds),
            allowed: spec.load_balancer_source_ranges.as_ref().filter(|all| !all.is_empty()).map(|_| ranges()),
            targets,
        })
    }

    /// The targets of callers within the cluster.
    pub fn inside(&self) -> &[Target] {
        if self.internal_local { &self.targets.local } else { &self.targets.cluster }
    }

    /// The addresses for callers from outside.
    pub fn outside_ips(&self) -> BTreeSet<IpAddr> {
        self.external_ips.union(&self.balancer_ips).copied().collect()
    }

    /// The ways in for callers from outside.
    pub fn outside(&self) -> Vec<Door> {
        let ips = self.outside_ips().into_iter().map(|ip| Door::Address(ip, self.port));
        ips.chain(self.node_port.map(Door::NodePort)).collect()
    }

    /// An address with this port, as it stands in keys.
    pub fn at(&self, ip: IpAddr) -> String {
        format!("{ip} . {} . {}", self.protocol, self.port)
    }

    fn claim(&self, addresses: &mut BTreeMap<String, Right>) {
        let rights = [
            (&self.external_ips, Right::External),
            (&self.balancer_ips, Right::Balancer),
            (&self.cluster_ips, Right::Cluster),
        ];
        for (ips, right) in rights {
            addresses.extend(ips.iter().map(|ip| (self.at(*ip), right)));
        }
    }

    fn count_without_local(&self, counts: &mut [usize; 2]) {
        let nobody_here = self.targets.any && self.targets.local.is_empty();
        for (count, is_local) in counts.iter_mut().zip([self.internal_local, self.external_local]) {
            *count += usize::from(is_local && nobody_here);
        }
    }

    fn remember_flows(&self, flows: &mut BTreeMap<Door, BTreeSet<Target>>) {
        if self.protocol != "udp" {
            return;
        }
        for ip in &self.cluster_ips {
            flows.entry(Door::Address(*ip, self.port)).or_default().extend(self.inside());
        }
        for door in self.outside() {
            let flow = flows.entry(door).or_default();
            flow.extend(&self.targets.cluster);
            if self.external_local {
                flow.extend(&self.targets.local);
            }
        }
    }
}
