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

impl Item {
    /// The address, protocol and port that this is about, as they stand in keys; nothing for what is about none.
    pub fn address(&self) -> Option<&str> {
        match self {
            Item::Element(Map::ServiceIps | Map::RefusedIps | Map::Firewall, key) => Some(key.as_str()),
            Item::Element(Map::Endpoints, key) => key.rsplit_once(" . ").map(|(address, _)| address),
            // A node's port has no address in front.
            Item::Line(Shared::Services | Shared::Firewall | Shared::Refused | Shared::RefusedOutside, key) => {
                Some(key.as_str()).filter(|key| key.matches(" . ").count() == 2)
            }
            _ => None,
        }
    }
}

/// The right by which a Service has an address. Cluster addresses are given by the API server, each to one Service, and those of
/// load balancers by whoever may write statuses; external ones any author of Services names as he likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Cluster,
    Balancer,
    External,
}

/// Where a UDP flow was sent to, for finding it in connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    Address(IpAddr, u16),
    NodePort(u16),
}
