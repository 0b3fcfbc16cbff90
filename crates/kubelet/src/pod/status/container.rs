//! The status of one container: its state now, its state before, and what it has.

use api::rules::pod::is_sidecar;
use clock::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, ContainerUser, VolumeMount, VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::Place;
use crate::pod::{
    desired::{DesiredPod, mount_path},
    memory::{Cause, Memory, Renewal},
    resize, restart,
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
        // One that never started ended at the beginning of time, as upstream has it.
        started_at: Some(Time(ran.started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
        finished_at: ran.finished_at.map(Time),
        ..Default::default()
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let message = Some(message.to_owned()).filter(|m| !m.is_empty());
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

/// The restarts and the last end of a container whose last run the engine no longer has: as they were reported, an
/// unseen end included.
fn from_report(reported: Option<&ContainerStatus>, ending: bool) -> (i32, Option<ContainerStateTerminated>) {
    let Some(reported) = reported else { return (0, None) };
    let of = |state: &Option<ContainerState>| state.as_ref().and_then(|s| s.terminated.clone());
    let last = of(&reported.state).or_else(|| of(&reported.last_state));
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

pub fn of_container(
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
    let blank = if desired.init_containers().is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let record = memory.container(&container.name);
    // The end of a container that starts with its new definition is no end of its work, which nobody could take back.
    let between = (record.renewal == Some(Renewal::Definition)).then(|| Cause::new(blank, ""));
    let reason = record.waiting.as_ref().or(between.as_ref());
    // Of the runs before the last one, the engine keeps none for long.
    let remembered = reported.and_then(|r| r.last_state.as_ref()?.terminated.clone());
    let mut last = before.map(|r| terminated(r, memory, place)).or(remembered.filter(|_| latest.is_some()));
    let mut restarts = latest.map_or(0, |r| r.restarts);
    if latest.is_none() {
        let ended = reported.filter(|r| r.state.as_ref().is_some_and(|s| s.terminated.is_some()));
        if let Some(ended) = ended.filter(|_| !record.is_anew) {
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
            Some(why)
                if !desired.is_ending()
                    && memory.life.end().is_none()
                    && restart::goes_on(desired, container, ran.exit_code, memory) =>
            {
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
    // The next kubelet counts on from it.
    let id_before = || reported.filter(|_| record.is_anew)?.container_id.clone();
    let up = latest.filter(|r| r.state == State::Running);
    let done = latest.is_some_and(|r| r.state == State::Exited && r.exit_code == 0);
    // Others wait for the end of an init container, not for its being up.
    let ready = match init && !is_sidecar(container) {
        true => done,
        false => up.is_some_and(|ran| memory.run(&ran.id).ready),
    };
    let started = up.is_some_and(|r| memory.run(&r.id).started);
    let image = container.image.clone().unwrap_or_default();
    ContainerStatus {
        name: container.name.clone(),
        container_id: latest.map_or_else(id_before, |r| container_id(place, r)),
        image: latest.map(|r| r.image.clone()).filter(|i| !i.is_empty()).unwrap_or(image),
        image_id: latest.map(|r| r.image_ref.clone()).unwrap_or_default(),
        restart_count: restarts,
        last_state: Some(ContainerState { terminated: last, ..Default::default() }),
        state: Some(state),
        ready,
        started: Some(started),
        allocated_resources: container.resources.as_ref().and_then(|r| r.requests.clone()),
        resources: Some(match up {
            Some(ran) => resize::in_force(desired, container, ran, memory),
            None => container.resources.clone().unwrap_or_default(),
        }),
        volume_mounts: mounts(container, latest),
        stop_signal: latest.and_then(|r| r.stop_signal.clone()),
        user: latest.and_then(|r| r.user.clone()).map(|user| ContainerUser { linux: Some(user) }),
        ..Default::default()
    }
}

/// Where a container sees its volumes. What is mounted inside a read-only one is read-only only where the engine was told so.
fn mounts(container: &Container, ran: Option<&ContainerRun>) -> Option<Vec<VolumeMountStatus>> {
    let below = |mount: &VolumeMount| ran.is_some_and(|ran| ran.read_only_below.contains(&*mount_path(mount)));
    let mode = |mount: &VolumeMount| if below(mount) { "Enabled" } else { "Disabled" };
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|yes| *yes),
        recursive_read_only: mount.read_only.filter(|yes| *yes).map(|_| mode(mount).to_owned()),
    };
    container.volume_mounts.as_ref().filter(|l| !l.is_empty()).map(|list| list.iter().map(one).collect())
}
