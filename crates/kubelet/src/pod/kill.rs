//! Ending containers: preStop hook, stop signal, grace, kill; main containers first, then the sidecars.

use std::time::Duration;

use api::rules::pod::is_sidecar;
use client::EventKind;
use k8s_openapi::api::core::v1::Container;
use tokio::sync::watch;

use crate::{
    kubelet::Kubelet,
    pod::{
        desired::DesiredPod,
        probes::hook,
        running::{ContainerRun, RunningPod},
        workers::Eviction,
    },
};

/// The time that a container has to end by itself, whatever else is said.
const LEAST: Duration = Duration::from_secs(2);

/// The Pod whose containers are ended.
#[derive(Clone, Copy)]
pub struct Ending<'a> {
    pub kubelet: &'a Kubelet,
    pub desired: &'a DesiredPod,
    pub running: &'a RunningPod,
}

impl Ending<'_> {
    /// Ends one container.
    pub async fn one(self, ran: &ContainerRun, message: &str, grace: Duration) {
        // The next round finds a container that could not be stopped running.
        let _ = self.in_turn(ran, message, grace, std::future::ready(())).await;
    }

    /// The hook runs at once, if there is any time for it; the signal waits for its turn. Their time counts against the grace
    /// period. The signal gets two seconds, however short that is: fewer would kill what would have ended by itself.
    async fn in_turn(
        self,
        ran: &ContainerRun,
        message: &str,
        grace: Duration,
        turn: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let Ending { kubelet, desired, running } = self;
        waypoint::kubelet::kill_pod(&desired.full_name());
        let tell = |kind, reason: &str, text: &str| kubelet.events.container(desired, &ran.name, kind, reason, text);
        let stopping = format!("Stopping container {}", ran.name);
        tell(EventKind::Normal, "Killing", if message.is_empty() { &stopping } else { message });
        let begun = clock::Instant::now();
        let container = desired.container(&ran.name);
        let pre_stop = container.and_then(|c: &Container| c.lifecycle.as_ref()?.pre_stop.as_ref());
        if let (Some(handler), Some(container)) = (pre_stop.filter(|_| !grace.is_zero()), container) {
            let ip = running.sandbox().and_then(|s| s.ips.first().cloned()).unwrap_or_default();
            let hook = hook::run(kubelet, handler, hook::Of { desired, container, id: &ran.id, ip: &ip });
            let (pod, container) = (desired.full_name(), &ran.name);
            match clock::timeout(grace, hook).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(pod, container, error, "the preStop hook failed");
                    tell(EventKind::Warning, "FailedPreStopHook", "PreStopHook failed");
                }
                Err(_) => tracing::info!(pod, container, "the preStop hook did not end within the grace period"),
            }
        }
        // Out of time, the order does not matter any more.
        let _ = clock::timeout(grace.saturating_sub(begun.elapsed()), turn).await;
        self.stop(ran, left(grace, begun.elapsed())).await
    }

    /// Ends one container at once: no hook runs, and what does not end by the signal is killed after two seconds.
    pub async fn abruptly(self, ran: &ContainerRun) {
        let text = format!("Stopping container {} to restart all containers of the pod", ran.name);
        self.kubelet.events.container(self.desired, &ran.name, EventKind::Normal, "Killing", &text);
        let _ = self.stop(ran, LEAST).await;
    }

    async fn stop(self, ran: &ContainerRun, left: Duration) -> Result<(), String> {
        match self.kubelet.config.runtime.stop_container(&ran.id, left).await {
            Err(error) if !error.is_not_found() => {
                let pod = self.desired.full_name();
                tracing::warn!(pod, container = ran.name, %error, "the container could not be stopped");
                clock::sleep(Duration::from_millis(500)).await;
                Err(failure("KillContainer", &ran.name, &error))
            }
            _ => Ok(()),
        }
    }

    /// Ends all that lives, and tells what does not end.
    async fn all(self, grace: Duration) {
        let alive: Vec<&ContainerRun> = self.running.alive().collect();
        let names: Vec<&str> = alive.iter().map(|ran| ran.name.as_str()).collect();
        let (ended, _) = watch::channel(vec![false; alive.len()]);
        let ends = alive.iter().zip(predecessors(self.desired, &names)).enumerate().map(|(index, (ran, before))| {
            let mut others = ended.subscribe();
            let ended = &ended;
            async move {
                let turn = async move {
                    // The sender outlives this wait.
                    let _ = others.wait_for(|ended| before.iter().all(|i| ended[*i])).await;
                };
                let outcome = self.in_turn(ran, "", grace, turn).await;
                ended.send_modify(|ended| ended[index] = true);
                outcome
            }
        });
        let failures: Vec<String> = futures::future::join_all(ends).await.into_iter().filter_map(Result::err).collect();
        tell(self.kubelet, self.desired, &failures);
    }
}

