//! The overlay in the kernel, through netlink: the interfaces, the tunnel's neighbours, and the routes.

use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use nft::Family;
use rtnetlink::{
    Handle, LinkUnspec, LinkVxlan, LinkWireguard, RouteMessageBuilder,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::AddressAttribute,
        link::{InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage},
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    },
};

use super::plan::{ENCRYPTED_OVERHEAD, Uplink, Way, Ways, mac, overhead};
use crate::{
    error::{LinkError, netlink},
    ipam,
    link::{connect, give, index_of, on_link, route_to},
    rules::{TUNNEL_PORT, encrypted, tunnel},
};

/// The network's number, as flannel has it.
const VNI: u32 = 1;
/// The mark of our routes in the kernel, which nobody else is known to use (`/etc/iproute2/rt_protos`).
const OURS: RouteProtocol = RouteProtocol::Other(83);
/// The rank of a route that counts only where there is no other.
const LAST: u32 = u32::MAX;

pub struct Kernel {
    handle: Handle,
}

impl Kernel {
    pub fn open() -> Result<Self, LinkError> {
        Ok(Kernel { handle: connect()? })
    }

    pub async fn uplink(&self, address: IpAddr) -> Result<Option<Uplink>, LinkError> {
        let mut addresses = self.handle.address().get().execute();
        let failed = netlink("list the addresses");
        while let Some(found) = addresses.try_next().await.map_err(&failed)? {
            if !found.attributes.iter().any(|a| is_address(a, address)) {
                continue;
            }
            let index = found.header.index;
            let link = IpNet::new(address, found.header.prefix_len).unwrap_or_else(|_| address.into()).trunc();
            let Some(mtu) = self.link(index).await?.and_then(|link| mtu(&link)) else { continue };
            return Ok(Some(Uplink { index, address, link, mtu }));
        }
        Ok(None)
    }

    async fn link(&self, index: u32) -> Result<Option<LinkMessage>, LinkError> {
        self.handle.link().get().match_index(index).execute().try_next().await.map_err(netlink("read an interface"))
    }

    /// The tunnel's interface. One that is there and is as it must be stays: what goes through it is not interrupted.
    pub async fn tunnel(&self, uplink: &Uplink, range: IpNet) -> Result<u32, LinkError> {
        let name = tunnel(Family::of(uplink.address));
        if let Ok(index) = index_of(&self.handle, name).await {
            if let Some(link) = self.link(index).await?.filter(|link| is_tunnel_of(link, uplink)) {
                self.address(index, range).await?;
                if !link.header.flags.contains(LinkFlags::Up) {
                    self.bring_up(index).await?;
                }
                return Ok(index);
            }
            self.handle.link().del(index).execute().await.map_err(netlink("remove the old tunnel"))?;
        }
        // Without learning: what other nodes send says nothing about where Pods are.
        let made = LinkVxlan::new(name, VNI).dev(uplink.index);
        let made = match uplink.address {
            IpAddr::V4(address) => made.local(address),
            IpAddr::V6(address) => made.local6(address),
        };
        let made = made
            .port(TUNNEL_PORT)
            .learning(false)
            .address(mac(uplink.address).to_vec())
            .mtu(uplink.mtu.saturating_sub(overhead(uplink.address)));
        self.handle.link().add(made.build()).execute().await.map_err(netlink("create the tunnel"))?;
        let index = index_of(&self.handle, name).await?;
        self.address(index, range).await?;
        self.bring_up(index).await?;
        Ok(index)
    }

    /// The interface of encrypted ways. One that is there stays, with its key and its peers.
    pub async fn encrypted(&self, uplink: &Uplink, range: IpNet) -> Result<u32, LinkError> {
        let (name, wanted) = (encrypted(Family::of(range.addr())), uplink.mtu.saturating_sub(ENCRYPTED_OVERHEAD));
        let there = match index_of(&self.handle, name).await {
            Ok(index) => self.link(index).await?,
            Err(_) => None,
        };
        let is_up = |link: &LinkMessage| link.header.flags.contains(LinkFlags::Up) && mtu(link) == Some(wanted);
        let (index, ready) = match there {
            Some(link) if is_wireguard(&link) => (link.header.index, is_up(&link)),
            other => {
                if let Some(other) = other {
                    let removed = self.handle.link().del(other.header.index).execute().await;
                    removed.map_err(netlink("remove an interface with the name of the encrypted one"))?;
                }
                let made = self.handle.link().add(LinkWireguard::new(name).build()).execute().await;
                made.map_err(netlink("create the encrypted interface"))?;
                (index_of(&self.handle, name).await?, false)
            }
        };
        self.address(index, range).await?;
        if !ready {
            let up = LinkUnspec::new_with_index(index).mtu(wanted).up().build();
            self.handle.link().set(up).execute().await.map_err(netlink("bring the encrypted interface up"))?;
        }
        Ok(index)
    }

