//! Cluster DNS: names of Services and Pods after the Kubernetes DNS specification (1.1.0), and whatever else a Corefile
//! says, in CoreDNS' own language.
//!
//! [`corefile`] reads it (pure), [`cluster`] is what the cluster's names follow from (pure), [`follow`] keeps both as the
//! API has them. [`server`] listens, [`reply`] makes questions of packets and packets of answers (pure), [`plugins`]
//! answers. Only this node and the cluster's Pods are answered.
//! Upstream counterpart: CoreDNS with the plugins of kubeadm's Corefile, and those that stub domains need.

pub mod cluster;
pub mod corefile;
mod figures;
mod follow;
mod pages;
pub mod plugins;
pub mod question;
pub mod reply;
pub mod server;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use client::{Caches, EventRecorder};
use parking_lot::RwLock;

use crate::{
    cluster::Cluster,
    follow::Corefile,
    plugins::{Around, Learner},
};

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
    /// Whoever has to know the addresses of some names before the Pods that ask for them do.
    pub learner: Option<Arc<dyn Learner>>,
}

impl Config {
    /// The node's resolv.conf, without the resolvers that are cluster DNS itself.
    fn resolv_conf_without_us(&self) -> String {
        let text = std::fs::read_to_string(&self.resolv_conf).unwrap_or_default();
        let ours = |line: &&str| {
            corefile::values::resolvers(line).iter().any(|r| *r == self.listen || self.own_addresses.contains(&r.ip()))
        };
        for line in text.lines().filter(ours) {
            tracing::warn!(line, file = %self.resolv_conf.display(), "this resolver is cluster DNS itself, left out");
        }
        text.lines().filter(|line| !ours(line)).collect::<Vec<_>>().join("\n")
    }
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
    corefile: Corefile,
    server: server::Server,
}

/// Takes the sockets, so that whatever is in the way is known before the node counts as ready. What is wrong in a Corefile
/// is told with `events`.
pub async fn bind(config: &Config, events: EventRecorder) -> Result<Dns, DnsError> {
    let domain = corefile::values::name(&config.domain).ok().filter(|d| !d.is_empty());
    let domain = domain.ok_or_else(|| DnsError::Domain(config.domain.clone()))?;
    let around = Around {
        cluster: Arc::new(RwLock::new(Cluster::new())),
        own: config.own_addresses.clone(),
        figures: Arc::default(),
        learner: config.learner.clone(),
    };
    let figures = around.figures.clone();
    let config = Config { domain, ..config.clone() };
    let corefile = Corefile::standard(&config, around, events).map_err(|_| DnsError::Domain(config.domain.clone()))?;
    let server = server::Server::bind(&config, corefile.chains.clone(), figures).await?;
    Ok(Dns { corefile, server })
}

impl Dns {
    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.server.address()
    }

    /// Answers until cancelled.
    pub async fn run(self, caches: Caches) {
        let cluster = self.corefile.around.cluster.clone();
        tokio::select! {
            () = follow::services(&caches, &cluster) => {}
            () = follow::namespaces(&caches, &cluster) => {}
            () = self.corefile.follow(&caches) => {}
            () = self.server.serve() => {}
        }
    }
}
