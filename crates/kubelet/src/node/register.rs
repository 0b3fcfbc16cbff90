//! The Node object: made at the start, kept true afterwards, with a lease as heartbeat. Few writes: the status only when it
//! has changed or five minutes have gone by, the lease every ten seconds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::rules::resource_name;
use client::{Api, Client, Key};
use clock::Timestamp;
use json::{Value, json};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{
            DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
            NodeSwapStatus, NodeSystemInfo, Taint,
        },
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
};

use crate::{
    eviction::pressure,
    kubelet::{Kubelet, PATIENCE},
    node::{
        capacity, changes, declared,
        engine::{self, Engine},
    },
    shutdown::follow,
};

fn annotations(kubelet: &Kubelet) -> BTreeMap<String, String> {
    let own = ("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned());
    std::iter::once(own).chain(kubelet.config.node_annotations.clone()).collect()
}

fn conditions(kubelet: &Kubelet, engine: &Engine, before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let (memory_short, disk_short, pid_short) = {
        let pressures = kubelet.pressures.borrow();
        (pressures.holds(pressure::MEMORY), pressures.holds(pressure::DISK), pressures.holds(pressure::PID))
    };
    let ends = kubelet.shuts_down.borrow().then_some(follow::NOT_READY);
    let trouble: Vec<&str> = engine.trouble.iter().map(String::as_str).chain(ends).collect();
    let ready = trouble.is_empty();
    let ready_message = match trouble[..] {
        [] => "kubelet is posting ready status".to_owned(),
        [one] => one.to_owned(),
        _ => format!("[{}]", trouble.join(", ")),
    };
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

async fn status(kubelet: &Kubelet, before: &NodeStatus) -> NodeStatus {
    let engine = engine::ask(kubelet).await;
    // One that is away for a moment has lost none of its abilities.
    let known = || (before.runtime_handlers.clone().unwrap_or_default(), before.features.clone());
    let (handlers, features) = engine.abilities.clone().unwrap_or_else(known);
    let held = kubelet.node.get(&Key::new("", &kubelet.config.node_name));
    let now = clock::now_seconds();
    let machine = &kubelet.host.machine;
    let mut capacity = capacity::capacity(&kubelet.config, machine);
    let mut allocatable = capacity::allocatable(&kubelet.config, machine, held.as_deref());
    capacity::add_devices(&kubelet.devices.capacity(), &mut capacity, &mut allocatable);
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    NodeStatus {
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        addresses: Some({
            let ips = kubelet.config.node_ips().map(|ip| address("InternalIP", ip.to_string()));
            ips.chain([address("Hostname", kubelet.config.node_name.clone())]).collect()
        }),
        conditions: Some(conditions(kubelet, &engine, before.conditions.as_deref().unwrap_or_default(), now)),
        daemon_endpoints: kubelet
            .config
            .serving
            .as_ref()
            .map(|s| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: s.port.into() }) }),
        node_info: Some(NodeSystemInfo {
            architecture: capacity::arch().to_owned(),
            boot_id: kubelet.host.machine.boot_id.clone(),
            container_runtime_version: engine.version,
            kernel_version: kubelet.host.machine.kernel.clone(),
            kubelet_version: api::KUBERNETES_VERSION.to_owned(),
            machine_id: kubelet.host.machine.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: kubelet.host.machine.os_image.clone(),
            system_uuid: kubelet.host.machine.machine_id.clone(),
            swap: Some(machine.swap).filter(|bytes| *bytes > 0).map(|bytes| NodeSwapStatus { capacity: Some(bytes) }),
            ..Default::default()
        }),
        images: Some(engine.images),
        features,
        runtime_handlers: Some(handlers).filter(|l: &Vec<_>| !l.is_empty()),
        declared_features: declared::declared(&kubelet.config.features, kubelet.config.settings.managers.cpus),
        volumes_in_use: Some(kubelet.csi.in_use().borrow().iter().cloned().collect())
            .filter(|l: &Vec<_>| !l.is_empty()),
        ..Default::default()
    }
}

