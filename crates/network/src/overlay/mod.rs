//! Pods of different nodes reach each other: in the open, by routes and tunnels ([`routes`]), or encrypted ([`wireguard`]).
//!
//! Where a node is and which addresses its Pods have is in its Node, and its public key too where there is one; the rest (the
//! tunnel's addresses) follows from that. A node cannot take over the Pods of others by what it says about itself ([`peers`]).
//! Interfaces, their peers and the routes stay when the process ends, as Pods do; the next one goes on with them.
//! Parts that somebody removes by hand are put back (`losses.rs`).

pub(crate) mod kernel;
pub mod key;
pub mod peers;
pub mod plan;
pub mod routes;
pub mod wireguard;

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use ipnet::IpNet;

use self::{
    kernel::Kernel,
    key::{PrivateKey, PublicKey},
    peers::Peer,
    plan::{Mode, Uplink},
    routes::Routes,
    wireguard::Encrypted,
};
use crate::error::{LinkError, NetworkError};

/// The interface with the node's address, if this machine has one.
pub async fn uplink(address: IpAddr) -> Result<Option<Uplink>, LinkError> {
    Kernel::open()?.uplink(address).await
}

/// Removes the routes to other nodes that do not go with a link of ours.
pub async fn remove_routes() -> Result<(), LinkError> {
    Kernel::open()?.remove_all_routes().await
}

/// The ways to other nodes in one family of addresses, as they are in the kernel.
pub enum Overlay {
    Open(Box<Routes>),
    Encrypted(Box<Encrypted>),
}

impl Overlay {
    /// Begins, with the interface that the mode has. `range` is that of this node's Pods, `cluster` that of all.
    pub async fn new(
        uplink: Uplink,
        mode: Mode,
        range: IpNet,
        cluster: IpNet,
        key_file: &Path,
    ) -> Result<Self, NetworkError> {
        Ok(match mode {
            Mode::Wireguard => {
                let key = PrivateKey::of_node(key_file)?;
                Overlay::Encrypted(Box::new(Encrypted::new(uplink, range, cluster, key).await?))
            }
            Mode::Auto | Mode::Direct | Mode::Vxlan => Overlay::Open(Box::new(Routes::new(uplink, mode, range).await?)),
        })
    }

    /// Forgets what the kernel told so far: the interface of the other family is made on the uplink too, and nothing was lost by that.
    pub fn listen_anew(&mut self) -> Result<(), LinkError> {
        match self {
            Overlay::Open(routes) => routes.listen_anew(),
            Overlay::Encrypted(encrypted) => encrypted.listen_anew(),
        }
    }

    /// Waits until something is missing in the kernel that [`Overlay::follow`] wrote; its next call puts it back.
    pub async fn lost(&mut self) {
        match self {
            Overlay::Open(routes) => routes.lost().await,
            Overlay::Encrypted(encrypted) => encrypted.lost().await,
        }
        tracing::warn!("somebody changed the ways to other nodes' Pods, writing them again");
    }

    /// Makes the kernel lead to these nodes and no others. After an error the next call goes on where this one ended.
    pub async fn follow(&mut self, peers: &BTreeMap<IpNet, Peer>) -> Result<(), NetworkError> {
        match self {
            Overlay::Open(routes) => routes.follow(peers).await,
            Overlay::Encrypted(encrypted) => encrypted.follow(peers).await,
        }
    }

    /// The range of this node's own Pods.
    pub fn range(&self) -> IpNet {
        match self {
            Overlay::Open(routes) => routes.range(),
            Overlay::Encrypted(encrypted) => encrypted.range(),
        }
    }

    /// The rules about nodes that may use the tunnel, as they are in the kernel.
    pub fn rules(&self) -> String {
        match self {
            Overlay::Open(routes) => routes.rules(),
            Overlay::Encrypted(encrypted) => encrypted.rules(),
        }
    }

    /// The key that other nodes have to know of this one.
    pub fn public_key(&self) -> Option<PublicKey> {
        match self {
            Overlay::Open(_) => None,
            Overlay::Encrypted(encrypted) => Some(encrypted.public_key()),
        }
    }
}
