//! The kubelet's answers to who has which devices: the service `PodResourcesLister` on a socket that monitors of this node ask.
//! Upstream counterpart: pkg/kubelet/apis/podresources.

use std::{sync::Arc, time::Duration};

use api::{features::Feature, rules::pod::is_sidecar};
use clock::Instant;
use files::modes;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use runtime::grpc::{self, Server, Status};

use crate::{
    affinity::memory::tables::Block,
    devices::{
        messages::{CdiDevice, NumaNode, TopologyInfo},
        state::Seen,
    },
    kubelet::Kubelet,
    server::pod_resources_messages::{
        AllocatableResourcesRequest, AllocatableResourcesResponse, ClaimResource, ContainerDevices, ContainerMemory,
        ContainerResources, DynamicResource, GET, GET_ALLOCATABLE, GetPodResourcesRequest, GetPodResourcesResponse,
        LIST, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
    },
};

/// The number of questions that are answered at once; after that one is answered in each such pause: upstream's 100 in
/// a second.
const BURST: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);
/// A socket that could not be made is tried again after this pause.
const RETRY: Duration = Duration::from_secs(20);

/// How many questions may still be asked, as of a moment.
struct Limiter(Mutex<(u32, Instant)>);

impl Limiter {
    fn new() -> Limiter {
        Limiter(Mutex::new((BURST, Instant::now())))
    }

    fn allow(&self) -> Result<(), Status> {
        let (left, since) = &mut *self.0.lock();
        let earned = since.elapsed().as_millis() / PAUSE.as_millis();
        // Permissions that are earned beyond the burst are lost.
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        *since = if *left + earned.min(BURST) >= BURST { Instant::now() } else { *since + PAUSE * earned };
        *left = (*left + earned.min(BURST)).min(BURST);
        *left = left.checked_sub(1).ok_or_else(|| Status::resource_exhausted("rejected by rate limit"))?;
        Ok(())
    }
}

/// One entry for each device, and for each of its NUMA nodes, as upstream.
fn shown(devices: Vec<Seen>) -> Vec<ContainerDevices> {
    let entry = |seen: &Seen, node: Option<i64>| ContainerDevices {
        resource_name: seen.resource.clone(),
        device_ids: vec![seen.id.clone()],
        topology: node.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] }),
    };
    let of = |seen: Seen| match &seen.nodes[..] {
        [] => vec![entry(&seen, None)],
        nodes => nodes.iter().map(|node| entry(&seen, Some(*node))).collect(),
    };
    devices.into_iter().flat_map(of).collect()
}

fn memory(block: &Block) -> ContainerMemory {
    let nodes = block.numa_affinity.iter().map(|node| NumaNode { id: i64::from(*node) }).collect();
    ContainerMemory { memory_type: block.sort.clone(), size: block.size, topology: Some(TopologyInfo { nodes }) }
}

fn of_container(kubelet: &Kubelet, pod: &Pod, container: &Container) -> ContainerResources {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let with_claims = kubelet.config.features.enabled(Feature::KubeletPodResourcesDynamicResources);
    let claims = if with_claims { kubelet.claims.of_container(pod, container) } else { Vec::new() };
    let claim = |(key, held): (client::Key, crate::claims::state::Held)| {
        let devices = held.drivers.into_iter().flat_map(|(driver, all)| {
            all.into_iter().map(move |device| ClaimResource {
                cdi_devices: device.cdi_device_ids.into_iter().map(|name| CdiDevice { name }).collect(),
                driver_name: driver.clone(),
                pool_name: device.pool_name,
                device_name: device.device_name,
            })
        });
        let claim_resources = devices.collect();
        DynamicResource { claim_name: key.name.clone(), claim_namespace: key.namespace.clone(), claim_resources }
    };
    ContainerResources {
        name: container.name.clone(),
        devices: shown(kubelet.devices.seen(uid, &container.name)),
        cpu_ids: kubelet.affinity.exclusive(uid, &container.name).iter().map(i64::from).collect(),
        memory: kubelet.affinity.memory_of(uid, &container.name).iter().map(memory).collect(),
        dynamic_resources: claims.into_iter().map(claim).collect(),
    }
}

