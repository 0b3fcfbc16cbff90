//! The address ranges of Services: which addresses of a range a Service can have, and what the objects are called that say
//! which are taken. The API server takes addresses by these rules, and the controller of ServiceCIDRs keeps ranges by them.
//! Upstream counterpart: pkg/api/servicecidr.

use std::net::IpAddr;

use ipnet::IpNet;

/// Labels of an IPAddress: its family, and who made it.
pub const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
pub const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// The value of the second label of an address that a Service was given.
pub const ALLOCATOR: &str = "ipallocator.k8s.io";

pub fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The ranges that the texts in `spec.cidrs` name. Validation lets no other texts in.
pub fn ranges<'a>(cidrs: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
    cidrs.into_iter().filter_map(|cidr| cidr.parse::<IpNet>().ok()).map(|range| range.trunc()).collect()
}

/// Whether a Service can have this address out of the range: every one but the network's own and, in IPv4, the broadcast
/// address.
pub fn holds(range: &IpNet, address: &IpAddr) -> bool {
    let broadcast = address.is_ipv4() && *address == range.broadcast();
    range.contains(address) && *address != range.network() && !broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_lies_between_its_ends() {
        let check = |range: &str, address: &str, expected: bool| {
            let (range, address) = (&ranges([range])[0], address.parse().unwrap());
            assert_eq!(holds(range, &address), expected, "{range} {address}");
        };
        check("10.0.0.0/24", "10.0.0.1", true);
        check("10.0.0.0/24", "10.0.0.254", true);
        check("10.0.0.0/24", "10.0.0.0", false);
        check("10.0.0.0/24", "10.0.0.255", false);
        check("10.0.0.0/24", "10.0.1.1", false);
        check("10.0.0.0/24", "fd00::1", false);
        check("10.0.0.0/32", "10.0.0.0", false);
        check("10.0.0.0/31", "10.0.0.1", false);
        check("fd00::/120", "fd00::", false);
        check("fd00::/120", "fd00::ff", true);
        check("fd00::/120", "fd00::100", false);
    }
}
