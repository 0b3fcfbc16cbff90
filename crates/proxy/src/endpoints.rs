//! Which endpoints take traffic for a Service port: the ready ones, those that still serve while they end when no other
//! does, near ones where hints say so, and this node's own where a policy says `Local`. Pure.
//! Upstream counterpart: pkg/proxy/topology.go.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::{
    core::v1::ServicePort,
    discovery::v1::{Endpoint, EndpointSlice},
};

use crate::node::Node;

/// Where a connection can go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub ip: IpAddr,
    pub port: u16,
}

/// The facts about a target.
#[derive(Debug, Clone, Default)]
struct Facts {
    ready: bool,
    /// Takes traffic although it is about to end.
    last_resort: bool,
    local: bool,
    zones: Vec<String>,
    nodes: Vec<String>,
}

/// The targets of one port, each list in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// For traffic that may go anywhere in the cluster.
    pub cluster: Vec<Target>,
    /// For traffic that must stay on this node.
    pub local: Vec<Target>,
    /// The targets of either list that are on this node.
    pub here: Vec<Target>,
    /// Whether anything in the cluster takes traffic, wherever it is.
    pub any: bool,
    /// How many endpoints the port has, whether they take traffic or not.
    pub known: usize,
}

/// How many ready endpoints of a Service this node has, for health checks of load balancers.
pub fn local_ready(slices: &[Arc<EndpointSlice>], node: &Node) -> usize {
    let mut ips: Vec<&String> = slices
        .iter()
        .filter(|s| s.address_type == node.family.name())
        .flat_map(|s| &s.endpoints)
        .filter(|e| is_ready(e) && e.node_name.as_deref() == Some(&node.name))
        .flat_map(|e| &e.addresses)
        .collect();
    ips.sort_unstable();
    ips.dedup();
    ips.len()
}

/// Sorts the endpoints of a port.
pub fn targets(port: &ServicePort, slices: &[Arc<EndpointSlice>], node: &Node) -> Targets {
    let all = facts(port, slices, node);
    let pick = |usable: &dyn Fn(&Facts) -> bool| -> Vec<Target> {
        all.iter().filter(|(_, facts)| usable(facts)).map(|(target, _)| *target).collect()
    };
    let or = |first: Vec<Target>, second: &dyn Fn(&Facts) -> bool| if first.is_empty() { pick(second) } else { first };
    let near = nearness(all.values(), node);
    let cluster = or(pick(&|f| f.ready && near.admits(f, node)), &|f| f.last_resort);
    let local = or(pick(&|f| f.ready && f.local), &|f| f.last_resort && f.local);
    let here = all.iter().filter(|(t, f)| f.local && (cluster.contains(t) || local.contains(t)));
    Targets {
        here: here.map(|(target, _)| *target).collect(),
        any: all.values().any(|f| f.ready || f.last_resort),
        known: all.len(),
        cluster,
        local,
    }
}

fn facts(port: &ServicePort, slices: &[Arc<EndpointSlice>], node: &Node) -> BTreeMap<Target, Facts> {
    let mut all: BTreeMap<Target, Facts> = BTreeMap::new();
    for slice in slices.iter().filter(|s| s.address_type == node.family.name()) {
        let wanted = port.name.as_deref().unwrap_or("");
        let matching = slice.ports.iter().flatten().find(|p| p.name.as_deref().unwrap_or("") == wanted);
        let number = matching.and_then(|p| p.port).and_then(|p| u16::try_from(p).ok());
        let Some(number) = number else { continue };
        for endpoint in &slice.endpoints {
            let fresh = facts_of(endpoint, node);
            for ip in endpoint.addresses.iter().filter_map(|a| node.address(a)) {
                // An endpoint that moves from one slice to another is in both for a moment.
                let held = all.entry(Target { ip, port: number }).or_default();
                held.ready |= fresh.ready;
                held.local |= fresh.local;
                held.last_resort = (held.last_resort || fresh.last_resort) && !held.ready;
                held.zones.extend(fresh.zones.iter().cloned());
                held.nodes.extend(fresh.nodes.iter().cloned());
            }
        }
    }
    all
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
}

