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

/// What the cgroup of a whole Pod gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodLimits {
    pub shares: i64,
    pub quota: Option<i64>,
    pub memory: Option<i64>,
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
    fn classes_weigh_what_their_pods_request() {
        let with = |resources: &str| pod(&format!(r#"{{"containers": [{{"name": "c", "resources": {resources}}}]}}"#));
        let burstable = with(r#"{"requests": {"cpu": "500m"}}"#);
        let guaranteed = with(r#"{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}"#);
        let pods = [&*burstable.pod, &*burstable.pod, &*guaranteed.pod, &*with("{}").pod];
        let shares = weights(pods.into_iter(), 4).map(|(class, limits)| (class, limits.shares));
        assert_eq!(shares, [("Guaranteed", 4096), ("Burstable", 1024), ("BestEffort", 2)]);
    }
}
