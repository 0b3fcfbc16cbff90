//! Keeps the containers that share processors to those that are left to share: whenever some were given or taken back, and from time
//! to time. Upstream counterpart: reconcileState of pkg/kubelet/cm/cpumanager.

use std::{collections::BTreeSet, sync::Arc};

use k8s_cri::v1::{ContainerState, LinuxContainerResources};

use crate::{
    kubelet::Kubelet,
    pod::desired::{CONTAINER_NAME, POD_UID},
};

/// Runs for ever.
pub async fn run(kubelet: Arc<Kubelet>) {
    let period = kubelet.config.settings.managers.period;
    loop {
        reconcile(&kubelet).await;
        // Whichever comes first.
        let _ = clock::timeout(period, kubelet.affinity.changed()).await;
    }
}

/// Tells each container of this node that runs its processors, unless it was told the same.
async fn reconcile(kubelet: &Kubelet) {
    let engine = &kubelet.config.runtime;
    let all = match engine.containers(None).await {
        Ok(all) => all,
        Err(error) => return tracing::debug!(%error, "the engine does not tell who shares processors"),
    };
    let ids: BTreeSet<&str> = all.iter().map(|container| container.id.as_str()).collect();
    kubelet.affinity.retain_told(|id| ids.contains(id));
    for container in all.iter().filter(|container| container.state() == ContainerState::ContainerRunning) {
        let label = |name: &str| container.labels.get(name).map(String::as_str);
        let (Some(uid), Some(name)) = (label(POD_UID), label(CONTAINER_NAME)) else { continue };
        if !kubelet.pods.has(uid) {
            continue;
        }
        let Some(cpus) = kubelet.affinity.untold(&container.id, uid, name) else { continue };
        let resources = LinuxContainerResources { cpuset_cpus: cpus.to_string(), ..Default::default() };
        match engine.update_resources(&container.id, resources).await {
            Ok(()) => kubelet.affinity.told(&container.id, cpus),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(container = container.id, cpuset = %cpus, %error, "a container keeps its processors");
            }
        }
    }
}
