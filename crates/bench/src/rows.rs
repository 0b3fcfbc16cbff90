//! The rows of the table, in its order.

use std::{
    collections::HashSet,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use json::{Value, json};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::{
    api::{Api, PROTOBUF},
    load::drive,
    report::{
        Goal::{AtLeast, AtMost},
        Report,
    },
    subject::{Server, resident_mb, used},
};

const PODS: &str = "/api/v1/namespaces/bench/pods";

fn pod(i: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("o-{i}"), "labels": {"app": "bench", "color": "blue", "shard": format!("s{}", i % 50)}},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "registry.k8s.io/pause:3.10", "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "value": "1"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}, "limits": {"cpu": "100m", "memory": "500Mi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
            }],
        },
    })
}

fn config_map(name: String) -> Value {
    let labels = json!({"bench": "watch"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"key": "x".repeat(900)}})
}

/// API server and store, then the scheduler through the API.
pub async fn control_plane(skiff: &Path, pods: usize, nodes: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &["--disable=scheduler,controllers"]).await?;
    report.add("API ready after start", server.ready_millis, "ms", Some(AtMost(300.0)), "");
    tokio::time::sleep(Duration::from_secs(2)).await;
    report.add("resident memory, API + store, idle", server.resident_mb(), "MB", Some(AtMost(40.0)), "");
    let api = &server.api;
    api.namespace("bench").await?;
    writes_and_reads(api, pods, report).await?;
    watches(api, "watch, 100 watchers on one namespace", report).await?;
    watches(&api.accepting(PROTOBUF), "the same in protobuf", report).await?;
    let begun = Instant::now();
    api.send(Method::DELETE, &format!("{PODS}?gracePeriodSeconds=0"), "", Bytes::new()).await?;
    let what = format!("deletecollection of {pods} Pods");
    report.add(&what, begun.elapsed().as_secs_f64(), "s", Some(AtMost(2.0)), "");
    report.add("resident memory after all that", server.resident_mb(), "MB", Some(AtMost(300.0)), "");
    drop(server);
    schedule(skiff, nodes, report).await
}

async fn writes_and_reads(api: &Api, pods: usize, report: &mut Report) -> anyhow::Result<()> {
    let run = drive(pods, 32, |i| async move { api.post(PODS, &pod(i)).await }).await?;
    report.add("create Pods, 32 in flight", run.per_second(), "/s", Some(AtLeast(6000.0)), run.latencies());

    let maps = "/api/v1/namespaces/bench/configmaps";
    let run = drive(3000, 1, |i| async move { api.post(maps, &config_map(format!("c-{i}"))).await }).await?;
    let what = "create ConfigMaps one after another (durable)";
    report.add(what, run.per_second(), "/s", Some(AtLeast(1800.0)), run.latencies());

    let run = drive(pods * 2, 32, |i| async move { api.get(&format!("{PODS}/o-{}", i % pods)).await }).await?;
    report.add("get Pods, 32 in flight", run.per_second(), "/s", Some(AtLeast(20_000.0)), run.latencies());

    let length = api.get(PODS).await?;
    let run = drive(20, 1, |_| async move { api.get(PODS).await }).await?;
    let note = format!("{:.1} MB each", length as f64 / 1e6);
    report.add(&format!("list {pods} Pods, consistent"), run.quantile(0.5), "ms", Some(AtMost(60.0)), note);
    let run = drive(32, 8, |_| async move { api.get(PODS).await }).await?;
    let rate = length as f64 * run.per_second() / 1e6;
    report.add("the same, 8 at once", rate, "MB/s", Some(AtLeast(600.0)), run.latencies());

    let binary = &api.accepting(PROTOBUF);
    let run = drive(pods * 2, 32, |i| async move { binary.get(&format!("{PODS}/o-{}", i % pods)).await }).await?;
    report.add("get Pods in protobuf, 32 in flight", run.per_second(), "/s", Some(AtLeast(15_000.0)), run.latencies());
    let length = binary.get(PODS).await?;
    let run = drive(20, 1, |_| async move { binary.get(PODS).await }).await?;
    let note = format!("{:.1} MB each", length as f64 / 1e6);
    report.add(&format!("list {pods} Pods in protobuf"), run.quantile(0.5), "ms", Some(AtMost(300.0)), note);

    let run = drive(pods, 32, |i| async move {
        let patch = json!({"metadata": {"labels": {"round": i.to_string()}}});
        api.merge_patch(&format!("{PODS}/o-{i}"), &patch).await
    })
    .await?;
    report.add("merge-patch Pods, 32 in flight", run.per_second(), "/s", Some(AtLeast(4000.0)), run.latencies());
    Ok(())
}

