//! Local volumes: folders of nodes, made for claims and removed after them, so that a new cluster has storage.
//! Reads: PersistentVolumeClaim, PersistentVolume, StorageClass, Node, CSIStorageCapacity. Writes: PersistentVolume,
//! PersistentVolumeClaim (the node that was chosen for it), Node (what is to be removed), CSIStorageCapacity.
//! Counterparts elsewhere: Rancher's local-path-provisioner and the external provisioner of CSI drivers.
//!
//! A volume is of the type `local` and tied to its node. The kubelet there makes the folder when a Pod mounts the volume
//! first, and removes it when it is told to: the annotations between the two are those of `rules/local_volume.rs`. Everything
//! here follows from the objects that are there, so it goes on after any interruption.

mod nodes;
mod provision;
mod removal;

use api::rules::{
    local_volume::{self, Offer},
    quantity,
};
use controller::{Controller, Setup};
use k8s_openapi::api::core::v1::PersistentVolume;

use nodes::Nodes;
use provision::Provision;
use removal::Removal;

pub const NAME: &str = Provision::NAME;
/// The service account that the controllers act as. The control plane writes its role.
pub const ACCOUNT: &str = "local-volume-provisioner";

/// The name of the index of local volumes by their nodes.
const BY_NODE: &str = "local volumes by node";

/// Runs the three: one makes volumes for claims, one ends volumes, one speaks with nodes.
pub async fn run(setup: Setup) {
    tokio::join!(
        controller::run(Provision, setup.clone()),
        controller::run(Removal, setup.clone()),
        controller::run(Nodes, setup)
    );
}

fn by_node(volume: &PersistentVolume) -> Vec<String> {
    local_volume::node_of(volume).map(str::to_owned).into_iter().collect()
}

fn size(volume: &PersistentVolume) -> u64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    capacity.map(quantity::parse).unwrap_or_default().value().unsigned_abs()
}

/// The room for further volumes on a node that has these.
fn room<'a>(offer: &Offer, volumes: impl IntoIterator<Item = &'a PersistentVolume>) -> u64 {
    offer.room(volumes.into_iter().map(size).fold(0, u64::saturating_add))
}

/// Whether the folder of a volume is to be removed: its claim is gone, and its policy says so. As of any external
/// provisioner's volumes, that counts for one which somebody deletes himself, too.
fn is_to_remove(volume: &PersistentVolume) -> bool {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy == Some("Delete") && is_given_up(volume)
}

fn is_given_up(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_deleted = volume.metadata.deletion_timestamp.is_some();
    phase == Some("Released") || is_deleted && phase != Some("Bound")
}

/// A volume as it is made, for tests: `phase policy`, and `deleting`.
#[cfg(test)]
fn example(name: &str, node: &str, words: &str) -> PersistentVolume {
    let word = |all: &[&'static str]| all.iter().copied().find(|word| words.split(' ').any(|w| w == *word));
    let annotations =
        json::json!({"pv.kubernetes.io/provisioned-by": local_volume::PROVISIONER, local_volume::NODE: node});
    let deleted = word(&["deleting"]).map(|_| "2026-01-01T00:00:00Z");
    let volume = json::json!({
        "metadata": {"name": name, "uid": name, "annotations": annotations, "deletionTimestamp": deleted,
            "finalizers": ["kubernetes.io/pv-protection", local_volume::FINALIZER]},
        "spec": {"capacity": {"storage": "10Gi"}, "persistentVolumeReclaimPolicy": word(&["Delete", "Retain"])},
        "status": {"phase": word(&["Bound", "Released", "Available"])},
    });
    json::from_value(volume).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_only_when_nobody_has_a_claim_on_it() {
        let check = |words: &str, expected: bool| {
            assert_eq!(is_to_remove(&example("pvc-1", "n", words)), expected, "{words}");
        };
        check("Bound Delete", false);
        check("Bound Delete deleting", false);
        check("Available Delete", false);
        check("Available Delete deleting", true);
        check("Released Delete", true);
        check("Released Delete deleting", true);
        check("Released Retain", false);
        check("Released Retain deleting", false);
        check("Delete", false);
    }

    #[test]
    fn what_was_promised_is_not_promised_again() {
        let offer = Offer { folder: "/v".to_owned(), size: 25 << 30, free: 20 << 30 };
        let volumes = [example("pvc-1", "n", "Bound"), example("pvc-2", "n", "Released Retain")];
        assert_eq!(room(&offer, []), 20 << 30);
        assert_eq!(room(&offer, &volumes[..1]), 15 << 30);
        assert_eq!(room(&offer, &volumes), 5 << 30);
    }
}
