//! Several nodes on one machine: the first is the machine's own, each other one has a network namespace, and all of them meet
//! on one bridge, in each family of addresses that the cluster has. The machine has addresses there too, and is the way out for
//! the others.
//!
//! Pods hang on no bridge: what passes here was routed by the nodes at both ends, and their connections are tracked there.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    path::Path,
};

use futures::TryStreamExt;
use ipnet::IpNet;
use nft::Family;
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::{AddressAttribute, AddressHeaderFlags},
        route::{RouteProtocol, RouteScope, RouteType},
    },
};

use crate::{
    error::{LinkError, NetworkError, netlink, system},
    forward,
    link::{self, connect, default_route, index_of},
    namespace,
    overlay::kernel::destination,
    rules,
};

const BRIDGE: &str = "skiff-nodes";
/// The beginning of the names of the links to the other nodes, on the machine's side; the bridge's name is not among
/// them.
const PORT: &str = "skiff-node-";
/// The name of a node's link in its namespace.
const INSIDE: &str = "eth0";

fn table_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip skiff-nodes",
        Family::V6 => "ip6 skiff-nodes",
    }
}

/// The length of a range's prefix. How many addresses a range of IPv4 has is what bounds the number of nodes.
fn length(family: Family) -> u8 {
    match family {
        Family::V4 => 24,
        Family::V6 => 64,
    }
}

/// Where the nodes of this machine meet: a range of each family, in the order of the cluster's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    ranges: Vec<IpNet>,
}

impl Meeting {
    /// The addresses of a node, one of each family; the first node is the machine's own.
    pub fn addresses(&self, number: u8) -> Vec<IpAddr> {
        self.ranges.iter().map(|range| address_in(*range, number)).collect()
    }
}

fn address_in(range: IpNet, number: u8) -> IpAddr {
    match range.network() {
        IpAddr::V4(first) => Ipv4Addr::from(u32::from(first) + u32::from(number)).into(),
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) + u128::from(number)).into(),
    }
}

/// A private range that overlaps none of these: one of those that routers and engines rarely give out.
fn free(family: Family, taken: &[IpNet]) -> Option<IpNet> {
    let candidates: Vec<IpAddr> = match family {
        Family::V4 => {
            let upper = (200..=254).rev().map(|n| Ipv4Addr::new(192, 168, n, 0));
            let middle = (16..=31).rev().map(|n| Ipv4Addr::new(172, n, 233, 0));
            let lower = (200..=254).rev().map(|n| Ipv4Addr::new(10, n, 233, 0));
            upper.chain(middle).chain(lower).map(IpAddr::V4).collect()
        }
        // The bytes after the first are those of the word "skiff".
        Family::V6 => (1..=255).rev().map(|n| Ipv6Addr::new(0xfd73, 0x6b69, 0x6666, n, 0, 0, 0, 0).into()).collect(),
    };
    let ranges = candidates.into_iter().filter_map(|address| IpNet::new(address, length(family)).ok());
    ranges.into_iter().find(|range| !taken.iter().any(|other| rules::overlap(*other, *range)))
}

/// Traffic from the other nodes leaves the machine under its own address. Pods keep theirs within the cluster.
fn table(range: IpNet, cluster: IpNet) -> String {
    let family = Family::of(range.addr());
    let (table, ip) = (table_name(family), family.ip());
    format!(
        "add table {table}
add chain {table} postrouting {{ type nat hook postrouting priority srcnat; }}
flush chain {table} postrouting
add rule {table} postrouting {ip} saddr {range} oifname != \"{BRIDGE}\" {ip} daddr != {cluster} masquerade fully-random
"
    )
}

/// Makes the bridge, or finds the one that an earlier process left, with the addresses on it: of each family that Pods have
/// addresses of. Its ranges are apart from the cluster's and from all that this machine has addresses in or knows a way to.
pub async fn meet(clusters: &[IpNet], services: &[IpNet]) -> Result<Meeting, NetworkError> {
    let handle = connect()?;
    let index = match index_of(&handle, BRIDGE).await {
        Ok(index) => index,
        Err(_) => {
            // Links without their bridge have addresses of a range that may not be free any more.
            remove_ports().await;
            let made = handle.link().add(LinkBridge::new(BRIDGE).build()).execute().await;
            made.map_err(netlink("create the bridge of the nodes"))?;
            index_of(&handle, BRIDGE).await?
        }
    };
    let apart: Vec<IpNet> = clusters.iter().chain(services).copied().collect();
    let mut ranges = Vec::new();
    for cluster in clusters {
        let family = Family::of(cluster.addr());
        if family == Family::V6 {
            link::take_ipv6(BRIDGE)?;
        }
        forward(family)?;
        ranges.push(range_on(&handle, index, family, &apart).await?);
    }
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(netlink("bring the bridge of the nodes up"))?;
    for (range, cluster) in ranges.iter().zip(clusters) {
        nft::transaction(&table(*range, *cluster)).await?;
    }
    Ok(Meeting { ranges })
}

