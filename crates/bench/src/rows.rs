//! The rows of the control plane, in the table's order.

use std::{
    collections::HashSet,
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::bail;
use bytes::Bytes;
use http::Method;
use json::json;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::{
    api::{self, Api, PROTOBUF},
    custom,
    load::drive,
    objects::{config_map, pod},
    report::{
        Goal::{AtLeast, AtMost},
        Report,
    },
    subject::Server,
    watching,
};

pub const PODS: &str = "/api/v1/namespaces/bench/pods";

/// API server and store, then the scheduler through the API.
pub async fn control_plane(skiff: &Path, pods: usize, nodes: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &["--disable=scheduler,controllers"]).await?;
    report.add("API ready after start", server.ready_millis, "ms", Some(AtMost(300.0)), "");
    tokio::time::sleep(Duration::from_secs(2)).await;
    report.add("resident memory, API + store, idle", server.resident_mb(), "MB", Some(AtMost(40.0)), "");
    let api = &server.api;
    api.namespace("bench").await?;
    writes(&server, pods, report).await?;
    reads(&server, pods, report).await?;
    changes(&server, pods, report).await?;
    watching::hundred(&server, api, "watch, 100 watchers on one namespace", report).await?;
    watching::hundred(&server, &api.accepting(PROTOBUF), "the same in protobuf", report).await?;
    watching::thousand(&server, report).await?;
    custom::measure(&server, pods / 2, report).await?;
    let begun = Instant::now();
    api.send(Method::DELETE, &format!("{PODS}?gracePeriodSeconds=0"), "", Bytes::new()).await?;
    let what = format!("deletecollection of {pods} Pods");
    report.add(&what, begun.elapsed().as_secs_f64(), "s", Some(AtMost(2.0)), "");
    report.add("resident memory after all that", server.resident_mb(), "MB", Some(AtMost(300.0)), "");
    tokio::time::sleep(Duration::from_secs(60)).await;
    report.add("the same a minute later", server.resident_mb(), "MB", None, "");
    drop(server);
    beside_controllers(skiff, pods / 2, report).await?;
    custom::hundred_kinds(skiff, report).await?;
    schedule(skiff, nodes, report).await
}

async fn writes(server: &Server, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = &server.api;
    let run = server.drive(pods, 32, |i| async move { api.post(PODS, &pod(i)).await }).await?;
    report.rate("create Pods, 32 in flight", &run, 6000.0, 120.0);
    let maps = "/api/v1/namespaces/bench/configmaps";
    let run = server.drive(3000, 1, |i| async move { api.post(maps, &config_map(format!("c-{i}"))).await }).await?;
    report.rate("create ConfigMaps one after another (durable)", &run, 1800.0, 130.0);
    Ok(())
}

async fn reads(server: &Server, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = &server.api;
    let run = server.drive(pods * 2, 32, |i| async move { api.get(&format!("{PODS}/o-{}", i % pods)).await }).await?;
    report.rate("get Pods, 32 in flight", &run, 20_000.0, 25.0);
    let length = api.get(PODS).await?;
    let run = server.drive(20, 1, |_| async move { api.get(PODS).await }).await?;
    report.list(&format!("list {pods} Pods, consistent"), &run, length, 60.0, Some(25.0));
    let run = server.drive(32, 8, |_| async move { api.get(PODS).await }).await?;
    let rate = length as f64 * run.per_second() / 1e6;
    report.add("the same, 8 at once", rate, "MB/s", Some(AtLeast(600.0)), run.latencies());

    let binary = &api.accepting(PROTOBUF);
    let get = async |i: usize| binary.get(&format!("{PODS}/o-{}", i % pods)).await;
    let run = server.drive(pods * 2, 32, get).await?;
    report.add("get Pods in protobuf, 32 in flight", run.per_second(), "/s", Some(AtLeast(15_000.0)), run.latencies());
    let length = binary.get(PODS).await?;
    let run = server.drive(20, 1, |_| async move { binary.get(PODS).await }).await?;
    report.list(&format!("list {pods} Pods in protobuf"), &run, length, 300.0, None);
    Ok(())
}

