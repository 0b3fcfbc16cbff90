//! The difference between the resources that are allocated to running containers and those that they have, and the
//! amounts that they really have. Pure.
//! Upstream counterpart: computePodResizeAction in pkg/kubelet/kuberuntime.

use std::collections::BTreeMap;

use api::rules::quantity::{Format, Quantity, parse};
use k8s_openapi::{
    api::core::v1::{Container, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as Text,
};

use crate::pod::{
    allocation::resizable,
    desired::DesiredPod,
    memory::{Memory, Renewal},
    running::{ContainerRun, RunningPod, State},
    spec::resources::{self, Limits, PodLimits},
};

/// The change that gives a container the resources that are allocated to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The engine is told.
    Update,
    /// The container ends and starts anew, as its resize policy asks.
    Restart,
}

/// The memory that a container requests.
pub fn memory_request(container: &Container) -> Quantity {
    let request = container.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("memory"));
    request.map(parse).unwrap_or_default()
}

/// The limits of a run as far as the engine tells, or those that it was told and took.
pub fn actual(ran: &ContainerRun, memory: &Memory) -> Option<Limits> {
    ran.limits.or(memory.run(&ran.id).applied)
}

fn policy_restarts(container: &Container, resource: &str) -> bool {
    let policy = container.resize_policy.iter().flatten().find(|policy| policy.resource_name == resource);
    policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

/// The change that a run lacks. An engine that rounds what it is told has done its part when it has taken it.
fn change(desired: &DesiredPod, container: &Container, ran: &ContainerRun, memory: &Memory) -> Option<Change> {
    let (wanted, record) = (Limits::wanted(desired.spec(), container, memory.cfs), memory.run(&ran.id));
    let has = |part: fn(Limits) -> (i64, i64)| {
        let is = |limits: Option<Limits>| limits.is_some_and(|limits| part(limits) == part(wanted));
        is(ran.limits) || is(record.applied)
    };
    let cpu = has(|limits| (limits.shares, limits.quota));
    let limit = has(|limits| (limits.memory, 0));
    let request = record.memory_request.is_none_or(|held| held == memory_request(container));
    // Where nothing is known of what there is, nothing is known to change.
    let known = actual(ran, memory).is_some();
    let restarts = known && !cpu && policy_restarts(container, "cpu")
        || known && !(limit && request) && policy_restarts(container, "memory");
    match () {
        () if restarts => Some(Change::Restart),
        () if cpu && limit && request => None,
        () => Some(Change::Update),
    }
}

/// The running containers that lack something, those that give up memory first.
pub fn changes<'a>(
    desired: &'a DesiredPod,
    running: &'a RunningPod,
    memory: &Memory,
) -> Vec<(&'a Container, &'a ContainerRun, Change)> {
    let one = |container: &'a Container| {
        let ran = running.current(&container.name).filter(|ran| ran.state == State::Running)?;
        Some((container, ran, change(desired, container, ran, memory)?))
    };
    let mut found: Vec<_> = resizable(desired.spec()).filter_map(one).collect();
    found.sort_by_key(|(container, ran, _)| !shrinks(desired, container, ran, memory));
    found
}

/// Whether a container is to have a lower limit of memory than it has.
pub fn shrinks(desired: &DesiredPod, container: &Container, ran: &ContainerRun, memory: &Memory) -> bool {
    let wanted = Limits::wanted(desired.spec(), container, memory.cfs).memory;
    wanted > 0 && actual(ran, memory).is_some_and(|now| now.memory == 0 || now.memory > wanted)
}

/// Whether containers still lack something, or are about to start with it.
pub fn is_under_way(desired: &DesiredPod, running: &RunningPod, memory: &Memory) -> bool {
    let restarts = |c: &Container| memory.container(&c.name).renewal == Some(Renewal::Resources);
    let lags = whole_lags(desired, memory);
    lags || resizable(desired.spec()).any(restarts) || !changes(desired, running, memory).is_empty()
}

