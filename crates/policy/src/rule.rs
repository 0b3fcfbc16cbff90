//! One NetworkPolicy as rules: whom it selects, and what it allows in each direction. Pure.
//!
//! A rule of the API (some peers, some ports) becomes one rule of ours for each peer and each sort of ports. A part of a
//! stored policy that cannot be understood allows nothing.

use std::ops::RangeInclusive;

use api::rules::selector::Selector;
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    group::{Group, GroupName, Namespaces},
    traffic::{Direction, Protocol},
};

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    Anyone,
    Pods(GroupName),
    Block { within: IpNet, except: Vec<IpNet> },
}

/// The ports that a connection may be opened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    Any,
    /// Every port of a protocol.
    Protocol(Protocol),
    /// Ranges that do not touch, in order.
    Numbers(Protocol, Vec<RangeInclusive<u16>>),
    /// The port that the called Pod has under a name.
    Named(Protocol, GroupName),
}

/// The peer and the ports that one rule lets through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    pub peer: Peer,
    pub ports: Ports,
}

/// A policy, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The Pods of its namespace that it isolates.
    pub subject: Selector,
    /// `None` in a direction in which it does not isolate.
    pub ingress: Option<Vec<Allow>>,
    pub egress: Option<Vec<Allow>>,
    /// The groups that its rules name, each once.
    pub groups: Vec<Group>,
}

impl Policy {
    pub fn of(policy: &NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let mut reader = Reader { namespace, groups: Vec::new() };
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
        let subject = spec.pod_selector.unwrap_or_default();
        Policy {
            subject: Selector::of_object(Some(&subject)).unwrap_or(Selector::NOTHING),
            ingress: types("Ingress").then_some(ingress),
            egress: types("Egress").then_some(egress),
            groups: reader.groups,
        }
    }

    pub fn allows(&self, direction: Direction) -> Option<&[Allow]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Reads the rules of one policy.
struct Reader<'a> {
    namespace: &'a str,
    groups: Vec<Group>,
}

impl Reader<'_> {
    /// No peers are all peers, and no ports all ports.
    fn rule(&mut self, peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Vec<Allow> {
        let peers = match peers.unwrap_or_default() {
            [] => vec![Peer::Anyone],
            peers => peers.iter().filter_map(|p| self.peer(p)).collect(),
        };
        let ports = match ports.unwrap_or_default() {
            [] => vec![Ports::Any],
            ports => self.ports(ports),
        };
        let pairs = peers.iter().flat_map(|peer| ports.iter().map(move |ports| (peer, ports)));
        pairs.map(|(peer, ports)| Allow { peer: peer.clone(), ports: ports.clone() }).collect()
    }

    fn named(&mut self, group: Group) -> GroupName {
        let name = group.name();
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
        name
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
        Some(Peer::Pods(self.named(Group::Pods { namespaces, pods })))
    }

    fn ports(&mut self, ports: &[NetworkPolicyPort]) -> Vec<Ports> {
        let mut found = Vec::new();
        for protocol in Protocol::ALL {
            let of_protocol = || ports.iter().filter(|p| Protocol::parse(p.protocol.as_deref()) == Some(protocol));
            if of_protocol().any(|p| p.port.is_none()) {
                found.push(Ports::Protocol(protocol));
                continue;
            }
            let numbers: Vec<_> = of_protocol().filter_map(range).collect();
            if !numbers.is_empty() {
                found.push(Ports::Numbers(protocol, merged(numbers)));
            }
            for port in of_protocol() {
                if let Some(IntOrString::String(name)) = &port.port {
                    let group = Group::Port { protocol, name: name.clone() };
                    found.push(Ports::Named(protocol, self.named(group)));
                }
            }
        }
        found
    }
}

fn range(port: &NetworkPolicyPort) -> Option<RangeInclusive<u16>> {
    let Some(IntOrString::Int(first)) = port.port else { return None };
    let last = port.end_port.unwrap_or(first);
    Some(u16::try_from(first).ok()?..=u16::try_from(last).ok()?).filter(|range| !range.is_empty())
}

/// The same numbers in as few ranges as possible: the kernel takes no ranges that overlap.
fn merged(mut ranges: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    ranges.sort_by_key(|r| *r.start());
    let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// A block whose exceptions cannot be read would allow too much.
fn block_of(block: &IPBlock) -> Option<Peer> {
    let parse = |text: &String| text.trim().parse::<IpNet>().ok().map(|net| net.trunc());
    let within = parse(&block.cidr)?;
    let except: Vec<IpNet> = block.except.iter().flatten().map(parse).collect::<Option<_>>()?;
    Some(Peer::Block { within, except: IpNet::aggregate(&except) })
}

#[cfg(test)]
mod tests {
    use super::*;
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
                .matches(&std::collections::BTreeMap::new())
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