/// The bridge's range of a family: the one that it has, or one that is free.
async fn range_on(handle: &Handle, bridge: u32, family: Family, apart: &[IpNet]) -> Result<IpNet, NetworkError> {
    if let Some(range) = address_on(handle, bridge, family).await? {
        return Ok(range);
    }
    let taken: Vec<IpNet> = ways(handle, family).await?.into_iter().chain(apart.iter().copied()).collect();
    let range = free(family, &taken).ok_or(NetworkError::NoRange)?;
    let given = give(handle, bridge, address_in(range, 1)).await;
    given.map_err(netlink("give the bridge of the nodes its address"))?;
    Ok(range)
}

/// Gives an interface an address within its range. The addresses are given out here alone, so that nothing waits for a check that
/// nobody else has them.
async fn give(handle: &Handle, index: u32, address: IpAddr) -> Result<(), rtnetlink::Error> {
    let mut given = handle.address().add(index, address, length(Family::of(address))).replace();
    if address.is_ipv6() {
        given.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    }
    given.execute().await
}

/// The range of an interface's first address of a family.
async fn address_on(handle: &Handle, index: u32, family: Family) -> Result<Option<IpNet>, LinkError> {
    let mut addresses = handle.address().get().set_link_index_filter(index).execute();
    while let Some(found) = addresses.try_next().await.map_err(netlink("list the addresses"))? {
        let own = found.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(address) if Family::of(*address) == family => Some(*address),
            _ => None,
        });
        let on_one_link = matches!(own, Some(IpAddr::V6(six)) if six.is_unicast_link_local());
        let range = own.and_then(|own| IpNet::new(own, found.header.prefix_len).ok());
        if let Some(range) = range.filter(|range| range.prefix_len() == length(family) && !on_one_link) {
            return Ok(Some(range.trunc()));
        }
    }
    Ok(None)
}

/// Where this machine's routes of a family lead to, but for the default one. Its own addresses are among them.
async fn ways(handle: &Handle, family: Family) -> Result<Vec<IpNet>, LinkError> {
    let question = match family {
        Family::V4 => any_route(RouteMessageBuilder::<Ipv4Addr>::new()).build(),
        Family::V6 => any_route(RouteMessageBuilder::<Ipv6Addr>::new()).build(),
    };
    let all: Vec<_> = handle.route().get(question).execute().try_collect().await.map_err(netlink("list the routes"))?;
    Ok(all.iter().filter_map(destination).filter(|to| to.prefix_len() > 0).collect())
}

/// The question for routes of every sort.
fn any_route<T>(route: RouteMessageBuilder<T>) -> RouteMessageBuilder<T> {
    route.protocol(RouteProtocol::Unspec).scope(RouteScope::Universe).kind(RouteType::Unspec)
}

/// Makes the file hold a namespace that has the node's addresses and is linked to the others. The parts that are there
/// already stay.
pub async fn join(netns: &Path, number: u8, meeting: &Meeting) -> Result<(), LinkError> {
    let (handle, port) = (connect()?, format!("{PORT}{number}"));
    if namespace::keep(netns).await? {
        // An earlier link leads into a namespace that nobody finds any more.
        link::remove(&port).await?;
    }
    let index = match index_of(&handle, &port).await {
        Ok(index) => index,
        Err(_) => {
            link_to(&handle, netns, &port, meeting, number).await?;
            index_of(&handle, &port).await?
        }
    };
    let bridge = index_of(&handle, BRIDGE).await?;
    let joined = LinkUnspec::new_with_index(index).controller(bridge).up().build();
    handle.link().set(joined).execute().await.map_err(netlink("join a node's link to the bridge"))?;
    // Where the kernel has bridges pass the rules of routed packets (br_netfilter), it also answers them on the bridge: a node's
    // request for this machine's node port goes back to the node with the endpoint, which may be the one that asks.
    let back = LinkBridgePort::new(index).hairpin(true).build();
    handle.link().set_port(back).execute().await.map_err(netlink("let the bridge lead back to a node"))
}

