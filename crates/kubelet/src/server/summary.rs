//! `/stats/summary`: what the node, its Pods and their containers use, as one document.
//! Upstream counterpart: pkg/kubelet/server/stats; fields that nobody here can tell are left out.

use std::{collections::BTreeMap, sync::Arc};

use clock::Timestamp;
use http::StatusCode;
use json::{Map, Value, json};

use super::answer::{Answer, document, text};
use crate::{
    kubelet::Kubelet,
    node::{
        machine::{self, Disk},
        stalls::Stall,
    },
    usage::{self, ContainerUsage, NodeUsage, PodUsage, Sample},
    volume_room::{Amounts, VolumeUsage},
    volume_usage,
};

pub async fn answer(kubelet: &Arc<Kubelet>) -> Answer {
    let usage = match usage::read(kubelet).await {
        Ok(usage) => usage,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let machine = Machine {
        name: &kubelet.config.node_name,
        booted: machine::booted().and_then(|seconds| Timestamp::from_second(seconds).ok()),
        memory: u64::try_from(kubelet.host.machine.memory).unwrap_or(0),
        disk: machine::disk(&kubelet.config.root_dir),
        processes: machine::processes(),
    };
    document(&render(&usage, &machine, &*volume_usage::read(kubelet).await))
}

/// The document's statements about the node besides its use.
struct Machine<'a> {
    name: &'a str,
    booted: Option<Timestamp>,
    memory: u64,
    disk: Option<Disk>,
    /// Threads that there are and that there may be.
    processes: Option<(i64, i64)>,
}

