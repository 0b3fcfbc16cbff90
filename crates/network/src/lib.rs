//! The Pod network of a node: a CNI plugin, the address range, masquerading and host ports.
//!
//! Every Pod has a veth pair of its own, an address of each family that the node has a range of, and a route to each
//! on the node; the Pod reaches everything through the node
//! ("ptp" in CNI's terms). So all traffic between Pods is routed and passes connection tracking, and Services work
//! between Pods of one node without the bridge netfilter module that a shared bridge would need.
//! Reads: Node (its `podCIDRs`, its key). Writes: its own Node's public key, the CNI configuration, the kernel's tables `ip skiff-network` and `ip6 skiff-network`, links and routes.
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
mod settings;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use client::{Api, Caches, Changes, Client, Key};
use futures::{StreamExt, stream::FuturesUnordered};
use ipnet::IpNet;
use json::json;
use k8s_openapi::api::core::v1::Node;
use nft::Family;
use tokio::{sync::broadcast::error::RecvError, task::JoinSet};

pub use error::{LinkError, NetworkError};
use overlay::{
    Overlay,
    key::PublicKey,
    peers::{KEY_ANNOTATION, key_of, peer, peers, ranges_of},
    plan::Mode,
};

/// The beginning of the names of the links to Pods, on the node's side.
pub use link::PREFIX as POD_LINKS;

/// The names under which the container engine calls this program as a plugin.
pub const PLUGINS: [&str; 2] = [conflist::PLUGIN, cni::LOOPBACK];

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// The node itself, which alone may write its Node.
    pub node: Client,
    /// Where the container engine looks for CNI configurations.
    pub conf_dir: PathBuf,
    /// Where the plugin keeps which address belongs to which sandbox.
    pub state_dir: PathBuf,
    /// Addresses of all Pods of the cluster, a range of each family at the most: traffic to them keeps its source.
    pub cluster_cidrs: Vec<IpNet>,
    /// The addresses at which other nodes reach this one.
    pub node_addresses: Vec<IpAddr>,
    /// How Pods of other nodes are reached.
    pub mode: Mode,
    /// Where the node keeps its private key, if the mode needs one.
    pub key_file: PathBuf,
}

/// How long is waited before the kernel is asked again for what it refused; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Config {
    /// The cluster's range of a family.
    fn cluster(&self, family: Family) -> Option<IpNet> {
        self.cluster_cidrs.iter().copied().find(|cluster| Family::of(cluster.addr()) == family)
    }

    /// The node's ranges that are parts of the cluster's families, with these.
    fn ranges(&self, node: &Node) -> Vec<(IpNet, IpNet)> {
        let ranges = ranges_of(node).into_iter();
        ranges.filter_map(|range| Some((range, self.cluster(Family::of(range.addr()))?))).collect()
    }
}

