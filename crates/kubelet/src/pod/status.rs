//! The status of a Pod, from what is desired, what runs and what the worker has learnt. Pure.

use api::rules::pod::is_sidecar;
use clock::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, PodCondition, PodIP, PodStatus, VolumeMount, VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::pod::{
    decide,
    desired::DesiredPod,
    memory::Memory,
    running::{ContainerRun, RunningPod, State},
};

/// A container's id as the API shows it.
fn container_id(place: &Place<'_>, ran: &ContainerRun) -> Option<String> {
    Some(format!("{}://{}", place.engine, ran.id))
}

fn terminated(ran: &ContainerRun, memory: &Memory, place: &Place<'_>) -> ContainerStateTerminated {
    let reason = match ran.reason.as_str() {
        "" if ran.exit_code == 0 => "Completed",
        "" => "Error",
        other => other,
    };
    let message = memory.run(&ran.id).message.clone().filter(|m| !m.is_empty());
    ContainerStateTerminated {
        container_id: container_id(place, ran),
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

/// What is known of a container whose last run the engine no longer has: as it was reported, an unseen end included.
fn from_report(reported: Option<&ContainerStatus>, ending: bool) -> (i32, Option<ContainerStateTerminated>) {
    let Some(reported) = reported else { return (0, None) };
    let last = reported.last_state.as_ref().and_then(|s| s.terminated.clone());
    let was_running = reported.state.as_ref().is_some_and(|s| s.running.is_some());
    if !was_running || last.is_some() {
        return (reported.restart_count, last);
    }
    let lost = ContainerStateTerminated {
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some(LOST.to_owned()),
        exit_code: 137,
        ..Default::default()
    };
    (reported.restart_count + i32::from(!ending), Some(lost))
}

/// Upstream's words.
const LOST: &str = "The container could not be located when the pod was deleted.  The container used to be Running";

fn of_container(
    desired: &DesiredPod,
    container: &Container,
    running: &RunningPod,
    memory: &Memory,
    place: &Place<'_>,
    reported: Option<&ContainerStatus>,
) -> ContainerStatus {
    let init = desired.init_containers().iter().any(|c| c.name == container.name);
    let mut history = running.containers.iter().filter(|c| c.name == container.name && c.state != State::Created);
    let latest = history.next();
    let before = history.next();
    let blank = if !init && !desired.init_containers().is_empty() { "PodInitializing" } else { "ContainerCreating" };
    let reason = memory.container(&container.name).waiting.as_ref();
    // Of the runs before the last one, the engine keeps none for long.
    let remembered = reported.and_then(|r| r.last_state.as_ref()?.terminated.clone());
    let mut last = before.map(|r| terminated(r, memory, place)).or(remembered.filter(|_| latest.is_some()));
    let mut restarts = latest.map_or(0, |r| r.restarts);
    if latest.is_none() {
        if let Some(ended) = reported.filter(|r| r.state.as_ref().is_some_and(|s| s.terminated.is_some())) {
            return ended.clone();
        }
        (restarts, last) = from_report(reported, desired.is_ending());
    }
    let state = match latest {
        Some(ran) if ran.state == State::Running => {
            let running = ContainerStateRunning { started_at: ran.started_at.map(Time) };
            ContainerState { running: Some(running), ..Default::default() }
        }
        Some(ran) => match reason {
            Some(why) if !desired.is_ending() && desired.restarts(container, ran.exit_code) => {
                last = Some(terminated(ran, memory, place));
                waiting(&why.reason, &why.message)
            }
            _ => ContainerState { terminated: Some(terminated(ran, memory, place)), ..Default::default() },
        },
        None => match reason {
            Some(why) => waiting(&why.reason, &why.message),
            None => waiting(blank, ""),
        },
    };
    let up = latest.filter(|r| r.state == State::Running);
    let done = latest.is_some_and(|r| r.state == State::Exited && r.exit_code == 0);
    let ready = match up {
        Some(ran) => memory.run(&ran.id).ready,
        None => init && !is_sidecar(container) && done,
    };
    let started = up.is_some_and(|r| memory.run(&r.id).started);
    let image = container.image.clone().unwrap_or_default();
    ContainerStatus {
        name: container.name.clone(),
        container_id: latest.and_then(|r| container_id(place, r)),
        image: latest.map(|r| r.image.clone()).filter(|i| !i.is_empty()).unwrap_or(image),
        image_id: latest.map(|r| r.image_ref.clone()).unwrap_or_default(),
        restart_count: restarts,
        last_state: Some(ContainerState { terminated: last, ..Default::default() }),
        state: Some(state),
        ready,
        started: Some(started),
        allocated_resources: container.resources.as_ref().and_then(|r| r.requests.clone()),
        resources: Some(container.resources.clone().unwrap_or_default()),
        volume_mounts: mounts(container),
        ..Default::default()
    }
}

/// Where a container sees its volumes. What is mounted inside a read-only one is not read-only itself.
fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|yes| *yes),
        recursive_read_only: mount.read_only.filter(|yes| *yes).map(|_| "Disabled".to_owned()),
    };
    container.volume_mounts.as_ref().filter(|l| !l.is_empty()).map(|list| list.iter().map(one).collect())
}

