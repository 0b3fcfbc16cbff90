//! The Pod lifecycle event generator: what happens in the engine wakes the workers of the Pods that it concerns.
//! Upstream counterpart: pkg/kubelet/pleg.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_cri::v1::{ContainerState, PodSandboxState};

use crate::{kubelet::Kubelet, pod::desired::POD_UID};

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
            let Some(mut events) = self.kubelet.config.runtime.events().await else {
                clock::sleep(Duration::from_secs(1)).await;
                if !self.kubelet.pods.is_empty() {
                    self.relist().await;
                }
                continue;
            };
            self.relist().await;
            while let Some(id) = events.next().await {
                self.hear(&id).await;
            }
            // The engine restarted: look at everything again.
            clock::sleep(Duration::from_millis(500)).await;
            self.kubelet.pods.wake_all();
        }
    }

    /// Something happened to a container or a sandbox. CRI's own picture follows the event by a moment; until it shows the
    /// end, another change (the start that came just before) must not pass for it.
    async fn hear(&mut self, id: &str) {
        for wait in [2, 10, 30, 60, 120, 250, 500] {
            clock::sleep(Duration::from_millis(wait)).await;
            let changed = self.relist().await;
            match self.state_of(id) {
                Some(state) if state == ContainerState::ContainerExited as i32 => return,
                // A sandbox, or a container that is gone: only its worker can tell what that means.
                None if self.is_over(id).await => return self.kubelet.pods.wake_all(),
                None => {}
                Some(_) if changed && wait > 250 => return,
                Some(_) => {}
            }
        }
    }

    /// Lists all containers and wakes the workers whose Pods have changed; whether any had.
    async fn relist(&mut self) -> bool {
        waypoint::kubelet::sync_loop(&self.kubelet.config.node_name);
        let Ok(containers) = self.kubelet.config.runtime.containers(None).await else { return false };
        let mut fresh = BTreeMap::<String, BTreeSet<(String, i32)>>::new();
        for container in containers {
            let uid = container.labels.get(POD_UID).cloned().unwrap_or_default();
            fresh.entry(uid).or_default().insert((container.id, container.state));
        }
        let uids: BTreeSet<&String> = self.listed.keys().chain(fresh.keys()).collect();
        let changed: Vec<&String> = uids.into_iter().filter(|uid| self.listed.get(*uid) != fresh.get(*uid)).collect();
        changed.iter().for_each(|uid| self.kubelet.pods.wake(uid));
        let any = !changed.is_empty();
        self.listed = fresh;
        any
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
