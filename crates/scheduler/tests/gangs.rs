//! Gangs: Pods that are bound together or not at all.

#[allow(dead_code, reason = "the other tables make their engines by it")]
mod text;

use api::features::{Feature, Features};
use client::Key;
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use scheduler::{Decision, Engine, Settings, failure::Preemption, gangs::Workload};
use text::{node, pod, pod_with};

struct World(Engine, Instant);

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn of_gang(text: &str) -> Pod {
    pod_with(text, json!({"workloadRef": {"name": "w", "podGroup": "g"}}))
}

impl World {
    fn new(nodes: &[&str], on: bool) -> Self {
        let features = Features::default().with(Feature::GenericWorkload, on).with(Feature::GangScheduling, on);
        let (mut engine, now) = (Engine::new(Settings { features, ..Settings::default() }), Instant::now());
        nodes.iter().for_each(|text| engine.set_node(&node(text), now));
        World(engine, now)
    }

    fn workload(&mut self, policy: Value) {
        let workload = json!({"metadata": {"name": "w"}, "spec": {"podGroups": [{"name": "g", "policy": policy}]}});
        let workload = Workload::of(&json::from_value(workload).unwrap());
        self.0.set_workload(&key("w"), Some(workload), self.1);
    }

    fn gang(&mut self, least: i32) {
        self.workload(json!({"gang": {"minCount": least}}));
    }

    fn pods(&mut self, texts: &[&str]) {
        texts.iter().for_each(|text| self.0.set_pod(&of_gang(text), self.1));
    }

    fn next(&mut self) -> String {
        match self.0.schedule_one(self.1) {
            None => "nothing".to_owned(),
            Some(Decision::Bind { pod, node, .. }) => format!("{} on {node}", pod.key.name),
            Some(Decision::Waits { pod }) => format!("{} waits", pod.key.name),
            Some(Decision::Unschedulable { pod, failure, preemption }) => {
                let message = failure.message(&preemption);
                format!("{}: {}", pod.key.name, message.split(" no new claims").next().unwrap())
            }
            Some(Decision::Failed { pod, why }) => format!("{}: {why}", pod.key.name),
            Some(Decision::Consult(_)) => "asks".to_owned(),
        }
    }

    fn check(&mut self, expected: &[&str]) {
        let found: Vec<String> = expected.iter().map(|_| self.next()).collect();
        assert_eq!(found, expected);
    }
}

const FULL: &str = "0/1 nodes are available: 1 Insufficient cpu.";

#[test]
fn pods_are_tried_when_their_workload_and_enough_of_them_are_there() {
    let mut world = World::new(&["a cpu=9"], true);
    world.pods(&["p cpu=1", "q cpu=1"]);
    world.check(&["nothing"]);
    world.gang(3);
    world.check(&["nothing"]);
    world.pods(&["r cpu=1"]);
    world.check(&["p waits", "q waits", "r on a", "p on a", "q on a", "nothing"]);
    // Those that come later have company already.
    world.pods(&["s cpu=1"]);
    world.check(&["s on a", "nothing"]);
}

#[test]
fn only_gangs_wait() {
    let mut world = World::new(&["a"], true);
    world.workload(json!({"basic": {}}));
    world.pods(&["p"]);
    world.check(&["p on a"]);
    let other = json!({"workloadRef": {"name": "w", "podGroup": "other"}});
    world.0.set_pod(&pod_with("q", other), world.1);
    world.0.set_pod(&pod("r"), world.1);
    world.check(&["r on a", "nothing"]);
    let mut off = World::new(&["a"], false);
    off.gang(2);
    off.pods(&["p"]);
    off.check(&["p on a"]);
}

#[test]
fn replicas_of_a_group_are_gangs_of_their_own() {
    let mut world = World::new(&["a"], true);
    world.gang(2);
    let replica = |name: &str, replica: &str| {
        pod_with(name, json!({"workloadRef": {"name": "w", "podGroup": "g", "podGroupReplicaKey": replica}}))
    };
    world.0.set_pod(&replica("p", "1"), world.1);
    world.0.set_pod(&replica("q", "2"), world.1);
    world.check(&["nothing"]);
    world.0.set_pod(&replica("r", "2"), world.1);
    world.check(&["q waits", "r on a", "q on a", "nothing"]);
}

