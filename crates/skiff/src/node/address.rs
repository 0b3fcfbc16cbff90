//! This machine's name and address.

use std::net::{IpAddr, UdpSocket};

use anyhow::Context;

/// The node's name: the host name in lower case, as upstream takes it.
pub fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host name")?;
    let name = name.to_string_lossy().trim().to_lowercase();
    Ok(name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' }).collect())
}

/// The address from which this machine would reach others: the one of the default route, else any that is not loopback.
pub fn own_address() -> anyhow::Result<IpAddr> {
    // Connecting a datagram socket only chooses the route; nothing is sent.
    let routed = UdpSocket::bind("0.0.0.0:0").and_then(|s| {
        s.connect("192.0.2.254:9")?;
        s.local_addr()
    });
    if let Ok(address) = routed
        && !address.ip().is_unspecified()
    {
        return Ok(address.ip());
    }
    let interfaces = nix::ifaddrs::getifaddrs().context("cannot list the network interfaces")?;
    let addresses = interfaces.filter_map(|i| Some(IpAddr::V4(i.address?.as_sockaddr_in()?.ip())));
    addresses
        .into_iter()
        .find(|a| !a.is_loopback())
        .context("this machine has no network address; give one with --node-ip")
}
