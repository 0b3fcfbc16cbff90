//! Devices with the features that are off by default: taints, partitions that share counters, shares of a capacity.

use client::Key;
use clock::{Duration, Instant};
use json::{Value, json};
use scheduler::{
    Decision, Engine,
    devices::{Claim, Class, Gates, Given, Slice, TaintRule},
};

use crate::text::{engine, pod_with};

const ALL: Gates = Gates {
    taints: true,
    taint_rules: true,
    partitions: true,
    shared_capacity: true,
    conditions: false,
    extended: false,
};

struct World(Engine, Instant);

impl World {
    fn new(nodes: &[&str], gates: Gates) -> Self {
        let mut world = World(engine(nodes, &[]), Instant::now());
        world.0.cache.devices.gates = gates;
        let class = json::from_value(json!({"metadata": {"name": "any"}, "spec": {}})).unwrap();
        world.0.set_device_class(&Key::new("", "any"), Some(Class::of(&class)), world.1);
        world
    }

    /// A slice of the driver's one pool.
    fn slice(&mut self, name: &str, more: Value) {
        let mut spec = json!({"driver": "drv", "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1}});
        more.as_object().unwrap().iter().for_each(|(field, value)| spec[field] = value.clone());
        let slice = json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.0.set_slice(&Key::new("", name), Some(Slice::of(&slice)), self.1);
    }

    /// A Pod with a claim of its own name and these requests: its node and devices, or why there are none.
    fn place(&mut self, name: &str, devices: Value) -> String {
        let claim = json!({"metadata": {"name": name, "uid": name}, "spec": {"devices": devices}});
        let claim = json::from_value(claim).unwrap();
        self.0.set_device_claim(&Key::new("default", name), Some(Claim::of(&claim)), self.1);
        let spec = json!({"resourceClaims": [{"name": "c", "resourceClaimName": name}]});
        self.0.set_pod(&pod_with(name, spec), self.1);
        self.next()
    }

    fn next(&mut self) -> String {
        self.1 += Duration::from_secs(60);
        match self.0.schedule_one(self.1) {
            Some(Decision::Bind { node, prepare, .. }) => {
                let given = prepare.iter().find_map(|p| p.brought.clone().downcast::<Given>().ok()).unwrap();
                let results =
                    given.claims.iter().flat_map(|(_, r)| r.devices.iter().flat_map(|d| d.results.iter().flatten()));
                let texts = results.map(|r| {
                    let taken = r.consumed_capacity.iter().flatten().map(|(_, amount)| format!("={}", amount.0));
                    assert_eq!(r.share_id.is_some(), r.consumed_capacity.is_some());
                    format!(" {}{}", r.device, taken.collect::<String>())
                });
                format!("{node}:{}", texts.collect::<String>())
            }
            Some(Decision::Unschedulable { failure, .. }) => {
                failure.reasons.keys().map(|reason| reason.as_str()).collect::<Vec<_>>().join(", ")
            }
            Some(Decision::Failed { why, .. }) => why,
            other => format!("{other:?}"),
        }
    }

    fn gone(&mut self, name: &str) {
        self.0.remove_pod(&Key::new("default", name), self.1);
        self.0.set_device_claim(&Key::new("default", name), None, self.1);
    }
}

fn request(more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1});
    more.as_object().into_iter().flatten().for_each(|(field, value)| exactly[field] = value.clone());
    json!({"requests": [{"name": "r", "exactly": exactly}]})
}

fn of(count: i64) -> Value {
    request(json!({"count": count}))
}

const NONE: &str = "cannot allocate all claims";

