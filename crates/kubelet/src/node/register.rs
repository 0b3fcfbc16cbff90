//! The Node object: made at the start, kept true afterwards, with a lease as heartbeat. Few writes: the status only when it
//! has changed or five minutes have gone by, the lease every ten seconds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clock::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{
            ContainerImage, DaemonEndpoint, Node as NodeObject, NodeAddress, NodeCondition, NodeDaemonEndpoints,
            NodeSpec, NodeStatus, NodeSystemInfo, Taint,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
    },
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    eviction::{
        evict,
        pressure::{self, Signal},
    },
    kubelet::Node,
    node::machine,
};

const CHECK: Duration = Duration::from_secs(10);
const REPORT_SECONDS: i64 = 300;
const LEASE: Duration = Duration::from_secs(10);
/// The version that this kubelet behaves as.
pub const VERSION: &str = "v1.35.0";

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What this node says of itself in labels.
pub fn labels(node: &Node) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", node.config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch()),
    ];
    let own = own.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
    own.chain(node.config.node_labels.clone()).collect()
}

fn annotations(node: &Node) -> BTreeMap<String, String> {
    let own = ("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned());
    std::iter::once(own).chain(node.config.node_annotations.clone()).collect()
}

/// What the engine says about itself: its version, and what keeps the node from being ready.
struct Engine {
    version: String,
    trouble: Vec<String>,
    images: Vec<ContainerImage>,
}

async fn ask_engine(node: &Node) -> Engine {
    let engine = &node.config.runtime;
    let version = match engine.version().await {
        Ok(v) => format!("{}://{}", v.runtime_name, v.runtime_version.trim_start_matches('v')),
        Err(_) => "unknown".to_owned(),
    };
    let trouble = match engine.status().await {
        Ok(status) => {
            let conditions = status.status.unwrap_or_default().conditions;
            let bad = conditions.into_iter().filter(|c| !c.status);
            bad.map(|c| match c.r#type.as_str() {
                "NetworkReady" => format!(
                    "container runtime network not ready: NetworkReady=false reason:{} message:{}",
                    c.reason, c.message
                ),
                _ => format!("container runtime is down: {}", c.message),
            })
            .collect()
        }
        Err(error) => vec![format!("container runtime is down: {error}")],
    };
    let images = engine.images().await.unwrap_or_default().into_iter().take(50).map(|i| ContainerImage {
        names: Some(i.repo_digests.into_iter().chain(i.repo_tags).collect()),
        size_bytes: i64::try_from(i.size).ok(),
    });
    Engine { version, trouble, images: images.collect() }
}

/// What of it Pods get: all but what must stay free.
pub fn allocatable(node: &Node) -> BTreeMap<String, Quantity> {
    let mut list = capacity(node);
    let disk = number(machine::disk(&node.config.root_dir).unwrap_or_default().size);
    let kept = |signal, most| node.config.eviction_hard.iter().find(|t| t.signal == signal).map(|t| t.amount(most));
    if let Some(kept) = kept(Signal::MemoryAvailable, node.machine.memory) {
        let left = (node.machine.memory - kept).max(0) / 1024;
        list.insert("memory".to_owned(), Quantity(format!("{left}Ki")));
    }
    if let Some(kept) = kept(Signal::NodefsAvailable, disk) {
        list.insert("ephemeral-storage".to_owned(), Quantity((disk - kept).max(0).to_string()));
    }
    list
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What the node has.
fn capacity(node: &Node) -> BTreeMap<String, Quantity> {
    let disk = machine::disk(&node.config.root_dir).unwrap_or_default().size;
    [
        ("cpu", node.machine.cpus.to_string()),
        ("memory", format!("{}Ki", node.machine.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", disk / 1024)),
        ("pods", node.config.max_pods.to_string()),
        ("hugepages-1Gi", "0".to_owned()),
        ("hugepages-2Mi", "0".to_owned()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), Quantity(v)))
    .collect()
}

fn conditions(node: &Node, engine: &Engine, before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let (memory_short, disk_short, pid_short) = {
        let pressures = node.pressures.lock();
        (pressures.holds(pressure::MEMORY), pressures.holds(pressure::DISK), pressures.holds(pressure::PID))
    };
    let ready = engine.trouble.is_empty();
    let ready_message = if ready { "kubelet is posting ready status".to_owned() } else { engine.trouble.join(", ") };
    let state = |short: bool, what: &'static str, bad: &'static str, good: &'static str, yes: &str, no: &str| {
        let (reason, message) = if short { (bad, yes) } else { (good, no) };
        (what, short, reason, message.to_owned())
    };
    let list = [
        state(
            memory_short,
            "MemoryPressure",
            "KubeletHasInsufficientMemory",
            "KubeletHasSufficientMemory",
            "kubelet has insufficient memory available",
            "kubelet has sufficient memory available",
        ),
        state(
            disk_short,
            "DiskPressure",
            "KubeletHasDiskPressure",
            "KubeletHasNoDiskPressure",
            "kubelet has disk pressure",
            "kubelet has no disk pressure",
        ),
        state(
            pid_short,
            "PIDPressure",
            "KubeletHasInsufficientPID",
            "KubeletHasSufficientPID",
            "kubelet has insufficient PID available",
            "kubelet has sufficient PID available",
        ),
        ("Ready", ready, if ready { "KubeletReady" } else { "KubeletNotReady" }, ready_message),
    ];
    let make = |(kind, truth, reason, message): (&str, bool, &str, String)| {
        let status = if truth { "True" } else { "False" };
        let same = before.iter().find(|c| c.type_ == kind && c.status == status);
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: same.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
        }
    };
    list.into_iter().map(make).collect()
}

