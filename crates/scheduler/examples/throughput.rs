//! How many Pods per second the engine alone decides, on workloads in the shape of upstream's scheduler_perf.
//!
//! `cargo run --profile fast -p scheduler --example throughput [nodes] [pods]`

use std::time::Instant as Wall;

use clock::Instant;
use k8s_openapi::api::core::v1::{Node, Pod};
use scheduler::{Decision, Engine, Settings};
use serde_json::{Value, json};

fn node(i: usize) -> Node {
    let name = format!("node-{i}");
    serde_json::from_value(json!({
        "metadata": {"labels": {"kubernetes.io/hostname": &name,
            "topology.kubernetes.io/zone": format!("zone{}", i % 3)}, "name": name},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    }))
    .expect("a node")
}

fn pod(i: usize, labels: &Value, more: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": format!("pod-{i}"), "namespace": "sched-1", "uid": format!("{i}"), "labels": labels},
        "spec": {"containers": [{"name": "pause", "image": "pause", "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}]},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    serde_json::from_value(pod).expect("a Pod")
}

fn affinity(kind: &str, key: &str, labels: &Value, required: bool) -> Value {
    let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": labels}});
    match required {
        true => json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}),
        false => json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": 1, "podAffinityTerm": term}]}}}),
    }
}

fn spread(labels: &Value, when: &str) -> Value {
    json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": when, "labelSelector": {"matchLabels": labels}}]})
}

/// Names as upstream has them, and upstream's own threshold in Pods per second.
fn workloads() -> Vec<(&'static str, u32, Value, Value)> {
    let (host, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
    let color = |c: &str| json!({"color": c});
    let zones = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": zone, "operator": "In", "values": ["zone1", "zone2"]}]}]});
    let nodes = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": zones}}});
    let huge = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "9"}}}]});
    vec![
        ("SchedulingBasic", 680, json!({}), json!({})),
        ("SchedulingPodAntiAffinity", 180, color("green"), affinity("podAntiAffinity", host, &color("green"), true)),
        ("SchedulingPodAffinity", 70, color("blue"), affinity("podAffinity", zone, &color("blue"), true)),
        ("SchedulingPreferredPodAffinity", 0, color("red"), affinity("podAffinity", host, &color("red"), false)),
        ("TopologySpreading", 480, color("blue"), spread(&color("blue"), "DoNotSchedule")),
        ("PreferredTopologySpreading", 340, color("blue"), spread(&color("blue"), "ScheduleAnyway")),
        ("SchedulingNodeAffinity", 540, json!({}), nodes),
        ("Unschedulable", 590, json!({}), huge),
    ]
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let (nodes, pods) = (args.next().unwrap_or(5000), args.next().unwrap_or(10_000));
    println!("{:34} {:>9} {:>9} {:>10}", format!("{pods} Pods, {nodes} nodes"), "pods/s", "upstream", "unplaced");
    for (name, upstream, labels, spec) in workloads() {
        // One Pod per host is all that anti-affinity allows.
        let count = if name.ends_with("AntiAffinity") { pods.min(nodes * 9 / 10) } else { pods };
        let waiting: Vec<Pod> = (0..count).map(|i| pod(i, &labels, &spec)).collect();
        let (mut engine, now) = (Engine::new(Settings::default()), Instant::now());
        (0..nodes).for_each(|i| engine.set_node(&node(i), now));
        let start = Wall::now();
        waiting.iter().for_each(|p| engine.set_pod(p, now));
        let mut unplaced = 0;
        while let Some(decision) = engine.schedule_one(now) {
            unplaced += usize::from(matches!(decision, Decision::Unschedulable { .. }));
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        println!("{name:34} {rate:>9.0} {upstream:>9} {unplaced:>10}");
    }
}
