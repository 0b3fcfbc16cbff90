//! The Pod lifecycle event generator: what happens in the engine wakes the workers of the Pods that it concerns.
//! Upstream counterpart: pkg/kubelet/pleg.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use clock::Instant;
use futures::{StreamExt, stream::BoxStream};
use k8s_cri::v1::{Container, ContainerState, PodSandboxState};

use crate::{kubelet::Kubelet, pod::desired::POD_UID};

/// The pauses, in milliseconds, before the looks for what an event was about. The later ones are for an engine that is behind:
/// containerd handles an end again after seconds where it came while the start was being written down, and no other event
/// would tell of it.
const PAUSES: [u64; 12] = [2, 10, 30, 60, 120, 250, 500, 1_000, 2_000, 4_000, 8_000, 15_000];

/// The pause between two looks that no event asks for: one may get lost, and an engine may keep one to itself. Upstream's own, with
/// a stream of events, is five times as long.
const UNASKED: Duration = Duration::from_secs(60);

/// An event whose meaning is not clear yet.
struct Doubt {
    /// The Pod that it is about, where that was known when it came.
    pod: Option<String>,
    looks: usize,
    due: Instant,
}

impl Doubt {
    fn about(pod: Option<String>) -> Self {
        Doubt { pod, looks: 0, due: Instant::now() + Duration::from_millis(PAUSES[0]) }
    }

    /// Whether it is looked for once more.
    fn goes_on(&mut self) -> bool {
        self.looks += 1;
        let pause = PAUSES.get(self.looks).copied();
        self.due = Instant::now() + Duration::from_millis(pause.unwrap_or_default());
        pause.is_some()
    }
}

/// The containers of an engine, as it lists them.
#[derive(Default)]
struct Listed {
    /// Those of each Pod (by uid): id and state.
    pods: BTreeMap<String, BTreeSet<(String, i32)>>,
    /// The Pods of sandboxes with containers.
    sandboxes: HashMap<String, String>,
}

impl Listed {
    fn of(containers: Vec<Container>) -> Self {
        let mut listed = Listed::default();
        for mut container in containers {
            let uid = container.labels.remove(POD_UID).unwrap_or_default();
            listed.pods.entry(uid.clone()).or_default().insert((container.id, container.state));
            listed.sandboxes.insert(container.pod_sandbox_id, uid);
        }
        listed
    }

    /// The Pods that have others now.
    fn changed<'a>(&'a self, fresh: &'a Listed) -> impl Iterator<Item = &'a String> {
        let uids: BTreeSet<&String> = self.pods.keys().chain(fresh.pods.keys()).collect();
        uids.into_iter().filter(|uid| self.pods.get(*uid) != fresh.pods.get(*uid))
    }

    fn state_of(&self, id: &str) -> Option<i32> {
        self.pods.values().flatten().find(|(container, _)| container == id).map(|(_, state)| *state)
    }

    /// The Pod that a container or a sandbox belongs to.
    fn pod_of(&self, id: &str) -> Option<&String> {
        let has = |containers: &BTreeSet<(String, i32)>| containers.iter().any(|(container, _)| container == id);
        self.sandboxes.get(id).or_else(|| self.pods.iter().find(|(_, containers)| has(containers)).map(|(uid, _)| uid))
    }
}

pub struct Pleg {
    kubelet: Arc<Kubelet>,
    listed: Listed,
    /// A look at hundreds of containers takes long: it is followed by as long a pause, however many events there are.
    rests_until: Instant,
}

impl Pleg {
    pub fn new(kubelet: Arc<Kubelet>) -> Self {
        Pleg { kubelet, listed: Listed::default(), rests_until: Instant::now() }
    }

    /// Wakes workers when the engine says that something happened; where the engine is silent, lists once a second while
    /// there are Pods. Runs for ever.
    pub async fn run(mut self) {
        loop {
            let Some(events) = self.kubelet.config.runtime.events().await else {
                clock::sleep(Duration::from_secs(1)).await;
                if !self.kubelet.pods.is_empty() {
                    self.relist().await;
                }
                continue;
            };
            self.relist().await;
            self.follow(events).await;
            // The engine restarted: look at everything again.
            clock::sleep(Duration::from_millis(500)).await;
            self.kubelet.pods.wake_all();
        }
    }

