//! Pods whose resources change while they run, also over kubelets that end in the middle.

use api::features::Feature;
use json::{Value, json};
use runtime::fake::Moment;

use crate::{
    node::machine::Machine,
    tests::world::{World, until},
};

fn amounts(cpu: &str, memory: &str) -> Value {
    let both = json!({"cpu": cpu, "memory": memory});
    json!({"requests": both, "limits": both})
}

fn spec(cpu: &str, memory: &str) -> Value {
    let main = json!({"name": "m", "image": "x:1", "resources": amounts(cpu, memory)});
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [main]})
}

fn ask(world: &World, name: &str, cpu: &str, memory: &str) {
    world.change_pod(name, |spec| spec["containers"][0]["resources"] = amounts(cpu, memory));
}

fn shown(world: &World, name: &str) -> Value {
    world.pod(name).map(|pod| pod["status"]["containerStatuses"][0].clone()).unwrap_or_default()
}

/// Whether the Pod's container is shown to have these amounts, all of them allocated, and nothing is under way.
fn has(world: &World, name: &str, cpu: &str, memory: &str) -> bool {
    let shown = shown(world, name);
    shown["resources"] == amounts(cpu, memory)
        && shown["allocatedResources"] == json!({"cpu": cpu, "memory": memory})
        && ["PodResizePending", "PodResizeInProgress"].iter().all(|kind| world.said(name, kind).is_null())
}

/// More than half of the node's processors, in thousandths: two Pods do not have that.
fn more_than_half() -> i64 {
    Machine::read().cpus * 500 + 100
}

#[test]
fn a_running_container_grows_and_shrinks_in_place() {
    let world = World::new();
    world.make_pod("p", spec("100m", "64Mi"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        assert!(has(&world, "p", "100m", "64Mi"));
        ask(&world, "p", "200m", "128Mi");
        until("it has grown", || has(&world, "p", "200m", "128Mi")).await;
        let told = world.engine.resources("m").unwrap();
        assert_eq!((told.cpu_quota, told.cpu_shares, told.memory_limit_in_bytes), (20_000, 204, 128 << 20));
        ask(&world, "p", "50m", "32Mi");
        until("it has shrunk", || has(&world, "p", "50m", "32Mi")).await;
        assert_eq!((world.asked("start m"), world.asked("update m")), (1, 2));
        assert_eq!(world.pod("p").unwrap()["status"]["observedGeneration"], 3);
    });
}

#[test]
fn a_container_restarts_at_once_where_its_policy_asks_for_it() {
    let world = World::new();
    let mut wanted = spec("100m", "64Mi");
    wanted["restartPolicy"] = "OnFailure".into();
    wanted["containers"][0]["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    world.make_pod("p", wanted);
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        ask(&world, "p", "200m", "64Mi");
        until("processors need no restart", || has(&world, "p", "200m", "64Mi")).await;
        assert_eq!((world.asked("start m"), world.asked("update m")), (1, 1));
        // Neither the pause after a restart nor the policy for an end counts.
        for (memory, starts) in [("96Mi", 2), ("128Mi", 3)] {
            let begun = clock::Instant::now();
            ask(&world, "p", "200m", memory);
            until("memory does", || has(&world, "p", "200m", memory) && world.is_ready("p")).await;
            assert_eq!((world.asked("start m"), world.asked("stop m 5")), (starts, starts - 1));
            assert!(begun.elapsed().as_secs() < 5, "it waited");
        }
        assert_eq!(shown(&world, "p")["restartCount"], 2);
        assert_eq!(world.engine.resources("m").unwrap().memory_limit_in_bytes, 128 << 20);
        assert_eq!(world.phase("p"), "Running");
    });
}

