//! Pods with devices of plugins: none is given to two of them, and none is lost, whatever becomes of plugins and kubelets.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use json::{Value, json};
use k8s_cri::v1::ContainerState;
use runtime::{Runtime, grpc};

use crate::{
    plugins::messages::PluginInfo,
    server::pod_resources_messages::*,
    tests::{
        device_plugin::{DevicePlugin, Mood, register},
        plugin::Registering,
        world::{World, until},
    },
};

const GPU: &str = "a.io/gpu";

/// A Pod whose containers (`name count`, the first ones with `init`) want these numbers of devices.
fn wants(containers: &[&str]) -> Value {
    let container = |text: &str| {
        let (name, count) = text.rsplit_once(' ').unwrap();
        let name = name.rsplit(' ').next().unwrap();
        let resources = json!({"limits": {GPU: count}, "requests": {GPU: count}});
        json!({"name": name, "image": "x:1", "resources": resources})
    };
    let (inits, mains): (Vec<&str>, Vec<&str>) = containers.iter().partition(|text| text.starts_with("init "));
    json!({
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "initContainers": inits.into_iter().map(container).collect::<Vec<_>>(),
        "containers": mains.into_iter().map(container).collect::<Vec<_>>(),
    })
}

/// The devices that the containers in the engine were made with, as `pod/container devices`. Fails when two Pods that run
/// have the same.
async fn in_engine(world: &World) -> BTreeSet<String> {
    let (mut all, mut held) = (BTreeSet::new(), BTreeMap::new());
    for container in world.engine.containers(None).await.unwrap() {
        let pod = container.labels["io.kubernetes.pod.name"].clone();
        let name = &container.labels["io.kubernetes.container.name"];
        let devices = container.annotations.get("devices").cloned().unwrap_or_default();
        all.insert(format!("{pod}/{name} {devices}").trim().to_owned());
        if container.state() == ContainerState::ContainerRunning {
            for device in devices.split('+').filter(|device| !device.is_empty()) {
                let other = held.insert(device.to_owned(), pod.clone());
                assert!(other.as_ref().is_none_or(|other| *other == pod), "{device} is {pod}'s and {other:?}'s");
            }
        }
    }
    all
}

/// `capacity/allocatable` of the node.
fn on_node(world: &World) -> String {
    let node = world.api.get("/api/v1/nodes/n1").unwrap_or_default();
    let amount = |list: &str| node["status"][list][GPU].as_str().unwrap_or("none").to_owned();
    format!("{}/{}", amount("capacity"), amount("allocatable"))
}

/// Why a Pod failed.
fn failure(world: &World, name: &str) -> String {
    let status = world.pod(name).unwrap_or_default()["status"].clone();
    format!("{}: {}", status["reason"].as_str().unwrap_or_default(), status["message"].as_str().unwrap_or_default())
}

fn unexpected(why: &str) -> String {
    format!("UnexpectedAdmissionError: Pod was rejected: Allocate failed due to {why}, which is unexpected")
}

async fn fails(world: &World, name: &str, spec: Value, why: &str) {
    world.make_pod(name, spec);
    until("the Pod is not let in", || world.phase(name) == "Failed").await;
    assert_eq!(failure(world, name), unexpected(why));
}

async fn goes(world: &World, name: &str) {
    world.delete_pod(name);
    until("the Pod is gone", || world.pod(name).is_none()).await;
}

async fn runs(world: &World, name: &str, spec: Value) {
    world.make_pod(name, spec);
    until("the Pod is ready", || world.is_ready(name)).await;
}

fn set<const N: usize>(list: [&str; N]) -> BTreeSet<String> {
    list.into_iter().map(str::to_owned).collect()
}

#[test]
fn pods_get_devices_of_their_own_and_give_them_back() {
    let world = World::new();
    world.life(None, async || {
        let plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d2", true), ("d3", false)]).await;
        until("the node shows them", || on_node(&world) == "3/2").await;
        // The init container's device goes on to a container; a device is chosen as the plugin prefers it.
        world.make_pod("p", wants(&["init i 1", "m 1", "n 1"]));
        until("the init container runs", || world.engine.running() == ["i"]).await;
        world.engine.exit("i", 0);
        until("the Pod is ready", || world.is_ready("p")).await;
        assert_eq!(in_engine(&world).await, set(["p/i d2", "p/m d2", "p/n d1"]));
        let calls = ["allocate d2", "allocate d2", "allocate d1", "start d2", "start d2", "start d1"];
        assert_eq!(plugin.calls(), calls);
        let short = format!("requested number of devices unavailable for {GPU}. Requested: 1, Available: 0");
        fails(&world, "q", wants(&["m 1"]), &short).await;
        runs(&world, "none", wants(&["m 0"])).await;
        goes(&world, "p").await;
        runs(&world, "r", wants(&["m 2"])).await;
        assert!(in_engine(&world).await.contains("r/m d1+d2"));
        goes(&world, "r").await;
        // Health reaches the node, who has them, and those who come.
        plugin.lists(&[("d1", false), ("d2", false), ("d3", true), ("d4", true)]);
        until("the node shows them", || on_node(&world) == "4/2").await;
        runs(&world, "s", wants(&["m 1"])).await;
        assert!(in_engine(&world).await.contains("s/m d4"));
        until("its device is well", || world.health("s") == [format!("{GPU} d4 Healthy")]).await;
        drop(plugin);
        until("its device is not", || world.health("s") == [format!("{GPU} d4 Unhealthy")]).await;
        until("without a plugin nobody gets any", || on_node(&world) == "4/0").await;
        let ill = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
        fails(&world, "t", wants(&["m 1"]), &ill).await;
        until("after a time there are none", || on_node(&world) == "0/0").await;
        assert!(world.is_ready("s"), "who has one keeps it");
    });
}

