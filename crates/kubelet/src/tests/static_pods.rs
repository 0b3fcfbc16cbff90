//! Static Pods whose manifests change: of one name only one runs at a time, and its mirror shows what runs.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use json::{Value, json};
use runtime::{Error, fake::Moment};
use tokio::sync::watch;

use crate::tests::world::{World, until};

const MIRROR: &str = "/api/v1/namespaces/d/pods/p-n1";

/// A world in which container `a` ends only when it is let go.
struct Story {
    world: World,
    holds: watch::Sender<bool>,
    /// The engine does not say what it has.
    is_silent: Arc<AtomicBool>,
}

impl Story {
    fn new() -> Self {
        let (holds, held) = watch::channel(true);
        let is_silent = Arc::new(AtomicBool::new(false));
        let (world, silent) = (World::new(), is_silent.clone());
        world.engine_does(move |call, moment| {
            let waits = call.starts_with("stop a ") && moment == Moment::Before;
            let fails = call == "sandboxes" && silent.load(Ordering::Relaxed);
            let mut held = held.clone();
            async move {
                if waits {
                    let _ = held.wait_for(|held| !held).await;
                }
                let failure = Error::Incomplete { call: "a question", field: "an answer" };
                if fails { Err(failure) } else { Ok(()) }
            }
            .boxed()
        });
        Story { world, holds, is_silent }
    }

    fn let_go(&self) {
        self.holds.send_replace(false);
    }

    fn manifest(&self) -> PathBuf {
        self.world.manifests().join("p.json")
    }

    /// Writes the manifest whose only container has this name.
    fn write(&self, container: &str) {
        let spec = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5,
            "containers": [{"name": container, "image": "x:1"}]});
        let metadata = json!({"name": "p", "namespace": "d"});
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec});
        // In one step: half of a manifest would be none.
        let draft = self.world.path("draft");
        fs::write(&draft, pod.to_string()).unwrap();
        fs::rename(draft, self.manifest()).unwrap();
    }

    fn mirror(&self) -> Option<Value> {
        self.world.api.get(MIRROR)
    }

    /// The mirror shows that this container, which it names, is ready.
    fn shows(&self, container: &str) -> bool {
        let named = self.mirror().unwrap_or_default()["spec"]["containers"][0]["name"].clone();
        named == container && self.world.is_ready("p-n1")
    }

    /// For a minute `a` runs on alone, and the mirror shows it.
    async fn a_stays(&self) {
        for _ in 0..60 {
            clock::sleep(Duration::from_secs(1)).await;
            assert_eq!(self.world.engine.running(), ["a"]);
            assert!(self.shows("a") && self.world.phase("p-n1") == "Running", "{:?}", self.mirror());
        }
    }

    /// `a` was stopped without the grace that its own manifest gave it: the kubelet that knew of that is gone.
    fn a_was_hurried(&self) {
        assert_eq!(["stop a 2", "stop a 5"].map(|call| self.world.asked(call)), [1, 0]);
    }

    /// From now on this container runs alone, and is shown.
    async fn turns_into(&self, container: &str) {
        until("the newest is shown", || self.shows(container)).await;
        assert_eq!(self.world.engine.running(), [container]);
    }
}

#[test]
fn an_update_waits_for_what_runs_of_its_predecessor() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || {
        until("the first is shown", || story.shows("a")).await;
        story.write("b");
        story.a_stays().await;
        assert_eq!(story.world.asked("create b"), 0);
        story.let_go();
        story.turns_into("b").await;
        assert_eq!((story.world.asked("start a"), story.world.asked("start b")), (1, 1));
    });
}

#[test]
fn of_several_updates_only_the_newest_begins() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || {
        until("the first is shown", || story.shows("a")).await;
        for update in ["b", "c", "d"] {
            story.write(update);
            clock::sleep(Duration::from_secs(1)).await;
        }
        story.a_stays().await;
        story.let_go();
        story.turns_into("d").await;
        assert_eq!(["b", "c"].map(|name| story.world.asked(&format!("create {name}"))), [0, 0]);
    });
}

