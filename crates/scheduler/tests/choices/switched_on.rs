//! Devices with the features that are off by default: extended resources for which a class stands, and conditions that a
//! binding waits for.

use client::Key;
use clock::{Duration, Instant, Timestamp};
use json::{Value, json};
use scheduler::{
    Decision, Engine,
    devices::{Claim, Class, Gates, Given, Slice},
};

use crate::text::{engine, node, pod, pod_with};

const GPU: &str = "a.io/gpu";
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/gpu";

struct World(Engine, Instant);

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    json::from_value(value).unwrap()
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

impl World {
    /// With the class `gpu`, which stands for a resource.
    fn new(nodes: &[&str], gates: Gates) -> Self {
        let mut world = World(engine(nodes, &[]), Instant::now());
        world.0.cache.devices.gates = gates;
        world.class(json!({"extendedResourceName": GPU}));
        world
    }

    fn class(&mut self, spec: Value) {
        let class = Class::of(&object(json!({"metadata": {"name": "gpu"}, "spec": spec})));
        self.0.set_device_class(&Key::new("", "gpu"), Some(class), self.1);
    }

    fn slice(&mut self, node: &str, devices: Value) {
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "drv", "pool": pool, "nodeName": node, "devices": devices});
        let slice = Slice::of(&object(json!({"metadata": {"name": node}, "spec": spec})));
        self.0.set_slice(&Key::new("", node), Some(slice), self.1);
    }

    fn claim(&mut self, mut meta: Value, count: i64, status: Value) {
        let name = meta["name"].as_str().unwrap().to_owned();
        meta["uid"] = json!(name);
        let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}});
        let claim = json!({"metadata": meta, "spec": {"devices": {"requests": [request]}}, "status": status});
        self.0.set_device_claim(&key(&name), Some(Claim::of(&object(claim))), self.1);
    }

    fn pod(&mut self, text: &str) {
        self.0.set_pod(&pod(text), self.1);
    }

    /// `node: device …` of the next Pod, those for its extended resources behind a `+`; or why there is none.
    fn next(&mut self) -> String {
        self.1 += Duration::from_secs(60);
        match self.0.schedule_one(self.1) {
            Some(Decision::Bind { node, prepare, .. }) => {
                let given = prepare.iter().find_map(|p| p.brought.clone().downcast::<Given>().ok()).unwrap_or_default();
                let names = |result: &k8s_openapi::api::resource::v1::AllocationResult| {
                    let results = result.devices.iter().flat_map(|d| d.results.iter().flatten());
                    results.map(|r| format!(" {}", r.device)).collect::<String>()
                };
                let claims: String = given.claims.iter().map(|(_, result)| names(result)).collect();
                let extended = given.extended.iter().map(|e| format!(" +{}", names(&e.result))).collect::<String>();
                format!("{node}:{claims}{extended}")
            }
            Some(Decision::Failed { why, .. }) => why,
            Some(Decision::Unschedulable { failure, preemption, .. }) => {
                let said = failure.message(&preemption);
                said[..said.find(", preemption").unwrap_or(said.len())].to_owned()
            }
            other => format!("{other:?}"),
        }
    }

    fn check(&mut self, pod: &str, expected: &str) {
        self.pod(pod);
        assert_eq!(self.next(), expected, "{pod}");
    }
}

const EXTENDED: Gates = Gates {
    taints: false,
    taint_rules: false,
    partitions: false,
    shared_capacity: false,
    conditions: false,
    extended: true,
};

