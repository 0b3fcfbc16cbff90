//! How full the volumes of all Pods are. This is the one reader: the summary and the metrics both ask here.
//! Upstream counterpart: pkg/kubelet/server/stats/volume_stat_calculator.go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::rules::pod::volume_claims;
use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::{
    kubelet::Kubelet,
    volume_room::{Measured, Room, VolumeUsage, of_disk, of_folder},
    volumes::{self, folder::blocking, plugin::Mounted},
};

/// How long somebody who asks waits for a measurement that has begun.
const MOMENT: Duration = Duration::from_secs(2);

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
        (uid, usages.into_iter().flatten().collect())
    });
    futures::future::join_all(each).await.into_iter().collect()
}

async fn of_volume(kubelet: &Kubelet, pod: &Pod, volume: &Volume, mounted: &Mounted) -> Option<VolumeUsage> {
    let claim = volume_claims(pod).find(|claim| claim.volume == volume.name);
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = mounted.path.clone();
    let room: Room = if kubelet.csi.has(&mounted.path, &kubelet.pod_folder(uid)) {
        kubelet.csi.room(uid, &volume.name).await?
    } else if mounted.is_device || volume.host_path.is_some() || volume.image.is_some() {
        // Files of the node's own are none of the Pod's use.
        return None;
    } else if claim.is_some() {
        blocking(move || of_disk(&path)).await?
    } else {
        blocking(move || of_folder(&path)).await.ok()??
    };
    let claim = claim.map(|claim| (namespace, claim.name));
    Some(VolumeUsage { name: volume.name.clone(), claim, time: clock::now_seconds(), room })
}