#[test]
fn an_update_that_is_taken_back_makes_the_first_begin_anew() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || {
        until("the first is shown", || story.shows("a")).await;
        story.write("b");
        clock::sleep(Duration::from_secs(1)).await;
        story.write("a");
        story.a_stays().await;
        story.let_go();
        until("it has begun again", || story.world.asked("start a") == 2).await;
        story.turns_into("a").await;
        assert_eq!(story.world.asked("create b"), 0);
        // The new worker knows its mirror.
        story.world.engine.exit("a", 1);
        let restarts = || story.mirror().unwrap_or_default()["status"]["containerStatuses"][0]["restartCount"].clone();
        until("its restart is shown", || restarts() == 1).await;
    });
}

#[test]
fn a_mirror_stays_until_what_it_shows_has_ended() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || {
        until("the first is shown", || story.shows("a")).await;
        fs::remove_file(story.manifest()).unwrap();
        story.a_stays().await;
        story.let_go();
        until("the mirror is gone", || story.mirror().is_none()).await;
        assert!(story.world.engine.running().is_empty());
        until("nothing is left", || story.world.left().is_empty()).await;
    });
}

#[test]
fn an_update_whose_file_goes_while_it_waits_never_begins() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || {
        until("the first is shown", || story.shows("a")).await;
        story.write("b");
        clock::sleep(Duration::from_secs(1)).await;
        fs::remove_file(story.manifest()).unwrap();
        story.a_stays().await;
        story.let_go();
        until("the mirror is gone", || story.mirror().is_none()).await;
        until("nothing is left", || story.world.left().is_empty()).await;
        assert_eq!(story.world.asked("create b"), 0);
    });
}

#[test]
fn a_mirror_that_somebody_deletes_goes_and_comes_back_only_for_what_stays() {
    let story = Story::new();
    story.write("a");
    let delete = || {
        let mut mirror = story.mirror().unwrap();
        mirror["metadata"]["deletionTimestamp"] = clock::now_seconds().to_string().into();
        story.world.api.put(MIRROR, mirror);
    };
    let is_deleted = || story.mirror().is_some_and(|mirror| !mirror["metadata"]["deletionTimestamp"].is_null());
    story.world.life(None, async || {
        until("the first is shown", || story.shows("a")).await;
        delete();
        until("there is another", || story.mirror().is_some() && !is_deleted()).await;
        fs::remove_file(story.manifest()).unwrap();
        clock::sleep(Duration::from_secs(1)).await;
        delete();
        until("the mirror is gone", || story.mirror().is_none()).await;
        clock::sleep(Duration::from_secs(60)).await;
        assert!(story.mirror().is_none());
        assert_eq!(story.world.engine.running(), ["a"]);
    });
}

#[test]
fn what_an_earlier_kubelet_left_of_an_older_manifest_comes_to_its_end_first() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || until("the first is shown", || story.shows("a")).await);
    story.write("b");
    story.is_silent.store(true, Ordering::Relaxed);
    story.world.life(None, async || {
        story.a_stays().await;
        story.is_silent.store(false, Ordering::Relaxed);
        story.a_stays().await;
        assert_eq!(story.world.asked("create b"), 0);
        story.let_go();
        story.turns_into("b").await;
        story.a_was_hurried();
    });
}

#[test]
fn the_mirror_of_a_manifest_that_went_while_no_kubelet_was_there_stays_until_the_end_too() {
    let story = Story::new();
    story.write("a");
    story.world.life(None, async || until("the first is shown", || story.shows("a")).await);
    fs::remove_file(story.manifest()).unwrap();
    story.world.life(None, async || {
        story.a_stays().await;
        story.let_go();
        until("the mirror is gone", || story.mirror().is_none()).await;
        until("nothing is left", || story.world.left().is_empty()).await;
        story.a_was_hurried();
    });
}
