//! Links, addresses and routes through netlink: the two ends of a Pod's veth pair.

use std::{fs::File, net::IpAddr, os::fd::AsRawFd, path::Path};

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{
    Handle, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::AddressHeaderFlags,
        link::LinkAttribute,
        route::{RouteMessage, RouteScope},
    },
};

use crate::{
    error::{LinkError, netlink, system},
    namespace, settings,
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
    /// One of each family at the most.
    pub addresses: &'a [PodAddress],
    pub mtu: u32,
}

/// An address of a Pod, and the node's own one to which the Pod sends everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodAddress {
    pub address: IpAddr,
    pub gateway: IpAddr,
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
    if Path::new(IPV6).join(pod.host_name).exists() {
        // Words of a Pod about routers and routes count for nothing, whether it has an address of IPv6 or not.
        set_ipv6(pod.host_name, "accept_ra", "0")?;
        set_ipv6(pod.host_name, "accept_redirects", "0")?;
    }
    if pod.addresses.iter().any(|a| a.address.is_ipv6()) {
        set_ipv6(pod.host_name, "disable_ipv6", "0")?;
    }
    let peer_index = index_of(&handle, &peer).await?;
    let mut moved = LinkUnspec::new_with_index(peer_index).setns_by_fd(netns.as_raw_fd());
    if pod.mtu > 0 {
        moved = moved.mtu(pod.mtu);
    }
    handle.link().set(moved.build()).execute().await.map_err(netlink("move the interface into the sandbox"))?;

    let inside = Inside { peer, interface: pod.interface.to_owned(), addresses: pod.addresses.to_vec() };
    let mac = namespace::inside(netns, move || async move { inside.configure().await }).await?;

    let index = index_of(&handle, pod.host_name).await?;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(netlink("bring the host's interface up"))?;
    for PodAddress { address, gateway } in pod.addresses {
        give(&handle, index, *gateway).await.map_err(netlink("give the host's interface its address"))?;
        lead(&handle, index, *address, *gateway).await?;
    }
    Ok(mac)
}

/// Where the settings of interfaces for IPv6 are, in a kernel that has it.
const IPV6: &str = "/proc/sys/net/ipv6/conf";

/// A setting of an interface of this thread's namespace. A kernel without IPv6 has none.
fn set_ipv6(interface: &str, setting: &str, value: &str) -> Result<(), LinkError> {
    let file = Path::new(IPV6).join(interface).join(setting);
    settings::set(&file, value).map_err(system("set an interface up for IPv6"))
}

/// Has an interface take addresses of IPv6, and believe nobody about routers.
pub(crate) fn take_ipv6(interface: &str) -> Result<(), LinkError> {
    set_ipv6(interface, "accept_ra", "0")?;
    set_ipv6(interface, "disable_ipv6", "0")
}

/// Lets packets from a loopback address of this machine out to a Pod: those for its host ports, which get the node's address on
/// the way. The rules keep others from the machine's loopback addresses.
pub(crate) fn answer_loopback(host_name: &str) -> Result<(), LinkError> {
    let file = Path::new("/proc/sys/net/ipv4/conf").join(host_name).join("route_localnet");
    settings::set(&file, "1").map_err(system("lead from this machine's loopback address to a Pod"))
}

/// The length of a prefix that is one address.
fn whole(address: IpAddr) -> u8 {
    IpNet::from(address).prefix_len()
}

/// Gives an interface an address of its own alone. Nobody else can have it, so that nothing waits for a check that nobody has.
pub(crate) async fn give(handle: &Handle, index: u32, address: IpAddr) -> Result<(), rtnetlink::Error> {
    let mut own = handle.address().add(index, address, whole(address)).replace();
    if address.is_ipv6() {
        own.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    }
    own.execute().await
}

/// A route to a range, as far as it is the same for all of them.
pub(crate) fn route_to(range: IpNet) -> RouteMessageBuilder<IpAddr> {
    let route = RouteMessageBuilder::<IpAddr>::new().destination_prefix(range.network(), range.prefix_len());
    route.expect("a range's length fits its family")
}

/// The route to everything else, through this gateway.
pub(crate) fn default_route(gateway: IpAddr) -> RouteMessage {
    let all: IpAddr = if gateway.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let all = route_to(IpNet::new(all, 0).expect("every family has all of its addresses"));
    all.gateway(gateway).expect("the route is of the gateway's family").build()
}

/// A route to addresses at the other end of a link.
pub(crate) fn on_link(range: IpNet, index: u32) -> RouteMessageBuilder<IpAddr> {
    let route = route_to(range).output_interface(index);
    // Routes of IPv6 have no scope.
    if range.addr().is_ipv4() { route.scope(RouteScope::Link) } else { route }
}

/// The node's route to a Pod.
pub(crate) async fn lead(handle: &Handle, index: u32, pod: IpAddr, gateway: IpAddr) -> Result<(), LinkError> {
    let route = on_link(pod.into(), index).pref_source(gateway).expect("a Pod and its gateway are of one family");
    handle.route().add(route.build()).replace().execute().await.map_err(netlink("add the route to the Pod"))
}

struct Inside {
    peer: String,
    interface: String,
    addresses: Vec<PodAddress>,
}

impl Inside {
    /// The Pod's end; runs inside the Pod's namespace.
    async fn configure(self) -> Result<String, LinkError> {
        let handle = connect()?;
        bring_loopback_up(&handle).await?;
        let index = index_of(&handle, &self.peer).await?;
        let named = LinkUnspec::new_with_index(index).name(self.interface.clone()).up().build();
        handle.link().set(named).execute().await.map_err(netlink("name the Pod's interface"))?;
        for PodAddress { address, gateway } in self.addresses {
            if address.is_ipv6() {
                set_ipv6(&self.interface, "disable_ipv6", "0")?;
            }
            give(&handle, index, address).await.map_err(netlink("give the Pod its address"))?;
            let to_gateway = on_link(gateway.into(), index).build();
            let added = handle.route().add(to_gateway).execute().await;
            added.map_err(netlink("add the Pod's route to its gateway"))?;
            let added = handle.route().add(default_route(gateway)).execute().await;
            added.map_err(netlink("add the Pod's default route"))?;
        }
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
