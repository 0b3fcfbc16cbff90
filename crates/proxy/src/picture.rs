//! The complete picture of what one Service needs in the kernel: chains, map elements and sets. Pure.
//!
//! A Service port with endpoints is one chain with one rule, which picks the endpoints in turn; with session affinity it
//! is a chain per endpoint that remembers its clients. Without endpoints, connections are refused rather than lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{Service, ServicePort, ServiceSpec},
    discovery::v1::{Endpoint, EndpointSlice},
};

/// This node, as far as traffic policies ask.
#[derive(Debug, Clone, Default)]
pub struct Node {
    pub name: String,
}

/// The maps and sets of the table that Services put elements into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Map {
    ServiceIps,
    NodePorts,
    RefusedIps,
    RefusedNodePorts,
    Hairpins,
}

impl Map {
    pub fn name(self) -> &'static str {
        match self {
            Map::ServiceIps => "service-ips",
            Map::NodePorts => "service-nodeports",
            Map::RefusedIps => "refused-ips",
            Map::RefusedNodePorts => "refused-nodeports",
            Map::Hairpins => "hairpins",
        }
    }
}

/// A set that remembers the clients of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set {
    pub name: String,
    pub timeout_seconds: i32,
}

/// What one Service needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Picture {
    /// Rules by chain.
    pub chains: BTreeMap<String, Vec<String>>,
    /// Element value by map and key; plain sets have empty values.
    pub elements: BTreeMap<(Map, String), String>,
    pub sets: BTreeSet<Set>,
}

impl Picture {
    /// The picture without the elements that `taken` holds already; says whether some were left out.
    pub fn without_claimed(&self, taken: &mut BTreeSet<(Map, String)>) -> (Picture, bool) {
        let mut mine = self.clone();
        mine.elements.retain(|id, _| taken.insert(id.clone()) || id.0 == Map::Hairpins);
        let refused = mine.elements.len() < self.elements.len();
        (mine, refused)
    }
}

/// Where traffic can go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    ip: Ipv4Addr,
    port: i32,
    local: bool,
}

/// Renders one Service from its slices. Headless and ExternalName Services need nothing in the kernel.
pub fn render(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> Picture {
    let mut picture = Picture::default();
    let Some(spec) = &service.spec else { return picture };
    let cluster_ips = ipv4(spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
    if cluster_ips.is_empty() || spec.type_.as_deref() == Some("ExternalName") {
        return picture;
    }
    for port in spec.ports.iter().flatten() {
        let targets = targets(port, slices, node);
        PortPicture { service, spec, port, picture: &mut picture }.render(&cluster_ips, &targets);
    }
    picture
}

fn ipv4<'a>(addresses: impl Iterator<Item = &'a String>) -> BTreeSet<Ipv4Addr> {
    addresses.filter_map(|a| a.parse().ok()).collect()
}

/// The endpoints that take traffic for a port: the ready ones or, when none is, those that still serve while they end.
fn targets(port: &ServicePort, slices: &[Arc<EndpointSlice>], node: &Node) -> Vec<Target> {
    let find = |usable: fn(&Endpoint) -> bool| {
        let mut found = BTreeSet::new();
        for slice in slices.iter().filter(|s| s.address_type == "IPv4") {
            let wanted = port.name.as_deref().unwrap_or("");
            let matching = slice.ports.iter().flatten().find(|p| p.name.as_deref().unwrap_or("") == wanted);
            let Some(number) = matching.and_then(|p| p.port) else { continue };
            for endpoint in slice.endpoints.iter().filter(|e| usable(e)) {
                let local = endpoint.node_name.as_deref() == Some(&node.name);
                let addresses = endpoint.addresses.iter().filter_map(|a| a.parse().ok());
                found.extend(addresses.map(|ip| Target { ip, port: number, local }));
            }
        }
        found.into_iter().collect::<Vec<_>>()
    };
    let ready = find(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true));
    if !ready.is_empty() {
        return ready;
    }
    find(|e| e.conditions.as_ref().is_some_and(|c| c.serving.unwrap_or(false) && c.terminating.unwrap_or(false)))
}

