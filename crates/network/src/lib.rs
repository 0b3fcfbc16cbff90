//! The Pod network of a node: a CNI plugin, the address range, masquerading and host ports.
//!
//! Every Pod has a veth pair of its own and a `/32` route on the node; the Pod reaches everything through the node
//! ("ptp" in CNI's terms). So all traffic between Pods is routed and passes connection tracking, and Services work
//! between Pods of one node without the bridge netfilter module that a shared bridge would need.
//! Reads: Node (its `podCIDR`). Writes: the CNI configuration, the kernel's table `ip skiff-network`, links and routes.
//! Upstream counterpart: the plugins ptp, host-local and portmap of containernetworking/plugins.

pub mod cni;
pub mod conflist;
mod error;
pub mod host_ports;
pub mod ipam;
pub mod link;
pub mod local_nodes;
mod losses;
pub mod namespace;
pub mod overlay;
pub mod pod_routes;
pub mod rules;

use std::{net::Ipv4Addr, path::PathBuf, time::Duration};

use client::{Caches, Change, Key};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    task::JoinSet,
};

pub use error::{LinkError, NetworkError};
use overlay::{
    Overlay,
    peers::{peer, peers, range_of},
    plan::Mode,
};

/// The beginning of the names of the links to Pods, on the node's side.
pub use link::PREFIX as POD_LINKS;

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
    /// The address at which other nodes reach this one.
    pub node_address: Option<Ipv4Addr>,
    /// How Pods of other nodes are reached.
    pub mode: Mode,
}

/// How long is waited before the kernel is asked again for what it refused; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Waits until the node has an address range, sets the network up, and keeps following the range and the other nodes until
/// cancelled. Own Pods do not wait for the others: a control plane may not let a node read them.
pub async fn run(caches: Caches, config: Config) -> Result<(), NetworkError> {
    let own = caches.selected::<Node>(&format!("metadata.name={}", config.node_name));
    let all = caches.of::<Node>();
    let (mut changes, mut others) = (own.subscribe(), all.subscribe());
    own.synced().await;
    let (mut current, mut overlay, mut wait) = (None, None, FIRST_WAIT);
    let mut watch = nft::Watch::default();
    let mut routes = JoinSet::new();
    loop {
        let node = own.get(&Key::new("", &config.node_name));
        if let Some(range) = node.as_deref().and_then(range_of).filter(|range| current != Some(*range)) {
            overlay = set_up(&config, range).await?;
            current = Some(range);
            routes.abort_all();
            routes.spawn(pod_routes::keep(config.state_dir.clone(), range));
        }
        let mut failed = false;
        let others_known = all.revision() > 0;
        if let (Some(overlay), Some(node), true) = (&mut overlay, &node, others_known) {
            let followed = overlay.follow(&peers(node, &all.list(), config.cluster_cidr)).await;
            failed = followed.inspect_err(|error| tracing::warn!("{error}; trying again")).is_err();
        }
        let again = wait;
        wait = if failed { (wait * 2).min(LONGEST_WAIT) } else { FIRST_WAIT };
        let open = tokio::select! {
            open = news(&mut changes, |_, _| true) => open,
            open = news(&mut others, |old, new| old.and_then(peer) != new.and_then(peer)) => open,
            () = all.synced(), if !others_known => true,
            () = lost(&mut overlay) => true,
            () = watch.others() => {
                if let Some(range) = current {
                    heal(&mut watch, &config, range, overlay.as_ref()).await;
                }
                true
            }
            () = clock::sleep(again), if failed => true,
        };
        if !open {
            return Ok(());
        }
    }
}

/// Somebody changed rules: puts back what is missing of ours.
async fn heal(watch: &mut nft::Watch, config: &Config, range: Ipv4Net, overlay: Option<&Overlay>) {
    let fixed = rules::table(range, config.cluster_cidr);
    let peers = overlay.map(Overlay::rules).unwrap_or_default();
    let ports = host_ports::all(&config.state_dir);
    let open = |(address, ports): &(Ipv4Addr, Vec<rules::HostPort>)| {
        ports.iter().map(|port| port.open_again(*address)).collect::<String>()
    };
    let everything = format!("{fixed}{peers}{}", ports.iter().map(open).collect::<String>());
    let Some(missing) = watch.missing(rules::TABLE, &everything).await else { return };
    tracing::warn!(missing, "somebody changed the Pod network's rules, writing them again");
    if let Err(error) = nft::transaction(&format!("{fixed}{peers}")).await {
        tracing::error!(%error, "the Pod network's rules cannot be written again");
    }
    // Each Pod on its own: one whose port is another's already does not keep the others from theirs.
    for of_pod in &ports {
        if let Err(error) = nft::transaction(&open(of_pod)).await {
            tracing::warn!(address = %of_pod.0, %error, "the host ports of a Pod cannot be opened again");
        }
    }
    // The plugin is another process: a sandbox that went meanwhile has closed its ports before they were opened here again.
    for (address, ports) in ports.iter().filter(|(address, _)| host_ports::kept(&config.state_dir, *address).is_none())
    {
        tracing::debug!(%address, "a Pod went while its host ports were opened again");
        for port in ports {
            let _ = nft::transaction(&port.close()).await;
        }
    }
}

/// Waits until the ways to other nodes have to be written again.
async fn lost(overlay: &mut Option<Overlay>) {
    match overlay {
        Some(overlay) => overlay.lost().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change that matters; lost changes may have been some. False when there will be none any more.
async fn news(changes: &mut Receiver<Change<Node>>, matters: impl Fn(Option<&Node>, Option<&Node>) -> bool) -> bool {
    loop {
        match changes.recv().await {
            Ok(change) if !matters(change.old.as_deref(), change.new.as_deref()) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return true,
            Err(RecvError::Closed) => return false,
        }
    }
}

/// Sets the node's own part up. The ways to other nodes begin with what this returns.
async fn set_up(config: &Config, range: Ipv4Net) -> Result<Option<Overlay>, NetworkError> {
    forward()?;
    nft::transaction(&rules::table(range, config.cluster_cidr)).await?;
    let uplink = match config.node_address {
        Some(address) => overlay::uplink(address).await?,
        None => None,
    };
    // The configuration comes last: the engine starts Pods as soon as it is there.
    let overlay = match uplink {
        Some(uplink) => {
            let overlay = Overlay::new(uplink, config.mode, range).await?;
            conflist::write(config, range, uplink.pod_mtu(config.mode))?;
            Some(overlay)
        }
        None => {
            conflist::write(config, range, 0)?;
            let address = config.node_address.map(|a| a.to_string()).unwrap_or_default();
            tracing::warn!(
                address,
                "no interface of this machine has the node's IPv4 address: Pods of other nodes are not reached; choose another with --node-ip"
            );
            None
        }
    };
    tracing::info!(%range, "the Pod network is ready");
    Ok(overlay)
}

/// Has this machine pass packets on.
fn forward() -> Result<(), NetworkError> {
    let forward = PathBuf::from("/proc/sys/net/ipv4/ip_forward");
    if std::fs::read_to_string(&forward).is_ok_and(|v| v.trim() != "1") {
        std::fs::write(&forward, "1\n").map_err(|source| NetworkError::Write { path: forward, source })?;
    }
    Ok(())
}

/// Removes every trace from the kernel: links, routes (they go with their links) and rules.
pub async fn remove() -> Result<(), NetworkError> {
    link::remove_all().await;
    Ok(nft::remove_table(rules::TABLE).await?)
}