#[test]
fn a_sidecar_is_resized_and_an_init_container_is_not() {
    let world = World::new();
    let mut wanted = spec("100m", "64Mi");
    wanted["initContainers"] =
        json!([{"name": "s", "image": "x:1", "restartPolicy": "Always", "resources": amounts("10m", "8Mi")}]);
    world.make_pod("p", wanted);
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.change_pod("p", |spec| spec["initContainers"][0]["resources"] = amounts("20m", "16Mi"));
        until("the sidecar has it", || {
            world.pod("p").unwrap()["status"]["initContainerStatuses"][0]["resources"] == amounts("20m", "16Mi")
        })
        .await;
        assert_eq!((world.asked("update s"), world.asked("update m"), world.asked("start s")), (1, 0, 1));
    });
}

#[test]
fn what_the_node_never_has_is_infeasible_and_can_be_taken_back() {
    let world = World::new();
    world.make_pod("p", spec("100m", "64Mi"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        ask(&world, "p", "1000", "64Mi");
        let pending = || world.said("p", "PodResizePending");
        until("it is refused", || pending()["reason"] == "Infeasible").await;
        let capacity = Machine::read().cpus * 1000;
        let text = format!("Node didn't have enough capacity: cpu, requested: 1000000, capacity: {capacity}");
        assert_eq!((&pending()["message"], &pending()["observedGeneration"]), (&text.into(), &2.into()));
        assert_eq!(shown(&world, "p")["resources"], amounts("100m", "64Mi"));
        assert_eq!(world.asked("update m"), 0);
        ask(&world, "p", "100m", "64Mi");
        until("it is taken back", || has(&world, "p", "100m", "64Mi")).await;
    });
}

#[test]
fn a_resize_waits_for_room_and_the_pod_of_the_higher_priority_grows_first() {
    let world = World::new();
    let most = format!("{}m", more_than_half());
    world.make_pod("great", spec(&most, "64Mi"));
    world.make_pod("low", spec("10m", "64Mi"));
    let mut high = spec("10m", "64Mi");
    high["priority"] = 7.into();
    world.make_pod("high", high);
    world.life(None, async || {
        until("all are ready", || ["great", "low", "high"].iter().all(|name| world.is_ready(name))).await;
        let reason = |name: &str| world.said(name, "PodResizePending")["reason"].clone();
        for name in ["low", "high"] {
            ask(&world, name, &most, "64Mi");
            until("it waits", || reason(name) == "Deferred").await;
        }
        world.delete_pod("great");
        until("there is room for one", || has(&world, "high", &most, "64Mi")).await;
        assert_eq!(reason("low"), "Deferred");
        // A smaller one makes room, too.
        ask(&world, "high", "10m", "64Mi");
        until("there is room for the other", || has(&world, "low", &most, "64Mi")).await;
    });
}

#[test]
fn a_pod_keeps_what_it_has_over_a_kubelet_that_starts_again() {
    let world = World::new();
    let most = format!("{}m", more_than_half());
    world.make_pod("great", spec(&most, "64Mi"));
    world.make_pod("p", spec("10m", "64Mi"));
    world.life(None, async || {
        until("both are ready", || world.is_ready("great") && world.is_ready("p")).await;
        ask(&world, "p", &most, "64Mi");
        until("it waits", || world.said("p", "PodResizePending")["reason"] == "Deferred").await;
    });
    world.life(None, async || {
        let other = world.pod("p").unwrap();
        until("the node is back", || world.asked("update m") == 0 && world.is_ready("p")).await;
        world.change_pod("great", |spec| spec["containers"][0]["resources"] = amounts("20m", "64Mi"));
        until("what waited has grown", || has(&world, "p", &most, "64Mi")).await;
        assert_eq!(other["status"]["containerStatuses"][0]["resources"], amounts("10m", "64Mi"));
        assert_eq!(world.asked("update m"), 2);
    });
    // A resize that was asked for while no kubelet was there is found.
    ask(&world, "p", "30m", "32Mi");
    world.life(None, async || {
        until("the next kubelet resizes it", || has(&world, "p", "30m", "32Mi")).await;
        assert_eq!((world.asked("update m"), world.asked("start m")), (3, 2));
        world.delete_pod("p");
        world.delete_pod("great");
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn memory_that_is_in_use_is_not_taken_away() {
    let world = World::new();
    world.make_pod("p", spec("100m", "64Mi"));
    world.engine.uses("m", 48 << 20);
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        ask(&world, "p", "100m", "32Mi");
        let progress = || world.said("p", "PodResizeInProgress");
        until("it says why not", || progress()["reason"] == "Error").await;
        let text = "cannot decrease memory limits: attempting to set container \"m\" memory limit (33554432) below \
                    current usage (50331648)";
        assert_eq!((&progress()["message"], &progress()["observedGeneration"]), (&text.into(), &2.into()));
        let shown = shown(&world, "p");
        assert_eq!(shown["allocatedResources"]["memory"], "32Mi");
        assert_eq!(shown["resources"], amounts("100m", "64Mi"), "what it really has");
        world.engine.uses("m", 8 << 20);
        until("it has given up the rest", || has(&world, "p", "100m", "32Mi")).await;
    });
}

#[test]
fn an_engine_that_refuses_is_asked_again() {
    let world = World::new();
    world.make_pod("p", spec("100m", "64Mi"));
    world.engine.fail("update m", "the cgroup is frozen");
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        ask(&world, "p", "200m", "64Mi");
        let progress = || world.said("p", "PodResizeInProgress");
        until("it says why not", || progress()["message"] == "the cgroup is frozen").await;
        assert_eq!(shown(&world, "p")["resources"]["limits"]["cpu"], "100m");
        world.engine.succeed("update m");
        until("it has grown", || has(&world, "p", "200m", "64Mi")).await;
    });
}

