//! The machine ends: its Pods end before it, in the order of their importance, whatever becomes of logind and the bus meanwhile.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use json::{Value, json};
use nix::{fcntl::OFlag, unistd};
use parking_lot::Mutex;
use runtime::fake::Moment;

use crate::{
    configuration::shutdown::Period,
    dbus::message::{Body, Message},
    shutdown::logind::{self, DROP_IN},
    tests::{
        logind::{Bus, Logind, Peer, prepare},
        world::{World, until},
    },
};

const MINUTE: Duration = Duration::from_secs(60);
const CRITICAL: i32 = 2_000_000_000;
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// A machine with these groups of Pods, and logind on it.
fn machine(groups: &[(i32, u32)]) -> (World, Logind, Bus) {
    let world = World::new();
    let period = |(priority, seconds): &(i32, u32)| Period { priority: *priority, seconds: *seconds };
    world.settings.lock().shutdown.by_priority = groups.iter().map(period).collect();
    let place = world.place_of_logind();
    let logind = Logind::new(&place.drop_ins, MINUTE);
    let bus = Bus::at(&place.socket, &logind);
    *world.logind.lock() = Some(place);
    (world, logind, bus)
}

fn spec(container: &str, priority: i32) -> Value {
    json!({"priority": priority, "terminationGracePeriodSeconds": 30,
        "containers": [{"name": container, "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]})
}

/// The reason and message with which the node is ready or not.
fn readiness(world: &World) -> String {
    let node = world.api.get("/api/v1/nodes/n1").unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default();
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

const READY: &str = "True KubeletReady: kubelet is posting ready status";
const ENDS: &str = "False KubeletNotReady: node is shutting down";

fn failure(world: &World, name: &str) -> String {
    let status = world.pod(name).unwrap_or_default()["status"].clone();
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}: {}", text("phase"), text("reason"), text("message"))
}

/// The containers that were stopped, with the seconds that each had, in order.
fn stops(world: &World) -> Vec<String> {
    world.engine.calls().iter().filter_map(|call| call.strip_prefix("stop ").map(str::to_owned)).collect()
}

#[test]
fn pods_end_in_the_order_of_their_importance_and_a_machine_that_goes_on_takes_new_ones() {
    let (world, logind, mut bus) = machine(&[(CRITICAL, 5), (0, 20), (1000, 35)]);
    // The mounts that are there when a container is stopped.
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (notes, mounts) = (seen.clone(), world.mounts.clone());
    world.engine_does(move |call, moment| {
        if call.starts_with("stop ") && moment == Moment::Before {
            notes.lock().push(mounts.points().len());
        }
        async { Ok(()) }.boxed()
    });
    world.life(None, async || {
        bus.serve();
        for (container, priority) in [("l", 7), ("m", 1000), ("c", i32::MAX)] {
            world.make_pod(container, spec(container, priority));
        }
        until("all are ready", || ["l", "m", "c"].iter().all(|name| world.is_ready(name))).await;
        until("the lock is held", || logind.locks() == 1).await;
        assert_eq!(logind.calls(), ["inhibit shutdown, kubelet, Kubelet needs time to handle node shutdown, delay"]);
        bus.says(&logind.signal(true));
        until("the node says so", || readiness(&world) == ENDS).await;
        until("the lock is given back", || logind.locks() == 0).await;
        // Each has the time of its group, or its own if that is less.
        assert_eq!(stops(&world), ["l 20", "m 30", "c 5"]);
        assert_eq!(*seen.lock(), [3, 2, 1], "the volumes of one group are unmounted before the next one ends");
        for name in ["l", "m", "c"] {
            assert_eq!(failure(&world, name), format!("Failed Terminated: {MESSAGE}"));
            let target = world.said(name, "DisruptionTarget");
            assert_eq!((&target["status"], &target["reason"]), (&"True".into(), &"TerminationByKubelet".into()));
            assert_eq!(target["message"], MESSAGE);
        }
        world.make_pod("late", spec("x", CRITICAL));
        until("nothing new is let in", || world.phase("late") == "Failed").await;
        let refused = "Failed NodeShutdown: Pod was rejected: Pod was rejected as the node is shutting down.";
        assert_eq!(failure(&world, "late"), refused);
        let record = fs::read_to_string(world.kubelet_folder().join("graceful_node_shutdown_state")).unwrap();
        assert!(record.starts_with("{\"startTime\":\"2023-") && !record.contains("0001-01-01"), "{record}");
        bus.says(&logind.signal(false));
        until("the machine goes on", || readiness(&world) == READY && logind.locks() == 1).await;
        world.make_pod("next", spec("n", 0));
        until("a new one is let in", || world.is_ready("next")).await;
        let events = world.api.events("n1");
        let told: Vec<&str> = events.iter().filter_map(|event| event.strip_prefix("Shutdown ")).collect();
        let text = ["Shutdown manager detected shutdown event", "Shutdown manager detected shutdown cancellation"];
        assert_eq!(told, text);
    });
}

#[test]
fn no_pod_takes_the_time_of_others() {
    let (world, logind, mut bus) = machine(&[(0, 7), (CRITICAL, 5)]);
    // The engine does not come to an end with one of them, and another waits for its image.
    world.engine_does(|call, moment| {
        let hangs = moment == Moment::Before && ["stop l 7", "pull y:1"].contains(&call);
        async move { if hangs { std::future::pending().await } else { Ok(()) } }.boxed()
    });
    world.life(None, async || {
        bus.serve();
        world.make_pod("l", spec("l", 0));
        world.make_pod("c", spec("c", CRITICAL));
        until("both are ready", || world.is_ready("l") && world.is_ready("c")).await;
        // Images are pulled one after the other: the others would wait for this one, too.
        let mut waits = spec("w", 0);
        waits["containers"][0]["image"] = "y:1".into();
        world.make_pod("waits", waits);
        let left = |name: &str| world.mounts.points().iter().any(|point| point.starts_with(world.pod_dir(name)));
        until("one waits for its image", || left("waits")).await;
        bus.says(&logind.signal(true));
        until("the lock is given back", || logind.locks() == 0 && readiness(&world) == ENDS).await;
        assert_eq!(stops(&world).last().map(String::as_str), Some("c 5"));
        assert_eq!(failure(&world, "waits"), format!("Failed Terminated: {MESSAGE}"));
        assert!(left("l") && !left("waits") && !left("c"));
    });
}

#[test]
fn a_pod_that_is_on_its_way_out_has_no_more_time_than_the_machine() {
    let (world, logind, mut bus) = machine(&[(0, 2)]);
    world.engine_does(|call, moment| {
        let hangs = moment == Moment::Before && call == "stop l 5";
        async move { if hangs { std::future::pending().await } else { Ok(()) } }.boxed()
    });
    world.life(None, async || {
        bus.serve();
        world.make_pod("l", spec("l", 0));
        until("it is ready", || world.is_ready("l") && logind.locks() == 1).await;
        world.delete_pod("l");
        until("its end is said", || world.api.has_said("Killing: Stopping container l")).await;
        bus.says(&logind.signal(true));
        until("it is gone", || world.pod("l").is_none()).await;
        assert_eq!(stops(&world), ["l 2"]);
        until("the lock is given back", || logind.locks() == 0).await;
    });
}

#[test]
fn logind_is_let_wait_as_long_as_the_pods_need() {
    let (world, logind, mut bus) = machine(&[(0, 90), (CRITICAL, 10)]);
    let drop_in = world.place_of_logind().drop_ins.join(DROP_IN);
    world.life(None, async || {
        bus.serve();
        until("the lock is held", || logind.locks() == 1).await;
        let text = fs::read_to_string(&drop_in).unwrap();
        assert_eq!(text, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=100\n");
        assert_eq!(fs::metadata(&drop_in).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(logind.calls()[0], "kill systemd-logind.service all 1");
    });
    let (world, logind, mut bus) = machine(&[(0, 90)]);
    logind.disobeys();
    world.life(None, async || {
        bus.serve();
        let why = "unable to update logind InhibitDelayMaxSec to 1m30s (ShutdownGracePeriod), current value of \
                   InhibitDelayMaxSec (1m0s) is less than requested ShutdownGracePeriod";
        until("a person is told", || world.api.has_said(why)).await;
        bus.says(&logind.signal(true));
        world.make_pod("p", spec("p", 0));
        until("all goes on without", || world.is_ready("p")).await;
        assert_eq!((logind.locks(), readiness(&world).as_str()), (0, READY));
    });
}

#[test]
fn without_logind_pods_run_and_a_person_is_told() {
    let (world, _, bus) = machine(&[(0, 20)]);
    drop(bus);
    world.life(None, async || {
        world.make_pod("p", spec("p", 0));
        until("the Pod is ready", || world.is_ready("p")).await;
        let why = "Shutdown: shutdownGracePeriod has no effect, Pods are not ended before the machine is: Failed to start \
                   node shutdown manager: the connection to the message bus failed: No such file or directory";
        until("a person is told", || world.api.has_said(why)).await;
    });
}

#[test]
fn the_bus_and_logind_may_begin_anew() {
    let (world, logind, mut bus) = machine(&[(0, 20)]);
    let place = world.place_of_logind();
    world.life(None, async || {
        bus.serve();
        world.make_pod("p", spec("p", 0));
        until("all is ready", || world.is_ready("p") && logind.locks() == 1).await;
        // logind, under another name: the lock of before is given back once there is another one.
        bus.restarts_logind();
        until("another lock is held", || logind.calls().len() == 2 && logind.locks() == 1).await;
        bus.says(&prepare(":1.2", true));
        // The bus; while it is away, the end of the machine begins and is called off unheard.
        drop(bus);
        let mut bus = Bus::at(&place.socket, &logind);
        bus.serve();
        until("a third lock is held", || logind.calls().len() == 3 && logind.locks() == 1).await;
        assert_eq!(
            (world.is_ready("p"), readiness(&world).as_str()),
            (true, READY),
            "who had the name has it no longer"
        );
        drop(bus);
        logind.prepares(true);
        let mut bus = Bus::at(&place.socket, &logind);
        bus.serve();
        until("an end that began unheard is heard of", || readiness(&world) == ENDS && logind.locks() == 0).await;
        assert_eq!(failure(&world, "p"), format!("Failed Terminated: {MESSAGE}"));
        assert_eq!(logind.calls().len(), 3, "nobody is held up any more");
        drop(bus);
        logind.prepares(false);
        let mut bus = Bus::at(&place.socket, &logind);
        bus.serve();
        until("so is one that was called off", || readiness(&world) == READY && logind.locks() == 1).await;
    });
}

#[test]
fn programs_that_talk_to_the_kubelet_over_the_bus_end_no_pod() {
    let (world, logind, mut bus) = machine(&[(0, 20)]);
    world.life(None, async || {
        bus.serve();
        world.make_pod("p", spec("p", 0));
        until("all is ready", || world.is_ready("p") && logind.locks() == 1).await;
        let (unread, descriptor) = unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        bus.says(&prepare(":1.66", true));
        bus.says(&Message { path: "/else".into(), ..prepare(":1.2", true) });
        bus.says(&Message { signature: "s".into(), body: Body::default().text("true").0, ..prepare(":1.2", true) });
        bus.says(&Message { body: vec![7, 0, 0, 0], ..prepare(":1.2", true) });
        bus.says_with(&Message { descriptors: 1, ..prepare(":1.66", true) }, &descriptor);
        let long = Message { signature: "ay".into(), body: vec![1; 1 << 20], ..prepare(":1.66", true) };
        bus.says_with(&Message { descriptors: 1, ..long }, &descriptor);
        drop(descriptor);
        // Behind all that logind is heard: what it calls off costs another lock, and nothing else.
        bus.says(&logind.signal(false));
        until("another lock is held", || logind.calls().len() == 2 && logind.locks() == 1).await;
        assert_eq!((world.is_ready("p"), readiness(&world).as_str()), (true, READY));
        assert_eq!(unistd::read(&unread, &mut [0]), Ok(0), "descriptors that nobody asked for are closed");
        // A bus that speaks another language is left, and looked for again.
        for nonsense in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            &[0xff; 64],
            b"l\x04\0\x01\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff",
        ] {
            let before = logind.calls().len();
            bus.says_raw(nonsense);
            until("a lock is taken anew", || logind.calls().len() > before && logind.locks() == 1).await;
        }
        bus.says(&logind.signal(true));
        until("the machine's end is heard", || readiness(&world) == ENDS && logind.locks() == 0).await;
        assert_eq!(failure(&world, "p"), format!("Failed Terminated: {MESSAGE}"));
    });
}

/// A bus as machines have it, gone when this is dropped.
struct RealBus(Child);

impl RealBus {
    /// `None`, and a word about it, where there is none to start.
    fn start(folder: &Path, socket: &Path) -> Option<RealBus> {
        let config = folder.join("bus.conf");
        let text = format!(
            "<busconfig><type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\">\
             <allow own=\"*\"/><allow send_type=\"method_call\"/><allow send_type=\"signal\"/>\
             <allow send_requested_reply=\"true\" send_type=\"method_return\"/>\
             <allow send_requested_reply=\"true\" send_type=\"error\"/>\
             <allow receive_type=\"method_call\"/><allow receive_type=\"method_return\"/>\
             <allow receive_type=\"error\"/><allow receive_type=\"signal\"/></policy></busconfig>",
            socket.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.arg("--nofork").arg("--nopidfile").arg(format!("--config-file={}", config.display()));
        match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(RealBus(child)),
            Err(_) => {
                eprintln!("SKIPPED: no dbus-daemon on the path (Debian: dbus-daemon)");
                None
            }
        }
    }
}

impl Drop for RealBus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a bus, or for something else outside, in the machine's own time.
async fn outside(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        clock::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_real_bus_takes_what_is_said_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bus");
    let Some(bus) = RealBus::start(folder.path(), &socket) else { return };
    outside("the bus listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
    let error = logind::Logind::connect(&socket).await.err().unwrap().to_string();
    assert!(error.contains("StartServiceByName failed: org.freedesktop.DBus.Error."), "{error}");
    let machine = Logind::new(folder.path(), MINUTE);
    let serving = machine.clone().join(&socket).await;
    let mut logind = logind::Logind::connect(&socket).await.unwrap();
    assert!(!logind.is_preparing().await.unwrap());
    logind.wait_for(2 * MINUTE, folder.path()).await.unwrap();
    assert_eq!(logind.longest_delay().await.unwrap(), 2 * MINUTE);
    let lock = logind.inhibit().await.unwrap();
    assert_eq!(machine.locks(), 1);
    drop(lock);
    // A process that another test starts just then has the descriptor until it is a program of its own.
    outside("the lock is given back", || machine.locks() == 0).await;
    // Another program tells everybody, and the kubelet itself, that the machine ends.
    let mut stranger = Peer::connect(&socket).await;
    stranger.ask_bus("Hello", "", Body::default()).await;
    stranger.send(&prepare("", true), None).await;
    for number in 0..9 {
        stranger.send(&Message { destination: format!(":1.{number}"), ..prepare("", true) }, None).await;
    }
    // logind's own word is the first that counts.
    serving.tells(false);
    assert!(!logind.next().await.unwrap());
    serving.tells(true);
    assert!(logind.next().await.unwrap());
    drop(serving);
    assert!(matches!(logind.next().await, Err(logind::Error::Restarted)));
    drop(bus);
    assert!(matches!(logind.next().await, Err(logind::Error::Bus(_))));
}
