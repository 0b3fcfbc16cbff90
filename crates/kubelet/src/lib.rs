//! The kubelet: keeps the Pods of one node as the API server and the manifest folder want them.
//!
//! Sources say which Pods are desired ([`pod::desired`]). Each Pod has one [`pod::worker`] that observes what runs
//! ([`pod::running`]), decides ([`pod::decide`], pure), acts ([`pod::act`], [`pod::kill`], [`volumes`]) and reports
//! ([`pod::status`], pure, and [`pod::report`]). Beside them stand the node's own registration and heartbeat
//! ([`node::register`]) and the HTTPS server ([`server`]).

mod affinity;
mod changes;
mod claims;
mod config;
pub mod configuration;
mod counted;
mod csi;
mod dbus;
mod devices;
pub mod engine;
mod error;
mod events;
pub mod eviction;
mod followed;
mod images;
mod kubelet;
mod local;
pub mod node;
mod oom;
mod plugins;
pub mod pod;
mod server;
mod sharing;
mod shutdown;
mod sorts;
mod sources;
#[cfg(test)]
mod tests;
mod traced;
mod usage;
mod users;
mod volume_room;
mod volume_usage;
pub mod volumes;

use std::sync::Arc;

use api::features::Feature;
use client::{Caches, EventKind};
use tokio::sync::watch;

use crate::{
    engine::{linked, log_folders, orphans, rotation},
    eviction::{evict::EvictionManager, pressure::Pressures},
    kubelet::{Host, Kubelet},
    node::{cgroup::driver, fit, register, reserved},
    plugins::registry,
    shutdown::{follow, periods},
    sources::dispatch,
    users::range::{self, Range},
};

pub use config::{Config, Gate, Serving, SharedLogs};
/// The messages between CSI drivers and the kubelet, and between plugins and its registry, for drivers of the tests'
/// own.
pub use csi::messages as csi_messages;
pub use error::Error;
pub use plugins::messages as plugin_messages;
pub use pod::spec::{hardening::Sysctls, selinux::of_this_machine as selinux_context};
pub use sharing::Config as Sharing;
pub use users::range::Part as UsersPart;

/// Runs a kubelet until it fails or the future is dropped. Pods keep running either way.
pub async fn run(mut config: Config, caches: Caches) -> Result<(), Error> {
    let (driver, cgroups) = driver::find(&config).await.map_err(Error::Machine)?;
    config.settings.cgroup_driver = driver;
    run_on(Host::here(&config, cgroups), config, caches).await
}

/// Runs a kubelet that touches nothing but its folders, over an engine in memory: many of them show what a control plane takes
/// for its nodes. Upstream's counterpart is kubemark's hollow kubelet.
pub async fn run_hollow(config: Config, caches: Caches) -> Result<(), Error> {
    run_on(Host::hollow(), config, caches).await
}

async fn run_on(host: Host, config: Config, caches: Caches) -> Result<(), Error> {
    let (kubelet, pressures) = make(host, config, &caches)?;
    live(kubelet, pressures, caches).await
}

type Measuring = watch::Sender<Pressures>;

/// Makes the folders of a kubelet and the kubelet, which does nothing yet.
fn make(host: Host, config: Config, caches: &Caches) -> Result<(Arc<Kubelet>, Measuring), Error> {
    waypoint::kubelet::start(&config.node_name);
    for folder in [&config.root_dir, &config.root_dir.join("pods"), &config.log_dir] {
        files::modes::folder(folder, files::modes::NODE_FOLDER)
            .map_err(|source| Error::Folder { path: folder.display().to_string(), source })?;
    }
    orphans::narrow(&config);
    let (pressures, measured) = watch::channel(Pressures::default());
    Ok((Kubelet::new(config, host, caches, measured)?, pressures))
}

async fn live(kubelet: Arc<Kubelet>, pressures: Measuring, caches: Caches) -> Result<(), Error> {
    begin(&kubelet)?;
    kubelet.affinity.save().await.map_err(Error::Machine)?;
    find_users(&kubelet).await?;
    settle_pulls(&kubelet).await;
    let listener = server::listen(&kubelet).await?;
    let plugin_folder = kubelet.config.root_dir.join("plugins_registry");
    let drivers = caches.clone();
    tokio::select! {
        () = server::serve(kubelet.clone(), caches.client().clone(), listener) => {}
        () = server::healthz::serve(kubelet.clone()) => {}
        () = register::run(kubelet.clone()) => {}
        () = dispatch::run(kubelet.clone(), caches) => {}
        () = EvictionManager::new(kubelet.clone(), pressures).run() => {}
        () = rotation::run(kubelet.clone()) => {}
        () = linked::run(kubelet.clone()) => {}
        () = follow::run(kubelet.clone()) => {}
        () = oom::watcher::run(kubelet.clone()) => {}
        () = devices::register::run(kubelet.devices.clone()), if kubelet.host.plugins => {}
        () = kubelet.claims.drivers.run(), if kubelet.host.plugins => {}
        () = volume_usage::watch_health(kubelet.clone()), if kubelet.config.features.enabled(Feature::CSIVolumeHealth) => {}
        () = pod::health::wake(kubelet.clone()), if kubelet.config.features.enabled(Feature::ResourceHealthStatus) => {}
        () = affinity::reconcile::run(kubelet.clone()), if kubelet.affinity.shares() => {}
        () = server::pod_resources::serve(kubelet.clone()), if kubelet.host.plugins => {}
        () = local::report::run(kubelet.clone()) => {}
        () = kubelet.traces.send() => {}
        () = kubelet.csi.clone().sweep(), if kubelet.host.plugins => {}
        () = kubelet.csi.clone().follow_sizes(), if kubelet.host.plugins => {}
        () = kubelet.csi.clone().follow_limits(drivers.clone()), if kubelet.host.plugins => {}
        () = kubelet.csi.clone().follow_attachability(drivers), if kubelet.host.plugins => {}
        () = registry::run(plugin_folder, sorts::all(&kubelet), kubelet.figures.clone()), if kubelet.host.plugins => {}
    }
    Ok(())
}

