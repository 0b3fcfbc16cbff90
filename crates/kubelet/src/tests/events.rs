//! The events of Pods that cannot get on, and of nodes.
//! Upstream counterpart: pkg/kubelet/events/event.go.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::FutureExt;
use json::{Value, json};
use runtime::{Error, fake::Moment};

use crate::tests::world::{World, until};

fn spec(name: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": name, "image": "x:1"}]})
}

#[test]
fn a_pod_waits_for_the_network_and_one_on_the_nodes_own_does_not() {
    let world = World::new();
    world.engine.lose_network(Some("cni plugin not initialized"));
    world.make_pod("p", spec("m"));
    world.make_pod("gone", spec("g"));
    let mut on_node = spec("h");
    on_node["hostNetwork"] = true.into();
    world.make_pod("on-node", on_node);
    let why = "NetworkNotReady network is not ready: container runtime network not ready: NetworkReady=false \
        reason:NetworkPluginNotReady message:cni plugin not initialized";
    world.life(None, async || {
        until("one runs", || world.is_ready("on-node")).await;
        let waits = |name: &str| world.api.events(name).iter().any(|event| event == why);
        until("the others say why they wait", || waits("p") && waits("gone")).await;
        assert!(!waits("on-node") && world.phase("p") == "Pending");
        world.delete_pod("gone");
        until("one that waits may go", || world.pod("gone").is_none()).await;
        assert_eq!(world.asked("run_sandbox p"), 0);
        world.engine.lose_network(None);
        until("the Pod is ready", || world.is_ready("p")).await;
        assert_eq!((world.asked("run_sandbox p"), world.asked("run_sandbox gone")), (1, 0));
    });
}

#[test]
fn what_the_engine_does_not_end_is_told() {
    let world = World::new();
    world.make_pod("p", spec("m"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.engine.fail("stop m 5", "no");
        world.delete_pod("p");
        let told = |why: &str| world.api.has_said(&format!("FailedKillPod: error killing pod: failed to {why}"));
        until("it is told", || told(r#""KillContainer" for "m" with KillContainerError: "no""#)).await;
        world.engine.fail("stop_sandbox", "nor that");
        world.engine.succeed("stop m 5");
        until("it is told, too", || told(r#""KillPodSandbox" for "p-1" with KillPodSandboxError: "nor that""#)).await;
        world.engine.succeed("stop_sandbox");
        until("the Pod is gone", || world.pod("p").is_none()).await;
    });
}

#[test]
fn a_node_tells_of_images_that_it_cannot_collect_when_that_goes_on() {
    let world = World::new();
    world.engine_does(|call, moment| {
        let fails = moment == Moment::Before && call == "images";
        let failure = Error::Incomplete { call: "ListImages", field: "images" };
        async move { if fails { Err(failure) } else { Ok(()) } }.boxed()
    });
    world.life(None, async || {
        until("it is told", || world.api.has_said("ImageGCFailed")).await;
        let told = "ImageGCFailed the container engine's answer to ListImages lacks images";
        assert!(world.api.events("n1").iter().any(|event| event == told), "{:?}", world.api.events("n1"));
    });
}

#[test]
fn of_two_manifests_of_one_name_the_first_counts_and_the_other_is_told_of() {
    let world = World::new();
    for (file, container) in [("a.json", "first"), ("b.json", "second")] {
        let metadata = json!({"name": "p", "namespace": "d"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(container)});
        std::fs::write(world.manifests().join(file), pod.to_string()).unwrap();
    }
    world.life(None, async || {
        until("the first runs", || world.engine.running() == ["first"]).await;
        until("the other is told of", || {
            let told = world.api.events("p-n1");
            told.iter().any(|event| {
                event.starts_with("FailedValidation Error validating pod p-n1_d(")
                    && event.ends_with(") from file due to duplicate pod name \"p-n1\", ignoring")
            })
        })
        .await;
        std::fs::remove_file(world.manifests().join("a.json")).unwrap();
        until("the other takes its place", || world.engine.running() == ["second"]).await;
    });
}

/// The engine does not answer a call while the switch is on.
fn refuse(world: &World, call: &'static str) -> Arc<AtomicBool> {
    let switch = Arc::new(AtomicBool::new(true));
    let is_on = switch.clone();
    world.engine_does(move |asked, moment| {
        let fails = moment == Moment::Before && asked == call && is_on.load(Ordering::Relaxed);
        let failure = Error::Incomplete { call: "a question", field: "an answer" };
        async move { if fails { Err(failure) } else { Ok(()) } }.boxed()
    });
    switch
}

const WORDS: &str = "error determining status: the container engine's answer to a question lacks an answer";

#[test]
fn a_pod_of_which_the_engine_cannot_tell_says_so_once() {
    let world = World::new();
    world.make_pod("p", spec("m"));
    let told =
        |words: &str| world.api.events("p").into_iter().filter(|event| event.starts_with(words)).collect::<Vec<_>>();
    world.life(None, async || {
        let switch = refuse(&world, "sandbox_status");
        until("a new sandbox is told of", || !told("FailedPodSandBoxStatus").is_empty()).await;
        assert_eq!(told("Failed"), ["FailedPodSandBoxStatus Unable to get pod sandbox status: the container engine's answer to a question lacks an answer"]);
        switch.store(false, Ordering::Relaxed);
        until("the Pod is ready", || world.is_ready("p")).await;
        let switch = refuse(&world, "container_status");
        world.delete_pod("p");
        until("a container is told of", || !told("FailedSync").is_empty()).await;
        let begun = clock::now();
        until("it was asked for again and again", || clock::now().duration_since(begun).as_secs() > 20).await;
        assert_eq!(told("FailedSync"), [format!("FailedSync {WORDS}")]);
        assert_eq!(world.api.repeated(WORDS), 0, "other events about the Pod are not crowded out");
        switch.store(false, Ordering::Relaxed);
        until("the Pod is gone", || world.pod("p").is_none()).await;
    });
}

#[test]
fn an_engine_that_tells_of_nothing_is_no_event_of_each_pod() {
    let world = World::new();
    world.make_pod("p", spec("m"));
    world.life(None, async || {
        let switch = refuse(&world, "sandboxes");
        let begun = clock::now();
        until("it was asked for again and again", || clock::now().duration_since(begun).as_secs() > 20).await;
        switch.store(false, Ordering::Relaxed);
        until("the Pod is ready", || world.is_ready("p")).await;
        assert!(
            !world.api.events("p").iter().any(|event| event.contains("lacks an answer")),
            "{:?}",
            world.api.events("p")
        );
    });
}
