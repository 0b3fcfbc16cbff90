//! The Node object, which others write to as well.

use json::{Value, json};

use crate::{
    node::capacity,
    tests::world::{World, until},
};

const NODE: &str = "/api/v1/nodes/n1";

#[test]
fn labels_that_tell_the_machines_kind_are_put_back_and_others_are_left_alone() {
    let world = World::new();
    let label = |name: &str| world.api.get(NODE).unwrap_or_default()["metadata"]["labels"][name].clone();
    let is_true = || label("kubernetes.io/os") == "linux" && label("kubernetes.io/arch") == capacity::arch();
    let overwrite = |labels: Value| {
        let mut node = world.api.get(NODE).unwrap();
        node["metadata"]["labels"] = labels;
        world.api.put(NODE, node);
    };
    world.life(None, async || {
        until("the node has its labels", is_true).await;
        overwrite(json!({"kubernetes.io/os": "dummyOS", "kubernetes.io/arch": "dummyArch", "a": "b", "beta.kubernetes.io/os": "x"}));
        until("what was overwritten is put back", is_true).await;
        assert_eq!((label("a"), label("beta.kubernetes.io/os")), (json!("b"), json!("x")));
        overwrite(Value::Null);
        until("what was taken away is put back", is_true).await;
    });
}

/// As the cluster does with a node that it has not heard of for too long.
#[test]
fn a_node_that_nobody_heard_of_says_at_its_next_turn_how_it_is() {
    let world = World::new();
    let ready = || {
        let node = world.api.get(NODE).unwrap_or_default();
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default()
    };
    world.life(None, async || {
        until("the node is ready", || ready()["status"] == "True").await;
        let mut node = world.api.get(NODE).unwrap();
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = json!("Unknown");
            condition["reason"] = json!("NodeStatusUnknown");
            condition["lastTransitionTime"] = json!("2026-01-02T03:04:05Z");
        }
        world.api.put(NODE, node);
        let begun = clock::Instant::now();
        until("it is ready again", || ready()["status"] == "True").await;
        assert!(begun.elapsed() < clock::Duration::from_secs(30), "a whole status is written each five minutes");
        assert_eq!(ready()["reason"], "KubeletReady");
        assert_ne!(ready()["lastTransitionTime"], "2026-01-02T03:04:05Z", "it has changed");
    });
}

#[test]
fn conditions_that_others_write_stay_as_they_are() {
    let world = World::new();
    let conditions = || {
        let node = world.api.get(NODE).unwrap_or_default();
        node["status"]["conditions"].as_array().cloned().unwrap_or_default()
    };
    let named = |kind: &str| conditions().into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    // As node-problem-detector writes them; and one of the kubelet's own that somebody has set.
    let theirs = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "TaskHung", "message": "task docker:7 is blocked",
            "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z"})
    };
    let write = |fresh: Vec<Value>| {
        let mut node = world.api.get(NODE).unwrap();
        let all = node["status"]["conditions"].as_array_mut().unwrap();
        all.retain(|held| fresh.iter().all(|one| one["type"] != held["type"]));
        all.extend(fresh);
        world.api.put(NODE, node);
    };
    let ours = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
    let is_ready = |status: &str| named("Ready")["status"] == status;
    let stays = || {
        assert_eq!(named("KernelDeadlock"), theirs("KernelDeadlock", "True"));
        assert_eq!(named("ReadonlyFilesystem"), theirs("ReadonlyFilesystem", "False"));
        let mut kinds: Vec<_> =
            conditions().iter().map(|c| c["type"].as_str().unwrap_or_default().to_owned()).collect();
        kinds.sort();
        let mut expected = [&ours[..], &["KernelDeadlock", "ReadonlyFilesystem"]].concat();
        expected.sort_unstable();
        assert_eq!(kinds, expected, "each of them once");
    };
    world.life(None, async || {
        until("the node is ready", || is_ready("True")).await;
        write(vec![theirs("KernelDeadlock", "True"), theirs("ReadonlyFilesystem", "False")]);
        let heartbeat = named("Ready")["lastHeartbeatTime"].clone();
        until("its heartbeat is told", || named("Ready")["lastHeartbeatTime"] != heartbeat).await;
        stays();
        world.engine.lose_network(Some("no plugin"));
        until("it is not ready", || is_ready("False")).await;
        stays();
        world.engine.lose_network(None);
        until("it is ready again", || is_ready("True")).await;
        stays();
    });
    // Nor does one that begins anew and finds its node.
    world.life(None, async || {
        let heartbeat = named("Ready")["lastHeartbeatTime"].clone();
        until("its heartbeat is told", || named("Ready")["lastHeartbeatTime"] != heartbeat).await;
        stays();
    });
}