fn of_pod(kubelet: &Kubelet, pod: &Pod) -> PodResources {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        spec.init_containers.iter().flatten().filter(|container| is_sidecar(container)).chain(&spec.containers)
    });
    PodResources {
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        containers: containers.map(|container| of_container(kubelet, pod, container)).collect(),
    }
}

fn list(kubelet: &Kubelet) -> ListPodResourcesResponse {
    let active = kubelet.pods.all().into_iter().filter(|pod| !pod.has_left());
    ListPodResourcesResponse { pod_resources: active.map(|pod| of_pod(kubelet, &pod.desired().pod)).collect() }
}

fn get(kubelet: &Kubelet, asked: &GetPodResourcesRequest) -> Result<GetPodResourcesResponse, Status> {
    if !kubelet.config.features.enabled(Feature::KubeletPodResourcesGet) {
        return Err(Status::unknown("PodResources API Get method disabled"));
    }
    let (name, namespace) = (&asked.pod_name, &asked.pod_namespace);
    let found = kubelet.pods.named(namespace, name).map(|pod| pod.desired());
    let found = found.ok_or_else(|| Status::unknown(format!("pod {name} in namespace {namespace} not found")))?;
    Ok(GetPodResourcesResponse { pod_resources: Some(of_pod(kubelet, &found.pod)) })
}

/// Answers on the socket, for ever.
pub async fn serve(kubelet: Arc<Kubelet>) {
    let folder = kubelet.config.root_dir.join("pod-resources");
    let limiter = Arc::new(Limiter::new());
    loop {
        let made = modes::folder(&folder, modes::NODE_FOLDER).and_then(|()| grpc::listen(&folder.join("kubelet.sock")));
        match made {
            Ok(listener) => service(&kubelet, &limiter).serve(listener).await,
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "nobody can ask who has which devices");
                clock::sleep(RETRY).await;
            }
        }
    }
}

fn service(kubelet: &Arc<Kubelet>, limiter: &Arc<Limiter>) -> Server {
    let (k1, k2, k3) = (kubelet.clone(), kubelet.clone(), kubelet.clone());
    let (l1, l2, l3) = (limiter.clone(), limiter.clone(), limiter.clone());
    Server::default()
        .unary(LIST, move |_: ListPodResourcesRequest| std::future::ready(l1.allow().map(|()| list(&k1))))
        .unary(GET_ALLOCATABLE, move |_: AllocatableResourcesRequest| {
            let answer = || AllocatableResourcesResponse {
                devices: shown(k2.devices.all_healthy()),
                cpu_ids: k2.affinity.allocatable_cpus().iter().map(i64::from).collect(),
                memory: k2.affinity.allocatable_memory().iter().map(memory).collect(),
            };
            std::future::ready(l2.allow().map(|()| answer()))
        })
        .unary(GET, move |asked: GetPodResourcesRequest| std::future::ready(l3.allow().and_then(|()| get(&k3, &asked))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_questions_are_answered_and_no_more() {
        let limiter = Limiter::new();
        let asked = || (0..100).filter(|_| limiter.allow().is_ok()).count();
        assert_eq!(asked(), 10);
        clock::sleep(Duration::from_millis(25)).await;
        assert_eq!(asked(), 2);
        clock::sleep(Duration::from_millis(5)).await;
        assert_eq!(asked(), 1);
        clock::sleep(Duration::from_secs(1000)).await;
        assert_eq!(asked(), 10);
    }

    #[test]
    fn a_device_is_shown_for_each_of_its_numa_nodes() {
        let seen = |nodes: &[i64]| Seen {
            resource: "a.io/x".to_owned(),
            id: "d".to_owned(),
            nodes: nodes.to_vec(),
            healthy: None,
        };
        let check = |nodes: &[i64], expected: &[Option<i64>]| {
            let shown: Vec<_> =
                shown(vec![seen(nodes)]).into_iter().map(|d| d.topology.map(|t| t.nodes[0].id)).collect();
            assert_eq!(shown, expected);
        };
        check(&[], &[None]);
        check(&[0], &[Some(0)]);
        check(&[0, 1], &[Some(0), Some(1)]);
    }
}
