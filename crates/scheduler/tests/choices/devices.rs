//! Which devices the claims of a Pod get, and where. The names of upstream's cases (allocatortesting) are in the comments.

use client::Key;
use clock::{Duration, Instant};
use json::{Value, json};
use scheduler::{
    Decision, Engine,
    devices::{Claim, Class, Given, Slice},
};

use crate::text::{engine, pod_with};

/// An engine with the class `any` and time to spare.
struct World(Engine, Instant);

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    json::from_value(value).unwrap()
}

fn value(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) => json!({"int": number}),
        Err(_) => json!({"string": text}),
    }
}

/// A request for devices of the class `any`.
fn request(name: &str, count: i64) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": count}})
}

fn all(name: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": "any", "allocationMode": "All"}})
}

/// The first of these numbers of devices that can be had.
fn first_of(name: &str, counts: &[(&str, i64)]) -> Value {
    let alternative = |(sub, count): &(&str, i64)| json!({"name": sub, "deviceClassName": "any", "allocationMode": "ExactCount", "count": count});
    json!({"name": name, "firstAvailable": counts.iter().map(alternative).collect::<Vec<_>>()})
}

fn same(attribute: &str, requests: &[&str]) -> Value {
    json!({"matchAttribute": attribute, "requests": requests})
}

impl World {
    fn new(nodes: &[&str]) -> Self {
        let mut world = World(engine(nodes, &[]), Instant::now());
        world.class("any", json!({}));
        world
    }

    fn class(&mut self, name: &str, spec: Value) {
        let class = Class::of(&object(json!({"metadata": {"name": name}, "spec": spec})));
        self.0.set_device_class(&Key::new("", name), Some(class), self.1);
    }

    /// A slice `name [node=a] [pool=p] [generation=1] [of=1]` with devices `name [attribute=value]`. Without a node it is
    /// for all of them; its pool has the name of the node, or is `net`.
    fn slice(&mut self, text: &str, devices: &[&str]) {
        let mut words = text.split(' ');
        let name = words.next().unwrap();
        let mut spec = json!({"driver": "drv", "pool": {"name": "net", "generation": 1, "resourceSliceCount": 1}});
        for (word, value) in words.map(|word| word.split_once('=').unwrap()) {
            match word {
                "node" => (spec["nodeName"], spec["pool"]["name"]) = (json!(value), json!(value)),
                "pool" => spec["pool"]["name"] = json!(value),
                "generation" => spec["pool"]["generation"] = json!(value.parse::<i64>().unwrap()),
                "zone" => {
                    spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": [value]}]}]})
                }
                _ => spec["pool"]["resourceSliceCount"] = json!(value.parse::<i64>().unwrap()),
            }
        }
        if spec.get("nodeName").is_none() && spec.get("nodeSelector").is_none() {
            spec["allNodes"] = json!(true);
        }
        let device = |text: &&str| {
            let mut words = text.split(' ');
            let name = words.next().unwrap();
            let attributes = words.map(|word| word.split_once('=').unwrap());
            let attributes: json::Map = attributes.map(|(name, text)| (name.to_owned(), value(text))).collect();
            json!({"name": name, "attributes": attributes})
        };
        spec["devices"] = devices.iter().map(device).collect();
        let slice = Slice::of(&object(json!({"metadata": {"name": name}, "spec": spec})));
        self.0.set_slice(&Key::new("", name), Some(slice), self.1);
    }

    fn claim_with(&mut self, name: &str, devices: Value, status: Value) {
        let claim = json!({"metadata": {"name": name, "uid": name}, "spec": {"devices": devices}, "status": status});
        self.0.set_device_claim(&key(name), Some(Claim::of(&object(claim))), self.1);
    }

    fn claim(&mut self, name: &str, requests: &[Value], constraints: &[Value]) {
        self.claim_with(name, json!({"requests": requests, "constraints": constraints}), json!({}));
    }

    /// Somebody has this device of the pool.
    fn taken(&mut self, pool: &str, device: &str, admin: bool) {
        let result = json!({"request": "r", "driver": "drv", "pool": pool, "device": device, "adminAccess": admin});
        let allocation = json!({"allocation": {"devices": {"results": [result]}}});
        self.claim_with(&format!("holds-{pool}-{device}"), json!({"requests": []}), allocation);
    }

    fn pod(&mut self, name: &str, claims: &[&str]) {
        let claims: Vec<Value> = claims.iter().map(|c| json!({"name": c, "resourceClaimName": c})).collect();
        self.0.set_pod(&pod_with(name, json!({"resourceClaims": claims})), self.1);
    }

