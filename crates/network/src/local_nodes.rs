//! Several nodes on one machine: the first is the machine's own, each other one has a network namespace, and all of them meet
//! on one bridge. The machine has an address there too, and is the way out for the others.
//!
//! Pods hang on no bridge: what passes here was routed by the nodes at both ends, and their connections are tracked there.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use rtnetlink::{
    Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        route::{RouteProtocol, RouteScope, RouteType},
    },
};
use std::os::fd::AsRawFd;

use crate::{
    error::{LinkError, NetworkError, netlink, system},
    forward,
    link::{self, connect, index_of},
    namespace,
    overlay::kernel::destination,
    rules,
};

const BRIDGE: &str = "skiff-nodes";
/// The beginning of the names of the links to the other nodes, on the machine's side; the bridge's name is not among
/// them.
const PORT: &str = "skiff-node-";
const TABLE: &str = "ip skiff-nodes";
/// The name of a node's link in its namespace.
const INSIDE: &str = "eth0";
/// How many addresses the range has is what bounds the number of nodes.
const LENGTH: u8 = 24;

/// Where the nodes of this machine meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting {
    range: Ipv4Net,
}

impl Meeting {
    /// The address of a node; the first is the machine's own.
    pub fn address(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.range.network()) + u32::from(number))
    }
}

/// A private range that overlaps none of these: one of those that routers and engines rarely give out.
fn free(taken: &[Ipv4Net]) -> Option<Ipv4Net> {
    let upper = (200..=254).rev().map(|n| Ipv4Addr::new(192, 168, n, 0));
    let middle = (16..=31).rev().map(|n| Ipv4Addr::new(172, n, 233, 0));
    let lower = (200..=254).rev().map(|n| Ipv4Addr::new(10, n, 233, 0));
    let ranges = upper.chain(middle).chain(lower).filter_map(|address| Ipv4Net::new(address, LENGTH).ok());
    ranges.into_iter().find(|range| !taken.iter().any(|other| rules::overlap(*other, *range)))
}

/// Traffic from the other nodes leaves the machine under its own address. Pods keep theirs within the cluster.
fn table(range: Ipv4Net, cluster: Ipv4Net) -> String {
    format!(
        "add table {TABLE}
add chain {TABLE} postrouting {{ type nat hook postrouting priority srcnat; }}
flush chain {TABLE} postrouting
add rule {TABLE} postrouting ip saddr {range} oifname != \"{BRIDGE}\" ip daddr != {cluster} masquerade fully-random
"
    )
}

/// Makes the bridge, or finds the one that an earlier process left, with the addresses on it. Its range is apart from the
/// cluster's and from all that this machine has addresses in or knows a way to.
pub async fn meet(cluster: Ipv4Net, services: Ipv4Net) -> Result<Meeting, NetworkError> {
    forward()?;
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
    let range = match address_on(&handle, index).await? {
        Some(range) => range,
        None => {
            let taken: Vec<Ipv4Net> = ways(&handle).await?.into_iter().chain([cluster, services]).collect();
            let range = free(&taken).ok_or(NetworkError::NoRange)?;
            let own = handle.address().add(index, Meeting { range }.address(1).into(), LENGTH).replace();
            own.execute().await.map_err(netlink("give the bridge of the nodes its address"))?;
            range
        }
    };
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(netlink("bring the bridge of the nodes up"))?;
    nft::transaction(&table(range, cluster)).await?;
    Ok(Meeting { range })
}

/// The range of an interface's first address.
async fn address_on(handle: &Handle, index: u32) -> Result<Option<Ipv4Net>, LinkError> {
    let mut addresses = handle.address().get().set_link_index_filter(index).execute();
    while let Some(found) = addresses.try_next().await.map_err(netlink("list the addresses"))? {
        let own = found.attributes.iter().find_map(|a| match a {
            AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
            _ => None,
        });
        let range = own.and_then(|own| Ipv4Net::new(own, found.header.prefix_len).ok());
        if let Some(range) = range.filter(|range| range.prefix_len() == LENGTH) {
            return Ok(Some(range.trunc()));
        }
    }
    Ok(None)
}

/// Where this machine's routes lead to, but for the default one. Its own addresses are among them.
async fn ways(handle: &Handle) -> Result<Vec<Ipv4Net>, LinkError> {
    let any = RouteMessageBuilder::<Ipv4Addr>::new()
        .protocol(RouteProtocol::Unspec)
        .scope(RouteScope::Universe)
        .kind(RouteType::Unspec);
    let all = handle.route().get(any.build()).execute();
    let all: Vec<_> = all.try_collect().await.map_err(netlink("list the routes"))?;
    Ok(all.iter().filter_map(destination).filter(|to| to.prefix_len() > 0).collect())
}

/// Makes the file hold a namespace that has the node's address and is linked to the others. The parts that are there
/// already stay.
pub async fn join(netns: &Path, number: u8, meeting: Meeting) -> Result<(), LinkError> {
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
    handle.link().set(joined).execute().await.map_err(netlink("join a node's link to the bridge"))
}

async fn link_to(handle: &Handle, netns: &Path, port: &str, meeting: Meeting, number: u8) -> Result<(), LinkError> {
    let netns = File::open(netns).map_err(system("open a node's network namespace"))?;
    let peer = format!("{port}p");
    handle.link().add(LinkVeth::new(port, &peer).build()).execute().await.map_err(netlink("create a node's link"))?;
    let moved = LinkUnspec::new_with_index(index_of(handle, &peer).await?).setns_by_fd(netns.as_raw_fd()).build();
    handle.link().set(moved).execute().await.map_err(netlink("move a node's link into its namespace"))?;
    let (own, machine) = (meeting.address(number), meeting.address(1));
    namespace::inside(netns, move || async move {
        let handle = connect()?;
        link::bring_loopback_up(&handle).await?;
        let index = index_of(&handle, &peer).await?;
        let named = LinkUnspec::new_with_index(index).name(INSIDE.to_owned()).up().build();
        handle.link().set(named).execute().await.map_err(netlink("name a node's link"))?;
        let addressed = handle.address().add(index, own.into(), LENGTH).execute().await;
        addressed.map_err(netlink("give a node its address"))?;
        let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(machine).build();
        handle.route().add(default).execute().await.map_err(netlink("add a node's default route"))
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
    Ok(nft::remove_table(TABLE).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_one_that_nobody_has() {
        let check = |taken: &[&str], expected: Option<&str>| {
            let taken: Vec<Ipv4Net> = taken.iter().map(|net| net.parse().unwrap()).collect();
            assert_eq!(free(&taken), expected.map(|net| net.parse().unwrap()), "{taken:?}");
        };
        check(&[], Some("192.168.254.0/24"));
        check(&["192.168.254.7/32", "192.168.253.0/25"], Some("192.168.252.0/24"));
        check(&["192.168.0.0/16"], Some("172.31.233.0/24"));
        check(&["192.168.0.0/16", "172.16.0.0/12", "10.254.0.0/16"], Some("10.253.233.0/24"));
        check(&["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8"], None);
        let meeting = Meeting { range: "192.168.254.0/24".parse().unwrap() };
        assert_eq!(
            (meeting.address(1).to_string(), meeting.address(3).to_string()),
            ("192.168.254.1".into(), "192.168.254.3".into())
        );
    }
}
