//! Pods with claims on devices: nothing runs with what its driver has not prepared, and nothing stays prepared, whatever becomes
//! of drivers and kubelets.

use std::collections::BTreeSet;

use json::{Value, json};
use runtime::grpc;

use crate::{
    server::pod_resources_messages::*,
    tests::{
        dra_driver::{DraDriver, Hardware, Mood},
        world::{World, until},
    },
};

const DRIVER: &str = "gpu.a.io";

fn claim_path(name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/d/resourceclaims/{name}")
}

/// A claim that the scheduler has allocated and reserved for these Pods.
fn make_claim(world: &World, name: &str, drivers: &[&str], pods: &[&str]) {
    let results: Vec<Value> = drivers
        .iter()
        .map(|driver| json!({"request": "r", "driver": driver, "pool": "pool", "device": "d1"}))
        .collect();
    let users: Vec<Value> =
        pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": format!("{pod}-1")})).collect();
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "d", "uid": format!("uid-of-{name}")},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": users},
    });
    world.api.put(&claim_path(name), claim);
}

/// A Pod with these claims and containers: `container claim`, `container claim request` or `container`.
fn claims(claims: &[&str], containers: &[&str]) -> Value {
    let container = |text: &&str| {
        let mut words = text.split(' ');
        let name = words.next().unwrap();
        let claim = words.next().map(|claim| json!({"name": claim, "request": words.next()}));
        json!({"name": name, "image": "x:1", "resources": {"claims": claim.into_iter().collect::<Vec<_>>()}})
    };
    json!({
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "containers": containers.iter().map(container).collect::<Vec<_>>(),
        "resourceClaims": claims.iter().map(|c| json!({"name": c, "resourceClaimName": c})).collect::<Vec<_>>(),
    })
}

async fn runs(world: &World, name: &str, spec: Value) {
    world.make_pod(name, spec);
    until("the Pod is ready", || world.is_ready(name)).await;
}

async fn goes(world: &World, name: &str) {
    world.delete_pod(name);
    until("the Pod is gone", || world.pod(name).is_none()).await;
}

/// Waits until the Pod has been told why it waits.
async fn waits(world: &World, name: &str, why: &str) {
    let text =
        format!("FailedPrepareDynamicResources Failed to prepare dynamic resources: prepare dynamic resources: {why}");
    until(&text, || world.api.events(name).contains(&text)).await;
    assert_eq!(world.engine.calls(), [""; 0], "nothing begins");
}

async fn registered(driver: &DraDriver) {
    until("the driver is registered", || driver.registering.told().last() == Some(&(true, String::new()))).await;
}

#[test]
fn a_pod_begins_with_what_its_drivers_have_prepared_and_they_take_it_back() {
    let (world, hardware, other) = (World::new(), Hardware::default(), Hardware::default());
    world.life(None, async || {
        let first = DraDriver::new(&world, DRIVER, 0, &hardware);
        let second = DraDriver::new(&world, "net.a.io", 1, &other);
        registered(&first).await;
        registered(&second).await;
        make_claim(&world, "c", &[DRIVER], &["p"]);
        make_claim(&world, "e", &[DRIVER, "net.a.io"], &["p"]);
        runs(&world, "p", claims(&["c", "e"], &["all c", "one e r", "other e s", "none"])).await;
        assert_eq!((hardware.calls(), other.calls()), (vec!["prepare c e".to_owned()], vec!["prepare e".to_owned()]));
        let devices = |name: &str| world.engine.cdi_devices(name);
        assert_eq!(devices("all"), ["a.io/d=c-1", "a.io/d=c-2", "a.io/d=c-3"]);
        assert_eq!(devices("one"), ["a.io/d=e-1", "a.io/d=e-2"]);
        assert_eq!(devices("other"), ["a.io/d=e-2"]);
        assert_eq!(devices("none"), [""; 0]);
        // Others are told of them.
        let socket = world.registry().with_file_name("pod-resources").join("kubelet.sock");
        let asked = GetPodResourcesRequest { pod_name: "p".to_owned(), pod_namespace: "d".to_owned() };
        let limit = clock::Duration::from_secs(1);
        let told: GetPodResourcesResponse = grpc::unary(&grpc::channel(&socket), GET, asked, limit).await.unwrap();
        let of_claim = |claim: &DynamicResource| {
            let drivers: BTreeSet<&str> = claim.claim_resources.iter().map(|one| one.driver_name.as_str()).collect();
            format!("{}: {}", claim.claim_name, drivers.into_iter().collect::<Vec<_>>().join(" "))
        };
        let of_container = |c: &ContainerResources| c.dynamic_resources.iter().map(of_claim).collect::<String>();
        let told: Vec<String> = told.pod_resources.unwrap().containers.iter().map(of_container).collect();
        assert_eq!(told, ["c: gpu.a.io", "e: gpu.a.io net.a.io", "e: gpu.a.io net.a.io", ""]);
        // A container that begins again needs nobody to prepare anything.
        world.engine.exit("all", 1);
        until("it begins again", || world.asked("start all") == 2).await;
        assert_eq!(devices("all").len(), 3);
        goes(&world, "p").await;
        assert_eq!(
            (hardware.calls(), other.calls()),
            (vec!["unprepare c e".to_owned()], vec!["unprepare e".to_owned()])
        );
    });
}