async fn link_to(handle: &Handle, netns: &Path, port: &str, meeting: &Meeting, number: u8) -> Result<(), LinkError> {
    let netns = File::open(netns).map_err(system("open a node's network namespace"))?;
    let peer = format!("{port}p");
    handle.link().add(LinkVeth::new(port, &peer).build()).execute().await.map_err(netlink("create a node's link"))?;
    let moved = LinkUnspec::new_with_index(index_of(handle, &peer).await?).setns_by_fd(netns.as_raw_fd()).build();
    handle.link().set(moved).execute().await.map_err(netlink("move a node's link into its namespace"))?;
    let pairs: Vec<(IpAddr, IpAddr)> = meeting.addresses(number).into_iter().zip(meeting.addresses(1)).collect();
    namespace::inside(netns, move || async move {
        let handle = connect()?;
        link::bring_loopback_up(&handle).await?;
        let index = index_of(&handle, &peer).await?;
        let named = LinkUnspec::new_with_index(index).name(INSIDE.to_owned()).up().build();
        handle.link().set(named).execute().await.map_err(netlink("name a node's link"))?;
        for (own, machine) in pairs {
            if own.is_ipv6() {
                link::take_ipv6(INSIDE)?;
            }
            give(&handle, index, own).await.map_err(netlink("give a node its address"))?;
            let added = handle.route().add(default_route(machine)).execute().await;
            added.map_err(netlink("add a node's default route"))?;
        }
        Ok(())
    })
    .await
}

async fn remove_ports() {
    link::remove_named(|name| name.starts_with(PORT)).await;
}

/// Removes the bridge, the links to it and the rules. The namespaces end with their files and processes.
pub async fn remove() -> Result<(), NetworkError> {
    remove_ports().await;
    link::remove(BRIDGE).await?;
    for family in Family::ALL {
        nft::remove_table(table_name(family)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_one_that_nobody_has() {
        let check = |family: Family, taken: &[&str], expected: Option<&str>| {
            let taken: Vec<IpNet> = taken.iter().map(|net| net.parse().unwrap()).collect();
            assert_eq!(free(family, &taken), expected.map(|net| net.parse().unwrap()), "{taken:?}");
        };
        let four = |taken: &[&str], expected: Option<&str>| check(Family::V4, taken, expected);
        four(&[], Some("192.168.254.0/24"));
        four(&["192.168.254.7/32", "192.168.253.0/25", "fd00::/8"], Some("192.168.252.0/24"));
        four(&["192.168.0.0/16"], Some("172.31.233.0/24"));
        four(&["192.168.0.0/16", "172.16.0.0/12", "10.254.0.0/16"], Some("10.253.233.0/24"));
        four(&["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8"], None);
        check(Family::V6, &["192.168.0.0/16"], Some("fd73:6b69:6666:ff::/64"));
        check(Family::V6, &["fd73:6b69:6666:ff::1/128"], Some("fd73:6b69:6666:fe::/64"));
        check(Family::V6, &["fc00::/7"], None);
    }

    #[test]
    fn a_node_has_an_address_of_each_family() {
        let ranges = ["192.168.254.0/24", "fd73:6b69:6666:ff::/64"].map(|range| range.parse().unwrap());
        let meeting = Meeting { ranges: ranges.to_vec() };
        let texts = |number| meeting.addresses(number).iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(texts(1), "192.168.254.1 fd73:6b69:6666:ff::1");
        assert_eq!(texts(50), "192.168.254.50 fd73:6b69:6666:ff::32");
    }

    #[test]
    fn each_family_has_its_table() {
        let text = table("fd73:6b69:6666:ff::/64".parse().unwrap(), "fd00:10:244::/56".parse().unwrap());
        assert!(text.starts_with("add table ip6 skiff-nodes\n"), "{text}");
        assert!(
            text.contains("ip6 saddr fd73:6b69:6666:ff::/64 oifname != \"skiff-nodes\" ip6 daddr != fd00:10:244::/56")
        );
    }
}
