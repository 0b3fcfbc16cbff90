//! The rows of a server over etcd: the same calls as over the embedded store, on an etcd of this run's own.

use std::{
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use json::json;

use crate::{objects::pod, report::Report, rows::PODS, subject};

/// etcd listens by then.
const START_MAX: Duration = Duration::from_secs(10);

struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one; `None` where none is installed.
fn start() -> anyhow::Result<Option<(Etcd, String)>> {
    let (endpoint, peer) = (subject::free_url()?, subject::free_url()?);
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(subject::scratch("etcd")?)
        .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(etcd) = child.map(Etcd) else { return Ok(None) };
    let place = endpoint.trim_start_matches("http://");
    let late = Instant::now() + START_MAX;
    while TcpStream::connect(place).is_err() {
        anyhow::ensure!(Instant::now() < late, "etcd does not listen at {endpoint}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Some((etcd, endpoint)))
}

pub async fn measure(skiff: &Path, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let Some((_etcd, endpoint)) = start()? else {
        eprintln!("no etcd on the path: its rows are left out");
        return Ok(());
    };
    let etcd_flag = format!("--etcd-servers={endpoint}");
    let server = subject::Server::start(skiff, &["--disable=scheduler,controllers", &etcd_flag]).await?;
    let api = &server.api;
    api.namespace("bench").await?;
    let run = server.drive(pods, 32, |i| async move { api.post(PODS, &pod(i)).await }).await?;
    report.rate("over etcd: create Pods, 32 in flight", &run, 3000.0, 200.0);
    let run = server.drive(pods * 2, 32, |i| async move { api.get(&format!("{PODS}/o-{}", i % pods)).await }).await?;
    report.rate("over etcd: get Pods, 32 in flight", &run, 20_000.0, 40.0);
    let length = api.get(PODS).await?;
    let run = server.drive(20, 1, |_| async move { api.get(PODS).await }).await?;
    report.list(&format!("over etcd: list {pods} Pods, consistent"), &run, length, 60.0, Some(25.0));
    let merge = async |i: usize| {
        let patch = json!({"metadata": {"labels": {"round": i.to_string()}}});
        api.merge_patch(&format!("{PODS}/o-{i}"), &patch).await
    };
    let run = server.drive(pods, 32, merge).await?;
    report.rate("over etcd: merge-patch Pods, 32 in flight", &run, 1800.0, 250.0);
    Ok(())
}
