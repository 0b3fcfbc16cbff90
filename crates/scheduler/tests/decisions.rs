//! What the engine decides, given nodes and Pods as text.
//!
//! A node is `name [cpu=4] [pods=110] [taint=key:effect] [label=key:value] [cordoned]`, a Pod is
//! `name [cpu=1] [on=node] [port=80] [label=key:value] …` or a JSON spec.

use std::cell::RefCell;

use clock::{Duration, Instant};
use k8s_openapi::api::core::v1::{Node, Pod};
use scheduler::{
    Decision, Engine, Settings, failure::Preemption, plugin::Plugin, plugins::node_resources_fit, rejection::Rejection,
};
use serde_json::{Value, json};

fn words(text: &str) -> (&str, Vec<(&str, &str)>) {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap();
    (name, words.map(|w| w.split_once('=').unwrap_or((w, ""))).collect())
}

fn node(text: &str) -> Node {
    let (name, words) = words(text);
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": []},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    });
    for (word, value) in words {
        let (key, second) = value.split_once(':').unwrap_or((value, ""));
        match word {
            "cordoned" => node["spec"]["unschedulable"] = true.into(),
            "taint" => {
                node["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": key, "value": "", "effect": second}))
            }
            "label" => node["metadata"]["labels"][key] = second.into(),
            resource => node["status"]["allocatable"][resource] = value.into(),
        }
    }
    serde_json::from_value(node).unwrap()
}

fn pod_with(text: &str, more: Value) -> Pod {
    let (name, words) = words(text);
    let mut container = json!({"name": "c", "image": "image", "resources": {"requests": {}}});
    let mut pod = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "labels": {}}, "spec": {}});
    for (word, value) in words {
        let (key, second) = value.split_once(':').unwrap_or((value, ""));
        match word {
            "on" => pod["spec"]["nodeName"] = value.into(),
            "port" => container["ports"] = json!([{"hostPort": value.parse::<i32>().unwrap(), "containerPort": 1}]),
            "label" => pod["metadata"]["labels"][key] = second.into(),
            "priority" => pod["spec"]["priority"] = value.parse::<i32>().unwrap().into(),
            "tolerates" => pod["spec"]["tolerations"] = json!([{"key": value, "operator": "Exists"}]),
            resource => container["resources"]["requests"][resource] = value.into(),
        }
    }
    pod["spec"]["containers"] = json!([container]);
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn pod(text: &str) -> Pod {
    pod_with(text, Value::Null)
}

fn engine(nodes: &[&str], pods: &[Pod]) -> Engine {
    let (mut engine, now) = (Engine::new(Settings::default()), Instant::now());
    nodes.iter().for_each(|n| engine.set_node(&node(n), now));
    pods.iter().for_each(|p| engine.set_pod(p, now));
    engine
}

/// The node of the next Pod, or why there is none (without the part about preemption).
fn next(engine: &mut Engine) -> String {
    match engine.schedule_one(Instant::now()) {
        None => "nothing to do".to_owned(),
        Some(Decision::Bind { node, .. }) => node.to_string(),
        Some(Decision::Unschedulable { preemption: Preemption::Victims(node, victims), .. }) => {
            let names: Vec<String> = victims.iter().map(|key| key.name.clone()).collect();
            format!("{} must leave {node}", names.join(" "))
        }
        Some(Decision::Unschedulable { failure, preemption, .. }) => {
            failure.message(&preemption).split(" no new claims").next().unwrap().to_owned()
        }
    }
}

fn check(nodes: &[&str], placed: &[Pod], waiting: Pod, expected: &str) {
    let mut engine = engine(nodes, placed);
    engine.set_pod(&waiting, Instant::now());
    assert_eq!(next(&mut engine), expected, "{nodes:?} {waiting:?}");
}