async fn status(node: &Node, before: &NodeStatus) -> NodeStatus {
    let engine = ask_engine(node).await;
    let now = clock::now_seconds();
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    NodeStatus {
        capacity: Some(capacity(node)),
        allocatable: Some(allocatable(node)),
        addresses: Some(vec![
            address("InternalIP", node.config.node_ip.to_string()),
            address("Hostname", node.config.node_name.clone()),
        ]),
        conditions: Some(conditions(node, &engine, before.conditions.as_deref().unwrap_or_default(), now)),
        daemon_endpoints: node
            .config
            .serving
            .as_ref()
            .map(|s| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: s.port.into() }) }),
        node_info: Some(NodeSystemInfo {
            architecture: arch().to_owned(),
            boot_id: node.machine.boot_id.clone(),
            container_runtime_version: engine.version,
            kernel_version: node.machine.kernel.clone(),
            kubelet_version: VERSION.to_owned(),
            machine_id: node.machine.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: node.machine.os_image.clone(),
            system_uuid: node.machine.machine_id.clone(),
            ..Default::default()
        }),
        images: Some(engine.images),
        ..Default::default()
    }
}

/// Makes the Node object, or takes over the one that exists. Tries until it succeeds.
async fn register(node: &Node, api: &Api<NodeObject>) -> NodeStatus {
    let mut wait = Duration::from_millis(200);
    loop {
        let taint = Taint {
            key: "node.kubernetes.io/not-ready".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Default::default()
        };
        let object = NodeObject {
            metadata: ObjectMeta {
                name: Some(node.config.node_name.clone()),
                labels: Some(labels(node)),
                annotations: Some(annotations(node)),
                ..Default::default()
            },
            spec: Some(NodeSpec { taints: Some(vec![taint]), ..Default::default() }),
            status: Some(status(node, &NodeStatus::default()).await),
        };
        let outcome = match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(s)) if s.code == 409 => {
                let patch = json!({ "metadata": { "labels": labels(node), "annotations": annotations(node) } });
                api.patch(&node.config.node_name, &PatchParams::default(), &Patch::Merge(patch)).await
            }
            other => other,
        };
        match outcome {
            Ok(made) => {
                tracing::info!(node = node.config.node_name, "the node is registered");
                return made.status.unwrap_or_default();
            }
            Err(error) => tracing::warn!(%error, "the node could not be registered, trying again"),
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(7));
    }
}

fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    status.conditions.iter_mut().flatten().for_each(|c| c.last_heartbeat_time = None);
    status
}

/// Registers the node and keeps its status and lease for ever.
pub async fn run(node: Arc<Node>) {
    let api: Api<NodeObject> = Api::all(node.config.client.clone());
    evict::first_look(&node).await;
    let mut reported = register(&node, &api).await;
    let leases = tokio::spawn(keep_lease(node.clone(), api.clone()));
    let _abort_with_us = AbortOnDrop(leases);
    let mut reported_at = 0;
    loop {
        let fresh = status(&node, &reported).await;
        let now = clock::now().as_second();
        if without_heartbeats(&fresh) != without_heartbeats(&reported) || now - reported_at >= REPORT_SECONDS {
            let patch = Patch::Strategic(json!({ "status": fresh }));
            match api.patch_status(&node.config.node_name, &PatchParams::default(), &patch).await {
                Ok(_) => (reported, reported_at) = (fresh, now),
                Err(kube::Error::Api(s)) if s.code == 404 => reported = register(&node, &api).await,
                Err(error) => tracing::warn!(%error, "the node's status could not be written"),
            }
        }
        // Until the node is ready for the first time, someone is waiting for it.
        let ready = reported.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        tokio::select! {
            () = clock::sleep(if ready { CHECK } else { Duration::from_millis(500) }) => {}
            () = node.changed.notified() => {}
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_lease(node: Arc<Node>, nodes: Api<NodeObject>) {
    let api: Api<Lease> = Api::namespaced(node.config.client.clone(), "kube-node-lease");
    let name = &node.config.node_name;
    loop {
        let now = MicroTime(clock::now());
        let renewal = json!({ "spec": { "renewTime": now } });
        let outcome = match api.patch(name, &PatchParams::default(), &Patch::Merge(renewal)).await {
            Err(kube::Error::Api(s)) if s.code == 404 => {
                let owner = nodes.get(name).await.ok().and_then(|n| n.metadata.uid).map(|uid| OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: name.clone(),
                    uid,
                    ..Default::default()
                });
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    owner_references: owner.map(|o| vec![o]),
                    ..Default::default()
                };
                let spec = LeaseSpec {
                    holder_identity: Some(name.clone()),
                    lease_duration_seconds: Some(40),
                    renew_time: Some(now),
                    ..Default::default()
                };
                api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
            }
            other => other,
        };
        if let Err(error) = &outcome {
            tracing::warn!(%error, "the node's lease could not be renewed");
        }
        clock::sleep(if outcome.is_ok() { LEASE } else { Duration::from_secs(1) }).await;
    }
}
