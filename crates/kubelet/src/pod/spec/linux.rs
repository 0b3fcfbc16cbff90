//! The amounts that a container may take, as the engine is told: processors, memory, swap, and who is killed first when memory runs out.
//! Pure. Upstream counterpart: kuberuntime_container_linux.go of pkg/kubelet/kuberuntime, and pkg/kubelet/qos.

use std::collections::HashMap;

use api::rules::{
    pod::{self, is_sidecar},
    quantity::parse,
};
use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use crate::{
    node::huge_pages::{self, HugePages},
    pod::{
        admit::is_critical,
        desired::DesiredPod,
        spec::{
            quota::Cfs,
            resources::{Compute, shares},
        },
    },
};

const PAGE: i64 = 4096;

/// The facts of the node, and of its settings, that decide what containers get.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ground<'a> {
    /// The machine's bytes of memory, and those of them that Pods may have.
    pub memory: i64,
    pub allocatable_memory: i64,
    /// The machine's huge pages.
    pub huge_pages: &'a [HugePages],
    /// The tree of cgroups is that of version 2.
    pub unified: bool,
    /// When a container runs out of memory, one of its processes is killed, not all of them.
    pub kills_one: bool,
    /// The kernel counts swap by cgroup.
    pub counts_swap: bool,
    /// The bytes of swap that Pods share, where they may use it.
    pub swap: Option<i64>,
    /// How near to its limit a container's memory comes before the kernel slows it down, as a part of what is beyond its request.
    pub throttling: Option<f64>,
    /// How limits of processors are kept.
    pub cfs: Cfs,
}

fn amount(resources: Option<&ResourceRequirements>, name: &str) -> i64 {
    let request = resources.and_then(|r| r.requests.as_ref()?.get(name));
    request.map_or(0, |q| parse(q).value())
}

fn memory_request(container: &Container) -> i64 {
    amount(container.resources.as_ref(), "memory")
}

/// The share of each container in the memory that its Pod requests beyond the requests of its containers.
fn share_of_pod(spec: &PodSpec) -> i64 {
    let of_pod = amount(spec.resources.as_ref(), "memory");
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let all: Vec<i64> = spec.containers.iter().chain(sidecars).map(memory_request).collect();
    let left = of_pod - all.iter().sum::<i64>();
    if of_pod == 0 || all.is_empty() { 0 } else { left.max(0) / i64::try_from(all.len()).unwrap_or(i64::MAX) }
}

/// How soon the kernel kills the process when memory runs out (-997 to 1000), as upstream grades it.
pub fn oom_score(spec: &PodSpec, container: &Container, node_memory: i64) -> i64 {
    if spec.priority_class_name.as_deref() == Some("system-node-critical") {
        return -997;
    }
    let class = pod::qos_class(spec);
    if class != pod::BURSTABLE {
        return if class == pod::GUARANTEED { -997 } else { 1000 };
    }
    let share = share_of_pod(spec);
    let score = |request: i64| 1000 - (1000 * i128::from(request + share) / i128::from(node_memory.max(1))) as i64;
    let mut own = score(memory_request(container));
    if spec.init_containers.iter().flatten().any(|c| c.name == container.name && is_sidecar(c)) {
        // A sidecar never goes before the containers that it serves.
        own = own.min(score(spec.containers.iter().map(memory_request).min().unwrap_or(0)));
    }
    own.clamp(3, 999)
}

/// The bytes of swap that a container may use; 0 is none.
fn swap(desired: &DesiredPod, container: &Container, ground: &Ground<'_>) -> i64 {
    let request = memory_request(container);
    let limit = container.resources.as_ref().and_then(|r| r.limits.as_ref()?.get("memory"));
    let may = !is_critical(&desired.pod, desired.is_static)
        && pod::qos(&desired.pod) == pod::BURSTABLE
        && request > 0
        && limit.is_none_or(|limit| parse(limit).value() != request);
    match ground.swap.filter(|_| may) {
        Some(all) => (request as f64 / ground.memory.max(1) as f64 * all as f64) as i64,
        None => 0,
    }
}

