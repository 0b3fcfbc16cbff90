//! Lets nodes have volumes as the VolumeAttachments say, and takes them away again.
//! Upstream counterpart: external-attacher.

use client::Error;
use json::{Value, json};
use runtime::grpc::{self, Status};

use super::cluster::{
    Cluster, annotation, attachments, has_finalizer, is_deleted, kind, name, now, text, uid, volumes,
};

/// On an attachment: the driver's name for the node, which may be gone when the volume is taken from it.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

fn finalizer(driver: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("external-attacher/{}", driver.chars().map(plain).collect::<String>())
}

pub async fn step(cluster: &Cluster) -> Result<(), Error> {
    let finalizer = finalizer(&cluster.driver);
    let all = cluster.list(&attachments()).await?;
    for attachment in all.iter().filter(|a| text(a, "/spec/attacher") == cluster.driver) {
        let key = format!("attach {}", uid(attachment));
        let is_attached = attachment["status"]["attached"].as_bool() == Some(true);
        let has_work = match is_deleted(attachment) {
            true => has_finalizer(attachment, &finalizer),
            false => !is_attached,
        };
        if !has_work || !cluster.retries.is_due(&key) {
            continue;
        }
        let done = if is_deleted(attachment) {
            detach(cluster, attachment, &finalizer).await
        } else {
            attach(cluster, attachment, &finalizer).await
        };
        cluster.retries.note(&key, done?);
    }
    // A volume that goes is no longer held once nothing has it.
    for volume in cluster.list(&volumes()).await? {
        let is_held = |a: &Value| text(a, "/spec/source/persistentVolumeName") == name(&volume);
        if is_deleted(&volume) && has_finalizer(&volume, &finalizer) && !all.iter().any(is_held) {
            cluster.release(&volumes(), &volume, &[&finalizer]).await?;
        }
    }
    Ok(())
}

/// The driver's name for the node of an attachment.
async fn node_id(cluster: &Cluster, attachment: &Value) -> Result<Option<String>, Error> {
    let noted = annotation(attachment, NODE_ID);
    if !noted.is_empty() {
        return Ok(Some(noted.to_owned()));
    }
    let nodes = kind("storage.k8s.io", "v1", "CSINode", "csinodes");
    let node = client::rest::found(cluster.get(&nodes, "", text(attachment, "/spec/nodeName")).await)?;
    let drivers = node.as_ref().and_then(|node| node["spec"]["drivers"].as_array());
    let own = drivers.and_then(|all| all.iter().find(|driver| text(driver, "/name") == cluster.driver));
    Ok(own.map(|driver| text(driver, "/nodeID").to_owned()))
}

async fn attach(cluster: &Cluster, attachment: &Value, finalizer: &str) -> Result<bool, Error> {
    let failed = async |why: String| {
        let error = json!({"status": {"attachError": {"message": why, "time": now()}}});
        cluster.patch(&attachments(), attachment, "status", error).await.map(|_| false)
    };
    let Some(node) = node_id(cluster, attachment).await? else {
        let node = text(attachment, "/spec/nodeName");
        return failed(format!("CSINode {node} does not contain driver {}", cluster.driver)).await;
    };
    let volume = cluster.get(&volumes(), "", text(attachment, "/spec/source/persistentVolumeName")).await?;
    if is_deleted(&volume) {
        return failed(format!("PersistentVolume {:?} is marked for deletion", name(&volume))).await;
    }
    cluster.hold(&volumes(), &volume, finalizer).await?;
    let noted = json!({"metadata": {"annotations": {NODE_ID: node}}});
    let attachment = cluster.patch(&attachments(), attachment, "", noted).await?;
    let attachment = cluster.hold(&attachments(), &attachment, finalizer).await?;
    let handle = text(&volume, "/spec/csi/volumeHandle");
    let published = publish(cluster, handle, &node).await;
    let status = match &published {
        Ok(()) => json!({"attached": true, "attachmentMetadata": {"node": node}, "attachError": null}),
        Err(status) => json!({"attachError": {"message": grpc::words(status), "time": now()}}),
    };
    cluster.patch(&attachments(), &attachment, "status", json!({"status": status})).await?;
    Ok(published.is_ok())
}

/// Volumes that the driver did not make are everybody's.
async fn publish(cluster: &Cluster, handle: &str, node: &str) -> Result<(), Status> {
    let work = || match cluster.images.is_made(handle) {
        Ok(true) => cluster.images.publish(handle, node),
        Ok(false) => Ok(()),
        Err(error) => Err(Status::invalid_argument(error.to_string())),
    };
    cluster.ask("ControllerPublish", &format!("{handle} {node}"), work).await
}

async fn detach(cluster: &Cluster, attachment: &Value, finalizer: &str) -> Result<bool, Error> {
    let volume = cluster.get(&volumes(), "", text(attachment, "/spec/source/persistentVolumeName")).await?;
    let handle = text(&volume, "/spec/csi/volumeHandle");
    let node = node_id(cluster, attachment).await?.unwrap_or_default();
    let work = || match cluster.images.is_made(handle) {
        Ok(true) => cluster.images.unpublish(handle, &node),
        _ => Ok(()),
    };
    match cluster.ask("ControllerUnpublish", &format!("{handle} {node}"), work).await {
        Ok(()) => {
            cluster.release(&attachments(), attachment, &[finalizer]).await?;
            Ok(true)
        }
        Err(status) => {
            let error = json!({"status": {"detachError": {"message": grpc::words(&status), "time": now()}}});
            cluster.patch(&attachments(), attachment, "status", error).await.map(|_| false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finalizer_has_the_drivers_name() {
        assert_eq!(finalizer("hostpath.csi.skiff.local"), "external-attacher/hostpath-csi-skiff-local");
    }
}
