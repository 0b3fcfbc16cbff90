//! Logs in folders that others use too: found wherever they were begun, removed with their Pods, and nobody else's ever.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use json::{Value, json};

use crate::{
    SharedLogs,
    tests::world::{World, until},
};

fn spec() -> Value {
    let container = json!({"name": "m", "image": "x:1", "terminationMessagePolicy": "FallbackToLogsOnError"});
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [container]})
}

/// From now on logs are in a folder of that name.
fn share(world: &World, name: &str) {
    *world.shared_logs.lock() = Some(SharedLogs { folder: world.path(name), links: world.path("links") });
}

/// A world whose engine writes logs, with logs and a link of somebody else's.
fn world() -> World {
    let world = World::new();
    world.engine.write_logs();
    let theirs = world.path("shared/their_pod_u-9/c");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("0.log"), "theirs").unwrap();
    fs::create_dir(world.path("links")).unwrap();
    symlink(theirs.join("0.log"), world.path("links/pod_their_c-0123456789.log")).unwrap();
    symlink("/nowhere", world.path("links/dead_their_c-0123456789.log")).unwrap();
    world.make_pod("p", spec());
    world
}

fn theirs_is_there(world: &World) -> bool {
    let dead = world.path("links/dead_their_c-0123456789.log").is_symlink();
    dead && fs::read(world.path("links/pod_their_c-0123456789.log")).is_ok_and(|log| log == b"theirs")
}

/// The logs to which links of this node lead, the oldest first.
fn linked(world: &World) -> Vec<PathBuf> {
    let links = fs::read_dir(world.path("links")).unwrap().flatten().map(|entry| entry.path());
    let ours = links.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("p_d_m-"));
    let mut logs: Vec<_> = ours.map(|link| fs::read_link(link).unwrap()).collect();
    logs.sort();
    logs
}

fn last_words(world: &World) -> Value {
    let container = world.pod("p").map(|pod| pod["status"]["containerStatuses"][0].clone()).unwrap_or_default();
    container["lastState"]["terminated"]["message"].clone()
}

/// The container fails and runs again; what it says last is what stood in its log.
async fn fail(world: &World) {
    let starts = world.asked("start m");
    let before = last_words(world);
    world.engine.exit("m", 1);
    until("it runs again", || world.asked("start m") > starts && world.is_ready("p")).await;
    let says = || last_words(world).as_str().is_some_and(|words| words.starts_with("this is c"));
    until("its last words are told", || says() && last_words(world) != before).await;
}

#[test]
fn a_pod_keeps_its_logs_when_their_folder_is_changed_and_takes_all_of_them_along() {
    let world = world();
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
    });
    assert!(world.path("logs/d_p_p-1/m/0.log").exists() && linked(&world).is_empty());
    share(&world, "shared");
    world.life(None, async || {
        fail(&world).await;
        until("it has a link", || linked(&world) == [world.path("shared/d_p_p-1/m/1.log")]).await;
    });
    share(&world, "elsewhere");
    world.life(None, async || {
        fail(&world).await;
        let log = |folder: &str, name: &str| world.path(&format!("{folder}/d_p_p-1/m/{name}"));
        until("each container has a link", || {
            // The first one's container has been removed, with its log.
            linked(&world) == [log("elsewhere", "2.log"), log("shared", "1.log")] && !log("logs", "0.log").exists()
        })
        .await;
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none() && world.left().is_empty()).await;
        let folders = ["shared", "elsewhere", "logs"].map(|folder| world.path(folder).join("d_p_p-1").exists());
        assert_eq!((folders, linked(&world)), ([false; 3], Vec::new()));
    });
    assert!(theirs_is_there(&world));
    *world.shared_logs.lock() = None;
    let on_record = || fs::read_dir(world.path("kubelet/pod-logs")).unwrap().count();
    assert!(on_record() > 0);
    world.life(None, async || {
        until("nothing is on record and the folder that it made is gone", || {
            on_record() == 0 && !world.path("elsewhere").exists()
        })
        .await;
    });
    assert!(theirs_is_there(&world));
}

#[test]
fn a_pod_leaves_no_logs_wherever_its_kubelet_is_killed() {
    for pass in 1.. {
        let world = world();
        share(&world, "shared");
        let story = async || {
            if world.pod("p").is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
                until("the Pod is ready", || world.is_ready("p")).await;
                world.delete_pod("p");
            }
            until("the Pod is gone", || world.pod("p").is_none()).await;
            until("nothing is left", || world.left().is_empty()).await;
        };
        let was_killed = !world.life(Some(pass), story);
        // The Pod may also be gone when the kubelet comes back, or the node be ended as it is.
        if was_killed && pass % 2 == 0 {
            crate::engine::log_folders::remove_shared(&world.path("kubelet")).unwrap();
            let folder = world.path("shared/d_p_p-1");
            assert!(!folder.exists() && linked(&world).is_empty() && theirs_is_there(&world), "killed at {pass}");
        }
        if was_killed {
            assert!(world.life(None, story));
        }
        assert!(world.left().is_empty() && theirs_is_there(&world), "killed at {pass}");
        if !was_killed {
            assert!(pass > 10, "only {pass} calls went out");
            return;
        }
    }
}

#[test]
fn links_that_lead_nowhere_go_when_their_container_has_ended() {
    let world = world();
    share(&world, "shared");
    world.life(None, async || {
        until("it has a link", || !linked(&world).is_empty()).await;
        let id = last_words(&world);
        assert!(id.is_null());
        // Its log has no name for a moment, and another's container has gone.
        fs::remove_file(&linked(&world)[0]).unwrap();
        let old = world.path("links/p_d_m-0000000000.log");
        symlink(world.path("shared/d_p_p-1/m/9.log"), &old).unwrap();
        let running = linked(&world)[0].clone();
        until("the old one has gone", || !old.is_symlink()).await;
        assert_eq!(linked(&world), [running]);
    });
    assert!(theirs_is_there(&world));
}
