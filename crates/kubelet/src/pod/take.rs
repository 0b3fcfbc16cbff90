//! Gives a new Pod devices, processors and memory for itself, one container after the other: first the NUMA nodes are chosen that suit all
//! of these, then each comes from there. Upstream counterpart: the scopes of pkg/kubelet/cm/topologymanager.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    affinity::{allocate::Pass, requests},
    kubelet::Kubelet,
    pod::{admit::Refusal, desired::DesiredPod, restart, running::RunningPod, workers::Handle},
};

/// Whether a Pod has something for itself, or may ask for it.
pub fn concerns(kubelet: &Kubelet, pod: &Pod) -> bool {
    kubelet.affinity.concerns() || kubelet.devices.concern(pod)
}

/// Everything that the Pod has is everybody's again.
pub async fn release(kubelet: &Kubelet, uid: &str) {
    kubelet.devices.release(uid).await;
    kubelet.affinity.release(uid).await;
}

/// Frees what the Pods have that are over, and gives this one what it asks for. What it has it keeps; its devices are not looked at
/// again as long as their containers run.
pub async fn take(kubelet: &Arc<Kubelet>, desired: &DesiredPod, running: &RunningPod) -> Result<(), Refusal> {
    let _turn = kubelet.affinity.turn().await;
    for over in kubelet.pods.all().into_iter().filter(Handle::has_left) {
        release(kubelet, over.desired().uid()).await;
    }
    let begun = clock::Instant::now();
    let given = give(kubelet, desired, running).await;
    kubelet.affinity.admitted(given.is_ok(), begun.elapsed());
    given
}

async fn give(kubelet: &Kubelet, desired: &DesiredPod, running: &RunningPod) -> Result<(), Refusal> {
    let (affinity, pod) = (&kubelet.affinity, &*desired.pod);
    let has_begun = !running.containers.is_empty();
    if !has_begun {
        affinity.forget_old_size(desired.uid()).await;
    }
    let (mut pass, mut devices) = (Pass::new(has_begun), kubelet.devices.giving(pod));
    if affinity.is_by_pod() {
        affinity.align(&pass, pod, None, devices.hints_of_pod(affinity.nodes()))?;
    }
    for container in requests::containers(pod) {
        if !affinity.is_by_pod() {
            affinity.align(&pass, pod, Some(container), devices.hints(container, affinity.nodes()))?;
        }
        let begins = restart::is_to_begin(desired, running, container);
        let nodes = affinity.mask(desired.uid(), &container.name);
        let given = devices.give(container, begins, nodes).await;
        given.map_err(|why| Refusal::unexpected(&why))?;
        affinity.allocate(&mut pass, pod, container)?;
    }
    devices.end().await.map_err(|why| Refusal::unexpected(&why))?;
    affinity.save().await.map_err(|why| Refusal::unexpected(&why))
}