#[test]
fn a_plugin_that_refuses_lies_or_hangs_harms_the_pods_that_want_it() {
    let world = World::new();
    world.life(None, async || {
        let plugin = DevicePlugin::registered(&world, GPU, &[("d1", true)]).await;
        until("the node shows it", || on_node(&world) == "1/1").await;
        plugin.becomes(Mood::Refusing);
        fails(&world, "p", wants(&["m 1"]), "rpc error: code = Unknown desc = no").await;
        plugin.becomes(Mood::Empty);
        fails(&world, "q", wants(&["m 1"]), "no containers return in allocation response").await;
        plugin.becomes(Mood::Hanging);
        world.make_pod("r", wants(&["m 1"]));
        until("it is asked", || plugin.calls().contains(&"allocate d1".to_owned())).await;
        runs(&world, "other", wants(&["m 0"])).await;
        assert_eq!(world.phase("r"), "");
        goes(&world, "r").await;
        fails(&world, "s", wants(&["m 1"]), "rpc error: code = DeadlineExceeded desc = context deadline exceeded")
            .await;
        plugin.becomes(Mood::Willing);
        runs(&world, "t", wants(&["m 1"])).await;
        // It sends more lists than anybody can read; the last one counts.
        for n in 0..1000 {
            plugin.lists(&[("d1", n % 2 == 0), ("d2", true)]);
        }
        until("the last list is on the node", || on_node(&world) == "2/1").await;
    });
}

#[test]
fn a_plugin_registers_with_what_the_kubelet_takes() {
    let world = World::new();
    world.life(None, async || {
        let kubelet = world.device_folder().join("kubelet.sock");
        until("the kubelet's socket is there", || kubelet.exists()).await;
        for (version, resource, endpoint, why) in [
            (
                "v1alpha",
                GPU,
                "p.sock",
                "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]",
            ),
            ("v1beta1", "cpu", "p.sock", "the ResourceName \"cpu\" is invalid"),
            ("v1beta1", GPU, "../p.sock", "the endpoint \"../p.sock\" is no socket of this folder"),
            ("v1beta1", GPU, "/p.sock", "the endpoint \"/p.sock\" is no socket of this folder"),
        ] {
            assert_eq!(register(&kubelet, version, resource, endpoint).await.unwrap_err(), why);
        }
        let gone = register(&kubelet, "v1beta1", GPU, "p.sock").await.unwrap_err();
        assert!(gone.starts_with("failed to get device plugin options: rpc error: code = Unavailable"), "{gone}");
        assert_eq!(on_node(&world), "none/none");
        // Over the registry.
        let registry = world.device_folder().with_file_name("plugins_registry");
        let socket = registry.join("service");
        let _plugin = DevicePlugin::at(&world.device_folder().join("other.sock"), world.gate(), &[("d1", true)]);
        let info = |name: &str, version: &str| PluginInfo {
            r#type: "DevicePlugin".to_owned(),
            name: name.to_owned(),
            endpoint: world.device_folder().join("other.sock").display().to_string(),
            supported_versions: vec![version.to_owned()],
        };
        let old = Registering::at(&socket.with_extension("old"), info(GPU, "v1alpha"));
        until("the old one is refused", || old.told().len() == 1).await;
        let why = "manager version, v1beta1, is not among plugin supported versions [v1alpha]";
        assert!(old.told()[0].1.ends_with(why), "{:?}", old.told());
        let registered = Registering::at(&socket, info(GPU, "v1beta1"));
        until("the node shows it", || on_node(&world) == "1/1").await;
        drop(registered);
        until("its socket is its life", || on_node(&world) == "1/0").await;
    });
}