fn devices(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

const SHORT: &str = "0/1 nodes are available: 1 Insufficient a.io/gpu. no new claims to deallocate";
const NONE_LEFT: &str = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable";

#[test]
fn a_class_stands_for_an_extended_resource() {
    let mut world = World::new(&["a"], EXTENDED);
    world.check(&format!("early {GPU}=1"), NONE_LEFT);
    world.slice("a", devices(&["d0", "d1", "d2"]));
    assert_eq!(world.next(), "a: + d0", "devices that come wake the Pod");
    world.check(&format!("named {IMPLICIT}=1"), "a: + d1");
    world.check(&format!("many {GPU}=2"), NONE_LEFT);
    world.check("other b.io/gpu=1", &SHORT.replace("a.io", "b.io"));
    world.check(&format!("both {GPU}=1 {IMPLICIT}=1"), NONE_LEFT);
    world.check(&format!("none {GPU}=0"), "a:");
    // A claim of the user's own is allocated together with it.
    world.claim(json!({"name": "c"}), 1, json!({}));
    let claims = json!({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]});
    let asking = pod_with(&format!("mixed {GPU}=1"), claims.clone());
    world.0.set_pod(&asking, world.1);
    assert_eq!(world.next(), NONE_LEFT);
    world.slice("a", devices(&["d0", "d1", "d2", "d3"]));
    let turns = [world.next(), world.next(), world.next()];
    assert_eq!(turns.iter().filter(|turn| turn.contains(" + ")).count(), 1, "{turns:?}");
}

#[test]
fn without_the_feature_or_a_class_an_extended_resource_is_a_number_of_the_node() {
    let mut world = World::new(&["a"], Gates::default());
    world.slice("a", devices(&["d0"]));
    world.check(&format!("p {GPU}=1"), SHORT);
    let mut world = World::new(&["a"], EXTENDED);
    world.slice("a", devices(&["d0"]));
    world.class(json!({}));
    world.check(&format!("p {GPU}=1"), SHORT);
    world.class(json!({"extendedResourceName": GPU}));
    assert_eq!(world.next(), "a: + d0", "a class that stands for it wakes the Pod");
}

#[test]
fn a_node_with_a_device_plugin_counts_for_itself() {
    let mut world = World::new(&[&format!("a {GPU}=1")], EXTENDED);
    world.slice("a", devices(&["d0"]));
    world.check(&format!("p {GPU}=1"), "a:");
    let said = SHORT.replace("no new claims to deallocate", "still not schedulable");
    world.check(&format!("q {GPU}=1"), &said);
    // A plugin that has none left to offer is none.
    world.0.set_node(&node(&format!("b {GPU}=0")), world.1);
    world.slice("b", devices(&["e0"]));
    assert_eq!(world.next(), "b: + e0");
    let mut world = World::new(&["a"], EXTENDED);
    world.check(&format!("p {GPU}=1"), NONE_LEFT);
    world.0.set_node(&node(&format!("a {GPU}=1")), world.1);
    assert_eq!(world.next(), "a:", "a plugin that comes wakes the Pod");
}

#[test]
fn what_an_earlier_attempt_left_is_deleted_first() {
    let mut world = World::new(&["a"], EXTENDED);
    world.slice("a", devices(&["d0", "d1"]));
    world.check(&format!("p {GPU}=1"), "a: + d0");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let meta = json!({"name": "p-extended-resources-x", "ownerReferences": owner,
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}});
    let result = json!({"request": "r", "driver": "drv", "pool": "a", "device": "d0"});
    let allocation = json!({"allocation": {"devices": {"results": [result]}}});
    world.claim(meta, 1, allocation);
    // One that somebody else wrote, for a Pod of another namespace, is none.
    let foreign = json!({"metadata": {"name": "x", "uid": "x", "ownerReferences": owner,
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}, "spec": {}});
    world.0.set_device_claim(&Key::new("other", "x"), Some(Claim::of(&object(foreign))), world.1);
    world.check(&format!("q {GPU}=1"), "a: + d1");
    world.check(&format!("r {GPU}=1"), NONE_LEFT);
    world.0.bind_failed(&key("p"), "p", world.1);
    let turns = [world.next(), world.next()];
    let left = "0/1 nodes are available: 1 cannot allocate all claims. deletion of ResourceClaim completed";
    assert!(turns.iter().any(|turn| turn == left), "{turns:?}");
    // Where there is room it is in the way all the same, since its devices may be others than the new ones.
    world.slice("a", devices(&["d0", "d1", "d2", "d3"]));
    let turns = [world.next(), world.next()];
    let left =
        "0/1 nodes are available: 1 cannot schedule extended resource claim. deletion of ResourceClaim completed";
    assert!(turns.iter().any(|turn| turn == left), "{turns:?}");
    world.0.set_device_claim(&key("p-extended-resources-x"), None, world.1);
    let turns = [world.next(), world.next()];
    assert!(turns.contains(&"a: + d0".to_owned()), "{turns:?}");
}