/// Whether the cgroup of a Pod that has resources as a whole does not have their limits yet. An engine's shares are not compared: the
/// kernel rounds them.
fn whole_lags(desired: &DesiredPod, memory: &Memory) -> bool {
    let wanted = resources::of_pod(desired.spec(), memory.cfs);
    let differs = |held: PodLimits| (held.quota, held.memory) != (wanted.quota, wanted.memory);
    desired.spec().resources.is_some() && memory.cgroup.is_some_and(differs)
}

/// Shows the resources of a Pod as a whole: those that are set aside for it, and those that it has, which stay as they were
/// `reported` until the kernel has the others.
pub fn show_whole(desired: &DesiredPod, memory: &Memory, reported: &PodStatus, status: &mut PodStatus) {
    let Some(allocated) = &desired.spec().resources else { return };
    status.allocated_resources.clone_from(&allocated.requests);
    let before = reported.resources.clone().filter(|_| whole_lags(desired, memory));
    status.resources = Some(before.unwrap_or_else(|| allocated.clone()));
}

/// The resources that a running container really has, in the words of its allocation where they mean the same.
pub fn in_force(
    desired: &DesiredPod,
    container: &Container,
    ran: &ContainerRun,
    memory: &Memory,
) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    let is_resizable = resizable(desired.spec()).any(|c| c.name == container.name);
    if !is_resizable || change(desired, container, ran, memory).is_none() {
        return resources;
    }
    let (wanted, cfs) = (Limits::wanted(desired.spec(), container, memory.cfs), memory.cfs);
    if let Some(request) = memory.run(&ran.id).memory_request {
        put(&mut resources.requests, "memory", request, request == memory_request(container));
    }
    if let Some(now) = actual(ran, memory) {
        let (requests, limits) = (&mut resources.requests, &mut resources.limits);
        // The least number of shares stands for a request of nothing, too.
        let request = if now.shares <= 2 { 0 } else { now.requested_milli() };
        put(requests, "cpu", Quantity::from_milli(request), now.shares == wanted.shares);
        // The limits of the whole Pod are not shown as the container's.
        let of_pod = desired.spec().resources.as_ref().and_then(|whole| whole.limits.as_ref());
        let is_own = |name: &str| {
            let mine = container.resources.as_ref().and_then(|r| r.limits.as_ref());
            mine.is_some_and(|list| list.contains_key(name)) || !of_pod.is_some_and(|list| list.contains_key(name))
        };
        let (cpu, memory) =
            (!is_own("cpu") || now.quota == wanted.quota, !is_own("memory") || now.memory == wanted.memory);
        put(limits, "cpu", Quantity::from_milli(cfs.milli(now.quota)), cpu);
        put(limits, "memory", Quantity::new(now.memory, Format::BinarySi), memory);
    }
    resources
}

