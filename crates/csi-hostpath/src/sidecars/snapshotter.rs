//! Takes snapshots of volumes, ties the two objects of each together, and removes what is given up.
//! Upstream counterpart: external-snapshotter, its common controller and its sidecar.

use client::{Error, EventKind, rest};
use json::{Value, json};
use runtime::grpc;

use super::{
    cluster::{
        Cluster, SNAPSHOT_GROUP, amount, annotation, claims, contents, finalizers, has_finalizer, is_deleted, kind,
        name, namespace, now, snapshots, text, uid, volumes,
    },
    provisioner::is_awaited,
    source,
};

const CONTENT_BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
const SNAPSHOT_BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
const SNAPSHOT_SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a claim of whose volume a snapshot is being taken.
const CLAIM_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

pub async fn step(cluster: &Cluster) -> Result<(), Error> {
    let all = cluster.list_custom(&contents()).await?;
    for content in all.iter().filter(|content| text(content, "/spec/driver") == cluster.driver) {
        let key = format!("content {}", uid(content));
        if cluster.retries.is_due(&key) {
            let done = take(cluster, content).await?;
            cluster.retries.note(&key, done);
        }
    }
    let snapshots = cluster.list_custom(&snapshots()).await?;
    for snapshot in &snapshots {
        let key = format!("snapshot {}", uid(snapshot));
        if cluster.retries.is_due(&key) {
            let done =
                if is_deleted(snapshot) { remove(cluster, snapshot).await? } else { tie(cluster, snapshot).await? };
            cluster.retries.note(&key, done);
        }
    }
    for claim in cluster.list(&claims()).await?.iter().filter(|claim| has_finalizer(claim, CLAIM_SOURCE)) {
        if !snapshots.iter().any(|snapshot| is_taken_of(snapshot, claim)) {
            cluster.release(&claims(), claim, &[CLAIM_SOURCE]).await?;
        }
    }
    Ok(())
}

fn is_ready(object: &Value) -> bool {
    object["status"]["readyToUse"].as_bool() == Some(true)
}

fn is_taken_of(snapshot: &Value, claim: &Value) -> bool {
    let source = text(snapshot, "/spec/source/persistentVolumeClaimName");
    (namespace(snapshot), source) == (namespace(claim), name(claim)) && !is_ready(snapshot) && !is_deleted(snapshot)
}

/// The sidecar's half: the driver takes the snapshot that a content stands for, and removes it.
async fn take(cluster: &Cluster, content: &Value) -> Result<bool, Error> {
    if is_deleted(content) {
        return given_up(cluster, content).await;
    }
    if is_ready(content) {
        return Ok(true);
    }
    let content = cluster.hold(&contents(), content, CONTENT_BOUND).await?;
    let (volume, known) = (text(&content, "/spec/source/volumeHandle"), text(&content, "/spec/source/snapshotHandle"));
    let handle = format!("snapshot-{}", text(&content, "/spec/volumeSnapshotRef/uid"));
    let (handle, asked) = if known.is_empty() {
        let work = || cluster.images.snap(&handle, volume);
        let asked = cluster.ask("CreateSnapshot", &format!("{handle} {volume}"), work).await;
        (&*handle, asked)
    } else {
        (known, cluster.ask("ListSnapshots", known, || cluster.images.snapped(known)).await)
    };
    let status = match &asked {
        Ok(size) => {
            let taken = i64::try_from(clock::now().as_nanosecond()).unwrap_or(i64::MAX);
            json!({"snapshotHandle": handle, "creationTime": taken, "readyToUse": true, "restoreSize": *size, "error": null})
        }
        Err(status) => {
            let why =
                format!("Failed to check and update snapshot content: failed to take snapshot of the volume {volume}");
            let why = format!("{why}: {:?}", grpc::words(status));
            json!({"readyToUse": false, "error": {"message": why, "time": now()}})
        }
    };
    cluster.patch(&contents(), &content, "status", json!({"status": status})).await?;
    Ok(asked.is_ok())
}

async fn given_up(cluster: &Cluster, content: &Value) -> Result<bool, Error> {
    let handle = text(content, "/status/snapshotHandle");
    let goes = text(content, "/spec/deletionPolicy") == "Delete" && annotation(content, BEING_DELETED) == "yes";
    if goes && !handle.is_empty() {
        let asked = cluster.ask("DeleteSnapshot", handle, || cluster.images.remove_snapshot(handle)).await;
        if let Err(status) = asked {
            let words = grpc::words(&status);
            cluster.tell(&contents(), content, EventKind::Warning, "SnapshotDeleteError", "Failed to delete snapshot");
            let error = json!({"status": {"error": {"message": words, "time": now()}}});
            return cluster.patch(&contents(), content, "status", error).await.map(|_| false);
        }
    }
    cluster.release(&contents(), content, &[CONTENT_BOUND]).await.map(|()| true)
}

