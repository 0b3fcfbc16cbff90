//! Wake-ups: which parked Pods are tried again when something changes.
//!
//! A group of parked Pods keeps a set of plugins so that for every node one of them turns the Pods away there, even if all
//! Pods of lower priority went. The search and the preemption that failed fill the set. When a change mends what one of
//! them said about a node, either the node takes the Pods now (or after a preemption) and they are tried, or the plugin that
//! turns them away now joins the set. So an event that no plugin of the set asks for never helps.
//! Upstream counterpart: pkg/scheduler/backend/queue (queueing hints).

use clock::Instant;

use crate::{
    change::Change,
    engine::Engine,
    node_id::NodeId,
    plugin::{Context, Filter},
    profile::{Part, concerned},
    queue::Parked,
};

/// Whether a change helps parked Pods.
enum Help {
    Try,
    /// It does not; this plugin turns them away at the place of the change.
    Not(Option<usize>),
}

impl Engine {
    /// Puts parked Pods back that the changes could help. `node` is where they happened.
    pub(crate) fn retry(&mut self, changes: u16, node: Option<NodeId>, now: Instant) {
        // A Pod that waits for its victims chooses anew when one of them is gone or its node is another than it was.
        if let Some(id) = node.filter(|_| changes != Change::PodAdded as u16) {
            for (key, _) in self.nominations.on(id) {
                self.queue.wake(key, Change::label(changes), now);
            }
        }
        let plugins = self.settings.plugins.iter().enumerate();
        let asking = plugins.filter(|(_, plugin)| plugin.retry_bits() & changes != 0);
        for parked in self.queue.parked_by(asking.fold(0, |bits, (index, _)| bits | 1 << index)) {
            self.retry_one(changes, node, parked, now);
        }
    }

    /// Puts the parked Pods of one class back if the changes could help them.
    pub(crate) fn retry_one(&mut self, changes: u16, node: Option<NodeId>, parked: Parked, now: Instant) {
        match self.could_help(changes, node, parked) {
            Help::Try => self.queue.retry(parked.class, Change::label(changes), now),
            Help::Not(Some(plugin)) => self.queue.note(parked.class, plugin),
            Help::Not(None) => {}
        }
    }

    /// Whether the changes could help parked Pods, by the rule that stands at the plugins of a group of them.
    fn could_help(&self, changes: u16, node: Option<NodeId>, parked: Parked) -> Help {
        let those = || {
            let all = self.settings.plugins.iter().enumerate();
            all.filter(move |(i, _)| parked.plugins & (1 << i) != 0).map(|(_, p)| p)
        };
        // No plugin turned the Pod away: there was no node at all.
        let helps = match parked.plugins {
            0 => changes & Change::NodeAdded as u16 != 0,
            _ => those().any(|p| p.retry_bits() & changes != 0),
        };
        match node.filter(|_| those().all(|p| p.node_local)) {
            _ if !helps => Help::Not(None),
            None => Help::Try,
            Some(id) => self.could_take(id, parked),
        }
    }

    /// Whether a node could take parked Pods, now or after a preemption. If not, the answer is the plugin to wait for.
    fn could_take(&self, id: NodeId, parked: Parked) -> Help {
        let Some(Some(there)) = self.cache.nodes.get(id.index()) else { return Help::Not(None) };
        if !there.known {
            return Help::Not(None);
        }
        let (class, profile) = (self.cache.class(parked.class), self.profile(parked.class));
        let context = Context { cache: &self.cache, class, args: &profile.args, tallies: &[] };
        let mut waits_for = None;
        for enabled in concerned(profile, Part::Filter, &context).iter().filter(|enabled| enabled.plugin.node_local) {
            match enabled.plugin.filter {
                Filter::Fixed { refuses, .. } if refuses(&context, there).is_some() => {
                    return Help::Not(Some(enabled.index));
                }
                Filter::Live(filter) => match filter(&context, id, there) {
                    Err(rejection) if rejection.unresolvable => return Help::Not(Some(enabled.index)),
                    Err(_) => waits_for = waits_for.or(Some(enabled.index)),
                    Ok(()) => {}
                },
                Filter::None | Filter::Fixed { .. } => {}
            }
        }
        let preempts = || self.cache.pods_on(id).any(|(_, placed)| placed.priority < parked.priority);
        match waits_for {
            Some(_) if !preempts() => Help::Not(waits_for),
            _ => Help::Try,
        }
    }
}