/// Sets an amount that is not the one that is there; none of it is no entry.
fn put(list: &mut Option<BTreeMap<String, Text>>, name: &str, amount: Quantity, is_same: bool) {
    if is_same {
        return;
    }
    let entries = list.get_or_insert_default();
    if amount.is_zero() {
        entries.remove(name);
    } else {
        entries.insert(name.to_owned(), amount.into());
    }
    if entries.is_empty() {
        *list = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{pod, running};

    const HAS: Limits = Limits { shares: 1024, quota: 100_000, memory: 1 << 30 };

    fn check(policy: &str, requests: &str, limits: &str, applied: Option<Limits>, expected: (Option<Change>, &str)) {
        let policies = format!(
            r#"[{{"resourceName": "cpu", "restartPolicy": "{}"}}, {{"resourceName": "memory", "restartPolicy": "{}"}}]"#,
            if policy.contains("cpu") { "RestartContainer" } else { "NotRequired" },
            if policy.contains("memory") { "RestartContainer" } else { "NotRequired" },
        );
        let desired = pod(&format!(
            r#"{{"containers": [{{"name": "m", "resizePolicy": {policies},
                "resources": {{"requests": {requests}, "limits": {limits}}}}}]}}"#
        ));
        let mut runs = running(&desired, "m:up");
        runs.containers[0].limits = applied;
        let mut memory = Memory::default();
        memory.run_mut("m0").memory_request = Some("1Gi".parse().unwrap());
        let got = changes(&desired, &runs, &memory).first().map(|(_, _, change)| *change);
        let force = in_force(&desired, &desired.spec().containers[0], &runs.containers[0], &memory);
        let words = |list: Option<BTreeMap<String, Text>>| -> String {
            list.into_iter().flatten().map(|(name, amount)| format!("{name} {} ", amount.0)).collect()
        };
        let force = format!("{}| {}", words(force.requests), words(force.limits));
        assert_eq!((got, force.trim_end()), expected, "{policy}: {requests} {limits} {applied:?}");
    }

    #[test]
    fn a_container_is_told_or_restarted_and_shown_with_what_it_has() {
        let (one, gib) = (r#"{"cpu": "1", "memory": "1Gi"}"#, r#"{"cpu": "1000m", "memory": "1024Mi"}"#);
        check("", one, one, Some(HAS), (None, "cpu 1 memory 1Gi | cpu 1 memory 1Gi"));
        check("", gib, one, Some(HAS), (None, "cpu 1000m memory 1024Mi | cpu 1 memory 1Gi"));
        let (two, more) = (r#"{"cpu": "2", "memory": "1Gi"}"#, r#"{"cpu": "1", "memory": "2Gi"}"#);
        let had = "cpu 1 memory 1Gi | cpu 1 memory 1Gi";
        check("", two, two, Some(HAS), (Some(Change::Update), had));
        check("memory", two, two, Some(HAS), (Some(Change::Update), had));
        check("cpu", two, two, Some(HAS), (Some(Change::Restart), had));
        check("cpu", more, more, Some(HAS), (Some(Change::Update), had));
        check("memory", more, more, Some(HAS), (Some(Change::Restart), had));
        // A request of memory alone counts, though the engine never hears of it.
        check("memory", r#"{"cpu": "1", "memory": "512Mi"}"#, one, Some(HAS), (Some(Change::Restart), had));
        check("", r#"{"cpu": "1", "memory": "512Mi"}"#, one, Some(HAS), (Some(Change::Update), had));
        // A container that had no limits gets its first.
        let free = Limits { shares: 2, quota: 0, memory: 0 };
        check("", one, one, Some(free), (Some(Change::Update), "memory 1Gi |"));
        // An engine that tells nothing is told once more; nothing ends for it.
        check("cpu memory", one, one, None, (Some(Change::Update), had));
    }

    #[test]
    fn what_the_engine_took_is_not_told_again_and_memory_is_given_up_first() {
        let small = r#""resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}"#;
        let great = r#""resources": {"limits": {"memory": "3Gi"}, "requests": {"memory": "3Gi"}}"#;
        let desired = pod(&format!(
            r#"{{"initContainers": [{{"name": "i", {small}}}, {{"name": "s", "restartPolicy": "Always", {great}}}],
                "containers": [{{"name": "m", {small}}}, {{"name": "n", {great}}}]}}"#
        ));
        let mut runs = running(&desired, "i:0 s:up m:up n:up");
        runs.containers.iter_mut().for_each(|ran| ran.limits = Some(Limits { shares: 2, quota: 0, memory: 2 << 30 }));
        let names = |memory: &Memory| -> Vec<String> {
            changes(&desired, &runs, memory).iter().map(|(c, _, _)| c.name.clone()).collect()
        };
        let mut memory = Memory::default();
        assert_eq!(names(&memory), ["m", "s", "n"]);
        memory.run_mut("s1").applied = Some(Limits { shares: 2, quota: 0, memory: 3 << 30 });
        assert_eq!(names(&memory), ["m", "n"]);
        runs.containers.iter_mut().for_each(|ran| ran.state = State::Exited);
        assert_eq!(changes(&desired, &runs, &memory).len(), 0, "what does not run starts with what it is to have");
    }
}
