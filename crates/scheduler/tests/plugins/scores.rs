//! Scores that follow from the node: its resources, images, taints and labels.

use client::Key;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use scheduler::{
    Engine,
    args::{Args, Strategy, Weighted},
    devices::{Claim, Class, Slice},
    plugin::Plugin,
    plugins::{
        image_locality, node_affinity, node_resources_balanced_allocation, node_resources_fit, taint_toleration,
    },
};

use crate::text::{engine, node, pod, pod_with};

fn strategy(strategy: Strategy, scored: &[(&str, i64)]) -> Args {
    let scored = scored.iter().map(|(name, weight)| Weighted { name: (*name).to_owned(), weight: *weight }).collect();
    Args { strategy, scored, ..Args::default() }
}

/// Two nodes with these resources, what is on them, and the Pod: the two scores.
fn check(plugin: &Plugin, args: &Args, nodes: [&str; 2], placed: &[&str], waiting: &Pod, expected: [i64; 2]) {
    let nodes = [format!("a {}", nodes[0]), format!("b {}", nodes[1])];
    let placed: Vec<Pod> = placed.iter().map(|text| pod(text)).collect();
    let mut engine = engine(&nodes.each_ref().map(String::as_str), &placed);
    assert_eq!(crate::scores(plugin, args, &mut engine, waiting), expected, "{nodes:?} {placed:?} {waiting:?}");
}

const SMALL: &str = "cpu=4 memory=10000";
const LARGE: &str = "cpu=6 memory=10000";
const GREAT: &str = "cpu=10 memory=20000";
const BOTH: &str = "p cpu=3 memory=5000";

#[test]
fn free_room_is_scored_least_allocated_first() {
    let least = |nodes, placed: &[&str], waiting: &str, expected| {
        let args = strategy(Strategy::LeastAllocated, &[("cpu", 1), ("memory", 1)]);
        check(&node_resources_fit::PLUGIN, &args, nodes, placed, &pod(waiting), expected);
    };
    let nothing = "p cpu=0 memory=0";
    least([SMALL, SMALL], &[], nothing, [100, 100]);
    least([SMALL, LARGE], &[], BOTH, [37, 50]);
    let placed = ["q on=a cpu=3 memory=0", "r on=b cpu=3 memory=5000"];
    let twice = ["q on=a cpu=6 memory=0", "r on=b cpu=6 memory=5000"];
    least([GREAT, GREAT], &twice, nothing, [70, 57]);
    least([GREAT, GREAT], &placed, BOTH, [57, 45]);
    least([GREAT, "cpu=10 memory=50000"], &placed, BOTH, [57, 60]);
    least([SMALL, SMALL], &placed, "p cpu=3 memory=0", [50, 25]);
    least(["cpu=0 memory=0", "cpu=0 memory=0"], &placed, nothing, [0, 0]);
    // A container without requests counts with a tenth of a core and 200Mi.
    least(["cpu=1 memory=400Mi", "cpu=2 memory=1000Mi"], &[], "p", [70, 87]);
    least(["cpu=1 memory=400Mi", "cpu=1 memory=400Mi"], &["q on=a"], "p", [40, 70]);
    let weighted = strategy(Strategy::LeastAllocated, &[("cpu", 2), ("memory", 1)]);
    check(&node_resources_fit::PLUGIN, &weighted, [SMALL, LARGE], &[], &pod(BOTH), [33, 50]);
    let storage = strategy(Strategy::LeastAllocated, &[("ephemeral-storage", 1)]);
    let nodes = ["ephemeral-storage=100", "ephemeral-storage=200"];
    check(&node_resources_fit::PLUGIN, &storage, nodes, &["q on=a ephemeral-storage=40"], &pod("p"), [60, 100]);
}

