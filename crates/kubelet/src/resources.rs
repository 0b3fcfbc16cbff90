//! Requests and limits as the kernel takes them.

use api::{
    pod::{self, Resources},
    quantity::{Quantity, parse},
};
use k8s_cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, PodSpec};

const PERIOD: i64 = 100_000;

/// cpu.shares of a request: at least 2, the kernel's least.
pub fn shares(cpu: Option<Quantity>) -> i64 {
    (cpu.map_or(0, Quantity::milli_value) * 1024 / 1000).clamp(2, 262_144)
}

/// cpu.cfs_quota_us of a limit, for a period of 100 ms; 0 is none.
pub fn quota(cpu: Option<Quantity>) -> i64 {
    match cpu.map_or(0, Quantity::milli_value) {
        0 => 0,
        milli => (milli * PERIOD / 1000).max(1000),
    }
}

/// How soon the kernel kills the process when memory runs out (-997 to 1000), as upstream grades it.
pub fn oom_score(spec: &PodSpec, container: &Container, node_memory: i64) -> i64 {
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

/// A limit holds for the Pod only when each of its containers has one.
pub fn of_pod(spec: &PodSpec) -> PodLimits {
    let (requests, limits): (Resources, Resources) = (pod::requests(spec), pod::limits(spec));
    let all = |name: &str| {
        spec.containers.iter().all(|c| {
            let limits = c.resources.as_ref().and_then(|r| r.limits.as_ref());
            limits.is_some_and(|l| l.contains_key(name))
        })
    };
    let limit = |name: &str| limits.get(name).copied().filter(|_| all(name));
    PodLimits {
        shares: shares(requests.get("cpu").copied()),
        quota: limit("cpu").map(|q| quota(Some(q))).filter(|q| *q > 0),
        memory: limit("memory").map(Quantity::value).filter(|m| *m > 0),
    }
}