/// Says what is new about the node.
fn tell(kubelet: &Kubelet, before: &NodeStatus, fresh: &NodeStatus) {
    for told in changes::between(&kubelet.config.node_name, before, fresh) {
        kubelet.events.node(told.kind, told.reason, &told.message);
    }
}

/// Makes the Node object, or takes over the one that exists. Tries until it succeeds.
async fn register(kubelet: &Kubelet, api: &Api<Node>) -> NodeStatus {
    let mut wait = Duration::from_millis(200);
    loop {
        let taint = Taint {
            key: "node.kubernetes.io/not-ready".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Default::default()
        };
        let settings = &kubelet.config.settings;
        let taints = Some([vec![taint], settings.taints.clone()].concat());
        let provider_id = Some(settings.provider_id.clone()).filter(|id| !id.is_empty());
        let object = Node {
            metadata: ObjectMeta {
                name: Some(kubelet.config.node_name.clone()),
                labels: Some(capacity::labels(&kubelet.config)),
                annotations: Some(annotations(kubelet)),
                ..Default::default()
            },
            spec: Some(NodeSpec { taints, provider_id, ..Default::default() }),
            status: Some(status(kubelet, &NodeStatus::default()).await),
        };
        let created = match settings.registers {
            true => api.create(&object).await,
            // Somebody else makes the Node object.
            false => api.get(&kubelet.config.node_name).await,
        };
        let outcome = match created {
            Err(client::Error::Api(s)) if s.code == 409 => {
                let patch = json!({ "metadata": { "labels": capacity::labels(&kubelet.config), "annotations": annotations(kubelet) } });
                api.merge_patch(&kubelet.config.node_name, "", patch).await
            }
            Ok(made) if settings.registers => {
                tell(kubelet, &NodeStatus::default(), object.status.as_ref().unwrap_or(&NodeStatus::default()));
                Ok(made)
            }
            other => other,
        };
        match outcome {
            Ok(made) => {
                tracing::info!(node = kubelet.config.node_name, "the node is registered");
                return made.status.unwrap_or_default();
            }
            Err(error) => tracing::warn!(%error, "the node could not be registered, trying again"),
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(7));
    }
}

/// The whole status, with what Pods no longer get of the node taken back.
fn change(reported: &NodeStatus, fresh: &NodeStatus) -> Value {
    let mut patch = json!({ "status": fresh });
    // Two addresses may be of one type, by which a patch would take them for one.
    if let Some(addresses) = patch["status"].get_mut("addresses").and_then(Value::as_array_mut) {
        addresses.push(json!({"$patch": "replace"}));
    }
    if fresh.volumes_in_use.is_none() && reported.volumes_in_use.is_some() {
        patch["status"]["volumesInUse"] = Value::Null;
    }
    let swap = |status: &NodeStatus| status.node_info.as_ref().is_some_and(|info| info.swap.is_some());
    if swap(reported) && !swap(fresh) {
        patch["status"]["nodeInfo"]["swap"] = Value::Null;
    }
    if fresh.runtime_handlers.is_none() && reported.runtime_handlers.is_some() {
        patch["status"]["runtimeHandlers"] = Value::Null;
    }
    if fresh.features.is_none() && reported.features.is_some() {
        patch["status"]["features"] = Value::Null;
    }
    let kept = |name: &String| fresh.allocatable.as_ref().is_some_and(|list| list.contains_key(name));
    for name in reported.allocatable.iter().flatten().map(|(name, _)| name).filter(|name| !kept(name)) {
        patch["status"]["allocatable"][name.as_str()] = Value::Null;
    }
    // Others may write a capacity of their own, but a size of huge pages that the machine no longer has is nobody's.
    let had = reported.capacity.iter().flatten().map(|(name, _)| name).filter(|name| resource_name::is_huge(name));
    for name in had.filter(|name| !fresh.capacity.as_ref().is_some_and(|list| list.contains_key(*name))) {
        patch["status"]["capacity"][name.as_str()] = Value::Null;
    }
    patch
}

fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    status.conditions.iter_mut().flatten().for_each(|c| c.last_heartbeat_time = None);
    status
}

