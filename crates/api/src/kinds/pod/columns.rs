//! The columns that `kubectl get pods` shows.

use std::collections::BTreeSet;

use jiff::Timestamp;
use json::Value;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus};

use crate::kind::{Column, age, col, name, wide};
use crate::{kind::cell, rules::pod};

pub const COLUMNS: &[Column<Pod>] = &[
    name(),
    col("Ready", "The aggregate readiness state of this pod for accepting traffic.", |p, _| {
        let summary = summarise(p);
        Value::from(format!("{}/{}", summary.ready, summary.total))
    }),
    col("Status", "The aggregate status of the containers in this pod.", |p, _| Value::from(summarise(p).reason)),
    col(
        "Restarts",
        "The number of times the containers in this pod have been restarted and when the last container in this pod has \
         restarted.",
        |p, now| Value::from(restarts(p, now)),
    ),
    age(),
    wide("IP", "The address of the Pod.", |p, _| {
        let first = status(p).and_then(|s| s.pod_ips.as_ref()).and_then(|l| l.first()).map(|ip| &ip.ip);
        cell::text_or(first.or_else(|| status(p).and_then(|s| s.pod_ip.as_ref())), "<none>")
    }),
    wide("Node", "The node that runs the Pod.", |p, _| {
        cell::text_or(spec(p).and_then(|s| s.node_name.as_ref()), "<none>")
    }),
    wide("Nominated Node", "The node where others make room for the Pod.", |p, _| {
        cell::text_or(status(p).and_then(|s| s.nominated_node_name.as_ref()), "<none>")
    }),
    wide("Readiness Gates", "How many of the conditions that others set are true.", |p, _| Value::from(gates(p))),
];

fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}

fn gates(pod: &Pod) -> String {
    let list = spec(pod).and_then(|s| s.readiness_gates.as_deref()).unwrap_or_default();
    if list.is_empty() {
        return "<none>".to_owned();
    }
    let held = |kind: &str| pod::condition(pod, kind).is_some_and(|c| c.status == "True");
    format!("{}/{}", list.iter().filter(|g| held(&g.condition_type)).count(), list.len())
}

fn restarts(pod: &Pod, now: Timestamp) -> String {
    let summary = summarise(pod);
    match summary.last_restart.filter(|_| summary.restarts != 0) {
        Some(last) => format!("{} ({} ago)", summary.restarts, cell::since(Some(last), now)),
        None => summary.restarts.to_string(),
    }
}

#[derive(Default)]
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i32,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn count_restarts(&mut self, container: &ContainerStatus) {
        self.restarts = self.restarts.saturating_add(container.restart_count);
        let terminated = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let finished = terminated.and_then(|t| t.finished_at.as_ref()).map(|t| t.0);
        self.last_restart = self.last_restart.max(finished);
    }
}

fn ended(prefix: &str, end: &ContainerStateTerminated) -> String {
    match (end.reason.as_deref().filter(|r| !r.is_empty()), end.signal.filter(|s| *s != 0)) {
        (Some(reason), _) => format!("{prefix}{reason}"),
        (None, Some(signal)) => format!("{prefix}Signal:{signal}"),
        (None, None) => format!("{prefix}ExitCode:{}", end.exit_code),
    }
}

fn waits_for(state: Option<&ContainerState>) -> Option<&str> {
    state?.waiting.as_ref()?.reason.as_deref().filter(|r| !r.is_empty())
}

/// One word for the whole Pod: why an init container stops it, else why a container does, else its phase.
fn summarise(pod: &Pod) -> Summary {
    let mut summary = Summary { total: spec(pod).map_or(0, |s| s.containers.len()), ..Summary::default() };
    let own = status(pod).and_then(|s| s.reason.as_deref()).filter(|r| !r.is_empty());
    summary.reason = own.unwrap_or_else(|| pod::phase(pod)).to_owned();
    if pod::condition(pod, "PodScheduled").is_some_and(|c| c.reason.as_deref() == Some("SchedulingGated")) {
        "SchedulingGated".clone_into(&mut summary.reason);
    }
    let (initializing, sidecars) = summarise_init(pod, &mut summary);
    if !initializing || pod::condition(pod, "Initialized").is_some_and(|c| c.status == "True") {
        (summary.restarts, summary.last_restart) = (sidecars.restarts, sidecars.last_restart);
        summarise_main(pod, &mut summary);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        if own == Some("NodeLost") {
            "Unknown".clone_into(&mut summary.reason);
        } else if !pod::is_terminal(pod) {
            "Terminating".clone_into(&mut summary.reason);
        }
    }
    summary
}

