//! Requests and limits as the kernel takes them.

use api::rules::{
    pod::{self, Resources},
    quantity::{Quantity, parse},
};
use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

const PERIOD: i64 = 100_000;

/// cpu.shares of a request: at least 2, the kernel's least.
pub fn shares(cpu: Option<Quantity>) -> i64 {
    shares_of(cpu.map_or(0, Quantity::milli_value))
}

fn shares_of(milli: i64) -> i64 {
    (milli * 1024 / 1000).clamp(2, 262_144)
}

/// cpu.cfs_quota_us of a limit, for a period of 100 ms; 0 is none.
pub fn quota(cpu: Option<Quantity>) -> i64 {
    match cpu.map_or(0, Quantity::milli_value) {
        0 => 0,
        milli => (milli * PERIOD / 1000).max(1000),
    }
}

/// The weights of the classes: all Pods together have the node's processors, Burstable Pods what they request, BestEffort
/// Pods what nobody else wants.
pub fn weights<'a>(pods: impl Iterator<Item = &'a Pod>, cpus: i64) -> [(&'static str, PodLimits); 3] {
    let burstable = pods.filter(|p| pod::qos(p) == pod::BURSTABLE).filter_map(|p| p.spec.as_ref());
    let milli: i64 = burstable.filter_map(|s| pod::requests(s).get("cpu").map(|q| q.milli_value())).sum();
    let of = |milli: i64| PodLimits { shares: shares_of(milli), ..Default::default() };
    [(pod::GUARANTEED, of(cpus * 1000)), (pod::BURSTABLE, of(milli)), (pod::BEST_EFFORT, of(0))]
}

/// How soon the kernel kills the process when memory runs out (-997 to 1000), as upstream grades it.
pub fn oom_score(spec: &PodSpec, container: &Container, node_memory: i64) -> i64 {
    if spec.priority_class_name.as_deref() == Some("system-node-critical") {
        return -997;
    }
    match pod::qos_class(spec) {
        pod::GUARANTEED => -997,
        pod::BEST_EFFORT => 1000,
        _ => {
            let request = container.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("memory"));
            let request = request.map_or(0, |q| parse(q).value());
            (1000 - 1000 * request / node_memory.max(1)).clamp(3, 999)
        }
    }
}

pub fn of_container(spec: &PodSpec, container: &Container, node_memory: i64) -> LinuxContainerResources {
    let resources = container.resources.clone().unwrap_or_default();
    let (requests, limits) = (resources.requests.unwrap_or_default(), resources.limits.unwrap_or_default());
    let limit = limits.get("cpu").map(parse);
    LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: quota(limit),
        cpu_shares: shares(requests.get("cpu").map(parse).or(limit)),
        memory_limit_in_bytes: limits.get("memory").map_or(0, |q| parse(q).value()),
        oom_score_adj: oom_score(spec, container, node_memory),
        ..Default::default()
    }
}

/// The kernel counts memory in pages.
const PAGE: i64 = 4096;

/// The limits of a container, as its cgroup is set: no quota and no limit of memory is 0. Memory is a number of whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub shares: i64,
    pub quota: i64,
    pub memory: i64,
}

fn whole_pages(bytes: i64) -> i64 {
    bytes - bytes % PAGE
}

impl Limits {
    pub fn of(resources: &LinuxContainerResources) -> Self {
        Limits {
            shares: resources.cpu_shares.max(2),
            quota: resources.cpu_quota.max(0),
            memory: whole_pages(resources.memory_limit_in_bytes.max(0)),
        }
    }

    /// The limits that an engine tells of a container. Every container has shares, so an engine that tells of none
    /// tells nothing.
    pub fn told(resources: &LinuxContainerResources) -> Option<Self> {
        (resources.cpu_shares > 0).then(|| Limits::of(resources))
    }

    /// The limits that the container's resources ask for.
    pub fn wanted(spec: &PodSpec, container: &Container) -> Self {
        Limits::of(&of_container(spec, container, 1))
    }

    /// The limits that the kernel tells of a container's cgroup.
    pub fn held(limits: PodLimits) -> Self {
        let (quota, memory) = (limits.quota.unwrap_or(0), limits.memory.unwrap_or(0));
        Limits { shares: limits.shares.max(2), quota, memory: whole_pages(memory) }
    }

    /// Thousandths of a processor that the shares stand for, rounded up.
    pub fn requested_milli(self) -> i64 {
        (self.shares * 1000 + 1023) / 1024
    }

    /// Thousandths of a processor that the quota allows.
    pub fn limit_milli(self) -> i64 {
        self.quota * 1000 / PERIOD
    }
}

/// The limits of the cgroup of a whole Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodLimits {
    pub shares: i64,
    pub quota: Option<i64>,
    pub memory: Option<i64>,
}

impl PodLimits {
    /// On the way from these limits to others, what is set before the containers change: no container ever has a limit above
    /// its Pod's. `None` leaves a limit as it is.
    pub fn on_the_way(self, to: PodLimits) -> PodLimits {
        let greater = |now: Option<i64>, then: Option<i64>| Some(now?.max(then?));
        PodLimits {
            shares: self.shares.max(to.shares),
            quota: greater(self.quota, to.quota),
            memory: greater(self.memory, to.memory),
        }
    }

    /// The limit of memory that these limits have and others would fall below.
    pub fn shrinks_memory(self, to: PodLimits) -> Option<i64> {
        to.memory.filter(|then| self.memory.is_none_or(|now| now > *then))
    }
}