    fn results(&mut self) -> Result<(String, Given), String> {
        self.1 += Duration::from_secs(60);
        match self.0.schedule_one(self.1) {
            Some(Decision::Bind { node, prepare, .. }) => {
                let given = prepare.iter().find_map(|p| p.brought.clone().downcast::<Given>().ok());
                Ok((node.to_string(), given.map(|given| (*given).clone()).unwrap_or_default()))
            }
            Some(Decision::Failed { why, .. }) => Err(why),
            Some(Decision::Unschedulable { failure, preemption, .. }) => Err(failure.message(&preemption)),
            other => Err(format!("{other:?}")),
        }
    }

    /// `node: request=pool/device …` of the next Pod, or why there is none.
    fn next(&mut self) -> String {
        match self.results() {
            Err(why) => {
                let end = [" no new claims", " still not"].iter().find_map(|rest| why.find(rest));
                why[..end.unwrap_or(why.len())].to_owned()
            }
            Ok((node, given)) => {
                let all = given.claims.iter().map(|(_, result)| result).chain(given.extended.iter().map(|e| &e.result));
                let results = all.flat_map(|r| r.devices.iter().flat_map(|d| d.results.iter().flatten()));
                let texts = results.map(|r| {
                    let admin = if r.admin_access == Some(true) { "!" } else { "" };
                    format!(" {}={}/{}{admin}", r.request, r.pool, r.device)
                });
                format!("{node}:{}", texts.collect::<String>())
            }
        }
    }

    fn check(&mut self, requests: &[Value], constraints: &[Value], expected: &str) {
        self.claim("c", requests, constraints);
        self.pod("p", &["c"]);
        assert_eq!(self.next(), expected, "{requests:?} {constraints:?}");
    }
}

const NOTHING: &str = "0/1 nodes are available: 1 cannot allocate all claims.";

/// One node `a` with these devices.
fn with(devices: &[&str]) -> World {
    let mut world = World::new(&["a"]);
    world.slice("s node=a", devices);
    world
}

#[test]
fn a_request_gets_devices_of_its_node() {
    // simple, other-node, no-slices, not-enough-suitable-devices
    with(&["d0", "d1"]).check(&[request("r", 1)], &[], "a: r=a/d0");
    with(&["d0", "d1"]).check(&[request("r", 2)], &[], "a: r=a/d0 r=a/d1");
    with(&["d0"]).check(&[request("r", 2)], &[], NOTHING);
    World::new(&["a"]).check(&[request("r", 1)], &[], NOTHING);
    let mut world = World::new(&["a", "b"]);
    world.slice("s node=b", &["d0"]);
    world.check(&[request("r", 1)], &[], "b: r=b/d0");
    // unknown-class
    let mut world = with(&["d0"]);
    let other = json!({"name": "r", "exactly": {"deviceClassName": "other", "count": 1}});
    world.check(&[other], &[], "0/1 nodes are available: request r: device class other does not exist.");
    world.class("other", json!({}));
    assert_eq!(world.next(), "a: r=a/d0", "its class wakes the Pod");
}

#[test]
fn a_device_is_for_one_claim_until_it_is_given_back() {
    // already-allocated-devices, empty
    let mut world = with(&["d0"]);
    world.claim("first", &[request("r", 1)], &[]);
    world.claim("second", &[request("r", 1)], &[]);
    world.pod("p", &["first"]);
    world.pod("q", &["second"]);
    world.pod("r", &["first"]);
    assert_eq!(world.next(), "a: r=a/d0");
    assert_eq!(world.next(), NOTHING, "it is kept before anybody shows it");
    let pending = "0/1 nodes are available: resource claim default/first is in the process of being allocated.";
    assert_eq!(world.next(), pending);
    world.0.bind_failed(&key("p"), "p", world.1);
    let turns = [world.next(), world.next(), world.next()];
    assert_eq!(turns.iter().filter(|turn| *turn == "a: r=a/d0").count(), 1, "{turns:?}");
    // A Pod that goes while its devices are being written keeps them until the write is over, whatever happens meanwhile.
    let mut world = with(&["d0"]);
    world.claim("first", &[request("r", 1)], &[]);
    world.claim("second", &[request("r", 1)], &[]);
    world.pod("p", &["first"]);
    assert_eq!(world.next(), "a: r=a/d0");
    world.0.remove_pod(&key("p"), world.1);
    world.claim_with("first", json!({"requests": [request("r", 1)]}), json!({"devices": []}));
    world.pod("q", &["second"]);
    assert_eq!(world.next(), NOTHING);
    world.0.bind_failed(&key("p"), "p", world.1);
    assert_eq!(world.next(), "a: r=a/d0");
    // An allocation that the API shows counts like one that was decided here.
    let mut world = with(&["d0", "d1"]);
    world.taken("a", "d0", false);
    world.check(&[request("r", 1)], &[], "a: r=a/d1");
    world.claim("late", &[request("r", 1)], &[]);
    world.pod("q", &["late"]);
    assert_eq!(world.next(), NOTHING);
    world.0.set_device_claim(&key("holds-a-d0"), None, world.1);
    assert_eq!(world.next(), "a: r=a/d0", "a device that is free again wakes the Pod");
    world.claim("none", &[], &[]);
    world.pod("n", &["none"]);
    assert_eq!(world.next(), "a:");
}

