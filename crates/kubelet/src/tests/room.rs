//! Pods that make room for critical ones.

use std::fs;

use json::{Value, json};

use crate::{
    node::machine::Machine,
    tests::world::{World, until},
};

/// A Pod that requests `milli` thousandths of a processor.
fn spec(milli: i64, priority: i64) -> Value {
    let resources = json!({"requests": {"cpu": format!("{milli}m")}});
    let main = json!({"name": "m", "image": "x:1", "resources": resources});
    json!({"priority": priority, "terminationGracePeriodSeconds": 5, "containers": [main]})
}

/// Half of the node's processors, in thousandths.
fn half() -> i64 {
    Machine::read().cpus * 500
}

#[test]
fn a_critical_pod_gets_room_and_starts_when_the_others_have_left() {
    let world = World::new();
    world.make_pod("small", spec(half() / 4, 0));
    world.make_pod("great", spec(half(), 0));
    world.life(None, async || {
        until("both are ready", || world.is_ready("small") && world.is_ready("great")).await;
        world.make_pod("modest", spec(half() * 5 / 4, 1_999_999_999));
        until("an ordinary Pod is refused", || world.phase("modest") == "Failed").await;
        assert_eq!(world.pod("modest").unwrap()["status"]["reason"], "OutOfcpu");
        world.make_pod("critical", spec(half() * 5 / 4, 2_000_000_000));
        until("the critical one is ready", || world.is_ready("critical")).await;
        let great = world.pod("great").unwrap()["status"].clone();
        let message = "Preempted in order to admit critical pod";
        assert_eq!(
            (&great["phase"], &great["reason"], &great["message"]),
            (&"Failed".into(), &"Preempting".into(), &message.into())
        );
        let target = world.said("great", "DisruptionTarget");
        assert_eq!((&target["reason"], &target["message"]), (&"TerminationByKubelet".into(), &message.into()));
        // The fewest go: this one would not have been enough.
        assert!(world.is_ready("small"));
        let calls = world.engine.calls();
        let place = |call: &str| calls.iter().rposition(|c| c == call).unwrap();
        assert!(place("stop m 5") < place("run_sandbox critical"), "{calls:?}");
    });
}

#[test]
fn a_static_pod_gets_room_and_what_cannot_be_had_is_said() {
    let world = World::new();
    world.make_pod("p", spec(half() * 2, 0));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.make_pod("monster", spec(half() * 4, 2_000_000_000));
        until("nobody goes for what would not be enough", || world.phase("monster") == "Failed").await;
        let status = world.pod("monster").unwrap()["status"].clone();
        assert_eq!(status["reason"], "UnexpectedAdmissionError");
        let lacking = format!("no set of running pods found to reclaim resources: [(res: cpu, q: {}), ]", half() * 2);
        assert!(status["message"].as_str().unwrap().ends_with(&lacking), "{status}");
        assert!(world.is_ready("p"));
        let mut fixed = spec(half(), 0);
        fixed.as_object_mut().unwrap().remove("priority");
        let fixed =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fixed", "namespace": "d"}, "spec": fixed});
        fs::write(world.manifests().join("fixed.yaml"), fixed.to_string()).unwrap();
        until("the static Pod runs", || world.is_ready("fixed-n1")).await;
        assert_eq!(world.pod("p").unwrap()["status"]["reason"], "Preempting");
    });
}

#[test]
fn a_critical_pod_that_grows_gets_room_too() {
    let world = World::new();
    world.make_pod("p", spec(half() * 3 / 2, 0));
    world.make_pod("critical", spec(half() / 4, 2_000_000_000));
    world.life(None, async || {
        until("both are ready", || world.is_ready("p") && world.is_ready("critical")).await;
        let wanted = format!("{}m", half());
        world.change_pod("critical", |spec| {
            spec["containers"][0]["resources"]["requests"]["cpu"] = wanted.clone().into()
        });
        let cpu = || {
            let status = world.pod("critical").unwrap()["status"]["containerStatuses"][0].clone();
            status["resources"]["requests"]["cpu"].as_str().map(str::to_owned)
        };
        until("it has grown", || cpu().as_ref() == Some(&wanted)).await;
        until("the other has made room", || world.pod("p").unwrap()["status"]["reason"] == "Preempting").await;
        assert!(world.said("critical", "PodResizePending").is_null());
    });
}
