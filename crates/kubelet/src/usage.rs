//! CPU and memory that the node, its Pods and their containers use now. This is the one reader: evictions, the resource
//! metrics and the summary all ask here. The engine tells of containers, the cgroups of Pods and of the whole node.
//! Upstream counterpart: pkg/kubelet/stats.

use std::collections::BTreeMap;

use api::features::Feature;
use clock::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use runtime::cri_api::ContainerStats;

use crate::{
    kubelet::Kubelet,
    node::{cgroup::Swap, machine, stalls::Stalls},
    pod::desired::{CONTAINER_NAME, DesiredPod, POD_UID},
};

/// One reading. A figure that nobody could tell is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub time: Timestamp,
    /// Nanoseconds of one processor since the container, Pod or node began.
    pub cpu_nanos: Option<u64>,
    /// Bytes that cannot be taken back at once.
    pub working_set: Option<u64>,
    pub swap: Option<Swap>,
    pub stalls: Stalls,
}

/// A container as the engine knows it, whether or not its Pod still has it.
#[derive(Debug, Clone)]
pub struct Measured {
    pub id: String,
    pub pod_uid: String,
    pub name: String,
    pub sample: Sample,
    /// Bytes and inodes that its own layer takes of the disk.
    pub disk: Option<(u64, u64)>,
}

/// A container that runs.
#[derive(Debug, Clone)]
pub struct ContainerUsage {
    pub name: String,
    pub started: Timestamp,
    pub sample: Sample,
    pub disk: Option<(u64, u64)>,
}

#[derive(Debug, Clone)]
pub struct PodUsage {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub started: Option<Timestamp>,
    pub sample: Sample,
    /// By name.
    pub containers: Vec<ContainerUsage>,
}

#[derive(Debug, Clone)]
pub struct NodeUsage {
    pub sample: Sample,
    /// By namespace and name.
    pub pods: Vec<PodUsage>,
}

/// All containers that the engine measures.
pub async fn containers(kubelet: &Kubelet) -> runtime::Result<Vec<Measured>> {
    let stats = kubelet.config.runtime.container_stats().await?;
    let now = clock::now();
    Ok(stats.into_iter().filter_map(|stats| measured(stats, now)).collect())
}

/// `None` for containers that no kubelet made.
fn measured(stats: ContainerStats, now: Timestamp) -> Option<Measured> {
    let mut attributes = stats.attributes?;
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    let layer = |layer: runtime::cri_api::FilesystemUsage| {
        let inodes = layer.inodes_used.map_or(0, |v| v.value);
        Some((layer.used_bytes?.value, inodes))
    };
    Some(Measured {
        pod_uid: attributes.labels.remove(POD_UID)?,
        name: attributes.labels.remove(CONTAINER_NAME)?,
        id: attributes.id,
        sample: Sample {
            // An engine that does not say when it looked has looked just now.
            time: Timestamp::from_nanosecond(cpu.timestamp.into()).ok().filter(|_| cpu.timestamp > 0).unwrap_or(now),
            cpu_nanos: cpu.usage_core_nano_seconds.map(|v| v.value),
            working_set: memory.working_set_bytes.map(|v| v.value),
            swap: None,
            stalls: Stalls::default(),
        },
        disk: stats.writable_layer.and_then(layer),
    })
}

/// The usage of everything on the node.
pub async fn read(kubelet: &Kubelet) -> runtime::Result<NodeUsage> {
    let mut measured = BTreeMap::<String, Vec<Measured>>::new();
    for container in containers(kubelet).await? {
        measured.entry(container.pod_uid.clone()).or_default().push(container);
    }
    let mut pods = Vec::new();
    for handle in kubelet.pods.all().into_iter().filter(|pod| !pod.is_over() && !pod.is_refused) {
        let desired = handle.desired();
        let path = kubelet.host.cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid());
        let sample = of_cgroup(kubelet, &path);
        let mut containers = measured.remove(desired.uid()).unwrap_or_default();
        for container in &mut containers {
            let own = format!("{path}/{}", container.id);
            let (swap, stalls) = (kubelet.host.cgroups.swap(&own), stalls(kubelet, &own));
            container.sample = Sample { swap, stalls, ..container.sample };
        }
        pods.push(of_pod(&desired, &handle.status(), sample, containers));
    }
    pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    let whole = of_cgroup(kubelet, "/");
    let working_set = u64::try_from(machine::working_set()).ok();
    Ok(NodeUsage { sample: Sample { working_set, swap: Some(machine::swap()), ..whole }, pods })
}

