//! Many Pods at once: the engine is asked for a few starts at a time, the others wait in a line, and whatever ends a Pod does not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use json::{Value, json};
use parking_lot::Mutex;
use runtime::fake::Moment;

use crate::tests::world::{World, until};

/// A Pod whose container has its name, so that the engine's calls tell whose they are.
fn spec(name: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": name, "image": "x:1"}]})
}

fn is_start(call: &str) -> bool {
    ["run_sandbox ", "create ", "start "].iter().any(|verb| call.starts_with(verb))
}

/// The thing that a Pod's container waits for by its status.
fn waits_for(world: &World, name: &str) -> Value {
    let pod = world.pod(name).unwrap_or_default();
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone()
}

#[test]
fn the_engine_works_on_a_few_starts_at_a_time_and_finishes_pods_before_it_begins_others() {
    let world = World::new();
    let (now, most) = (Arc::new(Mutex::new(0_usize)), Arc::new(Mutex::new(0_usize)));
    let (counted, peak) = (now.clone(), most.clone());
    world.engine_does(move |call, moment| {
        let (counted, peak, is_start) = (counted.clone(), peak.clone(), is_start(call));
        async move {
            match moment {
                Moment::Before if is_start => {
                    let busy = {
                        let mut busy = counted.lock();
                        *busy += 1;
                        *busy
                    };
                    let mut peak = peak.lock();
                    *peak = busy.max(*peak);
                }
                Moment::After if is_start => {
                    clock::sleep(Duration::from_secs(1)).await;
                    *counted.lock() -= 1;
                }
                _ => {}
            }
            Ok(())
        }
        .boxed()
    });
    world.life(None, async || {
        let bound = world.kubelet().starts.most;
        let names: Vec<String> = (0..bound * 4).map(|i| format!("p{i}")).collect();
        names.iter().for_each(|name| world.make_pod(name, spec(name)));
        until("the first runs", || names.iter().any(|name| world.phase(name) == "Running")).await;
        let begun: BTreeSet<_> = world.engine.calls().into_iter().filter(|c| c.starts_with("run_sandbox")).collect();
        assert!(begun.len() <= bound * 2, "{} Pods have a sandbox before the first one runs", begun.len());
        let waiting = names.iter().find(|name| world.asked(&format!("run_sandbox {name}")) == 0).unwrap();
        assert_eq!(world.phase(waiting), "Pending");
        assert_eq!(waits_for(&world, waiting), "ContainerCreating");
        until("all are ready", || names.iter().all(|name| world.is_ready(name))).await;
        assert_eq!(*most.lock(), bound);
        let mut asked = BTreeMap::<String, usize>::new();
        world.engine.calls().into_iter().filter(|c| is_start(c)).for_each(|c| *asked.entry(c).or_default() += 1);
        assert_eq!(asked.len(), names.len() * 3);
        assert!(asked.values().all(|count| *count == 1), "{asked:?}");
    });
    assert_eq!(*now.lock(), 0);
}

#[test]
fn starts_that_hang_hold_up_neither_new_pods_nor_any_end() {
    let world = World::new();
    world.make_pod("old", spec("old"));
    let hanging = Arc::new(Mutex::new(BTreeSet::new()));
    let noted = hanging.clone();
    world.engine_does(move |call, moment| {
        let hangs = moment == Moment::Before && call.starts_with("run_sandbox bad");
        if hangs {
            noted.lock().insert(call.to_owned());
        }
        async move { if hangs { std::future::pending().await } else { Ok(()) } }.boxed()
    });
    world.life(None, async || {
        until("it is ready", || world.is_ready("old")).await;
        let bound = world.kubelet().starts.most;
        let bad: Vec<String> = (0..bound * 3).map(|i| format!("bad{i}")).collect();
        bad.iter().for_each(|name| world.make_pod(name, spec(name)));
        let asked = || hanging.lock().len();
        let is_asked = |name: &String| hanging.lock().contains(&format!("run_sandbox {name}"));
        until("all places are taken", || asked() == bound).await;
        // One that waits in the line, and one that runs, go at once.
        let waiting = bad.iter().find(|name| !is_asked(name)).unwrap();
        for name in [waiting, "old"] {
            world.delete_pod(name);
            until("it is gone", || world.pod(name).is_none()).await;
        }
        assert_eq!(asked(), bound, "no other has got a place yet");
        assert!(!is_asked(waiting));
        world.make_pod("good", spec("good"));
        until("the Pod behind all that hang is ready", || world.is_ready("good")).await;
        assert_eq!(asked(), bound * 3 - 1);
        for name in bad.iter().filter(|name| *name != waiting).map(String::as_str).chain(["good"]) {
            world.delete_pod(name);
        }
        until("nothing is left", || world.left().is_empty()).await;
    });
}
