//! This machine's name and address.

use std::net::{IpAddr, UdpSocket};

use anyhow::{Context, bail};
use ipnet::IpNet;

use crate::flags::value;

/// The node's name: the host name in lower case, as upstream takes it.
pub fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host name")?;
    let name = name.to_string_lossy().trim().to_lowercase();
    Ok(name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' }).collect())
}

/// The address of a family from which this machine would reach others: the one of the default route, else any that is not of this
/// machine or its links alone.
pub fn own_address(v6: bool) -> anyhow::Result<IpAddr> {
    // Connecting a datagram socket only chooses the route; nothing is sent.
    let (here, far) = if v6 { ("[::]:0", "[2001:db8::fe]:9") } else { ("0.0.0.0:0", "192.0.2.254:9") };
    let routed = UdpSocket::bind(here).and_then(|s| {
        s.connect(far)?;
        s.local_addr()
    });
    if let Ok(address) = routed
        && is_of_a_machine(address.ip())
    {
        return Ok(address.ip());
    }
    let interfaces = nix::ifaddrs::getifaddrs().context("cannot list the network interfaces")?;
    // The node's own addresses on the Pod network are not those at which others reach it.
    let links = interfaces.filter(|interface| !interface.interface_name.starts_with(network::POD_LINKS));
    let mut addresses = links.filter_map(|link| {
        let address = link.address?;
        let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
        four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
    });
    let family = if v6 { "IPv6" } else { "IPv4" };
    addresses
        .find(|address| address.is_ipv6() == v6 && is_of_a_machine(*address))
        .with_context(|| format!("this machine has no {family} address; give one with --node-ip"))
}

/// Whether others may reach a machine at it.
fn is_of_a_machine(address: IpAddr) -> bool {
    let on_one_link = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    value::is_one_machines(address) && !on_one_link
}

/// The node's addresses: those that were named, or one of each family that the cluster has, in its order. Without one of the first
/// family there is no node.
pub fn of_node(named: &[IpAddr], clusters: &[IpNet]) -> anyhow::Result<Vec<IpAddr>> {
    match named {
        [] => {}
        [_] => return Ok(named.to_vec()),
        [a, b] if a.is_ipv4() != b.is_ipv4() => return Ok(named.to_vec()),
        _ => bail!("--node-ip takes one address, or one of IPv4 and one of IPv6"),
    }
    let mut addresses = Vec::new();
    for cluster in clusters {
        match own_address(cluster.addr().is_ipv6()) {
            Ok(address) => addresses.push(address),
            Err(error) if addresses.is_empty() => return Err(error),
            Err(error) => tracing::warn!("{error}: this node has one address, though Pods have two"),
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_at_one_address_of_each_family() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (a, b, six) = (ip("192.0.2.1"), ip("192.0.2.2"), ip("2001:db8::1"));
        assert_eq!(of_node(&[six, a], &[]).unwrap(), [six, a]);
        assert!(of_node(&[a, b], &[]).is_err() && of_node(&[a, six, b], &[]).is_err());
        let strange = ["::", "::1", "fe80::1", "ff02::1", "0.0.0.0", "127.0.0.1"];
        assert!(strange.iter().all(|text| !is_of_a_machine(ip(text))) && is_of_a_machine(six) && is_of_a_machine(a));
    }
}
