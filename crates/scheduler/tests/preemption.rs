//! Preemption: whom it takes, what it leaves alone, and what becomes of the room that was made.

mod text;

use std::slice::from_ref;

use client::Key;
use clock::Instant;
use json::json;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use scheduler::Engine;
use text::{check, engine, next, pod, pod_with};

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
        json::from_value(json!({"metadata": {"name": name, "namespace": "default"},
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
fn the_search_for_victims_goes_on_until_no_budget_is_broken() {
    let nodes: Vec<String> = (0..300).map(|i| format!("n{i} cpu=1")).collect();
    let low = (0..300).map(|i| pod(&format!("q{i} on=n{i} cpu=1 label=guarded:{}", i != 299)));
    let low: Vec<Pod> = low.collect();
    let mut engine = engine(&nodes.iter().map(String::as_str).collect::<Vec<_>>(), &low);
    let budget = json!({"metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"guarded": "true"}}}, "status": {"disruptionsAllowed": 0,
        "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    engine.set_budget(&json::from_value(budget).unwrap());
    engine.set_pod(&pod("p cpu=1 priority=1"), Instant::now());
    assert_eq!(next(&mut engine), "q299 must leave n299", "though a hundred candidates are enough otherwise");
}

#[test]
fn a_new_scheduler_knows_for_whom_room_was_made() {
    let mut preemptor = pod("p cpu=1 priority=5");
    preemptor.status = Some(json::from_value(json!({"nominatedNodeName": "b"})).unwrap());
    let mut engine = engine(&["a cpu=500m", "b cpu=1"], &[preemptor, pod("other cpu=1")]);
    let gone = client::Key::new("default", "p");
    // The first one, though both would fit; the other does not get what was made free.
    let mut gated = pod("p cpu=1 priority=5");
    gated.spec.as_mut().unwrap().scheduling_gates = Some(json::from_value(json!([{"name": "g"}])).unwrap());
    gated.status = Some(json::from_value(json!({"nominatedNodeName": "b"})).unwrap());
    engine.set_pod(&gated, Instant::now());
    assert_eq!(next(&mut engine), "0/2 nodes are available: 2 Insufficient cpu.");
    engine.remove_pod(&gone, Instant::now());
    engine.set_pod(&pod("third cpu=1"), Instant::now());
    assert_eq!(next(&mut engine), "b");
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

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn leaving(text: &str, conditions: json::Value) -> Pod {
    let mut pod = pod(text);
    pod.metadata.deletion_timestamp = Some(Time(clock::now()));
    pod.status = Some(json::from_value(json!({"conditions": conditions})).unwrap());
    pod
}

fn preempted(text: &str) -> Pod {
    leaving(text, json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]))
}

/// A waiting Pod that is held back and has a node nominated for it.
fn nominated(text: &str, node: &str) -> Pod {
    let mut pod = pod_with(text, json!({"schedulingGates": [{"name": "held"}]}));
    pod.status = Some(json::from_value(json!({"nominatedNodeName": node})).unwrap());
    pod
}

#[test]
fn two_preemptors_take_two_nodes() {
    let low = [pod("q on=a cpu=1"), pod("r on=b cpu=1")];
    let mut both = engine(&["a cpu=1", "b cpu=1"], &low);
    for name in ["first", "second", "third"] {
        both.set_pod(&pod(&format!("{name} cpu=1 priority=5")), Instant::now());
    }
    let mut said = [next(&mut both), next(&mut both)];
    said.sort();
    assert_eq!(said, ["q must leave a", "r must leave b"]);
    assert_eq!(next(&mut both), "0/2 nodes are available: 2 Insufficient cpu.", "both nodes are promised");
}

#[test]
fn a_preemptor_that_is_gone_gives_its_room_back() {
    let now = Instant::now();
    let mut engine = engine(&["a cpu=1"], &[nominated("p cpu=1 priority=5", "a"), pod("other cpu=1")]);
    assert_eq!(next(&mut engine), "0/1 nodes are available: 1 Insufficient cpu.");
    engine.remove_pod(&key("p"), now);
    assert_eq!(next(&mut engine), "a");
}

#[test]
fn room_on_another_node_is_given_back() {
    let mut engine = engine(&["a cpu=1", "b cpu=2"], &[pod("full on=b cpu=2"), nominated("p cpu=1 priority=5", "a")]);
    engine.set_pod(&pod("other cpu=1"), Instant::now());
    assert_eq!(next(&mut engine), "0/2 nodes are available: 2 Insufficient cpu.");
    let mut bound = pod("p cpu=1 priority=5 on=b");
    bound.metadata.uid = Some("p".to_owned());
    engine.set_pod(&bound, Instant::now());
    assert_eq!(next(&mut engine), "a");
}

#[test]
fn affinity_and_spreading_see_nominated_pods() {
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let apart = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}});
    let constraint = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let nodes = ["a label=zone:x", "b label=zone:y"];
    let waits = nominated("p priority=5 label=app:x", "a");
    check(&nodes, from_ref(&waits), pod_with("q", apart.clone()), "b");
    check(
        &nodes[..1],
        from_ref(&waits),
        pod_with("q", apart.clone()),
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.",
    );
    check(&nodes[..1], from_ref(&waits), pod_with("q priority=6", apart.clone()), "a");
    let mut refusing = pod_with("p priority=5 label=app:x", apart);
    refusing.spec.as_mut().unwrap().scheduling_gates = waits.spec.as_ref().unwrap().scheduling_gates.clone();
    refusing.status = waits.status.clone();
    check(
        &nodes[..1],
        &[refusing],
        pod("q label=app:x"),
        "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.",
    );
    let spread = pod_with("q label=app:x", json!({"topologySpreadConstraints": constraint}));
    check(&nodes, &[waits], spread, "b");
}

#[test]
fn less_important_nominations_are_cleared_and_tried_again() {
    let now = Instant::now();
    let mut engine = engine(&["a cpu=1", "b cpu=1"], &[pod("q on=a cpu=1"), pod("r on=b cpu=1 priority=7")]);
    engine.set_pod(&pod("p cpu=1 priority=5"), now);
    assert_eq!(next(&mut engine), "q must leave a");
    engine.set_pod(&preempted("q on=a cpu=1"), now);
    engine.set_pod(&pod("s cpu=1 priority=6"), now);
    assert_eq!(next(&mut engine), " must leave a", "the victim leaves already");
    assert_eq!(next(&mut engine), "0/2 nodes are available: 2 Insufficient cpu.", "p is tried again, in vain");
    engine.remove_pod(&key("q"), now);
    assert_eq!(next(&mut engine), "a");
    assert_eq!(engine.cache.pods().filter(|(key, _)| key.name == "s").count(), 1);
}

#[test]
fn only_victims_of_a_preemption_are_waited_for() {
    let told = |leaving: Pod| {
        let mut engine = engine(&["a cpu=2"], &[leaving, pod("r on=a cpu=1")]);
        let mut waiting = pod("p cpu=2 priority=5");
        waiting.status = Some(json::from_value(json!({"nominatedNodeName": "a"})).unwrap());
        engine.set_pod(&waiting, Instant::now());
        next(&mut engine)
    };
    assert_eq!(told(preempted("q on=a cpu=1")), "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(told(leaving("q on=a cpu=1", json!([]))), "r must leave a", "q leaves for its own reasons");
}

#[test]
fn victims_that_are_on_their_way_are_not_taken_twice() {
    let now = Instant::now();
    let mut engine = engine(&["a cpu=1"], &[pod("q on=a cpu=1"), pod("p cpu=1 priority=5")]);
    assert_eq!(next(&mut engine), "q must leave a");
    // The Pod is tried again before the API shows that its victim leaves.
    let mut changed = pod("p cpu=1 priority=5 label=now:other");
    changed.metadata.uid = Some("p".to_owned());
    engine.set_pod(&changed, now);
    assert_eq!(next(&mut engine), "0/1 nodes are available: 1 Insufficient cpu.");
    engine.preemption_failed(&key("p"), &[key("q")], now);
    assert_eq!(next(&mut engine), "q must leave a", "the victim could not be deleted");
}

#[test]
fn a_nominated_node_that_is_gone_is_forgotten() {
    let now = Instant::now();
    let mut engine: Engine = engine(&["a cpu=1"], &[pod("q on=a cpu=1"), pod("p cpu=1 priority=5")]);
    assert_eq!(next(&mut engine), "q must leave a");
    engine.remove_node("a", now);
    engine.remove_pod(&key("q"), now);
    assert_eq!(next(&mut engine), "no nodes available to schedule pods");
    engine.set_node(&text::node("b cpu=1"), now);
    assert_eq!(next(&mut engine), "b");
}
