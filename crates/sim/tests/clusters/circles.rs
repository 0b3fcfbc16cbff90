//! A controller that does not hear that its own object is gone goes on making Pods for it, and garbage collection takes them
//! away. Neither goes in a circle (the checkers of pace say so), and in the end nothing is left. Where nobody backs off, they
//! do, and the checkers complain.

use std::panic::{AssertUnwindSafe, catch_unwind};

use client::{
    Kind,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::{Pod, ReplicationController},
};
use sim::{Cluster, Component, Faults, cluster::simulate};

const NODES: usize = 4;

fn made_after(pod: &Pod, at: clock::Timestamp) -> bool {
    pod.metadata.creation_timestamp.as_ref().is_some_and(|made| made.0 > at)
}

async fn write<K: Kind>(cluster: &Cluster, name: &str, verb: Verb) {
    let written = rest::write(&cluster.client(), &Resource::of::<K>(), "default", name, "", &verb).await;
    if let Err(error) = written {
        cluster.fail(&format!("the test's own write failed: {}", rest::message(&error)));
    }
}

async fn pass(cluster: &Cluster, seconds: u64) {
    let (time, end) = (Duration::from_secs(seconds), Instant::now() + Duration::from_secs(seconds));
    cluster.until("some time has passed", 2 * time, |_| Instant::now() >= end).await;
}

/// The owner's Pods are there, its controller hears no more of it, and it is deleted.
fn deaf_to<K: Kind>(spec: Value) {
    let container = json!({"name": "c", "image": "i"});
    let mut spec = spec;
    spec["template"] = json!({"metadata": {"labels": {"app": "o"}}, "spec": {"containers": [container],
        "restartPolicy": if K::KIND == "Job" { "Never" } else { "Always" }}});
    let owner = json!({"apiVersion": K::API_VERSION, "kind": K::KIND,
        "metadata": {"name": "o", "namespace": "default"}, "spec": spec});
    story::<K>(&owner, true);
    // A Job's Pods stay until they are counted, so it makes none in their place.
    if K::KIND == "Job" {
        return;
    }
    let circle = catch_unwind(AssertUnwindSafe(|| story::<K>(&owner, false)));
    let text = circle.err().and_then(|panic| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(text.contains("objects were made for") || text.contains("it was written more than"), "no circle: {text}");
}

fn story<K: Kind>(owner: &Value, backs_off: bool) {
    simulate(1, async |seed| {
        let mut cluster = Cluster::start(seed, NODES).await;
        cluster.options.backs_off = backs_off;
        let unseen = Resource::of::<K>().plural.leak();
        let broken = Faults::broken_watches_of(unseen);
        cluster.weather.set(broken.clone());
        cluster.run(Component::Manager(0));
        let soon = Duration::from_secs(120);
        cluster.until("all nodes are there", soon, |m| m.nodes().count() == NODES).await;
        write::<K>(&cluster, "", Verb::Create(owner.clone())).await;
        cluster.until("it has its Pods", soon, |m| m.pods().count() >= NODES).await;
        cluster.weather.set(Faults { unseen, ..broken });
        pass(&cluster, 5).await;
        let propagation = Some("Background");
        let deleted = clock::now_seconds();
        write::<K>(&cluster, "o", Verb::Delete(DeleteOptions { propagation, ..DeleteOptions::default() })).await;
        // A Job's Pods stay until they are counted, which cannot be any more.
        if K::KIND != "Job" {
            cluster.until("one is made in vain", soon, |m| m.pods().any(|pod| made_after(pod, deleted))).await;
        }
        pass(&cluster, 100).await;
        cluster.weather.set(Faults::NONE);
        cluster.until("nothing is left", soon, |m| m.pods().count() == 0).await;
        cluster.check("at the end");
    });
}

fn selector() -> Value {
    json!({"matchLabels": {"app": "o"}})
}

#[test]
fn replica_sets() {
    deaf_to::<ReplicaSet>(json!({"replicas": NODES, "selector": selector()}));
}

#[test]
fn replication_controllers() {
    deaf_to::<ReplicationController>(json!({"replicas": NODES, "selector": {"app": "o"}}));
}

#[test]
fn stateful_sets() {
    let policy = "Parallel";
    let spec = json!({"replicas": NODES, "serviceName": "s", "podManagementPolicy": policy, "selector": selector()});
    deaf_to::<StatefulSet>(spec);
}

#[test]
fn daemon_sets() {
    deaf_to::<DaemonSet>(json!({"selector": selector()}));
}

#[test]
fn jobs() {
    deaf_to::<Job>(json!({"parallelism": NODES, "completions": 10_000}));
}
