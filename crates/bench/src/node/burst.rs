//! The rows of many Pods at once on one node, and who works meanwhile: a burst that leaves no core idle is at the rate of the
//! engine and the kernel, whose work is most of it.

use std::{collections::HashMap, ops::ControlFlow, time::Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use clock::Timestamp;
use http::Method;
use json::{Value, json};

use crate::{
    api::{self, Api},
    load::drive,
    node::engine::Engine,
    report::Report,
    subject::used,
};

/// The Pods of a usual burst.
pub const FEW: usize = 50;
/// More than the usual range of a node has addresses for: the bench's nodes have larger ones.
pub const MANY: usize = 500;

const PATH: &str = "/api/v1/namespaces/default/pods";

/// Creates the Pods and waits on a watch until all of them run. `pid` is the node's own process, `alone` the seconds that
/// its engine alone took for as many.
pub async fn measure(
    pods: usize,
    (engine, alone): (&Engine, f64),
    api: &Api,
    pid: u32,
    report: &mut Report,
) -> anyhow::Result<()> {
    let selector = format!("labelSelector=bench%3Dburst-{pods}");
    let watch = format!("{PATH}?watch=true&{selector}");
    let body = api.open(Method::GET, &watch, "", Bytes::new()).await?.into_body();
    let (begun, cpu, idle) = (Instant::now(), used(pid).0, idle()?);
    let creating = drive(pods, 32, |i| async move {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("burst-{pods}-{i}"), "labels": {"bench": format!("burst-{pods}")}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "main", "image": "skiff.local/busybox:1", "command": ["sleep", "100000"]}]}});
        api.post(PATH, &pod).await
    });
    let mut running = HashMap::new();
    let seeing = api::follow(body, |line| {
        let event: Value = serde_json::from_slice(line)?;
        let object = &event["object"];
        match object["status"]["phase"].as_str() {
            Some("Running") => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                running.entry(name).or_insert_with(|| (begun.elapsed().as_secs_f64(), clock::now()));
            }
            Some("Failed") => bail!("{object} failed"),
            _ => {}
        }
        Ok(if running.len() == pods { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    let both = futures::future::try_join(creating, seeing);
    let patience = std::time::Duration::from_secs(100 + pods as u64 / 2);
    tokio::time::timeout(patience, both).await.context("the Pods do not run")??;
    let seconds = begun.elapsed().as_secs_f64();
    let cores = std::thread::available_parallelism()?.get() as f64;
    let part = (self::idle()? - idle) / (seconds * cores) * 100.0;
    let started = engine.started().await?;
    let behind = |(name, (_, seen)): (&String, &(f64, Timestamp))| {
        started.get(name).map(|at| (seen.as_nanosecond() as f64 / 1e9 - at) * 1000.0)
    };
    let mut behind: Vec<f64> = running.iter().filter_map(behind).collect();
    behind.sort_by(f64::total_cmp);
    let mut times: Vec<f64> = running.into_values().map(|(after, _)| after).collect();
    times.sort_by(f64::total_cmp);
    let note = format!("first {:.2} s, median {:.2} s", times[0], times[pods / 2]);
    report.add(&format!("{pods} Pods at once, created to the last seen running"), seconds, "s", None, note);
    if let (Some(median), Some(last)) = (behind.get(behind.len() / 2), behind.last()) {
        let note = format!("median; {last:.0} ms at the most");
        report.add("the same: seen running after the engine had started it", *median, "ms", None, note);
    }
    report.add("the same: times what the engine alone took", seconds / alone, "", None, "");
    report.add(
        "the same: time that the cores were idle",
        part,
        "%",
        None,
        "the engine's own rate where that is little",
    );
    let cost = (used(pid).0 - cpu) / pods as f64 * 1000.0;
    report.add("the same: CPU of control plane and node for each", cost, "ms", None, "without containerd");
    let gone = format!("{PATH}?gracePeriodSeconds=0&{selector}");
    api.send(Method::DELETE, &gone, "", Bytes::new()).await?;
    Ok(())
}

/// Seconds that all cores together had nothing to do.
fn idle() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let ticks = |i: usize| stat.split_whitespace().nth(i).and_then(|n| n.parse::<f64>().ok());
    Ok((ticks(4).context("idle")? + ticks(5).context("iowait")?) / 100.0)
}
