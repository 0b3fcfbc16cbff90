//! Devices from end to end: Pods whose claims are made from a template share what nodes have, one after the other, whoever
//! restarts meanwhile and however bad the weather is.
//!
//! `SIM_SEED=7 cargo test -p sim --test clusters devices` repeats one.

use std::collections::BTreeSet;

use client::{
    Api, Kind,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use parking_lot::Mutex;
use sim::{
    Cluster, Component, Faults,
    check::Model,
    cluster::{seeds, simulate},
};

const NODES: usize = 2;
const DEVICES: usize = 2;
const PODS: usize = 7;

async fn write<K: Kind>(cluster: &Cluster, namespace: &str, name: &str, verb: Verb) {
    let written = rest::write(&cluster.client(), &Resource::of::<K>(), namespace, name, "", &verb).await;
    if let Err(error) = written {
        cluster.fail(&format!("the test's own write failed: {}", rest::message(&error)));
    }
}

fn slice(node: usize) -> Value {
    let name = format!("node-{node:02}");
    let devices: Vec<Value> = (0..DEVICES).map(|i| json!({"name": format!("gpu-{i}")})).collect();
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "nodeName": name, "devices": devices,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}})
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "work:1", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}})
}

async fn claims(cluster: &Cluster) -> Vec<ResourceClaim> {
    let api: Api<ResourceClaim> = Api::namespaced(cluster.client(), "default");
    match api.list(&[]).await {
        Ok(claims) => claims,
        Err(error) => cluster.fail(&format!("the test's own list failed: {error}")),
    }
}

/// No two claims have the same device. Answers with their number.
async fn given(cluster: &Cluster) -> usize {
    let mut held = BTreeSet::new();
    for claim in claims(cluster).await {
        let allocation = claim.status.and_then(|status| status.allocation);
        for result in allocation.and_then(|a| a.devices).and_then(|d| d.results).into_iter().flatten() {
            let device = format!("{}/{}", result.pool, result.device);
            if !held.insert(device.clone()) {
                cluster.fail(&format!("{device} is given twice"));
            }
        }
    }
    held.len()
}

fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

async fn shared(seed: u64) {
    let mut cluster = Cluster::start(seed, NODES).await;
    cluster.until("all nodes are there", minutes(2), |m| m.nodes().count() == NODES).await;
    let class =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}});
    write::<DeviceClass>(&cluster, "", "gpu", Verb::Create(class)).await;
    for node in 0..NODES {
        write::<ResourceSlice>(&cluster, "", "", Verb::Create(slice(node))).await;
    }
    let requests = json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}]);
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": requests}}}});
    write::<ResourceClaimTemplate>(&cluster, "default", "one", Verb::Create(template)).await;
    cluster.weather.set(Faults::STORM);
    for i in 0..PODS {
        write::<Pod>(&cluster, "default", "", Verb::Create(pod(&format!("p{i}")))).await;
        if i % 3 == 1 {
            let component = if i == 1 { Component::Scheduler } else { Component::Manager(0) };
            cluster.kill(component);
            clock::sleep(Duration::from_millis(clock::random_range(0..2000))).await;
            cluster.run(component);
        }
    }
    let mut left = PODS;
    while left > 0 {
        let fit = left.min(NODES * DEVICES);
        let running = Mutex::new(Vec::new());
        let serving = |m: &Model| {
            let ready = m.pods().filter(|pod| api::rules::pod::is_ready(pod));
            *running.lock() = ready.map(|pod| pod.metadata.name.clone().unwrap_or_default()).collect();
            running.lock().len() == fit
        };
        cluster.until("as many Pods run as there are devices", minutes(20), serving).await;
        // A claim of a Pod that went before may still have its device.
        assert!(given(&cluster).await >= fit, "seed {seed}");
        let first = running.into_inner().remove(0);
        write::<Pod>(&cluster, "default", &first, Verb::Delete(DeleteOptions::default())).await;
        left -= 1;
        cluster.until("the Pod is gone", minutes(10), |m| m.pods().count() == left).await;
    }
    cluster.weather.set(Faults::NONE);
    let end = Instant::now() + minutes(20);
    while !claims(&cluster).await.is_empty() {
        assert!(Instant::now() < end, "seed {seed}: claims go with their Pods");
        clock::sleep(Duration::from_secs(1)).await;
    }
    cluster.quiesce().await;
}

#[test]
fn pods_share_devices_one_after_the_other() {
    for seed in seeds([1, 2]) {
        simulate(seed, shared);
    }
}
