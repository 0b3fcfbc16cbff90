//! `/stats/summary`: what the node, its Pods and their containers use, as one document.
//! Upstream counterpart: pkg/kubelet/server/stats; fields that nobody here can tell are left out.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::url::query_pairs;
use clock::Timestamp;
use http::StatusCode;
use json::{Map, Value, json};

use super::answer::{Answer, document, text};
use crate::{
    kubelet::Kubelet,
    node::{machine, stalls::Stall},
    usage::{
        self, ContainerUsage, Depth, Link, Network, NodeUsage, PodUsage, Sample,
        disks::{self, Disks, PodDisks, Taken},
    },
    volume_room::{Amounts, VolumeUsage},
    volume_usage,
};

pub async fn answer(kubelet: &Arc<Kubelet>, query: &str) -> Answer {
    let depth = match depth(query) {
        Ok(depth) => depth,
        Err(why) => return failed(&why),
    };
    let usage = match usage::read(kubelet, depth).await {
        Ok(usage) => usage,
        Err(error) => return failed(&format!("failed to list pod stats: {error}")),
    };
    let machine = Machine {
        name: &kubelet.config.node_name,
        booted: machine::booted().and_then(|seconds| Timestamp::from_second(seconds).ok()),
        processes: if depth == Depth::Whole { machine::processes() } else { None },
    };
    if depth == Depth::Computing {
        return document(&render(&usage, &machine, &Disks::default(), &Volumes::new()));
    }
    let volumes = volume_usage::read(kubelet).await;
    let disks = disks::measure(kubelet, &usage, &volumes).await;
    document(&render(&usage, &machine, &disks, &volumes))
}

fn failed(why: &str) -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {why}"))
}

/// How much is asked for. The error is in upstream's words.
fn depth(query: &str) -> Result<Depth, String> {
    let only = query_pairs(query).find(|(name, _)| name == "only_cpu_and_memory").map(|(_, value)| value);
    match only.as_deref() {
        None | Some("" | "0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Depth::Whole),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Depth::Computing),
        Some(other) => Err(format!("strconv.ParseBool: parsing {other:?}: invalid syntax")),
    }
}

/// The document's statements about the node besides its use.
struct Machine<'a> {
    name: &'a str,
    booted: Option<Timestamp>,
    /// Threads that there are and that there may be.
    processes: Option<(i64, i64)>,
}

