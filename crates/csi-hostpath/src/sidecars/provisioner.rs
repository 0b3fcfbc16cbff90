//! Makes the volumes of claims, empty or with the content of another volume or a snapshot, and removes those that are given up.
//! Upstream counterpart: external-provisioner.

use client::{Error, EventKind, rest};
use json::{Value, json};
use runtime::grpc::{self, Code};

use super::{
    cluster::{
        Cluster, amount, annotation, attachments, claims, has_finalizer, is_deleted, kind, name, namespace, snapshots,
        text, uid, volumes,
    },
    source::{self, Answer, Named, REQUEST},
};
use crate::images::Source;

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume until the driver has removed it.
const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// On a claim whose volume is being copied.
const CLONED: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// On a snapshot that a volume is being made from.
const RESTORED: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

pub async fn step(cluster: &Cluster) -> Result<(), Error> {
    let all = cluster.list(&claims()).await?;
    for claim in all.iter().filter(|claim| is_wanted(claim, &cluster.driver)) {
        provision(cluster, claim).await?;
    }
    for claim in all.iter().filter(|claim| is_deleted(claim) && has_finalizer(claim, CLONED)) {
        if !all.iter().any(|other| is_copied_by(claim, other)) {
            cluster.release(&claims(), claim, &[CLONED]).await?;
        }
    }
    for snapshot in cluster.list_custom(&snapshots()).await?.iter().filter(|one| has_finalizer(one, RESTORED)) {
        if !all.iter().any(|claim| is_awaited(snapshot, claim)) {
            cluster.release(&snapshots(), snapshot, &[RESTORED]).await?;
        }
    }
    for volume in cluster.list(&volumes()).await? {
        if annotation(&volume, PROVISIONED_BY) == cluster.driver && is_given_up(&volume) {
            remove(cluster, &volume).await?;
        }
    }
    Ok(())
}

fn is_pending(claim: &Value) -> bool {
    text(claim, "/status/phase") == "Pending"
}

fn is_wanted(claim: &Value, driver: &str) -> bool {
    annotation(claim, PROVISIONER) == driver
        && text(claim, "/spec/volumeName").is_empty()
        && is_pending(claim)
        && !is_deleted(claim)
}

fn is_copied_by(claim: &Value, other: &Value) -> bool {
    is_pending(other) && source::named(other).is_some_and(|named| named.is_claim() && named.is(claim))
}

/// Whether a claim waits for the content of a snapshot.
pub(super) fn is_awaited(snapshot: &Value, claim: &Value) -> bool {
    is_pending(claim) && source::named(claim).is_some_and(|named| named.is_snapshot() && named.is(snapshot))
}

fn is_given_up(volume: &Value) -> bool {
    let has_work = !is_deleted(volume) || has_finalizer(volume, VOLUME_FINALIZER);
    has_work
        && text(volume, "/status/phase") == "Released"
        && text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete"
}

async fn provision(cluster: &Cluster, claim: &Value) -> Result<(), Error> {
    let classes = kind("storage.k8s.io", "v1", "StorageClass", "storageclasses");
    let key = format!("provision {}", uid(claim));
    let class = rest::found(cluster.get(&classes, "", text(claim, "/spec/storageClassName")).await)?;
    let Some(class) = class.filter(|_| cluster.retries.is_due(&key)) else { return Ok(()) };
    let waits = text(&class, "/volumeBindingMode") == "WaitForFirstConsumer";
    if waits && annotation(claim, SELECTED_NODE).is_empty() {
        return Ok(());
    }
    let told =
        format!("External provisioner is provisioning volume for claim \"{}/{}\"", namespace(claim), name(claim));
    cluster.tell(&claims(), claim, EventKind::Normal, "Provisioning", &told);
    let named = source::named(claim);
    if named.as_ref().is_some_and(|named| !named.is_claim() && !named.is_snapshot()) {
        let told = "Assuming an external populator will provision the volume";
        cluster.tell(&claims(), claim, EventKind::Normal, "Provisioning", told);
        cluster.retries.note(&key, false);
        return Ok(());
    }
    let made = make(cluster, claim, &class, named.as_ref()).await?;
    cluster.retries.note(&key, made.is_ok());
    match made {
        Ok(volume) => {
            let told = format!("Successfully provisioned volume {volume}");
            cluster.tell(&claims(), claim, EventKind::Normal, "ProvisioningSucceeded", &told);
        }
        Err(why) => cluster.tell(&claims(), claim, EventKind::Warning, "ProvisioningFailed", &why),
    }
    Ok(())
}

/// The source that the claim names, held by a finalizer until the volume is there.
async fn held(cluster: &Cluster, claim: &Value, class: &Value, named: &Named) -> Answer<Source> {
    if let Err(why) = source::allowed(cluster, claim, named).await? {
        return Ok(Err(why));
    }
    let (of, finalizer) = if named.is_claim() { (claims(), CLONED) } else { (snapshots(), RESTORED) };
    let found = if named.is_claim() {
        source::of_claim(cluster, claim, class, named).await?
    } else {
        source::of_snapshot(cluster, claim, class, named).await?
    };
    let (object, source) = match found {
        Ok(found) => found,
        Err(why) => {
            let what = format!("DataSource Type {} by Name {}", named.kind, named.name);
            return Ok(Err(format!("error getting handle for {what}: {why}")));
        }
    };
    cluster.hold(&of, &object, finalizer).await?;
    Ok(Ok(source))
}