    /// All of a range is sent into the interface.
    pub async fn lead_into(&self, range: IpNet, index: u32) -> Result<(), LinkError> {
        let route = on_link(range, index).protocol(OURS).build();
        let added = self.handle.route().add(route).replace().execute().await;
        added.map_err(netlink("add the route to other nodes' Pods"))
    }

    /// All of a range is refused as long as no other route leads there.
    pub async fn refuse(&self, range: IpNet) -> Result<(), LinkError> {
        let route = route_to(range).protocol(OURS).kind(RouteType::Unreachable).priority(LAST).build();
        let added = self.handle.route().add(route).replace().execute().await;
        added.map_err(netlink("add the route that refuses Pods out of reach"))
    }

    async fn bring_up(&self, tunnel: u32) -> Result<(), LinkError> {
        let up = LinkUnspec::new_with_index(tunnel).up().build();
        self.handle.link().set(up).execute().await.map_err(netlink("bring the tunnel up"))
    }

    /// The node's own address on the Pod network, with which it speaks to Pods of other nodes.
    async fn address(&self, tunnel: u32, range: IpNet) -> Result<(), LinkError> {
        give(&self.handle, tunnel, ipam::gateway(range)).await.map_err(netlink("give the tunnel its address"))
    }

    /// The neighbours come first: a packet that takes the route finds them.
    pub async fn lead(&self, range: IpNet, way: Way, uplink: &Uplink, tunnel: Option<u32>) -> Result<(), LinkError> {
        let route = route_to(range).protocol(OURS);
        let same_family = "ways lead to addresses of their range's family";
        let route = match (way, tunnel) {
            (Way::Tunnel { node, end, mac }, Some(tunnel)) => {
                let neighbours = self.handle.neighbours();
                let to_node =
                    neighbours.add_bridge(tunnel, &mac).flags(NeighbourFlags::Own).destination(node).replace();
                to_node.execute().await.map_err(netlink("tell the tunnel where a node is"))?;
                let to_end = neighbours.add(tunnel, end).link_layer_address(&mac).replace();
                to_end.execute().await.map_err(netlink("tell the tunnel's other end"))?;
                route.gateway(end).expect(same_family).output_interface(tunnel).onlink()
            }
            (Way::Tunnel { .. }, None) => return Err(LinkError::Missing(tunnel_name(uplink).to_owned())),
            (Way::Direct { node }, _) => {
                route.gateway(node).expect(same_family).output_interface(uplink.index).onlink()
            }
        };
        let added = self.handle.route().add(route.build()).replace().execute().await;
        added.map_err(netlink("add the route to another node's Pods"))
    }

    pub async fn remove_route(&self, range: IpNet) -> Result<(), LinkError> {
        self.remove_routes(Family::of(range.addr()), |route| destination(route) == Some(range)).await
    }

    pub async fn forget_end(&self, tunnel: u32, end: IpAddr) -> Result<(), LinkError> {
        let is_it = |n: &NeighbourMessage| address_of(n) == Some(end);
        self.forget(tunnel, neighbours(Family::of(end)), is_it).await
    }

    pub async fn forget_node(&self, tunnel: u32, mac: [u8; 6], node: IpAddr) -> Result<(), LinkError> {
        let is_it = |n: &NeighbourMessage| address_of(n) == Some(node) && mac_of(n) == Some(&mac);
        self.forget(tunnel, AddressFamily::Bridge, is_it).await
    }

