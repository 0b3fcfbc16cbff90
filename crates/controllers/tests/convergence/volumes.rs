//! Claims and volumes.

use std::{cell::RefCell, collections::BTreeMap};

use api::rules::volume::{Offer, Wish, is_bind_completed, volume_of};
use client::{Api, rest::DeleteOptions};
use json::json;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use crate::common::object;
use crate::world::{Story, World, below, chance, converges};

/// Claims that come and go, some of which name their volume; volumes that come and go, some of which name their claim; an
/// administrator who clears what is released, and a scheduler that reserves volumes for claims that wait for Pods.
struct Binding {
    made: u64,
    /// The volume that each claim has named, by the claim's UID.
    named: RefCell<BTreeMap<String, String>>,
}

pub fn volumes(world: &World) -> Api<PersistentVolume> {
    Api::all(world.client.clone())
}

pub async fn all_volumes(world: &World) -> Vec<PersistentVolume> {
    volumes(world).list(&[]).await.unwrap()
}

pub fn name_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or("")
}

pub fn phase_of(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub fn uid_of_claim(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone().filter(|uid| !uid.is_empty())
}

fn size() -> String {
    format!("{}Gi", 1 + below(3))
}

fn class() -> &'static str {
    ["", "", "late"][below(3) as usize]
}

impl Binding {
    /// Claims and volumes name each other now and then, also those that are not there yet or any more. A volume of one name
    /// is made once, or a claim could take a new one for its own.
    async fn make_claim(&mut self, world: &World) {
        let volume = chance(20).then(|| format!("v{}", below(self.made + 2)));
        let claim = json!({"metadata": {"name": format!("c{}", below(8))}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": class(), "volumeName": volume, "resources": {"requests": {"storage": size()}}}});
        // One of this name may be there.
        let _ = world.api::<PersistentVolumeClaim>().create(&object(claim)).await;
    }

    async fn make_volume(&mut self, world: &World) {
        self.made += 1;
        let claim = chance(20).then(|| json!({"namespace": "d", "name": format!("c{}", below(8))}));
        let modes = if chance(50) { json!(["ReadWriteOnce"]) } else { json!(["ReadWriteOnce", "ReadWriteMany"]) };
        let policy = if chance(30) { "Delete" } else { "Retain" };
        let volume = json!({"metadata": {"name": format!("v{}", self.made)}, "spec": {"accessModes": modes,
            "storageClassName": class(), "capacity": {"storage": size()}, "claimRef": claim,
            "persistentVolumeReclaimPolicy": policy, "hostPath": {"path": "/data"}}});
        let _ = volumes(world).create(&object(volume)).await;
    }

    async fn delete_some_claim(&self, world: &World) {
        let claims = world.list::<PersistentVolumeClaim>().await;
        if let Some(claim) = claims.get(below(claims.len().max(1) as u64) as usize) {
            let _ =
                world.api::<PersistentVolumeClaim>().delete(name_of(&claim.metadata), DeleteOptions::default()).await;
        }
    }

    async fn delete_some_volume(&self, world: &World) {
        let all = all_volumes(world).await;
        if let Some(volume) = all.get(below(all.len().max(1) as u64) as usize) {
            let _ = volumes(world).delete(name_of(&volume.metadata), DeleteOptions::default()).await;
        }
    }

    async fn clear_released(&self, world: &World) {
        for volume in all_volumes(world).await {
            if matches!(phase_of(&volume), "Released" | "Failed") {
                let version = &volume.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"claimRef": null}});
                let _ = volumes(world).merge_patch(name_of(&volume.metadata), "", patch).await;
            }
        }
    }

    /// The scheduler's part for claims that wait for a Pod.
    async fn reserve(&self, world: &World) {
        for claim in world.list::<PersistentVolumeClaim>().await {
            let wish = Wish::of(&claim);
            if wish.class != "late" || !volume_of(&claim).is_empty() {
                continue;
            }
            let all = all_volumes(world).await;
            let Some(volume) = all.iter().find(|volume| Offer::of(volume).suits(&wish)) else { continue };
            let patch = json!({"metadata": {"resourceVersion": volume.metadata.resource_version,
                    "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {"claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "d",
                    "name": claim.metadata.name, "uid": claim.metadata.uid}}});
            let _ = volumes(world).merge_patch(name_of(&volume.metadata), "", patch).await;
        }
    }
}

