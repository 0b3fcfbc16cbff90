//! The status of a Pod, from what is wanted, what runs and what the worker has learnt. Pure.

use api::pod::is_sidecar;
use clock::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::{
    decide::{self, Memory},
    running::{Ran, Running, State},
    wanted::Wanted,
};

fn terminated(ran: &Ran, memory: &Memory) -> ContainerStateTerminated {
    let reason = match ran.reason.as_str() {
        "" if ran.exit_code == 0 => "Completed",
        "" => "Error",
        other => other,
    };
    let message = memory.messages.get(&ran.id).cloned().filter(|m| !m.is_empty());
    ContainerStateTerminated {
        container_id: Some(format!("containerd://{}", ran.id)),
        exit_code: ran.exit_code,
        reason: Some(reason.to_owned()),
        message: message.or_else(|| Some(ran.message.clone()).filter(|m| !m.is_empty())),
        started_at: ran.started_at.map(Time),
        finished_at: ran.finished_at.map(Time),
        ..Default::default()
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let message = Some(message.to_owned()).filter(|m| !m.is_empty());
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

fn of_container(wanted: &Wanted, container: &Container, running: &Running, memory: &Memory) -> ContainerStatus {
    let init = wanted.init_containers().iter().any(|c| c.name == container.name);
    let mut history = running.containers.iter().filter(|c| c.name == container.name && c.state != State::Created);
    let latest = history.next();
    let before = history.next();
    let blank = if !init && !wanted.init_containers().is_empty() { "PodInitializing" } else { "ContainerCreating" };
    let reason = memory.waiting.get(&container.name);
    let mut last = before.map(|r| terminated(r, memory));
    let state = match latest {
        Some(ran) if ran.state == State::Running => {
            let running = ContainerStateRunning { started_at: ran.started_at.map(Time) };
            ContainerState { running: Some(running), ..Default::default() }
        }
        Some(ran) => match reason {
            Some((reason, message)) if !wanted.is_ending() && decide::restarts(wanted, container, ran.exit_code) => {
                last = Some(terminated(ran, memory));
                waiting(reason, message)
            }
            _ => ContainerState { terminated: Some(terminated(ran, memory)), ..Default::default() },
        },
        None => match reason {
            Some((reason, message)) => waiting(reason, message),
            None => waiting(blank, ""),
        },
    };
    let up = latest.filter(|r| r.state == State::Running);
    let done = latest.is_some_and(|r| r.state == State::Exited && r.exit_code == 0);
    let ready = match up {
        Some(ran) => memory.ready.contains(&ran.id),
        None => init && !is_sidecar(container) && done,
    };
    let started = up.map(|r| memory.started.contains(&r.id)).unwrap_or(false);
    let image = container.image.clone().unwrap_or_default();
    ContainerStatus {
        name: container.name.clone(),
        container_id: latest.map(|r| format!("containerd://{}", r.id)),
        image: latest.map(|r| r.image.clone()).filter(|i| !i.is_empty()).unwrap_or(image),
        image_id: latest.map(|r| r.image_ref.clone()).unwrap_or_default(),
        restart_count: latest.map_or(0, |r| r.restarts),
        last_state: Some(ContainerState { terminated: last, ..Default::default() }),
        state: Some(state),
        ready,
        started: Some(started),
        ..Default::default()
    }
}

fn phase(wanted: &Wanted, inits: &[ContainerStatus], mains: &[ContainerStatus], memory: &Memory) -> &'static str {
    if memory.failed.is_some() {
        return "Failed";
    }
    let state = |s: &ContainerStatus| s.state.clone().unwrap_or_default();
    for (container, status) in wanted.init_containers().iter().zip(inits) {
        if let (Some(end), false) = (state(status).terminated, is_sidecar(container))
            && end.exit_code != 0
        {
            return if wanted.restart_policy() == "Never" { "Failed" } else { "Pending" };
        }
    }
    let ended = |s: &ContainerStatus| {
        state(s)
            .terminated
            .or_else(|| s.last_state.clone().and_then(|l| l.terminated).filter(|_| state(s).running.is_none()))
    };
    if mains.iter().any(|s| state(s).running.is_none() && ended(s).is_none()) {
        return "Pending";
    }
    if mains.iter().any(|s| state(s).running.is_some()) {
        return "Running";
    }
    let ends: Vec<_> = mains.iter().filter_map(ended).collect();
    let all_well = ends.iter().all(|e| e.exit_code == 0);
    match wanted.restart_policy() {
        "Always" if !wanted.is_ending() => "Running",
        "OnFailure" if !all_well && !wanted.is_ending() => "Running",
        _ if all_well => "Succeeded",
        _ => "Failed",
    }
}

/// What the node adds to each status.
pub struct Place<'a> {
    pub host_ip: &'a str,
    pub now: Timestamp,
    /// The status that was reported before: times of conditions that have not changed are kept.
    pub before: &'a PodStatus,
}

