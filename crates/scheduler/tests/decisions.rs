//! The engine's decisions, given nodes and Pods as text.

mod text;

use std::cell::RefCell;

use clock::{Duration, Instant};
use json::json;
use k8s_openapi::api::core::v1::Pod;
use scheduler::{
    Decision, Engine, Settings,
    claims::{self, Claim, Volume},
    devices,
    plugin::Plugin,
    plugins::node_resources_fit,
    rejection::Rejection,
};
use text::{check, engine, next, node, pod, pod_with};

#[test]
fn containers_that_only_start_a_pod_make_it_another_than_those_that_stay() {
    let container = json!({"name": "c", "image": "image", "resources": {"requests": {"cpu": "1"}}});
    let stays = pod_with("p", json!({"containers": [container, container]}));
    let starts = pod_with("q", json!({"containers": [container], "initContainers": [container]}));
    let (mut engine, now) = (engine(&["a cpu=1"], &[]), Instant::now());
    engine.set_pod(&stays, now);
    engine.set_pod(&starts, now);
    assert_eq!(next(&mut engine), "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(next(&mut engine), "a");
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
    /// The acts of the plugins of the next test.
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
    let mut engine = Engine::new(Settings::with(RESERVING));
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

/// A Pod of a ReplicaSet.
fn of_set(text: &str, set: &str) -> Pod {
    let mut pod = pod(text);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set, "controller": true}]);
    pod.metadata.owner_references = json::from_value(owner).unwrap();
    pod
}

