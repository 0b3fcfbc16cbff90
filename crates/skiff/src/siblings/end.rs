//! The end of further nodes: `skiff down` in the namespace of each, then the network on which they met.

use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::{process::Command, task::JoinSet};

use crate::{
    holder,
    layout::Layout,
    siblings::{self, Sibling, process},
};

/// Ends all of them and removes every trace. One that cannot be ended keeps no other.
pub async fn all(cluster: &Layout, keep_data: bool) -> anyhow::Result<()> {
    let known = siblings::known(cluster);
    if known.is_empty() {
        return Ok(());
    }
    let mut ends: JoinSet<_> = known.into_iter().map(|sibling| async move { one(&sibling, keep_data).await }).collect();
    let mut failed = Vec::new();
    while let Some(ended) = ends.join_next().await {
        if let Err(error) = ended.map_err(anyhow::Error::from).and_then(|ended| ended) {
            failed.push(crate::sentence::sentence(&error));
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    network::local_nodes::remove().await.context("their network stays")
}

/// Takes back what a start that failed did for the nodes, but where Pods of an earlier one run.
pub async fn undo_start(siblings: &[Sibling]) {
    if siblings.is_empty() {
        return;
    }
    let mut idle = true;
    for Sibling { layout, .. } in siblings {
        let ended = holder::end(layout).await.is_ok();
        let stopped = ended && runtime::containerd::stop_idle(&layout.engine_options()).await;
        let left = stopped && network::namespace::let_go(&layout.network_namespace()).is_ok();
        idle = idle && left;
    }
    if idle && let Err(error) = network::local_nodes::remove().await {
        tracing::warn!(%error, "cannot remove the network of this machine's nodes");
    }
}

/// Ends one, in its own namespace: only from there are its engine's Pods taken off their network.
pub async fn one(sibling: &Sibling, keep_data: bool) -> anyhow::Result<()> {
    let (root, file) = (&sibling.layout.root, sibling.layout.network_namespace());
    if !sibling.layout.version_file().exists() {
        // A start or an end that was broken off: nothing ran there, or runs any more.
        network::namespace::let_go(&file).with_context(|| format!("cannot unmount {}", file.display()))?;
        return files::remove(root).with_context(|| format!("cannot remove {}", root.display()));
    }
    files::modes::passage(&sibling.layout.run())
        .with_context(|| format!("cannot make {}", sibling.layout.run().display()))?;
    // After a reboot the namespace is gone, and so is all that was in it; what is to be removed are files.
    network::namespace::keep(&file).await?;
    let mut down = Command::new(process::binary()?);
    down.arg("down").arg("--data-dir").arg(root).arg("--network-namespace").arg(&file);
    down.args(["--cgroup-root", &sibling.cgroup()]).args(keep_data.then_some("--keep-data"));
    let done = down.env(process::NO_FILE.0, process::NO_FILE.1).stdin(Stdio::null()).output().await;
    let done = done.with_context(|| format!("cannot start `skiff down` for node {}", sibling.number))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().trim_start_matches("skiff: ").to_owned();
        bail!("node {}: {said}", sibling.number);
    }
    Ok(())
}