/// A time as the API writes it, in whole seconds.
fn time(time: Timestamp) -> Value {
    json!(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The parts `cpu`, `memory`, `io` and `swap`; of memory that is bounded also how much is left.
fn put_sample(to: &mut Map, sample: &Sample, most: Option<u64>) {
    let time = time(sample.time);
    let mut put = |name: &str, mut part: Value, stall: Option<Stall>| {
        if let Some(stall) = stall {
            part["psi"] = stall.document();
        }
        part["time"] = time.clone();
        to.insert(name.to_owned(), part);
    };
    if let Some(nanos) = sample.cpu_nanos {
        put("cpu", json!({"usageCoreNanoSeconds": nanos}), sample.stalls.cpu);
    }
    if let Some(bytes) = sample.working_set {
        let mut memory = json!({"workingSetBytes": bytes});
        if let Some(most) = most {
            memory["availableBytes"] = json!(most.saturating_sub(bytes));
        }
        put("memory", memory, sample.stalls.memory);
    }
    if sample.stalls.io.is_some() {
        put("io", json!({}), sample.stalls.io);
    }
    if let Some(swap) = sample.swap {
        let mut part = json!({"swapUsageBytes": swap.used});
        if let Some(left) = swap.left {
            part["swapAvailableBytes"] = json!(left);
        }
        put("swap", part, None);
    }
}

/// The volumes of Pods by uid.
type Volumes = BTreeMap<String, Vec<VolumeUsage>>;

fn render(usage: &NodeUsage, machine: &Machine<'_>, volumes: &Volumes) -> Value {
    let mut node = Map::from_iter([("nodeName".to_owned(), json!(machine.name))]);
    node.extend(machine.booted.map(|booted| ("startTime".to_owned(), time(booted))));
    put_sample(&mut node, &usage.sample, Some(machine.memory));
    if let Some(disk) = &machine.disk {
        let fs = json!({
            "time": time(usage.sample.time), "capacityBytes": disk.size, "availableBytes": disk.free,
            "usedBytes": disk.size.saturating_sub(disk.free), "inodes": disk.inodes, "inodesFree": disk.free_inodes,
            "inodesUsed": disk.inodes.saturating_sub(disk.free_inodes),
        });
        node.insert("fs".to_owned(), fs);
    }
    if let Some((running, most)) = machine.processes {
        let limit = json!({"time": time(usage.sample.time), "maxpid": most, "curproc": running});
        node.insert("rlimit".to_owned(), limit);
    }
    let of = |pod: &PodUsage| volumes.get(&pod.uid).map(Vec::as_slice).unwrap_or_default();
    json!({"node": node, "pods": usage.pods.iter().map(|one| pod(one, of(one))).collect::<Vec<_>>()})
}

fn pod(usage: &PodUsage, volumes: &[VolumeUsage]) -> Value {
    let reference = json!({"name": usage.name, "namespace": usage.namespace, "uid": usage.uid});
    let mut pod = Map::from_iter([("podRef".to_owned(), reference)]);
    pod.extend(usage.started.map(|started| ("startTime".to_owned(), time(started))));
    put_sample(&mut pod, &usage.sample, None);
    pod.insert("containers".to_owned(), usage.containers.iter().map(container).collect());
    if !volumes.is_empty() {
        pod.insert("volume".to_owned(), volumes.iter().map(volume).collect());
    }
    Value::Object(pod)
}

fn volume(usage: &VolumeUsage) -> Value {
    let mut volume = Map::from_iter([("time".to_owned(), time(usage.time)), ("name".to_owned(), json!(usage.name))]);
    let mut put = |amounts: Option<Amounts>, names: [&str; 3]| {
        let values = amounts.map(|amounts| [amounts.total, amounts.free, amounts.used]);
        volume.extend(names.iter().map(|name| (*name).to_owned()).zip(values.into_iter().flatten().map(Value::from)));
    };
    put(usage.room.bytes, ["capacityBytes", "availableBytes", "usedBytes"]);
    put(usage.room.inodes, ["inodes", "inodesFree", "inodesUsed"]);
    if let Some((namespace, name)) = &usage.claim {
        volume.insert("pvcRef".to_owned(), json!({"name": name, "namespace": namespace}));
    }
    Value::Object(volume)
}

fn container(usage: &ContainerUsage) -> Value {
    let named = [("name".to_owned(), json!(usage.name)), ("startTime".to_owned(), time(usage.started))];
    let mut container = Map::from_iter(named);
    put_sample(&mut container, &usage.sample, None);
    if let Some((bytes, inodes)) = usage.disk {
        let layer = json!({"time": time(usage.sample.time), "usedBytes": bytes, "inodesUsed": inodes});
        container.insert("rootfs".to_owned(), layer);
    }
    Value::Object(container)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::{
            cgroup::Swap,
            stalls::{Stalls, Wait},
        },
        pod::fixture::at,
        usage::tests::sample,
        volume_room::Room,
    };

    #[test]
    fn the_document_holds_what_is_known() {
        let container =
            ContainerUsage { name: "c".into(), started: at(1), sample: sample(2, 5, 40), disk: Some((8, 1)) };
        let pod = PodUsage {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            started: Some(at(0)),
            sample: Sample { cpu_nanos: None, ..sample(2, 0, 50) },
            containers: vec![container],
        };
        let some = Wait { micros: 7, averages: [0.5, 0.0, 0.0] };
        let stall = Some(Stall { some, full: Wait::default() });
        let stalls = Stalls { cpu: stall, memory: None, io: stall };
        let swap = Some(Swap { used: 1, left: Some(8) });
        let usage = NodeUsage { sample: Sample { stalls, swap, ..sample(3, 6, 60) }, pods: vec![pod] };
        let psi = json!({
            "some": {"total": 7, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
            "full": {"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
        });
        let machine = Machine { name: "node", booted: None, memory: 100, disk: None, processes: Some((7, 9)) };
        let expected = json!({
            "node": {
                "nodeName": "node", "cpu": {"time": at(3), "usageCoreNanoSeconds": 6, "psi": psi},
                "memory": {"time": at(3), "workingSetBytes": 60, "availableBytes": 40},
                "io": {"time": at(3), "psi": psi},
                "swap": {"time": at(3), "swapUsageBytes": 1, "swapAvailableBytes": 8},
                "rlimit": {"time": at(3), "maxpid": 9, "curproc": 7},
            },
            "pods": [{
                "podRef": {"name": "p", "namespace": "n", "uid": "u"}, "startTime": at(0),
                "memory": {"time": at(2), "workingSetBytes": 50},
                "containers": [{
                    "name": "c", "startTime": at(1), "cpu": {"time": at(2), "usageCoreNanoSeconds": 5},
                    "memory": {"time": at(2), "workingSetBytes": 40},
                    "rootfs": {"time": at(2), "usedBytes": 8, "inodesUsed": 1},
                }],
                "volume": [{
                    "time": at(4), "name": "v", "capacityBytes": 10, "availableBytes": 7, "usedBytes": 3,
                    "pvcRef": {"name": "data", "namespace": "n"},
                }],
            }],
        });
        let amounts = Some(Amounts { total: 10, free: 7, used: 3 });
        let claim = Some(("n".to_owned(), "data".to_owned()));
        let volumes =
            vec![VolumeUsage { name: "v".into(), claim, time: at(4), room: Room { bytes: amounts, inodes: None } }];
        assert_eq!(render(&usage, &machine, &[("u".to_owned(), volumes)].into()), expected);
    }
}
