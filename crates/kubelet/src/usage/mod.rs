//! The processors, the memory and the networks that the node, its Pods and their containers use now. This is the one reader: evictions, the resource metrics and the
//! summary all ask here. The engine tells of containers, the kernel's cgroups of containers, Pods and the whole node; where the feature
//! PodAndContainerStatsFromCRI is on, the engine tells of Pods too, and the kernel of the node alone.
//! Upstream counterpart: pkg/kubelet/stats.

pub mod disks;
mod engine;
mod kernel;
pub mod rates;

use std::{collections::BTreeMap, sync::Arc};

use api::features::Feature;
use clock::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use runtime::{cri_api::PodSandbox, stats::PodSandboxStats};

use crate::{
    kubelet::Kubelet,
    node::{
        cgroup::{Memory, Swap},
        counters,
        stalls::Stalls,
    },
    pod::desired::{DesiredPod, POD_UID},
};

/// One reading. A figure that nobody could tell is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub time: Timestamp,
    /// Nanoseconds of one processor since the container, Pod or node began.
    pub cpu_nanos: Option<u64>,
    /// Billionths of a processor that are used now.
    pub cpu_rate: Option<u64>,
    pub memory: Memory,
    pub swap: Option<Swap>,
    pub stalls: Stalls,
}

/// A container's own layer: bytes and inodes that it takes, and where its disk is mounted; empty if that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub bytes: u64,
    pub inodes: u64,
    pub mounted_at: String,
}

/// A container as the engine knows it, whether or not its Pod still has it.
#[derive(Debug, Clone)]
pub struct Measured {
    pub id: String,
    pub pod_uid: String,
    pub name: String,
    pub sample: Sample,
    pub layer: Option<Layer>,
}

/// A container that runs.
#[derive(Debug, Clone)]
pub struct ContainerUsage {
    pub name: String,
    pub started: Timestamp,
    pub sample: Sample,
    pub layer: Option<Layer>,
}

/// The traffic of a link: bytes, and packets that were broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub received: [Option<u64>; 2],
    pub sent: [Option<u64>; 2],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    pub time: Timestamp,
    /// The link that is meant where one is asked for.
    pub main: Option<Link>,
    pub links: Vec<Link>,
}

#[derive(Debug, Clone)]
pub struct PodUsage {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub started: Option<Timestamp>,
    pub sample: Sample,
    pub network: Option<Network>,
    pub processes: Option<u64>,
    /// By name.
    pub containers: Vec<ContainerUsage>,
}

#[derive(Debug, Clone)]
pub struct NodeUsage {
    pub sample: Sample,
    pub network: Option<Network>,
    /// Processes of the node itself by the names that upstream gives them, and all Pods together.
    pub system: Vec<(&'static str, Sample)>,
    /// By namespace and name.
    pub pods: Vec<PodUsage>,
}

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Processors and memory.
    Computing,
    /// Networks and processes too.
    Whole,
}

/// All containers that the engine measures.
pub async fn containers(kubelet: &Kubelet) -> runtime::Result<Vec<Measured>> {
    let stats = kubelet.config.runtime.container_stats().await?;
    let now = clock::now();
    Ok(stats.into_iter().filter_map(|stats| engine::container(stats, now)).collect())
}

/// The usage of everything on the node.
pub async fn read(kubelet: &Kubelet, depth: Depth) -> runtime::Result<NodeUsage> {
    let by_engine = kubelet.config.features.enabled(Feature::PodAndContainerStatsFromCRI);
    let sandboxes = match depth {
        Depth::Computing if !by_engine => Vec::new(),
        _ => kubelet.config.runtime.sandboxes(None).await?,
    };
    let told = if by_engine { told(kubelet, &sandboxes).await? } else { None };
    let mut pods = match told {
        Some(told) => as_told(kubelet, active(kubelet), told, &sandboxes),
        None => as_counted(kubelet, active(kubelet), &sandboxes, depth).await?,
    };
    pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    kubelet.rates.forget(clock::now());
    let network = (depth == Depth::Whole).then(kernel::network_of_machine);
    Ok(NodeUsage { sample: kernel::of_machine(kubelet), network, system: system(kubelet), pods })
}

