//! A kubelet that is killed again and again while Pods come and go. `SKIFF_KILLS` says how often.

use std::collections::BTreeSet;

use json::{Value, json};

use crate::tests::world::{World, until};

const USUAL: u64 = 200;
const STEADY: [&str; 3] = ["s0", "s1", "s2"];

/// A Pod whose container has its name, so that the engine's calls tell whose they are.
fn spec(name: &str) -> Value {
    json!({
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": name, "image": "x:1", "volumeMounts": [{"name": "e", "mountPath": "/e"}]}],
        "volumes": [{"name": "e", "emptyDir": {"medium": "Memory"}}],
    })
}

fn is_leaving(world: &World, name: &str) -> bool {
    world.pod(name).is_some_and(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
}

/// One Pod comes, the one from two turns ago goes, and both are waited for.
async fn turn(world: &World, number: u64) {
    let (comes, goes) = (format!("c{number}"), format!("c{}", number.wrapping_sub(2)));
    world.make_pod(&comes, spec(&comes));
    if world.pod(&goes).is_some() && !is_leaving(world, &goes) {
        world.delete_pod(&goes);
    }
    until("the Pod that came is ready", || world.is_ready(&comes)).await;
    until("the Pod that had to go is gone", || world.pod(&goes).is_none()).await;
}

#[test]
fn pods_that_stay_run_on_and_nothing_leaks_however_often_the_kubelet_is_killed() {
    let wanted = std::env::var("SKIFF_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL);
    let world = World::new();
    STEADY.iter().for_each(|name| world.make_pod(name, spec(name)));
    assert!(world.life(None, async || {
        until("all are ready", || STEADY.iter().all(|name| world.is_ready(name))).await;
    }));
    let (mut kills, mut number) = (0_u64, 0);
    while kills < wanted {
        // Each life ends elsewhere; a long one sees its turn to the end.
        let ends_at = 1 + number * 7 % 61;
        kills += u64::from(!world.life(Some(ends_at), async || turn(&world, number).await));
        let running = world.engine.running();
        assert!(STEADY.iter().all(|name| running.contains(&(*name).to_owned())), "after {kills} kills: {running:?}");
        number += 1;
    }
    assert!(world.life(None, async || {
        for last in 0..number {
            let name = format!("c{last}");
            if world.pod(&name).is_some() && !is_leaving(&world, &name) {
                world.delete_pod(&name);
            }
        }
        until("those that came are gone", || (0..number).all(|last| world.pod(&format!("c{last}")).is_none())).await;
        until("those that stay are ready", || STEADY.iter().all(|name| world.is_ready(name))).await;
        for name in STEADY {
            assert_eq!(world.pod(name).unwrap()["status"]["containerStatuses"][0]["restartCount"], 0, "{name}");
            world.delete_pod(name);
        }
        until("nothing is left", || world.left().is_empty()).await;
    }));
    // Nothing was started twice, neither those that stay nor those that came and went.
    let calls = world.engine.calls();
    let starts: Vec<&String> = calls.iter().filter(|call| call.starts_with("start ")).collect();
    assert_eq!(starts.len(), starts.iter().collect::<BTreeSet<_>>().len(), "{starts:?}");
    assert!(STEADY.iter().all(|name| world.asked(&format!("start {name}")) == 1));
}
