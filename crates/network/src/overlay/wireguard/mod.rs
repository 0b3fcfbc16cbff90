//! Encrypted ways: an interface of WireGuard for each family of addresses, as flannel's backend `wireguard-native` has them. The kernel
//! does the work; this keeps the interface, a peer for each other node, and the routes.
//!
//! One route leads all of the cluster's Pods into the interface, and another that ranks last refuses them while the interface is gone:
//! what is for a node without a key, or is sent before its peer is there, is refused and never leaves in the open. A peer has the
//! addresses that its Node was given (`spec.podCIDRs`, which no node changes or takes from an older one), whatever it sends.
//! Upstream counterpart: flannel's pkg/backend/wireguard.

mod device;
mod message;
mod plan;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use nft::Family;

use self::{
    device::Wireguard,
    plan::{Place, Places, Step},
};
use super::{
    kernel::{self, Kernel},
    key::{PrivateKey, PublicKey},
    peers::Peer,
    plan::Uplink,
};
use crate::{
    error::{LinkError, NetworkError},
    losses::Losses,
    rules,
};

/// Flannel's ports, and its seconds between two signs of life, with which a node's peers know where it is.
fn port(family: Family) -> u16 {
    match family {
        Family::V4 => 51820,
        Family::V6 => 51821,
    }
}
const KEEPALIVE_SECONDS: u16 = 25;

/// How often the kernel is asked for the peers, of which it does not tell by itself.
const PAUSE: clock::Duration = clock::Duration::from_secs(5);

/// Fails with advice where the kernel has no WireGuard.
pub fn require() -> Result<(), LinkError> {
    Wireguard::open().map(drop)
}

/// The encrypted ways to other nodes in one family of addresses, as they are in the kernel.
pub struct Encrypted {
    kernel: Kernel,
    wireguard: Wireguard,
    uplink: Uplink,
    /// The range of this node's own Pods, and that of all.
    range: IpNet,
    cluster: IpNet,
    key: PrivateKey,
    interface: Interface,
    losses: Losses,
    looks: clock::Interval,
    /// Something is missing in the kernel.
    lost: bool,
}

/// The interface, as it is in the kernel.
struct Interface {
    index: u32,
    public_key: PublicKey,
    peers: Places,
}

impl Encrypted {
    pub async fn new(uplink: Uplink, range: IpNet, cluster: IpNet, key: PrivateKey) -> Result<Self, NetworkError> {
        let (kernel, wireguard, cluster) = (Kernel::open()?, Wireguard::open()?, cluster.trunc());
        // Nobody has a tunnel in the open any more.
        nft::transaction(&no_tunnel_peers(range)).await?;
        let interface = set_up(&kernel, &wireguard, &uplink, (range, cluster), &key).await?;
        kernel.remove_old_ways(&uplink, cluster).await?;
        let mut looks = clock::interval(PAUSE);
        looks.set_missed_tick_behavior(clock::MissedTickBehavior::Delay);
        let losses = Losses::listen()?;
        Ok(Encrypted { kernel, wireguard, uplink, range, cluster, key, interface, losses, looks, lost: false })
    }

    pub fn listen_anew(&mut self) -> Result<(), LinkError> {
        self.losses = Losses::listen()?;
        Ok(())
    }

    /// Waits until something is missing in the kernel that [`Encrypted::follow`] wrote. A wait that is dropped goes on with the next call.
    pub async fn lost(&mut self) {
        loop {
            let gone = tokio::select! {
                change = self.losses.next() => change.is_none_or(|change| {
                    kernel::takes_route_to(&change, self.cluster)
                        || kernel::takes_link(&change, &self.uplink, Some(self.interface.index))
                }),
                _ = self.looks.tick() => !self.is_whole(),
            };
            if gone {
                break;
            }
        }
        self.lost = true;
    }

    /// Whether the kernel's interface is as it was left. A peer may be heard from elsewhere meanwhile.
    fn is_whole(&self) -> bool {
        let Ok(device) = self.wireguard.device(self.interface.index) else { return false };
        device.private_key == Some(self.key)
            && device.port == port(Family::of(self.range.addr()))
            && device.peers.len() == self.interface.peers.len()
            && device
                .peers
                .iter()
                .all(|(key, held)| self.interface.peers.get(key).is_some_and(|place| place.ranges == held.ranges))
    }

    /// Begins with the kernel anew. The changes that it has told by now are about parts that are written again.
    async fn begin_anew(&mut self) -> Result<(), LinkError> {
        let address = self.uplink.address;
        let found = self.kernel.uplink(address).await?;
        self.uplink = found.ok_or_else(|| LinkError::Missing(format!("with the address {address}")))?;
        let ranges = (self.range, self.cluster);
        self.interface = set_up(&self.kernel, &self.wireguard, &self.uplink, ranges, &self.key).await?;
        self.losses = Losses::listen()?;
        self.lost = false;
        Ok(())
    }

    /// Makes the interface have these nodes as peers and no others. After an error the next call goes on where this one ended.
    pub async fn follow(&mut self, peers: &BTreeMap<IpNet, Peer>) -> Result<(), NetworkError> {
        if self.lost {
            self.begin_anew().await?;
        }
        let want = plan::places(peers, self.interface.public_key, port(Family::of(self.range.addr())));
        for step in plan::steps(&self.interface.peers, &want) {
            self.take(step)?;
        }
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), LinkError> {
        let (index, peers) = (self.interface.index, &mut self.interface.peers);
        match step {
            Step::Set(key, place) => {
                self.wireguard.set_peer(index, key, (place.endpoint, KEEPALIVE_SECONDS), &place.ranges)?;
                tracing::debug!(%key, ?place, "another node's Pods are reached");
                peers.insert(key, place);
            }
            Step::Remove(key) => {
                self.wireguard.remove_peer(index, key)?;
                peers.remove(&key);
            }
        }
        Ok(())
    }

    pub fn range(&self) -> IpNet {
        self.range
    }

    pub fn rules(&self) -> String {
        no_tunnel_peers(self.range)
    }

    pub fn public_key(&self) -> PublicKey {
        self.interface.public_key
    }
}

/// Packets of VXLAN are taken from nobody: anyone could write them.
fn no_tunnel_peers(range: IpNet) -> String {
    rules::tunnel_peers(Family::of(range.addr()), std::iter::empty())
}

/// Makes the routes and the interface, or what they lack. Peers that are there stay: what goes to them is not interrupted.
async fn set_up(
    kernel: &Kernel,
    wireguard: &Wireguard,
    uplink: &Uplink,
    (range, cluster): (IpNet, IpNet),
    key: &PrivateKey,
) -> Result<Interface, LinkError> {
    kernel.refuse(cluster).await?;
    let index = kernel.encrypted(uplink, range).await?;
    let port = port(Family::of(range.addr()));
    let mut device = wireguard.device(index)?;
    if device.private_key != Some(*key) || device.port != port {
        wireguard.set_device(index, key, port)?;
        device = wireguard.device(index)?;
    }
    kernel.lead_into(cluster, index).await?;
    let public_key = device.public_key.ok_or_else(|| LinkError::Missing("with a public key".to_owned()))?;
    let place = |held: message::DevicePeer| match held.keepalive_seconds {
        KEEPALIVE_SECONDS => Place { endpoint: held.endpoint, ranges: held.ranges },
        // Somebody else's, which is written again or goes.
        _ => Place { endpoint: None, ranges: BTreeSet::new() },
    };
    let peers = device.peers.into_iter().map(|(key, held)| (key, place(held))).collect();
    Ok(Interface { index, public_key, peers })
}