#[test]
fn pools_count_in_their_newest_generation_and_when_they_are_complete() {
    // obsolete-slice, no-allocation-from-incomplete-pools, duplicate-slice, invalid-pool-is-ok-…
    let mut world = World::new(&["a"]);
    world.slice("old node=a generation=1", &["d0"]);
    world.slice("new node=a generation=2", &["d1"]);
    world.check(&[request("r", 1)], &[], "a: r=a/d1");
    let mut world = World::new(&["a"]);
    world.slice("one node=a of=2", &["d0"]);
    world.check(&[request("r", 1)], &[], NOTHING);
    world.slice("two node=a of=2", &["d1"]);
    assert_eq!(world.next(), "a: r=a/d0");
    let mut world = World::new(&["a"]);
    world.slice("one node=a of=2", &["d0"]);
    world.slice("two node=a of=2", &["d0"]);
    world.check(&[request("r", 1)], &[], "0/1 nodes are available: 1 invalid resource pools were encountered.");
    world.slice("net", &["n0"]);
    assert_eq!(world.next(), "a: r=net/n0");
    // multi-host-resource-pool-…: the newer generation has nothing for this node.
    let mut world = World::new(&["a", "b"]);
    world.slice("old node=a pool=p generation=1 of=2", &["d0"]);
    world.slice("new node=b pool=p generation=2", &["d1"]);
    world.check(&[request("r", 1)], &[], "b: r=p/d1");
}

#[test]
fn all_devices_are_all_that_are_selected() {
    // all-devices-single, -many, -plus-another, -no-solution, -some-allocated, -of-the-incomplete-pool
    with(&["d0", "d1"]).check(&[all("r")], &[], "a: r=a/d0 r=a/d1");
    with(&[]).check(&[all("r")], &[], NOTHING);
    with(&["d0", "d1"]).check(&[all("r"), request("s", 1)], &[], NOTHING);
    with(&["d0", "d1"]).check(&[request("s", 1), all("r")], &[], NOTHING);
    let mut world = with(&["d0", "d1"]);
    world.taken("a", "d0", false);
    world.check(&[all("r")], &[], NOTHING);
    let mut world = World::new(&["a"]);
    world.slice("one node=a of=2", &["d0"]);
    let updated = "running \"DynamicResources\" filter plugin: claim default/c, request r: asks for all devices, but \
                   resource pool drv/a is currently being updated";
    world.check(&[all("r")], &[], updated);
}

#[test]
fn the_search_steps_back_where_it_leads_nowhere() {
    // small-and-large-backtrack-requests, with-constraint, with-constraint-for-request-retry
    let numa = ["d0 numa=0", "d1 numa=1", "d2 numa=1"];
    with(&numa).check(&[request("r", 2)], &[same("drv/numa", &[])], "a: r=a/d1 r=a/d2");
    let two = [request("r", 1), request("s", 1)];
    with(&numa).check(&two, &[same("drv/numa", &["r", "s"])], "a: r=a/d1 s=a/d2");
    with(&numa).check(&two, &[same("drv/numa", &["r"])], "a: r=a/d0 s=a/d1");
    with(&numa).check(&[request("r", 3)], &[same("drv/numa", &[])], NOTHING);
    with(&numa).check(&[request("r", 1)], &[same("drv/model", &[])], NOTHING);
    with(&["d0 numa=1", "d1 numa=one"]).check(&[request("r", 2)], &[same("drv/numa", &[])], NOTHING);
    // with-constraint-not-matching-int-attribute-all-devices
    let fails = "running \"DynamicResources\" filter plugin: claim default/c, request r: cannot add device drv/a/d1 \
                 because a claim constraint would not be satisfied";
    with(&numa).check(&[all("r")], &[same("drv/numa", &[])], fails);
    // small-and-large-backtrack-claims: the first claim takes what the second needs, and lets go of it.
    let mut world = with(&["d0 numa=1", "d1 numa=0", "d2 numa=1"]);
    world.claim("c", &[request("r", 1)], &[]);
    world.claim("e", &[request("r", 2)], &[same("drv/numa", &[])]);
    world.pod("p", &["c", "e"]);
    assert_eq!(world.next(), "a: r=a/d1 r=a/d0 r=a/d2");
}