#[test]
fn devices_whose_binding_waits_are_the_last_choice() {
    let gates = Gates { conditions: true, extended: false, ..EXTENDED };
    let waiting = json!({"name": "w", "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]});
    for (gates, expected) in [(gates, "a: w"), (Gates::default(), NONE_LEFT)] {
        let mut world = World::new(&["a"], gates);
        world.slice("a", json!([waiting]));
        world.claim(json!({"name": "c"}), 1, json!({}));
        let claims = json!({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]});
        world.0.set_pod(&pod_with("p", claims), world.1);
        assert_eq!(world.next(), expected);
    }
    // In another pool of the node, before the one with conditions by its name.
    let mut world = World::new(&["a"], gates);
    world.slice("a", json!([waiting]));
    let pool = json!({"name": "z", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "drv", "pool": pool, "allNodes": true, "devices": [{"name": "plain"}]});
    let slice = Slice::of(&object(json!({"metadata": {"name": "z"}, "spec": spec})));
    world.0.set_slice(&Key::new("", "z"), Some(slice), world.1);
    world.claim(json!({"name": "c"}), 1, json!({}));
    let claims = json!({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]});
    world.0.set_pod(&pod_with("p", claims), world.1);
    assert_eq!(world.next(), "a: plain");
}

#[test]
fn a_claim_gives_devices_up_that_will_not_be_ready() {
    let gates = Gates { conditions: true, extended: false, ..EXTENDED };
    let result = json!({"request": "r", "driver": "drv", "pool": "a", "device": "d0",
        "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]});
    let allocation = json!({"devices": {"results": [result]}, "allocationTimestamp": "2025-01-01T00:00:00Z"});
    let told = |condition: &str| {
        json!([{"driver": "drv", "pool": "a", "device": "d0", "conditions": [{"type": condition, "status": "True",
            "reason": "r", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"}]}])
    };
    let at = |minutes: u64| "2025-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_secs(60 * minutes);
    let given_up =
        "0/1 nodes are available: 1 resourceclaim not available on the node. deallocation of ResourceClaim completed";
    let in_use = "0/1 nodes are available: 1 resourceclaim not available on the node. still not schedulable";
    for (gates, devices, users, minutes, expected) in [
        (gates, json!([]), json!([]), 1, "a:"),
        (gates, json!([]), json!([]), 10, given_up),
        (gates, told("Attached"), json!([]), 10, "a:"),
        (gates, told("Broken"), json!([]), 1, given_up),
        (gates, told("Broken"), json!([{"resource": "pods", "name": "p", "uid": "p"}]), 1, given_up),
        (gates, told("Broken"), json!([{"resource": "pods", "name": "q", "uid": "q"}]), 1, in_use),
        (Gates::default(), told("Broken"), json!([]), 10, "a:"),
    ] {
        let mut world = World::new(&["a"], gates);
        world.0.tell_time(at(minutes));
        world.claim(
            json!({"name": "c"}),
            1,
            json!({"allocation": allocation, "devices": devices, "reservedFor": users}),
        );
        let claims = json!({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]});
        world.0.set_pod(&pod_with("p", claims), world.1);
        assert_eq!(world.next(), expected, "{devices} {users} after {minutes} minutes");
    }
}