fn phase(desired: &DesiredPod, inits: &[ContainerStatus], mains: &[ContainerStatus], memory: &Memory) -> &'static str {
    if memory.life.failure().is_some() {
        return "Failed";
    }
    let state = |s: &ContainerStatus| s.state.clone().unwrap_or_default();
    for (container, status) in desired.init_containers().iter().zip(inits) {
        if let (Some(end), false) = (state(status).terminated, is_sidecar(container))
            && end.exit_code != 0
        {
            return if desired.restart_policy() == "Never" { "Failed" } else { "Pending" };
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
    match desired.restart_policy() {
        "Always" if !desired.is_ending() => "Running",
        "OnFailure" if !all_well && !desired.is_ending() => "Running",
        _ if all_well => "Succeeded",
        _ => "Failed",
    }
}

/// What the node adds to each status.
pub struct Place<'a> {
    /// What the engine calls itself.
    pub engine: &'a str,
    pub host_ip: &'a str,
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
    let phase = phase(desired, &inits, &mains, memory);
    let mut ips = running.sandbox().map(|s| s.ips.clone()).unwrap_or_default();
    if desired.host_network() && running.sandbox().is_some() {
        ips = vec![place.host_ip.to_owned()];
    }
    if ips.is_empty() {
        ips = place.before.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    let mut ephemeral = of(desired.ephemeral_containers(), &place.before.ephemeral_container_statuses);
    // Readiness does not wait for them.
    for status in &mut ephemeral {
        (status.ready, status.started, status.resources) = (false, None, None);
    }
    let (failure, is_refused) = (memory.life.failure(), memory.life.is_refused());
    let start = place.before.start_time.clone().unwrap_or(Time(place.now));
    let conditions = conditions(desired, running, memory, phase, &inits, &mains, place);
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: failure.map(|f| f.reason.clone()),
        message: failure.map(|f| f.message.clone()),
        host_ip: Some(place.host_ip.to_owned()),
        host_ips: Some(vec![HostIP { ip: place.host_ip.to_owned() }]),
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

fn conditions(
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
    let evicted = memory.life.failure().filter(|_| memory.life.is_evicted()).map(|failure| {
        let before = place.before.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget");
        PodCondition {
            type_: "DisruptionTarget".to_owned(),
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
        let (reason, message) = state.err().unwrap_or_default();
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
    list.into_iter().map(make).chain(evicted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{
        fixture::{now, pod, running},
        memory::{Cause, End, Life, RunRecord},
    };
    use serde_json::{Value, json};

    const SPEC: &str = r#"{"restartPolicy": "POLICY",
        "initContainers": [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}],
        "containers": [{"name": "m", "image": "x"}, {"name": "n", "image": "x"}]}"#;

    fn desired(policy: &str) -> DesiredPod {
        pod(&SPEC.replace("POLICY", policy))
    }

    /// The status with everything started and ready that runs.
    fn of(desired: &DesiredPod, text: &str, change: impl FnOnce(&mut Memory)) -> PodStatus {
        after(desired, text, &PodStatus::default(), change)
    }

    fn after(desired: &DesiredPod, text: &str, before: &PodStatus, change: impl FnOnce(&mut Memory)) -> PodStatus {
        let found = running(desired, text);
        let mut memory = Memory::default();
        for ran in found.alive() {
            *memory.run_mut(&ran.id) = RunRecord { started: true, ready: true, ..Default::default() };
        }
        change(&mut memory);
        status(desired, &found, &memory, &Place { engine: "fake", host_ip: "1.2.3.4", now: now(), before })
    }

    #[test]
    fn phases() {
        for (policy, text, expected) in [
            ("Always", "nothing", "Pending"),
            ("Always", "i:up", "Pending"),
            ("Always", "i:1", "Pending"),
            ("Never", "i:1", "Failed"),
            ("OnFailure", "i:1", "Pending"),
            ("Always", "i:0 s:up", "Pending"),
            ("Always", "i:0 s:up m:up", "Pending"),
            ("Always", "i:0 s:up m:up n:up", "Running"),
            ("Always", "i:0 s:up m:1 n:1", "Running"),
            ("OnFailure", "i:0 s:up m:0 n:1", "Running"),
            ("OnFailure", "i:0 s:0 m:0 n:0", "Succeeded"),
            ("Never", "i:0 s:up m:0 n:up", "Running"),
            ("Never", "i:0 s:0 m:0 n:0", "Succeeded"),
            ("Never", "i:0 s:0 m:0 n:1", "Failed"),
            // How a sidecar ended does not count.
            ("Never", "i:0 s:137 m:0 n:0", "Succeeded"),
        ] {
            let got = of(&desired(policy), text, |_| ());
            assert_eq!(got.phase.as_deref(), Some(expected), "{policy}: {text}");
        }
    }

    fn conditions_of(status: &PodStatus) -> Vec<String> {
        let text = |c: &PodCondition| {
            let (reason, message) = (c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default());
            format!("{}={} {reason} {message}", c.type_, c.status).trim_end().to_owned()
        };
        let all = status.conditions.iter().flatten();
        all.filter(|c| !matches!(c.type_.as_str(), "PodScheduled" | "PodReadyToStartContainers")).map(text).collect()
    }

    #[test]
    fn conditions_name_who_is_missing() {
        let unready = "ContainersNotReady containers with unready status:";
        let check = |policy: &str, text: &str, initialized: &str, ready: &str| {
            let expected =
                [format!("Initialized={initialized}"), format!("Ready={ready}"), format!("ContainersReady={ready}")];
            assert_eq!(conditions_of(&of(&desired(policy), text, |_| ())), expected, "{policy}: {text}");
        };
        let incomplete = "ContainersNotInitialized containers with incomplete status:";
        check("Always", "", &format!("False {incomplete} [i s]"), &format!("False {unready} [s m n]"));
        check("Always", "i:0", &format!("False {incomplete} [s]"), &format!("False {unready} [s m n]"));
        check("Always", "i:0 s:up", "True", &format!("False {unready} [m n]"));
        check("Always", "i:0 s:up m:up n:1", "True", &format!("False {unready} [n]"));
        check("Always", "i:0 s:up m:up n:up", "True", "True");
        check("Never", "i:0 s:0 m:0 n:0", "True PodCompleted", "False PodCompleted");
        check("Never", "i:0 s:0 m:0 n:1", "True", "False PodFailed");
    }

    #[test]
    fn readiness_gates_hold_back_the_pod_alone() {
        let gated = |conditions: Value| {
            crate::pod::fixture::pod_of(json!({
                "spec": {"containers": [{"name": "m"}], "readinessGates": [{"conditionType": "a.io/lb"}]},
                "status": {"conditions": conditions},
            }))
        };
        for (conditions, expected) in [
            (
                json!([]),
                "Ready=False ReadinessGatesNotReady corresponding condition of pod readiness gate \"a.io/lb\" does not exist.",
            ),
            (
                json!([{"type": "a.io/lb", "status": "False"}]),
                "Ready=False ReadinessGatesNotReady the status of pod readiness gate \"a.io/lb\" is not \"True\", but False",
            ),
            (json!([{"type": "a.io/lb", "status": "True"}]), "Ready=True"),
        ] {
            let got = conditions_of(&of(&gated(conditions), "m:up", |_| ()));
            assert_eq!(got[1..], [expected.to_owned(), "ContainersReady=True".to_owned()]);
        }
    }

    fn state(status: &PodStatus, name: &str) -> Value {
        let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let found = all.into_iter().find(|s| s.name == name).unwrap();
        let text = |s: &Option<ContainerState>| {
            let s = s.clone().unwrap_or_default();
            match (s.waiting, s.terminated) {
                (Some(w), _) => format!("waiting {}", w.reason.unwrap_or_default()),
                (_, Some(t)) => format!("{} {}", t.reason.unwrap_or_default(), t.exit_code),
                _ if s.running.is_some() => "running".to_owned(),
                _ => String::new(),
            }
        };
        json!([text(&found.state), text(&found.last_state), found.restart_count, found.ready, found.started])
    }

    #[test]
    fn states_of_containers() {
        let desired = desired("Always");
        let crashing = |m: &mut Memory| {
            m.container_mut("m").waiting = Some(Cause::new("CrashLoopBackOff", ""));
        };
        let waiting = |reason: &str| json!([format!("waiting {reason}"), "", 0, false, false]);
        assert_eq!(state(&of(&desired, "", |_| ()), "i"), waiting("ContainerCreating"));
        assert_eq!(state(&of(&desired, "i:up", |_| ()), "m"), waiting("PodInitializing"));
        assert_eq!(state(&of(&desired, "i:0", |_| ()), "i"), json!(["Completed 0", "", 0, true, false]));
        assert_eq!(state(&of(&desired, "i:0 s:up m:1", |_| ()), "m"), json!(["Error 1", "", 0, false, false]));
        let crashed = of(&desired, "i:0 s:up m:1 m:2", crashing);
        assert_eq!(state(&crashed, "m"), json!(["waiting CrashLoopBackOff", "Error 2", 1, false, false]));
        let again = of(&desired, "i:0 s:up m:1 m:up", |_| ());
        assert_eq!(state(&again, "m"), json!(["running", "Error 1", 1, true, true]));
        let probed = of(&desired, "i:0 s:up m:up", |m| m.run_mut("m2").ready = false);
        assert_eq!(state(&probed, "m"), json!(["running", "", 0, false, true]));
    }

    #[test]
    fn a_container_shows_what_it_has() {
        let desired = pod(
            r#"{"containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "r", "mountPath": "/r", "readOnly": true}]}]}"#,
        );
        let status = of(&desired, "m:up", |_| ()).container_statuses.unwrap().remove(0);
        let shown = serde_json::to_value(status).unwrap();
        assert_eq!(shown["containerID"], "fake://m0");
        assert_eq!(shown["allocatedResources"], json!({"cpu": "1"}));
        assert_eq!(shown["resources"], json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}));
        let read_only = json!({"name": "r", "mountPath": "/r", "readOnly": true, "recursiveReadOnly": "Disabled"});
        assert_eq!(shown["volumeMounts"], json!([{"name": "v", "mountPath": "/v"}, read_only]));
    }

    #[test]
    fn what_the_engine_has_forgotten_is_taken_from_the_last_report() {
        let desired = desired("OnFailure");
        let before = of(&desired, "i:0 s:up m:1 m:up n:0", |_| ());
        // The first run is removed when the second has ended.
        let mut found = running(&desired, "i:0 s:0 m:0 n:0");
        found.containers.iter_mut().find(|c| c.name == "m").unwrap().restarts = 1;
        let place = Place { engine: "fake", host_ip: "", now: now(), before: &before };
        let ended = status(&desired, &found, &Memory::default(), &place);
        assert_eq!(state(&ended, "m"), json!(["Completed 0", "Error 1", 1, false, false]));
        // An engine that lost everything: ends that were reported stay, the others are unknown.
        let lost = after(&desired, "nothing", &before, |_| ());
        assert_eq!(state(&lost, "n"), json!(["Completed 0", "", 0, false, false]));
        assert_eq!(
            state(&lost, "s"),
            json!(["waiting ContainerCreating", "ContainerStatusUnknown 137", 1, false, false])
        );
    }

    #[test]
    fn a_pod_that_was_not_let_in_has_a_reason_and_no_containers() {
        let refused = of(&desired("Always"), "nothing", |m| {
            m.life = Life::Ending(End::Refused(Cause::new("OutOfcpu", "Pod was rejected: no")));
        });
        assert_eq!(refused.phase.as_deref(), Some("Failed"));
        assert_eq!(
            (refused.reason.as_deref(), refused.message.as_deref()),
            (Some("OutOfcpu"), Some("Pod was rejected: no"))
        );
        assert_eq!((refused.container_statuses, refused.init_container_statuses), (None, None));
        let late = of(&desired("Always"), "i:0 s:0 m:137 n:137", |m| {
            m.life = Life::Ending(End::Late(Cause::new("DeadlineExceeded", "late")));
        });
        assert_eq!(late.phase.as_deref(), Some("Failed"));
        assert_eq!(late.container_statuses.unwrap().len(), 2);
    }

    #[test]
    fn an_evicted_pod_says_who_disrupted_it() {
        let evicted = of(&desired("Always"), "i:0 s:137 m:137 n:137", |m| {
            m.life = Life::Ending(End::Evicted(Cause::new("Evicted", "The node was low on resource: memory. ")));
        });
        assert_eq!((evicted.phase.as_deref(), evicted.reason.as_deref()), (Some("Failed"), Some("Evicted")));
        let last = conditions_of(&evicted).pop().unwrap();
        assert_eq!(last, "DisruptionTarget=True TerminationByKubelet The node was low on resource: memory.");
    }

    #[test]
    fn a_debugging_container_has_a_status_and_keeps_nothing_from_being_ready() {
        let desired = pod(
            r#"{"containers": [{"name": "m"}], "ephemeralContainers": [{"name": "e", "targetContainerName": "m"}]}"#,
        );
        let got = of(&desired, "m:up e:1", |_| ());
        assert_eq!(got.phase.as_deref(), Some("Running"));
        assert_eq!(conditions_of(&got)[1], "Ready=True");
        let status = &got.ephemeral_container_statuses.unwrap()[0];
        assert_eq!(status.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
        assert_eq!((status.ready, status.started), (false, None));
    }

    #[test]
    fn a_condition_keeps_its_time_as_long_as_it_holds() {
        let desired = desired("Always");
        let mut before = of(&desired, "i:0 s:up m:up n:up", |_| ());
        let early = Time(Timestamp::from_second(5).unwrap());
        before.conditions.iter_mut().flatten().for_each(|c| c.last_transition_time = Some(early.clone()));
        let times = |status: PodStatus, kind: &str| {
            let all = status.conditions.unwrap();
            all.into_iter().find(|c| c.type_ == kind).unwrap().last_transition_time.unwrap()
        };
        let unready = |m: &mut Memory| m.run_mut("m2").ready = false;
        assert_eq!(times(after(&desired, "i:0 s:up m:up n:up", &before, unready), "Initialized"), early);
        assert_eq!(times(after(&desired, "i:0 s:up m:up n:up", &before, unready), "Ready"), Time(now()));
    }
}