#[test]
fn tainted_devices_go_to_those_who_tolerate_them() {
    let tainted = |effect: &str| json!({"allNodes": true, "devices": [{"name": "d", "taints": [{"key": "k", "value": "v", "effect": effect}]}]});
    let tolerating = |more: Value| {
        let mut toleration = json!({"key": "k", "operator": "Exists"});
        more.as_object().unwrap().iter().for_each(|(field, value)| toleration[field] = value.clone());
        request(json!({"tolerations": [toleration]}))
    };
    let check = |gates: Gates, effect: &str, devices: Value, expected: &str| {
        let mut world = World::new(&["a"], gates);
        world.slice("s", tainted(effect));
        assert_eq!(world.place("p", devices.clone()), expected, "{gates:?} {effect} {devices}");
    };
    check(ALL, "NoSchedule", of(1), NONE);
    check(ALL, "NoExecute", of(1), NONE);
    check(ALL, "None", of(1), "a: d");
    check(Gates::default(), "NoSchedule", of(1), "a: d");
    check(ALL, "NoSchedule", tolerating(json!({})), "a: d");
    check(ALL, "NoSchedule", tolerating(json!({"effect": "NoExecute"})), NONE);
    check(ALL, "NoSchedule", tolerating(json!({"operator": "Equal", "value": "v"})), "a: d");
    check(ALL, "NoSchedule", tolerating(json!({"operator": "Equal", "value": "w"})), NONE);
    check(ALL, "NoSchedule", request(json!({"allocationMode": "All", "count": 0})), NONE);
}

#[test]
fn rules_taint_the_devices_that_they_select() {
    let rule = |selector: Value| {
        let spec = json!({"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule"}});
        let rule = json::from_value(json!({"metadata": {"name": "rule"}, "spec": spec})).unwrap();
        Some(TaintRule::of(&rule))
    };
    for (selector, expected) in [
        (json!({}), NONE),
        (json!({"driver": "drv"}), NONE),
        (json!({"driver": "other"}), "a: d"),
        (json!({"driver": "drv", "pool": "pool", "device": "d"}), NONE),
        (json!({"driver": "drv", "device": "e"}), "a: d"),
        (json!(null), "a: d"),
    ] {
        let mut world = World::new(&["a"], ALL);
        world.slice("s", json!({"allNodes": true, "devices": [{"name": "d"}]}));
        world.0.set_taint_rule(&Key::new("", "rule"), rule(selector.clone()), world.1);
        assert_eq!(world.place("p", of(1)), expected, "{selector}");
        if expected == NONE {
            world.0.set_taint_rule(&Key::new("", "rule"), None, world.1);
            assert_eq!(world.next(), "a: d", "it waited for the rule to go");
        }
    }
}

