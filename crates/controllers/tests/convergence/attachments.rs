//! Volumes on their way from node to node.

use client::Api;
use json::json;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};

use crate::common::object;
use crate::world::{Story, World, below, chance, converges, name, node_of, phase};

/// Pods come and go that use volumes which only one node may have; the test plays the driver's attacher.
struct Attachments {
    made: u64,
}

const VOLUMES: u64 = 3;
const FINALIZER: &str = "skiff.test/attacher";

fn attachments(world: &World) -> Api<VolumeAttachment> {
    Api::all(world.client.clone())
}

async fn all_attachments(world: &World) -> Vec<VolumeAttachment> {
    attachments(world).list(&[]).await.unwrap()
}

fn volume_of(attachment: &VolumeAttachment) -> &str {
    attachment.spec.source.persistent_volume_name.as_deref().unwrap_or("")
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

/// The volume of a Pod: `v1` for the claim `c1`.
fn used(pod: &Pod) -> String {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref()).unwrap();
    volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name.replace('c', "v")
}

/// Attaches what is asked for and lets go of what is deleted, or does so later.
async fn attacher(world: &World, percent: u64) {
    for attachment in all_attachments(world).await {
        let meta = &attachment.metadata;
        let (name, held) = (meta.name.as_deref().unwrap(), meta.finalizers.is_some());
        if !chance(percent) {
            continue;
        }
        match (meta.deletion_timestamp.is_some(), held) {
            (false, false) => {
                let patch = json!({"metadata": {"finalizers": [FINALIZER]}});
                let _ = attachments(world).merge_patch(name, "", patch).await;
            }
            (false, true) if !is_attached(&attachment) => {
                let _ = attachments(world).merge_patch(name, "status", json!({"status": {"attached": true}})).await;
            }
            (true, true) => {
                let _ = attachments(world).merge_patch(name, "", json!({"metadata": {"finalizers": null}})).await;
            }
            _ => {}
        }
    }
}

impl Story for Attachments {
    const CONTROLLERS: &'static [&'static str] = &["persistentvolume-attach-detach-controller"];
    const CHANGES: usize = 20;

    async fn begin(world: &World) -> Self {
        let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        for node in world.nodes().list(&[]).await.unwrap() {
            let patch = json!({"metadata": {"annotations": managed}});
            world.nodes().merge_patch(node.metadata.name.as_deref().unwrap(), "", patch).await.unwrap();
        }
        for number in 0..VOLUMES {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeName": format!("v{number}"),
                "resources": {"requests": {"storage": "1Gi"}}});
            let claim = json!({"metadata": {"name": format!("c{number}"),
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": spec});
            world.create::<PersistentVolumeClaim>(claim).await;
            let claim = world.api::<PersistentVolumeClaim>().get(&format!("c{number}")).await.unwrap();
            let held = json!({"namespace": "d", "name": claim.metadata.name, "uid": claim.metadata.uid});
            let volume: PersistentVolume = object(json!({"metadata": {"name": format!("v{number}")}, "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "claimRef": held,
                "csi": {"driver": "d", "volumeHandle": format!("h{number}")}}}));
            Api::all(world.client.clone()).create(&volume).await.unwrap();
        }
        Attachments { made: 0 }
    }

    async fn change(&mut self, world: &World) {
        if chance(50) {
            return world.delete_some_pod().await;
        }
        self.made += 1;
        let claim = format!("c{}", below(VOLUMES));
        let pod = json!({"metadata": {"name": format!("p{}", self.made)}, "spec": {
            "nodeName": format!("n{}", 1 + below(3)), "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": claim}}]}});
        world.create::<Pod>(pod).await;
    }

    /// No volume is asked for on two nodes at once.
    async fn check(&self, world: &World) {
        attacher(world, 40).await;
        let all = all_attachments(world).await;
        for number in 0..VOLUMES {
            let name = format!("v{number}");
            let nodes: Vec<&str> =
                all.iter().filter(|a| volume_of(a) == name).map(|a| a.spec.node_name.as_str()).collect();
            assert!(nodes.len() < 2, "{name} is on {nodes:?}");
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        attacher(world, 100).await;
        let pods = world.list::<Pod>().await;
        let using: Vec<&Pod> = pods
            .iter()
            .filter(|pod| !node_of(pod).is_empty() && !matches!(phase(pod), "Succeeded" | "Failed"))
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect();
        let all = all_attachments(world).await;
        for attachment in &all {
            let (volume, node) = (volume_of(attachment), attachment.spec.node_name.as_str());
            let needed = using.iter().any(|pod| node_of(pod) == node && used(pod) == volume);
            if !needed || !is_attached(attachment) || attachment.metadata.deletion_timestamp.is_some() {
                return Some(format!("{volume} on {node}: needed {needed}, attached {}", is_attached(attachment)));
            }
        }
        let lacking = using.iter().find(|pod| !all.iter().any(|a| volume_of(a) == used(pod)));
        if let Some(pod) = lacking {
            return Some(format!("{} has no volume", name(pod)));
        }
        let nodes: Vec<Node> = world.nodes().list(&[]).await.unwrap();
        let mut told: Vec<(String, String)> = Vec::new();
        for node in &nodes {
            let listed = node.status.iter().flat_map(|s| s.volumes_attached.iter().flatten());
            told.extend(listed.map(|held| (node.metadata.name.clone().unwrap(), held.name.clone())));
        }
        let mut expected: Vec<(String, String)> = all
            .iter()
            .map(|a| (a.spec.node_name.clone(), format!("kubernetes.io/csi/d^{}", volume_of(a).replace('v', "h"))))
            .collect();
        told.sort();
        expected.sort();
        (told != expected).then(|| format!("the nodes say {told:?}, and it is {expected:?}"))
    }
}

#[test]
fn attachments_converge() {
    converges::<Attachments>(0..8);
}