/// A short stable hash for names (FNV-1a), so that long Service names fit into the kernel's limit.
fn hash(text: &str) -> String {
    format!("{:010x}", api::hash::fnv_64(text.as_bytes()) >> 24)
}

struct PortPicture<'a> {
    service: &'a Service,
    spec: &'a ServiceSpec,
    port: &'a ServicePort,
    picture: &'a mut Picture,
}

impl PortPicture<'_> {
    fn protocol(&self) -> String {
        self.port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase()
    }

    /// `namespace/name/protocol/port`, readable in `nft list ruleset`.
    fn id(&self) -> String {
        let meta = &self.service.metadata;
        let port = self.port.name.clone().unwrap_or_else(|| self.port.port.to_string());
        let namespace = meta.namespace.as_deref().unwrap_or("");
        format!("{namespace}/{}/{}/{port}", meta.name.as_deref().unwrap_or(""), self.protocol())
    }

    fn chain_name(&self, purpose: &str, extra: &str) -> String {
        let id = self.id();
        let name = format!("{purpose}-{}-{id}{extra}", hash(&format!("{id}{extra}")));
        name.chars().take(120).collect()
    }

    fn render(mut self, cluster_ips: &BTreeSet<Ipv4Addr>, targets: &[Target]) {
        let local: Vec<Target> = targets.iter().copied().filter(|t| t.local).collect();
        let internal_local = self.spec.internal_traffic_policy.as_deref() == Some("Local");
        let external_local = self.spec.external_traffic_policy.as_deref() == Some("Local");
        for target in targets {
            let pair = format!("{} . {}", target.ip, target.ip);
            self.picture.elements.insert((Map::Hairpins, pair), String::new());
        }
        let all = self.chain("service", targets);
        let only_local = if internal_local || external_local { self.chain("local", &local) } else { None };

        let inside = if internal_local { &only_local } else { &all };
        for ip in cluster_ips {
            self.reach(Map::ServiceIps, &format!("{ip} . "), self.port.port, inside, targets.is_empty());
        }
        let outside = if external_local { only_local } else { self.external(&all) };
        for ip in self.external_ips() {
            self.reach(Map::ServiceIps, &format!("{ip} . "), self.port.port, &outside, targets.is_empty());
        }
        if let Some(node_port) = self.port.node_port.filter(|p| *p > 0) {
            self.reach(Map::NodePorts, "", node_port, &outside, targets.is_empty());
        }
    }

    fn external_ips(&self) -> BTreeSet<Ipv4Addr> {
        let ingress = self.service.status.iter().filter_map(|s| s.load_balancer.as_ref());
        let balancer = ingress.flat_map(|b| b.ingress.iter().flatten()).filter_map(|i| i.ip.as_ref());
        ipv4(self.spec.external_ips.iter().flatten().chain(balancer))
    }

    /// Leads an address and port to a chain; without one, refuses (no endpoint at all) or discards (none on this node).
    fn reach(&mut self, map: Map, address: &str, port: i32, chain: &Option<String>, nowhere: bool) {
        let key = format!("{address}{} . {port}", self.protocol());
        let refused = if map == Map::NodePorts { Map::RefusedNodePorts } else { Map::RefusedIps };
        let (map, verdict) = match chain {
            Some(chain) => (map, format!("goto {chain}")),
            None if nowhere => (refused, "goto refuse".to_owned()),
            None => (refused, "goto discard".to_owned()),
        };
        self.picture.elements.insert((map, key), verdict);
    }

    /// The chain that traffic from outside the cluster takes: its source becomes the node, so that answers come back.
    fn external(&mut self, all: &Option<String>) -> Option<String> {
        let all = all.as_ref()?;
        if self.external_ips().is_empty() && self.port.node_port.unwrap_or(0) == 0 {
            return Some(all.clone());
        }
        let name = self.chain_name("external", "");
        let rules = vec!["jump mark-for-masquerade".to_owned(), format!("goto {all}")];
        self.picture.chains.insert(name.clone(), rules);
        Some(name)
    }

    /// The chain that sends a connection to one of the targets; `None` when there are none.
    fn chain(&mut self, purpose: &str, targets: &[Target]) -> Option<String> {
        if targets.is_empty() {
            return None;
        }
        let name = self.chain_name(purpose, "");
        let rules = if self.spec.session_affinity.as_deref() == Some("ClientIP") {
            self.sticky(targets)
        } else {
            vec![self.in_turn(targets)]
        };
        self.picture.chains.insert(name.clone(), rules);
        Some(name)
    }

    fn in_turn(&self, targets: &[Target]) -> String {
        let protocol = self.protocol();
        match targets {
            [one] => format!("meta l4proto {protocol} dnat to {}:{}", one.ip, one.port),
            many => {
                let list: Vec<String> =
                    many.iter().enumerate().map(|(i, t)| format!("{i} : {} . {}", t.ip, t.port)).collect();
                let list = list.join(", ");
                format!("meta l4proto {protocol} dnat ip addr . port to numgen inc mod {} map {{ {list} }}", many.len())
            }
        }
    }

    fn sticky(&mut self, targets: &[Target]) -> Vec<String> {
        let config = self.spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
        let timeout_seconds = config.and_then(|c| c.timeout_seconds).unwrap_or(10_800);
        let mut known = Vec::new();
        let mut choices = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            let extra = format!("/{}/{}", target.ip, target.port);
            let set = self.chain_name("clients", &extra);
            let chain = self.chain_name("endpoint", &extra);
            let rules = vec![format!("update @{set} {{ ip saddr }}"), self.in_turn(&[*target])];
            self.picture.chains.insert(chain.clone(), rules);
            known.push(format!("ip saddr @{set} goto {chain}"));
            choices.push(format!("{i} : goto {chain}"));
            self.picture.sets.insert(Set { name: set, timeout_seconds });
        }
        known.push(format!("numgen random mod {} vmap {{ {} }}", choices.len(), choices.join(", ")));
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    fn service(json: &str) -> Service {
        serde_json::from_str(&format!(r#"{{"metadata":{{"namespace":"default","name":"web"}},"spec":{json}}}"#))
            .unwrap()
    }

    fn slice(endpoints: &str) -> Vec<Arc<EndpointSlice>> {
        let json = format!(
            r#"{{"addressType":"IPv4","metadata":{{"name":"web-1"}},"ports":[{{"name":"http","port":8080}}],"endpoints":[{endpoints}]}}"#
        );
        vec![Arc::new(serde_json::from_str(&json).unwrap())]
    }

    fn ready(ip: &str, node: &str) -> String {
        format!(r#"{{"addresses":["{ip}"],"nodeName":"{node}","conditions":{{"ready":true}}}}"#)
    }

    fn picture(spec: &str, endpoints: &[String]) -> Picture {
        render(&service(spec), &slice(&endpoints.join(",")), &Node { name: "n1".into() })
    }

    const PORT: &str =
        r#""clusterIPs":["10.96.0.7"],"clusterIP":"10.96.0.7","ports":[{"name":"http","port":80,"nodePort":30080}]"#;

    fn element(p: &Picture, map: Map, key: &str) -> Option<String> {
        p.elements.get(&(map, key.to_owned())).cloned()
    }

    #[test]
    fn endpoints_are_taken_in_turn() {
        let p = picture(&format!("{{{PORT}}}"), &[ready("10.244.0.2", "n1"), ready("10.244.0.3", "n2")]);
        let verdict = element(&p, Map::ServiceIps, "10.96.0.7 . tcp . 80").unwrap();
        let chain = verdict.strip_prefix("goto ").unwrap();
        assert_eq!(
            p.chains[chain],
            [
                "meta l4proto tcp dnat ip addr . port to numgen inc mod 2 map { 0 : 10.244.0.2 . 8080, 1 : 10.244.0.3 . 8080 }"
            ]
        );
        let outside = element(&p, Map::NodePorts, "tcp . 30080").unwrap();
        assert_eq!(p.chains[outside.strip_prefix("goto ").unwrap()][0], "jump mark-for-masquerade");
    }

    #[test]
    fn without_endpoints_connections_are_refused() {
        let p = picture(&format!("{{{PORT}}}"), &[]);
        assert_eq!(element(&p, Map::RefusedIps, "10.96.0.7 . tcp . 80").as_deref(), Some("goto refuse"));
        assert_eq!(element(&p, Map::RefusedNodePorts, "tcp . 30080").as_deref(), Some("goto refuse"));
        assert!(p.chains.is_empty());
    }

    #[test]
    fn a_local_policy_keeps_to_this_node() {
        let spec = format!(r#"{{{PORT},"externalTrafficPolicy":"Local"}}"#);
        let p = picture(&spec, &[ready("10.244.1.3", "n2")]);
        assert_eq!(element(&p, Map::RefusedNodePorts, "tcp . 30080").as_deref(), Some("goto discard"));
        let p = picture(&spec, &[ready("10.244.1.3", "n2"), ready("10.244.0.9", "n1")]);
        let chain = element(&p, Map::NodePorts, "tcp . 30080").unwrap();
        assert_eq!(p.chains[chain.strip_prefix("goto ").unwrap()], ["meta l4proto tcp dnat to 10.244.0.9:8080"]);
    }

    #[test]
    fn ending_endpoints_serve_when_no_other_does() {
        let ending = r#"{"addresses":["10.244.0.4"],"conditions":{"ready":false,"serving":true,"terminating":true}}"#;
        let p = picture(&format!("{{{PORT}}}"), &[ending.to_owned()]);
        assert!(element(&p, Map::ServiceIps, "10.96.0.7 . tcp . 80").is_some());
        let p = picture(&format!("{{{PORT}}}"), &[ending.to_owned(), ready("10.244.0.2", "n1")]);
        assert!(!format!("{:?}", p.chains).contains("10.244.0.4"));
    }

    #[test]
    fn affinity_remembers_clients_per_endpoint() {
        let spec = format!(
            r#"{{{PORT},"sessionAffinity":"ClientIP","sessionAffinityConfig":{{"clientIP":{{"timeoutSeconds":5}}}}}}"#
        );
        let p = picture(&spec, &[ready("10.244.0.2", "n1"), ready("10.244.0.3", "n2")]);
        assert_eq!(p.sets.len(), 2);
        assert!(p.sets.iter().all(|s| s.timeout_seconds == 5));
    }

    #[test]
    fn headless_services_need_nothing() {
        assert_eq!(
            picture(r#"{"clusterIP":"None","ports":[{"name":"http","port":80}]}"#, &[ready("10.1.1.1", "n1")]),
            Picture::default()
        );
    }

    #[test]
    fn a_difference_touches_only_what_changed() {
        let one = picture(&format!("{{{PORT}}}"), &[ready("10.244.0.2", "n1")]);
        let two = picture(&format!("{{{PORT}}}"), &[ready("10.244.0.2", "n1"), ready("10.244.0.3", "n2")]);
        let mut script = Script::default();
        script.difference(&one, &two);
        let text = script.text();
        assert!(text.contains("flush chain") && text.contains("numgen inc mod 2"), "{text}");
        assert!(!text.contains("service-ips"), "the address still leads to the same chain: {text}");
        let mut same = Script::default();
        same.difference(&two, &two);
        assert!(same.is_empty());
    }
}
