//! Lets volumes grow after their claims: their images here, what is on them on the node.
//! Upstream counterpart: external-resizer.

use client::{Error, EventKind};
use json::{Value, json};
use runtime::grpc::{self, Code, Status};

use super::{
    cluster::{Cluster, amount, bytes, claims, name, now, text, uid, volumes},
    source::REQUEST,
};

/// The conditions that a new resize does away with.
const RESIZES: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

pub async fn step(cluster: &Cluster) -> Result<(), Error> {
    let all = cluster.list(&volumes()).await?;
    for claim in cluster.list(&claims()).await? {
        let is_its = |volume: &&Value| {
            text(volume, "/spec/csi/driver") == cluster.driver && text(volume, "/spec/claimRef/uid") == uid(&claim)
        };
        let Some(volume) = all.iter().find(is_its) else { continue };
        let Some(wanted) = wanted(&claim, volume) else { continue };
        let key = format!("resize {}", uid(&claim));
        if cluster.retries.is_due(&key) {
            let done = resize(cluster, &claim, volume, wanted).await?;
            cluster.retries.note(&key, done);
        }
    }
    Ok(())
}

/// The size that the volume is to get now. A node that has begun with an earlier size ends that first.
fn wanted(claim: &Value, volume: &Value) -> Option<u64> {
    let (request, capacity) = (bytes(claim, REQUEST), bytes(claim, "/status/capacity/storage"));
    let held = bytes(volume, "/spec/capacity/storage");
    let allocated = bytes(claim, "/status/allocatedResources/storage");
    if text(claim, "/status/phase") != "Bound" || request <= capacity {
        return None;
    }
    match text(claim, "/status/allocatedResourceStatuses/storage") {
        "NodeResizePending" | "NodeResizeInProgress" => None,
        "NodeResizeInfeasible" => Some(allocated.max(held)),
        _ => Some(request),
    }
}

/// The conditions of a claim, with one more; those of an earlier resize stay only if they are to.
fn conditions(claim: &Value, kind: &str, message: &str, stay: bool) -> Value {
    let held = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_kept = |one: &Value| {
        let of = text(one, "/type");
        of != kind && (stay || !RESIZES.contains(&of))
    };
    let mut all: Vec<Value> = held.into_iter().filter(is_kept).collect();
    let mut condition = json!({"type": kind, "status": "True", "lastTransitionTime": now()});
    if !message.is_empty() {
        condition["message"] = message.into();
    }
    all.push(condition);
    all.into()
}

fn is_infeasible(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

async fn resize(cluster: &Cluster, claim: &Value, volume: &Value, wanted: u64) -> Result<bool, Error> {
    let begun = json!({"status": {
        "conditions": conditions(claim, "Resizing", "", false),
        "allocatedResources": {"storage": amount(wanted)},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    }});
    let claim = cluster.patch(&claims(), claim, "status", begun).await?;
    let told = format!("External resizer is resizing volume {}", name(volume));
    cluster.tell(&claims(), &claim, EventKind::Normal, "Resizing", &told);
    let handle = text(volume, "/spec/csi/volumeHandle");
    let work = || match cluster.images.is_made(handle) {
        Ok(true) => cluster.images.grow(handle, wanted),
        _ => Ok(wanted),
    };
    let grown = match cluster.ask("ControllerExpand", &format!("{handle} {wanted}"), work).await {
        Ok(grown) => grown,
        Err(status) => {
            let words = grpc::words(&status);
            let message = format!("failed to expand pvc with {words}");
            let mut failed = json!({"conditions": conditions(&claim, "ControllerResizeError", &message, true)});
            if is_infeasible(&status) {
                failed["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInfeasible"});
            }
            cluster.patch(&claims(), &claim, "status", json!({"status": failed})).await?;
            let told = format!("resize volume {:?} by resizer {:?} failed: {words}", name(volume), cluster.driver);
            cluster.tell(&claims(), &claim, EventKind::Warning, "VolumeResizeFailed", &told);
            return Ok(false);
        }
    };
    let capacity = json!({"spec": {"capacity": {"storage": amount(grown)}}});
    cluster.patch(&volumes(), volume, "", capacity).await?;
    let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
    let pending = json!({"status": {
        "conditions": conditions(&claim, "FileSystemResizePending", message, true),
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }});
    let claim = cluster.patch(&claims(), &claim, "status", pending).await?;
    let told = "Require file system resize of volume on node";
    cluster.tell(&claims(), &claim, EventKind::Normal, "FileSystemResizeRequired", told);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_gets_what_is_asked_for_unless_a_node_is_at_it() {
        let check = |request: &str, capacity: &str, state: &str, expected: Option<u64>| {
            let claim = json!({"spec": {"resources": {"requests": {"storage": request}}}, "status": {"phase": "Bound",
                "capacity": {"storage": capacity}, "allocatedResources": {"storage": "2"},
                "allocatedResourceStatuses": {"storage": state}}});
            let volume = json!({"spec": {"capacity": {"storage": "1"}}});
            assert_eq!(wanted(&claim, &volume), expected, "{claim}");
        };
        check("3", "1", "", Some(3));
        check("3", "1", "ControllerResizeInfeasible", Some(3));
        check("3", "1", "NodeResizePending", None);
        check("3", "1", "NodeResizeInfeasible", Some(2));
        check("1", "1", "", None);
    }

    #[test]
    fn a_new_resize_does_away_with_what_was_said_of_the_last_one() {
        let held = json!([{"type": "ModifyingVolume"}, {"type": "NodeResizeError"}]);
        let claim = json!({"status": {"conditions": held}});
        let kinds = |stay: bool| {
            let all = conditions(&claim, "Resizing", "", stay);
            let kinds: Vec<String> = all.as_array().unwrap().iter().map(|one| text(one, "/type").to_owned()).collect();
            kinds.join(" ")
        };
        assert_eq!(
            (kinds(false), kinds(true)),
            ("ModifyingVolume Resizing".to_owned(), "ModifyingVolume NodeResizeError Resizing".to_owned())
        );
    }
}