#[test]
fn the_first_alternative_is_taken_that_can_be_had() {
    // prioritized-list-first-unavailable, -non-available, -multi-request, -too-many-in-first-subrequest, -with-backtracking
    let list = first_of("r", &[("big", 2), ("small", 1)]);
    with(&["d0", "d1"]).check(std::slice::from_ref(&list), &[], "a: r/big=a/d0 r/big=a/d1");
    with(&["d0"]).check(std::slice::from_ref(&list), &[], "a: r/small=a/d0");
    with(&[]).check(std::slice::from_ref(&list), &[], NOTHING);
    with(&["d0", "d1"]).check(&[list.clone(), request("s", 1)], &[], "a: r/small=a/d0 s=a/d1");
    let many: Vec<String> = (10..50).map(|i| format!("d{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let too_many = first_of("r", &[("big", 33), ("small", 1)]);
    with(&many).check(&[too_many], &[], "a: r/small=a/d10");
    // prioritized-list-max-allocation-limit-request
    let after = [first_of("r", &[("big", 20), ("small", 1)]), request("s", 31)];
    assert!(check_starts(&mut with(&many), &after, "a: r/small=a/d10 s=a/d11"));
    // prioritized-list-subrequests-with-constraints-ref-sub-request
    let of_big = [same("drv/numa", &["r/big"])];
    with(&["d0 numa=0", "d1 numa=1"]).check(&[list], &of_big, "a: r/small=a/d0");
}

fn check_starts(world: &mut World, requests: &[Value], expected: &str) -> bool {
    world.claim("c", requests, &[]);
    world.pod("p", &["c"]);
    world.next().starts_with(expected)
}

#[test]
fn nodes_with_better_alternatives_are_chosen() {
    let list = first_of("r", &[("big", 2), ("small", 1)]);
    for better in ["a", "b"] {
        let mut world = World::new(&["a", "b"]);
        for node in ["a", "b"] {
            let devices: &[&str] = if node == better { &["d0", "d1"] } else { &["d0"] };
            world.slice(&format!("s{node} node={node}"), devices);
        }
        world.check(std::slice::from_ref(&list), &[], &format!("{better}: r/big={better}/d0 r/big={better}/d1"));
    }
}

#[test]
fn a_claim_has_so_many_devices_and_a_search_so_many_steps() {
    // too-many-devices-single-request, too-many-devices-total, max-number-devices
    let names: Vec<String> = (10..74).map(|i| format!("d{i} numa={i}")).collect();
    let devices: Vec<&str> = names.iter().map(String::as_str).collect();
    let limit = "running \"DynamicResources\" filter plugin: claim default/c: number of requested devices 33 exceeds the \
                 claim limit of 32";
    with(&devices).check(&[request("r", 33)], &[], limit);
    with(&devices).check(&[request("r", 32), request("s", 1)], &[], limit);
    assert!(check_starts(&mut with(&devices), &[request("r", 32)], "a: r=a/d10 r=a/d11"));
    // Half of the devices fit together in no way that a search could find out soon.
    let requests: Vec<Value> = (0..8).map(|i| request(&format!("r{i}"), 2)).collect();
    let pairs: Vec<Value> = vec![same("drv/numa", &["r7"])];
    with(&devices).check(&requests, &pairs, "0/1 nodes are available: 1 timed out trying to allocate devices.");
    // Claims without end are no way to use up the stack.
    let mut world = with(&devices);
    let names: Vec<String> = (0..300).map(|i| format!("c{i}")).collect();
    names.iter().for_each(|name| world.claim(name, &[request("r", 1)], &[]));
    world.pod("p", &names.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(world.next().ends_with("the claims of the pod ask for too many devices at once (900)"));
}

#[test]
fn an_administrator_shares_what_others_have() {
    // count-devices-some-allocated-admin-access, separate-claims-share-device-admin-access, all-devices-…-admin-access
    let admin = |mode: &str| json!({"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": mode, "adminAccess": true}});
    let mut world = with(&["d0"]);
    world.taken("a", "d0", false);
    world.check(&[admin("ExactCount")], &[], "a: r=a/d0!");
    let mut world = with(&["d0", "d1"]);
    world.taken("a", "d0", false);
    world.check(&[admin("All")], &[], "a: r=a/d0! r=a/d1!");
    with(&["d0"]).check(&[admin("ExactCount"), admin("ExactCount")], &[], NOTHING);
    let mut world = with(&["d0"]);
    world.taken("a", "d0", true);
    world.check(&[request("r", 1)], &[], "a: r=a/d0");
}

#[test]
fn the_result_says_where_the_devices_are() {
    // network-attached-device, local-and-network-attached-devices
    let nodes = |world: &mut World, requests: &[Value]| {
        world.claim("c", requests, &[]);
        world.pod("p", &["c"]);
        let (_, given) = world.results().unwrap();
        json!(given.claims[0].1.node_selector)
    };
    let name = json!({"key": "metadata.name", "operator": "In", "values": ["a"]});
    let local = json!({"nodeSelectorTerms": [{"matchFields": [name]}]});
    assert_eq!(nodes(&mut with(&["d0"]), &[request("r", 1)]), local);
    let mut world = World::new(&["a label=zone:x", "b label=zone:y"]);
    world.slice("s zone=x", &["n0"]);
    let zone = json!({"key": "zone", "operator": "In", "values": ["x"]});
    assert_eq!(nodes(&mut world, &[request("r", 1)]), json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}]}));
    let mut world = World::new(&["a"]);
    world.slice("s", &["n0"]);
    assert_eq!(nodes(&mut world, &[request("r", 1)]), Value::Null);
    let mut world = with(&["d0"]);
    world.slice("s2", &["n0"]);
    assert_eq!(nodes(&mut world, &[request("r", 2)]), local);
}