#[test]
fn a_kubelet_that_dies_anywhere_in_a_resize_leaves_it_to_the_next() {
    let mut passes = 0;
    for policy in ["NotRequired", "RestartContainer"] {
        loop {
            passes += 1;
            let world = World::new();
            let mut wanted = spec("100m", "64Mi");
            wanted["containers"][0]["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": policy}]);
            world.make_pod("p", wanted);
            world.life(None, async || until("the Pod is ready", || world.is_ready("p")).await);
            let survived = world.life(Some(passes), async || {
                ask(&world, "p", "200m", "128Mi");
                until("it has grown", || has(&world, "p", "200m", "128Mi") && world.is_ready("p")).await;
            });
            if world.pod("p").unwrap()["spec"]["containers"][0]["resources"] == amounts("100m", "64Mi") {
                ask(&world, "p", "200m", "128Mi");
            }
            world.life(None, async || {
                until("the next has done it", || has(&world, "p", "200m", "128Mi") && world.is_ready("p")).await;
                assert_eq!(world.engine.resources("m").unwrap().memory_limit_in_bytes, 128 << 20);
            });
            if survived {
                break;
            }
        }
        assert!(passes > 4, "{policy}: the kubelet called nobody");
        passes = 0;
    }
}

#[test]
fn the_pod_is_not_seen_to_have_ended_while_it_restarts() {
    let world = World::new();
    let mut wanted = spec("100m", "64Mi");
    wanted["restartPolicy"] = "OnFailure".into();
    wanted["containers"][0]["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    world.make_pod("p", wanted);
    let engine = world.engine.clone();
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        // The container ends by itself, with success, when it is told to stop.
        world.engine_does(move |call, moment| {
            if call.starts_with("stop m") && moment == Moment::Before {
                engine.exit("m", 0);
            }
            Box::pin(std::future::ready(Ok(())))
        });
        ask(&world, "p", "200m", "64Mi");
        until("it has restarted", || world.asked("start m") == 2 && has(&world, "p", "200m", "64Mi")).await;
        until("it is ready", || world.is_ready("p")).await;
        assert_eq!(world.phase("p"), "Running");
    });
}

