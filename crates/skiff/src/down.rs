//! `skiff down`: ends the cluster and removes every trace: processes, mounts, interfaces, rules, cgroups and files.

use std::{fs, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{agent, layout::Layout, options::Down, server};

/// How long the cluster's process gets to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(options: &Down) -> anyhow::Result<ExitCode> {
    let layout = Layout::new(&options.data_dir);
    if !layout.root.exists() {
        println!("nothing to do: there is no cluster in {}", layout.root.display());
        return Ok(ExitCode::SUCCESS);
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("`skiff down` removes network interfaces, cgroups and mounts and so needs root; run it with sudo");
    }
    // Refuses a folder that is not ours before anything in it is touched.
    layout.open()?;
    server::runtime()?.block_on(async {
        end_process(&layout).await?;
        runtime::containerd::stop(&agent::engine_options(&layout)).await.context("cannot end the container engine")?;
        proxy::apply::remove().await.context("cannot remove the Service rules")?;
        network::remove().await.context("cannot remove the Pod network")?;
        kubelet::remove_traces(&layout.kubelet(), "/").context("cannot remove what the kubelet left")?;
        anyhow::Ok(())
    })?;
    remove_files(&layout, options.keep_data)?;
    match options.keep_data {
        true => println!("ended; the store and the keys are kept in {}", layout.root.display()),
        false => println!("ended; nothing of it is left"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the process that holds the folder to end, then makes it.
async fn end_process(layout: &Layout) -> anyhow::Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let Some(pid) = layout.holder() else { return Ok(()) };
        // It may end between the question and the signal.
        let _ = kill(Pid::from_raw(pid), signal);
        let deadline = clock::Instant::now() + PATIENCE;
        while layout.holder().is_some() && clock::Instant::now() < deadline {
            clock::sleep(Duration::from_millis(20)).await;
        }
    }
    match layout.holder() {
        None => Ok(()),
        Some(pid) => bail!("process {pid} does not end; it holds {}", layout.root.display()),
    }
}

fn remove_files(layout: &Layout, keep_data: bool) -> anyhow::Result<()> {
    runtime::containerd::unmount_below(&[&layout.root]);
    let kept = [layout.store(), layout.pki(), layout.root.join("version")];
    if !keep_data {
        return fs::remove_dir_all(&layout.root).with_context(|| format!("cannot remove {}", layout.root.display()));
    }
    for entry in fs::read_dir(&layout.root)?.flatten() {
        let path = entry.path();
        if kept.contains(&path) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