fn selecting(name: &str, expression: &str) -> Value {
    let selectors = json!([{"cel": {"expression": expression}}]);
    json!({"name": name, "exactly": {"deviceClassName": "any", "count": 1, "selectors": selectors}})
}

#[test]
fn classes_and_requests_select_by_expressions() {
    // small-and-large, with-class-selector, invalid-CEL-one-device, invalid-CEL-one-device-class, several-different-drivers
    let devices = ["d0 model=a memory=10", "d1 model=b memory=20", "d2 model=b memory=40"];
    let own = |rest: &str| format!("device.driver == 'drv' && device.attributes['drv'].{rest}");
    with(&devices).check(&[selecting("r", &own("model == 'b'"))], &[], "a: r=a/d1");
    with(&devices).check(&[selecting("r", &own("memory > 20"))], &[], "a: r=a/d2");
    with(&devices).check(&[selecting("r", &own("memory > 40"))], &[], NOTHING);
    let small = own("model == 'b'") + " && device.attributes['drv'].memory < 30";
    let (any_b, small) = (selecting("r", &own("model == 'b'")), selecting("s", &small));
    with(&devices).check(&[any_b.clone(), small.clone()], &[], "a: r=a/d2 s=a/d1");
    with(&devices).check(&[small, any_b], &[], "a: s=a/d1 r=a/d2");
    let mut world = with(&devices);
    world.class("any", json!({"selectors": [{"cel": {"expression": own("model == 'a'")}}]}));
    world.check(&[request("r", 1), selecting("s", "true")], &[], NOTHING);
    let mut world = with(&devices);
    world.class("any", json!({"selectors": [{"cel": {"expression": own("model == 'a'")}}]}));
    world.check(&[all("r")], &[], "a: r=a/d0");
    let fails =
        |place: &str, why: &str| format!("running \"DynamicResources\" filter plugin: {place}: selector #0: {why}");
    let runtime = fails("claim default/c", "CEL runtime error: no such key: size");
    with(&devices).check(&[selecting("r", &own("size == 1"))], &[], &runtime);
    let mut world = with(&devices);
    world.class("any", json!({"selectors": [{"cel": {"expression": own("size == 1")}}]}));
    world.check(&[request("r", 1)], &[], &fails("class any", "CEL runtime error: no such key: size"));
    world.class("any", json!({}));
    assert_eq!(world.next(), "a: r=a/d0", "the Pod is tried again by itself");
}