pub fn status(wanted: &Wanted, running: &Running, memory: &Memory, place: &Place<'_>) -> PodStatus {
    let spec = wanted.spec();
    let of = |list: &[Container]| -> Vec<ContainerStatus> {
        list.iter().map(|c| of_container(wanted, c, running, memory)).collect()
    };
    let (inits, mains) = (of(wanted.init_containers()), of(&spec.containers));
    let phase = phase(wanted, &inits, &mains, memory);
    let mut ips = running.sandbox().map(|s| s.ips.clone()).unwrap_or_default();
    if wanted.host_network() && running.sandbox().is_some() {
        ips = vec![place.host_ip.to_owned()];
    }
    if ips.is_empty() {
        ips = place.before.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    let ephemeral = place.before.ephemeral_container_statuses.clone();
    let start = place.before.start_time.clone().unwrap_or(Time(place.now));
    let conditions = conditions(wanted, running, memory, phase, &inits, &mains, place);
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: memory.failed.as_ref().map(|f| f.0.clone()),
        message: memory.failed.as_ref().map(|f| f.1.clone()),
        host_ip: Some(place.host_ip.to_owned()),
        host_ips: Some(vec![HostIP { ip: place.host_ip.to_owned() }]),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| PodIP { ip }).collect()).filter(|l: &Vec<_>| !l.is_empty()),
        start_time: Some(start),
        qos_class: Some(api::pod::qos(&wanted.pod).to_owned()),
        observed_generation: wanted.pod.metadata.generation,
        init_container_statuses: Some(inits).filter(|l| !l.is_empty()),
        container_statuses: Some(mains),
        ephemeral_container_statuses: ephemeral,
        conditions: Some(conditions),
        ..Default::default()
    }
}

fn conditions(
    wanted: &Wanted,
    running: &Running,
    memory: &Memory,
    phase: &str,
    inits: &[ContainerStatus],
    mains: &[ContainerStatus],
    place: &Place<'_>,
) -> Vec<PodCondition> {
    let unmet = |list: Vec<&str>, what: &str| format!("containers with {what} status: [{}]", list.join(" "));
    let uninitialized: Vec<&str> = wanted
        .init_containers()
        .iter()
        .zip(inits)
        .filter(|(c, s)| if is_sidecar(c) { s.started != Some(true) } else { !s.ready })
        .map(|(c, _)| c.name.as_str())
        .collect();
    let unready: Vec<&str> = wanted
        .init_containers()
        .iter()
        .zip(inits)
        .filter(|(c, _)| is_sidecar(c))
        .map(|(_, s)| s)
        .chain(mains)
        .filter(|s| !s.ready)
        .map(|s| s.name.as_str())
        .collect();
    let has_sandbox = running.sandbox().is_some_and(|s| wanted.host_network() || !s.ips.is_empty());
    let initialized =
        phase == "Succeeded" || uninitialized.is_empty() || decide::is_initialized(wanted, running, memory);
    let containers: Result<(), (&str, String)> = match phase {
        "Succeeded" => Err(("PodCompleted", String::new())),
        "Failed" => Err(("PodFailed", String::new())),
        _ if unready.is_empty() => Ok(()),
        _ => Err(("ContainersNotReady", unmet(unready, "unready"))),
    };
    let gates = wanted.spec().readiness_gates.iter().flatten().find_map(|gate| {
        let kind = &gate.condition_type;
        match api::pod::condition(&wanted.pod, kind) {
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
    let make = |(kind, state): (&str, Result<(), (&str, String)>)| {
        // A Pod that has completed was initialized, although a reason is given.
        let truth = state.is_ok() || kind == "Initialized" && phase == "Succeeded";
        let text = if truth { "True" } else { "False" };
        let (reason, message) = state.err().unwrap_or_default();
        let before = place.before.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == text);
        PodCondition {
            type_: kind.to_owned(),
            status: text.to_owned(),
            reason: Some(reason.to_owned()).filter(|r| !r.is_empty()),
            message: Some(message).filter(|m| !m.is_empty()),
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(place.now))),
            observed_generation: wanted.pod.metadata.generation,
            ..Default::default()
        }
    };
    list.into_iter().map(make).collect()
}
