//! Probes: one task per container that has any asks on schedule and tells the worker when the answer changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::EventKind;
use clock::{Instant, Timestamp};
use k8s_openapi::api::core::v1::Probe;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    kubelet::Kubelet,
    pod::{
        desired::DesiredPod,
        memory::{KillReason, Memory},
        probes::{
            ask::{self, ProbeError, Target},
            findings::{Findings, News},
        },
        running::ContainerRun,
    },
};

/// The running probes of one Pod by container id. Dropping it ends them.
#[derive(Default)]
pub struct Probes {
    tasks: BTreeMap<String, JoinHandle<()>>,
    /// The Pod has come to its end: its containers are asked only whether they still serve.
    ending: CancellationToken,
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

impl Probes {
    /// The Pod ends: no container is killed for its answers any more, and no new question begins. Readiness goes on, so that
    /// clients that are still connected see whether it serves.
    pub fn end_with_pod(&self) {
        self.ending.cancel();
    }

    /// Starts what is missing and ends what belongs to containers that are gone. Those that have started need no startup probe, and those
    /// without any probe are asked nothing.
    pub fn follow(
        &mut self,
        kubelet: &Arc<Kubelet>,
        pod: &watch::Receiver<DesiredPod>,
        running: (&[String], &[ContainerRun]),
        memory: &Memory,
        findings: &Arc<Findings>,
    ) {
        let (ips, alive) = running;
        let desired = pod.borrow().clone();
        self.tasks.retain(|id, task| {
            let keep = alive.iter().any(|r| r.id == *id);
            if !keep {
                task.abort();
            }
            keep
        });
        for ran in alive {
            let Some(container) = desired.container(&ran.name) else { continue };
            let startup = container.startup_probe.clone().filter(|_| !memory.run(&ran.id).started);
            let (liveness, readiness) = (container.liveness_probe.clone(), container.readiness_probe.clone());
            if startup.is_none() && liveness.is_none() && readiness.is_none() {
                continue;
            }
            if self.tasks.contains_key(&ran.id) || self.ending.is_cancelled() {
                continue;
            }
            let ip = if desired.host_network() {
                kubelet.config.node_ip.to_string()
            } else {
                ips.first().cloned().unwrap_or_default()
            };
            let prober = Prober {
                kubelet: kubelet.clone(),
                pod: pod.clone(),
                name: ran.name.clone(),
                id: ran.id.clone(),
                started_at: ran.started_at,
                ip,
                findings: findings.clone(),
                ending: self.ending.clone(),
            };
            self.tasks.insert(ran.id.clone(), tokio::spawn(prober.run(startup, liveness, readiness)));
        }
    }
}

struct Prober {
    kubelet: Arc<Kubelet>,
    /// The Pod as it is by now: one that it was would be kept for the prober alone.
    pod: watch::Receiver<DesiredPod>,
    /// The container's name and its id in the engine.
    name: String,
    id: String,
    started_at: Option<Timestamp>,
    ip: String,
    findings: Arc<Findings>,
    ending: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Startup,
    Liveness,
    Readiness,
}

/// Equal answers in a row.
#[derive(Debug, Default)]
struct Series {
    last: Option<bool>,
    length: i32,
}

impl Series {
    /// The result that holds after one more answer; `None` while there are not enough of it.
    fn note(&mut self, good: bool, probe: &Probe) -> Option<bool> {
        self.length = if self.last == Some(good) { self.length.saturating_add(1) } else { 1 };
        self.last = Some(good);
        let enough = if good { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
        (self.length >= enough).then_some(good)
    }
}

fn seconds(value: Option<i32>, default: i32) -> Duration {
    Duration::from_secs(value.unwrap_or(default).max(0).unsigned_abs().into())
}

/// How long it is until the first question: the delay counts from the container's start, whenever probing began.
fn first_wait(probe: &Probe, started_at: Option<Timestamp>, now: Timestamp) -> Duration {
    let delay = seconds(probe.initial_delay_seconds, 0);
    let due = started_at.and_then(|at| at.checked_add(delay).ok());
    due.map_or(delay, |due| Duration::try_from(due.duration_since(now)).unwrap_or_default())
}

/// The message of the event about a container that failed a probe. It says whether the container's policy lets it run again,
/// except for sidecars, which always do. Upstream counterpart: computePodActions in pkg/kubelet/kuberuntime.
fn sentence(desired: &DesiredPod, name: &str, kind: Kind) -> String {
    let is_init = desired.init_containers().iter().any(|c| c.name == name);
    let what = if is_init { "Init container" } else { "Container" };
    let own = desired.container(name).and_then(|container| container.restart_policy.as_deref());
    let policy = own.unwrap_or(desired.restart_policy());
    let then = if is_init || policy == "Never" { "" } else { ", will be restarted" };
    format!("{what} {name} failed {} probe{then}", format!("{kind:?}").to_lowercase())
}

impl Prober {
    async fn run(self, startup: Option<Probe>, liveness: Option<Probe>, readiness: Option<Probe>) {
        if let Some(probe) = startup {
            let started = tokio::select! {
                started = self.watch(&probe, Kind::Startup) => started,
                () = self.ending.cancelled() => false,
            };
            if !started {
                return;
            }
        }
        self.findings.tell(News::Started(self.id.clone()));
        let liveness = async {
            if let Some(probe) = &liveness {
                tokio::select! {
                    _ = self.watch(probe, Kind::Liveness) => {}
                    () = self.ending.cancelled() => {}
                }
            }
        };
        let readiness = async {
            match &readiness {
                Some(probe) => {
                    self.watch(probe, Kind::Readiness).await;
                }
                None => self.findings.tell(News::Ready(self.id.clone(), true)),
            }
        };
        tokio::join!(liveness, readiness);
    }