/// 100 watchers on one namespace while objects are created.
async fn watches(api: &Api, what: &str, report: &mut Report) -> anyhow::Result<()> {
    const WATCHERS: usize = 100;
    const EVENTS: usize = 2000;
    let (namespace, path) = if api.is_binary() {
        ("benchbinary", "/api/v1/namespaces/benchbinary/configmaps")
    } else {
        ("benchwatch", "/api/v1/namespaces/benchwatch/configmaps")
    };
    api.namespace(namespace).await?;
    let origin = Instant::now();
    let sent = Arc::new(Mutex::new(vec![0.0; EVENTS]));
    let opened = Arc::new(AtomicUsize::new(0));
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let (api, sent, opened) = (api.clone(), sent.clone(), opened.clone());
            tokio::spawn(async move {
                let url = format!("{path}?watch=true&labelSelector=bench%3Dwatch");
                let mut body = api.open(Method::GET, &url, "", Bytes::new()).await?.into_body();
                opened.fetch_add(1, Ordering::Relaxed);
                let (mut delays, mut rest) = (Vec::with_capacity(EVENTS), Vec::new());
                while delays.len() < EVENTS {
                    let frame = body.frame().await.context("the watch ended")??;
                    let now = origin.elapsed().as_secs_f64() * 1000.0;
                    rest.extend_from_slice(frame.data_ref().context("data")?);
                    let (events, complete) = complete_events(&rest, api.is_binary());
                    let sent = sent.lock();
                    // The name is enough: parsing every event would measure this client.
                    delays.extend(events.into_iter().filter_map(number_in).map(|i| now - sent[i]));
                    drop(sent);
                    rest.drain(..complete);
                }
                anyhow::Ok(delays)
            })
        })
        .collect();
    while opened.load(Ordering::Relaxed) < WATCHERS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = Instant::now();
    drive(EVENTS, 32, |i| {
        sent.lock()[i] = origin.elapsed().as_secs_f64() * 1000.0;
        async move { api.post(path, &config_map(format!("w-{i}"))).await }
    })
    .await?;
    let mut delays = Vec::new();
    for watcher in watchers {
        delays.extend(
            tokio::time::timeout(Duration::from_secs(60), watcher).await.context("a watcher missed events")???,
        );
    }
    let rate = delays.len() as f64 / begun.elapsed().as_secs_f64();
    delays.sort_by(f64::total_cmp);
    let note = format!("p99 {:.1} ms", delays[delays.len() * 99 / 100]);
    report.add(what, rate, "events/s", Some(AtLeast(300_000.0)), note);
    Ok(())
}

/// The events that have arrived as a whole, and how many bytes they are: lines, or frames with their length before them.
fn complete_events(bytes: &[u8], binary: bool) -> (Vec<&[u8]>, usize) {
    if !binary {
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
        return (bytes[..end].split(|b| *b == b'\n').filter(|line| !line.is_empty()).collect(), end);
    }
    let (mut events, mut rest) = (Vec::new(), bytes);
    while let Some((length, more)) = rest.split_first_chunk::<4>()
        && let Some((event, more)) = more.split_at_checked(u32::from_be_bytes(*length) as usize)
    {
        events.push(event);
        rest = more;
    }
    (events, bytes.len() - rest.len())
}

/// The number in the name `w-123`, of an event in JSON (behind a quote) or in protobuf (behind a length).
fn number_in(event: &[u8]) -> Option<usize> {
    let at = event.windows(2).position(|w| w == b"w-")? + 2;
    let digits = event[at..].iter().take_while(|b| b.is_ascii_digit());
    Some(digits.fold(0, |n, b| n * 10 + usize::from(b - b'0')))
}

