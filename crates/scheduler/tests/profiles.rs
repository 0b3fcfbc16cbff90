//! The effect of a `KubeSchedulerConfiguration` on the engine's decisions.

#[allow(dead_code, reason = "the other tables make their engines by it")]
mod text;

use clock::Instant;
use json::{Value, json};
use scheduler::{Engine, config};
use text::{next, node, pod, pod_with};

/// An engine whose profiles are these, and its Pods.
fn engine(profiles: Value, nodes: &[&str], pods: &[&str]) -> Engine {
    let (version, kind) = ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration");
    let settings =
        config::parse(json!({"apiVersion": version, "kind": kind, "profiles": profiles}), Default::default()).unwrap();
    let (mut engine, now) = (Engine::new(settings), Instant::now());
    nodes.iter().for_each(|n| engine.set_node(&node(n), now));
    pods.iter().for_each(|p| engine.set_pod(&pod(p), now));
    engine
}

/// A profile that scores by one strategy alone, or has other arguments of one plugin.
fn with_args(plugin: &str, args: Value) -> Value {
    json!([{"pluginConfig": [{"name": plugin, "args": args}]}])
}

fn only_score(plugin: &str, args: Value) -> Value {
    let set = json!({"disabled": [{"name": "*"}], "enabled": [{"name": plugin}]});
    json!([{"plugins": {"score": set}, "pluginConfig": [{"name": plugin, "args": args}]}])
}