    /// Removes what an earlier process left that leads to none of these.
    pub async fn forget_others(&self, uplink: &Uplink, want: &Ways, tunnel: Option<u32>) -> Result<(), LinkError> {
        let family = Family::of(uplink.address);
        let is_old = |route: &RouteMessage| destination(route).is_none_or(|range| !want.contains_key(&range));
        self.remove_routes(family, is_old).await?;
        self.remove_link(encrypted(family)).await?;
        let Some(tunnel) = tunnel else {
            // The mode has none any more.
            return self.remove_link(tunnel_name(uplink)).await;
        };
        self.forget(tunnel, neighbours(family), |n| !used(want, n)).await?;
        self.forget(tunnel, AddressFamily::Bridge, |n| !used(want, n)).await
    }

    /// Removes what an earlier process left of ways in the open.
    pub async fn remove_old_ways(&self, uplink: &Uplink, cluster: IpNet) -> Result<(), LinkError> {
        self.remove_routes(Family::of(uplink.address), |route| destination(route) != Some(cluster)).await?;
        self.remove_link(tunnel_name(uplink)).await
    }

    pub async fn remove_all_routes(&self) -> Result<(), LinkError> {
        for family in Family::ALL {
            self.remove_routes(family, |_| true).await?;
        }
        Ok(())
    }

    /// Removes the routes of ours that `which` names.
    async fn remove_routes(&self, family: Family, which: impl Fn(&RouteMessage) -> bool) -> Result<(), LinkError> {
        for route in self.routes(family).await?.into_iter().filter(which) {
            self.handle.route().del(route).execute().await.map_err(netlink("remove an old route"))?;
        }
        Ok(())
    }

    async fn remove_link(&self, name: &str) -> Result<(), LinkError> {
        match index_of(&self.handle, name).await {
            Ok(old) => self.handle.link().del(old).execute().await.map_err(netlink("remove an old interface")),
            Err(_) => Ok(()),
        }
    }

    async fn routes(&self, family: Family) -> Result<Vec<RouteMessage>, LinkError> {
        let any = RouteMessageBuilder::<IpAddr>::new()
            .protocol(RouteProtocol::Unspec)
            .scope(RouteScope::Universe)
            .kind(RouteType::Unspec);
        let mut any = any.build();
        any.header.address_family = neighbours(family);
        let all = self.handle.route().get(any).execute();
        all.try_filter(|route| std::future::ready(route.header.protocol == OURS))
            .try_collect()
            .await
            .map_err(netlink("list the routes"))
    }

    /// Removes the tunnel's permanent neighbours of a family that `which` names.
    async fn forget(
        &self,
        tunnel: u32,
        family: AddressFamily,
        which: impl Fn(&NeighbourMessage) -> bool,
    ) -> Result<(), LinkError> {
        let all = self.handle.neighbours().get().set_address_family(family).execute();
        let ours =
            all.try_filter(|n| std::future::ready(n.header.ifindex == tunnel && address_of(n).is_some() && which(n)));
        let ours: Vec<_> = ours.try_collect().await.map_err(netlink("list the tunnel's neighbours"))?;
        for neighbour in ours {
            self.handle
                .neighbours()
                .del(neighbour)
                .execute()
                .await
                .map_err(netlink("remove a neighbour of the tunnel"))?;
        }
        Ok(())
    }
}

/// Whether one of the ways needs this neighbour of the tunnel.
fn used(ways: &Ways, found: &NeighbourMessage) -> bool {
    ways.values().any(|way| match way {
        Way::Tunnel { node, end, mac } => {
            mac_of(found) == Some(mac) && [*node, *end].map(Some).contains(&address_of(found))
        }
        Way::Direct { .. } => false,
    })
}

/// Whether a change in the kernel may have taken something from these ways, or brought back what they need. Changes of our
/// own making are about ways that there are not (any more), or add what is wanted.
pub fn takes(change: &RouteNetlinkMessage, ways: &Ways, uplink: &Uplink, tunnel: Option<u32>) -> bool {
    match change {
        RouteNetlinkMessage::DelRoute(route) => {
            route.header.protocol == OURS && destination(route).is_some_and(|range| ways.contains_key(&range))
        }
        RouteNetlinkMessage::DelNeighbour(gone) => {
            // A neighbour that goes has no hardware address any more.
            let leads = |way: &Way| match way {
                Way::Tunnel { node, end, .. } => [*node, *end].map(Some).contains(&address_of(gone)),
                Way::Direct { .. } => false,
            };
            Some(gone.header.ifindex) == tunnel && ways.values().any(leads)
        }
        other => takes_link(other, uplink, tunnel),
    }
}