#[test]
fn a_claim_that_two_pods_share_is_prepared_once_and_taken_back_after_the_last() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        let _driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        make_claim(&world, "c", &[DRIVER], &["p", "q"]);
        world.make_pod("p", claims(&["c"], &["m c"]));
        runs(&world, "q", claims(&["c"], &["n c"])).await;
        until("both are ready", || world.is_ready("p")).await;
        goes(&world, "p").await;
        assert_eq!((hardware.calls(), hardware.prepared()), (vec!["prepare c".to_owned()], vec!["c".to_owned()]));
        goes(&world, "q").await;
        assert_eq!(hardware.calls(), ["unprepare c"]);
    });
}

#[test]
fn nothing_begins_with_what_is_not_the_pods_or_not_prepared() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        world.make_pod("p", claims(&["c"], &["m c"]));
        waits(&world, "p", "fetch ResourceClaim c: the server answered 404: NotFound").await;
        make_claim(&world, "c", &[DRIVER], &["q"]);
        waits(&world, "p", "pod p (p-1) is not allowed to use ResourceClaim c (uid-of-c)").await;
        make_claim(&world, "c", &[DRIVER], &["p"]);
        let mut raw = world.api.get(&claim_path("c")).unwrap();
        raw["status"]["allocation"] = Value::Null;
        world.api.put(&claim_path("c"), raw);
        waits(&world, "p", "ResourceClaim c: not allocated").await;
        make_claim(&world, "c", &[DRIVER], &["p"]);
        waits(&world, "p", "DRA driver gpu.a.io is not registered").await;
        let driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        for (mood, why) in [
            (Mood::Refusing, "NodePrepareResources: rpc error: code = Unavailable desc = not now"),
            (Mood::Failing, "NodePrepareResources failed for ResourceClaim c: broken"),
            (Mood::Silent, "NodePrepareResources skipped 1 ResourceClaims"),
            (Mood::Lying, "NodePrepareResources returned result for unknown claim UID other"),
            (
                Mood::Hanging,
                "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            ),
        ] {
            driver.becomes(mood);
            waits(&world, "p", why).await;
        }
        // Others do not wait with it.
        runs(&world, "other", claims(&[], &["o"])).await;
        goes(&world, "other").await;
        driver.becomes(Mood::Willing);
        until("the Pod is ready", || world.is_ready("p")).await;
    });
}

#[test]
fn a_claim_from_a_template_is_the_pods_own() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        let _driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        let mut spec = claims(&["c"], &["m c"]);
        spec["resourceClaims"][0] = json!({"name": "c", "resourceClaimTemplateName": "t"});
        world.make_pod("p", spec);
        waits(&world, "p", "pod \"d/p\": ResourceClaim not created yet").await;
        make_claim(&world, "made", &[DRIVER], &["p"]);
        let path = "/api/v1/namespaces/d/pods/p";
        let mut pod = world.pod("p").unwrap();
        pod["status"]["resourceClaimStatuses"] = json!([{"name": "c", "resourceClaimName": "made"}]);
        world.api.put(path, pod);
        waits(&world, "p", "ResourceClaim d/made was not created for pod d/p (pod is not owner)").await;
        let mut claim = world.api.get(&claim_path("made")).unwrap();
        claim["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p-1", "controller": true}]);
        world.api.put(&claim_path("made"), claim);
        until("the Pod is ready", || world.is_ready("p")).await;
        assert_eq!(hardware.prepared(), ["made"]);
    });
}

