//! The Pod lifecycle event generator: what happens in the engine wakes the workers of the Pods that it concerns.
//! Upstream counterpart: pkg/kubelet/pleg.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use clock::Instant;
use futures::{StreamExt, stream::BoxStream};
use k8s_cri::v1::{ContainerState, PodSandboxState};

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
    looks: usize,
    due: Instant,
}

impl Doubt {
    fn new() -> Self {
        Doubt { looks: 0, due: Instant::now() + Duration::from_millis(PAUSES[0]) }
    }

    /// Whether it is looked for once more.
    fn goes_on(&mut self) -> bool {
        self.looks += 1;
        let pause = PAUSES.get(self.looks).copied();
        self.due = Instant::now() + Duration::from_millis(pause.unwrap_or_default());
        pause.is_some()
    }
}

pub struct Pleg {
    kubelet: Arc<Kubelet>,
    /// The containers of each Pod (by uid) as they were listed last: id and state.
    listed: BTreeMap<String, BTreeSet<(String, i32)>>,
}

impl Pleg {
    pub fn new(kubelet: Arc<Kubelet>) -> Self {
        Pleg { kubelet, listed: BTreeMap::new() }
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
            let due = doubts.values().map(|doubt| doubt.due).min();
            tokio::select! {
                event = events.next() => match event {
                    Some(id) => _ = doubts.insert(id, Doubt::new()),
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
            let is_clear = match self.state_of(&id) {
                Some(state) => state == ContainerState::ContainerExited as i32,
                // A sandbox, or a container that is gone: only its worker can tell what that means.
                None if self.is_over(&id).await => {
                    self.kubelet.pods.wake_all();
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
        let mut fresh = BTreeMap::<String, BTreeSet<(String, i32)>>::new();
        for container in containers {
            let uid = container.labels.get(POD_UID).cloned().unwrap_or_default();
            fresh.entry(uid).or_default().insert((container.id, container.state));
        }
        let uids: BTreeSet<&String> = self.listed.keys().chain(fresh.keys()).collect();
        let changed: Vec<&String> = uids.into_iter().filter(|uid| self.listed.get(*uid) != fresh.get(*uid)).collect();
        changed.iter().for_each(|uid| self.kubelet.pods.wake(uid));
        self.listed = fresh;
    }

    fn state_of(&self, id: &str) -> Option<i32> {
        self.listed.values().flatten().find(|(container, _)| container == id).map(|(_, state)| *state)
    }

    /// The engine shows the end of the sandbox, or knows nothing of that name any more.
    async fn is_over(&self, id: &str) -> bool {
        let status = self.kubelet.config.runtime.sandbox_status(id).await;
        !status.is_ok_and(|s| s.state() == PodSandboxState::SandboxReady)
    }
}