#[test]
fn pods_are_spread_by_default_with_those_of_their_services_and_controllers() {
    let now = Instant::now();
    let labelled = |value: &str| [("app".to_owned(), value.to_owned())].into();
    // The empty node would be chosen by its free resources, were it not for the Pods that belong together.
    let nodes = ["a cpu=100 memory=100Gi label=zone:x", "b cpu=100 memory=100Gi label=zone:x"];
    let placed = [pod("q on=a label=app:x"), pod("big on=b cpu=2 memory=2Gi")];
    let mut engine = engine(&nodes, &placed);
    let next_of = |engine: &mut Engine, pod: &Pod| {
        engine.set_pod(pod, now);
        next(engine)
    };
    assert_eq!(next_of(&mut engine, &pod("p1 cpu=1 memory=1Gi label=app:x")), "a");
    engine.remove_pod(&client::Key::new("default", "p1"), now);
    engine.set_service(&client::Key::new("default", "s"), Some(labelled("x")), now);
    assert_eq!(next_of(&mut engine, &pod("p2 cpu=1 memory=1Gi label=app:x")), "b", "a Service selects it");
    engine.remove_pod(&client::Key::new("default", "p2"), now);
    engine.set_service(&client::Key::new("default", "s"), Some(labelled("other")), now);
    assert_eq!(next_of(&mut engine, &pod("p3 cpu=1 memory=1Gi label=app:x")), "a", "another Service does not");
    engine.remove_pod(&client::Key::new("default", "p3"), now);
    let selector = api::rules::selector::Selector::of_labels(&labelled("x"));
    let set = client::Key::new("default", "set");
    engine.set_owner(scheduler::class::OwnerKind::ReplicaSet, &set, Some(selector), now);
    assert_eq!(next_of(&mut engine, &of_set("p4 cpu=1 memory=1Gi label=app:x", "set")), "b", "its controller does");
    engine.remove_pod(&client::Key::new("default", "p4"), now);
    assert_eq!(next_of(&mut engine, &of_set("p5 cpu=1 memory=1Gi label=app:x", "gone")), "a");
    engine.remove_pod(&client::Key::new("default", "p5"), now);
    let own = json!({"topologySpreadConstraints": [{"maxSkew": 9, "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "x"}}}]});
    let mut constrained = pod_with("p6 cpu=1 memory=1Gi label=app:x", own);
    constrained.metadata.owner_references = of_set("p", "set").metadata.owner_references;
    assert_eq!(next_of(&mut engine, &constrained), "a", "it has constraints of its own");
}

#[test]
fn room_that_a_resize_gives_up_counts_when_the_node_has_it_back() {
    let now = Instant::now();
    let shrunk = |actual: &str| {
        let mut pod = pod("q on=a cpu=1");
        let status = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": actual}}}]});
        pod.status = Some(json::from_value(status).unwrap());
        pod
    };
    let mut engine = engine(&["a cpu=4"], &[shrunk("4"), pod("p cpu=3")]);
    assert_eq!(next(&mut engine), "0/1 nodes are available: 1 Insufficient cpu.");
    engine.set_pod(&shrunk("1"), now);
    assert_eq!(next(&mut engine), "a");
}

#[test]
fn affinity_that_no_node_can_have_is_told_at_once() {
    let named = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
    let conflict = json!({"nodeSelectorTerms": [{"matchFields": [named("a"), named("b")]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": conflict}});
    let waiting = pod_with("p", json!({"affinity": affinity}));
    check(&["a", "b"], &[], waiting, "0/2 nodes are available: pod affinity terms conflict.");
}

#[test]
fn equal_pods_are_tried_in_the_order_in_which_they_came() {
    let now = Instant::now();
    let mut engine = engine(&["a cpu=1"], &[pod("full on=a cpu=1")]);
    for name in ["c", "a", "b"] {
        engine.set_pod(&pod(&format!("{name} cpu=1")), now);
    }
    while next(&mut engine) != "nothing to do" {}
    engine.remove_pod(&client::Key::new("default", "full"), now);
    assert_eq!(next(&mut engine), "a");
    assert!(engine.cache.pods().any(|(key, _)| key.name == "c"));
}

#[test]
fn a_pod_waits_for_its_volume_claims() {
    let now = Instant::now();
    let key = |name: &str| client::Key::new("default", name);
    let claim = |more: json::Value| {
        let mut claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"storageClassName": "fast",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        json_patch(&mut claim, more);
        Some(Claim::of(&json::from_value(claim).unwrap()))
    };
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let volume = |node: &str, phase: &str| {
        let terms =
            json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]);
        let volume = json!({"metadata": {"name": "pv"}, "status": {"phase": phase}, "spec": {"storageClassName": "fast",
            "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
        Some(Volume::of(&json::from_value(volume).unwrap()))
    };
    let class = |provisioner: &str| {
        let class = json!({"metadata": {"name": "fast"}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"});
        Some(claims::Class::of(&json::from_value(class).unwrap()))
    };
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pv"}});
    let mut engine = engine(&["a", "b"], &[pod_with("p", json!({"volumes": volumes}))]);
    let all = |why: &str| format!("0/2 nodes are available: {why}.");
    assert_eq!(next(&mut engine), all("persistentvolumeclaim \"data\" not found"));
    engine.set_claim(&key("other"), claim(json!({})), now);
    assert_eq!(next(&mut engine), "nothing to do", "another claim helps nobody");
    engine.set_claim(&key("data"), claim(json!({})), now);
    assert_eq!(next(&mut engine), all("pod has unbound immediate PersistentVolumeClaims"));
    engine.set_claim(&key("data"), claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), now);
    assert_eq!(next(&mut engine), all("persistentvolumeclaim \"data\" is being deleted"));
    let lost = json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Lost"}});
    engine.set_claim(&key("data"), claim(lost), now);
    let lost = "persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"pv\"";
    assert_eq!(next(&mut engine), all(lost));
    engine.set_claim(&key("data"), claim(bound), now);
    let gone = "2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
    assert_eq!(next(&mut engine), all(gone));
    engine.set_volume(&key("pv"), volume("c", "Bound"), now);
    assert_eq!(next(&mut engine), all("2 node(s) didn't match PersistentVolume's node affinity"));
    engine.set_claim(&key("data"), claim(json!({})), now);
    assert_eq!(next(&mut engine), all("pod has unbound immediate PersistentVolumeClaims"));
    engine.set_storage_class(&key("fast"), class("kubernetes.io/no-provisioner"), now);
    assert_eq!(next(&mut engine), all("2 node(s) didn't find available persistent volumes to bind"));
    engine.set_volume(&key("pv"), volume("b", "Available"), now);
    assert_eq!(next(&mut engine), "b", "a volume is free there");
    engine.set_volume(&key("pv"), None, now);
    engine.bind_failed(&key("p"), "p", now);
    engine.set_storage_class(&key("fast"), class("example.com/disks"), now);
    assert!(
        matches!(engine.schedule_one(now + Duration::from_secs(9)), Some(Decision::Bind { prepare, .. })
        if prepare.len() == 1),
        "a volume will be made, before the Pod is bound"
    );
}

fn json_patch(value: &mut json::Value, more: json::Value) {
    match (value, more) {
        (json::Value::Object(map), json::Value::Object(more)) => {
            more.into_iter().for_each(|(key, more)| json_patch(map.entry(key).or_insert(json!(null)), more));
        }
        (value, more) => *value = more,
    }
}

#[test]
fn a_pod_waits_for_its_resource_claims() {
    let now = Instant::now();
    let key = client::Key::new("default", "gpu");
    let claim = |owner: &str, status: json::Value| {
        let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}});
        let claim = json!({"metadata": {"name": "gpu", "ownerReferences": owners}, "spec": spec, "status": status});
        Some(devices::Claim::of(&json::from_value(claim).unwrap()))
    };
    let spec = json!({"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]});
    let mut waiting = pod_with("p", spec);
    let mut engine = engine(&["a", "b"], std::slice::from_ref(&waiting));
    let all = |why: &str| format!("0/2 nodes are available: {why}.");
    assert_eq!(next(&mut engine), all("pod \"default/p\": ResourceClaim not created yet"));
    let made = json!({"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "gpu"}]});
    waiting.status = Some(json::from_value(made).unwrap());
    engine.set_pod(&waiting, now);
    assert_eq!(next(&mut engine), all("resourceclaim.resource.k8s.io \"gpu\" not found"));
    engine.set_device_claim(&key, claim("other", json!({})), now);
    let foreign = "ResourceClaim default/gpu was not created for pod default/p (pod is not owner)";
    assert_eq!(next(&mut engine), all(foreign));
    engine.set_device_claim(&key, claim("p", json!({})), now);
    assert_eq!(next(&mut engine), all("request r: device class gpu does not exist"));
    let class = json::from_value(json!({"metadata": {"name": "gpu"}, "spec": {}})).unwrap();
    engine.set_device_class(&client::Key::new("", "gpu"), Some(devices::Class::of(&class)), now);
    assert_eq!(next(&mut engine), all("2 cannot allocate all claims"));
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]);
    let allocation = json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}});
    engine.set_device_claim(&key, claim("p", allocation), now);
    assert_eq!(next(&mut engine), "b");
}

#[test]
fn volumes_have_a_zone_and_may_be_for_one_pod_alone() {
    let now = Instant::now();
    let key = |name: &str| client::Key::new("default", name);
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let with_claim = |text: &str| pod_with(text, json!({"volumes": volumes}));
    let bound = |mode: &str| {
        let claim = json!({"metadata": {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv", "accessModes": [mode]}});
        Some(Claim::of(&json::from_value(claim).unwrap()))
    };
    let volume = json!({"metadata": {"name": "pv", "labels": {"topology.kubernetes.io/zone": "y"}}});
    let nodes = ["a label=topology.kubernetes.io/zone:x", "b label=topology.kubernetes.io/zone:y"];
    let mut engine = engine(&nodes, &[]);
    engine.set_volume(&key("pv"), Some(Volume::of(&json::from_value(volume).unwrap())), now);
    engine.set_claim(&key("data"), bound("ReadWriteOnce"), now);
    for name in ["p", "q"] {
        engine.set_pod(&with_claim(name), now);
        assert_eq!(next(&mut engine), "b");
    }
    engine.set_claim(&key("data"), bound("ReadWriteOncePod"), now);
    engine.set_pod(&with_claim("r"), now);
    let used = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    assert_eq!(next(&mut engine), format!("0/2 nodes are available: 2 {used}."));
    engine.remove_pod(&key("p"), now);
    assert_eq!(next(&mut engine), format!("0/2 nodes are available: 2 {used}."), "q uses it too");
    engine.remove_pod(&key("q"), now);
    assert_eq!(next(&mut engine), "b");
    engine.set_pod(&with_claim("s priority=9"), now);
    assert_eq!(next(&mut engine), "r must leave b");
}
