//! The Pod network of a node: a CNI plugin, the address range, masquerading and host ports.
//!
//! Every Pod has a veth pair of its own and a `/32` route on the node; the Pod reaches everything through the node
//! ("ptp" in CNI's terms). So all traffic between Pods is routed and passes connection tracking, and Services work
//! between Pods of one node without the bridge netfilter module that a shared bridge would need.
//! Reads: Node (its `podCIDR`). Writes: the CNI configuration, the kernel's table `ip skiff-network`, links and routes.
//! Upstream counterpart: the plugins ptp, host-local and portmap of containernetworking/plugins.

pub mod cni;
pub mod conflist;
pub mod ipam;
pub mod link;
pub mod rules;

use std::path::PathBuf;

use client::{Caches, Key};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::broadcast::error::RecvError;

/// The names under which the container engine calls this program as a plugin.
pub const PLUGINS: [&str; 2] = [conflist::PLUGIN, cni::LOOPBACK];

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// Where the container engine looks for CNI configurations.
    pub conf_dir: PathBuf,
    /// Where the plugin keeps which address belongs to which sandbox.
    pub state_dir: PathBuf,
    /// Addresses of all Pods of the cluster: traffic to them keeps its source.
    pub cluster_cidr: Ipv4Net,
    /// The Pods' MTU; 0 takes the kernel's default.
    pub mtu: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot write the Pod network's rules: {0}")]
    Rules(#[from] nft::ApplyError),
}

/// Waits until the node has an address range, sets the network up, and keeps following the range until cancelled.
pub async fn run(caches: Caches, config: Config) -> Result<(), NetworkError> {
    let nodes = caches.selected::<Node>(&format!("metadata.name={}", config.node_name));
    let mut changes = nodes.subscribe();
    nodes.synced().await;
    let mut current = None;
    loop {
        let node = nodes.get(&Key::new("", &config.node_name));
        if let Some(range) = node.and_then(|n| range_of(&n)).filter(|range| current != Some(*range)) {
            set_up(&config, range).await?;
            current = Some(range);
        }
        if let Err(RecvError::Closed) = changes.recv().await {
            return Ok(());
        }
    }
}

fn range_of(node: &Node) -> Option<Ipv4Net> {
    let spec = node.spec.as_ref()?;
    spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr).find_map(|c| c.parse().ok())
}

async fn set_up(config: &Config, range: Ipv4Net) -> Result<(), NetworkError> {
    let forward = PathBuf::from("/proc/sys/net/ipv4/ip_forward");
    if std::fs::read_to_string(&forward).is_ok_and(|v| v.trim() != "1") {
        std::fs::write(&forward, "1\n").map_err(|source| NetworkError::Write { path: forward, source })?;
    }
    nft::transaction(&rules::table(range, config.cluster_cidr)).await?;
    // The configuration comes last: the engine starts Pods as soon as it is there.
    conflist::write(config, range)?;
    tracing::info!(%range, "the Pod network is ready");
    Ok(())
}

/// Removes every trace from the kernel: links, routes (they go with their links) and rules.
pub async fn remove() -> Result<(), NetworkError> {
    link::remove_all().await;
    Ok(nft::remove_table(rules::TABLE).await?)
}
