//! Nominating: how the engine's nominations follow the API's, and what depends on them.
//! Upstream counterpart: pkg/scheduler/backend/queue (nominator).

use client::Key;
use clock::Instant;
use k8s_openapi::api::core::v1;

use crate::{change::Change, engine::Engine, nominated::Nominated, queue::Waiting};

impl Engine {
    /// Room that was made for the Pod, by this process or one before it, stays its own. Once the API has shown what this
    /// process chose, the API's word counts: somebody else may have taken the nomination away, or given another.
    pub(crate) fn follow_nomination(&mut self, waiting: &Waiting, pod: &v1::Pod, now: Instant) {
        let name = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref()).unwrap_or("");
        let node = self.cache.node_id(name).filter(|id| self.cache.node(*id).known);
        let held = self.nominations.get(&waiting.key).copied();
        let left = match (node, held) {
            (Some(node), held) if held.is_none_or(|h| h.node != node || !h.shown) => {
                let (class, priority) = (waiting.class, waiting.priority);
                // The API may still show an older choice than the one that is on its way there.
                if held.is_some_and(|h| h.node != node && !h.shown) {
                    return;
                }
                self.nominate(waiting.key.clone(), Nominated { node, class, priority, shown: true });
                held.filter(|h| h.node != node)
            }
            (None, Some(held)) if held.shown => self.withdraw(&waiting.key),
            _ => None,
        };
        if let Some(left) = left {
            self.queue.wake(&waiting.key, "UnschedulablePodUpdate", now);
            self.retry(Change::PodDeleted as u16, Some(left.node), now);
        }
    }

    pub(crate) fn nominate(&mut self, key: Key, nominated: Nominated) -> Option<Nominated> {
        let left = self.withdraw(&key);
        self.cache.count_nominated(nominated.class, 1);
        self.nominations.insert(key, nominated);
        left
    }

    /// Ends a nomination. The caller tells those whom it kept off, once everything else is in place.
    pub(crate) fn withdraw(&mut self, key: &Key) -> Option<Nominated> {
        let nominated = self.nominations.remove(key)?;
        self.cache.count_nominated(nominated.class, -1);
        Some(nominated)
    }
}