/// Makes the volume and its object, whose name it returns.
async fn make(cluster: &Cluster, claim: &Value, class: &Value, named: Option<&Named>) -> Answer<String> {
    let from = match named {
        None => None,
        Some(named) => match held(cluster, claim, class, named).await? {
            Ok(from) => Some(from),
            Err(why) => return Ok(Err(why)),
        },
    };
    let (volume, is_block) = (format!("pvc-{}", uid(claim)), text(claim, "/spec/volumeMode") == "Block");
    let source = from.as_ref();
    let bytes = super::cluster::bytes(claim, REQUEST);
    let origin = match source {
        None => String::new(),
        Some(Source::Volume(of)) => format!(" from volume {of}"),
        Some(Source::Snapshot(of)) => format!(" from snapshot {of}"),
    };
    let what = format!("{volume} {bytes}{origin}");
    let work = || cluster.images.make(&volume, bytes, is_block, source);
    let held = match cluster.ask("CreateVolume", &what, work).await {
        Ok(held) => held,
        Err(status) => {
            let words = grpc::words(&status);
            let late = "Volume provisioning failed with infeasible error. Retries will be delayed.";
            let is_hopeless = status.code() == Code::InvalidArgument;
            return Ok(Err(if is_hopeless { format!("{late} {words}") } else { words }));
        }
    };
    let made = cluster.create(&volumes(), "", object(&cluster.driver, claim, class, &volume, held)).await;
    if let Err(error) = made
        && rest::reason(&error) != "AlreadyExists"
    {
        return Err(error);
    }
    Ok(Ok(volume))
}

fn object(driver: &str, claim: &Value, class: &Value, volume: &str, held: u64) -> Value {
    let is_block = text(claim, "/spec/volumeMode") == "Block";
    let mut source = json!({"driver": driver, "volumeHandle": volume});
    if !is_block {
        source["fsType"] = "ext4".into();
    }
    let annotations = json!({PROVISIONED_BY: driver, "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""});
    json!({
        "metadata": {"name": volume, "annotations": annotations, "finalizers": [VOLUME_FINALIZER]},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": amount(held)},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace(claim),
                "name": name(claim), "uid": uid(claim), "resourceVersion": claim["metadata"]["resourceVersion"]},
            "csi": source,
            "persistentVolumeReclaimPolicy": class["reclaimPolicy"],
            "storageClassName": name(class),
            "volumeMode": if is_block { "Block" } else { "Filesystem" },
        }
    })
}

async fn remove(cluster: &Cluster, volume: &Value) -> Result<(), Error> {
    let key = format!("remove {}", uid(volume));
    if !cluster.retries.is_due(&key) {
        return Ok(());
    }
    let all = cluster.list(&attachments()).await?;
    let held = all.iter().find(|a| text(a, "/spec/source/persistentVolumeName") == name(volume));
    let handle = text(volume, "/spec/csi/volumeHandle");
    let removed = match held {
        Some(held) => {
            let node = text(held, "/spec/nodeName");
            Err(format!("persistentvolume {} is still attached to node {node}", name(volume)))
        }
        None => {
            let asked = cluster.ask("DeleteVolume", handle, || cluster.images.remove(handle)).await;
            asked.map_err(|status| grpc::words(&status))
        }
    };
    cluster.retries.note(&key, removed.is_ok());
    if let Err(why) = removed {
        cluster.tell(&volumes(), volume, EventKind::Warning, "VolumeFailedDelete", &why);
        return Ok(());
    }
    if !is_deleted(volume) {
        cluster.delete(&volumes(), volume).await?;
    }
    let left = rest::found(cluster.get(&volumes(), "", name(volume)).await)?;
    match left.filter(|left| uid(left) == uid(volume)) {
        Some(left) => cluster.release(&volumes(), &left, &[VOLUME_FINALIZER]).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_copied_as_long_as_another_waits_for_its_content() {
        let claim = json!({"metadata": {"namespace": "d", "name": "a"}});
        let other = |phase: &str, place: &str, source: &str| {
            json!({"metadata": {"namespace": place, "name": "b"}, "status": {"phase": phase},
                "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": source}}})
        };
        assert!(is_copied_by(&claim, &other("Pending", "d", "a")));
        for (phase, place, source) in [("Bound", "d", "a"), ("Pending", "e", "a"), ("Pending", "d", "c")] {
            assert!(!is_copied_by(&claim, &other(phase, place, source)), "{phase} {place} {source}");
        }
    }

    #[test]
    fn only_volumes_that_are_released_and_not_kept_are_removed() {
        let check = |phase: &str, policy: &str, metadata: Value, expected: bool| {
            let spec = json!({"persistentVolumeReclaimPolicy": policy});
            let volume = json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}});
            assert_eq!(is_given_up(&volume), expected, "{volume}");
        };
        check("Released", "Delete", json!({}), true);
        check("Released", "Retain", json!({}), false);
        check("Bound", "Delete", json!({}), false);
        let leaving = |finalizer: &str| json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer]});
        check("Released", "Delete", leaving(VOLUME_FINALIZER), true);
        check("Released", "Delete", leaving("other"), false);
    }
}