#[test]
fn used_room_is_scored_most_allocated_first() {
    let most = |nodes, placed: &[&str], waiting: &str, expected| {
        let args = strategy(Strategy::MostAllocated, &[("cpu", 1), ("memory", 1)]);
        check(&node_resources_fit::PLUGIN, &args, nodes, placed, &pod(waiting), expected);
    };
    most([SMALL, SMALL], &[], "p cpu=0 memory=0", [0, 0]);
    most([SMALL, LARGE], &[], BOTH, [62, 50]);
    let placed = ["q on=a cpu=3 memory=0", "r on=b cpu=3 memory=5000"];
    most([GREAT, GREAT], &placed, BOTH, [42, 55]);
    most([SMALL, LARGE], &[], "p cpu=5 memory=9000", [95, 86]);
    let foo = strategy(Strategy::MostAllocated, &[("cpu", 1), ("x.io/foo", 3)]);
    let nodes = ["cpu=10 x.io/foo=8", "cpu=10"];
    // A resource that a node does not have counts neither for it nor against it, and one that nobody asks for counts
    // nowhere.
    check(&node_resources_fit::PLUGIN, &foo, nodes, &[], &pod("p cpu=1 x.io/foo=4"), [40, 10]);
    check(&node_resources_fit::PLUGIN, &foo, nodes, &["q on=a x.io/foo=8"], &pod("p cpu=1"), [11, 10]);
}

#[test]
fn a_line_turns_use_into_a_score() {
    let line = |points: &[(i64, i64)], scored: &[(&str, i64)], nodes, placed: &[&str], waiting: &str, expected| {
        let args = strategy(Strategy::RequestedToCapacityRatio(points.to_vec()), scored);
        check(&node_resources_fit::PLUGIN, &args, nodes, placed, &pod(waiting), expected);
    };
    let (down, up, both) = ([(0, 10), (100, 0)], [(0, 0), (100, 10)], [("cpu", 1), ("memory", 1)]);
    line(&down, &both, [SMALL, SMALL], &[], "p cpu=0 memory=0", [100, 100]);
    line(&down, &both, [SMALL, LARGE], &[], BOTH, [38, 50]);
    let placed = ["q on=a cpu=3 memory=5000", "r on=b cpu=3 memory=5000"];
    line(&down, &both, [SMALL, LARGE], &placed, "p cpu=0 memory=0", [38, 50]);
    // A plugin that scores nothing has no weight either.
    line(&up, &both, [SMALL, LARGE], &[], "p cpu=2 memory=0", [50, 33]);
    let foo = [("x.io/foo", 1)];
    let nodes = ["x.io/foo=8", "x.io/foo=4"];
    line(&up, &foo, nodes, &[], "p x.io/foo=2", [25, 50]);
    line(&up, &foo, nodes, &["q on=a x.io/foo=4"], "p x.io/foo=2", [75, 50]);
    line(&up, &foo, nodes, &["q on=a x.io/foo=4"], "p", [0, 0]);
    line(&[(0, 10), (30, 1), (60, 7)], &foo, ["x.io/foo=10", "x.io/foo=100"], &[], "p x.io/foo=2", [40, 94]);
    line(&[(20, 1), (60, 7)], &foo, ["x.io/foo=100", "x.io/foo=10"], &["q on=b x.io/foo=7"], "p x.io/foo=2", [10, 70]);
}

#[test]
fn shares_of_resources_are_balanced() {
    let balance = |balanced: &[&str], nodes, placed: &[&str], waiting: &str, expected| {
        let args = Args { balanced: balanced.iter().map(|name| (*name).to_owned()).collect(), ..Args::default() };
        check(&node_resources_balanced_allocation::PLUGIN, &args, nodes, placed, &pod(waiting), expected);
    };
    let both = ["cpu", "memory"];
    balance(&both, [SMALL, LARGE], &[], BOTH, [87, 100]);
    let placed = ["q on=a cpu=3 memory=0", "r on=b cpu=3 memory=5000"];
    balance(&both, [GREAT, GREAT], &placed, BOTH, [82, 95]);
    balance(&both, [GREAT, "cpu=10 memory=50000"], &placed, BOTH, [82, 80]);
    balance(&both, [LARGE, LARGE], &placed, BOTH, [75, 100]);
    balance(&both, ["cpu=0 memory=0", "cpu=0 memory=0"], &placed, BOTH, [100, 100]);
    balance(&both, [SMALL, LARGE], &placed, "p", [0, 0]);
    let three = ["cpu", "memory", "x.io/gpu"];
    let nodes = ["cpu=10 memory=10000 x.io/gpu=10", "cpu=10 memory=10000 x.io/gpu=10"];
    balance(&three, nodes, &["q on=a x.io/gpu=6"], "p cpu=3 memory=3000 x.io/gpu=3", [71, 100]);
    balance(&three, nodes, &["q on=a x.io/gpu=6"], "p cpu=3 memory=3000", [100, 100]);
}