    /// Asks again and again. A startup probe ends with success; it and a liveness probe end when the container is to be killed.
    async fn watch(&self, probe: &Probe, kind: Kind) -> bool {
        clock::sleep(first_wait(probe, self.started_at, clock::now())).await;
        let limit = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
        let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
        let mut series = Series::default();
        let mut told = None;
        let mut next = Instant::now();
        loop {
            // A question has a large future, which is there only while it is asked.
            let answer = Box::pin(self.ask(kind, probe, limit)).await;
            match &answer {
                Ok(None) => {}
                Ok(Some(warning)) => self.tell_of(kind, "ProbeWarning", "probe warning", warning),
                Err(ProbeError::Failed(output)) => self.tell_of(kind, "Unhealthy", "probe failed", output),
                Err(ProbeError::Errored(error)) => {
                    self.tell_of(kind, "Unhealthy", "probe errored and resulted in unknown state", error);
                }
            }
            // A question that could not even be put says nothing about the container.
            let known = !matches!(answer, Err(ProbeError::Errored(_)));
            match (kind, known.then(|| series.note(answer.is_ok(), probe)).flatten()) {
                (Kind::Startup, Some(true)) => return true,
                (Kind::Startup | Kind::Liveness, Some(false)) => {
                    self.condemn(probe, kind);
                    return false;
                }
                (Kind::Readiness, Some(good)) if told != Some(good) => {
                    self.findings.tell(News::Ready(self.id.clone(), good));
                    told = Some(good);
                }
                _ => {}
            }
            // At a fixed rate; what took longer than the period is not caught up with.
            next = (next + period).max(Instant::now());
            clock::sleep_until(next).await;
        }
    }

