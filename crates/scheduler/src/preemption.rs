//! Preemption: room for a Pod that fits nowhere, at the cost of Pods of lower priority.
//! Upstream counterpart: pkg/scheduler/framework/preemption, plugin DefaultPreemption.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
};

use client::Key;
use clock::Timestamp;

use crate::{
    cache::Placed,
    engine::Engine,
    failure::{Failure, Preemption},
    node_id::NodeId,
    nominated::Nominated,
    plugin::Context,
    queue::Waiting,
    search::Search,
};

/// How many nodes are tried, unless a tenth of all is more.
const CANDIDATES: usize = 100;

type Pods = Vec<(Key, Placed)>;

/// The Pods that must leave a node.
struct Victims {
    pods: Pods,
    /// How many of them a disruption budget guards.
    guarded: usize,
}

impl Engine {
    /// Chooses the node whose victims cost least, and keeps their room for the Pod.
    pub(crate) fn preempt(&mut self, pod: &Waiting, failure: &Failure) -> Preemption {
        if pod.never_preempts {
            return Preemption::NotEligible("not eligible due to preemptionPolicy=Never.");
        }
        if self.waits_for_victims(pod, failure) {
            return Preemption::NotEligible("not eligible due to a terminating pod on the nominated node.");
        }
        self.nominated.remove(&pod.key);
        if self.cache.least_priority().is_none_or(|least| least >= pod.priority) {
            return Preemption::Fruitless;
        }
        let mut lower: BTreeMap<NodeId, Pods> = failure.resolvable.iter().map(|id| (*id, Vec::new())).collect();
        for (key, placed) in self.cache.pods().filter(|(_, p)| p.priority < pod.priority) {
            if let Some(pods) = lower.get_mut(&placed.node) {
                pods.push((key.clone(), placed.clone()));
            }
        }
        let most = CANDIDATES.max(self.cache.order().len() / 10);
        let tried = lower.into_iter().filter(|(_, pods)| !pods.is_empty()).take(most);
        let candidates = tried.filter_map(|(id, pods)| Some((id, self.victims(pod, id, pods)?)));
        let cheapest = candidates.collect::<Vec<_>>().into_iter().min_by_key(|(id, found)| (found.cost(), *id));
        let Some((node, Victims { pods: victims, .. })) = cheapest else { return Preemption::Fruitless };
        // A less important Pod that waits for this node has to look for another one.
        self.nominated.retain(|_, other| other.node != node || other.priority >= pod.priority);
        self.nominated.insert(pod.key.clone(), Nominated { node, class: pod.class, priority: pod.priority });
        Preemption::Victims(self.cache.node(node).name.clone(), victims.into_iter().map(|(key, _)| key).collect())
    }

    /// Whether the victims of an earlier attempt are still on their way out, on a node that can take the Pod then.
    fn waits_for_victims(&self, pod: &Waiting, failure: &Failure) -> bool {
        let nominated = self.nominated.get(&pod.key).filter(|n| failure.resolvable.contains(&n.node));
        let Some(nominated) = nominated else { return false };
        let mut there = self.cache.pods().map(|(_, p)| p).filter(|p| p.node == nominated.node);
        there.any(|p| p.terminating && p.priority < pod.priority)
    }

    /// The Pods among `pods` that must leave the node so that the Pod fits: as few as possible, rather those that no budget
    /// guards, rather unimportant ones. `None` when it does not fit even without them all. The cache is afterwards as it
    /// was before.
    fn victims(&mut self, pod: &Waiting, id: NodeId, mut pods: Pods) -> Option<Victims> {
        pods.sort_by(by_importance);
        let classes: Vec<_> = pods.iter().map(|(_, placed)| self.cache.class(placed.class).clone()).collect();
        let guarded = self.budgets.violations(pods.iter().zip(&classes).map(|((key, _), class)| (key, &**class)));
        for (key, _) in &pods {
            self.unplace(key);
        }
        self.memos.renew(pod.class, self.settings.plugins, &self.cache);
        let fits = self.fits(pod, id);
        let mut victims = Victims { pods: Pods::new(), guarded: 0 };
        // The guarded and the most important are the first to stay.
        let mut in_turn: Vec<_> = guarded.into_iter().zip(pods).collect();
        in_turn.sort_by_key(|(guarded, _)| !guarded);
        for (guarded, (key, placed)) in in_turn {
            self.place(key.clone(), placed.clone());
            self.memos.renew(pod.class, self.settings.plugins, &self.cache);
            if fits && !self.fits(pod, id) {
                self.unplace(&key);
                victims.guarded += usize::from(guarded);
                victims.pods.push((key, placed));
            }
        }
        for (key, placed) in &victims.pods {
            self.place(key.clone(), placed.clone());
        }
        victims.pods.sort_by(by_importance);
        (!victims.pods.is_empty()).then_some(victims)
    }

    /// Whether the node takes the Pod as the cache is now. The tallies of its class must be up to date.
    fn fits(&self, pod: &Waiting, id: NodeId) -> bool {
        let (cache, class) = (&self.cache, self.cache.class(pod.class));
        let tallies = self.memos.tallies(pod.class, cache).unwrap_or_default();
        let context = Context { cache, class, tallies };
        let plugins = self.concerned(&context);
        let search =
            Search { context: &context, all: self.settings.plugins, plugins: &plugins, wanted: 1, reserved: &[] };
        search.live(id, cache.node(id)).is_ok()
    }
}

/// Greater priority comes first, then longer running.
fn by_importance((a, x): &(Key, Placed), (b, y): &(Key, Placed)) -> Ordering {
    let importance = |placed: &Placed| (Reverse(placed.priority), placed.started.unwrap_or(Timestamp::MAX));
    importance(x).cmp(&importance(y)).then_with(|| a.cmp(b))
}

impl Victims {
    /// What compares nodes: how many budgets are broken, the most important victim's priority, the sum of priorities, the
    /// number of victims, and how long the most important ones have run (latest start first).
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
        let priorities = || self.pods.iter().map(|(_, p)| p.priority);
        let highest = priorities().max().unwrap_or(i32::MIN);
        // Shifted, so that more victims of negative priority do not look cheaper.
        let sum = priorities().map(|priority| i64::from(priority) + i64::from(i32::MAX) + 1).sum();
        let top = self.pods.iter().filter(|(_, p)| p.priority == highest);
        let earliest = top.map(|(_, p)| p.started.unwrap_or(Timestamp::MAX)).min().unwrap_or(Timestamp::MAX);
        (self.guarded, highest, sum, self.pods.len(), Reverse(earliest))
    }
}