/// Whether an init container is still in the way, and what sidecars add to the main containers.
fn summarise_init(pod: &Pod, summary: &mut Summary) -> (bool, Summary) {
    let containers = spec(pod).and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let always = || containers.iter().filter(|c| pod::is_sidecar(c));
    let names: BTreeSet<&str> = always().map(|c| c.name.as_str()).collect();
    summary.total += always().count();
    let mut sidecars = Summary::default();
    let statuses = status(pod).and_then(|s| s.init_container_statuses.as_deref()).unwrap_or_default();
    for (i, container) in statuses.iter().enumerate() {
        summary.count_restarts(container);
        let sidecar = names.contains(container.name.as_str());
        if sidecar {
            sidecars.count_restarts(container);
        }
        let end = container.state.as_ref().and_then(|s| s.terminated.as_ref());
        if end.is_some_and(|e| e.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) {
            summary.ready += usize::from(container.ready);
            continue;
        }
        let waiting = waits_for(container.state.as_ref()).filter(|r| *r != "PodInitializing");
        summary.reason = match (end, waiting) {
            (Some(end), _) => ended("Init:", end),
            (None, Some(reason)) => format!("Init:{reason}"),
            (None, None) => format!("Init:{i}/{}", containers.len()),
        };
        return (true, sidecars);
    }
    (false, sidecars)
}

fn summarise_main(pod: &Pod, summary: &mut Summary) {
    let statuses = status(pod).and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    let mut running = false;
    for container in statuses.iter().rev() {
        summary.count_restarts(container);
        let state = container.state.as_ref();
        if let Some(reason) = waits_for(state) {
            reason.clone_into(&mut summary.reason);
        } else if let Some(end) = state.and_then(|s| s.terminated.as_ref()) {
            summary.reason = ended("", end);
        } else if container.ready && state.is_some_and(|s| s.running.is_some()) {
            running = true;
            summary.ready += 1;
        }
    }
    // One container is done, another still runs: the Pod as a whole is not completed.
    if summary.reason == "Completed" && running {
        summary.reason = if pod::is_ready(pod) { "Running" } else { "NotReady" }.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn pods_in_one_line() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let running = json!({"name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}});
        let crashed = json!({"name": "c", "ready": false, "restartCount": 3, "image": "", "imageID": "",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:05:00Z"}}});
        let failed = json!({"name": "i", "ready": false, "restartCount": 1, "image": "", "imageID": "",
            "state": {"terminated": {"exitCode": 2}}});
        for (pod, expected) in [
            (json!({"status": {"phase": "Pending"}}), "0/1 Pending 0"),
            (json!({"status": {"phase": "Running", "containerStatuses": [running]}}), "1/1 Running 0"),
            (
                json!({"status": {"phase": "Running", "containerStatuses": [crashed]}}),
                "0/1 CrashLoopBackOff 3 (5m ago)",
            ),
            (json!({"status": {"phase": "Pending", "initContainerStatuses": [failed]}}), "0/1 Init:ExitCode:2 1"),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
                    "status": {"phase": "Running", "containerStatuses": [running]}}),
                "1/1 Terminating 0",
            ),
            (json!({"status": {"phase": "Failed", "reason": "Evicted"}}), "0/1 Evicted 0"),
        ] {
            let mut object: Pod = json::from_value(pod).unwrap();
            object.spec = Some(json::from_value(json!({"containers": [{"name": "c"}]})).unwrap());
            let cells: Vec<String> =
                COLUMNS[1..4].iter().map(|c| (c.cell)(&object, now).as_str().unwrap().to_owned()).collect();
            assert_eq!(cells.join(" "), expected);
        }
    }
}
