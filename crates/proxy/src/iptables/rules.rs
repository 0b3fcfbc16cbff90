//! The chains and lines of one Service. Pure.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use sha2::{Digest, Sha256};

use crate::{
    endpoints::Target,
    item::{Door, Item, Shared},
    node::{FromPods, Interface, Node},
    ports::{self, Port, ServiceRules},
};

/// The chain whose packets get the node as their source on the way out.
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// The beginnings of the names of the chains that Services have of their own.
pub const OWN_CHAINS: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", ENDPOINT];
const ENDPOINT: &str = "KUBE-SEP-";

/// A line of a Service's chain without what a large cluster goes without, on the way to an endpoint and at it: the comment, as with
/// upstream, and a match of the protocol that says no more than the `-p` after it.
pub fn terse<'a>(chain: &str, line: &'a str) -> &'a str {
    let commented = line.strip_prefix("-m comment --comment \"").and_then(|line| line.split_once("\" "));
    match commented {
        Some((comment, rest)) if chain.starts_with(ENDPOINT) || comment.contains(" -> ") => {
            let is_match = |before: &str| before.strip_prefix("-m ").is_some_and(|name| !name.contains(' '));
            rest.find(" -p ").filter(|at| is_match(&rest[..*at])).map_or(rest, |at| &rest[at + 1..])
        }
        _ => line,
    }
}

/// Renders one Service from its slices.
pub fn render(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> ServiceRules {
    let Some(ports) = ports::of(service, slices, node) else { return ServiceRules::default() };
    let mut items = BTreeMap::new();
    for port in &ports.all {
        PortLines::new(&ports.service, port, node, &mut items).render();
    }
    if let Some(check) = ports.health {
        let (name, port) = (&ports.service, check.port);
        let line =
            format!("-m comment --comment \"{name} health check node port\" -m tcp -p tcp --dport {port} -j ACCEPT");
        items.insert(Item::Line(Shared::HealthPorts, format!("tcp . {port}")), line);
    }
    ports.rules(items)
}

/// The end of a chain's name: the first letters of what it is about, hashed and written in base 32.
fn hash(text: &str) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text.as_bytes());
    let bits: u128 = digest[..10].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte));
    (0..16).rev().map(|place| char::from(LETTERS[(bits >> (place * 5)) as usize & 31])).collect()
}

/// The condition that a packet comes from the cluster's own Pods, or that it does not.
fn from_pods(pods: &FromPods, yes: bool) -> String {
    let not = if yes { "" } else { "! " };
    match pods {
        FromPods::Range(range) => format!("{not}-s {range}"),
        FromPods::Interface(name) => format!("{not}-i {}", pattern(name)),
    }
}

fn pattern(name: &Interface) -> String {
    name.name().replace('*', "+")
}

struct PortLines<'a> {
    ways: &'a Port,
    /// `namespace/name:port`, as comments have it.
    id: String,
    hash: String,
    node: &'a Node,
    items: &'a mut BTreeMap<Item, String>,
}

impl<'a> PortLines<'a> {
    fn new(service: &str, ways: &'a Port, node: &'a Node, items: &'a mut BTreeMap<Item, String>) -> Self {
        let id = if ways.name.is_empty() { service.to_owned() } else { format!("{service}:{}", ways.name) };
        PortLines { hash: hash(&format!("{id}{}", ways.protocol)), ways, id, node, items }
    }

    fn render(mut self) {
        let ways = self.ways;
        self.endpoints();
        let inside = if ways.internal_local { self.name("SVL") } else { self.name("SVC") };
        for ip in &ways.cluster_ips {
            if ways.inside().is_empty() {
                self.refuse(Shared::Refused, Door::Address(*ip, ways.port), ways.internal_local);
            } else {
                self.lead(*ip, "cluster IP", &inside);
            }
        }
        let outside = if ways.external_local { &ways.targets.local } else { &ways.targets.cluster };
        for door in ways.outside() {
            if outside.is_empty() {
                self.refuse(Shared::RefusedOutside, door, ways.external_local);
            }
        }
        // With endpoints elsewhere alone, callers within the cluster still have a way.
        if !ways.targets.cluster.is_empty() || !outside.is_empty() {
            self.outside(!outside.is_empty());
        }
    }

    fn name(&self, sort: &str) -> String {
        format!("KUBE-{sort}-{}", self.hash)
    }

    fn comment(&self, more: &str) -> String {
        format!("-m comment --comment \"{}{more}\"", self.id)
    }

