//! A Pod's life, also over an engine that answers late, wrongly or not at all.

use std::{
    os::unix::process::ExitStatusExt,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::features::Feature;
use futures::FutureExt;
use json::{Value, json};
use parking_lot::Mutex;
use runtime::{cri_api::ExecSyncResponse, fake::Moment};

use crate::tests::world::{World, until};

fn one_container(policy: &str) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 5, "containers": [{"name": "m", "image": "x:1"}]})
}

fn container(world: &World) -> Value {
    world.pod("p").map(|pod| pod["status"]["containerStatuses"][0].clone()).unwrap_or_default()
}

#[test]
fn a_pod_runs_restarts_with_pauses_and_goes() {
    let world = World::new();
    world.make_pod("p", one_container("Always"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        assert!(container(&world)["containerID"].as_str().unwrap().starts_with("fake://c"));
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let ended = clock::Instant::now();
            world.engine.exit("m", 1);
            let starts = world.asked("start m");
            until("the container runs again", || world.asked("start m") > starts).await;
            pauses.push(ended.elapsed().as_secs());
            until("it is ready", || world.is_ready("p")).await;
        }
        // The first comes at once; then the pause doubles.
        assert!(pauses[0] < 2 && (9..12).contains(&pauses[1]) && (19..22).contains(&pauses[2]), "{pauses:?}");
        assert_eq!(container(&world)["restartCount"], 3);
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        assert_eq!(world.asked("stop m 5"), 1);
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_status_that_others_have_written_over_is_put_right_and_that_of_a_pod_that_they_have_ended_is_not() {
    let world = World::new();
    world.make_pod("p", one_container("Always"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        let address = world.pod("p").unwrap()["status"]["podIP"].clone();
        world.overwrite_status("p", |status| {
            status["podIP"] = "9.9.9.9".into();
            let conditions = status["conditions"].as_array_mut().unwrap();
            conditions.iter_mut().for_each(|condition| condition["status"] = "False".into());
            conditions.push(json!({"type": "example.com/other", "status": "True"}));
        });
        assert!(!world.is_ready("p"));
        until("it is ready again", || world.is_ready("p")).await;
        assert_eq!(world.pod("p").unwrap()["status"]["podIP"], address);
        assert_eq!(world.said("p", "example.com/other")["status"], "True");
        world.overwrite_status("p", |status| status["phase"] = "Failed".into());
        clock::sleep(Duration::from_secs(30)).await;
        assert_eq!(world.phase("p"), "Failed");
    });
}

#[test]
fn a_container_with_another_image_does_not_pause_for_what_it_did_before() {
    let world = World::new();
    world.make_pod("p", one_container("Always"));
    world.life(None, async || {
        for failures in 0..4 {
            until("the container runs", || world.asked("start m") > failures && world.is_ready("p")).await;
            world.engine.exit("m", 1);
        }
        until("it waits", || container(&world)["state"]["waiting"]["reason"] == "CrashLoopBackOff").await;
        let (begun, starts) = (clock::Instant::now(), world.asked("start m"));
        world.change_pod("p", |spec| spec["containers"][0]["image"] = "y:1".into());
        until("it runs again", || world.asked("start m") > starts).await;
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_pod_that_goes_before_it_ran_has_failed() {
    let world = World::new();
    world.engine.fail("pull x:1", "no such image");
    world.make_pod("p", one_container("Always"));
    let failed = |pod: &Value| {
        let end = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        let (reason, code) = (&end["reason"], &end["exitCode"]);
        pod["status"]["phase"] == "Failed" && reason == "ContainerStatusUnknown" && code == 137
    };
    world.life(None, async || {
        until("it waits", || container(&world)["state"]["waiting"]["reason"] == "ImagePullBackOff").await;
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        assert!(world.api.was_ever("p", failed), "a Job that waits for its end would wait for ever");
    });
}

#[test]
fn images_are_mounted_once_they_are_there() {
    let world = World::new();
    let mount = |path: &str, part: &str| json!({"name": "v", "mountPath": path, "subPath": part});
    let spec = json!({
        "containers": [{"name": "m", "image": "x:1", "volumeMounts": [mount("/all", ""), mount("/part", "a/b")]}],
        "volumes": [{"name": "v", "image": {"reference": "data:1"}}],
    });
    world.engine.fail("pull data:1", "no such image");
    world.make_pod("p", spec);
    world.life(None, async || {
        let why = || container(&world)["state"]["waiting"].clone();
        until("it is told", || why()["reason"] == "ErrImagePull" && why()["message"] == "no such image").await;
        until("it waits", || why()["reason"] == "ImagePullBackOff").await;
        assert_eq!((world.asked("pull data:1"), world.asked("create m")), (1, 0));
        world.engine.succeed("pull data:1");
        until("the Pod is ready", || world.is_ready("p")).await;
        let mounts = world.engine.mounts("m");
        let image = |mount: &runtime::container::Mount| {
            let image = mount.image.as_ref().map(|image| image.image.clone());
            (mount.container_path.clone(), image, mount.image_sub_path.clone(), mount.readonly, mount.host_path.clone())
        };
        let expected =
            |path: &str, part: &str| (path.to_owned(), Some("data:1".to_owned()), part.to_owned(), true, String::new());
        assert_eq!(image(&mounts[0]), expected("/all", ""));
        assert_eq!(image(&mounts[1]), expected("/part", "a/b"));
        assert_eq!(container(&world)["user"]["linux"]["uid"], 0);
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_sandbox_and_its_containers_have_the_users_and_groups_of_their_pod_and_its_volumes() {
    let world = World::new();
    let volume = json!({
        "metadata": {"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": "7000"}},
        "spec": {"hostPath": {"path": world.manifests()}, "claimRef": {"namespace": "d", "name": "c", "uid": "c-1"}},
    });
    world.api.put("/api/v1/persistentvolumes/pv", volume);
    let claim = json!({"metadata": {"name": "c", "namespace": "d", "uid": "c-1"}, "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"}});
    world.api.put("/api/v1/namespaces/d/persistentvolumeclaims/c", claim);
    let mut spec = one_container("Always");
    spec["securityContext"] = json!({"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "supplementalGroups": [8]});
    spec["overhead"] = json!({"cpu": "250m"});
    spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    world.make_pod("p", spec);
    let check = || {
        let sandbox = world.engine.sandbox("p").unwrap().linux.unwrap();
        assert_eq!((sandbox.resources.unwrap().cpu_shares, sandbox.overhead.unwrap().cpu_shares), (2, 256));
        let of_sandbox = sandbox.security_context.unwrap();
        let of_container = world.engine.container("m").unwrap().linux.unwrap().security_context.unwrap();
        let value = |number: Option<runtime::cri_api::Int64Value>| number.map(|n| n.value);
        let expected = (Some(5), Some(6), vec![7, 7000, 8]);
        for got in [
            (value(of_sandbox.run_as_user), value(of_sandbox.run_as_group), of_sandbox.supplemental_groups),
            (value(of_container.run_as_user), value(of_container.run_as_group), of_container.supplemental_groups),
        ] {
            assert_eq!(got, expected);
        }
    };
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        check();
    });
    // The next kubelet knows the group from its record.
    world.life(None, async || {
        let starts = world.asked("start m");
        world.engine.exit("m", 1);
        until("it runs again", || world.asked("start m") > starts).await;
        check();
    });
}

#[test]
fn a_status_shows_the_signal_that_ends_a_container_where_the_feature_is_on() {
    let world = World::new();
    let mut spec = one_container("Always");
    spec["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGRTMIN+3"});
    world.make_pod("p", spec);
    let usual = *world.features.lock();
    *world.features.lock() = usual.with(Feature::ContainerStopSignals, true);
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        assert_eq!(container(&world)["stopSignal"], "SIGRTMIN+3");
    });
    *world.features.lock() = usual;
    world.life(None, async || {
        until("it is shown no longer", || container(&world)["stopSignal"].is_null()).await;
        assert!(world.is_ready("p"));
    });
}

#[test]
fn no_container_begins_before_the_network_lets_its_pod_in() {
    let world = World::new();
    world.make_pod("p", one_container("Always"));
    let mut host = one_container("Always");
    host["hostNetwork"] = true.into();
    world.make_pod("h", host);
    let (asked, lets_in) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (seen, open) = (asked.clone(), lets_in.clone());
    *world.network.lock() = Some(Arc::new(move |pod, addresses| {
        seen.lock().push((pod.metadata.name.clone().unwrap_or_default(), addresses.len()));
        let answer = if open.load(Ordering::Relaxed) { Ok(()) } else { Err("the rules are missing".to_owned()) };
        std::future::ready(answer).boxed()
    }));
    world.life(None, async || {
        until("the node's own network is always there", || world.is_ready("h")).await;
        let why = || container(&world)["state"]["waiting"].clone();
        until("the other Pod says why it waits", || why()["message"] == "the rules are missing").await;
        assert_eq!(why()["reason"], "CreateContainerError");
        assert_eq!(world.asked("create m"), 1, "the one on the node's network");
        lets_in.store(true, Ordering::Relaxed);
        until("it begins", || world.is_ready("p")).await;
        assert!(asked.lock().iter().all(|(name, addresses)| name == "p" && *addresses == 1), "{asked:?}");
    });
}

#[test]
fn a_pod_begins_anew_when_a_container_asks_for_it_also_over_a_kubelet_that_starts_again() {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let world = World::new();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "i", "image": "x:1"}],
        "containers": [
            {"name": "m", "image": "x:1", "restartPolicy": "Never", "restartPolicyRules": [rule]},
            {"name": "n", "image": "x:1"},
        ],
    });
    world.make_pod("p", spec);
    let counts = || -> Vec<i64> {
        let pod = world.pod("p").unwrap_or_default();
        let of = |list: &str| pod["status"][list].as_array().cloned().unwrap_or_default();
        let all = of("initContainerStatuses").into_iter().chain(of("containerStatuses"));
        all.map(|s| s["restartCount"].as_i64().unwrap_or(-1)).collect()
    };
    let run_init = async || {
        until("the init container runs", || world.engine.running() == ["i"]).await;
        world.engine.exit("i", 0);
    };
    world.life(None, async || {
        run_init().await;
        until("the Pod is ready", || world.is_ready("p")).await;
        world.engine.exit("m", 42);
        run_init().await;
        until("the Pod is ready again", || world.is_ready("p") && counts() == [1, 1, 1]).await;
        assert_eq!(world.asked("run_sandbox p"), 1, "the sandbox stays");
        world.engine.exit("m", 42);
    });
    world.life(None, async || {
        run_init().await;
        until("the Pod is ready for the third time", || world.is_ready("p") && counts() == [2, 2, 2]).await;
        world.engine.exit("n", 0);
        world.engine.exit("m", 1);
        until("the Pod has failed", || world.phase("p") == "Failed").await;
        world.delete_pod("p");
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_pod_that_ends_goes_on_saying_whether_it_serves_and_is_not_killed_for_its_answers() {
    let world = World::new();
    let mut spec = one_container("Always");
    for probe in ["readinessProbe", "livenessProbe"] {
        spec["containers"][0][probe] = json!({"exec": {"command": [probe]}, "periodSeconds": 1, "failureThreshold": 1});
    }
    world.make_pod("p", spec);
    let (hold, held) = tokio::sync::watch::channel(true);
    world.engine_does(move |call, moment| {
        let (mut held, waits) = (held.clone(), call.starts_with("stop m") && moment == Moment::Before);
        async move {
            if waits {
                let _ = held.wait_for(|held| !held).await;
            }
            Ok(())
        }
        .boxed()
    });
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.delete_pod("p");
        clock::sleep(Duration::from_secs(2)).await;
        assert!(world.is_ready("p"), "it still serves");
        world.engine.answer_exec(ExecSyncResponse { exit_code: 1, ..Default::default() });
        until("the Pod says that it does not serve", || world.pod("p").is_some() && !world.is_ready("p")).await;
        hold.send_replace(false);
        until("the Pod is gone", || world.pod("p").is_none()).await;
        assert_eq!((world.asked("stop m 5"), world.asked("start m")), (1, 1));
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn work_that_is_done_is_reported_and_not_done_again_by_the_next_kubelet() {
    let world = World::new();
    world.make_pod("p", one_container("Never"));
    world.life(None, async || {
        until("the container runs", || world.engine.running() == ["m"]).await;
        world.engine.exit("m", 0);
        until("the Pod has succeeded", || world.phase("p") == "Succeeded").await;
    });
    world.life(None, async || {
        clock::sleep(Duration::from_secs(60)).await;
        assert_eq!((world.phase("p").as_str(), world.asked("start m")), ("Succeeded", 1));
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_static_pod_outlives_its_kubelet_has_a_mirror_and_goes_with_its_file() {
    let world = World::new();
    let file = world.manifests().join("p.json");
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "d"}, "spec": one_container("Always")});
    std::fs::write(&file, pod.to_string()).unwrap();
    let is_shown = || world.pod("p-n1").is_some() && world.is_ready("p-n1");
    world.life(None, async || {
        until("the mirror is ready", is_shown).await;
    });
    world.life(None, async || {
        clock::sleep(Duration::from_secs(60)).await;
        assert!(is_shown());
        assert_eq!((world.asked("start m"), world.engine.running()), (1, vec!["m".to_owned()]));
        std::fs::remove_file(&file).unwrap();
        until("the mirror is gone", || world.pod("p-n1").is_none()).await;
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn what_runs_for_a_pod_that_is_gone_is_ended_by_the_next_kubelet() {
    let world = World::new();
    world.make_pod("p", one_container("Always"));
    world.life(None, async || until("the Pod is ready", || world.is_ready("p")).await);
    let world = world.with_another_api_server();
    world.life(None, async || until("nothing is left", || world.left().is_empty()).await);
}

/// A process in the cgroup of a Pod that has a folder here ends with what else is left of it. One in the cgroup of a Pod of which there
/// is nothing else may be another kubelet's on this machine.
#[test]
fn a_kubelet_ends_processes_of_its_own_pods_alone() {
    let world = World::new();
    let begin = |uid: &str| {
        let cgroup = world.cgroups().join(format!("memory/kubepods/besteffort/pod{uid}/c"));
        std::fs::create_dir_all(&cgroup).unwrap();
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(cgroup.join("cgroup.procs"), format!("{}\n", process.id())).unwrap();
        process
    };
    let (mut own, mut of_another) = (begin("own"), begin("other"));
    std::fs::create_dir_all(world.path("kubelet/pods/own")).unwrap();
    world.life(None, async || until("nothing is left", || world.left().is_empty()).await);
    assert_eq!(own.wait().unwrap().signal(), Some(9));
    assert_eq!(of_another.try_wait().unwrap(), None);
    of_another.kill().unwrap();
    of_another.wait().unwrap();
}

/// A whole life over an engine that does something else at the moments of its calls.
fn whole_life(
    engine: impl Fn(&str, Moment, usize) -> Option<runtime::Result<Duration>> + Send + Sync + 'static,
) -> World {
    let world = World::new();
    let seen = Arc::new(Mutex::new(std::collections::BTreeMap::<String, usize>::new()));
    world.engine_does(move |call, moment| {
        let mut seen = seen.lock();
        let count = seen.entry(format!("{call} {moment:?}")).or_default();
        *count += 1;
        let what = engine(call, moment, *count);
        async move {
            match what {
                None => Ok(()),
                Some(Ok(late)) => {
                    clock::sleep(late).await;
                    Ok(())
                }
                Some(Err(error)) => Err(error),
            }
        }
        .boxed()
    });
    world.make_pod("p", one_container("Always"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        until("nothing is left", || world.left().is_empty()).await;
    });
    world
}

#[test]
fn an_engine_that_answers_late_is_waited_for() {
    let world = whole_life(|_, _, _| Some(Ok(Duration::from_secs(3))));
    assert_eq!((world.asked("run_sandbox p"), world.asked("start m")), (1, 1));
}

#[test]
fn an_end_that_the_engine_shows_long_after_its_event_is_seen() {
    let world = World::new();
    world.make_pod("p", one_container("Never"));
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        world.engine.speak_of("m");
        clock::sleep(Duration::from_secs(20)).await;
        world.engine.exit_quietly("m", 0);
        let ended = clock::Instant::now();
        until("the Pod has succeeded", || world.phase("p") == "Succeeded").await;
        // Without the event it would be found when the Pod is looked at anyway.
        assert!(ended.elapsed() < Duration::from_secs(16), "{:?}", ended.elapsed());
    });
}

/// Calls that do something, and what an engine says that does them, or does not, and answers with an error.
const CALLS: [&str; 7] =
    ["run_sandbox p", "pull x:1", "create m", "start m", "stop m 5", "stop_sandbox", "remove_sandbox"];

fn lost() -> runtime::Error {
    let socket = "/run/engine.sock".to_owned();
    runtime::Error::Unreachable { socket, message: "the connection broke".to_owned() }
}

#[test]
fn a_call_that_fails_once_is_made_again() {
    for failing in CALLS {
        let world = whole_life(move |call, moment, count| {
            (call == failing && moment == Moment::Before && count == 1).then(|| Err(lost()))
        });
        assert_eq!(world.asked("start m"), 1, "{failing}");
    }
}

#[test]
fn a_call_that_was_carried_out_and_answered_with_an_error_is_not_made_twice() {
    for failing in CALLS {
        let world = whole_life(move |call, moment, count| {
            (call == failing && moment == Moment::After && count == 1).then(|| Err(lost()))
        });
        assert_eq!(world.asked("start m"), 1, "{failing}: {:?}", world.engine.calls());
        assert_eq!(world.asked("run_sandbox p"), 1, "{failing}: {:?}", world.engine.calls());
    }
}

#[test]
fn an_engine_that_is_away_for_a_while_costs_time_and_nothing_else() {
    // Nothing is answered at first, however the engine is asked.
    let world = whole_life(|_, moment, count| (moment == Moment::Before && count < 5).then(|| Err(lost())));
    assert_eq!((world.asked("run_sandbox p"), world.asked("start m")), (1, 1));
}

#[test]
fn an_engine_that_does_not_answer_in_time_is_asked_again() {
    // The client of the engine gives up after a while; whether the call was carried out is not known.
    for carried_out in [Moment::Before, Moment::After] {
        for failing in CALLS {
            let world = World::new();
            let first = Arc::new(Mutex::new(true));
            world.engine_does(move |call, moment| {
                let hangs = call == failing && moment == carried_out && std::mem::take(&mut *first.lock());
                async move {
                    if hangs {
                        clock::sleep(Duration::from_secs(240)).await;
                        return Err(lost());
                    }
                    Ok(())
                }
                .boxed()
            });
            world.make_pod("p", one_container("Always"));
            world.life(None, async || {
                until("the Pod is ready", || world.is_ready("p")).await;
                world.delete_pod("p");
                until("the Pod is gone", || world.pod("p").is_none()).await;
                until("nothing is left", || world.left().is_empty()).await;
            });
            assert_eq!(world.asked("start m"), 1, "{failing}: {:?}", world.engine.calls());
        }
    }
}

#[test]
fn the_end_of_a_pod_waits_for_a_start_that_the_engine_works_on_unless_it_hangs() {
    for (takes, expected) in [(3, &[Moment::Before, Moment::After][..]), (3600, &[Moment::Before])] {
        let world = World::new();
        let moments = Arc::new(Mutex::new(Vec::new()));
        let noted = moments.clone();
        world.engine_does(move |call, moment| {
            let starts = call == "start m";
            if starts {
                noted.lock().push(moment);
            }
            let takes = if starts && moment == Moment::Before { takes } else { 0 };
            clock::sleep(Duration::from_secs(takes)).map(Ok).boxed()
        });
        world.make_pod("p", one_container("Always"));
        world.life(None, async || {
            until("the engine starts it", || !moments.lock().is_empty()).await;
            world.delete_pod("p");
            until("the Pod is gone", || world.pod("p").is_none()).await;
            until("nothing is left", || world.left().is_empty()).await;
        });
        assert_eq!(*moments.lock(), expected, "of a start that takes {takes} s");
    }
}

#[test]
fn a_pull_that_never_ends_gives_way_to_a_deletion() {
    let world = World::new();
    world.engine_does(
        |call, _| if call.starts_with("pull") { std::future::pending().boxed() } else { async { Ok(()) }.boxed() },
    );
    world.make_pod("p", one_container("Always"));
    world.life(None, async || {
        until("the Pod is shown as waiting", || container(&world)["state"]["waiting"].is_object()).await;
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        until("nothing is left", || world.left().is_empty()).await;
    });
}

/// A pull that nobody waits for any more says how it ended: cut off, it would leave an image that was here before for nobody.
#[test]
fn a_pull_goes_on_without_its_pod_and_takes_the_image_from_nobody() {
    let world = World::new();
    world.engine.add_image("x:1");
    let moments = Arc::new(Mutex::new(Vec::new()));
    let noted = moments.clone();
    world.engine_does(move |call, moment| {
        let pulls = call.starts_with("pull");
        if pulls {
            noted.lock().push(moment);
        }
        async move {
            if pulls && moment == Moment::Before {
                clock::sleep(Duration::from_secs(30)).await;
                return Err(lost());
            }
            Ok(())
        }
        .boxed()
    });
    let mut spec = one_container("Always");
    spec["containers"][0]["imagePullPolicy"] = json!("Always");
    world.make_pod("p", spec);
    world.life(None, async || {
        until("the image is pulled", || !moments.lock().is_empty()).await;
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        clock::sleep(Duration::from_secs(60)).await;
        let mut spec = one_container("Always");
        spec["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        world.make_pod("q", spec);
        until("a Pod that may use what is here is ready", || world.is_ready("q")).await;
    });
    assert_eq!(*moments.lock(), [Moment::Before]);
}

#[test]
fn a_volume_that_no_container_has_is_mounted_for_the_first_that_is_added_with_it() {
    let world = World::new();
    let mut spec = one_container("Always");
    spec["volumes"] = json!([{"name": "e", "emptyDir": {}}, {"name": "none", "secret": {"secretName": "none"}}]);
    world.make_pod("p", spec);
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        let folder = world.pod_dir("p").join("volumes");
        assert!(!folder.join("kubernetes.io~empty-dir").exists() && !folder.join("kubernetes.io~secret").exists());
        let added = json!([{"name": "look", "image": "x:1", "volumeMounts": [{"name": "e", "mountPath": "/e"}]}]);
        world.change_pod("p", |spec| spec["ephemeralContainers"] = added);
        until("it is there", || world.asked("start look") == 1).await;
        assert!(folder.join("kubernetes.io~empty-dir/e").is_dir());
        assert!(world.engine.mounts("look").iter().any(|mount| mount.container_path == "/e"));
    });
}

#[test]
fn a_pod_whose_volumes_an_older_kubelet_did_not_write_down_goes_on() {
    let world = World::new();
    let mut spec = one_container("Always");
    spec["volumes"] = json!([{"name": "e", "emptyDir": {"medium": "Memory"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "e", "mountPath": "/e", "subPath": "part"}]);
    world.make_pod("p", spec);
    world.life(None, async || until("the Pod is ready", || world.is_ready("p")).await);
    std::fs::remove_file(world.pod_dir("p").join("volumes.json")).unwrap();
    world.life(None, async || {
        world.engine.exit("m", 1);
        until("the container runs again", || world.asked("start m") == 2).await;
        assert!(world.pod_dir("p").join("volumes.json").exists());
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        until("nothing is left", || world.left().is_empty()).await;
    });
}

#[test]
fn a_pod_that_runs_out_of_time_leaves_no_container_that_waits() {
    let world = World::new();
    world.engine.fail("pull y:1", "no such image");
    let containers = json!([{"name": "m", "image": "x:1"}, {"name": "n", "image": "y:1"}]);
    world.make_pod("p", json!({"restartPolicy": "Always", "activeDeadlineSeconds": 20, "containers": containers}));
    world.life(None, async || {
        for starts in [1, 2, 3] {
            until("the container runs", || world.asked("start m") == starts).await;
            world.engine.exit("m", 3);
        }
        let state = |index: usize| world.pod("p").unwrap()["status"]["containerStatuses"][index]["state"].clone();
        until("both wait", || !state(0)["waiting"].is_null() && !state(1)["waiting"].is_null()).await;
        until("time is up", || world.phase("p") == "Failed").await;
        until("both have ended", || !state(0)["terminated"].is_null() && !state(1)["terminated"].is_null()).await;
        assert_eq!(world.pod("p").unwrap()["status"]["reason"], "DeadlineExceeded");
        let ends = [0, 1].map(|index| state(index)["terminated"]["exitCode"].clone());
        assert_eq!(ends, [json!(3), json!(137)], "what is known of an end is told");
        assert_eq!(state(1)["terminated"]["reason"], "ContainerStatusUnknown");
    });
}

#[test]
fn bytes_that_are_no_text_become_no_variable() {
    let world = World::new();
    world.api.put(
        "/api/v1/namespaces/d/configmaps/m",
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m", "namespace": "d"},
            "data": {"text": "a"}, "binaryData": {"bytes": "/w=="}}),
    );
    let of = |key: &str| {
        let from = json!({"configMapKeyRef": {"name": "m", "key": key}});
        json!({"containers": [{"name": "m", "image": "x:1", "env": [{"name": "V", "valueFrom": from}]}]})
    };
    world.make_pod("p", of("text"));
    world.make_pod("q", of("bytes"));
    world.life(None, async || {
        until("the one has its variable", || world.is_ready("p")).await;
        let waiting = || world.pod("q").unwrap()["status"]["containerStatuses"][0]["state"]["waiting"].clone();
        until("the other says what it lacks", || waiting()["reason"] == "CreateContainerConfigError").await;
        assert_eq!(waiting()["message"], "couldn't find key bytes in ConfigMap d/m");
    });
}