/// The engine's own figures of Pods; `None` where it has none. containerd 1.6 refuses all of them as long as it has one sandbox that
/// has ended: then each is asked for that has not.
async fn told(kubelet: &Kubelet, sandboxes: &[PodSandbox]) -> runtime::Result<Option<Vec<PodSandboxStats>>> {
    let engine = &kubelet.config.runtime;
    let error = match engine.sandbox_stats(None).await {
        Ok(told) => return Ok(Some(told)),
        Err(error) if error.is_unimplemented() => {
            tracing::debug!(%error, "the engine does not measure Pods: the kernel is asked");
            return Ok(None);
        }
        Err(error) => error,
    };
    let ready = sandboxes.iter().filter(|sandbox| newest(sandbox).0);
    let each = futures::future::join_all(ready.map(|sandbox| engine.sandbox_stats(Some(&sandbox.id)))).await;
    let told: Vec<PodSandboxStats> = each.into_iter().flatten().flatten().collect();
    if told.is_empty() { Err(error) } else { Ok(Some(told)) }
}

/// A Pod that runs or is to run, with its status.
type Active = (DesiredPod, Arc<PodStatus>);

fn active(kubelet: &Kubelet) -> Vec<Active> {
    let active = kubelet.pods.all().into_iter().filter(|pod| !pod.is_over() && !pod.is_refused);
    active.map(|pod| (pod.desired(), pod.status())).collect()
}

/// The kubelet with all that is in its cgroup, the engine unless it is there too, and all Pods together; without those that have no
/// cgroup.
fn system(kubelet: &Kubelet) -> Vec<(&'static str, Sample)> {
    let cgroups = &kubelet.host.cgroups;
    let pods = cgroups.class(api::rules::pod::GUARANTEED);
    let of = |process: &str| kernel::cgroup_of(process, cgroups.is_unified());
    let (own, engine) = (of("self"), kubelet.config.runtime.process());
    let engine = engine.and_then(|pid| of(&pid.to_string())).filter(|engine| own.as_ref() != Some(engine));
    let all = [("kubelet", own), ("runtime", engine), ("pods", Some(pods))];
    let sample = |(name, path): (&'static str, Option<String>)| {
        let sample = kernel::of_cgroup(kubelet, &path?);
        sample.is_told().then_some((name, sample))
    };
    all.into_iter().filter_map(sample).collect()
}

impl Sample {
    fn is_told(&self) -> bool {
        self.cpu_nanos.is_some() || self.memory != Memory::default()
    }

    /// A Pod of which nobody tells uses what its containers use.
    fn or_sum(self, containers: &[ContainerUsage]) -> Sample {
        if self.is_told() {
            return self;
        }
        let sum = |part: fn(&Sample) -> Option<u64>| {
            containers.iter().filter_map(|container| part(&container.sample)).reduce(u64::saturating_add)
        };
        let memory = Memory {
            available: sum(|s| s.memory.available),
            used: sum(|s| s.memory.used),
            working_set: sum(|s| s.memory.working_set),
            rss: sum(|s| s.memory.rss),
            faults: sum(|s| s.memory.faults),
            major_faults: sum(|s| s.memory.major_faults),
        };
        Sample { cpu_nanos: sum(|s| s.cpu_nanos), cpu_rate: sum(|s| s.cpu_rate), memory, ..self }
    }
}

