//! `/metrics/cadvisor`: what the kernel counts of the machine, of Pods, of their sandboxes and of containers, under the names that
//! dashboards know. Upstream counterpart: github.com/google/cadvisor/metrics, as the kubelet serves it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use api::{features::Feature, rules::metrics_text::escaped};
use runtime::cri_api::{Container, PodSandbox};

use super::{
    answer::{Answer, exposition},
    cadvisor_disks,
    cadvisor_rows::{COUNTER, Counted, GAUGE, head},
    engine_metrics,
};
use crate::{
    affinity::{
        sysfs,
        topology::{Level, Topology},
    },
    kubelet::Kubelet,
    node::{
        cgroup::Cgroups,
        counters::{self, Counters},
        disk_counts::{self, BLOCKS},
        machine::Machine,
        open_files::OpenFiles,
        stalls::{Stall, Stalls, Wait},
    },
    pod::desired::{CONTAINER_NAME, DesiredPod, POD_UID},
    volumes::folder::blocking,
};

pub async fn answer(kubelet: &Kubelet) -> Answer {
    let sys = kubelet.host.sys.clone();
    let topology = blocking(move || sysfs::read(&sys, 0)).await.unwrap_or_default();
    let mut out = machine(&kubelet.host.machine, &topology);
    if kubelet.config.features.enabled(Feature::PodAndContainerStatsFromCRI) {
        out.push_str(&engine_metrics::read(kubelet).await);
    } else {
        out.push_str(&counted(kubelet).await);
    }
    exposition(out)
}

async fn counted(kubelet: &Kubelet) -> String {
    let (containers, sandboxes) =
        tokio::join!(kubelet.config.runtime.containers(None), kubelet.config.runtime.sandboxes(None));
    let failed = containers.is_err() || sandboxes.is_err();
    let cgroups = &kubelet.host.cgroups;
    let root = Counted { id: "/".to_owned(), counters: Counters::of(cgroups, "/"), ..Counted::default() };
    let mut all = vec![root];
    let (containers, sandboxes) = (containers.unwrap_or_default(), sandboxes.unwrap_or_default());
    for pod in kubelet.pods.all().into_iter().filter(|pod| !pod.is_over() && !pod.is_refused) {
        all.extend(of_pod(cgroups, &pod.desired(), &containers, &sandboxes));
    }
    all.iter_mut().for_each(|one| one.ooms = kubelet.ooms.of(&one.id));
    if !kubelet.config.features.enabled(Feature::KubeletPSI) {
        all.iter_mut().for_each(|one| one.counters.stalls = Stalls::default());
    }
    look_at_files(cgroups, &mut all).await;
    let file_systems = blocking(cadvisor_disks::file_systems).await;
    let millis = clock::now().as_millisecond();
    let mut out = render(&all, failed, millis);
    let name_of = |device| disk_counts::name(Path::new(BLOCKS), device);
    cadvisor_disks::render(&mut out, &all, &file_systems, name_of, millis);
    out
}

/// Counts what the processes of each have open. Whatever is in the machine's own cgroup, its first process is the machine's.
async fn look_at_files(cgroups: &Cgroups, all: &mut [Counted]) {
    let places: Vec<_> = all.iter().map(|one| (counters::procs(cgroups, &one.id), one.id == "/")).collect();
    let look =
        |(procs, is_machine): (PathBuf, bool)| OpenFiles::of(Path::new("/proc"), &procs, is_machine.then_some("1"));
    let found: Vec<OpenFiles> = blocking(move || places.into_iter().map(look).collect()).await;
    all.iter_mut().zip(found).for_each(|(one, open)| one.open = open);
}

