//! A controller that does not hear that a volume is attached to a node does not give it to another one.

use client::{
    Kind,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use sim::{Cluster, Component, Faults, attacher::DRIVER, cluster::simulate};

const NODES: usize = 2;
const SOON: Duration = Duration::from_secs(120);

async fn write<K: Kind>(cluster: &Cluster, namespace: &str, name: &str, verb: Verb) {
    let written = rest::write(&cluster.client(), &Resource::of::<K>(), namespace, name, "", &verb).await;
    if let Err(error) = written {
        cluster.fail(&format!("the test's own write failed: {}", rest::message(&error)));
    }
}

async fn pass(cluster: &Cluster, seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    cluster.until("some time has passed", SOON, |_| Instant::now() >= end).await;
}

fn user(name: &str, node: &str) -> Value {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes,
            "nodeSelector": {"kubernetes.io/hostname": node}}})
}

async fn make_bound_claim(cluster: &Cluster) {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "capacity": {"storage": "1Gi"},
        "csi": {"driver": DRIVER, "volumeHandle": "h"}});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec});
    write::<PersistentVolume>(cluster, "", "", Verb::Create(volume)).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "v",
        "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "default"}, "spec": spec});
    write::<PersistentVolumeClaim>(cluster, "default", "", Verb::Create(claim)).await;
    let bound = |m: &sim::check::Model| m.claims.bound == 1;
    cluster.until("the claim is bound", SOON, bound).await;
}

#[test]
fn a_volume_whose_attachment_nobody_hears_of_stays_where_it_is() {
    simulate(1, async |seed| {
        let mut cluster = Cluster::start(seed, NODES).await;
        cluster.run(Component::Attacher);
        let unseen = "volumeattachments";
        let broken = Faults::broken_watches_of(unseen);
        cluster.weather.set(broken.clone());
        cluster.run(Component::Manager(0));
        cluster.until("all nodes are there", SOON, |m| m.nodes().count() == NODES).await;
        make_bound_claim(&cluster).await;
        cluster.weather.set(Faults { unseen, ..broken });
        pass(&cluster, 5).await;
        write::<Pod>(&cluster, "default", "", Verb::Create(user("first", "node-00"))).await;
        cluster.until("the volume is attached", SOON, |m| m.attachments.attached == 1).await;
        write::<Pod>(&cluster, "default", "first", Verb::Delete(DeleteOptions::default())).await;
        cluster.until("the first Pod is gone", SOON, |m| m.pods().count() == 0).await;
        write::<Pod>(&cluster, "default", "", Verb::Create(user("second", "node-01"))).await;
        pass(&cluster, 60).await;
        cluster.weather.set(Faults::NONE);
        cluster.until("the second Pod serves", SOON, |m| m.serving("i") == 1).await;
        assert_eq!(cluster.model.lock().attachments.attached, 2);
    });
}