/// The Pods as the kernel counts for them, and for those containers that the engine knows.
async fn as_counted(
    kubelet: &Kubelet,
    pods: Vec<Active>,
    sandboxes: &[PodSandbox],
    depth: Depth,
) -> runtime::Result<Vec<PodUsage>> {
    let mut measured = BTreeMap::<String, Vec<Measured>>::new();
    for container in containers(kubelet).await? {
        measured.entry(container.pod_uid.clone()).or_default().push(container);
    }
    let one = |(desired, status): Active| {
        let cgroups = &kubelet.host.cgroups;
        let path = cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid());
        let mut containers = measured.remove(desired.uid()).unwrap_or_default();
        for container in &mut containers {
            let counted = kernel::of_cgroup(kubelet, &cgroups.of_container(&path, &container.id));
            container.sample =
                if counted.is_told() { counted } else { rated(kubelet, &container.id, container.sample) };
        }
        let counted = containers.iter().filter(|_| depth == Depth::Whole);
        let counts: Vec<u64> = counted
            .filter_map(|container| counters::members(cgroups, &cgroups.of_container(&path, &container.id)))
            .collect();
        let mut pod = of_pod(&desired, &status, kernel::of_cgroup(kubelet, &path), containers);
        pod.sample = pod.sample.or_sum(&pod.containers);
        pod.processes = (!counts.is_empty()).then(|| counts.iter().sum());
        // On the node's network what its links carry is not the Pod's.
        let sandbox =
            sandboxes.iter().filter(|sandbox| is_of(sandbox, desired.uid())).max_by_key(|sandbox| newest(sandbox));
        let sandbox = sandbox.filter(|_| !desired.host_network());
        pod.network =
            sandbox.and_then(|sandbox| kernel::network_of(kubelet, &cgroups.of_container(&path, &sandbox.id)));
        pod
    };
    Ok(pods.into_iter().map(one).collect())
}

fn is_of(sandbox: &PodSandbox, uid: &str) -> bool {
    sandbox.labels.get(POD_UID).is_some_and(|of| of == uid)
}

/// A sandbox that is ready comes before one that is not, and else the newest one.
fn newest(sandbox: &PodSandbox) -> (bool, i64) {
    const READY: i32 = 0;
    (sandbox.state == READY, sandbox.created_at)
}

/// The Pods as the engine tells of them: those alone that it tells of.
fn as_told(
    kubelet: &Kubelet,
    pods: Vec<Active>,
    told: Vec<PodSandboxStats>,
    sandboxes: &[PodSandbox],
) -> Vec<PodUsage> {
    let now = clock::now();
    let mut by_sandbox: BTreeMap<String, _> =
        told.into_iter().filter_map(|stats| Some((stats.attributes?.id, stats.linux.unwrap_or_default()))).collect();
    let one = |(desired, status): Active| {
        let own = sandboxes.iter().filter(|sandbox| is_of(sandbox, desired.uid()));
        let mut stats = by_sandbox.remove(&own.max_by_key(|sandbox| newest(sandbox))?.id)?;
        let containers = std::mem::take(&mut stats.containers).into_iter();
        let mut measured: Vec<Measured> = containers.filter_map(|stats| engine::container(stats, now)).collect();
        for container in &mut measured {
            container.sample = shown(kubelet, rated(kubelet, &container.id, container.sample));
        }
        let mut pod = of_pod(&desired, &status, shown(kubelet, engine::pod(&stats, now)), measured);
        pod.network = stats.network.as_ref().map(|network| engine::network(network, now));
        pod.processes = stats.process.and_then(|process| process.process_count).map(|count| count.value);
        Some(pod)
    };
    pods.into_iter().filter_map(one).collect()
}

/// The reading with what is used now, which most engines do not tell.
fn rated(kubelet: &Kubelet, id: &str, sample: Sample) -> Sample {
    let rate = || kubelet.rates.rate(id, sample.time, sample.cpu_nanos?);
    Sample { cpu_rate: sample.cpu_rate.or_else(rate), ..sample }
}