async fn changes(server: &Server, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let api = &server.api;
    let merge = async |i: usize| {
        let patch = json!({"metadata": {"labels": {"round": i.to_string()}}});
        api.merge_patch(&format!("{PODS}/o-{i}"), &patch).await
    };
    let run = server.drive(pods, 32, merge).await?;
    report.rate("merge-patch Pods, 32 in flight", &run, 4000.0, 150.0);
    let apply = async |i: usize| {
        let (name, labels) = (format!("o-{i}"), json!({"applied": i.to_string()}));
        let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}});
        let path = format!("{PODS}/{name}?fieldManager=bench&force=true");
        api.send(Method::PATCH, &path, "application/apply-patch+yaml", applied.to_string().into()).await
    };
    let run = server.drive(pods, 32, apply).await?;
    report.add("server-side apply to Pods, 32 in flight", run.per_second(), "/s", None, run.latencies());
    Ok(())
}

/// How often the two servers are measured in turns: their difference is small beside what other work on the machine does to each.
const TURNS: usize = 5;

/// The controllers' own work for a Pod that concerns none of them, in the process that stores it.
async fn beside_controllers(skiff: &Path, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut micros = [0.0; 2];
    for turn in 0..TURNS * micros.len() {
        let of = turn % micros.len();
        let server = Server::start(skiff, &[["--disable=scheduler,controllers", "--disable=scheduler"][of]]).await?;
        let api = &server.api;
        api.namespace("bench").await?;
        // The namespace's own account and certificates are made first.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let run = server.drive(pods, 32, |i| async move { api.post(PODS, &pod(i)).await }).await?;
        micros[of] += run.cpu_micros / TURNS as f64;
    }
    let [alone, with] = micros;
    let note = format!("{alone:.0} µs without; means of {TURNS}");
    report.add("create Pods beside the controllers: more CPU", with - alone, "µs", Some(AtMost(30.0)), note);
    Ok(())
}

/// Pods onto nodes that nobody runs.
pub async fn schedule(skiff: &Path, nodes: usize, report: &mut Report) -> anyhow::Result<()> {
    let pods = nodes * 5;
    let server = Server::start(skiff, &["--disable=controllers"]).await?;
    let api = &server.api;
    api.namespace("bench").await?;
    drive(nodes, 16, |i| async move { register(api, i).await }).await?;
    let bound = Arc::new(Mutex::new(HashSet::new()));
    let watcher = tokio::spawn(count_bound(api.clone(), bound.clone()));
    let (begun, used) = (Instant::now(), server.cpu_seconds());
    drive(pods, 64, |i| async move { api.post(PODS, &pod(i)).await }).await?;
    while bound.lock().len() < pods {
        if begun.elapsed() > Duration::from_secs(120) || watcher.is_finished() {
            bail!("only {} of {pods} Pods were bound", bound.lock().len());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rate = pods as f64 / begun.elapsed().as_secs_f64();
    let micros = (server.cpu_seconds() - used) / pods as f64 * 1e6;
    let cost = format!("{micros:.0} µs of the server's CPU time each");
    report.add(&format!("{pods} Pods onto {nodes} nodes, create to bound"), rate, "/s", Some(AtLeast(3000.0)), &cost);
    watcher.abort();
    Ok(())
}

/// A node that is ready and has no taints.
async fn register(api: &Api, i: usize) -> anyhow::Result<()> {
    let name = format!("node-{i:05}");
    let room = json!({"cpu": "4", "memory": "32Gi", "pods": "110"});
    let status = json!({"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True", "reason": "bench"}]});
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone{}", i % 3)});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status});
    api.post("/api/v1/nodes", &node).await?;
    api.merge_patch(&format!("/api/v1/nodes/{name}/status"), &json!({"status": status})).await?;
    api.merge_patch(&format!("/api/v1/nodes/{name}"), &json!({"spec": {"taints": null}})).await?;
    Ok(())
}

/// The part of an event that the row reads. The rest is passed over: the load generator shares the machine with what it
/// measures.
#[derive(Deserialize)]
struct Watched {
    object: WatchedPod,
}

#[derive(Deserialize)]
struct WatchedPod {
    metadata: Named,
    spec: Placed,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Placed {
    node_name: Option<String>,
}

async fn count_bound(api: Api, bound: Arc<Mutex<HashSet<String>>>) -> anyhow::Result<()> {
    let body = api.open(Method::GET, &format!("{PODS}?watch=true"), "", Bytes::new()).await?.into_body();
    api::follow(body, |line| {
        let Watched { object } = serde_json::from_slice(line)?;
        if object.spec.node_name.is_some() {
            bound.lock().insert(object.metadata.name);
        }
        Ok(ControlFlow::Continue(()))
    })
    .await
}