#[test]
fn a_container_gets_the_devices_that_stand_for_its_extended_resources() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        let _driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        make_claim(&world, "made", &[DRIVER], &["p"]);
        let mut spec = claims(&[], &["m", "n", "o"]);
        spec["containers"][0]["resources"] = json!({"requests": {"a.io/gpu": "1"}, "limits": {"a.io/gpu": "1"}});
        spec["containers"][1]["resources"] = json!({"requests": {"a.io/gpu": "0"}, "limits": {"a.io/gpu": "0"}});
        // The scheduler writes that down before it binds the Pod.
        let mapped = |name: &str, request: &str| json!({"containerName": name, "resourceName": "a.io/gpu", "requestName": request});
        let made = json!({"resourceClaimName": "made", "requestMappings": [mapped("m", "r"), mapped("n", "r"), mapped("o", "r")]});
        world.make_pod_with("p", spec, json!({"extendedResourceClaimStatus": made}));
        until("the Pod is ready", || world.is_ready("p")).await;
        assert_eq!(world.engine.cdi_devices("m"), ["a.io/d=made-1", "a.io/d=made-2"]);
        for name in ["n", "o"] {
            assert_eq!(world.engine.cdi_devices(name), [""; 0], "{name} asks for none");
        }
        goes(&world, "p").await;
        assert_eq!(hardware.calls(), ["prepare made", "unprepare made"]);
    });
}

#[test]
fn a_pod_is_not_over_before_its_drivers_have_taken_back_what_it_had() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        let driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        make_claim(&world, "c", &[DRIVER], &["p", "q"]);
        let mut once = claims(&["c"], &["m c"]);
        once["restartPolicy"] = "Never".into();
        runs(&world, "p", once).await;
        for mood in [Mood::Refusing, Mood::Failing, Mood::Silent, Mood::Lying] {
            driver.becomes(mood);
            hardware.calls();
            world.engine.exit("m", 0);
            until("it is asked twice", || hardware.asked() > 1).await;
            assert_eq!((world.phase("p").as_str(), hardware.prepared().len()), ("Running", 1));
        }
        // Away, it cannot be asked; back, it is.
        drop(driver);
        world.delete_pod("p");
        let driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        until("the Pod is gone", || world.pod("p").is_none()).await;
        assert_eq!(hardware.prepared(), [""; 0]);
        // Where nothing hinders it, the Pod's end is told.
        let mut once = claims(&["c"], &["n c"]);
        once["restartPolicy"] = "Never".into();
        runs(&world, "q", once).await;
        world.engine.exit("n", 0);
        until("the Pod is over", || world.phase("q") == "Succeeded").await;
        assert_eq!(hardware.prepared(), [""; 0]);
        drop(driver);
    });
}

#[test]
fn what_an_earlier_kubelet_had_prepared_is_used_and_taken_back_by_the_next() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        let _driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        make_claim(&world, "c", &[DRIVER], &["p"]);
        make_claim(&world, "e", &[DRIVER], &["gone"]);
        runs(&world, "p", claims(&["c"], &["m c"])).await;
        runs(&world, "gone", claims(&["e"], &["n e"])).await;
    });
    world.api.remove("/api/v1/namespaces/d/pods/gone");
    hardware.calls();
    world.life(None, async || {
        // Its container begins again without a driver.
        world.engine.exit("m", 1);
        until("it begins again", || world.asked("start m") == 2).await;
        assert_eq!(world.engine.cdi_devices("m").len(), 3);
        assert_eq!(hardware.prepared(), ["c", "e"]);
        let _driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        until("what nobody uses is taken back", || hardware.prepared() == ["c"]).await;
        goes(&world, "p").await;
        assert_eq!(hardware.calls(), ["unprepare e", "unprepare c"]);
    });
}

#[test]
fn a_kubelet_that_does_not_know_what_is_prepared_does_not_start() {
    let world = World::new();
    let folder = world.registry().with_file_name("");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("dra_manager_state"), "{").unwrap();
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.life(None, async || std::future::pending().await)
    }));
    let why = died.unwrap_err().downcast::<String>().unwrap();
    assert!(why.contains("dra_manager_state") && why.contains("EOF"), "{why}");
}