/// The reading without what the feature gates hide.
fn shown(kubelet: &Kubelet, sample: Sample) -> Sample {
    Sample { stalls: if tells_of_stalls(kubelet) { sample.stalls } else { Stalls::default() }, ..sample }
}

fn tells_of_stalls(kubelet: &Kubelet) -> bool {
    kubelet.config.features.enabled(Feature::KubeletPSI)
}

/// The Pod with those of its measured containers that its status says run: what is left of an earlier run does not count.
fn of_pod(desired: &DesiredPod, status: &PodStatus, sample: Sample, measured: Vec<Measured>) -> PodUsage {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let running: Vec<(&str, Timestamp)> = lists.into_iter().flatten().flatten().filter_map(run).collect();
    let usage = |one: Measured| {
        let started = running.iter().find(|(id, _)| *id == one.id)?.1;
        Some(ContainerUsage { name: one.name, started, sample: one.sample, layer: one.layer })
    };
    let mut containers: Vec<ContainerUsage> = measured.into_iter().filter_map(usage).collect();
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    PodUsage {
        namespace: desired.namespace().to_owned(),
        name: desired.name().to_owned(),
        uid: desired.uid().to_owned(),
        started: status.start_time.as_ref().map(|time| time.0),
        sample,
        network: None,
        processes: None,
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
    use super::{engine::tests::stats, *};
    use crate::pod::fixture::{at, pod};
    use json::json;
    use runtime::Runtime as _;

    fn none(time: Timestamp) -> Sample {
        let (memory, stalls) = (Memory::default(), Stalls::default());
        Sample { time, cpu_nanos: None, cpu_rate: None, memory, swap: None, stalls }
    }

    pub fn sample(seconds: i64, cpu_nanos: u64, working_set: u64) -> Sample {
        let memory = Memory { working_set: Some(working_set), ..Memory::default() };
        Sample { cpu_nanos: Some(cpu_nanos), memory, ..none(at(seconds)) }
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
        let all = all.map(|(name, id)| engine::container(stats("u", name, id, 0), now).unwrap());
        let usage = of_pod(&pod(r#"{"containers": []}"#), &status, none(at(9)), all.to_vec());
        let told: Vec<_> = usage.containers.iter().map(|c| (c.name.as_str(), c.started)).collect();
        assert_eq!(told, [("b", at(2)), ("sidecar", at(1))]);
        // Nobody tells of the Pod itself.
        let sum = usage.sample.or_sum(&usage.containers);
        assert_eq!((sum.cpu_nanos, sum.memory.working_set, sum.memory.rss), (Some(14), Some(18), None));
        assert_eq!(sample(9, 1, 1).or_sum(&usage.containers), sample(9, 1, 1));
    }

    fn runs(names: &[&str]) -> PodStatus {
        let status = |name: &&str| {
            let id = format!("containerd://{name}1");
            json!({"name": name, "containerID": id, "state": {"running": {"startedAt": at(1)}}})
        };
        json::from_value(json!({"containerStatuses": names.iter().map(status).collect::<Vec<_>>()})).unwrap()
    }

    #[tokio::test]
    async fn an_engine_that_measures_pods_is_believed_where_the_feature_is_on() {
        let folder = tempfile::tempdir().unwrap();
        let change = |config: &mut crate::config::Config| {
            config.features = config.features.with(Feature::PodAndContainerStatsFromCRI, true);
        };
        let engine = runtime::fake::Fake::default();
        let kubelet = crate::pod::fixture::kubelet_with(folder.path(), engine, |_, _| None, change);
        let value = |value| Some(runtime::cri_api::UInt64Value { value });
        let cpu = |timestamp, nanos| {
            Some(runtime::stats::CpuUsage { timestamp, usage_core_nano_seconds: value(nanos), ..Default::default() })
        };
        let told = |seconds: i64, nanos: u64| {
            let timestamp = i64::try_from(at(seconds).as_nanosecond()).unwrap();
            let one = |id: &str| {
                let mut containers = vec![stats("u", "m", "m1", timestamp), stats("u", "m", "m0", timestamp)];
                containers[0].cpu = cpu(timestamp, nanos);
                let linux = runtime::stats::LinuxPodSandboxStats {
                    cpu: cpu(timestamp, 2 * nanos),
                    process: Some(runtime::cri_api::ProcessUsage { timestamp, process_count: value(3) }),
                    containers,
                    ..Default::default()
                };
                let attributes = runtime::cri_api::PodSandboxAttributes { id: id.into(), ..Default::default() };
                PodSandboxStats { attributes: Some(attributes), linux: Some(linux) }
            };
            vec![one("old"), one("new"), PodSandboxStats::default()]
        };
        let sandbox = |id: &str, state, created_at| PodSandbox {
            id: id.into(),
            state,
            created_at,
            labels: [(POD_UID.to_owned(), "u".to_owned())].into(),
            ..Default::default()
        };
        // The newest is not ready any more.
        let sandboxes = [sandbox("old", 1, 1), sandbox("new", 0, 2), sandbox("newest", 1, 3)];
        let read = |seconds, nanos| {
            let pods = vec![(pod(r#"{"containers": [{"name": "m"}]}"#), Arc::new(runs(&["m"])))];
            as_told(&kubelet, pods, told(seconds, nanos), &sandboxes)
        };
        let first = read(0, 1_000).remove(0);
        assert_eq!((first.sample.cpu_nanos, first.processes, first.network), (Some(2_000), Some(3), None));
        assert_eq!((first.containers.len(), first.containers[0].sample.cpu_rate), (1, None));
        let second = read(10, 21_000).remove(0);
        assert_eq!(second.containers[0].sample.cpu_rate, Some(2_000));
        // A Pod whose sandbox the engine does not measure is not told of.
        let other = vec![(pod(r#"{"containers": []}"#), Arc::default())];
        assert!(as_told(&kubelet, other, told(0, 1), &sandboxes[2..]).is_empty());
    }

    #[tokio::test]
    async fn the_engines_process_is_the_one_that_listens() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let process = |socket: &std::path::Path| runtime::Cri::new(&socket.display().to_string()).process();
        assert_eq!(process(&socket), i32::try_from(std::process::id()).ok());
        assert_eq!(process(&folder.path().join("none.sock")), None);
    }

    #[tokio::test]
    async fn the_kernel_is_asked_where_the_engine_cannot_tell_and_a_failure_is_one() {
        let check = async |on: bool, fails: bool, has_sandbox: bool, expected: bool| {
            let folder = tempfile::tempdir().unwrap();
            let engine = runtime::fake::Fake::default();
            if has_sandbox {
                let metadata = runtime::cri_api::PodSandboxMetadata { name: "p".into(), ..Default::default() };
                let config = runtime::cri_api::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
                engine.run_sandbox(config, "").await.unwrap();
                engine.pod_uses("p", Default::default());
            }
            engine.intercept(Some(std::sync::Arc::new(move |call, _| {
                let fails = fails && call == "sandbox_stats";
                let failure = runtime::Error::Incomplete { call: "ListPodSandboxStats", field: "stats" };
                Box::pin(async move { if fails { Err(failure) } else { Ok(()) } })
            })));
            let change = |config: &mut crate::config::Config| {
                config.features = config.features.with(Feature::PodAndContainerStatsFromCRI, on);
            };
            let kubelet = crate::pod::fixture::kubelet_with(folder.path(), engine, |_, _| None, change);
            assert_eq!(read(&kubelet, Depth::Whole).await.is_ok(), expected, "{on} {fails} {has_sandbox}");
        };
        check(true, false, false, true).await;
        check(true, true, false, false).await;
        check(false, true, false, true).await;
        // Each sandbox that is ready is asked for by itself.
        check(true, true, true, true).await;
    }
}
