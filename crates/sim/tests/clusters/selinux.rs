//! Pods that share a volume and want different labels for it are told, where the controller of such warnings runs.

use client::{
    Api, Kind,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::CSIDriver,
};
use sim::{Cluster, Component, cluster::simulate};

const SOON: Duration = Duration::from_secs(120);

async fn write<K: Kind>(cluster: &Cluster, namespace: &str, name: &str, verb: Verb) {
    let written = rest::write(&cluster.client(), &Resource::of::<K>(), namespace, name, "", &verb).await;
    if let Err(error) = written {
        cluster.fail(&format!("the test's own write failed: {}", rest::message(&error)));
    }
}

fn pod(name: &str, level: &str) -> Value {
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"securityContext": {"seLinuxOptions": {"level": level}},
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}})
}

async fn make_bound_claim(cluster: &Cluster) {
    let spec = json!({"accessModes": ["ReadWriteMany"], "storageClassName": "", "capacity": {"storage": "1Gi"},
        "csi": {"driver": "d", "volumeHandle": "h"}});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec});
    write::<PersistentVolume>(cluster, "", "", Verb::Create(volume)).await;
    let spec = json!({"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "v",
        "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "default"}, "spec": spec});
    write::<PersistentVolumeClaim>(cluster, "default", "", Verb::Create(claim)).await;
    cluster.until("the claim is bound", SOON, |m| m.claims.bound == 1).await;
}

/// The conflicts that Pods were told of, as `pod: message`, in order.
async fn told(cluster: &Cluster) -> Vec<String> {
    let all = Api::<Event>::all(cluster.client()).list(&[]).await.unwrap();
    let ours = all.into_iter().filter(|event| event.reason.as_deref() == Some("SELinuxLabelConflict"));
    let text = |event: Event| {
        assert_eq!((event.type_.as_deref(), event.count), (Some("Normal"), Some(1)));
        format!("{}: {}", event.involved_object.name.unwrap_or_default(), event.message.unwrap_or_default())
    };
    let mut told: Vec<String> = ours.map(text).collect();
    told.sort();
    told
}

/// The rows of conflicts on the page of metrics, once there are as many.
async fn conflicts(count: usize) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let page = controllers::storage::metrics();
        let rows = page.lines().filter(|line| line.starts_with("selinux_warning_controller_selinux_volume_conflict{"));
        let rows: Vec<String> = rows.map(str::to_owned).collect();
        if rows.len() == count {
            return rows;
        }
        assert!(begun.elapsed() < SOON, "never {count} conflicts: {rows:#?}");
        clock::sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn pods_with_different_labels_for_one_volume_are_told() {
    simulate(1, async |seed| {
        let mut cluster = Cluster::start(seed, 0).await;
        cluster.options.enabled.push("selinux-warning-controller".to_owned());
        cluster.run(Component::Manager(0));
        make_bound_claim(&cluster).await;
        for (name, level) in [("a", "s0:c1"), ("b", "s0:c2"), ("like-a", "s0:c1")] {
            write::<Pod>(&cluster, "default", "", Verb::Create(pod(name, level))).await;
        }
        conflicts(0).await;
        // As long as nobody says that the driver mounts with labels, files are relabelled.
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d"},
            "spec": {"seLinuxMount": true}});
        write::<CSIDriver>(&cluster, "", "", Verb::Create(driver)).await;
        let rows = conflicts(4).await;
        assert!(
            rows.iter().any(|row| row.contains("pod1_name=\"a\"") && row.contains("pod2_value=\":::s0:c2\"")),
            "{rows:#?}"
        );
        let begun = Instant::now();
        let mut events = told(&cluster).await;
        while events.len() < 4 && begun.elapsed() < SOON {
            clock::sleep(Duration::from_secs(1)).await;
            events = told(&cluster).await;
        }
        let text = |pod: &str, own: &str, other: &str, theirs: &str| {
            format!(
                "{pod}: SELinux label \":::{own}\" conflicts with pod {other} that uses the same volume as this pod with SELinux label \
                 \":::{theirs}\". If both pods land on the same node, only one of them may access the volume."
            )
        };
        let expected = [
            text("a", "s0:c1", "b", "s0:c2"),
            text("b", "s0:c2", "a", "s0:c1"),
            text("b", "s0:c2", "like-a", "s0:c1"),
            text("like-a", "s0:c1", "b", "s0:c2"),
        ];
        assert_eq!(events, expected);
        write::<Pod>(&cluster, "default", "b", Verb::Delete(DeleteOptions::default())).await;
        conflicts(0).await;
        // Those that stay are told nothing anew.
        assert_eq!(told(&cluster).await, expected);
    });
}