#[test]
fn filters_say_upstreams_reasons() {
    check(&[], &[], pod("p"), "no nodes available to schedule pods");
    check(&["a cordoned"], &[], pod("p"), "0/1 nodes are available: 1 node(s) were unschedulable.");
    check(&["a cordoned"], &[], pod("p tolerates=node.kubernetes.io/unschedulable"), "a");
    let tainted = ["a taint=k:NoSchedule", "b taint=k:NoExecute", "c cpu=1"];
    check(
        &tainted,
        &[],
        pod("p cpu=2"),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).",
    );
    check(&tainted[..1], &[], pod("p tolerates=k"), "a");
    check(&["a pods=1"], &[pod("q on=a")], pod("p"), "0/1 nodes are available: 1 Too many pods.");
    check(
        &["a gpu.io/x=1"],
        &[pod("q on=a gpu.io/x=1")],
        pod("p gpu.io/x=1 memory=9Gi"),
        "0/1 nodes are available: 1 Insufficient gpu.io/x, 1 Insufficient memory.",
    );
    check(
        &["a"],
        &[pod("q on=a port=80")],
        pod("p port=80"),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
    );
    check(&["a"], &[pod("q on=a port=80")], pod("p port=81"), "a");
    let select = |zone: &str| pod_with("p", json!({"nodeSelector": {"zone": zone}}));
    check(&["a label=zone:x", "b label=zone:y"], &[], select("y"), "b");
    let nowhere = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    check(&["a label=zone:x"], &[], select("y"), nowhere);
}

#[test]
fn named_nodes_are_the_only_ones_looked_at() {
    let named = |name: &str| {
        let fields = json!([{"key": "metadata.name", "operator": "In", "values": [name]}]);
        let terms = json!({"nodeSelectorTerms": [{"matchFields": fields}]});
        pod_with(
            "p cpu=2",
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}),
        )
    };
    check(&["a", "b", "c"], &[], named("b"), "b");
    check(
        &["a", "b cpu=1", "c"],
        &[],
        named("b"),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity].",
    );
}

#[test]
fn scores_choose() {
    check(&["a", "b"], &[pod("q on=a cpu=2 memory=4Gi")], pod("p cpu=1 memory=2Gi"), "b");
    check(&["a taint=k:PreferNoSchedule", "b"], &[], pod("p"), "b");
    let preference = json!({"weight": 1, "preference": {"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["y"]}]}});
    let preferred = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}});
    check(&["a label=zone:x", "b label=zone:y"], &[], pod_with("p", json!({"affinity": preferred})), "b");
}

fn spread(name: &str, max_skew: i32, when: &str) -> Pod {
    let constraint = json!([{"maxSkew": max_skew, "topologyKey": "zone", "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    pod_with(&format!("{name} label=app:x"), json!({"topologySpreadConstraints": constraint}))
}

#[test]
fn spreading_keeps_the_skew() {
    let nodes = ["a label=zone:x", "b label=zone:y"];
    check(&nodes, &[pod("q on=a label=app:x")], spread("p", 1, "DoNotSchedule"), "b");
    check(&nodes, &[pod("q on=a label=app:x")], spread("p", 1, "ScheduleAnyway"), "b");
    let nowhere = "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, 1 node(s) didn't \
                   match pod topology spread constraints (missing required label), 1 node(s) were unschedulable.";
    let nodes = ["a label=zone:x", "b label=zone:y cordoned", "c"];
    check(&nodes, &[pod("q on=a label=app:x")], spread("p", 1, "DoNotSchedule"), nowhere);
}

#[test]
fn tallies_follow_pods_that_come_and_go() {
    let mut engine = engine(&["a label=zone:x", "b label=zone:y", "c label=zone:z"], &[]);
    for round in 0..4 {
        let mut zones: Vec<String> = (0..3)
            .map(|i| {
                engine.set_pod(&spread(&format!("p{round}-{i}"), 1, "DoNotSchedule"), Instant::now());
                next(&mut engine)
            })
            .collect();
        zones.sort();
        assert_eq!(zones, ["a", "b", "c"], "each round takes each zone once");
    }
    let gone = engine.cache.pods().find(|(_, p)| engine.cache.node(p.node).name.as_ref() == "b").unwrap().0.clone();
    engine.remove_pod(&gone, Instant::now());
    engine.set_pod(&spread("last", 1, "DoNotSchedule"), Instant::now());
    assert_eq!(next(&mut engine), "b");
}

fn affine(text: &str, kind: &str, app: &str) -> Pod {
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}]);
    pod_with(text, json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term}}}))
}

