//! The events that a controller did not hear of. An owner comes and goes while the garbage collector hears nothing of its kind:
//! neither the watch before nor the list after tells of it, and its dependent goes all the same. A Pod is made and nobody
//! answers: no second one is made before the caches could tell. Nobody's Lease is heard of for minutes: no node counts as lost.

use client::rest::{self, DeleteOptions, Resource, Verb};
use clock::Duration;
use json::json;
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{ConfigMap, Node, Pod},
};
use sim::{Cluster, Component, Faults, cluster::simulate};

/// The UID of what was written.
async fn write(cluster: &Cluster, resource: Resource, name: &str, verb: Verb) -> String {
    let written = rest::write(&cluster.client(), &resource, "default", name, "", &verb).await;
    written.unwrap_or_else(|e| cluster.fail(&format!("the test's own write failed: {}", rest::message(&e)))).uid
}

#[test]
fn an_owner_that_was_never_heard_of() {
    simulate(1, async |seed| {
        let mut cluster = Cluster::start(seed, 2).await;
        let broken = Faults::broken_watches_of("configmaps");
        cluster.weather.set(broken.clone());
        cluster.run(Component::Manager(0));
        let soon = Duration::from_secs(120);
        cluster.until("all nodes are there", soon, |m| m.nodes().count() == 2).await;
        cluster.weather.set(Faults { unseen: "configmaps", unseen_metadata: true, ..broken });
        let end = clock::Instant::now() + Duration::from_secs(10);
        cluster.until("the watch is gone", soon, |_| clock::Instant::now() >= end).await;

        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "namespace": "default"}});
        let uid = write(&cluster, Resource::of::<ConfigMap>(), "", Verb::Create(owner)).await;
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "ownerReferences": [reference]},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        write(&cluster, Resource::of::<Pod>(), "", Verb::Create(pod)).await;
        let serves = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        cluster.until("the dependent is looked at", soon, |m| m.pods().any(serves)).await;
        write(&cluster, Resource::of::<ConfigMap>(), "o", Verb::Delete(DeleteOptions::default())).await;
        cluster.compact(0).await;
        cluster.weather.set(Faults::NONE);
        cluster.until("nothing is left", soon, |m| m.pods().count() == 0).await;
        cluster.check("at the end");
    });
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn serves(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

#[test]
fn a_creation_that_was_not_answered() {
    simulate(1, async |seed| {
        let mut cluster = Cluster::start(seed, 2).await;
        let broken = Faults::broken_watches_of("pods");
        cluster.weather.set(broken.clone());
        cluster.run(Component::Manager(0));
        let soon = Duration::from_secs(120);
        cluster.until("all nodes are there", soon, |m| m.nodes().count() == 2).await;
        let unseen = Faults { unseen: "pods", ..broken };
        cluster.weather.set(unseen.clone());
        let end = clock::Instant::now() + Duration::from_secs(10);
        cluster.until("the watch is gone", soon, |_| clock::Instant::now() >= end).await;
        cluster.weather.set(Faults { unanswered: 1000, ..unseen.clone() });
        let labels = json!({"app": "s"});
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "s", "namespace": "default"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        write(&cluster, Resource::of::<ReplicaSet>(), "", Verb::Create(set)).await;
        cluster.until("a Pod is made", soon, |m| m.pods().count() > 0).await;
        let end = clock::Instant::now() + Duration::from_secs(5);
        cluster.until("the controller had time for more", soon, |_| clock::Instant::now() >= end).await;
        cluster.weather.set(unseen);
        let end = clock::Instant::now() + Duration::from_secs(5);
        cluster.until("it is answered and sees no Pods", soon, |_| clock::Instant::now() >= end).await;
        cluster.weather.set(Faults::NONE);
        cluster.until("the Pod runs", soon, |m| m.pods().any(is_ready)).await;
        let made = cluster.model.lock().pods().count();
        assert_eq!(made, 1, "seed {seed}");
        cluster.check("at the end");
    });
}

#[test]
fn leases_that_nobody_could_hear() {
    simulate(1, async |seed| {
        let mut cluster = Cluster::start(seed, 2).await;
        let broken = Faults::broken_watches_of("leases");
        cluster.weather.set(broken.clone());
        cluster.run(Component::Manager(0));
        let soon = Duration::from_secs(120);
        let all_ready = |m: &sim::check::Model| m.nodes().filter(|node| serves(node)).count() == 2;
        cluster.until("all nodes are ready", soon, all_ready).await;
        cluster.weather.set(Faults { unseen: "leases", ..broken });
        let end = clock::Instant::now() + Duration::from_secs(300);
        while clock::Instant::now() < end {
            clock::sleep(Duration::from_secs(1)).await;
            assert!(all_ready(&cluster.model.lock()), "seed {seed}: a node that says that it lives counts as lost");
        }
        cluster.weather.set(Faults::NONE);
        cluster.kill(Component::Node(0));
        cluster.until("the node that died counts as lost", soon, |m| !all_ready(m)).await;
        cluster.check("at the end");
    });
}
