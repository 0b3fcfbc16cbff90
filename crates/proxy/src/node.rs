//! This node, as far as the rules of one family of addresses depend on it.

use std::net::IpAddr;

use ipnet::IpNet;
use nft::Family;

/// This node, as far as the rules of one family depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Empty when it has none.
    pub zone: String,
    /// The family of all that follows, and of the rules.
    pub family: Family,
    pub ip: Option<IpAddr>,
    /// How traffic of the cluster's own Pods is known; without it nobody tells traffic from elsewhere.
    pub pods: Option<FromPods>,
    /// The addresses at which Services' node ports are; all of the machine's, but for loopback ones, when not given.
    pub node_ports: Option<Vec<IpNet>>,
    /// The ranges of the cluster's own addresses, as far as anybody tells; without overlaps.
    pub service_cidrs: Vec<IpNet>,
    /// The node is the source of everything that goes to a Service.
    pub masquerade_all: bool,
}

/// How traffic of the cluster's own Pods is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromPods {
    Range(IpNet),
    /// It comes in over an interface of this name, or of names that begin so when a `*` is at its end.
    Interface(Interface),
}

/// A name that an interface can have, possibly with a `*` at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface(String);

impl Interface {
    /// Refuses what the kernel would not take as a name, and what means something to nft.
    pub fn new(name: &str) -> Option<Self> {
        let plain = name.strip_suffix('*').unwrap_or(name);
        let fits = (1..=15).contains(&plain.len()) && !matches!(plain, "." | "..");
        let is_known = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        (fits && plain.chars().all(is_known)).then(|| Interface(name.to_owned()))
    }

    /// The name, with its `*`.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl FromPods {
    pub fn yes(&self) -> String {
        match self {
            FromPods::Range(range) => format!("{} saddr {range}", Family::of(range.addr()).ip()),
            FromPods::Interface(Interface(name)) => format!("iifname \"{name}\""),
        }
    }

    pub fn no(&self) -> String {
        match self {
            FromPods::Range(range) => format!("{} saddr != {range}", Family::of(range.addr()).ip()),
            FromPods::Interface(Interface(name)) => format!("iifname != \"{name}\""),
        }
    }
}

impl Node {
    /// The node that knows those ranges of the cluster's addresses that are of its family.
    pub fn knowing(&self, ranges: &[IpNet]) -> Self {
        let own = ranges.iter().filter(|range| Family::of(range.addr()) == self.family).map(IpNet::trunc).collect();
        Node { service_cidrs: IpNet::aggregate(&own), ..self.clone() }
    }

    /// An address as text, if it is one of this family.
    pub fn address(&self, text: &str) -> Option<IpAddr> {
        api::rules::ip::parse(text).filter(|ip| Family::of(*ip) == self.family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_known_once() {
        let ranges = ["10.96.1.0/24", "fd00::/108", "10.96.0.0/16", "10.200.0.0/24"].map(|text| text.parse().unwrap());
        let known = |family| {
            let node = Node { family, ..Node::default() }.knowing(&ranges);
            node.service_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(known(Family::V4), ["10.96.0.0/16", "10.200.0.0/24"]);
        assert_eq!(known(Family::V6), ["fd00::/108"]);
        let node = Node::default().knowing(&ranges);
        assert_eq!(node.knowing(&[]), Node::default());
    }

    #[test]
    fn only_names_of_interfaces_are_taken() {
        for good in ["cbr0", "cali*", "eth0.100", "a-b_c"] {
            assert!(Interface::new(good).is_some(), "{good}");
        }
        for bad in ["", "*", ".", "..", "a b", "a\"", "a*b", "sixteen-letters-", "x\n", "a;drop", "ä"] {
            assert!(Interface::new(bad).is_none(), "{bad}");
        }
        let range = FromPods::Range("fd00::/56".parse().unwrap());
        let cali = FromPods::Interface(Interface::new("cali*").unwrap());
        assert_eq!((range.yes().as_str(), range.no().as_str()), ("ip6 saddr fd00::/56", "ip6 saddr != fd00::/56"));
        assert_eq!((cali.yes().as_str(), cali.no().as_str()), ("iifname \"cali*\"", "iifname != \"cali*\""));
    }
}