#[test]
fn pods_keep_near_and_apart() {
    let nodes = ["a label=zone:x", "b label=zone:y"];
    check(&nodes, &[pod("q on=b label=app:x")], affine("p", "podAffinity", "x"), "b");
    check(&nodes, &[pod("q on=b label=app:x")], affine("p", "podAntiAffinity", "x"), "a");
    check(&nodes, &[affine("q on=b", "podAntiAffinity", "x")], pod("p label=app:x"), "a");
    check(
        &nodes[..1],
        &[affine("q on=a", "podAntiAffinity", "x")],
        pod("p label=app:x"),
        "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.",
    );
    check(
        &nodes[..1],
        &[pod("q on=a label=app:x")],
        affine("p", "podAntiAffinity", "x"),
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.",
    );
    let alone = "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.";
    check(&nodes[..1], &[], affine("p", "podAffinity", "x"), alone);
    // The first of a group that wants to be together may start it.
    check(&nodes[..1], &[], affine("p label=app:x", "podAffinity", "x"), "a");
}

#[test]
fn a_change_that_helps_brings_a_pod_back() {
    let mut engine = engine(&["a cpu=1", "b cpu=1"], &[pod("q on=a cpu=1"), pod("r on=b cpu=500m")]);
    let now = Instant::now();
    engine.set_pod(&pod("p cpu=1"), now);
    assert_eq!(next(&mut engine), "0/2 nodes are available: 2 Insufficient cpu.");
    assert_eq!(next(&mut engine), "nothing to do");
    // Neither a node that does not fit nor a Pod that comes can help.
    engine.set_node(&node("c cpu=500m"), now);
    engine.set_pod(&pod("s on=b"), now);
    assert_eq!(next(&mut engine), "nothing to do");
    engine.remove_pod(&client::Key::new("default", "q"), now);
    assert_eq!(next(&mut engine), "a");
}

#[test]
fn preemption_takes_the_least_important() {
    let low = [pod("q on=a cpu=1 priority=1"), pod("r on=b cpu=1 priority=2"), pod("s on=b cpu=100m priority=0")];
    let nodes = ["a cpu=1500m", "b cpu=1500m"];
    check(&nodes, &low, pod("p cpu=1 priority=5"), "q must leave a");
    check(&nodes[1..], &low, pod("p cpu=1 priority=5"), "r must leave b");
    let in_vain = "0/2 nodes are available: 2 Insufficient cpu.";
    check(&nodes, &low, pod("p cpu=1 priority=1"), in_vain);
    check(&nodes, &low, pod_with("p cpu=1 priority=5", json!({"preemptionPolicy": "Never"})), in_vain);
    check(&nodes, &low, pod("p cpu=2 priority=5"), in_vain);
}