#[test]
fn a_gang_that_does_not_fit_gives_its_nodes_back() {
    let mut world = World::new(&["a cpu=1"], true);
    world.gang(2);
    world.pods(&["p cpu=1", "q cpu=1"]);
    world.check(&["p waits", &format!("q: {FULL}"), "nothing"]);
    world.0.set_pod(&pod("other cpu=1"), world.1);
    world.check(&[&format!("other: {FULL}"), "nothing"]);
    assert_eq!(world.0.wake_at(), Some(world.1 + Duration::from_secs(300)));
    world.1 += Duration::from_secs(300);
    let late = "rejected due to timeout after waiting 5m0s at plugin GangScheduling";
    world.check(&[&format!("p: 0/1 nodes are available: 1 {late}.")]);
    // Both that wait for room are tried again; the one of the gang takes it anew, or the other has it.
    let next = [world.next(), world.next(), world.next()];
    assert!(next.iter().any(|said| said == "q waits" || said == "other on a"), "{next:?}");
}

#[test]
fn one_that_waits_is_enough_for_others_to_be_tried_at_once() {
    let mut world = World::new(&["a cpu=1"], true);
    world.gang(2);
    world.pods(&["p cpu=2", "q cpu=1"]);
    // The first fits nowhere and is parked; it is tried again as soon as the second has a node.
    world.check(&[&format!("p: {FULL}"), "q waits", &format!("p: {FULL}"), "nothing"]);
    world.0.set_node(&node("b cpu=2"), world.1);
    world.check(&["p on b", "q on a", "nothing"]);
}

#[test]
fn a_pod_that_goes_is_not_counted() {
    let mut world = World::new(&["a cpu=9"], true);
    world.gang(2);
    world.pods(&["p cpu=1", "q cpu=1"]);
    world.check(&["p waits"]);
    world.0.remove_pod(&key("p"), world.1);
    assert_eq!(world.0.cache.pods().count(), 0);
    world.check(&["nothing"]);
    world.pods(&["r cpu=1"]);
    world.check(&["q waits", "r on a", "q on a", "nothing"]);
    world.0.bind_failed(&key("q"), "q", world.1);
    world.1 += Duration::from_secs(9);
    world.check(&["q on a", "nothing"]);
}

#[test]
fn pods_that_have_nodes_already_count() {
    let mut world = World::new(&["a"], true);
    world.gang(2);
    world.pods(&["p on=a", "q"]);
    world.check(&["q on a", "nothing"]);
    let mut gone = World::new(&["a"], true);
    gone.gang(2);
    gone.pods(&["p", "q"]);
    gone.check(&["p waits"]);
    gone.pods(&["r on=a"]);
    gone.check(&["p on a", "q on a", "nothing"]);
}

#[test]
fn one_that_waits_makes_room_and_stays() {
    let mut world = World::new(&["a cpu=2"], true);
    world.gang(2);
    world.pods(&["p cpu=2", "q cpu=2"]);
    world.check(&["p waits", &format!("q: {FULL}"), "nothing"]);
    world.0.set_pod(&pod("urgent cpu=2 priority=9"), world.1);
    let Some(Decision::Unschedulable { pod: tried, preemption: Preemption::Victims(victims), .. }) =
        world.0.schedule_one(world.1)
    else {
        panic!("it makes room");
    };
    assert_eq!((&*tried.key.name, victims.pods, victims.sent_back), ("urgent", Vec::new(), vec![key("p")]));
    // It is told why it has no node any more, and the room is there at once: nobody was deleted.
    let after = [world.next(), world.next(), world.next(), world.next()];
    let expected = ["p: 0/1 nodes are available: 1 preempted.", "urgent on a"];
    assert_eq!(after[..2], expected, "{after:?}");
    assert!(!after[2..].iter().any(|said| said.contains("waits") || said.contains(" on ")), "{after:?}");
    world.1 += Duration::from_secs(60);
    world.0.set_node(&node("b cpu=2"), world.1);
    let next = [world.next(), world.next()];
    assert!(next.contains(&"p waits".to_owned()) || next.contains(&"q waits".to_owned()), "{next:?}");
}

#[test]
fn some_of_the_victims_may_wait_and_others_not() {
    let mut world = World::new(&["a cpu=4"], true);
    world.gang(2);
    world.0.set_pod(&pod("bound cpu=2 on=a"), world.1);
    world.pods(&["p cpu=2", "q cpu=4"]);
    world.check(&["p waits"]);
    world.0.set_pod(&pod("urgent cpu=4 priority=9"), world.1);
    let mut said = std::iter::from_fn(|| world.0.schedule_one(world.1));
    let victims = said.find_map(|decision| match decision {
        Decision::Unschedulable { preemption: Preemption::Victims(victims), .. } => Some(victims),
        _ => None,
    });
    let victims = victims.expect("it makes room");
    assert_eq!((victims.pods, victims.sent_back), (vec![key("bound")], vec![key("p")]));
    let rest: Vec<String> = (0..4).map(|_| world.next()).collect();
    assert!(!rest.iter().any(|said| said.contains(" on ") || said.contains("waits")), "{rest:?}");
    world.0.remove_pod(&key("bound"), world.1);
    world.1 += Duration::from_secs(60);
    world.check(&["urgent on a"]);
}
