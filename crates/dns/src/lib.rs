//! Cluster DNS: names of Services and Pods after the Kubernetes DNS specification (1.1.0), everything else forwarded.
//!
//! [`records`] says which records a Service has (pure), [`zone`] holds them all and answers (pure), [`reply`] makes packets
//! of it (pure), [`server`] listens, [`forward`] asks the node's own resolvers. Only this node and the cluster's Pods are answered.
//! Reads: Service, EndpointSlice. Upstream counterpart: CoreDNS with the kubernetes, forward and cache plugins.

pub mod forward;
pub mod records;
pub mod reply;
pub mod server;
pub mod zone;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use client::{
    Caches, Key,
    slices::{Changed, Services},
};
use parking_lot::RwLock;

use crate::zone::Zone;

#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen, on UDP and TCP.
    pub listen: SocketAddr,
    /// The cluster's domain, `cluster.local`.
    pub domain: String,
    /// Addresses that may ask, besides this machine's own: the Pods' range.
    pub clients: Vec<ipnet::IpNet>,
    /// The file that names the resolvers for all other names.
    pub resolv_conf: PathBuf,
    /// The address by which Pods know cluster DNS: a resolver with it would be ourselves.
    pub own_addresses: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("cluster DNS cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cluster domain {0:?} is not a DNS name")]
    Domain(String),
}

/// Cluster DNS with its sockets, not answering yet.
pub struct Dns {
    zone: Arc<RwLock<Zone>>,
    server: server::Server,
}

/// Takes the sockets, so that whatever is in the way is known before the node counts as ready.
pub async fn bind(config: &Config) -> Result<Dns, DnsError> {
    let zone = Zone::new(&config.domain).ok_or_else(|| DnsError::Domain(config.domain.clone()))?;
    let zone = Arc::new(RwLock::new(zone));
    Ok(Dns { server: server::Server::bind(config, zone.clone()).await?, zone })
}

impl Dns {
    /// Answers until cancelled.
    pub async fn run(self, caches: Caches) {
        tokio::select! {
            () = follow(caches, self.zone) => {}
            () = self.server.serve() => {}
        }
    }
}

/// Keeps the zone as the API has it.
async fn follow(caches: Caches, zone: Arc<RwLock<Zone>>) {
    let mut services = Services::follow(&caches);
    services.synced().await;
    let mut changed = Changed::Any;
    loop {
        let keys: BTreeSet<Key> = match changed {
            Changed::These(keys) => keys,
            Changed::Any => services.keys().into_iter().chain(zone.read().owners()).collect(),
        };
        for key in keys {
            let records = services.get(&key).map(|(service, slices)| records::of(&service, &slices));
            zone.write().set(&key, records.unwrap_or_default());
        }
        changed = services.changed().await;
    }
}

/// The reverse-lookup name of an address: `7.0.96.10.in-addr.arpa`.
pub(crate) fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = v6.octets().into_iter().rev().flat_map(|b| [b & 0xf, b >> 4]);
            let dotted: Vec<String> = nibbles.map(|n| format!("{n:x}")).collect();
            format!("{}.ip6.arpa", dotted.join("."))
        }
    }
}
