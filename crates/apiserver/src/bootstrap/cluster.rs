//! The facts about a cluster that its first objects tell.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::auth::authn::front_proxy::Headers;

#[derive(Debug, Clone)]
pub struct Cluster {
    /// The service ranges, one per IP family, the first one first.
    pub service_ranges: Vec<IpNet>,
    /// Where the API server is reached: the endpoints of the `kubernetes` Service.
    pub advertise_address: IpAddr,
    pub secure_port: u16,
    /// PEM of the authorities of clients and of the front proxy.
    pub client_authority: String,
    pub front_proxy_authority: Option<String>,
    /// Common names that may speak for others; any where there are none.
    pub front_proxy_names: Vec<String>,
    /// The headers in which they do.
    pub front_proxy_headers: Headers,
    /// The wall clock, RFC 3339 in whole seconds.
    pub now: String,
}

/// The address of the `kubernetes` Service: the first one of a range.
pub fn first_address(range: &IpNet) -> IpAddr {
    match range.network() {
        IpAddr::V4(base) => IpAddr::V4((u32::from(base) + 1).into()),
        IpAddr::V6(base) => IpAddr::V6((u128::from(base) + 1).into()),
    }
}

pub fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}
