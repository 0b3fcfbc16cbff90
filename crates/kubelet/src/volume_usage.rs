//! How full the volumes of all Pods are, and how healthy. This is the one reader: the summary and the metrics both ask here.
//! Upstream counterpart: pkg/kubelet/server/stats/volume_stat_calculator.go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{features::Feature, rules::pod::volume_claims};
use client::EventKind;
use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::{
    kubelet::Kubelet,
    pod::desired::DesiredPod,
    volume_room::{Health, Measured, Room, VolumeUsage, of_disk, of_folder},
    volumes::{self, folder::blocking, plugin::Mounted},
};

/// How long somebody who asks waits for a measurement that has begun.
const MOMENT: Duration = Duration::from_secs(2);
/// The pause between two looks at the health of volumes.
const LOOK: Duration = Duration::from_secs(60);
/// The number of characters of a driver's words about a volume that an event tells.
const LONGEST: usize = 900;

/// Looks at the health of the volumes also while nobody asks how full they are: its events wait for nobody. Runs for ever.
pub async fn watch_health(kubelet: Arc<Kubelet>) {
    loop {
        clock::sleep(LOOK).await;
        if !kubelet.pods.is_empty() {
            read(&kubelet).await;
        }
    }
}

pub async fn read(kubelet: &Arc<Kubelet>) -> Measured {
    if kubelet.volume_usages.begin() {
        // It comes to its end also when who asked does not wait for it.
        let kubelet = kubelet.clone();
        tokio::spawn(async move {
            let measured = measure(&kubelet).await;
            kubelet.volume_usages.end(measured);
        });
    }
    kubelet.volume_usages.known(MOMENT).await
}

async fn measure(kubelet: &Kubelet) -> BTreeMap<String, Vec<VolumeUsage>> {
    let pods = kubelet.pods.all().into_iter().filter(|pod| !pod.is_over() && !pod.is_refused);
    let each = pods.map(|pod| async move {
        let desired = pod.desired();
        let uid = desired.uid().to_owned();
        let mounted = volumes::mounted(&desired.pod, &kubelet.pod_folder(&uid)).await.unwrap_or_default();
        let all = desired.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let each = all.filter_map(|volume| Some(of_volume(kubelet, &desired.pod, volume, mounted.get(&volume.name)?)));
        let usages = futures::future::join_all(each).await;
        let usages: Vec<_> = usages.into_iter().flatten().collect();
        usages.iter().for_each(|usage| tell(kubelet, &desired, usage));
        (uid, usages)
    });
    futures::future::join_all(each).await.into_iter().collect()
}

/// Says of a volume that is not well what its driver says about it.
fn tell(kubelet: &Kubelet, desired: &DesiredPod, usage: &VolumeUsage) {
    let Some(Health { is_abnormal: true, message }) = &usage.health else { return };
    let words: String = message.chars().take(LONGEST).collect();
    let message = format!("Volume {}: {words}", usage.name);
    kubelet.events.pod(desired, EventKind::Warning, "VolumeConditionAbnormal", &message);
}

async fn of_volume(kubelet: &Kubelet, pod: &Pod, volume: &Volume, mounted: &Mounted) -> Option<VolumeUsage> {
    let claim = volume_claims(pod).find(|claim| claim.volume == volume.name);
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = mounted.path.clone();
    let mut health = None;
    let room: Room = if kubelet.csi.has(&mounted.path, &kubelet.pod_folder(uid)) {
        let asks_health = kubelet.config.features.enabled(Feature::CSIVolumeHealth);
        let (room, told) = kubelet.csi.room(uid, &volume.name, asks_health).await?;
        health = told;
        room
    } else if mounted.is_device || volume.host_path.is_some() || volume.image.is_some() {
        // Files of the node's own are none of the Pod's use.
        return None;
    } else if claim.is_some() {
        blocking(move || of_disk(&path)).await?
    } else {
        blocking(move || of_folder(&path)).await.ok()??
    };
    let claim = claim.map(|claim| (namespace, claim.name));
    Some(VolumeUsage { name: volume.name.clone(), claim, time: clock::now_seconds(), room, health })
}
