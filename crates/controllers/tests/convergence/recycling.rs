//! Volumes that are emptied by a Pod and are anybody's again.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use client::{
    Api,
    rest::{self, DeleteOptions, Resource, Verb},
};
use json::json;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

use crate::{
    common::object,
    volumes::{all_volumes, name_of, phase_of, uid_of_claim, volumes},
    world::{Story, World, below, chance, converges, name, phase},
};

/// Claims and volumes that come and go, somebody who deletes the Pods that empty volumes, and one who makes Pods of their
/// names that end well and have emptied nothing.
#[derive(Default)]
struct Recycling {
    made: u64,
    /// By the volume's UID, the claim that it was for when it was seen last.
    held: RefCell<BTreeMap<String, String>>,
    /// The UIDs of volumes that a Pod of the controller's has emptied since.
    emptied: RefCell<BTreeSet<String>>,
    /// The UIDs of the Pods that empty nothing.
    false_pods: RefCell<BTreeSet<String>>,
}

fn pods(world: &World) -> Api<Pod> {
    Api::namespaced(world.client.clone(), "default")
}

fn pod_name(volume: &PersistentVolume) -> String {
    format!("recycler-for-{}", name_of(&volume.metadata))
}

fn uid(volume: &PersistentVolume) -> String {
    volume.metadata.uid.clone().unwrap_or_default()
}

fn some<T: Clone>(list: &[T]) -> Option<T> {
    list.get(below(list.len().max(1) as u64) as usize).cloned()
}

impl Recycling {
    async fn make_volume(&mut self, world: &World) {
        self.made += 1;
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "storageClassName": "", "persistentVolumeReclaimPolicy": "Recycle"});
        match chance(50) {
            true => spec["hostPath"] = json!({"path": "/data"}),
            false => spec["nfs"] = json!({"server": "s", "path": "/data"}),
        }
        let volume = json!({"metadata": {"name": format!("v{}", self.made)}, "spec": spec});
        volumes(world).create(&object(volume)).await.unwrap();
    }

    async fn make_claim(&mut self, world: &World) {
        self.made += 1;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}}});
        world
            .create::<PersistentVolumeClaim>(json!({"metadata": {"name": format!("c{}", self.made)}, "spec": spec}))
            .await;
    }

    /// A Pod of the name that the one for a volume has.
    async fn pretend(&self, world: &World) {
        let Some(volume) = some(&all_volumes(world).await) else { return };
        let pod =
            json!({"metadata": {"name": pod_name(&volume)}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        // There may be one.
        if let Ok(made) = pods(world).create(&object(pod)).await {
            self.false_pods.borrow_mut().extend(made.metadata.uid.clone());
            say(world, &made, "Succeeded").await;
        }
    }

    /// The Pods that empty volumes end, well or not, or go on.
    async fn kubelets(&self, world: &World) {
        for pod in pods(world).list(&[]).await.unwrap() {
            let is_false = pod.metadata.uid.as_ref().is_some_and(|uid| self.false_pods.borrow().contains(uid));
            if is_false || !matches!(phase(&pod), "" | "Pending" | "Running") || chance(40) {
                continue;
            }
            let ends_well = chance(75);
            let volumes = all_volumes(world).await;
            if let Some(volume) = volumes.iter().find(|volume| ends_well && pod_name(volume) == name(&pod)) {
                self.emptied.borrow_mut().insert(uid(volume));
            }
            say(world, &pod, if ends_well { "Succeeded" } else { "Failed" }).await;
        }
    }
}

async fn say(world: &World, pod: &Pod, phase: &str) {
    let patch = Verb::MergePatch(json!({"status": {"phase": phase}}));
    // It may be gone by now.
    let _ = rest::write(&world.client, &Resource::of::<Pod>(), "default", name(pod), "status", &patch).await;
}

impl Story for Recycling {
    const CONTROLLERS: &'static [&'static str] = &[
        "persistentvolume-binder-controller",
        "persistentvolume-protection-controller",
        "persistentvolumeclaim-protection-controller",
    ];

    async fn begin(world: &World) -> Self {
        let mut story = Recycling::default();
        for _ in 0..3 {
            story.make_volume(world).await;
            story.make_claim(world).await;
        }
        story
    }

    async fn change(&mut self, world: &World) {
        match below(9) {
            0 => self.make_volume(world).await,
            1..4 => self.make_claim(world).await,
            4..7 => {
                if let Some(claim) = some(&world.list::<PersistentVolumeClaim>().await) {
                    let claims = world.api::<PersistentVolumeClaim>();
                    let _ = claims.delete(name_of(&claim.metadata), DeleteOptions::default()).await;
                }
            }
            7 => self.pretend(world).await,
            _ => {
                if let Some(pod) = some(&pods(world).list(&[]).await.unwrap()) {
                    let options = DeleteOptions { grace_seconds: Some(0), ..Default::default() };
                    let _ = pods(world).delete(name(&pod), options).await;
                }
            }
        }
    }

    /// A volume is anybody's again only after it was emptied.
    async fn check(&self, world: &World) {
        for volume in all_volumes(world).await {
            let (id, claim) = (uid(&volume), uid_of_claim(&volume));
            let before = match &claim {
                Some(claim) => self.held.borrow_mut().insert(id.clone(), claim.clone()),
                None => self.held.borrow_mut().remove(&id),
            };
            if before.is_some() && before != claim {
                let emptied = self.emptied.borrow_mut().remove(&id);
                assert!(emptied, "{} was {before:?}'s, is {claim:?}'s, and is not empty", name_of(&volume.metadata));
            }
        }
        self.kubelets(world).await;
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let claims = world.list::<PersistentVolumeClaim>().await;
        let all = all_volumes(world).await;
        let unbound = claims.iter().filter(|c| !all.iter().any(|v| uid_of_claim(v) == c.metadata.uid)).count();
        for volume in &all {
            let used = claims.iter().any(|claim| uid_of_claim(volume) == claim.metadata.uid);
            let expected = if used { "Bound" } else { "Available" };
            let shown = name_of(&volume.metadata);
            if phase_of(volume) != expected || (!used && unbound > 0) {
                return Some(format!("{shown} is {}, {unbound} claims wait", phase_of(volume)));
            }
        }
        let is_ours = |pod: &&Pod| !pod.metadata.uid.as_ref().is_some_and(|uid| self.false_pods.borrow().contains(uid));
        let left = pods(world).list(&[]).await.unwrap().iter().filter(is_ours).count();
        (left > 0).then(|| format!("{left} Pods that empty volumes are left"))
    }
}

#[test]
fn volumes_are_emptied_before_others_get_them() {
    converges::<Recycling>(0..6);
}