    /// Looks at what happens until the engine says no more. CRI's own picture follows an event by a moment; until it shows the
    /// end, another change (the start that came just before) must not pass for it. So each id is looked for several times, and
    /// one look serves all whose time has come: in a burst nobody waits for another's.
    async fn follow(&mut self, mut events: BoxStream<'static, String>) {
        let mut doubts = BTreeMap::<String, Doubt>::new();
        let mut unasked = Instant::now() + UNASKED;
        loop {
            let due = doubts.values().map(|doubt| doubt.due.max(self.rests_until)).min();
            tokio::select! {
                event = events.next() => match event {
                    Some(id) => {
                        let doubt = Doubt::about(self.listed.pod_of(&id).cloned());
                        doubts.insert(id, doubt);
                    }
                    None => return,
                },
                () = clock::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.look(&mut doubts).await,
                () = clock::sleep_until(unasked) => {
                    unasked = Instant::now() + UNASKED;
                    if !self.kubelet.pods.is_empty() {
                        self.relist().await;
                    }
                }
            }
        }
    }

    async fn look(&mut self, doubts: &mut BTreeMap<String, Doubt>) {
        self.relist().await;
        let now = Instant::now();
        let due: Vec<String> = doubts.iter().filter(|(_, doubt)| doubt.due <= now).map(|(id, _)| id.clone()).collect();
        for id in due {
            let Some(doubt) = doubts.get_mut(&id) else { continue };
            let is_last = !doubt.goes_on();
            let is_clear = match self.listed.state_of(&id) {
                Some(state) => state == ContainerState::ContainerExited as i32,
                // A sandbox, or a container that is gone: only its worker can tell what that means.
                None if self.is_over(&id).await => {
                    match &doubt.pod {
                        Some(uid) => self.kubelet.pods.wake(uid),
                        None => self.kubelet.pods.wake_all(),
                    }
                    true
                }
                None => false,
            };
            if is_clear || is_last {
                doubts.remove(&id);
            }
        }
    }

    /// Lists all containers and wakes the workers whose Pods have changed.
    async fn relist(&mut self) {
        waypoint::kubelet::sync_loop(&self.kubelet.config.node_name);
        let begun = Instant::now();
        let Ok(containers) = self.kubelet.config.runtime.containers(None).await else { return };
        self.kubelet.figures.relisted(begun);
        let fresh = Listed::of(containers);
        self.listed.changed(&fresh).for_each(|uid| self.kubelet.pods.wake(uid));
        self.listed = fresh;
        self.rests_until = Instant::now() + begun.elapsed();
    }

    /// The engine shows the end of the sandbox, or knows nothing of that name any more.
    async fn is_over(&self, id: &str) -> bool {
        let status = self.kubelet.config.runtime.sandbox_status(id).await;
        !status.is_ok_and(|s| s.state() == PodSandboxState::SandboxReady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_event_is_about_is_known_of_containers_and_of_their_sandboxes() {
        let container = |id: &str, sandbox: &str, uid: &str| Container {
            id: id.to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            labels: HashMap::from([(POD_UID.to_owned(), uid.to_owned())]),
            state: ContainerState::ContainerRunning as i32,
            ..Container::default()
        };
        let before = Listed::of(vec![container("a", "s", "p"), container("b", "s", "p"), container("c", "t", "q")]);
        let pods = ["a", "b", "s", "c", "t", "d"].map(|id| before.pod_of(id).map(String::as_str));
        assert_eq!(pods, [Some("p"), Some("p"), Some("p"), Some("q"), Some("q"), None]);
        let after = Listed::of(vec![container("a", "s", "p"), container("c", "t", "q"), container("d", "u", "r")]);
        assert_eq!(before.changed(&after).collect::<Vec<_>>(), ["p", "r"]);
        assert_eq!((after.state_of("a"), after.state_of("b")), (Some(ContainerState::ContainerRunning as i32), None));
    }
}