/// A time as the API writes it, in whole seconds.
fn time(time: Timestamp) -> Value {
    json!(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The values that are known, by their names.
fn known<const N: usize>(values: [(&str, Option<u64>); N]) -> Map {
    values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect()
}

/// The parts `cpu`, `memory`, `io` and `swap`.
fn put_sample(to: &mut Map, sample: &Sample) {
    let now = time(sample.time);
    let mut put = |name: &str, mut part: Map, stall: Option<Stall>| {
        part.extend(stall.map(|stall| ("psi".to_owned(), stall.document())));
        part.insert("time".to_owned(), now.clone());
        to.insert(name.to_owned(), Value::Object(part));
    };
    let cpu = [("usageNanoCores", sample.cpu_rate), ("usageCoreNanoSeconds", sample.cpu_nanos)];
    if sample.cpu_nanos.or(sample.cpu_rate).is_some() {
        put("cpu", known(cpu), sample.stalls.cpu);
    }
    let of = &sample.memory;
    let memory = known([
        ("availableBytes", of.available),
        ("usageBytes", of.used),
        ("workingSetBytes", of.working_set),
        ("rssBytes", of.rss),
        ("pageFaults", of.faults),
        ("majorPageFaults", of.major_faults),
    ]);
    if !memory.is_empty() {
        put("memory", memory, sample.stalls.memory);
    }
    if sample.stalls.io.is_some() {
        put("io", Map::new(), sample.stalls.io);
    }
    if let Some(swap) = sample.swap {
        put("swap", known([("swapAvailableBytes", swap.left), ("swapUsageBytes", Some(swap.used))]), None);
    }
}

fn link(link: Option<&Link>) -> Map {
    let (received, sent) = link.map_or_else(Default::default, |link| (link.received, link.sent));
    let mut shown =
        known([("rxBytes", received[0]), ("rxErrors", received[1]), ("txBytes", sent[0]), ("txErrors", sent[1])]);
    shown.insert("name".to_owned(), json!(link.map_or("", |link| &link.name)));
    shown
}

fn network(of: &Network) -> Value {
    let mut shown = link(of.main.as_ref());
    shown.insert("time".to_owned(), time(of.time));
    if !of.links.is_empty() {
        let links = of.links.iter().map(|one| Value::Object(link(Some(one))));
        shown.insert("interfaces".to_owned(), links.collect());
    }
    Value::Object(shown)
}

fn taken(of: &Taken) -> Value {
    let mut shown = known([
        ("availableBytes", of.disk.map(|disk| disk.free)),
        ("capacityBytes", of.disk.map(|disk| disk.size)),
        ("usedBytes", of.bytes),
        ("inodesFree", of.disk.map(|disk| disk.free_inodes)),
        ("inodes", of.disk.map(|disk| disk.inodes)),
        ("inodesUsed", of.inodes),
    ]);
    shown.insert("time".to_owned(), time(of.time));
    Value::Object(shown)
}

/// The volumes of Pods by uid.
type Volumes = BTreeMap<String, Vec<VolumeUsage>>;

fn render(usage: &NodeUsage, machine: &Machine<'_>, disks: &Disks, volumes: &Volumes) -> Value {
    let mut node = Map::from_iter([("nodeName".to_owned(), json!(machine.name))]);
    node.extend(machine.booted.map(|booted| ("startTime".to_owned(), time(booted))));
    put_sample(&mut node, &usage.sample);
    let system = usage.system.iter().map(|(name, sample)| system(name, machine.booted, sample));
    node.insert("systemContainers".to_owned(), system.collect());
    node.extend(usage.network.as_ref().map(|of| ("network".to_owned(), network(of))));
    if let Some(disk) = disks.node {
        let (bytes, inodes) = (disk.size.saturating_sub(disk.free), disk.inodes.saturating_sub(disk.free_inodes));
        let all = Taken { time: usage.sample.time, bytes: Some(bytes), inodes: Some(inodes), disk: Some(disk) };
        node.insert("fs".to_owned(), taken(&all));
    }
    if let Some(images) = &disks.images {
        node.insert("runtime".to_owned(), json!({"imageFs": taken(images), "containerFs": taken(images)}));
    }
    if let Some((running, most)) = machine.processes {
        let limit = json!({"time": time(usage.sample.time), "maxpid": most, "curproc": running});
        node.insert("rlimit".to_owned(), limit);
    }
    let none = PodDisks::default();
    let of = |one: &PodUsage| {
        pod(
            one,
            disks.pods.get(&one.uid).unwrap_or(&none),
            volumes.get(&one.uid).map(Vec::as_slice).unwrap_or_default(),
        )
    };
    json!({"node": node, "pods": usage.pods.iter().map(of).collect::<Vec<_>>()})
}

/// Processes of the node itself. They count since the machine began, as far as anybody knows.
fn system(name: &str, booted: Option<Timestamp>, sample: &Sample) -> Value {
    let mut shown = Map::from_iter([("name".to_owned(), json!(name))]);
    shown.insert("startTime".to_owned(), time(booted.unwrap_or(sample.time)));
    put_sample(&mut shown, sample);
    Value::Object(shown)
}

fn pod(usage: &PodUsage, disks: &PodDisks, volumes: &[VolumeUsage]) -> Value {
    let reference = json!({"name": usage.name, "namespace": usage.namespace, "uid": usage.uid});
    let mut pod = Map::from_iter([("podRef".to_owned(), reference)]);
    pod.extend(usage.started.map(|started| ("startTime".to_owned(), time(started))));
    put_sample(&mut pod, &usage.sample);
    let of = |one: &ContainerUsage| container(one, disks.containers.get(&one.name));
    pod.insert("containers".to_owned(), usage.containers.iter().map(of).collect());
    pod.extend(usage.network.as_ref().map(|of| ("network".to_owned(), network(of))));
    if !volumes.is_empty() {
        pod.insert("volume".to_owned(), volumes.iter().map(volume).collect());
    }
    pod.extend(disks.all.as_ref().map(|all| ("ephemeral-storage".to_owned(), taken(all))));
    pod.extend(usage.processes.map(|count| ("process_stats".to_owned(), json!({"process_count": count}))));
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
    if let Some(health) = &usage.health {
        volume.insert("volumeHealthStats".to_owned(), json!({"abnormal": health.is_abnormal}));
    }
    Value::Object(volume)
}

fn container(usage: &ContainerUsage, disks: Option<&(Option<Taken>, Taken)>) -> Value {
    let named = [("name".to_owned(), json!(usage.name)), ("startTime".to_owned(), time(usage.started))];
    let mut container = Map::from_iter(named);
    put_sample(&mut container, &usage.sample);
    if let Some((layer, logs)) = disks {
        container.extend(layer.as_ref().map(|layer| ("rootfs".to_owned(), taken(layer))));
        container.insert("logs".to_owned(), taken(logs));
    }
    Value::Object(container)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::{
            cgroup::{Memory, Swap},
            machine::Disk,
            stalls::{Stalls, Wait},
        },
        pod::fixture::at,
        usage::tests::sample,
        volume_room::{Health, Room},
    };

    fn stalls() -> (Stalls, Value) {
        let some = Wait { micros: 7, averages: [0.5, 0.0, 0.0] };
        let stall = Some(Stall { some, full: Wait::default() });
        let shown = json!({
            "some": {"total": 7, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
            "full": {"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
        });
        (Stalls { cpu: stall, memory: None, io: stall }, shown)
    }

    fn node(pods: Vec<PodUsage>) -> NodeUsage {
        let swap = Some(Swap { used: 1, left: Some(8) });
        let of = sample(3, 6, 60);
        let memory = Memory { available: Some(40), ..of.memory };
        let whole = Sample { stalls: stalls().0, swap, memory, cpu_rate: Some(2), ..of };
        let lo = Link { name: "l".into(), received: [Some(1), Some(2)], sent: [Some(3), None] };
        let network = Some(Network { time: at(3), main: None, links: vec![lo] });
        NodeUsage { sample: whole, network, system: vec![("pods", sample(3, 4, 5))], pods }
    }

    #[test]
    fn the_document_holds_what_is_known_of_the_node() {
        let machine = Machine { name: "node", booted: Some(at(0)), processes: Some((7, 9)) };
        let disk = Disk { size: 100, free: 60, inodes: 10, free_inodes: 4 };
        let images = Some(Taken { time: at(1), bytes: Some(5), inodes: None, disk: None });
        let disks = Disks { node: Some(disk), images, pods: BTreeMap::new() };
        let psi = stalls().1;
        let expected = json!({
            "node": {
                "nodeName": "node", "startTime": at(0),
                "cpu": {"time": at(3), "usageNanoCores": 2, "usageCoreNanoSeconds": 6, "psi": psi},
                "memory": {"time": at(3), "workingSetBytes": 60, "availableBytes": 40},
                "io": {"time": at(3), "psi": psi},
                "swap": {"time": at(3), "swapUsageBytes": 1, "swapAvailableBytes": 8},
                "network": {"time": at(3), "name": "",
                    "interfaces": [{"name": "l", "rxBytes": 1, "rxErrors": 2, "txBytes": 3}]},
                "systemContainers": [{"name": "pods", "startTime": at(0),
                    "cpu": {"time": at(3), "usageCoreNanoSeconds": 4}, "memory": {"time": at(3), "workingSetBytes": 5}}],
                "fs": {"time": at(3), "capacityBytes": 100, "availableBytes": 60, "usedBytes": 40,
                    "inodes": 10, "inodesFree": 4, "inodesUsed": 6},
                "runtime": {"imageFs": {"time": at(1), "usedBytes": 5}, "containerFs": {"time": at(1), "usedBytes": 5}},
                "rlimit": {"time": at(3), "maxpid": 9, "curproc": 7},
            },
            "pods": [],
        });
        assert_eq!(render(&node(Vec::new()), &machine, &disks, &Volumes::new()), expected);
    }

    #[test]
    fn the_document_holds_what_is_known_of_pods() {
        let container = ContainerUsage { name: "c".into(), started: at(1), sample: sample(2, 5, 40), layer: None };
        let link = Link { name: "eth0".into(), received: [Some(1), None], sent: [None, None] };
        let pod = PodUsage {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            started: Some(at(0)),
            sample: Sample { cpu_nanos: None, ..sample(2, 0, 50) },
            network: Some(Network { time: at(2), main: Some(link), links: Vec::new() }),
            processes: Some(3),
            containers: vec![container],
        };
        let taken = |bytes| Taken { time: at(2), bytes: Some(bytes), inodes: Some(1), disk: None };
        let containers = [("c".to_owned(), (Some(taken(8)), taken(9)))].into();
        let pods = [("u".to_owned(), PodDisks { containers, all: Some(taken(20)) })].into();
        let shown = |bytes: u64| json!({"time": at(2), "usedBytes": bytes, "inodesUsed": 1});
        let expected = json!([{
            "podRef": {"name": "p", "namespace": "n", "uid": "u"}, "startTime": at(0),
            "memory": {"time": at(2), "workingSetBytes": 50},
            "containers": [{
                "name": "c", "startTime": at(1), "cpu": {"time": at(2), "usageCoreNanoSeconds": 5},
                "memory": {"time": at(2), "workingSetBytes": 40}, "rootfs": shown(8), "logs": shown(9),
            }],
            "network": {"time": at(2), "name": "eth0", "rxBytes": 1},
            "process_stats": {"process_count": 3},
            "ephemeral-storage": shown(20),
            "volume": [{
                "time": at(4), "name": "v", "capacityBytes": 10, "availableBytes": 7, "usedBytes": 3,
                "pvcRef": {"name": "data", "namespace": "n"}, "volumeHealthStats": {"abnormal": true},
            }],
        }]);
        let amounts = Some(Amounts { total: 10, free: 7, used: 3 });
        let claim = Some(("n".to_owned(), "data".to_owned()));
        let health = Some(Health { is_abnormal: true, message: "not shown".to_owned() });
        let volumes = vec![VolumeUsage {
            name: "v".into(),
            claim,
            time: at(4),
            room: Room { bytes: amounts, inodes: None },
            health,
        }];
        let machine = Machine { name: "node", booted: None, processes: None };
        let disks = Disks { node: None, images: None, pods };
        let document = render(&node(vec![pod]), &machine, &disks, &[("u".to_owned(), volumes)].into());
        assert_eq!(document["pods"], expected);
    }

    #[test]
    fn less_is_told_to_those_who_ask_for_less() {
        for (query, expected) in [
            ("", Ok(Depth::Whole)),
            ("only_cpu_and_memory=true", Ok(Depth::Computing)),
            ("a=b&only_cpu_and_memory=0", Ok(Depth::Whole)),
            ("only_cpu_and_memory=no", Err("strconv.ParseBool: parsing \"no\": invalid syntax".to_owned())),
        ] {
            assert_eq!(depth(query), expected, "{query}");
        }
    }
}
