//! `skiff down`: ends the cluster and removes every trace: processes, mounts, interfaces, rules, cgroups and files.

use std::{fs, process::ExitCode};

use anyhow::{Context, bail};

use crate::{
    commands::server,
    flags::options::{self, Down},
    holder,
    layout::Layout,
    siblings,
};

pub fn run(options: &Down) -> anyhow::Result<ExitCode> {
    let layout = Layout::new(&options.data_dir);
    if !layout.root.exists() {
        println!("nothing to do: there is no cluster in {}", layout.root.display());
        return Ok(ExitCode::SUCCESS);
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("`skiff down` removes network interfaces, cgroups and mounts and so needs root; run it with sudo");
    }
    siblings::enter(options.network_namespace.as_deref())?;
    // Refuses a folder that is not ours before anything in it is touched.
    layout.open()?;
    server::runtime()?.block_on(async {
        holder::end(&layout).await?;
        let others = siblings::end::all(&layout, options.keep_data).await;
        // One thing that cannot be removed keeps nothing else.
        let engine = layout.engine_options();
        let done = [
            others.context("cannot end the other nodes of this machine"),
            runtime::containerd::stop(&engine).await.context("cannot end the container engine"),
            remove_services(&layout).await,
            policy::remove().await.context("cannot remove the rules of network policies"),
            network::remove().await.context("cannot remove the Pod network"),
            kubelet::remove_traces(&layout.kubelet(), &options.cgroup_root)
                .context("cannot remove what the kubelet left"),
        ];
        let failed: Vec<String> =
            done.into_iter().filter_map(Result::err).map(|e| crate::sentence::sentence(&e)).collect();
        if !failed.is_empty() {
            bail!("{}; put that right and run `skiff down` again", failed.join("; "));
        }
        anyhow::Ok(())
    })?;
    remove_files(&layout, options.keep_data)?;
    match options.keep_data {
        true => println!("ended; the store, the keys and local volumes are kept in {}", layout.root.display()),
        false => println!("ended; nothing of it is left"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the rules of Services: those of iptables only where they are this node's.
async fn remove_services(layout: &Layout) -> anyhow::Result<()> {
    match layout.wrote_iptables().exists() {
        true => Ok(proxy::remove().await?),
        false => proxy::apply::remove().await.context("cannot remove the Service rules"),
    }
}

/// Takes back what a node's start that failed did to the machine. Where Pods of an earlier start run (or may run, in an
/// engine that is not ours), nothing is touched: they go on, as they would had nobody tried. Files stay, the next start
/// finds them.
pub async fn undo_start(layout: &Layout, node: &options::Node) {
    let ours = node.container_runtime_endpoint.is_none();
    if !ours || !runtime::containerd::stop_idle(&layout.engine_options()).await {
        return;
    }
    if let Err(error) = remove_services(layout).await {
        tracing::warn!(error = crate::sentence::sentence(&error), "a start that failed leaves rules");
    }
    if let Err(error) = policy::remove().await {
        tracing::warn!(%error, "cannot remove the rules of network policies");
    }
    if let Err(error) = network::remove().await {
        tracing::warn!(%error, "cannot remove the Pod network");
    }
    kubelet::remove_cgroups(&layout.kubelet(), &node.cgroup_root);
}

fn remove_files(layout: &Layout, keep_data: bool) -> anyhow::Result<()> {
    runtime::containerd::unmount_below(&[&layout.root]);
    let kept = if keep_data {
        let (audit, local) = (layout.audit(), layout.local_volumes());
        vec![layout.store(), layout.pki(), layout.images(), local, audit, layout.siblings(), layout.version_file()]
    } else {
        Vec::new()
    };
    for entry in fs::read_dir(&layout.root)?.flatten() {
        let path = entry.path();
        // The file that says that the folder is ours goes last: an interrupted removal can be taken up again.
        if kept.contains(&path) || path == layout.version_file() {
            continue;
        }
        // Containers wrote below these folders: no link is followed, and what is still mounted somewhere is not entered.
        files::remove(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    if keep_data {
        return Ok(());
    }
    fs::remove_file(layout.version_file()).context("cannot remove the folder's version")?;
    match fs::remove_dir(&layout.root) {
        // A disk that is mounted there: its mount point is the user's.
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", layout.root.display())),
    }
}