#[test]
fn strategies_prefer_empty_or_full_nodes() {
    let nodes = ["a cpu=4 memory=8Gi gpu.io/x=4", "b cpu=4 memory=8Gi gpu.io/x=4"];
    let placed = ["q on=a cpu=2 memory=4Gi", "r on=b gpu.io/x=2"];
    let goes = |strategy: Value, waiting: &str| {
        let args = json!({"scoringStrategy": strategy});
        let mut engine = engine(only_score("NodeResourcesFit", args), &nodes, &placed);
        engine.set_pod(&pod(waiting), Instant::now());
        next(&mut engine)
    };
    let waiting = "p cpu=1 memory=2Gi gpu.io/x=1";
    assert_eq!(goes(json!({"type": "LeastAllocated"}), waiting), "b");
    assert_eq!(goes(json!({"type": "MostAllocated"}), waiting), "a");
    let gpu = json!([{"name": "gpu.io/x", "weight": 3}]);
    assert_eq!(goes(json!({"type": "LeastAllocated", "resources": gpu}), waiting), "a");
    assert_eq!(goes(json!({"type": "MostAllocated", "resources": gpu}), waiting), "b");
    let both = json!([{"name": "gpu.io/x", "weight": 1}, {"name": "cpu", "weight": 10}]);
    assert_eq!(goes(json!({"type": "MostAllocated", "resources": both}), waiting), "a", "cpu weighs more");
    assert_eq!(goes(json!({"type": "MostAllocated", "resources": both}), "p cpu=1 gpu.io/x=1"), "a");
    let line = |points: Value, resources: &Value| json!({"type": "RequestedToCapacityRatio", "resources": resources, "requestedToCapacityRatio": {"shape": points}});
    let up = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
    let down = json!([{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]);
    assert_eq!(goes(line(up.clone(), &gpu), waiting), "b");
    assert_eq!(goes(line(down, &gpu), waiting), "a");
    let middle =
        json!([{"utilization": 25, "score": 0}, {"utilization": 50, "score": 10}, {"utilization": 75, "score": 0}]);
    // On a all cpu would be in use, on b half of it.
    assert_eq!(goes(line(middle, &json!([{"name": "cpu", "weight": 1}])), "p cpu=2"), "b");
}

#[test]
fn each_profile_decides_about_its_own_pods() {
    let strategy = |kind: &str| json!([{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": kind}}}]);
    let score = json!({"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}});
    let profiles = json!([
        {"schedulerName": "default-scheduler", "plugins": score, "pluginConfig": strategy("LeastAllocated")},
        {"schedulerName": "packing", "plugins": score, "pluginConfig": strategy("MostAllocated")},
    ]);
    let mut engine = engine(profiles, &["a", "b"], &["q on=a cpu=1 memory=1Gi"]);
    let now = Instant::now();
    engine.set_pod(&pod_with("p1 cpu=1 memory=1Gi", json!({"schedulerName": "packing"})), now);
    assert_eq!(next(&mut engine), "a");
    engine.set_pod(&pod("p2 cpu=1 memory=1Gi"), now);
    assert_eq!(next(&mut engine), "b");
    engine.set_pod(&pod_with("p3", json!({"schedulerName": "nobody"})), now);
    assert_eq!(next(&mut engine), "nothing to do");
}

#[test]
fn plugins_can_be_off() {
    let off = |point: &str, name: &str| json!([{"plugins": {point: {"disabled": [{"name": name}]}}}]);
    let goes = |profiles: Value, nodes: &[&str], placed: &[&str], waiting: &str| {
        let mut engine = engine(profiles, nodes, placed);
        engine.set_pod(&pod(waiting), Instant::now());
        next(&mut engine)
    };
    assert_eq!(goes(off("filter", "TaintToleration"), &["a taint=k:NoSchedule"], &[], "p"), "a");
    let full = ["q on=a cpu=1"];
    let short = "0/1 nodes are available: 1 Insufficient cpu.";
    let unpreempted = off("postFilter", "DefaultPreemption");
    assert_eq!(goes(unpreempted, &["a cpu=1"], &full, "p cpu=1 priority=5"), short);
    assert_eq!(goes(off("multiPoint", "NodeResourcesFit"), &["a cpu=1"], &full, "p cpu=1"), "a");
}

#[test]
fn arguments_of_the_filters() {
    let goes = |profiles: Value, nodes: &[&str], waiting: &str| {
        let mut engine = engine(profiles, nodes, &[]);
        engine.set_pod(&pod(waiting), Instant::now());
        next(&mut engine)
    };
    let ssd = json!([{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]);
    let added =
        json!({"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": ssd}}});
    let enforced = with_args("NodeAffinity", added);
    assert_eq!(goes(enforced.clone(), &["a", "b label=disk:ssd"], "p"), "b");
    let refused = "0/1 nodes are available: 1 node(s) didn't match scheduler-enforced node affinity.";
    assert_eq!(goes(enforced, &["a"], "p"), refused);
    let preference = json!([{"weight": 1, "preference": ssd[0]}]);
    let added = json!({"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}});
    assert_eq!(goes(with_args("NodeAffinity", added), &["a", "b label=disk:ssd"], "p"), "b");
    let ignored = with_args("NodeResourcesFit", json!({"ignoredResources": ["gpu.io/x"]}));
    assert_eq!(goes(ignored, &["a"], "p gpu.io/x=1"), "a");
    let group = with_args("NodeResourcesFit", json!({"ignoredResourceGroups": ["gpu.io"]}));
    assert_eq!(goes(group.clone(), &["a"], "p gpu.io/x=1"), "a");
    let other = "0/1 nodes are available: 1 Insufficient other.io/x.";
    assert_eq!(goes(group, &["a"], "p other.io/x=1"), other);
}

#[test]
fn listed_constraints_are_hard_if_they_say_so() {
    let zone = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
    let listed = with_args("PodTopologySpread", json!({"defaultingType": "List", "defaultConstraints": zone}));
    let nodes = ["a label=zone:x", "b label=zone:y cordoned"];
    let mut engine = engine(listed, &nodes, &["q on=a label=app:x"]);
    let (now, service) = (Instant::now(), client::Key::new("default", "s"));
    engine.set_service(&service, Some([("app".to_owned(), "x".to_owned())].into()), now);
    engine.set_pod(&pod("p label=app:x"), now);
    let apart = "0/2 nodes are available: 1 node(s) didn't match pod topology spread constraints, 1 node(s) were \
                 unschedulable.";
    assert_eq!(next(&mut engine), apart);
    engine.set_service(&service, None, now);
    assert_eq!(next(&mut engine), "a", "nothing is to be spread any more");
}