/// Where the kernel begins to slow a container down; `None` where it does not.
fn high(request: i64, limit: i64, ground: &Ground<'_>) -> Option<i64> {
    // Whoever asks for nothing, or for all that it may have, is left alone.
    let factor = ground.throttling.filter(|_| request != limit)?;
    let end = if limit != 0 { limit } else { ground.allocatable_memory };
    let bytes = request as f64 + (end - request) as f64 * factor;
    let high = (bytes / PAGE as f64).floor() as i64 * PAGE;
    (high > request).then_some(high)
}

/// The files of version 2 that no other field stands for.
fn unified(desired: &DesiredPod, container: &Container, ground: &Ground<'_>) -> HashMap<String, String> {
    let mut files = HashMap::new();
    if !ground.unified {
        return files;
    }
    let mut put = |name: &str, value: i64| drop(files.insert(name.to_owned(), value.to_string()));
    if ground.counts_swap {
        put("memory.swap.max", swap(desired, container, ground));
    }
    if !ground.kills_one {
        put("memory.oom.group", 1);
    }
    if ground.throttling.is_some() {
        let request = memory_request(container);
        let limit = container.resources.as_ref().and_then(|r| r.limits.as_ref()?.get("memory"));
        if request > 0 {
            put("memory.min", request);
        }
        if let Some(high) = high(request, limit.map_or(0, |limit| parse(limit).value()), ground) {
            put("memory.high", high);
        }
    }
    files
}

/// The amounts of processors and memory in the engine's terms.
fn amounts(compute: Compute, cfs: Cfs) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: if cfs.enforced { cfs.period } else { 0 },
        cpu_quota: cfs.quota(compute.cpu_limit),
        cpu_shares: shares(compute.cpu_request),
        memory_limit_in_bytes: compute.memory_limit,
        ..Default::default()
    }
}

/// The amounts of a Pod's containers together, and those that its sandbox takes beside them. An engine whose sandboxes are machines makes
/// them as large; others need neither. Where a container has processors for itself, no quota bounds the Pod.
pub fn of_sandbox(spec: &PodSpec, ground: &Ground<'_>, is_unbounded: bool) -> [LinuxContainerResources; 2] {
    let kills_all = ground.unified && !ground.kills_one;
    let unified: HashMap<_, _> =
        kills_all.then(|| ("memory.oom.group".to_owned(), "1".to_owned())).into_iter().collect();
    let sized = |compute| LinuxContainerResources { unified: unified.clone(), ..amounts(compute, ground.cfs) };
    let bare = PodSpec { overhead: None, ..spec.clone() };
    let (requests, limits) = (pod::requests(&bare), pod::limits(&bare));
    let cpu_limit = limits.get("cpu").copied();
    let mut resources = sized(Compute {
        cpu_request: requests.get("cpu").copied().or(cpu_limit),
        cpu_limit,
        memory_limit: limits.get("memory").map_or(0, |limit| limit.value()),
    });
    if is_unbounded {
        resources.cpu_quota = -1;
    }
    let of_overhead = |name: &str| spec.overhead.as_ref()?.get(name).map(parse);
    let cpu = of_overhead("cpu");
    let memory_limit = of_overhead("memory").map_or(0, |memory| memory.value());
    let overhead = Compute { cpu_request: cpu, cpu_limit: cpu, memory_limit };
    [resources, if spec.overhead.is_some() { sized(overhead) } else { LinuxContainerResources::default() }]
}

