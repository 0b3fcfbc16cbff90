//! The rows of a server over etcd: the same calls as over the embedded store, on an etcd of this run's own.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use json::json;

use crate::{
    load::Run,
    objects::pod,
    report::{Goal::AtMost, Report},
    rows::PODS,
    subject::{self, Server},
};

/// etcd listens by then.
const START_MAX: Duration = Duration::from_secs(10);

struct Etcd {
    process: Child,
    endpoint: String,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The work of an etcd until some moment.
struct Work {
    requests: f64,
    cpu_seconds: f64,
}

impl Etcd {
    /// Starts one; `None` where none is installed.
    fn start() -> anyhow::Result<Option<Etcd>> {
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
        let Ok(process) = child else { return Ok(None) };
        let etcd = Etcd { process, endpoint };
        let late = Instant::now() + START_MAX;
        while TcpStream::connect(etcd.place()).is_err() {
            anyhow::ensure!(Instant::now() < late, "etcd does not listen at {}", etcd.endpoint);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(etcd))
    }

    fn place(&self) -> &str {
        self.endpoint.trim_start_matches("http://")
    }

    /// The requests that it has answered, by its own count, and the CPU time that it has used.
    fn work(&self) -> anyhow::Result<Work> {
        let mut connection = TcpStream::connect(self.place())?;
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        connection.read_to_string(&mut page).context("etcd's metrics")?;
        let counted = page.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
        let requests = counted.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
        Ok(Work { requests, cpu_seconds: subject::used(self.process.id()).0 })
    }

    /// Tells how much of etcd's work each call of a run took.
    fn told(&self, what: &str, before: &Work, run: &Run, most: f64, report: &mut Report) -> anyhow::Result<()> {
        let (now, calls) = (self.work()?, run.millis.len() as f64);
        let note = format!("for each, and {:.0} µs of its CPU", (now.cpu_seconds - before.cpu_seconds) / calls * 1e6);
        let requests = (now.requests - before.requests) / calls;
        report.add(&format!("over etcd: {what}: requests to etcd"), requests, "", Some(AtMost(most)), note);
        Ok(())
    }
}

async fn create(server: &Server, pods: usize) -> anyhow::Result<Run> {
    let api = &server.api;
    server.drive(pods, 32, |i| async move { api.post(PODS, &pod(i)).await }).await
}

async fn get(server: &Server, pods: usize) -> anyhow::Result<Run> {
    let api = &server.api;
    server.drive(pods * 2, 32, |i| async move { api.get(&format!("{PODS}/o-{}", i % pods)).await }).await
}

async fn patch(server: &Server, pods: usize) -> anyhow::Result<Run> {
    let api = &server.api;
    let merge = async |i: usize| {
        let patch = json!({"metadata": {"labels": {"round": i.to_string()}}});
        api.merge_patch(&format!("{PODS}/o-{i}"), &patch).await
    };
    server.drive(pods, 32, merge).await
}

const FLAGS: &str = "--disable=scheduler,controllers";

pub async fn measure(skiff: &Path, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let Some(etcd) = Etcd::start()? else {
        eprintln!("no etcd on the path: its rows are left out");
        return Ok(());
    };
    let server = Server::start(skiff, &[FLAGS, &format!("--etcd-servers={}", etcd.endpoint)]).await?;
    let api = &server.api;
    api.namespace("bench").await?;
    let before = etcd.work()?;
    let run = create(&server, pods).await?;
    report.rate("over etcd: create Pods, 32 in flight", &run, 3000.0, 200.0);
    etcd.told("create Pods", &before, &run, 1.05, report)?;
    let before = etcd.work()?;
    let run = get(&server, pods).await?;
    report.rate("over etcd: get Pods, 32 in flight", &run, 20_000.0, 40.0);
    etcd.told("get Pods", &before, &run, 0.25, report)?;
    let length = api.get(PODS).await?;
    let run = server.drive(20, 1, |_| async move { api.get(PODS).await }).await?;
    report.list(&format!("over etcd: list {pods} Pods, consistent"), &run, length, 60.0, Some(25.0));
    let before = etcd.work()?;
    let run = patch(&server, pods).await?;
    report.rate("over etcd: merge-patch Pods, 32 in flight", &run, 1800.0, 250.0);
    etcd.told("merge-patch Pods", &before, &run, 1.05, report)
}

/// The same calls over the embedded store, to compare with in one run.
pub async fn beside(skiff: &Path, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &[FLAGS]).await?;
    server.api.namespace("bench").await?;
    report.rate("create Pods, 32 in flight", &create(&server, pods).await?, 6000.0, 120.0);
    report.rate("get Pods, 32 in flight", &get(&server, pods).await?, 20_000.0, 25.0);
    report.rate("merge-patch Pods, 32 in flight", &patch(&server, pods).await?, 4000.0, 150.0);
    Ok(())
}
