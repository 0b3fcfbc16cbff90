//! The status of a Pod, from what is desired, what runs and what the worker has learnt. Pure.

pub mod conditions;
mod container;
mod last_words;
mod shown;

use api::rules::pod::is_sidecar;
use clock::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, HostIP, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

pub use self::shown::is_shown;
use self::{
    conditions::{DISRUPTION_TARGET, conditions},
    container::of_container,
};
use crate::pod::{decide, desired::DesiredPod, memory::Memory, restart, running::RunningPod};

/// `anew` is whether the Pod is about to begin anew.
fn phase(
    desired: &DesiredPod,
    (inits, mains): (&[ContainerStatus], &[ContainerStatus]),
    memory: &Memory,
    anew: bool,
) -> &'static str {
    if memory.life.failure().is_some() {
        return "Failed";
    }
    let state = |s: &ContainerStatus| s.state.clone().unwrap_or_default();
    for (container, status) in desired.init_containers().iter().zip(inits) {
        if let (Some(end), false) = (state(status).terminated, anew || is_sidecar(container))
            && end.exit_code != 0
        {
            return if restart::restarts(desired, container, end.exit_code) { "Pending" } else { "Failed" };
        }
    }
    // One that begins anew with its Pod counts as one that has never run.
    let last = |s: &ContainerStatus| s.last_state.clone().filter(|_| !memory.container(&s.name).is_anew)?.terminated;
    let ended = |s: &ContainerStatus| state(s).terminated.or_else(|| last(s).filter(|_| state(s).running.is_none()));
    if mains.iter().any(|s| state(s).running.is_none() && ended(s).is_none()) {
        return "Pending";
    }
    if mains.iter().any(|s| state(s).running.is_some()) {
        return "Running";
    }
    let ends = desired.spec().containers.iter().zip(mains).filter_map(|(c, s)| Some((c, ended(s)?.exit_code)));
    let again = |(c, code): (&Container, i32)| restart::goes_on(desired, c, code, memory);
    match () {
        () if !desired.is_ending() && (anew || ends.clone().any(again)) => "Running",
        () if ends.clone().all(|(_, code)| code == 0) => "Succeeded",
        () => "Failed",
    }
}

/// The node's part of each status.
pub struct Place<'a> {
    /// The engine's own name.
    pub engine: &'a str,
    /// The first is the one that counts where there is room for one.
    pub host_ips: &'a [String],
    pub now: Timestamp,
    /// The status that was reported before: times of conditions that have not changed are kept.
    pub before: &'a PodStatus,
}

pub fn status(desired: &DesiredPod, running: &RunningPod, memory: &Memory, place: &Place<'_>) -> PodStatus {
    let spec = desired.spec();
    let of = |list: &[Container], reported: &Option<Vec<ContainerStatus>>| -> Vec<ContainerStatus> {
        let reported = |name: &str| reported.iter().flatten().find(|s| s.name == name);
        list.iter().map(|c| of_container(desired, c, running, memory, place, reported(&c.name))).collect()
    };
    let inits = of(desired.init_containers(), &place.before.init_container_statuses);
    let mains = of(&spec.containers, &place.before.container_statuses);
    let anew = decide::begins_anew(desired, running, memory, place.now);
    let phase = phase(desired, (&inits, &mains), memory, anew);
    let mut ips = running.sandbox().map(|s| s.ips.clone()).unwrap_or_default();
    if desired.host_network() && running.sandbox().is_some() {
        ips = place.host_ips.to_vec();
    }
    if ips.is_empty() {
        ips = place.before.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    let mut ephemeral = of(desired.ephemeral_containers(), &place.before.ephemeral_container_statuses);
    // Readiness does not wait for them.
    for status in &mut ephemeral {
        (status.ready, status.started, status.resources) = (false, None, None);
    }
    let conditions = conditions(desired, running, memory, phase, &inits, &mains, place);
    let (mut inits, mut mains) = (inits, mains);
    if memory.life.is_settled() && !memory.life.is_refused() {
        last_words::give_up(desired.init_containers(), &mut inits, &mut mains);
    }
    last_words::shorten([&mut inits, &mut mains, &mut ephemeral]);
    // An earlier kubelet may have let it in.
    let (failure, is_refused) = (memory.life.failure(), memory.life.is_refused() && running.containers.is_empty());
    let start = place.before.start_time.clone().unwrap_or(Time(place.now));
    // One that went before it came to anything has failed.
    let is_given_up = memory.life.is_settled() && !desired.is_static && !api::rules::pod::is_terminal_phase(phase);
    PodStatus {
        phase: Some(if is_given_up { "Failed" } else { phase }.to_owned()),
        reason: failure.map(|f| f.reason.clone()),
        message: failure.map(|f| f.message.clone()),
        host_ip: place.host_ips.first().cloned(),
        host_ips: Some(place.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| PodIP { ip }).collect()).filter(|l: &Vec<_>| !l.is_empty()),
        start_time: Some(start),
        qos_class: Some(api::rules::pod::qos(&desired.pod).to_owned()),
        observed_generation: desired.pod.metadata.generation,
        init_container_statuses: Some(inits).filter(|l| !l.is_empty() && !is_refused),
        container_statuses: Some(mains).filter(|_| !is_refused),
        ephemeral_container_statuses: Some(ephemeral).filter(|l| !l.is_empty() && !is_refused),
        conditions: Some(conditions),
        ..Default::default()
    }
}

/// All work of the Pod is done, or has failed.
pub fn is_over(status: &PodStatus) -> bool {
    status.phase.as_deref().is_some_and(api::rules::pod::is_terminal_phase)
}

/// A Pod that still has something of the node which others may be given once it is over is not over yet: containers that run
/// (its sidecars end behind the others), or devices. Nor does it tell of a disruption before.
pub fn hold_back(fresh: &mut PodStatus, reported: &PodStatus) {
    if !is_over(fresh) {
        return;
    }
    fresh.phase = reported.phase.clone().or_else(|| Some("Running".to_owned()));
    fresh.reason.clone_from(&reported.reason);
    fresh.message.clone_from(&reported.message);
    let told = reported.conditions.iter().flatten().any(|condition| condition.type_ == DISRUPTION_TARGET);
    if let (false, Some(conditions)) = (told, &mut fresh.conditions) {
        conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
    }
}

#[cfg(test)]
mod tests;