/// Says on a snapshot, and by an event, why there is none.
async fn fail(cluster: &Cluster, snapshot: &Value, reason: &str, why: &str) -> Result<bool, Error> {
    if text(snapshot, "/status/error/message") != why {
        cluster.tell(&snapshots(), snapshot, EventKind::Warning, reason, why);
        let error = json!({"status": {"readyToUse": false, "error": {"message": why, "time": now()}}});
        cluster.patch(&snapshots(), snapshot, "status", error).await?;
    }
    Ok(false)
}

/// The common controller's half: a snapshot and its content refer to each other, and say the same.
async fn tie(cluster: &Cluster, snapshot: &Value) -> Result<bool, Error> {
    if is_ready(snapshot) {
        return Ok(true);
    }
    let (place, of) = (namespace(snapshot), text(snapshot, "/spec/source/persistentVolumeClaimName"));
    let content = if of.is_empty() {
        let given = text(snapshot, "/spec/source/volumeSnapshotContentName");
        let content = rest::found(cluster.get(&contents(), "", given).await)?;
        let Some(content) = content else {
            return fail(cluster, snapshot, "SnapshotContentMissing", "VolumeSnapshotContent is missing").await;
        };
        let named =
            (text(&content, "/spec/volumeSnapshotRef/namespace"), text(&content, "/spec/volumeSnapshotRef/name"));
        if named != (place, name(snapshot)) {
            let why = format!("VolumeSnapshotContent [{given}] is bound to a different snapshot");
            return fail(cluster, snapshot, "SnapshotContentMisbound", &why).await;
        }
        let known = json!({"spec": {"volumeSnapshotRef": {"uid": uid(snapshot)}}});
        cluster.patch(&contents(), &content, "", known).await?
    } else {
        match content_of(cluster, snapshot, of).await? {
            Ok(content) => content,
            Err(why) => {
                let why = format!("Failed to create snapshot content with error {why}");
                return fail(cluster, snapshot, "SnapshotContentCreationFailed", &why).await;
            }
        }
    };
    if content["status"]["creationTime"].is_null() && content["status"]["error"].is_null() {
        return bound(cluster, snapshot, &content).await.map(|_| true);
    }
    let snapshot = bound(cluster, snapshot, &content).await?;
    let key = format!("{place}/{}", name(&snapshot));
    if !is_ready(&content) {
        let why = text(&content, "/status/error/message");
        return fail(cluster, &snapshot, "SnapshotContentCreationFailed", why).await;
    }
    let size = content["status"]["restoreSize"].as_u64().unwrap_or(0);
    let status = json!({"creationTime": now(), "readyToUse": true, "restoreSize": amount(size), "error": null});
    cluster.patch(&snapshots(), &snapshot, "status", json!({"status": status})).await?;
    let told = format!("Snapshot {key} was successfully created by the CSI driver.");
    cluster.tell(&snapshots(), &snapshot, EventKind::Normal, "SnapshotCreated", &told);
    let told = format!("Snapshot {key} is ready to use.");
    cluster.tell(&snapshots(), &snapshot, EventKind::Normal, "SnapshotReady", &told);
    Ok(true)
}

/// The snapshot, which names its content and is held.
async fn bound(cluster: &Cluster, snapshot: &Value, content: &Value) -> Result<Value, Error> {
    if text(snapshot, "/status/boundVolumeSnapshotContentName") == name(content) {
        return Ok(snapshot.clone());
    }
    let mut held = finalizers(snapshot);
    let new = [SNAPSHOT_SOURCE, SNAPSHOT_BOUND].into_iter().filter(|finalizer| !has_finalizer(snapshot, finalizer));
    held.extend(new.map(Value::from));
    let held = json!({"metadata": {"finalizers": held}});
    let snapshot = cluster.patch(&snapshots(), snapshot, "", held).await?;
    let named = json!({"status": {"boundVolumeSnapshotContentName": name(content), "readyToUse": false}});
    cluster.patch(&snapshots(), &snapshot, "status", named).await
}