#[test]
fn devices_stay_with_their_pods_over_a_kubelet_that_starts_again() {
    let world = World::new();
    world.life(None, async || {
        let _plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d2", true)]).await;
        until("the node shows them", || on_node(&world) == "2/2").await;
        runs(&world, "p", wants(&["m 1"])).await;
        runs(&world, "gone", wants(&["m 1"])).await;
    });
    world.api.remove("/api/v1/namespaces/d/pods/gone");
    world.life(None, async || {
        until("the plugin is missed", || on_node(&world) == "0/0").await;
        let ill = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
        fails(&world, "early", wants(&["m 1"]), &ill).await;
        // Without its plugin, a container begins again with what it has.
        let starts = world.asked("start m");
        world.engine.exit("m", 1);
        until("it begins again", || world.asked("start m") > starts).await;
        until("what has gone is gone from the engine, too", || world.engine.running().len() == 1).await;
        let plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d2", true)]).await;
        until("the node shows them", || on_node(&world) == "2/2").await;
        runs(&world, "q", wants(&["m 1"])).await;
        assert_eq!(in_engine(&world).await, set(["p/m d2", "q/m d1"]));
        assert_eq!(plugin.calls(), ["allocate d1", "start d1"]);
    });
}

#[test]
fn a_pod_that_is_over_holds_no_device_although_it_has_not_gone() {
    let world = World::new();
    let mut once = wants(&["o 1"]);
    once["restartPolicy"] = "Never".into();
    let stays = |world: &World| {
        // Its sandbox cannot be stopped, so nothing of it is cleared away.
        world.engine_does(|call, _| {
            let hangs = call.starts_with("stop_sandbox");
            async move { if hangs { std::future::pending().await } else { Ok(()) } }.boxed()
        });
    };
    world.life(None, async || {
        let _plugin = DevicePlugin::registered(&world, GPU, &[("d1", true)]).await;
        until("the node shows it", || on_node(&world) == "1/1").await;
        runs(&world, "p", once).await;
        stays(&world);
        world.engine.exit("o", 0);
        until("its work is done", || world.phase("p") == "Succeeded").await;
        runs(&world, "q", wants(&["m 1"])).await;
        assert_eq!(in_engine(&world).await, set(["p/o d1", "q/m d1"]));
    });
}

#[test]
fn a_pod_waits_for_the_devices_of_one_that_was_deleted_without_a_grace() {
    let world = World::new();
    world.life(None, async || {
        let _plugin = DevicePlugin::registered(&world, GPU, &[("d1", true)]).await;
        until("the node shows it", || on_node(&world) == "1/1").await;
        runs(&world, "p", wants(&["m 1"])).await;
        world.engine_does(|call, _| {
            let lasts = call.starts_with("stop ");
            async move {
                if lasts {
                    clock::sleep(clock::Duration::from_secs(3)).await;
                }
                Ok(())
            }
            .boxed()
        });
        world.api.remove("/api/v1/namespaces/d/pods/p");
        runs(&world, "q", wants(&["n 1"])).await;
        assert_eq!(in_engine(&world).await, set(["q/n d1"]));
    });
}

#[test]
fn what_a_plugin_has_not_answered_for_is_nobodys() {
    let world = World::new();
    world.life(None, async || {
        runs(&world, "p", wants(&["m 1"])).await;
        let plugin = DevicePlugin::registered(&world, GPU, &[("d1", true)]).await;
        until("the node shows it", || on_node(&world) == "1/1").await;
        // A Pod that began without one asks for it when its container begins again.
        plugin.becomes(Mood::Refusing);
        world.engine.exit("m", 1);
        until("it is refused", || plugin.calls() == ["allocate d1"]).await;
        plugin.becomes(Mood::Willing);
        runs(&world, "q", wants(&["n 1"])).await;
        goes(&world, "q").await;
        plugin.becomes(Mood::Hanging);
        plugin.calls();
        until("it is asked again", || plugin.calls().contains(&"allocate d1".to_owned())).await;
        goes(&world, "p").await;
        plugin.becomes(Mood::Willing);
        runs(&world, "r", wants(&["m 1"])).await;
    });
}

#[test]
fn the_devices_of_containers_that_do_not_run_are_looked_at_by_a_kubelet_that_starts_again() {
    let world = World::new();
    world.life(None, async || {
        let _plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d2", true), ("d3", true)]).await;
        until("the node shows them", || on_node(&world) == "3/3").await;
        world.make_pod("p", wants(&["init i 1", "m 1"]));
        until("the init container runs", || world.engine.running() == ["i"]).await;
        world.engine.exit("i", 0);
        until("the Pod is ready", || world.is_ready("p")).await;
        runs(&world, "q", wants(&["n 1", "o 1"])).await;
        // The kubelet does not see it any more.
        world.engine.exit("n", 137);
    });
    world.life(None, async || {
        until("its devices are not there", || world.phase("q") == "Failed").await;
        let ill = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
        assert_eq!(failure(&world, "q"), unexpected(&ill));
        until("nothing of it runs", || world.engine.running() == ["m"]).await;
        assert!(world.is_ready("p"), "who runs is left alone, and what has done its work is not asked for");
        // The devices that it had are free.
        let _plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d2", true), ("d3", true)]).await;
        until("the node shows them", || on_node(&world) == "3/3").await;
        runs(&world, "r", wants(&["r 2"])).await;
    });
}