fn of_cgroup(kubelet: &Kubelet, path: &str) -> Sample {
    let usage = kubelet.host.cgroups.usage(path);
    let (swap, stalls) = (kubelet.host.cgroups.swap(path), stalls(kubelet, path));
    Sample { time: clock::now(), cpu_nanos: usage.cpu_nanos, working_set: usage.working_set, swap, stalls }
}

fn stalls(kubelet: &Kubelet, path: &str) -> Stalls {
    let told = kubelet.config.features.enabled(Feature::KubeletPSI);
    if told { Stalls::of(&kubelet.host.cgroups, path) } else { Stalls::default() }
}

/// The Pod with those of its measured containers that its status says run: what is left of an earlier run does not count.
fn of_pod(desired: &DesiredPod, status: &PodStatus, sample: Sample, measured: Vec<Measured>) -> PodUsage {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let running: Vec<(&str, Timestamp)> = lists.into_iter().flatten().flatten().filter_map(run).collect();
    let usage = |one: Measured| {
        let started = running.iter().find(|(id, _)| *id == one.id)?.1;
        Some(ContainerUsage { name: one.name, started, sample: one.sample, disk: one.disk })
    };
    let mut containers: Vec<ContainerUsage> = measured.into_iter().filter_map(usage).collect();
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    PodUsage {
        namespace: desired.namespace().to_owned(),
        name: desired.name().to_owned(),
        uid: desired.uid().to_owned(),
        started: status.start_time.as_ref().map(|time| time.0),
        sample,
        containers,
    }
}

/// The run of a container that goes on: its id in the engine and its beginning.
fn run(status: &ContainerStatus) -> Option<(&str, Timestamp)> {
    let started = status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
    Some((status.container_id.as_deref()?.rsplit('/').next()?, started))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::pod::fixture::{at, pod};
    use json::json;
    use runtime::cri_api::{ContainerAttributes, CpuUsage, MemoryUsage, UInt64Value};

    pub fn sample(seconds: i64, cpu_nanos: u64, working_set: u64) -> Sample {
        let (swap, stalls) = (None, Stalls::default());
        Sample { time: at(seconds), cpu_nanos: Some(cpu_nanos), working_set: Some(working_set), swap, stalls }
    }

    fn stats(uid: &str, name: &str, id: &str, nanos: i64) -> ContainerStats {
        let labels = [(POD_UID, uid), (CONTAINER_NAME, name)].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let value = |value| Some(UInt64Value { value });
        ContainerStats {
            attributes: Some(ContainerAttributes { id: id.into(), labels: labels.into(), ..Default::default() }),
            cpu: Some(CpuUsage { timestamp: nanos, usage_core_nano_seconds: value(7), ..Default::default() }),
            memory: Some(MemoryUsage { working_set_bytes: value(9), ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn the_engine_says_when_it_looked() {
        let now = at(0);
        let then = now.as_nanosecond() as i64 - 5;
        let one = measured(stats("u", "c", "1", then), now).unwrap();
        assert_eq!((one.sample.time.as_nanosecond(), one.sample.cpu_nanos), (i128::from(then), Some(7)));
        assert_eq!(measured(stats("u", "c", "1", 0), now).unwrap().sample.time, now);
        let strange = ContainerStats { attributes: Some(ContainerAttributes::default()), ..stats("u", "c", "1", then) };
        assert!(measured(strange, now).is_none());
    }

    #[test]
    fn only_what_runs_is_told_of_a_pod() {
        let status: PodStatus = json::from_value(json!({
            "initContainerStatuses": [
                {"name": "sidecar", "containerID": "containerd://3", "state": {"running": {"startedAt": at(1)}}}],
            "containerStatuses": [
                {"name": "b", "containerID": "containerd://1", "state": {"running": {"startedAt": at(2)}}},
                {"name": "a", "containerID": "containerd://2", "state": {"terminated": {"exitCode": 0}}}],
        }))
        .unwrap();
        let now = at(9);
        // Of `b` there is an earlier run beside the one that goes on.
        let all = [("b", "0"), ("b", "1"), ("a", "2"), ("sidecar", "3")];
        let all = all.map(|(name, id)| measured(stats("u", name, id, 0), now).unwrap());
        let usage = of_pod(&pod(r#"{"containers": []}"#), &status, sample(9, 1, 1), all.to_vec());
        let told: Vec<_> = usage.containers.iter().map(|c| (c.name.as_str(), c.started)).collect();
        assert_eq!(told, [("b", at(2)), ("sidecar", at(1))]);
    }
}