/// The content of a snapshot of a claim's volume, which is made if it is not there.
async fn content_of(cluster: &Cluster, snapshot: &Value, of: &str) -> source::Answer<Value> {
    let content = format!("snapcontent-{}", uid(snapshot));
    if let Some(there) = rest::found(cluster.get(&contents(), "", &content).await)? {
        return Ok(Ok(there));
    }
    let key = format!("{}/{}", namespace(snapshot), name(snapshot));
    let Some(claim) = rest::found(cluster.get(&claims(), namespace(snapshot), of).await)? else {
        return Ok(Err(format!(
            "snapshot controller failed to update {of} on API server: cannot get claim from snapshot"
        )));
    };
    let class = match class_of(cluster, snapshot).await? {
        Ok(class) => class,
        Err(why) => {
            return Ok(Err(format!("failed to get input parameters to create snapshot {}: {why:?}", name(snapshot))));
        }
    };
    let volume = rest::found(cluster.get(&volumes(), "", text(&claim, "/spec/volumeName")).await)?;
    let Some(volume) = volume.filter(|volume| text(volume, "/spec/csi/driver") == text(&class, "/driver")) else {
        return Ok(Err(format!(
            "the PVC {of} is not yet bound to a PV of the driver of {}, will not attempt to take a snapshot",
            name(&class)
        )));
    };
    cluster.hold(&claims(), &claim, CLAIM_SOURCE).await?;
    let object = json!({"metadata": {"name": content}, "spec": {
        "volumeSnapshotRef": {"apiVersion": snapshots().api_version(), "kind": "VolumeSnapshot",
            "namespace": namespace(snapshot), "name": name(snapshot), "uid": uid(snapshot),
            "resourceVersion": snapshot["metadata"]["resourceVersion"]},
        "source": {"volumeHandle": text(&volume, "/spec/csi/volumeHandle")},
        "sourceVolumeMode": text(&volume, "/spec/volumeMode"),
        "volumeSnapshotClassName": name(&class), "deletionPolicy": class["deletionPolicy"], "driver": class["driver"]}});
    cluster.create(&contents(), "", object).await?;
    let told = format!("Waiting for a snapshot {key} to be created by the CSI driver.");
    cluster.tell(&snapshots(), snapshot, EventKind::Normal, "CreatingSnapshot", &told);
    cluster.get(&contents(), "", &content).await.map(Ok)
}

/// The class that a snapshot names, or the default one.
async fn class_of(cluster: &Cluster, snapshot: &Value) -> source::Answer<Value> {
    let classes = kind(SNAPSHOT_GROUP, "v1", "VolumeSnapshotClass", "volumesnapshotclasses");
    let named = text(snapshot, "/spec/volumeSnapshotClassName");
    let all = cluster.list(&classes).await?;
    let is_it = |class: &Value| match named {
        "" => annotation(class, DEFAULT_CLASS) == "true" && text(class, "/driver") == cluster.driver,
        named => name(class) == named,
    };
    let found = all.into_iter().find(is_it);
    let why = match named {
        "" => "cannot find default snapshot class".to_owned(),
        named => format!("failed to retrieve snapshot class {named} from the informer"),
    };
    Ok(found.ok_or(why))
}

async fn remove(cluster: &Cluster, snapshot: &Value) -> Result<bool, Error> {
    if cluster.list(&claims()).await?.iter().any(|claim| is_awaited(snapshot, claim)) {
        let told = "Snapshot is being used to restore a PVC";
        cluster.tell(&snapshots(), snapshot, EventKind::Warning, "SnapshotDeletePending", told);
        return Ok(false);
    }
    let bound = text(snapshot, "/status/boundVolumeSnapshotContentName");
    let content = if bound.is_empty() { None } else { rest::found(cluster.get(&contents(), "", bound).await)? };
    if let Some(content) = content.filter(|content| text(content, "/spec/volumeSnapshotRef/uid") == uid(snapshot)) {
        let marked = json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
        let content = cluster.patch(&contents(), &content, "", marked).await?;
        if text(&content, "/spec/deletionPolicy") == "Delete" && !is_deleted(&content) {
            cluster.delete(&contents(), &content).await?;
        }
    }
    cluster.release(&snapshots(), snapshot, &[SNAPSHOT_SOURCE, SNAPSHOT_BOUND]).await.map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_held_until_its_snapshot_is_taken() {
        let claim = json!({"metadata": {"namespace": "d", "name": "c"}});
        let check = |place: &str, of: &str, ready: bool, expected: bool| {
            let snapshot = json!({"metadata": {"namespace": place}, "spec": {"source": {"persistentVolumeClaimName": of}},
                "status": {"readyToUse": ready}});
            assert_eq!(is_taken_of(&snapshot, &claim), expected, "{snapshot}");
        };
        check("d", "c", false, true);
        check("d", "c", true, false);
        check("e", "c", false, false);
        check("d", "b", false, false);
    }
}