impl Story for Binding {
    const CONTROLLERS: &'static [&'static str] = &[
        "persistentvolume-binder-controller",
        "persistentvolume-protection-controller",
        "persistentvolumeclaim-protection-controller",
    ];
    const CHANGES: usize = 30;

    async fn begin(world: &World) -> Self {
        let late: StorageClass =
            object(json!({"metadata": {"name": "late"}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"}));
        Api::all(world.client.clone()).create(&late).await.unwrap();
        let mut story = Binding { made: 0, named: RefCell::default() };
        for _ in 0..4 {
            story.make_volume(world).await;
            story.make_claim(world).await;
        }
        story
    }

    async fn change(&mut self, world: &World) {
        match below(12) {
            0..4 => self.make_claim(world).await,
            4..7 => self.make_volume(world).await,
            7 | 8 => self.delete_some_claim(world).await,
            9 => self.delete_some_volume(world).await,
            10 => self.clear_released(world).await,
            _ => self.reserve(world).await,
        }
    }

    /// No volume has two claims, no claim two volumes.
    async fn check(&self, world: &World) {
        let claims = world.list::<PersistentVolumeClaim>().await;
        let all = all_volumes(world).await;
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for claim in claims.iter().filter(|claim| is_bind_completed(claim)) {
            let (uid, volume) = (claim.metadata.uid.clone().unwrap(), volume_of(claim));
            let before = self.named.borrow_mut().insert(uid.clone(), volume.to_owned());
            assert!(before.as_deref().is_none_or(|before| before == volume), "{uid} had {before:?} and has {volume}");
            if claim_phase(claim) == "Bound" {
                let other = owners.insert(volume, name_of(&claim.metadata));
                assert_eq!(other, None, "{volume} has two claims: {}", name_of(&claim.metadata));
                let held = all.iter().find(|v| name_of(&v.metadata) == volume);
                assert!(
                    held.is_none_or(|held| uid_of_claim(held) == claim.metadata.uid),
                    "{volume} is {}'s and refers to {held:?}",
                    name_of(&claim.metadata)
                );
            }
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let claims = world.list::<PersistentVolumeClaim>().await;
        let all = all_volumes(world).await;
        for claim in &claims {
            let (name, wish) = (name_of(&claim.metadata), Wish::of(claim));
            let volume = all.iter().find(|v| name_of(&v.metadata) == volume_of(claim));
            let suiting = |v: &&PersistentVolume| {
                let offer = Offer::of(v);
                offer.suits(&wish) && (wish.class != "late" || offer.is_for(&wish))
            };
            let wrong = match (is_bind_completed(claim), volume_of(claim)) {
                (true, _) => {
                    let own = volume.is_some_and(|v| uid_of_claim(v) == claim.metadata.uid);
                    claim_phase(claim) != if own { "Bound" } else { "Lost" }
                }
                (false, "") => claim_phase(claim) != "Pending" || all.iter().any(|v| suiting(&v)),
                (false, _) => {
                    let offer = volume.map(Offer::of);
                    let could = offer.is_some_and(|offer| {
                        offer.is_for(&wish) || (offer.claim().is_none() && offer.mismatch(&wish).is_none())
                    });
                    claim_phase(claim) != "Pending" || could
                }
            };
            if wrong {
                return Some(format!("{name} is {}, of {volume:?}", claim_phase(claim)));
            }
        }
        for volume in &all {
            let claim = uid_of_claim(volume).map(|uid| claims.iter().find(|c| c.metadata.uid.as_ref() == Some(&uid)));
            let spec = volume.spec.as_ref().unwrap();
            let expected = match claim {
                None => "Available",
                Some(Some(claim)) if volume_of(claim) == name_of(&volume.metadata) => "Bound",
                // A claim that asks for another volume, or one that has become too small for it, keeps it waiting.
                Some(Some(claim)) if volume_of(claim).is_empty() => phase_of(volume),
                Some(Some(_)) => "Available",
                Some(None) if spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") => "Failed",
                Some(None) => "Released",
            };
            if phase_of(volume) != expected {
                return Some(format!("{} is {}, not {expected}", name_of(&volume.metadata), phase_of(volume)));
            }
        }
        None
    }
}

#[test]
fn claims_and_volumes_converge() {
    converges::<Binding>(0..8);
}
