//! Preemption: room for a Pod that fits nowhere, at the cost of Pods of lower priority.
//! Upstream counterpart: pkg/scheduler/framework/preemption, plugin DefaultPreemption.

use std::{cmp::Reverse, collections::BTreeMap};

use client::Key;
use clock::Timestamp;

use crate::{
    engine::{Engine, Nominated},
    failure::{Failure, Preemption},
    node::NodeId,
    picture::Placed,
    plugin::{Context, PLUGINS, Plugin},
    queue::Waiting,
    search::Search,
};

/// So many nodes are tried, or a tenth of all if that is more.
const CANDIDATES: usize = 100;

type Victims = Vec<(Key, Placed)>;

impl Engine {
    /// Chooses the node whose victims cost least, and keeps their room for the Pod.
    pub(crate) fn preempt(&mut self, pod: &Waiting, failure: &Failure) -> Preemption {
        if pod.never_preempts {
            return Preemption::NotEligible("not eligible due to preemptionPolicy=Never.");
        }
        if self.waits_for_victims(pod) {
            return Preemption::NotEligible("not eligible due to a terminating pod on the nominated node.");
        }
        self.nominated.remove(&pod.key);
        if self.picture.least_priority().is_none_or(|least| least >= pod.priority) {
            return Preemption::Fruitless;
        }
        let mut lower: BTreeMap<NodeId, Victims> = failure.resolvable.iter().map(|id| (*id, Vec::new())).collect();
        for (key, placed) in self.picture.pods().filter(|(_, p)| p.priority < pod.priority) {
            if let Some(pods) = lower.get_mut(&placed.node) {
                pods.push((key.clone(), placed.clone()));
            }
        }
        let most = CANDIDATES.max(self.picture.order().len() / 10);
        let tried = lower.into_iter().filter(|(_, pods)| !pods.is_empty()).take(most);
        let candidates = tried.filter_map(|(id, pods)| Some((id, self.victims(pod, id, pods)?)));
        let Some((node, victims)) = candidates.collect::<Vec<_>>().into_iter().min_by_key(|(id, v)| (cost(v), *id))
        else {
            return Preemption::Fruitless;
        };
        self.nominated.insert(pod.key.clone(), Nominated { node, class: pod.class, priority: pod.priority });
        Preemption::Victims(self.picture.node(node).name.clone(), victims.into_iter().map(|(key, _)| key).collect())
    }

    /// Whether the victims of an earlier attempt are still on their way out.
    fn waits_for_victims(&self, pod: &Waiting) -> bool {
        let Some(nominated) = self.nominated.get(&pod.key) else { return false };
        let mut there = self.picture.pods().map(|(_, p)| p).filter(|p| p.node == nominated.node);
        there.any(|p| p.terminating && p.priority < pod.priority)
    }

    /// Those of `pods` that must leave the node so that the Pod fits: as few and unimportant as possible. `None` when it
    /// does not fit even without them all. The picture is the same afterwards.
    fn victims(&mut self, pod: &Waiting, id: NodeId, mut pods: Victims) -> Option<Victims> {
        // The most important are the first to stay.
        pods.sort_by(|(a, x), (b, y)| importance(x).cmp(&importance(y)).then_with(|| a.cmp(b)));
        for (key, _) in &pods {
            self.picture.unplace(key);
        }
        let mut victims = Victims::new();
        let fits = self.fits(pod, id);
        for (key, placed) in pods {
            self.picture.place(key.clone(), placed.clone());
            if fits && !self.fits(pod, id) {
                self.picture.unplace(&key);
                victims.push((key, placed));
            }
        }
        for (key, placed) in &victims {
            self.picture.place(key.clone(), placed.clone());
        }
        (!victims.is_empty()).then_some(victims)
    }

    fn fits(&mut self, pod: &Waiting, id: NodeId) -> bool {
        let memo = self.picture.take_memo(pod.class);
        let context = Context { picture: &self.picture, class: self.picture.class(pod.class), tallies: &memo.tallies };
        let plugins: Vec<(usize, &Plugin)> =
            PLUGINS.iter().enumerate().filter(|(_, p)| (p.concerns)(&context)).collect();
        let search = Search { context: &context, plugins: &plugins, wanted: 1, reserved: &[] };
        let fits = search.live(id, self.picture.node(id)).is_ok();
        self.picture.put_memo(pod.class, memo);
        fits
    }
}

/// Orders Pods by importance: greater priority, then longer running.
fn importance(placed: &Placed) -> (Reverse<i32>, Timestamp) {
    (Reverse(placed.priority), placed.started.unwrap_or(Timestamp::MAX))
}

/// What compares nodes: the most important victim's priority, the sum of priorities, the number of victims, and how long the
/// most important ones have run (latest start first).
fn cost(victims: &Victims) -> (i32, i64, usize, Reverse<Timestamp>) {
    let highest = victims.iter().map(|(_, p)| p.priority).max().unwrap_or(i32::MIN);
    // Shifted, so that more victims of negative priority do not look cheaper.
    let sum = victims.iter().map(|(_, p)| i64::from(p.priority) + i64::from(i32::MAX) + 1).sum();
    let top = victims.iter().filter(|(_, p)| p.priority == highest);
    let earliest = top.map(|(_, p)| p.started.unwrap_or(Timestamp::MAX)).min().unwrap_or(Timestamp::MAX);
    (highest, sum, victims.len(), Reverse(earliest))
}
