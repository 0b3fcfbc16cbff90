//! Requests and limits as the kernel takes them.

use api::rules::{
    pod::{self, Resources},
    quantity::{Quantity, parse},
};
use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::quota::Cfs;

/// cpu.shares of a request: at least 2, the kernel's least.
pub fn shares(cpu: Option<Quantity>) -> i64 {
    shares_of(cpu.map_or(0, Quantity::milli_value))
}

pub fn shares_of(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// The limits of the classes: all Pods together what the node has for them, Burstable Pods what they request, BestEffort Pods what
/// nobody else wants. Where requests of memory are kept for Pods, they are kept for their classes too.
pub fn weights<'a>(
    pods: impl Iterator<Item = &'a Pod> + Clone,
    all: PodLimits,
    keeps_memory: bool,
) -> [(&'static str, PodLimits); 3] {
    let sum = |class: Option<&str>, name: &str| -> i64 {
        let of_class = pods.clone().filter(|pod| class.is_none_or(|class| pod::qos(pod) == class));
        let requests = of_class.filter_map(|pod| pod::requests(pod.spec.as_ref()?).get(name).copied());
        requests.map(|q| if name == "cpu" { q.milli_value() } else { q.value() }).sum()
    };
    let kept = |class| keeps_memory.then(|| sum(class, "memory"));
    let burstable = Some(pod::BURSTABLE);
    let of = |shares, kept| PodLimits { shares, kept, ..Default::default() };
    [
        (pod::GUARANTEED, PodLimits { kept: kept(None), ..all }),
        (pod::BURSTABLE, of(shares_of(sum(burstable, "cpu")), kept(burstable))),
        (pod::BEST_EFFORT, of(shares_of(0), None)),
    ]
}

/// The processors that a container asks for, and the amounts that it may take. Where its Pod has a limit and it has none of its own, the Pod's
/// counts for it too: what runs in it reads its own cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compute {
    pub cpu_request: Option<Quantity>,
    pub cpu_limit: Option<Quantity>,
    /// Bytes; 0 is no limit.
    pub memory_limit: i64,
}

impl Compute {
    pub fn of(spec: &PodSpec, container: &Container) -> Self {
        let amount = |r: Option<&ResourceRequirements>, limits: bool, name: &str| {
            let list = r.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() });
            list.and_then(|list| list.get(name)).map(parse)
        };
        let own = container.resources.as_ref();
        let limit = |name: &str| {
            let mine = amount(own, true, name).filter(|q| !q.is_zero());
            mine.or_else(|| amount(spec.resources.as_ref(), true, name))
        };
        let cpu_limit = limit("cpu");
        Compute {
            // A limit stands in for a request.
            cpu_request: amount(own, false, "cpu").or(cpu_limit),
            cpu_limit,
            memory_limit: limit("memory").map_or(0, Quantity::value),
        }
    }
}

/// The kernel counts memory in pages.
const PAGE: i64 = 4096;

/// The limits of a container, as its cgroup is set: no quota and no limit of memory is 0. Quotas are of the node's period, memory is a
/// number of whole pages.
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
    pub fn of(resources: &LinuxContainerResources, cfs: Cfs) -> Self {
        Limits {
            shares: resources.cpu_shares.max(2),
            quota: cfs.converted(resources.cpu_quota, resources.cpu_period),
            memory: whole_pages(resources.memory_limit_in_bytes.max(0)),
        }
    }

    /// The limits that an engine tells of a container. Every container has shares, so an engine that tells of none
    /// tells nothing.
    pub fn told(resources: &LinuxContainerResources, cfs: Cfs) -> Option<Self> {
        (resources.cpu_shares > 0).then(|| Limits::of(resources, cfs))
    }

    /// The limits that the container's resources ask for.
    pub fn wanted(spec: &PodSpec, container: &Container, cfs: Cfs) -> Self {
        let compute = Compute::of(spec, container);
        let (shares, quota) = (shares(compute.cpu_request), cfs.quota(compute.cpu_limit));
        Limits { shares: shares.max(2), quota: quota.max(0), memory: whole_pages(compute.memory_limit.max(0)) }
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
}

