//! A volume that is attached to a node before the node mounts it: a CSI volume whose driver does not say that it needs none
//! of that. Its names, and who uses it where.

use std::sync::Arc;

use api::rules::{
    pod::{VolumeClaim, is_deleted, is_terminal, volume_claims},
    volume::{is_bind_completed, volume_of},
};
use client::{Cache, Key};
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest, Sha256};

/// The driver of a volume and the driver's name for it.
pub fn handle(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some((&source.driver, &source.volume_handle))
}

/// The name of a volume in a node's status.
pub fn unique_name(volume: &PersistentVolume) -> String {
    let (driver, handle) = handle(volume).unwrap_or_default();
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The request to attach a volume to a node. Its name follows from both, so there is one however often it is made.
pub fn attachment(volume: &PersistentVolume, node: &str) -> VolumeAttachment {
    let (driver, handle) = handle(volume).unwrap_or_default();
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex = base16ct::lower::encode_string(&digest);
    VolumeAttachment {
        metadata: ObjectMeta { name: Some(format!("csi-{hex}")), ..ObjectMeta::default() },
        spec: VolumeAttachmentSpec {
            attacher: driver.to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource {
                persistent_volume_name: volume.metadata.name.clone(),
                ..VolumeAttachmentSource::default()
            },
        },
        status: None,
    }
}

/// Whether the volume is attached at all. A driver that nobody has told of is taken to need it.
pub fn is_attachable(volume: &PersistentVolume, drivers: &Cache<CSIDriver>) -> bool {
    let Some((driver, _)) = handle(volume) else { return false };
    let driver = drivers.get(&Key::new("", driver));
    driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
}

/// Whether several nodes may have the volume at once.
pub fn is_shared(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    modes.is_empty() || modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

/// Whether a Pod on a node has no use for its volumes any more.
pub fn is_over(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    let mut states = statuses.map(|status| status.state.clone().unwrap_or_default());
    is_terminal(pod) || (is_deleted(pod) && !states.any(|s| s.terminated.is_none() && s.waiting.is_none()))
}

/// The volume that a claim of a Pod is bound to.
pub fn of_claim(
    pod: &Pod,
    used: &VolumeClaim,
    claims: &Cache<PersistentVolumeClaim>,
    volumes: &Cache<PersistentVolume>,
) -> Option<Arc<PersistentVolume>> {
    let claim = claims.get(&Key::new(pod.metadata.namespace.as_deref().unwrap_or(""), used.name.as_str()))?;
    let volume = volumes.get(&Key::new("", volume_of(&claim)))?;
    let owner = volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone();
    let tied = owner == claim.metadata.uid && is_bind_completed(&claim) && used.is(&claim, pod);
    tied.then_some(volume)
}

/// The volumes that a Pod's claims are bound to.
pub fn volumes(
    pod: &Pod,
    claims: &Cache<PersistentVolumeClaim>,
    volumes: &Cache<PersistentVolume>,
) -> Vec<Arc<PersistentVolume>> {
    volume_claims(pod).filter_map(|used| of_claim(pod, &used, claims, volumes)).collect()
}
