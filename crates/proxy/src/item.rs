//! The things in the kernel that Services need: elements of maps, chains and sets, and the ways in that UDP flows take.

use std::net::IpAddr;

/// The maps and sets of the table that Services put elements into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    ServiceIps,
    NodePorts,
    Endpoints,
    NodePortEndpoints,
    RefusedIps,
    RefusedNodePorts,
    Firewall,
    ClusterIps,
    Hairpins,
}

impl Map {
    pub fn name(self) -> &'static str {
        match self {
            Map::ServiceIps => "service-ips",
            Map::NodePorts => "service-nodeports",
            Map::Endpoints => "endpoints",
            Map::NodePortEndpoints => "nodeport-endpoints",
            Map::RefusedIps => "refused-ips",
            Map::RefusedNodePorts => "refused-nodeports",
            Map::Firewall => "firewall",
            Map::ClusterIps => "cluster-ips",
            Map::Hairpins => "hairpins",
        }
    }
}

/// The chains of iptables into which Services put lines beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shared {
    /// Addresses that lead somewhere.
    Services,
    NodePorts,
    /// Packets that load balancers' addresses do not take.
    Firewall,
    /// Addresses within the cluster without an endpoint.
    Refused,
    /// Addresses and ports for callers from outside without an endpoint.
    RefusedOutside,
    /// The ports at which load balancers ask.
    HealthPorts,
}

/// One thing in the kernel. Several Services may need the same one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// Its value is its rules, a line each.
    Chain(String),
    /// Its value is its declaration.
    Set(String),
    /// Map and key; in plain sets the value is empty.
    Element(Map, String),
    /// A line of a chain that others have lines in too, by what it is about. Of iptables alone.
    Line(Shared, String),
}

/// Where a UDP flow was sent to, for finding it in connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    Address(IpAddr, u16),
    NodePort(u16),
}
