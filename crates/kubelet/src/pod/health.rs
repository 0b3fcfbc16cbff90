//! The health of the devices that containers have, in the Pod's status (`allocatedResourcesStatus`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};

use crate::{
    claims::health::{HEALTHY, UNHEALTHY, UNKNOWN},
    kubelet::Kubelet,
};

/// The health of devices, by their ids, for each resource and each request of a claim.
type ByResource = BTreeMap<String, BTreeMap<String, &'static str>>;

fn of_container(kubelet: &Kubelet, pod: &Pod, container: &Container) -> ByResource {
    let mut found = ByResource::new();
    for seen in kubelet.devices.seen(pod.metadata.uid.as_deref().unwrap_or_default(), &container.name) {
        let health = seen.healthy.map_or(UNKNOWN, |healthy| if healthy { HEALTHY } else { UNHEALTHY });
        found.entry(seen.resource).or_default().insert(seen.id, health);
    }
    for (name, devices) in kubelet.claims.health(pod, container) {
        found.entry(name).or_default().extend(devices);
    }
    found
}

/// Adds what is known of the devices of a Pod's containers to its status.
pub fn show(kubelet: &Kubelet, pod: &Pod, status: &mut PodStatus) {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    for container in containers {
        let statuses = status.container_statuses.iter_mut().flatten();
        let Some(status) = statuses.into_iter().find(|status| status.name == container.name) else { continue };
        let of = |(id, health): (String, &str)| ResourceHealth { resource_id: id, health: Some(health.to_owned()) };
        let resource = |(name, devices): (String, BTreeMap<String, &'static str>)| ResourceStatus {
            name,
            resources: Some(devices.into_iter().map(of).collect()),
        };
        let all: Vec<_> = of_container(kubelet, pod, container).into_iter().map(resource).collect();
        status.allocated_resources_status = Some(all).filter(|all| !all.is_empty());
    }
}

/// Wakes the Pods that have devices whenever the health of some may have changed. Runs for ever.
pub async fn wake(kubelet: Arc<Kubelet>) {
    let (mut devices, mut claims) = (kubelet.devices.changes(), kubelet.claims.drivers.health_changes());
    loop {
        // Both senders live as long as the kubelet.
        tokio::select! {
            _ = devices.changed() => {}
            _ = claims.changed() => {}
        }
        let pods: BTreeSet<String> = kubelet.devices.pods().into_iter().chain(kubelet.claims.pods()).collect();
        pods.iter().for_each(|uid| kubelet.pods.wake(uid));
    }
}