/// The limits of the cgroup of a whole Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodLimits {
    pub shares: i64,
    /// Of the node's period.
    pub quota: Option<i64>,
    pub memory: Option<i64>,
    /// The bytes that the kernel never takes back; version 2 alone knows that.
    pub kept: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
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
            // Neither takes anything away from a container.
            kept: to.kept,
            pids: to.pids,
        }
    }

    /// The limit of memory that these limits have and others would fall below.
    pub fn shrinks_memory(self, to: PodLimits) -> Option<i64> {
        to.memory.filter(|then| self.memory.is_none_or(|now| now > *then))
    }
}

/// A limit holds for the Pod only when each of its containers has one, or the Pod has one for all of them.
pub fn of_pod(spec: &PodSpec, cfs: Cfs) -> PodLimits {
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
        quota: limit("cpu").map(|q| cfs.quota(Some(q))).filter(|q| *q > 0),
        memory: limit("memory").map(Quantity::value).filter(|m| *m > 0),
        ..PodLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    const GIB: i64 = 1 << 30;

    #[test]
    fn shares_of_requests() {
        for (cpu, expected) in [(None, 2), (Some("1m"), 2), (Some("100m"), 102), (Some("1.5"), 1536)] {
            assert_eq!(shares(cpu.map(|text| text.parse().unwrap())), expected, "{cpu:?}");
        }
        assert_eq!(shares(Some("10000".parse().unwrap())), 262_144);
    }

    #[test]
    fn what_a_pod_gets() {
        let one = |resources: &str| format!(r#"{{"name": "c", "resources": {resources}}}"#);
        let check = |spec: String, expected: (i64, Option<i64>, Option<i64>)| {
            let got = of_pod(pod(&spec).spec(), Cfs::default());
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
        let limits = |shares, quota, memory| PodLimits { shares, quota, memory, ..Default::default() };
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
        let cfs = Cfs { period: 20_000, ..Cfs::default() };
        let wanted = Limits::wanted(desired.spec(), &desired.spec().containers[0], cfs);
        assert_eq!((wanted.requested_milli(), cfs.milli(wanted.quota), wanted.memory), (250, 500, GIB));
        assert_eq!(Limits::told(&LinuxContainerResources::default(), cfs), None);
        let told = LinuxContainerResources { cpu_shares: 256, cpu_quota: -1, ..Default::default() };
        assert_eq!(Limits::told(&told, cfs), Some(Limits { shares: 256, quota: 0, memory: 0 }));
        let earlier = LinuxContainerResources { cpu_quota: 50_000, cpu_period: 100_000, ..told };
        assert_eq!(Limits::told(&earlier, cfs), Some(Limits { shares: 256, quota: 10_000, memory: 0 }));
        let free = Cfs { enforced: false, ..cfs };
        assert_eq!(Limits::wanted(desired.spec(), &desired.spec().containers[0], free).quota, 0);
        assert_eq!((Limits::told(&earlier, free).unwrap().quota, of_pod(desired.spec(), free).quota), (0, None));
    }

    #[test]
    fn classes_weigh_what_their_pods_request() {
        let with = |resources: &str| pod(&format!(r#"{{"containers": [{{"name": "c", "resources": {resources}}}]}}"#));
        let burstable = with(r#"{"requests": {"cpu": "500m"}}"#);
        let guaranteed = with(r#"{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}"#);
        let pods = [&*burstable.pod, &*burstable.pod, &*guaranteed.pod, &*with("{}").pod];
        let all = PodLimits { shares: 4096, memory: Some(9), pids: Some(8), ..Default::default() };
        let got = weights(pods.into_iter(), all, false);
        let shares = got.map(|(class, limits)| (class, limits.shares, limits.kept));
        assert_eq!(shares, [("Guaranteed", 4096, None), ("Burstable", 1024, None), ("BestEffort", 2, None)]);
        assert_eq!((got[0].1.memory, got[1].1.memory, got[0].1.pids), (Some(9), None, Some(8)));
        let asks = with(r#"{"requests": {"memory": "3"}}"#);
        let pods = [&*asks.pod, &*guaranteed.pod];
        let kept = weights(pods.into_iter(), all, true).map(|(_, limits)| limits.kept);
        assert_eq!(kept, [Some(4), Some(3), None]);
    }
}