/// The Pod, its sandbox, and its containers that run.
fn of_pod(cgroups: &Cgroups, desired: &DesiredPod, containers: &[Container], sandboxes: &[PodSandbox]) -> Vec<Counted> {
    const RUNS: i32 = 1;
    let path = cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid());
    let one = |id: String| Counted {
        counters: Counters::of(cgroups, &id),
        id,
        namespace: desired.namespace().to_owned(),
        pod: desired.name().to_owned(),
        ..Counted::default()
    };
    let mut all = vec![one(path.clone())];
    let is_of = |labels: &std::collections::HashMap<String, String>| {
        labels.get(POD_UID).is_some_and(|uid| uid == desired.uid())
    };
    for sandbox in sandboxes.iter().filter(|sandbox| sandbox.state == 0 && is_of(&sandbox.labels)) {
        let inner = one(cgroups.of_container(&path, &sandbox.id));
        // On the node's network what its links carry is not the Pod's.
        let network = if desired.host_network() { BTreeMap::new() } else { counters::network(cgroups, &inner.id) };
        let (container, name) = ("POD".to_owned(), sandbox.id.clone());
        all.push(Counted { container, name, network, started: Some(sandbox.created_at), ..inner });
    }
    for container in containers.iter().filter(|container| container.state == RUNS && is_of(&container.labels)) {
        let inner = one(cgroups.of_container(&path, &container.id));
        let image = container.image.as_ref().map(|image| match image.user_specified_image.as_str() {
            "" => image.image.clone(),
            asked => asked.to_owned(),
        });
        all.push(Counted {
            container: container.labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
            image: image.unwrap_or_default(),
            name: container.id.clone(),
            started: Some(container.created_at),
            ..inner
        });
    }
    all
}

type Read = fn(&Counters) -> Option<f64>;

fn seconds(nanos: Option<u64>) -> Option<f64> {
    nanos.map(|nanos| nanos as f64 / 1e9)
}

