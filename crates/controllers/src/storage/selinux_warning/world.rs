//! The caches' view of volumes that nodes can mount with a label: what each is called, and the Pods that share it.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::pod::{is_terminal, volume_claims};
use client::{Cache, Caches, Key};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::CSIDriver,
};

use super::conflict::{Multiple, Wish, wish};
use crate::storage::{
    attach_detach::volume,
    claim_protection::{BY_CLAIM, by_claim},
};

/// The names of the indexes by what a volume is called, whichever object says so.
const BY_VOLUME: &str = "labelled volume";

/// The Pods that are compared with one; of more nothing is told.
const COMPARED: usize = 500;

/// The caches that are read.
pub struct World {
    pub pods: Arc<Cache<Pod>>,
    pub claims: Arc<Cache<PersistentVolumeClaim>>,
    pub volumes: Arc<Cache<PersistentVolume>>,
    pub drivers: Arc<Cache<CSIDriver>>,
}

fn iscsi(portal: &str, iqn: &str, lun: i32) -> String {
    format!("kubernetes.io/iscsi/{portal}:{iqn}:{lun}")
}

/// A disk behind fibre channel has names of its target and a number, or names of its own.
fn fc(targets: Option<&Vec<String>>, lun: Option<i32>, own: Option<&Vec<String>>) -> Option<String> {
    match (targets.filter(|list| !list.is_empty()), own.filter(|list| !list.is_empty())) {
        (Some(targets), _) => Some(format!("kubernetes.io/fc/[{}]:{}", targets.join(" "), lun.unwrap_or(0))),
        (None, Some(own)) => Some(format!("kubernetes.io/fc/[{}]", own.join(" "))),
        (None, None) => None,
    }
}

/// The name that a PersistentVolume has on every node, if nodes may mount it with a label.
fn name_of(volume: &PersistentVolume) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    if spec.csi.is_some() {
        return Some(volume::unique_name(volume));
    }
    if let Some(source) = &spec.iscsi {
        return Some(iscsi(&source.target_portal, &source.iqn, source.lun));
    }
    spec.fc.as_ref().and_then(|source| fc(source.target_wwns.as_ref(), source.lun, source.wwids.as_ref()))
}

/// The volumes of a Pod's own that others may have too: their names in it, and on every node.
fn own(pod: &Pod) -> impl Iterator<Item = (String, String)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        let of_iscsi = volume.iscsi.as_ref().map(|s| iscsi(&s.target_portal, &s.iqn, s.lun));
        let of_fc = || volume.fc.as_ref().and_then(|s| fc(s.target_wwns.as_ref(), s.lun, s.wwids.as_ref()));
        Some((volume.name.clone(), of_iscsi.or_else(of_fc)?))
    })
}

impl World {
    pub fn of(caches: &Caches) -> World {
        World { pods: caches.of(), claims: caches.of(), volumes: caches.of(), drivers: caches.of() }
    }

    /// Makes [`users`](World::users) possible.
    pub fn index(&self) {
        self.pods.add_index(BY_CLAIM, by_claim);
        self.pods.add_index(BY_VOLUME, |pod| own(pod).map(|(_, name)| name).collect());
        self.volumes.add_index(BY_VOLUME, |volume| name_of(volume).into_iter().collect());
    }

    /// Whether nodes mount a volume with a label. Of drivers only they know.
    fn takes_labels(&self, volume: &PersistentVolume) -> bool {
        let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|source| source.driver.as_str());
        driver.is_none_or(|driver| {
            let driver = self.drivers.get(&Key::new("", driver));
            driver.is_some_and(|driver| driver.spec.se_linux_mount == Some(true))
        })
    }

    /// The volumes of a Pod that nodes can mount with a label: their names in the Pod, and on every node.
    fn volumes_of(&self, pod: &Pod) -> Vec<(String, String)> {
        let claimed = volume_claims(pod).filter_map(|used| {
            let volume = volume::of_claim(pod, &used, &self.claims, &self.volumes)?;
            let name = name_of(&volume).filter(|_| self.takes_labels(&volume))?;
            Some((used.volume, name))
        });
        claimed.chain(own(pod)).collect()
    }

    /// The wishes of a Pod, by what its volumes are called on every node. One that has ended wants nothing.
    pub fn wishes(&self, pod: &Pod, asks_policy: bool) -> BTreeMap<String, (String, Result<Wish, Multiple>)> {
        if is_terminal(pod) {
            return BTreeMap::new();
        }
        let of = |(volume, name): (String, String)| Some((name, (volume.clone(), wish(pod, &volume, asks_policy)?)));
        self.volumes_of(pod).into_iter().filter_map(of).collect()
    }

    /// The Pods that name a volume.
    pub fn users(&self, name: &str) -> Vec<Arc<Pod>> {
        let mut users = self.pods.by_index(BY_VOLUME, name);
        for volume in self.volumes.by_index(BY_VOLUME, name) {
            let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { continue };
            let claim = Key::new(claim.namespace.as_deref().unwrap_or(""), claim.name.as_deref().unwrap_or(""));
            users.extend(self.pods.by_index(BY_CLAIM, &claim.to_string()));
        }
        users.truncate(COMPARED);
        users
    }

    /// The Pods that share a volume with one, as its change concerns them.
    pub fn concerned(&self, pod: &Pod) -> Vec<Key> {
        let names = self.volumes_of(pod).into_iter().map(|(_, name)| name);
        names.flat_map(|name| self.users(&name)).map(|pod| Key::of(&*pod)).collect()
    }

    /// The Pods that use volumes of a driver.
    pub fn of_driver(&self, driver: &str) -> Vec<Arc<Pod>> {
        let is_its = |volume: &Arc<PersistentVolume>| volume::handle(volume).is_some_and(|(name, _)| name == driver);
        let volumes = self.volumes.list().into_iter().filter(is_its);
        volumes.filter_map(|volume| name_of(&volume)).flat_map(|name| self.users(&name)).collect()
    }
}
