//! Candidates of preemption: nodes with the Pods that would have to go, and what that would cost.

use std::cmp::{Ordering, Reverse};

use client::Key;
use clock::Timestamp;

use crate::{cache::Placed, failure::Reasons, node_id::NodeId};

pub(crate) type Pods = Vec<(Key, Placed)>;

/// The Pods that must leave a node.
pub(crate) struct Victims {
    pub pods: Pods,
    /// How many of them a disruption budget guards.
    pub guarded: usize,
}

/// Nodes with the Pods that would have to go, and why others do not do.
pub(crate) type Possible = (Vec<(NodeId, Victims)>, Reasons);

/// Greater priority comes first, then longer running.
pub(crate) fn by_importance((a, x): &(Key, Placed), (b, y): &(Key, Placed)) -> Ordering {
    let importance = |placed: &Placed| (Reverse(placed.priority), placed.started.unwrap_or(Timestamp::MAX));
    importance(x).cmp(&importance(y)).then_with(|| a.cmp(b))
}

impl Victims {
    /// The cost by which nodes are compared: how many budgets are broken, the most important victim's priority, the sum
    /// of priorities, the number of victims, and how long the most important ones have run (latest start first).
    pub fn cost(&self) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
        let priorities = || self.pods.iter().map(|(_, p)| p.priority);
        let highest = priorities().max().unwrap_or(i32::MIN);
        // Shifted, so that more victims of negative priority do not look cheaper.
        let sum = priorities().map(|priority| i64::from(priority) + i64::from(i32::MAX) + 1).sum();
        let top = self.pods.iter().filter(|(_, p)| p.priority == highest);
        let earliest = top.map(|(_, p)| p.started.unwrap_or(Timestamp::MAX)).min().unwrap_or(Timestamp::MAX);
        (self.guarded, highest, sum, self.pods.len(), Reverse(earliest))
    }
}