    /// The condition that a packet goes through a door.
    fn to(&self, door: Door) -> String {
        let protocol = &self.ways.protocol;
        match door {
            Door::Address(ip, port) => format!("-m {protocol} -p {protocol} -d {ip} --dport {port}"),
            Door::NodePort(port) => format!("-m {protocol} -p {protocol} --dport {port}"),
        }
    }

    fn key(&self, door: Door) -> String {
        match door {
            Door::Address(ip, _) => self.ways.at(ip),
            Door::NodePort(port) => format!("{} . {port}", self.ways.protocol),
        }
    }

    fn line(&mut self, shared: Shared, door: Door, line: String) {
        let key = self.key(door);
        self.items.insert(Item::Line(shared, key), line);
    }

    fn lead(&mut self, ip: IpAddr, sort: &str, chain: &str) {
        let door = Door::Address(ip, self.ways.port);
        let line = format!("{} {} -j {chain}", self.comment(&format!(" {sort}")), self.to(door));
        self.line(Shared::Services, door, line);
    }

    /// Refuses where there is no endpoint at all, discards where there is none on this node.
    fn refuse(&mut self, shared: Shared, door: Door, is_local: bool) {
        let elsewhere = is_local && self.ways.targets.any;
        let (why, verdict) =
            if elsewhere { (" has no local endpoints", "DROP") } else { (" has no endpoints", self.rejection()) };
        let here = if matches!(door, Door::NodePort(_)) { "-m addrtype --dst-type LOCAL " } else { "" };
        let line = format!("{} {here}{} -j {verdict}", self.comment(why), self.to(door));
        self.line(shared, door, line);
    }