#[test]
fn others_are_told_who_has_which_devices() {
    let world = World::new();
    world.life(None, async || {
        let _plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d2", true), ("d3", false)]).await;
        until("the node shows them", || on_node(&world) == "3/2").await;
        runs(&world, "p", wants(&["m 2"])).await;
        let socket = world.registry().with_file_name("pod-resources").join("kubelet.sock");
        until("the socket is there", || socket.exists()).await;
        let (channel, limit) = (grpc::channel(&socket), clock::Duration::from_secs(1));
        let words = |devices: &[ContainerDevices]| -> Vec<String> {
            let node =
                |d: &ContainerDevices| d.topology.iter().map(|t| format!(" on {}", t.nodes[0].id)).collect::<String>();
            devices.iter().map(|d| format!("{} {}{}", d.resource_name, d.device_ids.join("+"), node(d))).collect()
        };
        let expected = ["a.io/gpu d1 on 0", "a.io/gpu d2"];
        let all: ListPodResourcesResponse =
            grpc::unary(&channel, LIST, ListPodResourcesRequest {}, limit).await.unwrap();
        let [pod] = &all.pod_resources[..] else { panic!("{all:?}") };
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.containers[0].name.as_str()), ("d", "p", "m"));
        assert_eq!(words(&pod.containers[0].devices), expected);
        let there: AllocatableResourcesResponse =
            grpc::unary(&channel, GET_ALLOCATABLE, AllocatableResourcesRequest {}, limit).await.unwrap();
        assert_eq!(words(&there.devices), expected);
        let ask = async |name: &str| {
            let asked = GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: "d".to_owned() };
            let answer: Result<GetPodResourcesResponse, _> = grpc::unary(&channel, GET, asked, limit).await;
            answer.map(|answer| answer.pod_resources.unwrap()).map_err(|status| grpc::words(&status))
        };
        assert_eq!(ask("p").await.as_ref(), Ok(pod));
        let none = "rpc error: code = Unknown desc = pod q in namespace d not found";
        assert_eq!(ask("q").await.unwrap_err(), none);
        let many = futures::future::join_all((0..30).map(|_| ask("p"))).await;
        let over = "rpc error: code = ResourceExhausted desc = rejected by rate limit";
        assert!(many.iter().filter(|one| one.as_ref().is_err_and(|why| why == over)).count() >= 15, "{many:?}");
    });
}

/// Two Pods share three devices, and a third one comes when one of them has gone.
async fn story(world: &World) {
    let _plugin = DevicePlugin::registered(world, GPU, &[("d1", true), ("d2", true), ("d3", true)]).await;
    until("the node shows them", || on_node(world) == "3/3").await;
    let is_there = |name: &str| world.pod(name).is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    if !world.was_told("first") {
        world.tell("first");
        world.make_pod("p", wants(&["m 1", "n 1"]));
        world.make_pod("q", wants(&["m 1"]));
    }
    let settled = |name: &str| !is_there(name) || world.is_ready(name) || world.phase(name) == "Failed";
    until("both are ready, or came too early", || settled("p") && settled("q")).await;
    in_engine(world).await;
    if is_there("p") {
        world.delete_pod("p");
    }
    until("one has gone", || world.pod("p").is_none()).await;
    if !world.was_told("second") {
        world.tell("second");
        world.make_pod("r", wants(&["m 2"]));
    }
    until("the last one is ready, or came too early", || settled("r")).await;
    in_engine(world).await;
    for name in ["q", "r"] {
        if is_there(name) {
            world.delete_pod(name);
        }
    }
    until("all are gone", || world.pod("q").is_none() && world.pod("r").is_none()).await;
    until("nothing is left", || world.left().is_empty()).await;
}

#[test]
fn no_device_is_given_twice_or_lost_wherever_the_kubelet_is_killed() {
    for pass in 1.. {
        let world = World::new();
        let was_killed = !world.life(Some(pass), async || story(&world).await);
        if was_killed {
            assert!(world.life(None, async || story(&world).await));
        }
        let kept = std::fs::read_to_string(world.device_folder().join("kubelet_internal_checkpoint")).unwrap();
        assert!(kept.contains("\"PodDeviceEntries\":[]"), "killed at {pass}: {kept}");
        if !was_killed {
            assert!(pass > 40, "only {pass} calls went out");
            return;
        }
    }
}
