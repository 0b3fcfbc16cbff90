//! Links, addresses and routes through netlink: the two ends of a Pod's veth pair.

use std::{fs::File, net::Ipv4Addr, os::fd::AsRawFd, path::Path};

use futures::TryStreamExt;
use rtnetlink::{
    Handle, LinkUnspec, LinkVeth, RouteMessageBuilder, packet_route::link::LinkAttribute,
    packet_route::route::RouteScope,
};

use crate::{
    error::{LinkError, netlink, system},
    namespace,
};

/// The prefix of our host-side links' names.
pub const PREFIX: &str = "skf";

/// The host-side name for a sandbox's interface: stable, and short enough for the kernel.
pub fn host_name(owner: &str) -> String {
    format!("{PREFIX}{:011x}", api::rules::hash::fnv_64(owner.as_bytes()) & 0xfff_ffff_ffff)
}

/// The interface that a Pod is to get.
#[derive(Debug, Clone)]
pub struct PodInterface<'a> {
    pub netns: &'a Path,
    /// The name inside, `eth0`.
    pub interface: &'a str,
    pub host_name: &'a str,
    pub address: Ipv4Addr,
    pub gateway: Ipv4Addr,
    pub mtu: u32,
}

pub(crate) fn connect() -> Result<Handle, LinkError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(system("open a netlink socket"))?;
    tokio::spawn(connection);
    Ok(handle)
}

pub(crate) async fn index_of(handle: &Handle, name: &str) -> Result<u32, LinkError> {
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    match found.try_next().await {
        Ok(Some(link)) => Ok(link.header.index),
        _ => Err(LinkError::Missing(name.to_owned())),
    }
}

/// Makes the pair and configures both ends. Returns the MAC address of the Pod's end.
pub async fn create(pod: &PodInterface<'_>) -> Result<String, LinkError> {
    let netns = File::open(pod.netns).map_err(system("open the sandbox's network namespace"))?;
    let handle = connect()?;
    let peer = format!("{}p", pod.host_name);
    let mut pair = LinkVeth::new(pod.host_name, &peer);
    if pod.mtu > 0 {
        pair = pair.mtu(pod.mtu);
    }
    handle.link().add(pair.build()).execute().await.map_err(netlink("create the veth pair"))?;
    let peer_index = index_of(&handle, &peer).await?;
    let mut moved = LinkUnspec::new_with_index(peer_index).setns_by_fd(netns.as_raw_fd());
    if pod.mtu > 0 {
        moved = moved.mtu(pod.mtu);
    }
    handle.link().set(moved.build()).execute().await.map_err(netlink("move the interface into the sandbox"))?;

    let inside = Inside { peer, interface: pod.interface.to_owned(), address: pod.address, gateway: pod.gateway };
    let mac = namespace::inside(netns, move || async move { inside.configure().await }).await?;

    let index = index_of(&handle, pod.host_name).await?;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(netlink("bring the host's interface up"))?;
    let own = handle.address().add(index, pod.gateway.into(), 32);
    own.execute().await.map_err(netlink("give the host's interface its address"))?;
    lead(&handle, index, pod.address, pod.gateway).await?;
    Ok(mac)
}

/// The node's route to a Pod.
pub(crate) async fn lead(handle: &Handle, index: u32, pod: Ipv4Addr, gateway: Ipv4Addr) -> Result<(), LinkError> {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(pod, 32)
        .output_interface(index)
        .scope(RouteScope::Link)
        .pref_source(gateway)
        .build();
    handle.route().add(route).replace().execute().await.map_err(netlink("add the route to the Pod"))
}

struct Inside {
    peer: String,
    interface: String,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
}

impl Inside {
    /// The Pod's end; runs inside the Pod's namespace.
    async fn configure(self) -> Result<String, LinkError> {
        let handle = connect()?;
        bring_loopback_up(&handle).await?;
        let index = index_of(&handle, &self.peer).await?;
        let named = LinkUnspec::new_with_index(index).name(self.interface.clone()).up().build();
        handle.link().set(named).execute().await.map_err(netlink("name the Pod's interface"))?;
        let own = handle.address().add(index, self.address.into(), 32);
        own.execute().await.map_err(netlink("give the Pod its address"))?;
        let to_gateway = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(self.gateway, 32)
            .output_interface(index)
            .scope(RouteScope::Link)
            .build();
        handle.route().add(to_gateway).execute().await.map_err(netlink("add the Pod's route to its gateway"))?;
        let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(self.gateway).build();
        handle.route().add(default).execute().await.map_err(netlink("add the Pod's default route"))?;
        mac_of(&handle, &self.interface).await
    }
}

pub(crate) async fn bring_loopback_up(handle: &Handle) -> Result<(), LinkError> {
    let up = LinkUnspec::new_with_index(index_of(handle, "lo").await?).up().build();
    handle.link().set(up).execute().await.map_err(netlink("bring loopback up"))
}

/// Brings `lo` up in a namespace.
pub async fn loopback_up(netns: &Path) -> Result<(), LinkError> {
    let netns = File::open(netns).map_err(system("open the sandbox's network namespace"))?;
    namespace::inside(netns, || async { bring_loopback_up(&connect()?).await }).await
}

async fn mac_of(handle: &Handle, name: &str) -> Result<String, LinkError> {
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    let link = found.try_next().await.map_err(netlink("read the Pod's interface"))?;
    let link = link.ok_or_else(|| LinkError::Missing(name.to_owned()))?;
    let bytes = link.attributes.iter().find_map(|a| if let LinkAttribute::Address(b) = a { Some(b) } else { None });
    Ok(bytes.map(|b| b.iter().map(|x| format!("{x:02x}")).collect::<Vec<_>>().join(":")).unwrap_or_default())
}

/// Removes the host's end (and with it the Pod's end and the route). Nothing there is fine.
pub async fn remove(host_name: &str) -> Result<(), LinkError> {
    let handle = connect()?;
    match index_of(&handle, host_name).await {
        Ok(index) => handle.link().del(index).execute().await.map_err(netlink("remove the veth pair")),
        Err(_) => Ok(()),
    }
}

/// Whether the host's end is there.
pub async fn exists(host_name: &str) -> Result<bool, LinkError> {
    Ok(index_of(&connect()?, host_name).await.is_ok())
}

/// Removes every link of ours, whatever sandbox it belonged to.
pub async fn remove_all() {
    remove_named(|name| name.starts_with(PREFIX)).await;
}

/// Removes the links with these names.
pub(crate) async fn remove_named(which: impl Fn(&str) -> bool) {
    let Ok(handle) = connect() else { return };
    let mut ours = Vec::new();
    let mut links = handle.link().get().execute();
    while let Ok(Some(link)) = links.try_next().await {
        let named = link.attributes.iter().any(|a| matches!(a, LinkAttribute::IfName(n) if which(n)));
        if named {
            ours.push(link.header.index);
        }
    }
    for index in ours {
        // A link that is gone by now is what we want.
        let _ = handle.link().del(index).execute().await;
    }
}
