//! Topology hints: endpoints are shared out among zones by the CPU of their nodes, whatever becomes of Pods and nodes.

use std::collections::BTreeMap;

use json::{Value, json};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};

use crate::world::{Story, World, below, chance, converges, name};

const ZONE: &str = "topology.kubernetes.io/zone";
const MODE: &str = "service.kubernetes.io/topology-mode";

/// One Service, its Pods on three nodes, and zones that change.
struct Hints {
    made: u64,
    auto: bool,
}

fn is_ready(conditions: impl Iterator<Item = (String, String)>) -> bool {
    conditions.into_iter().any(|(kind, status)| kind == "Ready" && status == "True")
}

fn serves(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions =
        status.iter().flat_map(|s| s.conditions.iter().flatten()).map(|c| (c.type_.clone(), c.status.clone()));
    pod.metadata.deletion_timestamp.is_none() && is_ready(conditions) && status.is_some_and(|s| s.pod_ip.is_some())
}

/// The zone and the CPUs of a node that counts.
fn share(node: &Node) -> Option<(Option<String>, f64)> {
    let status = node.status.as_ref()?;
    let conditions = status.conditions.iter().flatten().map(|c| (c.type_.clone(), c.status.clone()));
    let cpu = status.allocatable.as_ref().and_then(|all| all.get("cpu")).map_or(0.0, |cpu| cpu.0.parse().unwrap());
    is_ready(conditions).then(|| (node.metadata.labels.as_ref().and_then(|l| l.get(ZONE)).cloned(), cpu))
}

/// The part of all CPUs that each zone has, if all is known and there are several.
fn ratios(nodes: &[Node]) -> Option<BTreeMap<String, f64>> {
    let mut zones: BTreeMap<String, f64> = BTreeMap::new();
    for (zone, cpu) in nodes.iter().filter_map(share) {
        *zones.entry(zone?).or_default() += cpu;
        if cpu == 0.0 {
            return None;
        }
    }
    let total: f64 = zones.values().sum();
    (zones.len() > 1).then(|| zones.into_iter().map(|(zone, cpu)| (zone, cpu / total)).collect())
}

impl Hints {
    async fn set_node(&self, world: &World, node: &str) {
        let zone = ["a", "b", "c"].get(below(4) as usize);
        let ready = if chance(85) { "True" } else { "False" };
        let cpu = ["1", "1", "2", "4"][below(4) as usize];
        let labels = json!({"metadata": {"labels": {ZONE: zone}}});
        world.nodes().merge_patch(node, "", labels).await.unwrap();
        let status = json!({"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]});
        world.nodes().merge_patch(node, "status", json!({"status": status})).await.unwrap();
    }

    async fn make_pod(&mut self, world: &World) {
        self.made += 1;
        let pod = json!({"metadata": {"name": format!("p{}", self.made), "labels": {"app": "s"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        world.create::<Pod>(pod).await;
    }

    /// Pods that run get addresses.
    async fn give_addresses(&self, world: &World) {
        for pod in world.list::<Pod>().await {
            let status = pod.status.as_ref();
            if status.is_some_and(|s| s.pod_ip.is_none() && s.phase.as_deref() == Some("Running")) {
                let ip = format!("10.0.0.{}", name(&pod).trim_start_matches('p'));
                let status: Value = json!({"podIP": ip, "podIPs": [{"ip": ip}]});
                // It may be gone by now.
                let _ = world.api::<Pod>().merge_patch(name(&pod), "status", json!({"status": status})).await;
            }
        }
    }
}

fn zone_of(endpoint: &Endpoint) -> Option<&str> {
    endpoint.hints.as_ref()?.for_zones.as_ref()?.first().map(|zone| zone.name.as_str())
}

/// The fault in the hints of endpoints that are ready, where they may be given.
fn unfair(endpoints: &[&Endpoint], ratios: &BTreeMap<String, f64>) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for endpoint in endpoints {
        *counts.entry(zone_of(endpoint)?).or_default() += 1;
    }
    let share = |zone: &str| ratios.get(zone).copied().unwrap_or(0.0) * endpoints.len() as f64;
    let fine = |zone: &str| share(zone) / counts.get(zone).copied().unwrap_or(0) as f64 <= 1.2 + 1e-9;
    let fair = ratios.keys().all(|zone| fine(zone)) && counts.keys().all(|zone| ratios.contains_key(*zone));
    (!fair).then(|| format!("{counts:?} for {ratios:?}"))
}

impl Story for Hints {
    const CONTROLLERS: &'static [&'static str] = &["endpointslice-controller"];

    async fn begin(world: &World) -> Self {
        let service = json!({"metadata": {"name": "s", "annotations": {MODE: "Auto"}},
            "spec": {"selector": {"app": "s"}, "ports": [{"port": 80}], "clusterIP": "None"}});
        world.create::<Service>(service).await;
        let mut story = Hints { made: 0, auto: true };
        for node in ["n1", "n2", "n3"] {
            story.set_node(world, node).await;
        }
        for _ in 0..5 {
            story.make_pod(world).await;
        }
        story
    }

    async fn change(&mut self, world: &World) {
        match below(8) {
            0..3 => self.make_pod(world).await,
            3 => world.delete_some_pod().await,
            4..7 => self.set_node(world, ["n1", "n2", "n3"][below(3) as usize]).await,
            _ => {
                self.auto = !self.auto;
                let mode = self.auto.then_some("Auto");
                let patch = json!({"metadata": {"annotations": {MODE: mode}}});
                world.api::<Service>().merge_patch("s", "", patch).await.unwrap();
            }
        }
    }

    async fn check(&self, world: &World) {
        self.give_addresses(world).await;
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let serving = world.list::<Pod>().await.iter().filter(|pod| serves(pod)).count();
        let slices = world.list::<EndpointSlice>().await;
        let all = slices.iter().flat_map(|slice| &slice.endpoints);
        let ready: Vec<&Endpoint> =
            all.filter(|e| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true))).collect();
        if ready.len() != serving {
            return Some(format!("{} of {serving} Pods are endpoints", ready.len()));
        }
        let nodes = world.nodes().list(&[]).await.unwrap();
        let hinted = ready.iter().filter(|endpoint| zone_of(endpoint).is_some()).count();
        let ratios = ratios(&nodes).filter(|_| self.auto);
        let least = |share: &f64| (share * ready.len() as f64 / 1.2).ceil() as usize;
        let possible = |ratios: &BTreeMap<String, f64>| {
            let zones_known = ready.iter().all(|endpoint| endpoint.zone.is_some());
            ratios.len() <= ready.len() && ratios.values().map(least).sum::<usize>() <= ready.len() && zones_known
        };
        match ratios.filter(possible) {
            None => (hinted > 0).then(|| format!("{hinted} of {serving} have hints")),
            Some(_) if hinted < serving => Some(format!("only {hinted} of {serving} have hints")),
            Some(ratios) => unfair(&ready, &ratios),
        }
    }
}

#[test]
fn zones_get_their_share_of_endpoints() {
    converges::<Hints>(0..8);
}