#[test]
fn preemption_spares_what_budgets_guard() {
    let guarded = |name: &str| {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": name}}}, "status": {"disruptionsAllowed": 0,
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}}))
        .unwrap()
    };
    let choose = |pods: &[Pod], budgets: &[&str]| {
        let mut engine = engine(&["a cpu=2", "b cpu=2"], pods);
        budgets.iter().for_each(|name| engine.set_budget(&guarded(name)));
        engine.set_pod(&pod("p cpu=1 priority=9"), Instant::now());
        next(&mut engine)
    };
    let across = [pod("q on=a cpu=2 priority=1 label=app:x"), pod("r on=b cpu=2 priority=5")];
    assert_eq!(choose(&across, &[]), "q must leave a");
    assert_eq!(choose(&across, &["x"]), "r must leave b", "even at the cost of a more important Pod");
    assert_eq!(choose(&across[..1], &["x"]), "b");
    let beside =
        [pod("q on=a cpu=1 priority=1 label=app:x"), pod("r on=a cpu=1 priority=5"), pod("s on=b cpu=2 priority=9")];
    assert_eq!(choose(&beside, &[]), "q must leave a");
    assert_eq!(choose(&beside, &["x"]), "r must leave a");
}

#[test]
fn a_new_scheduler_knows_for_whom_room_was_made() {
    let mut preemptor = pod("p cpu=1 priority=5");
    preemptor.status = Some(serde_json::from_value(json!({"nominatedNodeName": "b"})).unwrap());
    let mut engine = engine(&["a cpu=500m", "b cpu=1"], &[preemptor, pod("other cpu=1")]);
    let gone = client::Key::new("default", "p");
    // The first one, though both would fit; the other does not get what was made free.
    let mut gated = pod("p cpu=1 priority=5");
    gated.spec.as_mut().unwrap().scheduling_gates = Some(serde_json::from_value(json!([{"name": "g"}])).unwrap());
    gated.status = Some(serde_json::from_value(json!({"nominatedNodeName": "b"})).unwrap());
    engine.set_pod(&gated, Instant::now());
    assert_eq!(next(&mut engine), "0/2 nodes are available: 2 Insufficient cpu.");
    engine.remove_pod(&gone, Instant::now());
    engine.set_pod(&pod("third cpu=1"), Instant::now());
    assert_eq!(next(&mut engine), "b");
}

#[test]
fn label_keys_of_affinity_stand_for_the_pods_own_values() {
    let with = |keys: &str| {
        let mut term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}});
        term[keys] = json!(["version"]);
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        pod_with("p label=app:x label=version:2", json!({"affinity": {"podAntiAffinity": required}}))
    };
    let nodes = ["a label=zone:x", "b label=zone:y"];
    let placed = [pod("q on=a label=app:x label=version:1"), pod("r on=b label=app:x label=version:2")];
    check(&nodes, &placed, with("matchLabelKeys"), "a");
    check(&nodes, &placed, with("mismatchLabelKeys"), "b");
}

#[test]
fn room_that_was_made_is_kept_for_the_preemptor() {
    let (mut engine, now) = (engine(&["a cpu=1"], &[pod("q on=a cpu=1"), pod("p cpu=1 priority=5")]), Instant::now());
    assert_eq!(next(&mut engine), "q must leave a");
    engine.set_pod(&pod("other cpu=1"), now);
    let mut leaving = pod("q on=a cpu=1");
    leaving.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(clock::now()));
    engine.set_pod(&leaving, now);
    assert_eq!(next(&mut engine), "0/1 nodes are available: 1 Insufficient cpu.");
    engine.remove_pod(&client::Key::new("default", "q"), now);
    let mut both = [next(&mut engine), next(&mut engine)];
    both.sort();
    assert_eq!(both, ["0/1 nodes are available: 1 Insufficient cpu.", "a"]);
    let bound = engine.cache.pods().map(|(key, _)| key.name.clone()).collect::<Vec<_>>();
    assert_eq!(bound, ["p"]);
}

#[test]
fn gates_hold_a_pod_and_other_schedulers_keep_theirs() {
    let now = Instant::now();
    let mut engine = engine(&["a"], &[pod_with("p", json!({"schedulingGates": [{"name": "g"}]}))]);
    engine.set_pod(&pod_with("other", json!({"schedulerName": "other"})), now);
    assert_eq!(next(&mut engine), "nothing to do");
    engine.set_pod(&pod("p"), now);
    assert_eq!(next(&mut engine), "a");
}

