//! The workloads with devices (test/integration/scheduler_perf/dra): every Pod has a claim of its own for one of ten devices
//! of a node. Either the cluster fills up, or ten Pods at a time come, get their devices and go.

use std::time::Duration;

use client::Key;
use json::{Value, json};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimStatus, ResourceSlice},
};
use scheduler::{
    Decision,
    devices::{Claim, Class, Given, Slice},
};

use super::{
    cluster::{Cluster, Run, cpu_seconds},
    objects,
    table::Workload,
};

const DRIVER: &str = "test-driver.cdi.k8s.io";
const DEVICES_OF_A_NODE: usize = 10;
/// How many Pods come at once where the cluster stays as full as it is.
const ROUND: usize = 10;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    json::from_value(value).expect("an object of this program's own making")
}

fn claim(namespace: &str, name: &str) -> ResourceClaim {
    let requests = json!([{"name": "req-0", "exactly": {"deviceClassName": "test-class", "count": 1}}]);
    object(json!({"metadata": {"name": name, "namespace": namespace, "uid": name},
        "spec": {"devices": {"requests": requests}}}))
}

fn pod(namespace: &str, name: &str) -> Pod {
    let mut pod = objects::named(&objects::pod("light-pod", namespace), name.to_owned());
    let claims = json!([{"name": "resource", "resourceClaimName": name}]);
    pod.spec.get_or_insert_default().resource_claims = object(claims);
    pod
}

/// Runs a workload.
pub fn run(cluster: &mut Cluster, workload: &Workload) -> Run {
    let class = json!({"metadata": {"name": "test-class"},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
    let class: DeviceClass = object(class);
    cluster.engine.set_device_class(&Key::new("", "test-class"), Some(Class::of(&class)), cluster.now);
    for i in 0..workload.nodes {
        let name = format!("scheduler-perf-dra-{i}");
        cluster.set_node(&objects::node(&name, None));
        let devices: Vec<Value> = (0..DEVICES_OF_A_NODE).map(|i| json!({"name": format!("instance-{i:02}")})).collect();
        let slice: ResourceSlice =
            object(json!({"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}}));
        cluster.engine.set_slice(&Key::new("", &*name), Some(Slice::of(&slice)), cluster.now);
    }
    let names = |sort: &str, count: usize| (0..count).map(|i| format!("{sort}-{i}")).collect::<Vec<_>>();
    place(cluster, "init", &names("init", workload.init));
    let all = names("measured", workload.measured);
    let round = if workload.case.starts_with("SteadyState") { ROUND } else { all.len().max(1) };
    let (mut seconds, mut placed) = (0.0, 0);
    for names in all.chunks(round) {
        let begun = cpu_seconds();
        placed += place(cluster, "test", names);
        seconds += cpu_seconds() - begun;
        if round == ROUND {
            names.iter().for_each(|name| go(cluster, name));
        }
    }
    Run { seconds, placed, left: all.len() - placed }
}

/// Shows Pods with their claims, and what is decided about them until nothing is. Says how many have a node now.
fn place(cluster: &mut Cluster, namespace: &str, names: &[String]) -> usize {
    for name in names {
        show(cluster, &claim(namespace, name));
        cluster.engine.set_pod(&pod(namespace, name), cluster.now);
    }
    let mut placed = 0;
    while let Some(decision) = cluster.engine.schedule_one(cluster.now) {
        cluster.now += Duration::from_millis(1);
        let Decision::Bind { pod: decided, node, prepare } = decision else { continue };
        let brought = prepare.iter().filter_map(|p| p.brought.clone().downcast::<Given>().ok());
        for (key, result) in brought.flat_map(|given| given.claims.clone()) {
            let mut claim = claim(&key.namespace, &key.name);
            claim.status = Some(ResourceClaimStatus { allocation: Some((*result).clone()), ..Default::default() });
            show(cluster, &claim);
        }
        let mut bound = pod(namespace, &decided.key.name);
        bound.spec.get_or_insert_default().node_name = Some(node.to_string());
        cluster.engine.set_pod(&bound, cluster.now);
        placed += 1;
    }
    placed
}

fn show(cluster: &mut Cluster, claim: &ResourceClaim) {
    cluster.engine.set_device_claim(&Key::of(claim), Some(Claim::of(claim)), cluster.now);
}

fn go(cluster: &mut Cluster, name: &str) {
    let key = Key::new("test", name);
    cluster.engine.remove_pod(&key, cluster.now);
    cluster.engine.set_device_claim(&key, None, cluster.now);
}
