//! What happens in the engine wakes the workers of the Pods that it concerns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_cri::v1::{Container, ContainerState, PodSandboxState};

use crate::{kubelet::Node, pod::wanted::POD_UID};

type Seen = BTreeMap<String, BTreeSet<(String, i32)>>;

fn seen(containers: Vec<Container>) -> Seen {
    let mut seen = Seen::new();
    for container in containers {
        let uid = container.labels.get(POD_UID).cloned().unwrap_or_default();
        seen.entry(uid).or_default().insert((container.id, container.state));
    }
    seen
}

fn state_of(seen: &Seen, id: &str) -> Option<i32> {
    seen.values().flatten().find(|(container, _)| container == id).map(|(_, state)| *state)
}

/// Lists all containers and wakes the workers whose Pods have changed; whether any had.
async fn relist(node: &Node, last: &mut Seen) -> bool {
    waypoint::kubelet::sync_loop(&node.config.node_name);
    let Ok(containers) = node.config.runtime.containers(None).await else { return false };
    let fresh = seen(containers);
    let looks = node.looks.lock();
    let uids: BTreeSet<&String> = last.keys().chain(fresh.keys()).collect();
    let mut changed = false;
    for uid in uids {
        if last.get(uid) != fresh.get(uid) {
            changed = true;
            if let Some(look) = looks.get(uid) {
                look.notify_one();
            }
        }
    }
    drop(looks);
    *last = fresh;
    changed
}

/// Wakes workers when the engine says that something happened; where the engine is silent, lists once a second while
/// there are Pods.
pub async fn follow(node: Arc<Node>) {
    let mut last = Seen::new();
    loop {
        let Some(mut events) = node.config.runtime.events().await else {
            clock::sleep(Duration::from_secs(1)).await;
            if !node.pods.lock().is_empty() {
                relist(&node, &mut last).await;
            }
            continue;
        };
        relist(&node, &mut last).await;
        while let Some(id) = events.next().await {
            // CRI's own picture follows the event by a moment; until it shows the end, another change (the start that
            // came just before) must not pass for it.
            for wait in [2, 10, 30, 60, 120, 250, 500] {
                clock::sleep(Duration::from_millis(wait)).await;
                let changed = relist(&node, &mut last).await;
                match state_of(&last, &id) {
                    Some(state) if state == ContainerState::ContainerExited as i32 => break,
                    // A sandbox, or a container that is gone: only its worker can tell what that means.
                    None if is_over(&node, &id).await => {
                        node.looks.lock().values().for_each(|look| look.notify_one());
                        break;
                    }
                    None => {}
                    Some(_) if changed && wait > 250 => break,
                    Some(_) => {}
                }
            }
        }
        // The engine restarted: look at everything again.
        clock::sleep(Duration::from_millis(500)).await;
        node.looks.lock().values().for_each(|look| look.notify_one());
    }
}

/// The engine shows the end of the sandbox, or knows nothing of that name any more.
async fn is_over(node: &Node, id: &str) -> bool {
    let status = node.config.runtime.sandbox_status(id).await;
    !status.is_ok_and(|s| s.state() == PodSandboxState::SandboxReady)
}