/// The engine counts grace in whole seconds: those that have begun are not over yet.
fn left(grace: Duration, spent: Duration) -> Duration {
    grace.saturating_sub(Duration::from_secs(spent.as_secs())).max(LEAST)
}

/// A call that did not end a part of a Pod, in upstream's words.
pub fn failure(call: &str, of: &str, error: &runtime::Error) -> String {
    format!("failed to \"{call}\" for \"{of}\" with {call}Error: {:?}", error.to_string())
}

/// Tells of the calls that did not end a Pod.
pub fn tell(kubelet: &Kubelet, desired: &DesiredPod, failures: &[String]) {
    let text = match failures {
        [] => return,
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    kubelet.events.pod(desired, EventKind::Warning, "FailedKillPod", &format!("error killing pod: {text}"));
}

/// How long the node waits for the end of a Pod that it sends away, before it tells of that: half of its grace longer than
/// that, and ten seconds at least.
pub fn patience(desired: &DesiredPod, most: Option<i64>) -> Duration {
    let grace = granted(desired, None, most).unsigned_abs();
    Duration::from_secs((grace + grace / 2).max(10))
}

/// The seconds that a Pod has: its own, `most` and those of the node that sends it away, whichever are the fewest.
fn granted(desired: &DesiredPod, eviction: Option<&Eviction>, most: Option<i64>) -> i64 {
    [most, eviction.map(|eviction| eviction.most)].into_iter().flatten().fold(desired.grace_seconds(), i64::min)
}

/// Ends all that lives, within `most` seconds if that is less than the Pod's own. A deletion with a shorter grace period
/// that comes meanwhile takes over, and so does a node that leaves less.
pub async fn all(
    kubelet: &Kubelet,
    (changes, evictions): (&mut watch::Receiver<DesiredPod>, &mut watch::Receiver<Option<Eviction>>),
    running: &RunningPod,
    most: Option<i64>,
) {
    loop {
        let desired = &changes.borrow_and_update().clone();
        waypoint::kubelet::terminating(&desired.full_name());
        let seconds = granted(desired, evictions.borrow_and_update().as_ref(), most);
        let grace = Duration::from_secs(seconds.unsigned_abs());
        let shorter = async {
            loop {
                tokio::select! {
                    Ok(()) = changes.changed() => {}
                    Ok(()) = evictions.changed() => {}
                    else => std::future::pending::<()>().await,
                }
                if granted(&changes.borrow(), evictions.borrow().as_ref(), most) < seconds {
                    return;
                }
            }
        };
        tokio::select! {
            () = Ending { kubelet, desired, running }.all(grace) => return,
            () = shorter => {}
        }
    }
}

/// Which of these containers must have ended before each of them is told to: none for the main ones; all main ones and the
/// sidecars that were started later for a sidecar.
fn predecessors(desired: &DesiredPod, names: &[&str]) -> Vec<Vec<usize>> {
    let place = |name: &str| desired.init_containers().iter().position(|c| c.name == name && is_sidecar(c));
    let of = |name: &&str| {
        let own = place(name);
        let before = |other: &str| own.is_some_and(|own| place(other).is_none_or(|other| other > own));
        (0..names.len()).filter(|i| before(names[*i])).collect()
    };
    names.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    #[test]
    fn a_container_keeps_the_seconds_that_it_was_promised() {
        let check = |grace: u64, spent: u64, expected: u64| {
            let left = left(Duration::from_secs(grace), Duration::from_millis(spent));
            assert_eq!(left, Duration::from_secs(expected), "{grace} {spent}");
        };
        check(30, 1, 30);
        check(5, 999, 5);
        check(7, 2_010, 5);
        check(3, 2_500, 2);
        check(1, 0, 2);
    }

    #[test]
    fn sidecars_end_after_the_main_containers_the_last_one_first() {
        let desired = pod(
            r#"{"initContainers": [{"name": "i"}, {"name": "s1", "restartPolicy": "Always"}, {"name": "s2", "restartPolicy": "Always"}],
                "containers": [{"name": "m"}, {"name": "n"}]}"#,
        );
        for (names, expected) in [
            (vec!["m", "n", "s1", "s2"], vec![vec![], vec![], vec![0, 1, 3], vec![0, 1]]),
            (vec!["s2", "s1"], vec![vec![], vec![0]]),
            (vec!["i", "s1"], vec![vec![], vec![0]]),
        ] {
            assert_eq!(predecessors(&desired, &names), expected, "{names:?}");
        }
    }
}