fn facts_of(endpoint: &Endpoint, node: &Node) -> Facts {
    let conditions = endpoint.conditions.as_ref();
    let serving = conditions.and_then(|c| c.serving).unwrap_or(true);
    let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
    let hints = endpoint.hints.as_ref();
    Facts {
        ready: is_ready(endpoint),
        last_resort: !is_ready(endpoint) && serving && terminating,
        local: endpoint.node_name.as_deref() == Some(&node.name),
        zones: hints.into_iter().flat_map(|h| h.for_zones.iter().flatten()).map(|z| z.name.clone()).collect(),
        nodes: hints.into_iter().flat_map(|h| h.for_nodes.iter().flatten()).map(|n| n.name.clone()).collect(),
    }
}

/// How far hints let traffic go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Near {
    Node,
    Zone,
    Anywhere,
}

impl Near {
    fn admits(self, facts: &Facts, node: &Node) -> bool {
        match self {
            Near::Node => facts.nodes.contains(&node.name),
            Near::Zone => facts.zones.contains(&node.zone),
            Near::Anywhere => true,
        }
    }
}

/// Hints count only when every ready endpoint has them and one of them names this node or zone: an endpoint that the
/// hints forget must not go without traffic, and a node that they forget not without endpoints.
fn nearness<'a>(all: impl Iterator<Item = &'a Facts>, node: &Node) -> Near {
    let ready: Vec<&Facts> = all.filter(|f| f.ready).collect();
    let admitted = |near: Near| ready.iter().any(|f| near.admits(f, node));
    if ready.iter().all(|f| !f.nodes.is_empty()) && admitted(Near::Node) {
        return Near::Node;
    }
    if !node.zone.is_empty() && ready.iter().all(|f| !f.zones.is_empty()) && admitted(Near::Zone) {
        return Near::Zone;
    }
    Near::Anywhere
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoints as words `last-number-of-the-address:state@node`, with `/zone` and `=node` for hints. States: `r`eady,
    /// `e`nding but serving, `d`ead.
    fn check(endpoints: &str, cluster: &str, local: &str, any: bool) {
        let endpoint = |word: &str| {
            let (word, hinted_node) = word.split_once('=').unwrap_or((word, ""));
            let (word, zone) = word.split_once('/').unwrap_or((word, ""));
            let (word, node) = word.split_once('@').unwrap();
            let (number, state) = word.split_once(':').unwrap();
            let conditions = match state {
                "r" => json::json!({"ready": true}),
                "e" => json::json!({"ready": false, "serving": true, "terminating": true}),
                _ => json::json!({"ready": false, "serving": false}),
            };
            let hint = |name: &str| if name.is_empty() { json::json!([]) } else { json::json!([{"name": name}]) };
            json::json!({"addresses": [format!("10.0.0.{number}")], "nodeName": node, "conditions": conditions,
                "hints": {"forZones": hint(zone), "forNodes": hint(hinted_node)}})
        };
        let list: Vec<_> = endpoints.split_whitespace().map(endpoint).collect();
        let slice = json::json!({"metadata": {}, "addressType": "IPv4", "endpoints": list, "ports": [{"port": 80}]});
        let node = Node { name: "me".into(), zone: "z1".into(), ..Node::default() };
        let found = targets(&ServicePort::default(), &[Arc::new(json::from_value(slice).unwrap())], &node);
        let show = |list: &[Target]| {
            list.iter()
                .map(|t| t.ip.to_string().rsplit('.').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            (show(&found.cluster), show(&found.local), found.any),
            (cluster.into(), local.into(), any),
            "{endpoints}"
        );
    }

    #[test]
    fn readiness_and_place() {
        check("", "", "", false);
        check("1:r@me 2:r@you", "1 2", "1", true);
        check("1:r@you", "1", "", true);
        check("1:d@me", "", "", false);
        check("1:e@me 2:r@you", "2", "1", true);
        check("1:e@me 2:e@you 3:d@me", "1 2", "1", true);
        check("1:r@me 1:e@me", "1", "1", true);
    }

    #[test]
    fn hints() {
        check("1:r@a/z1 2:r@b/z2", "1", "", true);
        check("1:r@a/z1 2:r@b", "1 2", "", true);
        check("1:r@a/z2 2:r@b/z3", "1 2", "", true);
        check("1:r@a/z1=me 2:r@b/z1=you", "1", "", true);
        check("1:r@a/z1=you 2:r@b/z2=you", "1", "", true);
        check("1:d@a/z1 2:r@b/z2", "2", "", true);
        check("1:e@a/z1 2:e@b/z2", "1 2", "", true);
    }
}