/// Waits until the node has an address range, sets the network up, and keeps following the range and the other nodes until
/// cancelled. Own Pods do not wait for the others: a control plane may not let a node read them.
pub async fn run(caches: Caches, config: Config) -> Result<(), NetworkError> {
    let own = caches.selected::<Node>(&format!("metadata.name={}", config.node_name));
    let all = caches.of::<Node>();
    let (mut changes, mut others) = (own.subscribe(), all.subscribe());
    own.synced().await;
    let (mut current, mut overlays, mut wait) = (Vec::new(), Vec::new(), FIRST_WAIT);
    let mut watch = nft::Watch::default();
    let mut routes = JoinSet::new();
    loop {
        let node = own.get(&Key::new("", &config.node_name));
        let ranges = node.as_deref().map(|node| config.ranges(node)).unwrap_or_default();
        if !ranges.is_empty() && ranges != current {
            overlays = set_up(&config, &ranges).await?;
            routes.abort_all();
            let own = ranges.iter().map(|(range, _)| *range).collect();
            routes.spawn(pod_routes::keep(config.state_dir.clone(), own));
            current = ranges;
        }
        let mut failed = false;
        let others_known = all.revision() > 0;
        if let (Some(node), true) = (&node, others_known) {
            for overlay in &mut overlays {
                let cluster = config.cluster(Family::of(overlay.range().addr()));
                let others = cluster.map(|cluster| peers(node, &all.list(), cluster)).unwrap_or_default();
                let followed = overlay.follow(&others).await;
                failed |= followed.inspect_err(|error| tracing::warn!("{error}; trying again")).is_err();
            }
        }
        if let (Some(node), Some(key)) = (&node, overlays.iter().find_map(Overlay::public_key))
            && key_of(node) != Some(key)
        {
            failed |= !tell(&config.node, &config.node_name, key).await;
        }
        let again = wait;
        wait = if failed { (wait * 2).min(LONGEST_WAIT) } else { FIRST_WAIT };
        let open = tokio::select! {
            open = news(&mut changes, |_, _| true) => open,
            open = news(&mut others, |old, new| told(old) != told(new)) => open,
            () = all.synced(), if !others_known => true,
            () = lost(&mut overlays) => true,
            () = watch.others() => {
                for (range, cluster) in &current {
                    heal(&mut watch, &config, (*range, *cluster), &overlays).await;
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
async fn heal(watch: &mut nft::Watch, config: &Config, (range, cluster): (IpNet, IpNet), overlays: &[Overlay]) {
    let (family, fixed) = (Family::of(range.addr()), rules::table(range, cluster));
    let overlay = overlays.iter().find(|overlay| overlay.range() == range);
    let peers = overlay.map(Overlay::rules).unwrap_or_default();
    let mut ports = host_ports::all(&config.state_dir);
    ports.retain(|(address, _)| Family::of(*address) == family);
    let open = |(address, ports): &(IpAddr, Vec<rules::HostPort>)| {
        ports.iter().map(|port| port.open_again(*address)).collect::<String>()
    };
    let everything = format!("{fixed}{peers}{}", ports.iter().map(open).collect::<String>());
    let Some(missing) = watch.missing(rules::table_name(family), &everything).await else { return };
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
            let _ = nft::transaction(&port.close(family)).await;
        }
    }
}

/// Waits until the ways to other nodes have to be written again.
async fn lost(overlays: &mut [Overlay]) {
    let mut all: FuturesUnordered<_> = overlays.iter_mut().map(Overlay::lost).collect();
    if all.next().await.is_none() {
        std::future::pending().await
    }
}

/// Tells the other nodes this one's key. False when that did not work.
async fn tell(client: &Client, node: &str, key: PublicKey) -> bool {
    let patch = json!({"metadata": {"annotations": {KEY_ANNOTATION: key.to_string()}}});
    let told = Api::<Node>::all(client.clone()).merge_patch(node, "", patch).await;
    told.inspect_err(|error| tracing::warn!(%error, "the node's public key cannot be told; trying again")).is_ok()
}

/// The address, the range of each family and the key in a Node.
fn told(node: Option<&Node>) -> Option<[Option<overlay::peers::Peer>; 2]> {
    node.map(|node| Family::ALL.map(|family| peer(node, family)))
}

/// Waits for a change that matters; lost changes may have been some. False when there will be none any more.
async fn news(changes: &mut Changes<Node>, matters: impl Fn(Option<&Node>, Option<&Node>) -> bool) -> bool {
    loop {
        match changes.recv().await {
            Ok(change) if !matters(change.old.as_deref(), change.new.as_deref()) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return true,
            Err(RecvError::Closed) => return false,
        }
    }
}

/// Sets the node's own part up. The ways to other nodes begin with what this returns.
async fn set_up(config: &Config, ranges: &[(IpNet, IpNet)]) -> Result<Vec<Overlay>, NetworkError> {
    let (mut overlays, mut mtu) = (Vec::new(), 0);
    for (range, cluster) in ranges {
        let family = Family::of(range.addr());
        forward(family)?;
        nft::transaction(&rules::table(*range, *cluster)).await?;
        let address = config.node_addresses.iter().find(|address| Family::of(**address) == family);
        let uplink = match address {
            Some(address) => overlay::uplink(*address).await?,
            None => None,
        };
        let Some(uplink) = uplink else {
            let address = address.map(ToString::to_string).unwrap_or_default();
            tracing::warn!(
                address,
                family = family.name(),
                "no interface of this machine has the node's address: Pods of other nodes are not reached; choose another with --node-ip"
            );
            continue;
        };
        let fits = uplink.pod_mtu(config.mode);
        mtu = if mtu == 0 { fits } else { fits.min(mtu) };
        overlays.push(Overlay::new(uplink, config.mode, *range, *cluster, &config.key_file).await?);
    }
    for overlay in &mut overlays {
        overlay.listen_anew()?;
    }
    // The configuration comes last: the engine starts Pods as soon as it is there.
    let ranges: Vec<IpNet> = ranges.iter().map(|(range, _)| *range).collect();
    conflist::write(config, &ranges, mtu)?;
    let ranges = ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ");
    tracing::info!(ranges, "the Pod network is ready");
    Ok(overlays)
}

/// Has this machine pass packets on.
fn forward(family: Family) -> Result<(), NetworkError> {
    if family == Family::V4 {
        return set(Path::new("/proc/sys/net/ipv4/ip_forward"), "1");
    }
    let interfaces = Path::new("/proc/sys/net/ipv6/conf");
    // A machine that passes packets on believes routers no more, and may lose its own default route, unless it is told to.
    for interface in std::fs::read_dir(interfaces).into_iter().flatten().flatten() {
        let file = interface.path().join("accept_ra");
        if !matches!(interface.file_name().to_str(), Some("all" | "default"))
            && std::fs::read_to_string(&file).is_ok_and(|held| held.trim() == "1")
        {
            set(&file, "2")?;
        }
    }
    set(&interfaces.join("all/forwarding"), "1")
}

fn set(file: &Path, value: &str) -> Result<(), NetworkError> {
    settings::set(file, value).map_err(|source| NetworkError::Write { path: file.to_owned(), source })
}

/// Whether the kernel has what a mode needs.
pub fn require(mode: Mode) -> Result<(), LinkError> {
    match mode {
        Mode::Wireguard => overlay::wireguard::require(),
        Mode::Auto | Mode::Direct | Mode::Vxlan => Ok(()),
    }
}

/// Removes every trace from the kernel: links, routes and rules.
pub async fn remove() -> Result<(), NetworkError> {
    link::remove_all().await;
    overlay::remove_routes().await?;
    for family in Family::ALL {
        nft::remove_table(rules::table_name(family)).await?;
    }
    Ok(())
}