pub fn of_container(desired: &DesiredPod, container: &Container, ground: &Ground<'_>) -> LinuxContainerResources {
    let spec = desired.spec();
    let compute = Compute::of(spec, container);
    // On version 1 memory and swap are bounded together: what equals the limit of memory leaves no swap.
    let together = if ground.unified || !ground.counts_swap { 0 } else { compute.memory_limit };
    LinuxContainerResources {
        memory_swap_limit_in_bytes: together,
        oom_score_adj: oom_score(spec, container, ground.memory),
        hugepage_limits: huge_pages::of_container(ground.huge_pages, spec, container),
        unified: unified(desired, container, ground),
        ..amounts(compute, ground.cfs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    const GIB: i64 = 1 << 30;

    fn ground() -> Ground<'static> {
        Ground { memory: 4 * GIB, allocatable_memory: 3 * GIB, ..Ground::default() }
    }

    fn one(resources: &str) -> DesiredPod {
        pod(&format!(r#"{{"containers": [{{"name": "c", "resources": {resources}}}]}}"#))
    }

    fn first(desired: &DesiredPod, ground: &Ground<'_>) -> LinuxContainerResources {
        of_container(desired, &desired.spec().containers[0], ground)
    }

    #[test]
    fn what_a_container_gets() {
        let check = |resources: &str, expected: (i64, i64, i64, i64)| {
            let got = first(&one(resources), &ground());
            let got = (got.cpu_shares, got.cpu_quota, got.memory_limit_in_bytes, got.oom_score_adj);
            assert_eq!(got, expected, "{resources}");
        };
        check("{}", (2, 0, 0, 1000));
        check(r#"{"requests": {"cpu": "250m", "memory": "1Gi"}}"#, (256, 0, 0, 750));
        check(r#"{"requests": {"memory": "4Gi"}}"#, (2, 0, 0, 3));
        check(r#"{"requests": {"memory": "1"}}"#, (2, 0, 0, 999));
        // A limit stands in for a request.
        check(r#"{"limits": {"cpu": "500m"}}"#, (512, 50_000, 0, 999));
        let both = r#"{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}"#;
        check(both, (1024, 100_000, GIB, -997));
        let critical = pod(r#"{"priorityClassName": "system-node-critical", "containers": [{"name": "c"}]}"#);
        assert_eq!(oom_score(critical.spec(), &critical.spec().containers[0], GIB), -997);
    }

    #[test]
    fn a_sandbox_is_told_what_its_containers_have_and_what_it_has_beside_them() {
        let check = |spec: &str, expected: [(i64, i64, i64); 2]| {
            let got = of_sandbox(pod(spec).spec(), &ground(), false);
            assert_eq!(got.map(|r| (r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes)), expected, "{spec}");
        };
        let limited =
            r#"{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}"#;
        let free = r#"{"name": "d"}"#;
        check(&format!(r#"{{"containers": [{free}]}}"#), [(2, 0, 0), (0, 0, 0)]);
        check(&format!(r#"{{"containers": [{limited}, {free}]}}"#), [(512, 100_000, GIB), (0, 0, 0)]);
        let overhead = r#""overhead": {"cpu": "250m", "memory": "64Mi"}"#;
        let beside = (256, 25_000, 64 << 20);
        check(&format!(r#"{{"containers": [{limited}], {overhead}}}"#), [(512, 100_000, GIB), beside]);
        check(&format!(r#"{{"containers": [{free}], {overhead}}}"#), [(2, 0, 0), beside]);
        check(
            r#"{"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}"#,
            [(1024, 100_000, 0), (0, 0, 0)],
        );
        check(
            r#"{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}, "containers": [{"name": "c"}]}"#,
            [(2048, 200_000, 0), (0, 0, 0)],
        );
        let whole = format!(r#"{{"containers": [{limited}], {overhead}}}"#);
        let [resources, beside] = of_sandbox(pod(&whole).spec(), &Ground { unified: true, ..ground() }, true);
        assert_eq!((resources.cpu_quota, beside.cpu_quota), (-1, 25_000));
        assert_eq!([resources, beside].map(|r| r.unified["memory.oom.group"].clone()), ["1", "1"]);
    }

    #[test]
    fn limits_of_processors_have_the_period_of_the_node_or_are_left_out() {
        let limited = one(r#"{"limits": {"cpu": "500m"}}"#);
        let told = |cfs: Cfs| {
            let ground = Ground { cfs, ..ground() };
            let [sandbox, _] = of_sandbox(limited.spec(), &ground, false);
            [first(&limited, &ground), sandbox].map(|r| (r.cpu_quota, r.cpu_period, r.cpu_shares))
        };
        assert_eq!(told(Cfs { enforced: true, period: 20_000 }), [(10_000, 20_000, 512); 2]);
        assert_eq!(told(Cfs { enforced: false, period: 20_000 }), [(0, 0, 512); 2]);
    }

    #[test]
    fn a_limit_of_the_pod_holds_for_containers_without_one() {
        let desired = pod(r#"{"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"memory": "1Gi"}},
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"memory": "64Mi"}}}]}"#);
        let of = |index: usize| of_container(&desired, &desired.spec().containers[index], &ground());
        assert_eq!((of(0).memory_limit_in_bytes, of(0).cpu_quota, of(0).cpu_shares), (GIB, 200_000, 2048));
        assert_eq!((of(1).memory_limit_in_bytes, of(1).cpu_quota), (64 << 20, 200_000));
        // The requests of the Pod beyond those of its containers are shared out among them.
        assert_eq!(of(0).oom_score_adj, 1000 - 125);
    }

    #[test]
    fn a_sidecar_is_not_killed_before_whom_it_serves() {
        let desired = pod(r#"{"containers": [{"name": "m", "resources": {"requests": {"memory": "2Gi"}}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]}"#);
        let score = |name: &str| oom_score(desired.spec(), desired.container(name).unwrap(), 4 * GIB);
        assert_eq!((score("m"), score("s"), score("i")), (500, 500, 999));
    }

    #[test]
    fn version_2_kills_all_processes_of_a_container_unless_told_otherwise() {
        let group = |ground: Ground<'_>| first(&one("{}"), &ground).unified.get("memory.oom.group").cloned();
        let v2 = Ground { unified: true, ..ground() };
        assert_eq!(group(v2).as_deref(), Some("1"));
        assert_eq!(group(Ground { kills_one: true, ..v2 }), None);
        assert_eq!(group(ground()), None);
    }

    #[test]
    fn swap_is_for_burstable_containers_by_their_requests() {
        let v2 = Ground { unified: true, counts_swap: true, ..ground() };
        let limited = Ground { swap: Some(8 * GIB), ..v2 };
        let check = |desired: &DesiredPod, ground: Ground<'_>, expected: &str| {
            assert_eq!(first(desired, &ground).unified["memory.swap.max"], expected, "{ground:?}");
        };
        let burstable = one(r#"{"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}"#);
        check(&burstable, limited, &(2 * GIB).to_string());
        check(&burstable, v2, "0");
        check(&one(r#"{"requests": {"cpu": "1"}}"#), limited, "0");
        check(&one(r#"{"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}"#), limited, "0");
        check(&one("{}"), limited, "0");
        let critical =
            r#"{"priority": 2000000000, "containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi"}}}]}"#;
        check(&pod(critical), limited, "0");
        // Version 1 bounds both together; where the kernel does not count swap, nothing is said of it.
        let v1 = Ground { counts_swap: true, ..ground() };
        assert_eq!(first(&burstable, &v1).memory_swap_limit_in_bytes, 2 * GIB);
        assert_eq!(first(&burstable, &ground()).memory_swap_limit_in_bytes, 0);
        assert!(!first(&burstable, &Ground { unified: true, ..ground() }).unified.contains_key("memory.swap.max"));
    }

    #[test]
    fn memory_qos_protects_requests_and_slows_down_near_the_limit() {
        let qos = Ground { unified: true, throttling: Some(0.9), ..ground() };
        let check = |resources: &str, expected: (Option<i64>, Option<i64>)| {
            let got = first(&one(resources), &qos).unified;
            let number = |name: &str| got.get(name).map(|text| text.parse().unwrap());
            assert_eq!((number("memory.min"), number("memory.high")), expected, "{resources}");
        };
        let page = |bytes: f64| Some((bytes / 4096.0).floor() as i64 * 4096);
        check("{}", (None, None));
        check(r#"{"requests": {"memory": "1Gi"}}"#, (Some(GIB), page(GIB as f64 + 2.0 * GIB as f64 * 0.9)));
        check(r#"{"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}"#, (Some(GIB), page(GIB as f64 * 1.9)));
        check(r#"{"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}"#, (Some(GIB), None));
        assert!(!first(&one("{}"), &ground()).unified.contains_key("memory.high"));
    }
}
