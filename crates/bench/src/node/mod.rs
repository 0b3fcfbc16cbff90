//! The rows of a whole node: `skiff up` on this machine.

mod burst;
mod engine;
mod idle;
pub mod network;
mod start;

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{
    api::Api,
    report::{Goal::AtMost, Report},
    subject::{output, resident_mb, used},
};

/// A cluster that is taken down again, whatever happens.
struct Cluster<'a> {
    skiff: &'a Path,
    folder: std::path::PathBuf,
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = Command::new(self.skiff).args(["down", "--data-dir"]).arg(&self.folder).output();
    }
}

pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0\n"))
}

/// A node that joins a running cluster: from the start of its process, with the token, the certificate, an engine and the image
/// that it begins with, until the API shows it as ready.
pub fn join(skiff: &Path, report: &mut Report) -> anyhow::Result<()> {
    if !is_root() {
        eprintln!("SKIPPED: a node that joins needs root");
        return Ok(());
    }
    let cluster = Cluster { skiff, folder: crate::subject::scratch("joined")? };
    let more = format!("--max-pods={}", idle::PODS + 10);
    let said = output(up(skiff, &cluster.folder).args(["--nodes=2", &more]))?;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("node first-2 joined and ready"));
    let mut words = line.context("`skiff up` does not say how long the node took")?.split_whitespace();
    let number: f64 = words.next().context("a duration")?.parse()?;
    let seconds = if words.next() == Some("ms") { number / 1000.0 } else { number };
    report.add("an agent that joins, start to Ready", seconds, "s", Some(AtMost(3.0)), "engine and image included");
    // The code that only the start needed is let go meanwhile.
    std::thread::sleep(Duration::from_secs(60));
    let agent: u32 = std::fs::read_to_string(cluster.folder.join("nodes/2/skiff.pid"))?.trim().parse()?;
    report.add(
        "the agent alone: resident memory",
        resident_mb(agent),
        "MB",
        Some(AtMost(25.0)),
        "without containerd, after a minute",
    );
    network::measure(&cluster.folder, report)?;
    idle::measure(&cluster.folder, agent, report)
}

/// `skiff up` beside another one that a user may have on this machine.
fn up(skiff: &Path, folder: &Path) -> Command {
    let mut command = Command::new(skiff);
    command.arg("up").arg("--data-dir").arg(folder);
    command.args(["--secure-port=17443", "--kubelet-port=21250", "--dns-port=21053", "--node-name=first"]);
    command
}

/// `skiff up` on this machine: how fast it starts, how fast a Pod runs, what it costs when nothing happens.
pub async fn measure(skiff: &Path, report: &mut Report) -> anyhow::Result<()> {
    if !is_root() {
        eprintln!("SKIPPED: the rows of a whole node need root");
        return Ok(());
    }
    let folder = crate::subject::scratch("node")?;
    let cluster = Cluster { skiff, folder: folder.clone() };
    let begun = Instant::now();
    output(up(skiff, &folder).arg(format!("--max-pods={}", burst::MANY + 20)).arg("--node-cidr-mask-size=22"))?;
    let authority = std::fs::read_to_string(folder.join("pki/ca.crt"))?;
    let kubeconfig = folder.join("admin.kubeconfig");
    let token = output(Command::new("kubectl").arg("--kubeconfig").arg(&kubeconfig).args([
        "-n",
        "kube-system",
        "create",
        "token",
        "default",
    ]))?;
    output(Command::new("kubectl").arg("--kubeconfig").arg(&kubeconfig).args([
        "create",
        "clusterrolebinding",
        "bench",
        "--clusterrole=cluster-admin",
        "--serviceaccount=kube-system:default",
    ]))?;
    let connect = || Api::connect(([127, 0, 0, 1], 17443).into(), &authority, token.trim(), 1);
    let api = connect().await?;
    start::run_pod(&api, "first").await?;
    let what = "bare machine with containerd to first Pod running";
    report.add(what, begun.elapsed().as_secs_f64(), "s", Some(AtMost(5.0)), "");
    start::measure(&api, report).await?;
    let pid: u32 = std::fs::read_to_string(folder.join("skiff.pid"))?.trim().parse()?;
    let engine = engine::Engine::of(&folder);
    engine.one_after_another(report).await?;
    let alone = engine.at_once(burst::FEW, report).await?;
    burst::measure(burst::FEW, (&engine, alone), &api, pid, report).await?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let before = used(pid);
    const WINDOW: f64 = 60.0;
    tokio::time::sleep(Duration::from_secs_f64(WINDOW)).await;
    let after = used(pid);
    report.add("whole node idle: resident memory", resident_mb(pid), "MB", Some(AtMost(120.0)), "without containerd");
    let cpu = (after.0 - before.0) / WINDOW * 100.0;
    report.add("whole node idle: CPU", cpu, "% of a core", Some(AtMost(1.0)), "over 60 s");
    let per_day = (after.1 - before.1) / 1e6 * 86_400.0 / WINDOW;
    report.add("whole node idle: disk writes", per_day, "MB/day", Some(AtMost(50.0)), "from 60 s");
    let alone = engine.at_once(burst::MANY, report).await?;
    // The connection had nothing to do for minutes, and the server may have ended it.
    burst::measure(burst::MANY, (&engine, alone), &connect().await?, pid, report).await?;
    drop(cluster);
    Ok(())
}
