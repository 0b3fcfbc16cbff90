//! This node, as far as the rules depend on it.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// This node, as far as the rules depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Empty when it has none.
    pub zone: String,
    pub ip: Option<Ipv4Addr>,
    /// Addresses of all Pods; traffic from elsewhere is not the cluster's own.
    pub pods: Option<Ipv4Net>,
}
