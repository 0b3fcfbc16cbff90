//! The conditions of a Pod, each with the reason why it does not hold.

use api::rules::pod::is_sidecar;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::Place;
use crate::pod::{decide, desired::DesiredPod, memory::Memory, resize, restart, running::RunningPod};

pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
pub const RESIZE_PENDING: &str = "PodResizePending";
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// The conditions about a change of the Pod's resources. Nothing is said when there is none.
fn resizes(desired: &DesiredPod, running: &RunningPod, memory: &Memory, place: &Place<'_>) -> Vec<PodCondition> {
    let make = |kind: &str, reason: Option<String>, message: Option<String>, generation: Option<i64>| {
        let before = place.before.conditions.iter().flatten().find(|c| c.type_ == kind);
        PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason,
            message,
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(place.now))),
            observed_generation: generation,
            ..Default::default()
        }
    };
    let mut found = Vec::new();
    if let Some(pending) = &desired.pending {
        let (reason, message) = (Some(pending.reason.to_owned()), Some(pending.message.clone()));
        found.push(make(RESIZE_PENDING, reason, message, pending.generation));
    }
    if memory.life.end().is_none() && resize::is_under_way(desired, running, memory) {
        let error = memory.resize.error.clone();
        let generation = desired.resized.or(desired.pod.metadata.generation);
        found.push(make(RESIZE_IN_PROGRESS, error.as_ref().map(|_| "Error".to_owned()), error, generation));
    }
    found
}

pub fn conditions(
    desired: &DesiredPod,
    running: &RunningPod,
    memory: &Memory,
    phase: &str,
    inits: &[ContainerStatus],
    mains: &[ContainerStatus],
    place: &Place<'_>,
) -> Vec<PodCondition> {
    let unmet = |list: Vec<&str>, what: &str| format!("containers with {what} status: [{}]", list.join(" "));
    let uninitialized: Vec<&str> = desired
        .init_containers()
        .iter()
        .zip(inits)
        .filter(|(c, s)| if is_sidecar(c) { s.started != Some(true) } else { !s.ready })
        .map(|(c, _)| c.name.as_str())
        .collect();
    let unready: Vec<&str> = desired
        .init_containers()
        .iter()
        .zip(inits)
        .filter(|(c, _)| is_sidecar(c))
        .map(|(_, s)| s)
        .chain(mains)
        .filter(|s| !s.ready)
        .map(|s| s.name.as_str())
        .collect();
    let has_sandbox = running.sandbox().is_some_and(|s| desired.host_network() || !s.ips.is_empty());
    let initialized =
        phase == "Succeeded" || uninitialized.is_empty() || decide::is_initialized(desired, running, memory);
    let containers: Result<(), (&str, String)> = match phase {
        "Succeeded" => Err(("PodCompleted", String::new())),
        "Failed" => Err(("PodFailed", String::new())),
        _ if unready.is_empty() => Ok(()),
        _ => Err(("ContainersNotReady", unmet(unready, "unready"))),
    };
    let gates = desired.spec().readiness_gates.iter().flatten().find_map(|gate| {
        let kind = &gate.condition_type;
        match api::rules::pod::condition(&desired.pod, kind) {
            None => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
            Some(c) if c.status != "True" => {
                Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", c.status))
            }
            _ => None,
        }
    });
    let ready = match (&containers, gates) {
        (Ok(()), Some(message)) => Err(("ReadinessGatesNotReady", message)),
        _ => containers.clone(),
    };
    let simple = |yes: bool| if yes { Ok(()) } else { Err(("", String::new())) };
    let init = match initialized {
        true if phase == "Succeeded" => Err(("PodCompleted", String::new())),
        true => Ok(()),
        false => Err(("ContainersNotInitialized", unmet(uninitialized, "incomplete"))),
    };
    let list = [
        ("PodReadyToStartContainers", simple(has_sandbox)),
        ("Initialized", init),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", Ok(())),
    ];
    let anew = match phase {
        "Succeeded" => Err(("PodCompleted", String::new())),
        "Failed" => Err(("PodFailed", String::new())),
        _ => simple(decide::begins_anew(desired, running, memory, place.now)),
    };
    let anew = restart::may_ask(desired).then_some(("AllContainersRestarting", anew));
    let evicted = memory.life.failure().filter(|_| memory.life.is_evicted()).map(|failure| {
        let before = place.before.conditions.iter().flatten().find(|c| c.type_ == DISRUPTION_TARGET);
        PodCondition {
            type_: DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(failure.message.clone()),
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(place.now))),
            observed_generation: desired.pod.metadata.generation,
            ..Default::default()
        }
    });
    let make = |(kind, state): (&str, Result<(), (&str, String)>)| {
        // A Pod that has completed was initialized, although a reason is given.
        let truth = state.is_ok() || kind == "Initialized" && phase == "Succeeded";
        let text = if truth { "True" } else { "False" };
        let (reason, message) = match state {
            Ok(()) if kind == "AllContainersRestarting" => {
                ("RestartAllContainersStarted", "container exited with restart policy rule".to_owned())
            }
            state => state.err().unwrap_or_default(),
        };
        let before = place.before.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == text);
        PodCondition {
            type_: kind.to_owned(),
            status: text.to_owned(),
            reason: Some(reason.to_owned()).filter(|r| !r.is_empty()),
            message: Some(message).filter(|m| !m.is_empty()),
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(place.now))),
            observed_generation: desired.pod.metadata.generation,
            ..Default::default()
        }
    };
    let resizes = resizes(desired, running, memory, place);
    // Upstream's order.
    resizes.into_iter().chain(evicted).chain(list.into_iter().chain(anew).map(make)).collect()
}