#[test]
fn a_failed_binding_frees_the_node_and_is_tried_again() {
    let mut engine = engine(&["a cpu=1"], &[pod("p cpu=1")]);
    assert_eq!(next(&mut engine), "a");
    // The Pod as the API still shows it does not go back into the queue.
    engine.set_pod(&pod("p cpu=1"), Instant::now());
    assert_eq!(next(&mut engine), "nothing to do");
    let now = Instant::now();
    engine.bind_failed(&client::Key::new("default", "p"), "p", now);
    assert_eq!(engine.cache.pods().count(), 0);
    assert!(engine.schedule_one(now).is_none(), "not before its backoff is over");
    assert!(engine.schedule_one(now + Duration::from_secs(1)).is_some());
}

#[test]
fn nothing_is_left_of_pods_and_nodes_that_are_gone() {
    let mut engine = engine(&["a label=zone:x", "b label=zone:y"], &[spread("p", 1, "DoNotSchedule"), pod("q on=b")]);
    next(&mut engine);
    let now = Instant::now();
    for name in ["p", "q"] {
        engine.remove_pod(&client::Key::new("default", name), now);
    }
    for name in ["a", "b"] {
        engine.remove_node(name, now);
    }
    assert_eq!((engine.cache.nodes().count(), engine.cache.pods().count(), engine.queue.len()), (0, 0, 0));
    assert_eq!(engine.cache.classes(), 0);
}

thread_local! {
    /// What the plugins of the next test did.
    static DONE: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

fn done(what: &'static str) {
    DONE.with_borrow_mut(|all| all.push(what));
}

/// The first reserves for every Pod, the second for none that is called `greedy`.
const RESERVING: &[Plugin] = &[
    node_resources_fit::PLUGIN,
    Plugin {
        name: "First",
        reserve: Some(|_, _, _| {
            done("reserve 1");
            Ok(())
        }),
        unreserve: Some(|_, _, _| done("unreserve 1")),
        ..Plugin::NONE
    },
    Plugin {
        name: "Second",
        reserve: Some(|_, pod, _| match &*pod.key.name {
            "greedy" => Err(Rejection::unresolvable("no device is left")),
            _ => {
                done("reserve 2");
                Ok(())
            }
        }),
        unreserve: Some(|_, _, _| done("unreserve 2")),
        ..Plugin::NONE
    },
];

#[test]
fn what_plugins_reserved_is_given_back_when_the_pod_does_not_come() {
    let now = Instant::now();
    let mut engine = Engine::new(Settings { plugins: RESERVING, ..Settings::default() });
    engine.set_node(&node("a cpu=2"), now);
    let check = |expected: &[&str]| assert_eq!(DONE.take(), expected);
    engine.set_pod(&pod("p cpu=1"), now);
    assert_eq!(next(&mut engine), "a");
    check(&["reserve 1", "reserve 2"]);
    engine.bind_failed(&client::Key::new("default", "p"), "p", now);
    check(&["unreserve 2", "unreserve 1"]);
    assert!(engine.schedule_one(now + Duration::from_secs(1)).is_some());
    check(&["reserve 1", "reserve 2"]);
    // Seen on its node, it keeps what it has.
    engine.set_pod(&pod("p cpu=1 on=a"), now);
    engine.remove_pod(&client::Key::new("default", "p"), now);
    check(&[]);
    engine.set_pod(&pod("q cpu=1"), now);
    next(&mut engine);
    engine.remove_pod(&client::Key::new("default", "q"), now);
    check(&["reserve 1", "reserve 2", "unreserve 2", "unreserve 1"]);
    engine.set_pod(&pod("greedy cpu=1"), now);
    assert_eq!(next(&mut engine), "0/1 nodes are available: 1 no device is left.");
    check(&["reserve 1", "unreserve 2", "unreserve 1"]);
    assert_eq!((engine.cache.pods().count(), engine.queue.len()), (0, 1));
}