/// Looks at the machine and sets the limits of all Pods together.
fn begin(kubelet: &Kubelet) -> Result<(), Error> {
    let (settings, host, events) = (&kubelet.config.settings, &kubelet.host, &kubelet.events);
    fit::check(settings, &host.machine, host.cgroups.is_unified()).map_err(Error::Machine)?;
    periods::of(&settings.shutdown, &kubelet.config.features).map_err(Error::Machine)?;
    settings.cfs.check(&kubelet.config.features).map_err(Error::Machine)?;
    if settings.log_query && !kubelet.config.features.enabled(Feature::NodeLogQuery) {
        return Err(Error::Machine("enableSystemLogQuery: it needs the feature gate NodeLogQuery".to_owned()));
    }
    if host.machine.swap > 0 && !fit::keeps_out_of_swap(&host.machine.kernel) {
        let text = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be \
            swapped to disk and should no longer be considered secure.";
        events.node(EventKind::Warning, "PossibleMemoryBackedVolumesOnDisk", text);
    }
    events.node(EventKind::Normal, "Starting", "Starting kubelet.");
    if !host.cgroups.is_unified() {
        let text = "cgroup v1 support is unsupported and will be removed in a future release";
        events.node(EventKind::Warning, "CgroupV1", text);
    }
    let tell_failure = |why: &str| events.node(EventKind::Warning, "FailedNodeAllocatableEnforcement", why);
    if let Err(why) = reserved::enforce(&settings.reserved, &host.cgroups) {
        tell_failure(&why);
        return Err(Error::Machine(why));
    }
    let pages = || if settings.reserved.enforced.pods { kubelet.bound_huge_pages(None) } else { Ok(()) };
    match kubelet.weigh().and_then(|()| pages()) {
        Ok(()) if settings.reserved.enforced.pods => {
            events.node(EventKind::Normal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
        }
        Ok(()) => {}
        // Pods say so too, each when it begins.
        Err(error) => tell_failure(&format!("Failed to update Node Allocatable Limits: {error}")),
    }
    Ok(())
}

/// Finds the ids that Pods may have, and those that they have.
async fn find_users(kubelet: &Kubelet) -> Result<(), Error> {
    let (config, length) = (&kubelet.config, kubelet.config.settings.users_per_pod);
    let range = match kubelet.host.plugins {
        true => range::of_this_machine(&kubelet.remote.programs, length, config.max_pods, config.users_part).await,
        false => Ok(Range::usual(length)),
    };
    let range = range.map_err(|why| Error::Machine(format!("create user namespace manager: {why}")))?;
    kubelet.users.begin(range).map_err(|error| Error::Machine(error.to_string()))
}

/// Writes down the pulls whose end an earlier kubelet did not see.
async fn settle_pulls(kubelet: &Kubelet) {
    if !(kubelet.images.verifies() && kubelet.images.records.has_intents()) {
        return;
    }
    match kubelet.config.runtime.images().await {
        Ok(images) => kubelet.images.records.settle(&images),
        // Until the next start these images are open to nobody who does not pull them.
        Err(error) => tracing::warn!(%error, "the engine does not tell which images are there"),
    }
}

/// Removes the cgroups of Pods, as far as no process is in them.
pub fn remove_cgroups(root_dir: &std::path::Path, cgroup_root: &str) {
    driver::of_last(root_dir, cgroup_root).remove_all();
}

/// Undoes what is left of a kubelet that will not come back: devices that are kept open, mounts and files below its folder, its
/// cgroups, and its logs in folders that it shares. The engine has to be stopped before, or its containers keep both alive.
pub fn remove_traces(root_dir: &std::path::Path, cgroup_root: &str) -> std::io::Result<()> {
    volumes::remote::hold::release_below(root_dir)?;
    runtime::containerd::unmount_below(&[root_dir]);
    remove_cgroups(root_dir, cgroup_root);
    log_folders::remove_shared(root_dir)?;
    files::remove(root_dir)
}