#[test]
fn what_costs_too_much_ends_the_search_on_a_node_and_then_on_all() {
    const TOO_LONG: &str = "timed out trying to allocate devices.";
    let digits = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]";
    let all = format!("{digits}.all(a, {digits}.all(b, {digits}.all(c, {digits}.all(d, a + b + c + d < 100))))");
    let devices: Vec<String> = (0..32).map(|i| format!("d{i}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let costly = selecting("r", &format!("{all} == false"));
    with(&devices).check(&[costly], &[], &format!("0/1 nodes are available: 1 {TOO_LONG}"));
    // Every node but the last has devices that go together in no way that a search could find out soon.
    let nodes: Vec<String> = (10..70).map(|i| format!("n{i}")).collect();
    let mut world = World::new(&nodes.iter().map(String::as_str).collect::<Vec<_>>());
    let unlike: Vec<String> = (0..64).map(|i| format!("d{i} numa={i}")).collect();
    let unlike: Vec<&str> = unlike.iter().map(String::as_str).collect();
    for node in &nodes {
        let fits: &[&str] = &["a numa=1", "b numa=1", "c numa=1", "d numa=1", "e numa=1", "f numa=1"];
        world.slice(&format!("s{node} node={node}"), if node == "n69" { fits } else { &unlike });
    }
    let requests = [request("r", 2), request("s", 2), request("t", 2)];
    world.claim("c", &requests, &[same("drv/numa", &["t"])]);
    world.pod("p", &["c"]);
    assert_eq!(world.next(), format!("0/60 nodes are available: 60 {TOO_LONG}"));
    world.claim("cheap", &[request("r", 1)], &[]);
    world.pod("q", &["cheap"]);
    assert!(world.next().contains(": r="), "the next Pod has a turn of its own");
}

#[test]
fn configurations_come_from_classes_and_from_the_claim() {
    // with-class-device-config-with-multiple-request-and-configs, claim-with-device-config, prioritized-list-class-config
    let opaque = |name: &str| json!({"opaque": {"driver": "drv", "parameters": {"from": name}}});
    let mut world = with(&["d0", "d1", "d2"]);
    world.class("any", json!({"config": [opaque("class")]}));
    let mut of_claim = opaque("claim");
    of_claim["requests"] = json!(["s"]);
    let requests = [request("r", 1), request("s", 1), first_of("t", &[("one", 1)])];
    world.claim_with("c", json!({"requests": requests, "config": [opaque("every"), of_claim]}), json!({}));
    world.pod("p", &["c"]);
    let (_, given) = world.results().unwrap();
    let config = json!(given.claims[0].1.devices.as_ref().unwrap().config);
    let entry = |source: &str, requests: Value, name: &str| {
        let mut entry = opaque(name);
        entry["source"] = json!(source);
        if !requests.is_null() {
            entry["requests"] = requests;
        }
        entry
    };
    let expected = json!([
        entry("FromClass", json!(["r", "s", "t/one"]), "class"),
        entry("FromClaim", Value::Null, "every"),
        entry("FromClaim", json!(["s"]), "claim"),
    ]);
    assert_eq!(config, expected);
}

#[test]
fn a_claim_that_nobody_uses_gives_up_devices_that_are_elsewhere() {
    let check = |users: &[&str], expected: &str| {
        let mut world = World::new(&["a"]);
        let name = json!({"key": "metadata.name", "operator": "In", "values": ["gone"]});
        let nodes = json!({"nodeSelectorTerms": [{"matchFields": [name]}]});
        let result = json!({"request": "r", "driver": "drv", "pool": "gone", "device": "d0"});
        let users: Vec<Value> = users.iter().map(|u| json!({"resource": "pods", "name": u, "uid": u})).collect();
        let status =
            json!({"allocation": {"nodeSelector": nodes, "devices": {"results": [result]}}, "reservedFor": users});
        world.claim_with("c", json!({"requests": [request("r", 1)]}), status);
        world.pod("p", &["c"]);
        let why = world.results().unwrap_err();
        let said =
            format!("0/1 nodes are available: 1 resourceclaim not available on the node. {expected}, preemption: ");
        assert!(why.starts_with(&said), "{why}");
    };
    check(&[], "deallocation of ResourceClaim completed");
    check(&["p"], "deallocation of ResourceClaim completed");
    check(&["other"], "still not schedulable");
    check(&["p", "other"], "still not schedulable");
}