/// A pool whose partitions share 40Gi of memory: two halves, and the whole.
fn partitions(world: &mut World) {
    let pool = json!({"name": "pool", "generation": 1, "resourceSliceCount": 2});
    let takes = |amount: &str| json!([{"counterSet": "gpu", "counters": {"memory": {"value": amount}}}]);
    let sets = json!([{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]);
    world.slice("counters", json!({"pool": pool, "nodeName": "a", "sharedCounters": sets}));
    world.slice(
        "devices",
        json!({"pool": pool, "nodeName": "a", "devices": [
        {"name": "whole", "consumesCounters": takes("40Gi")}, {"name": "left", "consumesCounters": takes("20Gi")},
        {"name": "right", "consumesCounters": takes("20Gi")}]}),
    );
}

#[test]
fn partitions_are_given_while_their_share_is_left() {
    let mut world = World::new(&["a"], ALL);
    partitions(&mut world);
    assert_eq!(world.place("p", of(1)), "a: whole");
    assert_eq!(world.place("q", of(1)), NONE);
    world.gone("p");
    assert_eq!(world.next(), "a: whole");
    world.gone("q");
    assert_eq!(world.place("both", of(2)), "a: left right", "the whole beside a half is too much");
    assert_eq!(world.place("more", of(1)), NONE);
    let mut off = World::new(&["a"], Gates::default());
    partitions(&mut off);
    assert_eq!(off.place("p", of(1)), NONE, "the feature is off");
}

#[test]
fn a_pool_that_contradicts_itself_gives_nothing() {
    let counters = |name: &str| json!([{"counterSet": name, "counters": {"memory": {"value": "1"}}}]);
    for (device, sets) in [
        (counters("gpu"), json!([{"name": "other", "counters": {"memory": {"value": "2"}}}])),
        (counters("gpu"), json!([{"name": "gpu", "counters": {"cores": {"value": "2"}}}])),
        (counters("gpu"), json!([{"name": "gpu", "counters": {}}, {"name": "gpu", "counters": {}}])),
    ] {
        let mut world = World::new(&["a"], ALL);
        let pool = json!({"name": "pool", "generation": 1, "resourceSliceCount": 2});
        world.slice("counters", json!({"pool": pool, "allNodes": true, "sharedCounters": sets}));
        let devices = json!([{"name": "d", "consumesCounters": device}]);
        world.slice("devices", json!({"pool": pool, "allNodes": true, "devices": devices}));
        assert_eq!(world.place("p", of(1)), "invalid resource pools were encountered", "{sets}");
    }
}

#[test]
fn devices_say_for_themselves_where_they_are() {
    let mut world = World::new(&["a", "b label=zone:x"], ALL);
    let zone =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}]});
    world.slice(
        "s",
        json!({"perDeviceNodeSelection": true, "devices": [
        {"name": "near", "nodeName": "a"}, {"name": "zonal", "nodeSelector": zone}, {"name": "nowhere"}]}),
    );
    let mut both = [world.place("p", of(1)), world.place("q", of(1))];
    both.sort();
    assert_eq!(both, ["a: near", "b: zonal"]);
    assert_eq!(world.place("r", of(1)), NONE);
}

#[test]
fn claims_have_shares_of_a_device() {
    let mut world = World::new(&["a"], ALL);
    let policy = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
    world.slice(
        "s",
        json!({"allNodes": true, "devices": [{"name": "d", "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "8Gi", "requestPolicy": policy}}}]}),
    );
    let wanting =
        |amount: &str, count: i64| request(json!({"count": count, "capacity": {"requests": {"memory": amount}}}));
    assert_eq!(world.place("p", wanting("3500Mi", 1)), "a: d=4Gi");
    assert_eq!(world.place("q", of(1)), "a: d=1Gi");
    assert_eq!(world.place("r", wanting("4Gi", 1)), NONE);
    assert_eq!(world.place("s", wanting("1Gi", 3)), "a: d=1Gi d=1Gi d=1Gi", "one request can have several");
    world.gone("p");
    assert_eq!(world.next(), "a: d=4Gi");
    assert_eq!(world.place("t", request(json!({"capacity": {"requests": {"cores": "1"}}}))), NONE);
    let mut off = World::new(&["a"], Gates::default());
    off.slice("s", json!({"allNodes": true, "devices": [{"name": "d", "allowMultipleAllocations": true}]}));
    let disabled =
        "claim default/p, request r: has capacity requests, but the DRAConsumableCapacity feature is disabled";
    assert!(off.place("p", wanting("1Gi", 1)).ends_with(disabled));
    off.gone("p");
    assert_eq!(off.place("q", of(1)), "a: d");
    assert_eq!(off.place("r", of(1)), NONE, "it is one device for one claim");
}

#[test]
fn devices_can_have_to_differ() {
    let mut world = World::new(&["a"], ALL);
    let device = |name: &str, slot: i64| json!({"name": name, "attributes": {"slot": {"int": slot}}});
    world.slice("s", json!({"allNodes": true, "devices": [device("x", 1), device("y", 1), device("z", 2)]}));
    let apart = |count: i64| {
        let mut devices = of(count);
        devices["constraints"] = json!([{"distinctAttribute": "drv/slot"}]);
        devices
    };
    assert_eq!(world.place("p", apart(3)), NONE);
    assert_eq!(world.place("q", apart(2)), "a: x z");
}
