//! The ways in the open: a route for the range of each other node, either with that node as the next hop or through a VXLAN
//! tunnel, as flannel does it. The tunnel takes packets from nodes of the cluster alone (`rules.rs`).

use std::collections::BTreeMap;

use ipnet::IpNet;
use nft::Family;

use super::{
    kernel::{self, Kernel},
    peers::Peer,
    plan::{self, Mode, Step, Uplink, Way, Ways},
};
use crate::{
    error::{LinkError, NetworkError},
    losses::Losses,
    rules,
};

/// The open ways to other nodes in one family of addresses, as they are in the kernel.
pub struct Routes {
    kernel: Kernel,
    mode: Mode,
    uplink: Uplink,
    /// The range of this node's own Pods.
    range: IpNet,
    /// The tunnel's interface, where tunnels are used.
    tunnel: Option<u32>,
    have: Ways,
    /// Nothing was compared with the kernel yet, in which an earlier process may have left something.
    fresh: bool,
    losses: Losses,
    /// Something is missing in the kernel.
    lost: bool,
}

fn tunnel_peers(range: IpNet, ways: &Ways) -> String {
    rules::tunnel_peers(
        Family::of(range.addr()),
        ways.values().filter_map(|way| match way {
            Way::Tunnel { node, .. } => Some(*node),
            Way::Direct { .. } => None,
        }),
    )
}

/// The tunnel, if the mode has one, and what the kernel tells from then on.
async fn open(kernel: &Kernel, uplink: &Uplink, mode: Mode, range: IpNet) -> Result<(Option<u32>, Losses), LinkError> {
    let tunnel = match mode {
        Mode::Direct | Mode::Wireguard => None,
        Mode::Auto | Mode::Vxlan => Some(kernel.tunnel(uplink, range).await?),
    };
    Ok((tunnel, Losses::listen()?))
}

impl Routes {
    /// Begins, with the tunnel if the mode has one.
    pub async fn new(uplink: Uplink, mode: Mode, range: IpNet) -> Result<Self, LinkError> {
        let kernel = Kernel::open()?;
        let (tunnel, losses) = open(&kernel, &uplink, mode, range).await?;
        let have = Ways::new();
        Ok(Routes { kernel, mode, uplink, range, tunnel, have, fresh: true, losses, lost: false })
    }

    /// Forgets what the kernel told so far: the tunnel of the other family is made on the uplink too, and nothing was lost by that.
    pub fn listen_anew(&mut self) -> Result<(), LinkError> {
        self.losses = Losses::listen()?;
        Ok(())
    }

    /// Waits until something is missing in the kernel that [`Routes::follow`] wrote; its next call puts it back.
    pub async fn lost(&mut self) {
        loop {
            match self.losses.next().await {
                Some(change) if !kernel::takes(&change, &self.have, &self.uplink, self.tunnel) => {}
                Some(_) | None => break,
            }
        }
        self.lost = true;
    }

    /// Begins with the kernel anew. The changes that it has told by now are about parts that are written again.
    async fn begin_anew(&mut self) -> Result<(), LinkError> {
        let address = self.uplink.address;
        let found = self.kernel.uplink(address).await?;
        self.uplink = found.ok_or_else(|| LinkError::Missing(format!("with the address {address}")))?;
        (self.tunnel, self.losses) = open(&self.kernel, &self.uplink, self.mode, self.range).await?;
        (self.have, self.fresh, self.lost) = (Ways::new(), true, false);
        Ok(())
    }

    /// Makes the kernel lead to these nodes and no others. After an error the next call goes on where this one ended.
    pub async fn follow(&mut self, peers: &BTreeMap<IpNet, Peer>) -> Result<(), NetworkError> {
        if self.lost {
            self.begin_anew().await?;
        }
        let want = plan::ways(peers, &self.uplink, self.mode);
        let steps = plan::steps(&self.have, &want);
        if self.fresh || !steps.is_empty() {
            // A node that joins is let in before it is sent anything, and one that leaves is shut out first.
            nft::transaction(&tunnel_peers(self.range, &want)).await?;
        }
        if self.fresh {
            self.kernel.forget_others(&self.uplink, &want, self.tunnel).await?;
            self.fresh = false;
        }
        for step in steps {
            self.take(step).await?;
        }
        Ok(())
    }

    /// The range of this node's own Pods.
    pub fn range(&self) -> IpNet {
        self.range
    }

    /// The rules about who may use the tunnel, as they are in the kernel.
    pub fn rules(&self) -> String {
        tunnel_peers(self.range, &self.have)
    }

    async fn take(&mut self, step: Step) -> Result<(), LinkError> {
        match step {
            Step::Lead(range, way) => {
                self.kernel.lead(range, way, &self.uplink, self.tunnel).await?;
                self.have.insert(range, way);
                tracing::debug!(%range, ?way, "another node's Pods are reached");
            }
            Step::Remove(range, way) => {
                self.kernel.remove_route(range).await?;
                self.forget(way).await?;
                self.have.remove(&range);
            }
            Step::Forget(way) => self.forget(way).await?,
        }
        Ok(())
    }

    /// Takes the neighbours of an old way out of the tunnel, unless another way uses them.
    async fn forget(&self, way: Way) -> Result<(), LinkError> {
        let (Way::Tunnel { node, end, mac }, Some(tunnel)) = (way, self.tunnel) else { return Ok(()) };
        let others = || self.have.values().filter(|other| **other != way);
        let same_end = others().any(|other| matches!(other, Way::Tunnel { end: used, .. } if *used == end));
        let same_mac = others().any(|other| matches!(other, Way::Tunnel { mac: used, .. } if *used == mac));
        if !same_end {
            self.kernel.forget_end(tunnel, end).await?;
        }
        if !same_mac {
            self.kernel.forget_node(tunnel, mac, node).await?;
        }
        Ok(())
    }
}