#[test]
fn what_is_not_yet_given_up_is_nobody_elses() {
    let world = World::new();
    let memory = Machine::read().memory / (1 << 20);
    let (most, little) = (format!("{}Mi", memory / 2 + 100), "64Mi");
    world.make_pod("p", spec("10m", &most));
    world.make_pod("q", spec("10m", little));
    world.life(None, async || {
        until("both are ready", || world.is_ready("p") && world.is_ready("q")).await;
        // The engine has one name for both containers, so the other one is seen to use as much; it only grows.
        world.engine.uses("m", 128 << 20);
        ask(&world, "p", "10m", little);
        let text = || world.said("p", "PodResizeInProgress")["reason"].clone();
        until("it does not give up what it uses", || text() == "Error").await;
        ask(&world, "q", "10m", &most);
        until("the other waits", || world.said("q", "PodResizePending")["reason"] == "Deferred").await;
        world.engine.uses("m", 1 << 20);
        until("both have what they asked for", || has(&world, "p", "10m", little) && has(&world, "q", "10m", &most))
            .await;
    });
}

#[test]
fn the_resources_of_a_whole_pod_change_in_place() {
    let world = World::new();
    let features = *world.features.lock();
    *world.features.lock() =
        features.with(Feature::NodeDeclaredFeatures, true).with(Feature::InPlacePodLevelResourcesVerticalScaling, true);
    let main = json!({"name": "m", "image": "x:1"});
    let spec = json!({"terminationGracePeriodSeconds": 5, "containers": [main], "resources": amounts("100m", "64Mi")});
    world.make_pod("p", spec);
    let ask = |cpu: &str, memory: &str| world.change_pod("p", |spec| spec["resources"] = amounts(cpu, memory));
    let has = |cpu: &str, memory: &str| {
        let status = world.pod("p").unwrap()["status"].clone();
        status["resources"] == amounts(cpu, memory)
            && status["allocatedResources"] == json!({"cpu": cpu, "memory": memory})
            && ["PodResizePending", "PodResizeInProgress"].iter().all(|kind| world.said("p", kind).is_null())
    };
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        assert!(has("100m", "64Mi"));
        ask("200m", "128Mi");
        until("it has grown", || has("200m", "128Mi")).await;
        let told = world.engine.resources("m").unwrap();
        assert_eq!((told.cpu_quota, told.memory_limit_in_bytes), (20_000, 128 << 20));
        ask("100", "128Mi");
        until("it cannot have that", || world.said("p", "PodResizePending")["reason"] == "Infeasible").await;
        let status = world.pod("p").unwrap()["status"].clone();
        assert_eq!(
            (&status["resources"], status["allocatedResources"]["cpu"].as_str()),
            (&amounts("200m", "128Mi"), Some("200m"))
        );
    });
    world.life(None, async || {
        until("the next kubelet knows", || world.said("p", "PodResizePending")["reason"] == "Infeasible").await;
        ask("50m", "32Mi");
        until("it has shrunk", || has("50m", "32Mi")).await;
        assert_eq!((world.asked("start m"), world.engine.resources("m").unwrap().cpu_quota), (1, 5_000));
    });
}

#[test]
fn another_period_of_quotas_changes_no_limit_and_holds_for_what_is_told_from_then_on() {
    let world = World::new();
    let features = *world.features.lock();
    *world.features.lock() = features.with(Feature::CustomCPUCFSQuotaPeriod, true);
    let told = |world: &World| {
        let told = world.engine.resources("m").unwrap();
        (told.cpu_quota, told.cpu_period, told.cpu_shares)
    };
    world.make_pod("p", spec("100m", "64Mi"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        assert_eq!(told(&world), (10_000, 100_000, 102));
    });
    world.settings.lock().cfs.period = 20_000;
    world.life(None, async || {
        until("it is as it was", || has(&world, "p", "100m", "64Mi")).await;
        ask(&world, "p", "200m", "64Mi");
        until("it has grown", || has(&world, "p", "200m", "64Mi")).await;
        assert_eq!((told(&world), world.asked("update m")), ((4_000, 20_000, 204), 1));
    });
    world.settings.lock().cfs.enforced = false;
    world.life(None, async || {
        until("it is as it was", || has(&world, "p", "200m", "64Mi")).await;
        world.make_pod("free", spec("300m", "64Mi"));
        until("another is shown with the limit that it does not have", || has(&world, "free", "300m", "64Mi")).await;
        assert_eq!((told(&world), world.asked("update m")), ((0, 0, 307), 1));
    });
}
