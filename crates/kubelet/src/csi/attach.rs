//! Volumes that are attached to the node before it uses them. The controller attaches and detaches; the node says in its status
//! which volumes it uses (`volumesInUse`), and uses none before the API has heard of it: nothing is detached that is in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{Api, Cache, Client, Key};
use k8s_openapi::api::{core::v1::Node, storage::v1::VolumeAttachment};
use runtime::grpc;
use tokio::sync::{broadcast::error::RecvError, watch};

use crate::{csi::record::Record, volumes::error::VolumeError};

/// How long a Pod waits for a volume to be attached before it says so and begins anew.
const WAIT: Duration = Duration::from_secs(120);

pub struct Attachments {
    client: Client,
    node_name: String,
    node: Arc<Cache<Node>>,
    in_use: watch::Sender<BTreeSet<String>>,
    /// Drivers whose volumes need not be attached, as their CSIDrivers say by now.
    needless: watch::Sender<BTreeSet<String>>,
}

/// Whether the API has heard that the node uses the volume, and has it attached.
fn is_ready(node: &Node, name: &str) -> bool {
    let status = node.status.as_ref();
    let used = status.and_then(|s| s.volumes_in_use.as_ref()).is_some_and(|list| list.iter().any(|held| held == name));
    let attached = status.and_then(|s| s.volumes_attached.as_ref());
    used && attached.is_some_and(|list| list.iter().any(|held| held.name == name))
}

/// The attacher's message to the driver of the node, or why the volume is not attached.
fn context(attachment: Option<VolumeAttachment>) -> Result<BTreeMap<String, String>, String> {
    let attachment = attachment.ok_or("no existing VolumeAttachment found")?;
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err("volume attachment is being deleted".to_owned());
    }
    let status = attachment.status.unwrap_or_default();
    match status.attach_error.and_then(|error| error.message) {
        _ if status.attached => Ok(status.attachment_metadata.unwrap_or_default()),
        Some(why) => Err(why),
        None => Err("the volume is not attached".to_owned()),
    }
}

/// Whether the driver found no place for the volume at this node. The code is one of gRPC.
fn is_exhausted(attachment: &VolumeAttachment) -> bool {
    let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
    error.and_then(|error| error.error_code) == Some(grpc::Code::ResourceExhausted as i32)
}

impl Attachments {
    /// `in_use` is what an earlier kubelet has left in use.
    pub fn new(client: Client, node_name: &str, node: Arc<Cache<Node>>, in_use: BTreeSet<String>) -> Attachments {
        let needless = watch::Sender::default();
        Attachments { client, node_name: node_name.to_owned(), node, in_use: watch::channel(in_use).0, needless }
    }

    /// The volumes in use, as the node's status names them.
    pub fn in_use(&self) -> watch::Receiver<BTreeSet<String>> {
        self.in_use.subscribe()
    }

    /// None of these are in use any more.
    pub fn forget(&self, names: &BTreeSet<String>) {
        self.in_use.send_if_modified(|held| {
            let before = held.len();
            held.retain(|name| !names.contains(name));
            held.len() != before
        });
    }

    /// The volumes of these drivers need not be attached.
    pub fn spare(&self, drivers: BTreeSet<String>) {
        self.needless.send_replace(drivers);
    }

    /// Waits until the volume is attached here. Returns its attacher's message to the driver, or nothing where the driver turns out
    /// to need no attachment.
    pub async fn attached(&self, record: &Record) -> Result<Option<BTreeMap<String, String>>, VolumeError> {
        let mut needless = self.needless.subscribe();
        self.in_use.send_if_modified(|held| held.insert(record.attached_as.clone()));
        let is_late = tokio::select! {
            biased;
            Ok(_) = needless.wait_for(|drivers| drivers.contains(&record.driver)) => return Ok(None),
            outcome = clock::timeout(WAIT, self.reported(&record.attached_as)) => outcome.is_err(),
        };
        let all: Api<VolumeAttachment> = Api::all(self.client.clone());
        let found = all.find(&record.attachment).await.map_err(|error| error.to_string());
        if is_late {
            let is_exhausted = found.is_ok_and(|found| found.is_some_and(|attachment| is_exhausted(&attachment)));
            let name = record.name.clone();
            return Err(if is_exhausted { VolumeError::Exhausted(name) } else { VolumeError::Unattached(name) });
        }
        found.and_then(context).map(Some).map_err(|why| VolumeError::Step {
            step: "MountVolume.WaitForAttach",
            volume: record.name.clone(),
            why,
        })
    }

    async fn reported(&self, name: &str) {
        let mut changes = self.node.subscribe();
        loop {
            let held = self.node.get(&Key::new("", &self.node_name));
            if held.is_some_and(|node| is_ready(&node, name)) {
                return;
            }
            if let Err(RecvError::Closed) = changes.recv().await {
                // The kubelet ends.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    #[test]
    fn a_volume_is_ready_when_both_sides_know_of_it() {
        let check = |status: Value, expected: bool| {
            let node: Node = json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap();
            assert_eq!(is_ready(&node, "v"), expected, "{status}");
        };
        let attached = json!([{"name": "v", "devicePath": ""}]);
        check(json!({"volumesAttached": attached, "volumesInUse": ["w", "v"]}), true);
        check(json!({"volumesAttached": attached}), false);
        check(json!({"volumesInUse": ["v"]}), false);
        check(json!({"volumesAttached": [{"name": "w", "devicePath": ""}], "volumesInUse": ["v"]}), false);
    }

    #[test]
    fn what_keeps_a_volume_from_being_attached_is_told() {
        let check = |status: Value, deleted: Option<&str>, expected: Result<&str, &str>| {
            let attachment = json!({"metadata": {"name": "a", "deletionTimestamp": deleted}, "status": status,
                "spec": {"attacher": "d", "nodeName": "n", "source": {}}});
            let found = context(Some(json::from_value(attachment).unwrap()));
            let found = found.map(|map| map.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<String>());
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        };
        check(json!({"attached": true, "attachmentMetadata": {"disk": "sdx"}}), None, Ok("disk=sdx"));
        let deleted = Some("2026-01-01T00:00:00Z");
        check(json!({"attached": true}), deleted, Err("volume attachment is being deleted"));
        let error = json!({"message": "no more slots"});
        check(json!({"attached": false, "attachError": error}), None, Err("no more slots"));
        check(json!({"attached": false}), None, Err("the volume is not attached"));
        assert_eq!(context(None).unwrap_err(), "no existing VolumeAttachment found");
    }
}