/// Registers the node and keeps its status and lease for ever.
pub async fn run(kubelet: Arc<Kubelet>) {
    // Heartbeats that hang would make the node look dead for longer than its server is away.
    let client = kubelet.config.client.clone().patient(PATIENCE.min(kubelet.config.settings.status_update));
    let api: Api<Node> = Api::all(client.clone());
    let (mut pressures, mut devices) = (kubelet.pressures.clone(), kubelet.devices.changes());
    let (mut in_use, mut shuts_down) = (kubelet.csi.in_use(), kubelet.shuts_down.subscribe());
    // The first measurement comes before the node shows itself. Without an eviction manager there is none.
    let _ = pressures.changed().await;
    let every = (kubelet.config.settings.status_update, kubelet.config.settings.status_report);
    let mut reported = register(&kubelet, &api).await;
    let mut kept_away = None;
    let leases = tokio::spawn(keep_lease(kubelet.clone(), client));
    let _abort_with_us = AbortOnDrop(leases);
    let (mut reported_at, mut written) = (0, 0);
    loop {
        // The cache may still have the Node of before the last write, which is known to be no longer so.
        if kubelet.node.revision() >= written
            && let Some(node) = kubelet.node.get(&Key::new("", &kubelet.config.node_name))
        {
            reported.conditions = reported.conditions.map(|all| as_they_stand(all, &node));
        }
        let fresh = status(&kubelet, &reported).await;
        let now = clock::now().as_second();
        if without_heartbeats(&fresh) != without_heartbeats(&reported) || now - reported_at >= seconds(every.1) {
            match api.strategic_patch(&kubelet.config.node_name, "status", change(&reported, &fresh)).await {
                Ok(node) => {
                    tell(&kubelet, &reported, &fresh);
                    (reported, reported_at) = (fresh, now);
                    written = client::reflector::revision_of(&node.metadata);
                    note_scheduling(&kubelet, &node, &mut kept_away);
                }
                Err(client::Error::Api(s)) if s.code == 404 => reported = register(&kubelet, &api).await,
                Err(error) => tracing::warn!(%error, "the node's status could not be written"),
            }
        }
        if let Some(node) = kubelet.node.get(&Key::new("", &kubelet.config.node_name)) {
            note_scheduling(&kubelet, &node, &mut kept_away);
            put_back_labels(&api, &node).await;
        }
        // Until the node is ready for the first time, someone is waiting for it.
        let ready = reported.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        tokio::select! {
            () = clock::sleep(if ready { every.0 } else { Duration::from_millis(500).min(every.0) }) => {}
            Ok(()) = pressures.changed() => {}
            Ok(()) = devices.changed() => {}
            Ok(()) = in_use.changed() => {}
            Ok(()) = shuts_down.changed() => {}
        }
    }
}

