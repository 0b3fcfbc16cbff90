//! Containers whose hooks fail, and what others are told of that.
//! Upstream counterpart: test/e2e/common/node/lifecycle_hook.go.

use json::{Value, json};
use runtime::cri_api::ExecSyncResponse;

use crate::tests::world::{World, until};

fn with_hook(name: &str, hook: Value) -> Value {
    let container = json!({"name": "m", "image": "x:1", "lifecycle": {name: hook}});
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 20, "containers": [container]})
}

/// The events of a Pod that begin with this reason.
fn told(world: &World, reason: &str) -> Vec<String> {
    world.api.events("p").into_iter().filter(|event| event.contains(reason)).collect()
}

#[test]
fn a_hook_that_fails_ends_its_container_and_its_answer_is_told_to_nobody() {
    for hook in [json!({"exec": {"command": ["sh"]}}), json!({"tcpSocket": {"port": 1}})] {
        let world = World::new();
        world.engine.answer_exec(ExecSyncResponse { exit_code: 1, stdout: b"s3cret".to_vec(), ..Default::default() });
        world.make_pod("p", with_hook("postStart", hook));
        world.life(None, async || {
            until("the Pod is over", || world.phase("p") == "Failed").await;
            let failed = told(&world, "FailedPostStartHook");
            assert!(failed.iter().any(|event| event.ends_with("PostStartHook failed")), "{failed:?}");
            assert_eq!(world.asked("stop m 20"), 1);
            assert!(!world.api.has_said("s3cret"));
        });
    }
}

#[test]
fn a_container_whose_first_hook_fails_waits_and_says_why() {
    let world = World::new();
    let answer = ExecSyncResponse { exit_code: 3, stdout: b"out ".to_vec(), stderr: b"err".to_vec() };
    world.engine.answer_exec(answer);
    let mut spec = with_hook("postStart", json!({"exec": {"command": ["sh", "-c"]}}));
    spec["restartPolicy"] = "Always".into();
    world.make_pod("p", spec);
    let expected = "Exec lifecycle hook ([sh -c]) for Container \"m\" in Pod \"p_d(p-1)\" failed - error: \
        command 'sh -c' exited with 3: err, message: \"out err\"";
    let waiting = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let says_why = |pod: &Value| waiting(pod) == json!({"reason": "PostStartHookError", "message": expected});
    world.life(None, async || {
        until("it is started again", || world.asked("start m") > 1).await;
        assert!(world.api.was_ever("p", says_why));
        until("it waits", || world.pod("p").is_some_and(|pod| waiting(&pod)["reason"] == "CrashLoopBackOff")).await;
    });
}

#[test]
fn a_container_ends_although_its_last_hook_fails_or_takes_too_long() {
    let fails = json!({"exec": {"command": ["sh"]}});
    for (hook, failures, stop) in [(fails, 1, "stop m 5"), (json!({"sleep": {"seconds": 60}}), 0, "stop m 2")] {
        let world = World::new();
        world.engine.answer_exec(ExecSyncResponse { exit_code: 1, stdout: b"s3cret".to_vec(), ..Default::default() });
        world.make_pod("p", with_hook("preStop", hook));
        world.life(None, async || {
            until("the Pod is ready", || world.is_ready("p")).await;
            world.delete_pod("p");
            until("the Pod is gone", || world.pod("p").is_none()).await;
            let failed = told(&world, "FailedPreStopHook");
            assert_eq!(failed.len(), failures, "{failed:?}");
            assert!(failed.iter().all(|event| event.ends_with("PreStopHook failed")), "{failed:?}");
            assert_eq!(world.asked(stop), 1, "{:?}", world.engine.calls());
            assert!(!world.api.has_said("s3cret"));
        });
    }
}

#[test]
fn a_pause_ends_with_the_grace_that_somebody_shortens_and_is_none_for_what_has_ended() {
    let world = World::new();
    world.make_pod("p", with_hook("preStop", json!({"sleep": {"seconds": 15}})));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        let begun = clock::Instant::now();
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        // The deletion leaves five seconds, and two for the signal.
        assert!((5..10).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    });
    let world = World::new();
    world.make_pod("p", with_hook("preStop", json!({"sleep": {"seconds": 15}})));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.engine.exit("m", 0);
        until("the Pod is over", || world.phase("p") == "Succeeded").await;
        let begun = clock::Instant::now();
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
        assert!(told(&world, "Killing").is_empty());
    });
}

#[test]
fn a_pod_goes_although_a_first_hook_of_its_never_ends() {
    let world = World::new();
    world.make_pod("p", with_hook("postStart", json!({"sleep": {"seconds": 10_000}})));
    world.life(None, async || {
        until("the container runs", || world.engine.running() == ["m"]).await;
        let begun = clock::Instant::now();
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
        assert_eq!(world.asked("stop m 5"), 1, "{:?}", world.engine.calls());
        until("nothing is left", || world.left().is_empty()).await;
    });
}
