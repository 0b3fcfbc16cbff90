//! Pods whose users are none of the node's: no two of them share any, whatever becomes of kubelets.

use std::collections::BTreeSet;

use json::{Value, json};
use k8s_cri::v1::{NamespaceMode, RuntimeHandlerFeatures};

use crate::{
    tests::world::{World, until},
    users::range::Part,
};

fn spec(container: &str) -> Value {
    json!({"hostUsers": false, "terminationGracePeriodSeconds": 5,
        "containers": [{"name": container, "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": {}}]})
}

/// A node whose engine can do it.
fn world() -> World {
    let world = World::new();
    world.engine.offers("", RuntimeHandlerFeatures { user_namespaces: true, recursive_read_only_mounts: false });
    world
}

/// The first of the ids of each Pod that has some, in the engine. Fails when two Pods have the same.
fn firsts(world: &World) -> Vec<(String, u32)> {
    let own = world.engine.users().into_iter().filter(|(_, users)| users.mode() == NamespaceMode::Pod);
    let all: Vec<(String, u32)> = own
        .map(|(name, users)| {
            let [ids] = &users.uids[..] else { panic!("{users:?}") };
            assert_eq!((&users.gids, ids.container_id, ids.length), (&users.uids, 0, 65536));
            (name, ids.host_id)
        })
        .collect();
    let different: BTreeSet<u32> = all.iter().map(|(_, first)| *first).collect();
    assert_eq!(different.len(), all.len(), "{all:?}");
    all
}

#[test]
fn pods_keep_their_users_over_restarts_and_give_them_back() {
    let world = world();
    world.make_pod("a", spec("a"));
    world.make_pod("b", spec("b"));
    let pair = |name: &str, place: u32| (name.to_owned(), place * 65536);
    world.life(None, async || {
        until("both are ready", || world.is_ready("a") && world.is_ready("b")).await;
        assert_eq!(firsts(&world).iter().map(|(_, first)| *first).collect::<BTreeSet<_>>(), [65536, 131_072].into());
        let node = world.api.get("/api/v1/nodes/n1").unwrap();
        let features = json!({"recursiveReadOnlyMounts": false, "userNamespaces": true});
        assert_eq!(node["status"]["runtimeHandlers"], json!([{"name": "", "features": features}]));
        let mut plain = spec("p");
        plain.as_object_mut().unwrap().remove("hostUsers");
        world.make_pod("plain", plain);
        until("one with the node's users is ready", || world.is_ready("plain")).await;
        assert_eq!(world.engine.users()["plain"].mode(), NamespaceMode::Node);
    });
    let before = firsts(&world);
    world.life(None, async || {
        // A sandbox that is made anew, and a Pod that comes after the restart.
        world.engine.exit("a", 1);
        world.make_pod("c", spec("c"));
        until("a third is ready", || world.is_ready("c")).await;
        assert_eq!(firsts(&world), [before.clone(), vec![pair("c", 3)]].concat());
        world.delete_pod("b");
        until("one is gone", || world.pod("b").is_none()).await;
        world.make_pod("d", spec("d"));
        until("another has come", || world.is_ready("d")).await;
        let of = |name: &str| firsts(&world).into_iter().find(|(n, _)| n == name).map(|(_, first)| first);
        assert_eq!(of("d"), before.iter().find(|(name, _)| name == "b").map(|(_, first)| *first));
        assert_eq!(of("a"), before.iter().find(|(name, _)| name == "a").map(|(_, first)| *first));
    });
}

#[test]
fn nodes_of_one_machine_give_their_pods_different_ids() {
    let first_of = |number: u32| {
        let world = world();
        *world.users_part.lock() = Some(Part { number, of: 50 });
        world.make_pod("a", spec("a"));
        world.life(None, async || until("it is ready", || world.is_ready("a")).await);
        firsts(&world)[0].1
    };
    assert_eq!([1, 2, 50].map(first_of), [65536, 1311 * 65536, (49 * 1310 + 1) * 65536]);
}

#[test]
fn no_ids_are_given_twice_or_lost_wherever_a_kubelet_is_killed() {
    let story = async |world: &World| {
        if world.pod("a").is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
            until("the first is ready", || world.is_ready("a")).await;
            world.delete_pod("a");
        }
        until("the first is gone", || world.pod("a").is_none()).await;
        if world.pod("b").is_none() {
            world.make_pod("b", spec("b"));
        }
        until("the second is ready", || world.is_ready("b")).await;
        assert_eq!(firsts(world), [("b".to_owned(), 65536)], "what the first had is given again");
    };
    for pass in 1.. {
        let world = world();
        world.make_pod("a", spec("a"));
        let was_killed = !world.life(Some(pass), async || story(&world).await);
        if was_killed {
            assert!(world.life(None, async || story(&world).await));
        } else {
            assert!(pass > 10, "only {pass} calls went out");
            break;
        }
    }
}

#[test]
fn an_engine_that_cannot_do_it_runs_no_such_pod() {
    let world = World::new();
    world.engine.offers("", RuntimeHandlerFeatures::default());
    world.make_pod("a", spec("a"));
    world.life(None, async || {
        let why = "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does \
                   not support user namespaces";
        until("it is told", || world.api.has_said(why)).await;
        assert!(world.engine.users().is_empty() && !world.pod_dir("a").join("userns").exists());
    });
}
