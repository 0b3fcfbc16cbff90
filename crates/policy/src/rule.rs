//! Policies as rules: whom each selects, and what it says in each direction. Pure.
//!
//! A rule of the API (some peers, some ports) becomes one rule of ours for each peer and each sort of ports. NetworkPolicies are
//! read here, those of administrators in [`admin`](crate::admin). A part of a stored NetworkPolicy that cannot be understood
//! allows nothing.

use std::ops::RangeInclusive;

use api::rules::selector::Selector;
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    group::{Group, GroupName, Groups, Namespaces, Selected},
    kind::Tier,
    ports::{Listed, Ports},
    traffic::{Direction, Protocol},
};

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    Anyone,
    Group(GroupName),
    Block { within: IpNet, except: Vec<IpNet> },
}

/// The consequence of a rule for the connections that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
    /// The rest of the tier is skipped.
    Pass,
}

/// A rule about one peer and some ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clause {
    pub action: Action,
    pub peer: Peer,
    pub ports: Ports,
}

impl Clause {
    pub const DENY_ALL: Clause = Clause { action: Action::Deny, peer: Peer::Anyone, ports: Ports::Any };

    /// A clause for each peer and each sort of ports.
    pub fn each(action: Action, peers: &[Peer], ports: &[Ports]) -> Vec<Clause> {
        let pairs = peers.iter().flat_map(|peer| ports.iter().map(move |ports| (peer, ports)));
        pairs.map(|(peer, ports)| Clause { action, peer: peer.clone(), ports: ports.clone() }).collect()
    }
}

/// A policy, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub tier: Tier,
    /// Policies of a tier are asked in this order. NetworkPolicies add up, so theirs is the same.
    pub priority: i64,
    /// The Pods that it is about.
    pub subject: Selected,
    /// `None` in a direction in which it says nothing. An empty NetworkPolicy still isolates.
    pub ingress: Option<Vec<Clause>>,
    pub egress: Option<Vec<Clause>>,
    /// The groups that its rules name, each once.
    pub groups: Vec<Group>,
    /// The parts that are not enforced as they are written.
    pub problems: Vec<String>,
}

impl Policy {
    pub fn of(policy: &NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let mut reader = Reader { namespace, groups: Groups::default() };
        let spec = policy.spec.clone().unwrap_or_default();
        let types = |name: &str| match spec.policy_types.as_deref().unwrap_or_default() {
            // Upstream's default, which the API server writes into each policy.
            [] => name == "Ingress" || !spec.egress.iter().flatten().collect::<Vec<_>>().is_empty(),
            types => types.iter().any(|t| t == name),
        };
        let ingress = spec.ingress.iter().flatten();
        let ingress = ingress.flat_map(|r| reader.rule(r.from.as_deref(), r.ports.as_deref())).collect();
        let egress = spec.egress.iter().flatten();
        let egress = egress.flat_map(|r| reader.rule(r.to.as_deref(), r.ports.as_deref())).collect();
        let pods = Selector::of_object(Some(&spec.pod_selector.unwrap_or_default())).unwrap_or(Selector::NOTHING);
        Policy {
            tier: Tier::Namespace,
            priority: 0,
            subject: Selected { namespaces: Namespaces::One(namespace.to_owned()), pods },
            ingress: types("Ingress").then_some(ingress),
            egress: types("Egress").then_some(egress),
            groups: reader.groups.into_vec(),
            problems: Vec::new(),
        }
    }

    pub fn clauses(&self, direction: Direction) -> Option<&[Clause]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Reads the rules of one policy.
struct Reader<'a> {
    namespace: &'a str,
    groups: Groups,
}

impl Reader<'_> {
    /// No peers are all peers, and no ports all ports.
    fn rule(&mut self, peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Vec<Clause> {
        let peers = match peers.unwrap_or_default() {
            [] => vec![Peer::Anyone],
            peers => peers.iter().filter_map(|p| self.peer(p)).collect(),
        };
        let ports = match ports.unwrap_or_default() {
            [] => vec![Ports::Any],
            ports => listed(ports).gathered(&mut self.groups),
        };
        Clause::each(Action::Allow, &peers, &ports)
    }

    fn peer(&mut self, peer: &NetworkPolicyPeer) -> Option<Peer> {
        if let Some(block) = &peer.ip_block {
            return block_of(block);
        }
        let namespaces = match &peer.namespace_selector {
            None => Namespaces::One(self.namespace.to_owned()),
            some => Namespaces::Selected(Selector::of_object(some.as_ref()).ok()?),
        };
        let pods = match (&peer.pod_selector, &peer.namespace_selector) {
            (None, None) => return None,
            (None, Some(_)) => Selector::default(),
            (some, _) => Selector::of_object(some.as_ref()).ok()?,
        };
        Some(Peer::Group(self.groups.named(Group::Pods(Selected { namespaces, pods }))))
    }
}