const MB: i64 = 1024 * 1024;

#[test]
fn images_that_are_there_attract() {
    let of = |name: &str, images: &[(&str, i64)]| {
        let mut node = node(name);
        let image =
            |(name, size): &(&str, i64)| json!({"names": [format!("r.io/{name}:latest")], "sizeBytes": size * MB});
        let list: Vec<Value> = images.iter().map(image).collect();
        node.status.as_mut().unwrap().images = Some(json::from_value(json!(list)).unwrap());
        node
    };
    let check = |images: &[&str], init: &[&str], mounted: &[&str], expected: [i64; 2]| {
        let container = |(i, image): (usize, &&str)| json!({"name": format!("c{i}"), "image": format!("r.io/{image}")});
        let list = |images: &[&str]| images.iter().enumerate().map(container).collect::<Vec<_>>();
        let volume = |image: &&str| json!({"name": image, "image": {"reference": format!("r.io/{image}:latest")}});
        let volumes: Vec<Value> = mounted.iter().map(volume).collect();
        let spec = json!({"containers": list(images), "initContainers": list(init), "volumes": volumes});
        let mut engine = engine(&[], &[]);
        let now = clock::Instant::now();
        engine.set_node(&of("a", &[("40", 40), ("300", 300), ("2000", 2000)]), now);
        engine.set_node(&of("b", &[("250", 250), ("10", 10)]), now);
        let found = crate::scores(&image_locality::PLUGIN, &Args::default(), &mut engine, &pod_with("p", spec));
        assert_eq!(found, expected, "{images:?} {init:?} {mounted:?}");
    };
    check(&["40", "250"], &[], &[], [0, 5]);
    check(&["40", "300"], &[], &[], [7, 0]);
    check(&["10", "2000"], &[], &[], [49, 0]);
    check(&["2000"], &[], &[], [100, 0]);
    check(&["300"], &["250"], &[], [6, 5]);
    check(&["10"], &[], &["2000"], [49, 0]);
    check(&["unknown"], &[], &[], [0, 0]);
}

#[test]
fn soft_taints_that_are_not_tolerated_repel() {
    let check = |nodes: &[&str], tolerations: Value, expected: &[i64]| {
        let mut engine = engine(nodes, &[]);
        let waiting = pod_with("p", json!({"tolerations": tolerations}));
        let found = crate::scores(&taint_toleration::PLUGIN, &Args::default(), &mut engine, &waiting);
        assert_eq!(found, expected, "{nodes:?} {tolerations}");
    };
    let exists = |key: &str, effect: &str| json!([{"key": key, "operator": "Exists", "effect": effect}]);
    let soft = ["a taint=x:PreferNoSchedule", "b taint=y:PreferNoSchedule"];
    check(&soft, exists("x", "PreferNoSchedule"), &[100, 0]);
    check(&soft, exists("x", "NoSchedule"), &[100, 100].map(|_| 0));
    let more = ["a", "b taint=x:PreferNoSchedule", "c taint=x:PreferNoSchedule taint=y:PreferNoSchedule"];
    check(&more, json!(null), &[100, 50, 0]);
    check(&more, exists("x", ""), &[100, 100, 0]);
    check(&["a", "b taint=x:NoSchedule"], json!(null), &[100, 100]);
}