/// The conditions that were reported, as others have left them: of a node that was silent for too long the cluster says that nobody
/// knows how it is, and the node is to say otherwise at its next turn.
fn as_they_stand(reported: Vec<NodeCondition>, node: &Node) -> Vec<NodeCondition> {
    let held = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let stands = |one: NodeCondition| held.iter().find(|held| held.type_ == one.type_).cloned();
    reported.into_iter().filter_map(stands).collect()
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Says when somebody keeps Pods away from the node or lets them come again.
fn note_scheduling(kubelet: &Kubelet, node: &Node, held: &mut Option<bool>) {
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    if held.replace(unschedulable).is_some_and(|held| held != unschedulable) {
        let told = changes::of_scheduling(&kubelet.config.node_name, unschedulable);
        kubelet.events.node(told.kind, told.reason, &told.message);
    }
}

/// The labels of the machine's kind that the Node object lacks or has otherwise. Those of the beta are left as they are, as
/// upstream's kubelet does it.
fn lost_labels(node: &Node) -> BTreeMap<&'static str, &'static str> {
    let held = |name: &str| node.metadata.labels.as_ref()?.get(name).map(String::as_str);
    capacity::platform().into_iter().filter(|(name, value)| held(name) != Some(value)).collect()
}

/// Pods may be kept to machines of a kind: nobody can make this one seem to be of another. The object that is looked at may be
/// older than the last patch: to patch it once more changes nothing.
async fn put_back_labels(api: &Api<Node>, node: &Node) {
    let lost = lost_labels(node);
    if lost.is_empty() {
        return;
    }
    let patch = json!({ "metadata": { "labels": lost } });
    if let Err(error) = api.merge_patch(node.metadata.name.as_deref().unwrap_or_default(), "", patch).await {
        tracing::warn!(%error, "the node's labels could not be put back");
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_lease(kubelet: Arc<Kubelet>, client: Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let api: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let name = &kubelet.config.node_name;
    let lease_seconds = kubelet.config.settings.lease_seconds;
    // Three renewals may get lost before it ends.
    let pause = Duration::from_secs(lease_seconds.unsigned_abs().into()) / 4;
    loop {
        let now = MicroTime(clock::now());
        let renewal = json!({ "spec": { "renewTime": now, "leaseDurationSeconds": lease_seconds } });
        let outcome = match api.merge_patch(name, "", renewal).await {
            Err(client::Error::Api(s)) if s.code == 404 => {
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
                    lease_duration_seconds: Some(lease_seconds),
                    renew_time: Some(now),
                    ..Default::default()
                };
                api.create(&Lease { metadata, spec: Some(spec) }).await
            }
            other => other,
        };
        if let Err(error) = &outcome {
            tracing::warn!(%error, "the node's lease could not be renewed");
        }
        clock::sleep(if outcome.is_ok() { pause } else { Duration::from_secs(1).min(pause) }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_of_the_machines_kind_get_lost() {
        let arch = capacity::arch();
        let check = |labels: Value, expected: &[(&str, &str)]| {
            let node: Node = json::from_value(json!({"metadata": {"name": "n1", "labels": labels}})).unwrap();
            assert_eq!(lost_labels(&node).into_iter().collect::<Vec<_>>(), expected, "{labels}");
        };
        let both = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": arch, "beta.kubernetes.io/os": "other"});
        check(both, &[]);
        check(json!({"kubernetes.io/os": "plan9", "kubernetes.io/arch": arch}), &[("kubernetes.io/os", "linux")]);
        check(json!({"kubernetes.io/os": "linux", "a": "b"}), &[("kubernetes.io/arch", arch)]);
        check(Value::Null, &[("kubernetes.io/arch", arch), ("kubernetes.io/os", "linux")]);
    }

    #[test]
    fn what_is_no_longer_offered_is_taken_back() {
        let status = |list: Value| -> NodeStatus { json::from_value(json!({ "allocatable": list })).unwrap() };
        let used = NodeStatus { volumes_in_use: Some(vec!["v".to_owned()]), ..NodeStatus::default() };
        assert_eq!(change(&used, &NodeStatus::default())["status"]["volumesInUse"], Value::Null);
        assert_eq!(change(&NodeStatus::default(), &used)["status"]["volumesInUse"], json!(["v"]));
        let able: NodeStatus = json::from_value(json!({"features": {"supplementalGroupsPolicy": true}})).unwrap();
        assert_eq!(change(&able, &NodeStatus::default())["status"]["features"], Value::Null, "an older engine");
        assert_eq!(change(&used, &able)["status"]["features"]["supplementalGroupsPolicy"], true);
        let before = status(json!({"cpu": "2", "example.com/dongle": "4"}));
        let expected = json!({"status": {"allocatable": {"cpu": "2", "example.com/dongle": null}}});
        assert_eq!(change(&before, &status(json!({"cpu": "2"}))), expected);
        assert_eq!(change(&before, &before)["status"]["allocatable"]["example.com/dongle"], "4");
        let addresses =
            json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"}]);
        let two: NodeStatus = json::from_value(json!({"addresses": addresses})).unwrap();
        assert_eq!(
            change(&two, &two)["status"]["addresses"][2],
            json!({"$patch": "replace"}),
            "none is taken for another"
        );
    }
}