fn listed(ports: &[NetworkPolicyPort]) -> Listed {
    let mut listed = Listed::default();
    for port in ports {
        let Some(protocol) = Protocol::parse(port.protocol.as_deref()) else { continue };
        match &port.port {
            None => listed.protocol(protocol),
            Some(IntOrString::String(name)) => listed.name(protocol, name),
            Some(IntOrString::Int(first)) => {
                if let Some(range) = range(*first, port.end_port.unwrap_or(*first)) {
                    listed.range(protocol, range);
                }
            }
        }
    }
    listed
}

fn range(first: i32, last: i32) -> Option<RangeInclusive<u16>> {
    Some(u16::try_from(first).ok()?..=u16::try_from(last).ok()?).filter(|range| !range.is_empty())
}

/// A block whose exceptions cannot be read would allow too much.
fn block_of(block: &IPBlock) -> Option<Peer> {
    let within = net(&block.cidr)?;
    let except: Vec<IpNet> = block.except.iter().flatten().map(|text| net(text)).collect::<Option<_>>()?;
    Some(Peer::Block { within, except: IpNet::aggregate(&except) })
}

pub fn net(text: &str) -> Option<IpNet> {
    text.trim().parse::<IpNet>().ok().map(|net| net.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Facts, Labels};
    use json::json;

    fn policy(spec: json::Value) -> Policy {
        Policy::of(&json::from_value(json!({"metadata": {"namespace": "x", "name": "p"}, "spec": spec})).unwrap())
    }

    #[test]
    fn a_policy_isolates_in_the_directions_it_names_or_has_rules_for() {
        let check = |spec: json::Value, expected: (bool, bool)| {
            let read = policy(spec.clone());
            assert_eq!((read.ingress.is_some(), read.egress.is_some()), expected, "{spec}");
        };
        check(json!({}), (true, false));
        check(json!({"egress": []}), (true, false));
        check(json!({"egress": [{}]}), (true, true));
        check(json!({"policyTypes": ["Egress"]}), (false, true));
        check(json!({"policyTypes": ["Egress"], "ingress": [{}]}), (false, true));
        check(json!({"policyTypes": ["Ingress", "Egress"]}), (true, true));
    }

    #[test]
    fn ports_are_gathered_by_protocol() {
        let check = |ports: json::Value, expected: Vec<Ports>| {
            let read = policy(json!({"ingress": [{"ports": ports}]}));
            let found: Vec<Ports> = read.ingress.unwrap().into_iter().map(|a| a.ports).collect();
            assert_eq!(found, expected);
        };
        check(json!([]), vec![Ports::Any]);
        check(json!([{"port": 80}]), vec![Ports::Numbers(Protocol::Tcp, vec![80..=80])]);
        check(
            json!([{"port": 90, "endPort": 95}, {"port": 80, "endPort": 92}, {"port": 96}, {"port": 99}]),
            vec![Ports::Numbers(Protocol::Tcp, vec![80..=96, 99..=99])],
        );
        check(json!([{"port": 80}, {"protocol": "TCP"}]), vec![Ports::Protocol(Protocol::Tcp)]);
        let named = Group::Port { protocol: Protocol::Sctp, name: "web".to_owned() };
        check(
            json!([{"port": 53, "protocol": "UDP"}, {"port": "web", "protocol": "SCTP"}]),
            vec![Ports::Numbers(Protocol::Udp, vec![53..=53]), Ports::Named(Protocol::Sctp, named.name())],
        );
        check(json!([{"port": 0, "endPort": 65535}]), vec![Ports::Numbers(Protocol::Tcp, vec![0..=65535])]);
        check(json!([{"port": 70000}, {"port": 9, "endPort": 8}, {"protocol": "ICMP"}]), vec![]);
    }

    #[test]
    fn what_cannot_be_understood_allows_nothing() {
        for peer in [
            json!({}),
            json!({"ipBlock": {"cidr": "ten"}}),
            json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/x"]}}),
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}),
        ] {
            assert_eq!(policy(json!({"ingress": [{"from": [peer]}]})).ingress, Some(vec![]), "{peer}");
        }
        assert!(
            !policy(json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}))
                .subject
                .matches(&Facts { namespace: "x".to_owned(), ..Facts::default() }, &Labels::new())
        );
    }

    #[test]
    fn exceptions_that_overlap_are_one() {
        let read = policy(json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.1/8",
            "except": ["10.1.0.0/16", "10.1.2.0/24", "10.0.0.0/16"]}}]}]}));
        let Peer::Block { within, except } = &read.egress.unwrap()[0].peer else { panic!("a block") };
        assert_eq!((within.to_string(), format!("{except:?}")), ("10.0.0.0/8".to_owned(), "[10.0.0.0/15]".to_owned()));
    }
}