#[test]
fn the_health_that_a_driver_reports_is_in_the_pods_status() {
    let (world, hardware) = (World::new(), Hardware::default());
    world.life(None, async || {
        let driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        make_claim(&world, "c", &[DRIVER], &["p"]);
        runs(&world, "p", claims(&["c"], &["m c r"])).await;
        let says = |first: &str, second: &str| {
            [format!("claim:c/r a.io/d=c-1 {first}"), format!("claim:c/r a.io/d=c-2 {second}")]
        };
        until("nothing is known of them", || world.health("p") == says("Unknown", "Unknown")).await;
        driver.reports(&[("d1", 1), ("d2", 2)]);
        until("it reports", || world.health("p") == says("Healthy", "Unhealthy")).await;
        until("it says nothing any more", || world.health("p") == says("Unknown", "Unknown")).await;
        driver.reports(&[("d1", 2)]);
        until("it reports again", || world.health("p") == says("Unhealthy", "Unknown")).await;
        drop(driver);
        until("it has gone", || world.health("p") == says("Unknown", "Unknown")).await;
    });
}

fn slices(world: &World) -> Vec<String> {
    let all = world.api.all("/apis/resource.k8s.io/v1/resourceslices");
    all.iter().map(|slice| slice["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn offer(world: &World, name: &str, node: &str, driver: &str) {
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": name, "uid": name},
        "spec": {"nodeName": node, "driver": driver, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
    world.api.put(&format!("/apis/resource.k8s.io/v1/resourceslices/{name}"), slice);
}

#[test]
fn the_devices_of_a_driver_that_stays_away_are_withdrawn() {
    let (world, hardware) = (World::new(), Hardware::default());
    offer(&world, "old", "n1", DRIVER);
    offer(&world, "else", "n2", DRIVER);
    world.life(None, async || {
        until("a kubelet that starts knows no driver", || slices(&world) == ["else"]).await;
        let driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        registered(&driver).await;
        let _stays = DraDriver::new(&world, "net.a.io", 0, &hardware);
        offer(&world, "gpu", "n1", DRIVER);
        offer(&world, "net", "n1", "net.a.io");
        // Back within its time.
        drop(driver);
        clock::sleep(clock::Duration::from_secs(25)).await;
        let driver = DraDriver::new(&world, DRIVER, 0, &hardware);
        registered(&driver).await;
        clock::sleep(clock::Duration::from_secs(60)).await;
        assert_eq!(slices(&world), ["else", "gpu", "net"]);
        // It breaks off without a word.
        let _registration = driver.crash();
        until("its devices are withdrawn", || slices(&world) == ["else", "net"]).await;
    });
}

/// Two Pods share a claim, one has another one with two drivers.
async fn story(world: &World, hardware: &Hardware) {
    let _first = DraDriver::new(world, DRIVER, 0, hardware);
    let _second = DraDriver::new(world, "net.a.io", 1, hardware);
    if !world.was_told("begun") {
        world.tell("begun");
        make_claim(world, "c", &[DRIVER], &["p", "q"]);
        make_claim(world, "e", &[DRIVER, "net.a.io"], &["q"]);
        world.make_pod("p", claims(&["c"], &["m c"]));
        world.make_pod("q", claims(&["c", "e"], &["n c", "o e"]));
    }
    for name in ["p", "q"] {
        if !world.was_told(name) {
            until("the Pod is ready", || world.is_ready(name)).await;
        }
    }
    for name in ["p", "q"] {
        if !world.was_told(name) {
            assert!(hardware.prepared().contains(&"c".to_owned()), "{:?}", hardware.prepared());
            world.tell(name);
            world.delete_pod(name);
        }
        until("the Pod is gone", || world.pod(name).is_none()).await;
    }
    until("nothing is left", || world.left().is_empty()).await;
}

#[test]
fn nothing_stays_prepared_wherever_the_kubelet_is_killed() {
    for pass in 1.. {
        let (world, hardware) = (World::new(), Hardware::default());
        let was_killed = !world.life(Some(pass), async || story(&world, &hardware).await);
        if was_killed {
            assert!(world.life(None, async || story(&world, &hardware).await));
        }
        assert_eq!(hardware.prepared(), [""; 0], "killed at {pass}");
        let kept = std::fs::read_to_string(world.registry().with_file_name("dra_manager_state")).unwrap();
        assert_eq!(kept, "{\"Entries\":[]}", "killed at {pass}");
        if !was_killed {
            assert!(pass > 40, "only {pass} calls went out");
            return;
        }
    }
}
