//! An API server that is away, in either way: Pods that run go on as they would beside it, and it is told when it is back.

use json::{Value, json};

use crate::tests::{
    api::Mood,
    world::{World, until},
};

/// A container with a variable out of each kind of object.
fn spec() -> Value {
    let from = |kind: &str| json!({kind: {"name": "o", "key": "k"}});
    let env = json!([
        {"name": "M", "valueFrom": from("configMapKeyRef")},
        {"name": "S", "valueFrom": from("secretKeyRef")},
    ]);
    json!({"restartPolicy": "Always", "containers": [{"name": "m", "image": "x:1", "env": env}]})
}

fn restarts(world: &World) -> Value {
    world.pod("p").unwrap_or_default()["status"]["containerStatuses"][0]["restartCount"].clone()
}

fn world() -> World {
    let world = World::new();
    let metadata = json!({"name": "o", "namespace": "d"});
    world.api.put("/api/v1/namespaces/d/configmaps/o", json!({"metadata": metadata, "data": {"k": "v"}}));
    world.api.put("/api/v1/namespaces/d/secrets/o", json!({"metadata": metadata, "data": {"k": "dg=="}}));
    world
}

#[test]
fn a_container_is_started_again_while_the_server_hangs() {
    let world = World::new();
    world.make_pod("p", json!({"restartPolicy": "Always", "containers": [{"name": "m", "image": "x:1"}]}));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.api.mood.send_replace(Mood::Hangs);
        world.engine.exit("m", 1);
        until("it runs again", || world.asked("start m") == 2 && world.engine.running() == ["m"]).await;
        assert_eq!(restarts(&world), 0, "nobody could be told");
        world.api.mood.send_replace(Mood::Answers);
        until("the server is told", || restarts(&world) == 1 && world.is_ready("p")).await;
    });
}

#[test]
fn variables_are_as_they_were_while_the_server_is_away() {
    let world = world();
    world.make_pod("p", spec());
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.api.mood.send_replace(Mood::Refuses);
        world.engine.exit("m", 1);
        until("it runs again", || world.asked("start m") == 2 && world.engine.running() == ["m"]).await;
        let values = world.engine.container("m").map(|config| config.envs).unwrap_or_default();
        let values: Vec<_> = values.iter().filter(|v| v.key == "M" || v.key == "S").map(|v| v.value.as_str()).collect();
        assert_eq!(values, ["v", "v"]);
        world.api.mood.send_replace(Mood::Answers);
        until("the server is told", || restarts(&world) == 1 && world.is_ready("p")).await;
    });
}

#[test]
fn what_the_server_says_is_gone_is_not_taken_from_memory() {
    let world = world();
    world.make_pod("p", spec());
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.api.remove("/api/v1/namespaces/d/secrets/o");
        world.engine.exit("m", 1);
        let waiting = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
        let waits = || world.pod("p").is_some_and(|pod| waiting(&pod) == "CreateContainerConfigError");
        until("it waits for its Secret", waits).await;
        assert_eq!(world.asked("start m"), 1);
    });
}

#[test]
fn a_pod_that_was_told_to_end_goes_when_the_server_is_back() {
    let world = World::new();
    world.make_pod("p", json!({"containers": [{"name": "m", "image": "x:1"}]}));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        // The watch goes on.
        world.api.mood.send_replace(Mood::Refuses);
        world.delete_pod("p");
        until("the engine has nothing left", || world.engine.is_empty()).await;
        assert!(world.pod("p").is_some());
        world.api.mood.send_replace(Mood::Answers);
        until("the Pod is gone", || world.pod("p").is_none() && world.left().is_empty()).await;
    });
}