    /// A local caller would hear an ICMP message only when it asks again, a second later; TCP has an answer of its own.
    fn rejection(&self) -> &'static str {
        if self.ways.protocol == "tcp" { "REJECT --reject-with tcp-reset" } else { "REJECT" }
    }

    /// The chains that lead to endpoints: those of the cluster, those of this node, and one for each endpoint.
    fn endpoints(&mut self) {
        let ways = self.ways;
        let uses_cluster = !ways.internal_local || !ways.outside().is_empty();
        let uses_local = ways.internal_local || ways.external_local && !ways.outside().is_empty();
        let sorts =
            [("SVC", &ways.targets.cluster, uses_cluster, false), ("SVL", &ways.targets.local, uses_local, true)];
        for (sort, targets, used, is_local) in sorts {
            if !used || targets.is_empty() {
                continue;
            }
            let mut lines = if is_local == ways.internal_local { self.masquerade_inside() } else { Vec::new() };
            lines.extend(self.in_turn(targets));
            self.chain(self.name(sort), &lines);
            for target in targets {
                self.endpoint(*target);
            }
        }
    }

    /// A caller of a cluster's address from outside the Pod network must hear the answer through this node.
    fn masquerade_inside(&self) -> Vec<String> {
        let condition = match &self.node.pods {
            _ if self.node.masquerade_all => String::new(),
            Some(pods) => format!("{} ", from_pods(pods, false)),
            None => return Vec::new(),
        };
        let comment = self.comment(" cluster IP");
        let to = |ip: &IpAddr| self.to(Door::Address(*ip, self.ways.port));
        self.ways.cluster_ips.iter().map(|ip| format!("{comment} {condition}{} -j {MARK_MASQ}", to(ip))).collect()
    }

    fn endpoint_name(&self, target: Target) -> String {
        let Target { ip, port } = target;
        let text = format!("{}{}{}", self.id, self.ways.protocol, SocketAddr::new(ip, port));
        format!("{ENDPOINT}{}", hash(&text))
    }

    /// Clients that are remembered come to their endpoint again, others to any.
    fn in_turn(&self, targets: &[Target]) -> Vec<String> {
        let to = |target: &Target| {
            let comment = self.comment(&format!(" -> {}", SocketAddr::new(target.ip, target.port)));
            (comment, self.endpoint_name(*target))
        };
        let again = self.ways.affinity.iter().flat_map(|seconds| {
            targets.iter().map(to).map(move |(comment, chain)| {
                format!("{comment} -m recent --name {chain} --rcheck --seconds {seconds} --reap -j {chain}")
            })
        });
        let any = targets.iter().enumerate().map(|(i, target)| {
            let (comment, chain) = to(target);
            let left = targets.len() - i;
            if left == 1 {
                return format!("{comment} -j {chain}");
            }
            let chance = 1.0 / left as f64;
            format!("{comment} -m statistic --mode random --probability {chance:.10} -j {chain}")
        });
        again.chain(any).collect()
    }

    fn endpoint(&mut self, target: Target) {
        let (chain, protocol, comment) = (self.endpoint_name(target), &self.ways.protocol, self.comment(""));
        let remember = self.ways.affinity.map(|_| format!("-m recent --name {chain} --set ")).unwrap_or_default();
        let to = SocketAddr::new(target.ip, target.port);
        // A Pod that is its own endpoint would answer itself past the node.
        let lines = [
            format!("{comment} -s {} -j {MARK_MASQ}", target.ip),
            format!("{comment} {remember}-m {protocol} -p {protocol} -j DNAT --to-destination {to}"),
        ];
        self.chain(chain, &lines);
    }

    fn chain(&mut self, name: String, lines: &[String]) {
        self.items.insert(Item::Chain(name), lines.join("\n"));
    }

    /// The ways in for callers from outside. `has_targets`: whether such a caller has an endpoint.
    fn outside(&mut self, has_targets: bool) {
        let ways = self.ways;
        if ways.outside().is_empty() {
            return;
        }
        let external = self.name("EXT");
        let lines = self.external(has_targets);
        self.chain(external.clone(), &lines);
        for ip in &ways.external_ips {
            self.lead(*ip, "external IP", &external);
        }
        let balancer = self.firewall(&external).unwrap_or_else(|| external.clone());
        for ip in &ways.balancer_ips {
            self.lead(*ip, "loadbalancer IP", &balancer);
        }
        if let Some(port) = ways.node_port {
            let door = Door::NodePort(port);
            let line = format!("{} {} -j {external}", self.comment(""), self.to(door));
            self.line(Shared::NodePorts, door, line);
        }
    }

    /// With the policy `Local` traffic from outside stays on this node and keeps its source. Traffic from the cluster itself takes
    /// the cluster's way, as if it had gone out to a load balancer and come back.
    fn external(&self, has_targets: bool) -> Vec<String> {
        let (cluster, local) = (self.name("SVC"), self.name("SVL"));
        if !self.ways.external_local {
            let why = format!("masquerade traffic for {} external destinations", self.id);
            return vec![format!("-m comment --comment \"{why}\" -j {MARK_MASQ}"), format!("-j {cluster}")];
        }
        let mut lines = Vec::new();
        if !self.ways.targets.cluster.is_empty() {
            if let Some(pods) = &self.node.pods {
                let why = format!("pod traffic for {} external destinations", self.id);
                lines.push(format!("-m comment --comment \"{why}\" {} -j {cluster}", from_pods(pods, true)));
            }
            for (verb, chain) in [("masquerade", MARK_MASQ), ("route", &cluster)] {
                let why = format!("{verb} LOCAL traffic for {} external destinations", self.id);
                lines.push(format!("-m comment --comment \"{why}\" -m addrtype --src-type LOCAL -j {chain}"));
            }
        }
        if has_targets {
            lines.push(format!("-j {local}"));
        }
        lines
    }

    /// Has load balancers' addresses take packets from some ranges alone, and returns the chain that says so.
    fn firewall(&mut self, external: &str) -> Option<String> {
        let (ways, chain) = (self.ways, self.name("FW"));
        let allowed = ways.allowed.as_ref().filter(|_| !ways.balancer_ips.is_empty())?;
        let comment = self.comment(" loadbalancer IP");
        let mut lines: Vec<String> =
            allowed.iter().map(|range| format!("{comment} -s {range} -j {external}")).collect();
        // Where the balancer's address is one of this node's, its own requests carry it as their source.
        if self.node.ip.is_some_and(|own| allowed.iter().any(|range| range.contains(&own))) {
            lines.extend(ways.balancer_ips.iter().map(|ip| format!("{comment} -s {ip} -j {external}")));
        }
        let why = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.id);
        lines.push(format!("-m comment --comment \"{why}\""));
        self.chain(chain.clone(), &lines);
        for ip in &ways.balancer_ips {
            let door = Door::Address(*ip, ways.port);
            let why = self.comment(&format!(" traffic not accepted by {chain}"));
            let line = format!("{why} {} -j DROP", self.to(door));
            self.line(Shared::Firewall, door, line);
        }
        Some(chain)
    }
}