    /// One question, put again at once where it could not be asked, as upstream does it.
    async fn ask(&self, kind: Kind, probe: &Probe, limit: Duration) -> Result<Option<String>, ProbeError> {
        const TRIES: usize = 3;
        let desired = self.pod.borrow().clone();
        let Some(container) = desired.container(&self.name) else {
            return Err(ProbeError::Errored(format!("the Pod has no container {}", self.name)));
        };
        let target = Target { runtime: &*self.kubelet.config.runtime, container, id: &self.id, ip: &self.ip };
        let begun = Instant::now();
        let mut answer = ask::ask(probe, &target, limit).await;
        for _ in 1..TRIES {
            if !matches!(answer, Err(ProbeError::Errored(_))) {
                break;
            }
            answer = ask::ask(probe, &target, limit).await;
        }
        let outcome = match &answer {
            Ok(_) => "successful",
            Err(ProbeError::Failed(_)) => "failed",
            Err(ProbeError::Errored(_)) => "unknown",
        };
        let counts = &self.kubelet.probe_counts;
        counts.note(&desired, &self.name, &format!("{kind:?}"), outcome, begun.elapsed());
        answer
    }

    fn tell_of(&self, kind: Kind, reason: &str, what: &str, words: &str) {
        let text = format!("{kind:?} {what}: {words}");
        self.kubelet.events.container(&self.pod.borrow(), &self.name, EventKind::Warning, reason, &text);
    }

    fn condemn(&self, probe: &Probe, kind: Kind) {
        let message = sentence(&self.pod.borrow(), &self.name, kind);
        let why = KillReason { message, grace_seconds: probe.termination_grace_period_seconds, renewal: None };
        self.findings.tell(News::Condemned(self.id.clone(), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now, pod_of};
    use json::json;

    fn probe(value: json::Value) -> Probe {
        json::from_value(value).unwrap()
    }

    #[test]
    fn answers_count_when_there_are_enough_of_them_in_a_row() {
        let check = |probe_of: json::Value, answers: &str, expected: &str| {
            let (probe, mut series) = (probe(probe_of), Series::default());
            let word = |state| match state {
                Some(true) => '+',
                Some(false) => '-',
                None => '.',
            };
            let got: String = answers.chars().map(|c| word(series.note(c == 'y', &probe))).collect();
            assert_eq!(got, expected, "{answers}");
        };
        check(json!({}), "ynnnyy", "+..-++");
        check(json!({}), "nnynn", "..+..");
        check(json!({"failureThreshold": 1, "successThreshold": 2}), "yyny", ".+-.");
        check(json!({"failureThreshold": 1, "successThreshold": 2}), "nyny", "-.-.");
    }

    #[test]
    fn a_failed_probe_is_told_of_with_what_follows_from_it() {
        let check = |pod: &str, own: json::Value, kind: Kind, expected: &str| {
            let of = |name: &str, policy: json::Value| json!({"name": name, "image": "x", "restartPolicy": policy});
            let spec = json!({"restartPolicy": pod, "initContainers": [of("s", "Always".into())],
                "containers": [of("m", own)]});
            let desired = pod_of(json!({ "spec": spec }));
            let container = if expected.starts_with("Init") { "s" } else { "m" };
            assert_eq!(sentence(&desired, container, kind), expected, "{pod}");
        };
        let none = || json::Value::Null;
        check("Always", none(), Kind::Liveness, "Container m failed liveness probe, will be restarted");
        check("OnFailure", none(), Kind::Startup, "Container m failed startup probe, will be restarted");
        check("Never", none(), Kind::Liveness, "Container m failed liveness probe");
        check("Never", "OnFailure".into(), Kind::Startup, "Container m failed startup probe, will be restarted");
        check("Always", "Never".into(), Kind::Startup, "Container m failed startup probe");
        check("Always", none(), Kind::Liveness, "Init container s failed liveness probe");
        check("Never", none(), Kind::Startup, "Init container s failed startup probe");
    }

    #[test]
    fn the_first_question_waits_from_the_containers_start() {
        let delayed = probe(json!({"initialDelaySeconds": 10}));
        for (probe, started_at, expected) in [
            (&delayed, Some(at(0)), 10),
            (&delayed, Some(at(-4)), 6),
            (&delayed, Some(at(-60)), 0),
            (&delayed, None, 10),
            (&Probe::default(), Some(at(0)), 0),
        ] {
            assert_eq!(first_wait(probe, started_at, now()), Duration::from_secs(expected), "{started_at:?}");
        }
    }
}
