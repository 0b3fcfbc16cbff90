//! A kubelet that is killed on its way to any call, or on its way back, and starts again brings its Pod to its end.

use json::{Value, json};

use crate::tests::world::{World, until};

/// An init container, a main container, and a volume of each way to make one.
fn spec() -> Value {
    json!({
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "initContainers": [{"name": "i", "image": "x:1"}],
        "containers": [{
            "name": "m",
            "image": "y:1",
            "volumeMounts": [
                {"name": "e", "mountPath": "/e", "subPath": "part"},
                {"name": "c", "mountPath": "/c"},
                {"name": "s", "mountPath": "/s"},
            ],
        }],
        "volumes": [
            {"name": "e", "emptyDir": {"medium": "Memory"}},
            {"name": "c", "configMap": {"name": "settings"}},
            {"name": "s", "secret": {"secretName": "words"}},
        ],
    })
}

fn world() -> World {
    let world = World::new();
    world
        .api
        .put("/api/v1/namespaces/d/configmaps/settings", json!({"metadata": {"name": "settings", "namespace": "d"}}));
    world.api.put("/api/v1/namespaces/d/secrets/words", json!({"metadata": {"name": "words", "namespace": "d"}}));
    world.make_pod("p", spec());
    world
}

/// The Pod from its beginning to its end: the init container does its work, the main one becomes ready, the Pod is deleted.
async fn story(world: &World) {
    if world.pod("p").is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
        until("the init container runs, or has run", || {
            let running = world.engine.running();
            running.contains(&"i".to_owned()) || running.contains(&"m".to_owned())
        })
        .await;
        world.engine.exit("i", 0);
        until("the Pod is ready", || world.is_ready("p")).await;
        let status = world.pod("p").unwrap_or_default()["status"].clone();
        for container in [&status["initContainerStatuses"][0], &status["containerStatuses"][0]] {
            assert_eq!(container["restartCount"], 0, "{container}");
        }
        world.delete_pod("p");
    }
    until("the Pod is gone", || world.pod("p").is_none()).await;
    until("nothing is left", || world.left().is_empty()).await;
}

fn check(world: &World, pass: u64) {
    for container in ["i", "m"] {
        let starts = world.asked(&format!("start {container}"));
        assert_eq!(starts, 1, "{container}, killed at {pass}: {:?}", world.engine.calls());
    }
    assert_eq!(world.left(), Vec::<String>::new(), "killed at {pass}");
}

#[test]
fn a_pod_comes_to_its_end_wherever_its_kubelet_is_killed() {
    for pass in 1.. {
        let world = world();
        let was_killed = !world.life(Some(pass), async || story(&world).await);
        if was_killed {
            assert!(world.life(None, async || story(&world).await));
        }
        check(&world, pass);
        if !was_killed {
            assert!(pass > 30, "only {pass} calls went out");
            return;
        }
    }
}

#[test]
fn a_pod_comes_to_its_end_although_its_kubelet_is_killed_again_and_again() {
    // Each life is a little longer than the one before.
    let world = world();
    let mut lives = 1_u64;
    while !world.life(Some(lives * 2), async || story(&world).await) {
        lives += 1;
    }
    assert!(lives > 5, "only {lives} lives");
    check(&world, lives);
}

#[test]
fn what_a_start_that_was_given_up_left_running_ends_before_the_next_one_begins() {
    let world = World::new();
    world.make_pod("p", json!({"restartPolicy": "Always", "containers": [{"name": "m", "image": "y:1"}]}));
    world.life(None, async || {
        until("it runs", || world.engine.running() == ["m"]).await;
        world.engine.give_up("m");
        until("it runs again", || world.asked("start m") == 2).await;
    });
    let calls = world.engine.calls();
    let at = |call: &str| calls.iter().rposition(|made| made == call);
    assert_eq!(world.asked("end m"), 1, "{calls:?}");
    assert!(at("end m") < at("create m"), "{calls:?}");
}