#[test]
fn preferred_nodes_are_weighed() {
    let term = |weight: i32, key: &str, value: &str| {
        let expression = json!({"key": key, "operator": "In", "values": [value]});
        json!({"weight": weight, "preference": {"matchExpressions": [expression]}})
    };
    let check = |preferred: &[Value], expected: &[i64]| {
        let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
        let nodes = ["a label=foo:bar", "b label=key:value", "c label=foo:bar label=key:value label=az:az1", "d"];
        let mut engine = engine(&nodes, &[]);
        let waiting = pod_with("p", json!({"affinity": affinity}));
        let found = crate::scores(&node_affinity::PLUGIN, &Args::default(), &mut engine, &waiting);
        assert_eq!(found, expected, "{preferred:?}");
    };
    check(&[term(2, "foo", "bar")], &[100, 0, 100, 0]);
    let all = [term(2, "foo", "bar"), term(4, "key", "value"), term(5, "az", "az1")];
    check(&all, &[18, 36, 100, 0]);
    check(&[term(3, "foo", "other")], &[0, 0, 0, 0]);
    // A preference without conditions prefers nothing.
    check(&[json!({"weight": 7, "preference": {}}), term(1, "key", "value")], &[0, 100, 100, 0]);
}

#[test]
fn devices_that_stand_for_a_resource_are_scored_as_the_resource() {
    const GPU: &str = "x.io/gpu";
    let check = |on: bool, used: i64, expected: [[i64; 3]; 2]| {
        let mut engine = engine(&["a", "b", "c x.io/gpu=4"], &[pod("q on=c x.io/gpu=1")]);
        let now = clock::Instant::now();
        engine.cache.devices.gates.extended = on;
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": GPU,
            "selectors": [{"cel": {"expression": "device.attributes['drv'].kind == 'gpu'"}}]}});
        let class = Class::of(&json::from_value(class).unwrap());
        engine.set_device_class(&Key::new("", "gpu"), Some(class), now);
        for node in ["a", "b"] {
            let device = |(name, kind)| json!({"name": name, "attributes": {"kind": {"string": kind}}});
            let devices = [("d0", "gpu"), ("d1", "gpu"), ("d2", "gpu"), ("d3", "gpu"), ("d4", "nic")].map(device);
            let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
            let spec = json!({"driver": "drv", "pool": pool, "nodeName": node, "devices": devices});
            let slice = Slice::of(&json::from_value(json!({"metadata": {"name": node}, "spec": spec})).unwrap());
            engine.set_slice(&Key::new("", node), Some(slice), now);
        }
        let waiting = pod("p cpu=1 x.io/gpu=1");
        let args = Args {
            balanced: vec!["cpu".to_owned(), GPU.to_owned()],
            ..strategy(Strategy::LeastAllocated, &[(GPU, 1)])
        };
        let both = |engine: &mut Engine| -> [[i64; 3]; 2] {
            [&node_resources_fit::PLUGIN, &node_resources_balanced_allocation::PLUGIN]
                .map(|plugin| crate::scores(plugin, &args, engine, &waiting).try_into().unwrap())
        };
        // A verdict from before devices change hands does not hold any more.
        let before = both(&mut engine);
        for i in 0..used {
            let name = format!("c{i}");
            let results = json!([{"request": "r", "driver": "drv", "pool": "b", "device": format!("d{i}")}]);
            let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {},
                "status": {"allocation": {"devices": {"results": results}}}});
            let claim = Claim::of(&json::from_value(claim).unwrap());
            engine.set_device_claim(&Key::new("default", &*name), Some(claim), now);
        }
        let after = both(&mut engine);
        assert_eq!(after, expected, "{on} {used}");
        assert_eq!(before == after, !on || used == 0);
    };
    check(true, 0, [[75, 75, 50], [100, 100, 87]]);
    check(true, 2, [[75, 25, 50], [100, 75, 87]]);
    check(false, 2, [[0, 0, 50], [100, 100, 87]]);
}
