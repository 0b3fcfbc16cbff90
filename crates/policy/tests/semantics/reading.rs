//! The tables that the kernel is to hold, read as it does: whether a first packet passes.

use std::net::IpAddr;

use policy::{
    chain::Rule,
    group::{Element, GroupName},
    kind::Tier,
    ports::Ports,
    rule::{Action, Clause, Peer},
    tables::Tables,
    traffic::{Direction, Family},
    world::World,
};

use crate::cases::{self, Name, Probe, v4, v6};

pub struct Kernel<'a>(pub &'a Tables);

/// A first packet between two addresses.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    pub probe: &'a Probe,
    pub from: IpAddr,
    pub to: IpAddr,
}

impl Kernel<'_> {
    /// Whether a packet passes that is routed through the node.
    pub fn forwards(&self, packet: Packet) -> bool {
        Direction::ALL.into_iter().all(|direction| self.asks(&Tier::ALL, direction, packet))
    }

    /// Whether a packet passes that goes to the node itself.
    pub fn takes(&self, packet: Packet) -> bool {
        self.asks(&[Tier::Admin, Tier::Baseline], Direction::Egress, packet)
    }

    fn asks(&self, tiers: &[Tier], direction: Direction, packet: Packet) -> bool {
        let own = if direction == Direction::Ingress { packet.to } else { packet.from };
        for tier in tiers {
            if let Some(chain) = self.0.asked.get(&(*tier, direction, own)) {
                match self.decide(chain, packet) {
                    Some(passes) => return passes,
                    // A chain that is gone to comes back to nobody.
                    None if *tier != Tier::Admin => return true,
                    None => {}
                }
            }
        }
        true
    }

    /// The verdict of a chain; `None` when it comes back without one.
    fn decide(&self, name: &str, packet: Packet) -> Option<bool> {
        let chain = &self.0.chains[name];
        let is_isolated =
            |address: IpAddr| self.0.asked.keys().any(|(tier, _, other)| *tier == Tier::Namespace && *other == address);
        for rule in &chain.rules {
            let verdict = match rule {
                Rule::Clause(clause) if !self.matches(clause, chain.direction, packet) => None,
                Rule::Clause(clause) => match clause.action {
                    Action::Allow => Some(true),
                    Action::Deny => Some(false),
                    Action::Pass => return None,
                },
                Rule::Ask(name) => self.decide(name, packet),
                Rule::Itself => (packet.from == packet.to && is_isolated(packet.from)).then_some(true),
                Rule::Drop => Some(false),
            };
            if verdict.is_some() {
                return verdict;
            }
        }
        None
    }

    fn holds(&self, group: &GroupName, element: Element) -> bool {
        self.0.groups[&(group.clone(), Family::of(element.address))].elements.contains(&element)
    }

    fn matches(&self, clause: &Clause, direction: Direction, packet: Packet) -> bool {
        let Packet { probe, from, to } = packet;
        let other = if direction == Direction::Ingress { from } else { to };
        let peer = match &clause.peer {
            Peer::Anyone => true,
            Peer::Group(group) => self.holds(group, Element { address: other, port: None }),
            Peer::Block { within, except } => within.contains(&other) && !except.iter().any(|e| e.contains(&other)),
        };
        let port = match &clause.ports {
            Ports::Any => true,
            Ports::Protocol(protocol) => *protocol == probe.protocol,
            Ports::Numbers(protocol, ranges) => {
                *protocol == probe.protocol && ranges.iter().any(|r| r.contains(&probe.port))
            }
            Ports::Named(protocol, group) => {
                *protocol == probe.protocol && self.holds(group, Element { address: to, port: Some(probe.port) })
            }
        };
        peer && port
    }
}

/// Compares all connections between different Pods with those that are expected.
pub fn check(world: &mut World, name: &str, only_v4: bool, expected: impl Fn(&Probe) -> bool) {
    let tables = world.plan();
    let families: &[fn(Name) -> IpAddr] = if only_v4 { &[v4] } else { &[v4, v6] };
    for address in families {
        let passes =
            |p: &Probe| Kernel(&tables).forwards(Packet { probe: p, from: address(p.from), to: address(p.to) });
        let wrong: Vec<Probe> = cases::probes().into_iter().filter(|p| passes(p) != expected(p)).collect();
        assert!(wrong.is_empty(), "{name}: wrong for {} connections, such as {:?}", wrong.len(), wrong[0]);
    }
}