/// A limit holds for the Pod only when each of its containers has one, or the Pod has one for all of them.
pub fn of_pod(spec: &PodSpec) -> PodLimits {
    let (requests, limits): (Resources, Resources) = (pod::requests(spec), pod::limits(spec));
    let has = |r: Option<&ResourceRequirements>, name: &str| {
        r.and_then(|r| r.limits.as_ref()).and_then(|l| l.get(name)).is_some_and(|q| !parse(q).is_zero())
    };
    let all = |name: &str| {
        let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        has(spec.resources.as_ref(), name) || containers.all(|c| has(c.resources.as_ref(), name))
    };
    let limit = |name: &str| limits.get(name).copied().filter(|_| all(name));
    PodLimits {
        shares: shares(requests.get("cpu").copied()),
        quota: limit("cpu").map(|q| quota(Some(q))).filter(|q| *q > 0),
        memory: limit("memory").map(Quantity::value).filter(|m| *m > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    const GIB: i64 = 1 << 30;

    #[test]
    fn shares_and_quotas() {
        for (cpu, expected) in
            [(None, (2, 0)), (Some("1m"), (2, 1000)), (Some("100m"), (102, 10_000)), (Some("1.5"), (1536, 150_000))]
        {
            let cpu = cpu.map(|text| text.parse().unwrap());
            assert_eq!((shares(cpu), quota(cpu)), expected, "{cpu:?}");
        }
        assert_eq!(shares(Some("10000".parse().unwrap())), 262_144);
    }

    #[test]
    fn what_a_container_gets() {
        let check = |resources: &str, expected: (i64, i64, i64, i64)| {
            let desired = pod(&format!(r#"{{"containers": [{{"name": "c", "resources": {resources}}}]}}"#));
            let got = of_container(desired.spec(), &desired.spec().containers[0], 4 * GIB);
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
    fn what_a_pod_gets() {
        let one = |resources: &str| format!(r#"{{"name": "c", "resources": {resources}}}"#);
        let check = |spec: String, expected: (i64, Option<i64>, Option<i64>)| {
            let got = of_pod(pod(&spec).spec());
            assert_eq!((got.shares, got.quota, got.memory), expected, "{spec}");
        };
        let limited = one(r#"{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}"#);
        let free = one("{}");
        check(format!(r#"{{"containers": [{limited}]}}"#), (512, Some(100_000), Some(GIB)));
        check(format!(r#"{{"containers": [{limited}, {limited}]}}"#), (1024, Some(200_000), Some(2 * GIB)));
        check(format!(r#"{{"containers": [{limited}, {free}]}}"#), (512, None, None));
        check(format!(r#"{{"containers": [{limited}], "initContainers": [{free}]}}"#), (512, None, None));
        let whole = r#""resources": {"limits": {"memory": "3Gi"}}"#;
        check(format!(r#"{{"containers": [{free}], {whole}}}"#), (2, None, Some(3 * GIB)));
    }

    #[test]
    fn a_pod_grows_before_its_containers_and_shrinks_after_them() {
        let limits = |shares, quota, memory| PodLimits { shares, quota, memory };
        let check = |now: PodLimits, to: PodLimits, expected: PodLimits| assert_eq!(now.on_the_way(to), expected);
        let (small, great) = (limits(2, Some(1000), Some(1)), limits(9, Some(9000), Some(9)));
        check(small, great, great);
        check(great, small, great);
        check(limits(9, Some(1), Some(9)), limits(2, Some(3), Some(4)), limits(9, Some(3), Some(9)));
        // A first limit takes away; one that is no longer asked for stays.
        check(limits(2, None, None), small, limits(2, None, None));
        check(great, limits(2, None, None), limits(9, None, None));
        assert_eq!(great.shrinks_memory(small), Some(1));
        assert_eq!(limits(2, None, None).shrinks_memory(small), Some(1));
        assert_eq!(small.shrinks_memory(great), None);
        assert_eq!(small.shrinks_memory(limits(2, None, None)), None);
    }

    #[test]
    fn limits_read_back_as_they_were_asked_for() {
        let desired = pod(r#"{"containers": [{"name": "c", "resources": {
            "requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "1Gi"}}}]}"#);
        let wanted = Limits::wanted(desired.spec(), &desired.spec().containers[0]);
        assert_eq!((wanted.requested_milli(), wanted.limit_milli(), wanted.memory), (250, 500, GIB));
        assert_eq!(Limits::told(&LinuxContainerResources::default()), None);
        let told = LinuxContainerResources { cpu_shares: 256, cpu_quota: -1, ..Default::default() };
        assert_eq!(Limits::told(&told), Some(Limits { shares: 256, quota: 0, memory: 0 }));
    }

    #[test]
    fn classes_weigh_what_their_pods_request() {
        let with = |resources: &str| pod(&format!(r#"{{"containers": [{{"name": "c", "resources": {resources}}}]}}"#));
        let burstable = with(r#"{"requests": {"cpu": "500m"}}"#);
        let guaranteed = with(r#"{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}"#);
        let pods = [&*burstable.pod, &*burstable.pod, &*guaranteed.pod, &*with("{}").pod];
        let shares = weights(pods.into_iter(), 4).map(|(class, limits)| (class, limits.shares));
        assert_eq!(shares, [("Guaranteed", 4096), ("Burstable", 1024), ("BestEffort", 2)]);
    }
}