/// Whether a change took one of our routes to this range.
pub fn takes_route_to(change: &RouteNetlinkMessage, range: IpNet) -> bool {
    match change {
        RouteNetlinkMessage::DelRoute(route) => route.header.protocol == OURS && destination(route) == Some(range),
        _ => false,
    }
}

/// Whether a change may have taken the uplink, our own interface or an address of theirs, or brought the uplink back.
pub fn takes_link(change: &RouteNetlinkMessage, uplink: &Uplink, tunnel: Option<u32>) -> bool {
    let of_ours = |index: u32| index == uplink.index || Some(index) == tunnel;
    let is_own = |a: &AddressAttribute| is_address(a, uplink.address);
    match change {
        RouteNetlinkMessage::DelLink(link) => of_ours(link.header.index),
        RouteNetlinkMessage::NewLink(link) if Some(link.header.index) == tunnel => {
            !link.header.flags.contains(LinkFlags::Up)
        }
        // A link that goes down takes its routes along; they can be given back when it is up.
        RouteNetlinkMessage::NewLink(link) => link.header.index == uplink.index,
        RouteNetlinkMessage::DelAddress(gone) => of_ours(gone.header.index),
        RouteNetlinkMessage::NewAddress(address) => address.attributes.iter().any(is_own),
        _ => false,
    }
}

/// The kernel's word for the neighbours and routes of a family.
fn neighbours(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

fn tunnel_name(uplink: &Uplink) -> &'static str {
    tunnel(Family::of(uplink.address))
}

/// Whether an attribute says that an interface has this address. Of IPv6 the kernel tells no other end, and no local one then.
fn is_address(attribute: &AddressAttribute, address: IpAddr) -> bool {
    match attribute {
        AddressAttribute::Local(ip) => *ip == address,
        AddressAttribute::Address(ip) => address.is_ipv6() && *ip == address,
        _ => false,
    }
}

fn mtu(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|a| if let LinkAttribute::Mtu(mtu) = a { Some(*mtu) } else { None })
}

fn is_wireguard(link: &LinkMessage) -> bool {
    link.attributes
        .iter()
        .any(|a| matches!(a, LinkAttribute::LinkInfo(infos) if infos.contains(&LinkInfo::Kind(InfoKind::Wireguard))))
}

fn is_tunnel_of(link: &LinkMessage, uplink: &Uplink) -> bool {
    let has = |wanted: &LinkAttribute| link.attributes.contains(wanted);
    let mut data = link.attributes.iter().find_map(|a| {
        let LinkAttribute::LinkInfo(infos) = a else { return None };
        infos.iter().find_map(|i| if let LinkInfo::Data(InfoData::Vxlan(data)) = i { Some(data) } else { None })
    });
    let wanted = [
        InfoVxlan::Id(VNI),
        InfoVxlan::Link(uplink.index),
        match uplink.address {
            IpAddr::V4(address) => InfoVxlan::Local(address),
            IpAddr::V6(address) => InfoVxlan::Local6(address),
        },
        InfoVxlan::Port(TUNNEL_PORT),
        InfoVxlan::Learning(false),
    ];
    data.take().is_some_and(|data| wanted.iter().all(|w| data.contains(w)))
        && has(&LinkAttribute::Mtu(uplink.mtu.saturating_sub(overhead(uplink.address))))
        && has(&LinkAttribute::Address(mac(uplink.address).to_vec()))
}

pub(crate) fn destination(route: &RouteMessage) -> Option<IpNet> {
    let to = route.attributes.iter().find_map(|a| match a {
        RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(IpAddr::V4(*to)),
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => Some(IpAddr::V6(*to)),
        _ => None,
    });
    IpNet::new(to?, route.header.destination_prefix_length).ok()
}

fn address_of(neighbour: &NeighbourMessage) -> Option<IpAddr> {
    neighbour.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        // Of the tunnel's own table the kernel gives plain bytes.
        NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
            let four = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
            four.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from)).ok()
        }
        _ => None,
    })
}

fn mac_of(neighbour: &NeighbourMessage) -> Option<&[u8; 6]> {
    neighbour.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    })
}