fn plain(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn waited(stall: Option<Stall>, of: fn(Stall) -> Wait) -> Option<f64> {
    stall.map(|stall| of(stall).micros as f64 / 1e6)
}

/// Name, sort, help, and what it is; the labels that stand beside those of all are in the name.
const METRICS: [(&str, &str, &str, Read); 34] = [
    ("container_cpu_cfs_periods_total", COUNTER, "Number of elapsed enforcement period intervals.", |c| {
        plain(c.periods)
    }),
    ("container_cpu_cfs_throttled_periods_total", COUNTER, "Number of throttled period intervals.", |c| {
        plain(c.throttled_periods)
    }),
    (
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Total time duration the container has been throttled.",
        |c| seconds(c.throttled),
    ),
    ("container_cpu_system_seconds_total", COUNTER, "Cumulative system cpu time consumed in seconds.", |c| {
        seconds(c.cpu_system)
    }),
    ("container_cpu_usage_seconds_total", COUNTER, "Cumulative cpu time consumed in seconds.", |c| {
        seconds(c.cpu_total)
    }),
    ("container_cpu_user_seconds_total", COUNTER, "Cumulative user cpu time consumed in seconds.", |c| {
        seconds(c.cpu_user)
    }),
    ("container_memory_cache", GAUGE, "Number of bytes of page cache memory.", |c| plain(c.cache)),
    ("container_memory_failcnt", COUNTER, "Number of memory usage hits limits", |c| plain(c.failures)),
    ("container_memory_mapped_file", GAUGE, "Size of memory mapped files in bytes.", |c| plain(c.mapped)),
    ("container_memory_max_usage_bytes", GAUGE, "Maximum memory usage recorded in bytes", |c| plain(c.most_memory)),
    ("container_memory_rss", GAUGE, "Size of RSS in bytes.", |c| plain(c.rss)),
    ("container_memory_swap", GAUGE, "Container swap usage in bytes.", |c| plain(c.swap)),
    ("container_memory_total_active_file_bytes", GAUGE, "Current total active file in bytes.", |c| {
        plain(c.active_file)
    }),
    ("container_memory_total_inactive_file_bytes", GAUGE, "Current total inactive file in bytes.", |c| {
        plain(c.inactive_file)
    }),
    (
        "container_memory_usage_bytes",
        GAUGE,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |c| plain(c.memory),
    ),
    ("container_memory_working_set_bytes", GAUGE, "Current working set in bytes.", |c| plain(c.working_set)),
    ("container_oom_events_total", COUNTER, "Count of out of memory events observed for the container", |_| None),
    (
        "container_pressure_cpu_stalled_seconds_total",
        COUNTER,
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |c| waited(c.stalls.cpu, |stall| stall.full),
    ),
    (
        "container_pressure_cpu_waiting_seconds_total",
        COUNTER,
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |c| waited(c.stalls.cpu, |stall| stall.some),
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        COUNTER,
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |c| waited(c.stalls.io, |stall| stall.full),
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        COUNTER,
        "Total time duration tasks in the container have waited due to IO congestion.",
        |c| waited(c.stalls.io, |stall| stall.some),
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        COUNTER,
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |c| waited(c.stalls.memory, |stall| stall.full),
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        COUNTER,
        "Total time duration tasks in the container have waited due to memory congestion.",
        |c| waited(c.stalls.memory, |stall| stall.some),
    ),
    ("container_processes", GAUGE, "Number of processes running inside the container.", |c| plain(c.processes)),
    ("container_spec_cpu_period", GAUGE, "CPU period of the container.", |c| plain(c.period)),
    ("container_spec_cpu_quota", GAUGE, "CPU quota of the container.", |c| plain(c.quota)),
    ("container_spec_cpu_shares", GAUGE, "CPU share of the container.", |c| plain(c.shares)),
    ("container_spec_memory_limit_bytes", GAUGE, "Memory limit for the container.", |c| {
        Some(c.limit.unwrap_or(0) as f64)
    }),
    ("container_spec_memory_reservation_limit_bytes", GAUGE, "Memory reservation limit for the container.", |c| {
        Some(c.kept.unwrap_or(0) as f64)
    }),
    ("container_spec_memory_swap_limit_bytes", GAUGE, "Memory swap limit for the container.", |c| {
        Some(c.swap_limit.unwrap_or(0) as f64)
    }),
    ("container_threads", GAUGE, "Number of threads running inside the container", |c| plain(c.threads)),
    (
        "container_threads_max",
        GAUGE,
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |c| plain(c.most_threads),
    ),
    ("container_last_seen", GAUGE, "Last time a container was seen by the exporter", |_| None),
    ("container_start_time_seconds", GAUGE, "Start time of the container since unix epoch in seconds.", |_| None),
];

/// The traffic of links: the name's end, help, and the place among the kernel's four.
const CARRIED: [(&str, &str, usize); 4] = [
    ("bytes", "bytes", 0),
    ("packets", "packets", 1),
    ("errors", "errors encountered while", 2),
    ("packets_dropped", "packets dropped while", 3),
];

/// Pages of memory that were not there when they were wanted.
fn failures(out: &mut String, all: &[Counted], millis: i64) {
    let name = "container_memory_failures_total";
    let mut rows = String::new();
    for one in all {
        for (scope, counts) in [("container", one.counters.faults), ("hierarchy", one.counters.faults_below)] {
            for (sort, count) in ["pgfault", "pgmajfault"].into_iter().zip(counts) {
                let Some(count) = count else { continue };
                let labels = one.labels(&[("failure_type", sort), ("scope", scope)]);
                let _ = writeln!(rows, "{name}{labels} {count} {millis}");
            }
        }
    }
    if !rows.is_empty() {
        head(out, name, COUNTER, "Cumulative count of memory allocation failures.");
        out.push_str(&rows);
    }
}

type ReadFiles = fn(&OpenFiles) -> Option<i64>;

/// Name and help of what is told of open files, and what it is.
const FILES: [(&str, &str, ReadFiles); 3] = [
    ("container_file_descriptors", "Number of open file descriptors for the container.", |open| {
        open.descriptors.map(u64::cast_signed)
    }),
    ("container_sockets", "Number of open sockets for the container.", |open| open.sockets.map(u64::cast_signed)),
    (
        "container_ulimits_soft",
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        |open| open.soft_limit,
    ),
];

/// The files that are open, and how many may be.
fn open_files(out: &mut String, all: &[Counted], millis: i64) {
    for (name, help, read) in FILES {
        let more: &[(&str, &str)] =
            if name == "container_ulimits_soft" { &[("ulimit", "max_open_files")] } else { &[] };
        let rows: Vec<_> = all.iter().filter_map(|one| Some((one.labels(more), read(&one.open)?))).collect();
        if !rows.is_empty() {
            head(out, name, GAUGE, help);
        }
        for (labels, value) in rows {
            let _ = writeln!(out, "{name}{labels} {value} {millis}");
        }
    }
}

fn render(all: &[Counted], failed: bool, millis: i64) -> String {
    let mut out = String::new();
    for (name, sort, help, read) in METRICS {
        let more: &[(&str, &str)] = if name == "container_cpu_usage_seconds_total" { &[("cpu", "total")] } else { &[] };
        let value = |one: &Counted| match name {
            "container_last_seen" => Some((millis / 1000) as f64),
            "container_oom_events_total" => plain(Some(one.ooms)),
            "container_start_time_seconds" => one.started.map(|nanos| (nanos / 1_000_000_000) as f64),
            _ => read(&one.counters),
        };
        let rows: Vec<_> = all.iter().filter_map(|one| Some((one.labels(more), value(one)?))).collect();
        if rows.is_empty() {
            continue;
        }
        head(&mut out, name, sort, help);
        for (labels, value) in rows {
            let _ = writeln!(out, "{name}{labels} {value} {millis}");
        }
    }
    failures(&mut out, all, millis);
    open_files(&mut out, all, millis);
    for (way, verb, from) in [("receive", "received", true), ("transmit", "transmitted", false)] {
        for (what, of, place) in CARRIED {
            let name = format!("container_network_{way}_{what}_total");
            let rows: Vec<_> = all.iter().flat_map(|one| one.network.iter().map(move |link| (one, link))).collect();
            if rows.is_empty() {
                continue;
            }
            head(&mut out, &name, COUNTER, &format!("Cumulative count of {of} {verb}"));
            for (one, (link, carried)) in rows {
                let counts = if from { carried.received } else { carried.sent };
                let _ = writeln!(out, "{name}{} {} {millis}", one.labels(&[("interface", link)]), counts[place]);
            }
        }
    }
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    head(&mut out, "container_scrape_error", GAUGE, help);
    let _ = writeln!(out, "container_scrape_error {}", i64::from(failed));
    out
}

/// The machine itself, under the ids that its Node has.
fn machine(machine: &Machine, topology: &Topology) -> String {
    let mut out = String::new();
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor \
        revision.";
    head(&mut out, "cadvisor_version_info", GAUGE, help);
    let of = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &*machine.kernel),
        ("osVersion", &*machine.os_image),
    ];
    let _ = writeln!(out, "cadvisor_version_info{{{}}} 1", meter::labels(&of));
    let (boot, id) = (escaped(&machine.boot_id), escaped(&machine.machine_id));
    let count = |level: Level| i64::try_from(topology.count(level)).unwrap_or(i64::MAX);
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", machine.cpus),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", count(Level::Core)),
        ("machine_cpu_sockets", "Number of CPU sockets.", count(Level::Socket)),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", machine.memory),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", machine.swap),
    ] {
        head(&mut out, name, GAUGE, help);
        let _ = writeln!(out, "{name}{{boot_id=\"{boot}\",machine_id=\"{id}\",system_uuid=\"{id}\"}} {value}");
    }
    head(
        &mut out,
        "machine_scrape_error",
        GAUGE,
        "1 if there was an error while getting machine metrics, 0 otherwise.",
    );
    out + "machine_scrape_error 0\n"
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::node::{counters::Carried, disk_counts::DiskCounts};

    /// The page about one container of which the kernel tells all that dashboards ask for.
    pub fn page() -> String {
        let some = Some(1);
        let disk = DiskCounts { device: (8, 0), reads: some, writes: some, read_bytes: some, written_bytes: some };
        let counters = Counters {
            cpu_total: some,
            cpu_user: some,
            cpu_system: some,
            periods: some,
            throttled_periods: some,
            memory: some,
            working_set: some,
            rss: some,
            cache: some,
            swap: some,
            limit: some,
            shares: some,
            disks: vec![disk],
            ..Counters::default()
        };
        let network = [("eth0".to_owned(), Carried { received: [1; 4], sent: [1; 4] })].into();
        let of = || "x".to_owned();
        let one = Counted {
            id: of(),
            container: of(),
            image: of(),
            name: of(),
            namespace: of(),
            pod: of(),
            started: Some(1),
            ooms: 0,
            counters,
            open: OpenFiles::default(),
            network,
        };
        let all = [one];
        let mut out = render(&all, false, 5000);
        cadvisor_disks::render(&mut out, &all, &[], |_| "/dev/sda".to_owned(), 5000);
        out + &machine(&Machine::default(), &crate::affinity::topology::machines::dual_socket_ht())
    }

    #[test]
    fn rows_are_those_that_dashboards_read() {
        let some = Wait { micros: 2_500_000, ..Wait::default() };
        let stalls = Stalls { memory: Some(Stall { some, full: Wait::default() }), ..Stalls::default() };
        let faults = [Some(3), None];
        let counters =
            Counters { cpu_total: Some(1_500_000_000), working_set: Some(7), faults, stalls, ..Counters::default() };
        let carried = Carried { received: [1, 2, 3, 4], sent: [5, 6, 7, 8] };
        let one = Counted {
            id: "/kubepods/podu/1".into(),
            container: "c".into(),
            image: "i:1".into(),
            name: "1".into(),
            namespace: "n".into(),
            pod: "p".into(),
            started: Some(3_000_000_000),
            ooms: 4,
            counters,
            open: OpenFiles { descriptors: Some(9), sockets: Some(2), soft_limit: Some(-1) },
            network: [("eth0".to_owned(), carried)].into(),
        };
        let has_ids = Machine {
            kernel: "6.1".into(),
            cpus: 2,
            boot_id: "b".into(),
            machine_id: "m".into(),
            ..Machine::default()
        };
        let text =
            render(&[one], false, 5000) + &machine(&has_ids, &crate::affinity::topology::machines::dual_socket_ht());
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = "id=\"/kubepods/podu/1\",image=\"i:1\"";
        let end = "name=\"1\",namespace=\"n\",pod=\"p\"}";
        for row in [
            format!("container_cpu_usage_seconds_total{{container=\"c\",cpu=\"total\",{of},{end} 1.5 5000"),
            format!("container_memory_working_set_bytes{{container=\"c\",{of},{end} 7 5000"),
            format!("container_pressure_memory_waiting_seconds_total{{container=\"c\",{of},{end} 2.5 5000"),
            format!(
                "container_memory_failures_total{{container=\"c\",failure_type=\"pgfault\",{of},name=\"1\",namespace=\"n\",pod=\"p\",scope=\"container\"}} 3 5000"
            ),
            format!("container_oom_events_total{{container=\"c\",{of},{end} 4 5000"),
            format!("container_file_descriptors{{container=\"c\",{of},{end} 9 5000"),
            format!("container_sockets{{container=\"c\",{of},{end} 2 5000"),
            format!(
                "container_ulimits_soft{{container=\"c\",{of},name=\"1\",namespace=\"n\",pod=\"p\",ulimit=\"max_open_files\"}} -1 5000"
            ),
            format!("container_spec_memory_limit_bytes{{container=\"c\",{of},{end} 0 5000"),
            format!("container_start_time_seconds{{container=\"c\",{of},{end} 3 5000"),
            format!(
                "container_network_receive_packets_dropped_total{{container=\"c\",{of},interface=\"eth0\",{end} 4 5000"
            ),
            format!("container_network_transmit_bytes_total{{container=\"c\",{of},interface=\"eth0\",{end} 5 5000"),
            "container_scrape_error 0".to_owned(),
            "machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"m\"} 2".to_owned(),
            "machine_cpu_physical_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"m\"} 6".to_owned(),
            "machine_cpu_sockets{boot_id=\"b\",machine_id=\"m\",system_uuid=\"m\"} 2".to_owned(),
            "cadvisor_version_info{cadvisorRevision=\"\",cadvisorVersion=\"\",dockerVersion=\"\",kernelVersion=\"6.1\",osVersion=\"\"} 1"
                .to_owned(),
        ] {
            assert!(rows.contains(&&*row), "{row}\n{text}");
        }
        assert!(!text.contains("container_pressure_cpu"), "nor has a wait that the kernel does not count");
        assert!(!text.contains("container_memory_rss"), "what the kernel does not tell has no row");
    }

    #[tokio::test]
    async fn the_engine_counts_where_the_feature_is_on() {
        use http_body_util::BodyExt;
        use runtime::cri_api::{Metric, MetricDescriptor, PodSandboxMetrics, UInt64Value};
        let engine = runtime::fake::Fake::default();
        let page = async |on: bool| {
            let folder = tempfile::tempdir().unwrap();
            let change = |config: &mut crate::config::Config| {
                config.features = config.features.with(Feature::PodAndContainerStatsFromCRI, on);
            };
            let kubelet = crate::pod::fixture::kubelet_with(folder.path(), engine.clone(), |_, _| None, change);
            let body = answer(&kubelet).await.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8(body.to_vec()).unwrap()
        };
        let machine_only = page(true).await;
        assert!(
            machine_only.contains("machine_cpu_cores{") && !machine_only.contains("\ncontainer_"),
            "{machine_only}"
        );
        let name = "container_memory_usage_bytes".to_owned();
        let of = |value| Metric {
            name: name.clone(),
            metric_type: 1,
            value: Some(UInt64Value { value }),
            ..Default::default()
        };
        let counted = PodSandboxMetrics { metrics: vec![of(7)], ..Default::default() };
        let described = MetricDescriptor { name: name.clone(), help: "Used.".into(), label_keys: Vec::new() };
        engine.counts(vec![described], vec![counted]);
        assert!(page(true).await.ends_with("\ncontainer_memory_usage_bytes 7\n"));
        let by_kernel = page(false).await;
        assert!(by_kernel.contains("container_scrape_error 0") && !by_kernel.contains("usage_bytes 7\n"));
    }
}