/// Pods onto nodes that nobody runs.
async fn schedule(skiff: &Path, nodes: usize, report: &mut Report) -> anyhow::Result<()> {
    let pods = nodes * 5;
    let server = Server::start(skiff, &["--disable=controllers"]).await?;
    let api = &server.api;
    api.namespace("bench").await?;
    drive(nodes, 16, |i| async move { register(api, i).await }).await?;
    let bound = Arc::new(Mutex::new(HashSet::new()));
    let watcher = tokio::spawn(count_bound(api.clone(), bound.clone()));
    let begun = Instant::now();
    drive(pods, 64, |i| async move { api.post(PODS, &pod(i)).await }).await?;
    while bound.lock().len() < pods {
        if begun.elapsed() > Duration::from_secs(120) || watcher.is_finished() {
            bail!("only {} of {pods} Pods were bound", bound.lock().len());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rate = pods as f64 / begun.elapsed().as_secs_f64();
    report.add(&format!("{pods} Pods onto {nodes} nodes, create to bound"), rate, "/s", Some(AtLeast(2000.0)), "");
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

/// What the row reads of an event. The rest is passed over: the load generator shares the machine with what it measures.
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
    let mut body = api.open(Method::GET, &format!("{PODS}?watch=true"), "", Bytes::new()).await?.into_body();
    let mut rest = Vec::new();
    while let Some(frame) = body.frame().await {
        rest.extend_from_slice(frame?.data_ref().context("data")?);
        let complete = rest.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
        for line in rest[..complete].split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let Watched { object } = serde_json::from_slice(line)?;
            if object.spec.node_name.is_some() {
                bound.lock().insert(object.metadata.name);
            }
        }
        rest.drain(..complete);
    }
    bail!("the watch ended")
}

/// Runs a command and fails with what it said.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let out = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!("{command:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(text)
}

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

/// `skiff up` on this machine: how fast it starts, how fast a Pod runs, what it costs when nothing happens.
pub async fn whole_node(skiff: &Path, report: &mut Report) -> anyhow::Result<()> {
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0\n"));
    if !root {
        eprintln!("SKIPPED: the rows of a whole node need root");
        return Ok(());
    }
    let folder = crate::subject::scratch("node")?;
    let cluster = Cluster { skiff, folder: folder.clone() };
    let ports = ["--secure-port=17443", "--kubelet-port=21250", "--dns-port=21053"];
    let begun = Instant::now();
    output(Command::new(skiff).arg("up").arg("--data-dir").arg(&folder).args(ports))?;
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
    let api = Api::connect(([127, 0, 0, 1], 17443).into(), &authority, token.trim(), 1).await?;
    run_pod(&api, "first").await?;
    let what = "bare machine with containerd to first Pod running";
    report.add(what, begun.elapsed().as_secs_f64(), "s", Some(AtMost(5.0)), "");
    let mut times = Vec::new();
    for i in 0..5 {
        let begun = Instant::now();
        run_pod(&api, &format!("again-{i}")).await?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    report.add("Pod create to Running seen (engine time included)", times[2], "ms", None, "median of 5");

    let pid: u32 = std::fs::read_to_string(folder.join("skiff.pid"))?.trim().parse()?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = used(pid);
    const WINDOW: f64 = 60.0;
    tokio::time::sleep(Duration::from_secs_f64(WINDOW)).await;
    let after = used(pid);
    report.add("whole node idle: resident memory", resident_mb(pid), "MB", Some(AtMost(120.0)), "without containerd");
    let cpu = (after.0 - before.0) / WINDOW * 100.0;
    report.add("whole node idle: CPU", cpu, "% of a core", Some(AtMost(1.0)), "over 60 s");
    let per_day = (after.1 - before.1) / 1e6 * 86_400.0 / WINDOW;
    report.add("whole node idle: disk writes", per_day, "MB/day", Some(AtMost(50.0)), "from 60 s");
    drop(cluster);
    Ok(())
}

/// Creates a Pod and waits on a watch until it runs.
async fn run_pod(api: &Api, name: &str) -> anyhow::Result<()> {
    let path = "/api/v1/namespaces/default/pods";
    let watch = format!("{path}?watch=true&fieldSelector=metadata.name%3D{name}");
    let mut body = api.open(Method::GET, &watch, "", Bytes::new()).await?.into_body();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "skiff.local/busybox:1", "command": ["sleep", "100000"]}]}});
    api.post(path, &pod).await?;
    let mut rest = Vec::new();
    let running = async {
        while let Some(frame) = body.frame().await {
            rest.extend_from_slice(frame?.data_ref().context("data")?);
            let complete = rest.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
            for line in rest[..complete].split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                let event: Value = serde_json::from_slice(line)?;
                if event["object"]["status"]["phase"] == "Running" {
                    return Ok(());
                }
            }
            rest.drain(..complete);
        }
        bail!("the watch ended")
    };
    tokio::time::timeout(Duration::from_secs(60), running).await.with_context(|| format!("Pod {name} does not run"))?
}
