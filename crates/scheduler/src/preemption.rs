//! Preemption: room for a Pod that fits nowhere, at the cost of Pods of lower priority.
//! Upstream counterpart: pkg/scheduler/framework/preemption, plugin DefaultPreemption.

use client::Key;
use clock::Instant;

use crate::{
    candidates::{Pods, Possible, Victims, by_importance},
    change::Change,
    engine::Engine,
    failure::{self, Failure, Preemption, Reasons},
    node_id::NodeId,
    nominated::Nominated,
    plugin::Context,
    profile::{Part, concerned},
    queue::Waiting,
    rejection::Text,
    search::{Refusal, Search},
};

/// The outcome of an attempt to make room.
pub(crate) enum Attempt {
    Made(Preemption),
    /// The extenders have a word in these, and in what would have been said without any.
    Candidates(Possible),
}

impl Engine {
    /// Chooses the node whose victims cost least, and keeps their room for the Pod. Adds to `plugins` those that turn the
    /// Pod away even without its victims, since only what mends these can help it.
    pub(crate) fn preempt(&mut self, pod: &Waiting, failure: &Failure, plugins: &mut u32, now: Instant) -> Attempt {
        let profile = self.profile(pod.class);
        if profile.with(Part::Preempt).all(|p| !p.plugin.preempts) {
            return Attempt::Made(Preemption::Off);
        }
        if pod.never_preempts {
            return Attempt::Made(Preemption::NotEligible("not eligible due to preemptionPolicy=Never."));
        }
        if self.waits_for_victims(pod, failure) {
            let why = "not eligible due to a terminating pod on the nominated node.";
            return Attempt::Made(Preemption::NotEligible(why));
        }
        let (candidates, why) = self.candidates(pod, &failure.resolvable, plugins);
        if !candidates.is_empty() && self.extenders_preempt(pod.class) {
            return Attempt::Candidates((candidates, why));
        }
        Attempt::Made(self.make_room(pod, failure, (candidates, why), now))
    }

    /// Takes the candidate whose victims cost least.
    pub(crate) fn make_room(
        &mut self,
        pod: &Waiting,
        failure: &Failure,
        (candidates, why): Possible,
        now: Instant,
    ) -> Preemption {
        let cheapest = candidates.into_iter().min_by_key(|(id, found)| (found.cost(), *id));
        let Some((node, victims)) = cheapest else {
            if let Some(held) = self.withdraw(&pod.key) {
                self.retry(Change::PodDeleted as u16, Some(held.node), now);
            }
            return failure.fruitless(failure.resolvable.len(), why);
        };
        // Less important Pods that wait for this node have to look for another one.
        let lower = self.nominations.on(node).filter(|(_, n)| n.priority < pod.priority).map(|(key, _)| key.clone());
        let displaced: Vec<Key> = lower.collect();
        for key in &displaced {
            self.withdraw(key);
            self.queue.wake(key, Change::label(Change::PodAdded as u16), now);
        }
        let nominated = Nominated { node, class: pod.class, priority: pod.priority, shown: false };
        if let Some(left) = self.nominate(pod.key.clone(), nominated).filter(|left| left.node != node) {
            self.retry(Change::PodDeleted as u16, Some(left.node), now);
        }
        let staying = victims.pods.into_iter().filter(|(_, placed)| !placed.terminating && !placed.preempted);
        let staying: Vec<Key> = staying.map(|(key, _)| key).collect();
        let (sent_back, pods): (Vec<Key>, Vec<Key>) = staying.into_iter().partition(|key| self.send_back(key, now));
        for key in &pods {
            self.cache.set_preempted(key, true);
            self.evicting.insert(key.clone());
        }
        let node = self.cache.node(node).name.clone();
        Preemption::Victims(failure::Victims { node, pods, sent_back, displaced })
    }

    /// Parks a Pod for which room was made, if that could be. Where nobody has to leave, the room is there at once.
    pub(crate) fn park_beside(&mut self, pod: &Waiting, plugins: u32, preemption: &Preemption, now: Instant) {
        self.queue.park(pod.clone(), plugins, now);
        if let Preemption::Victims(victims) = preemption
            && victims.pods.is_empty()
            && !victims.sent_back.is_empty()
        {
            self.queue.wake(&pod.key, Change::label(Change::PodDeleted as u16), now);
        }
    }

    /// Nodes whose Pods of lower priority can make room, tried from a random one on; and why others cannot.
    fn candidates(
        &mut self,
        pod: &Waiting,
        resolvable: &[NodeId],
        plugins: &mut u32,
    ) -> (Vec<(NodeId, Victims)>, Reasons) {
        let (mut found, mut why) = (Vec::new(), Reasons::new());
        let none = Text::Static("No preemption victims found for incoming pod");
        // Mostly no Pod at all is less important, which one look says.
        if resolvable.is_empty() || self.cache.least_priority().is_none_or(|least| least >= pod.priority) {
            if !resolvable.is_empty() {
                why.insert(none, resolvable.len());
            }
            return (found, why);
        }
        let before = (self.cache.generation, self.cache.structure);
        let most = self.profile(pod.class).args.candidates(resolvable.len());
        let start = clock::random_range(0..resolvable.len() as u64) as usize;
        for id in resolvable[start..].iter().chain(&resolvable[..start]) {
            let lower: Pods = self
                .cache
                .pods_on(*id)
                .filter(|(_, placed)| placed.priority < pod.priority)
                .map(|(key, placed)| (key.clone(), placed.clone()))
                .collect();
            if lower.is_empty() {
                *why.entry(none.clone()).or_default() += 1;
                continue;
            }
            match self.victims(pod, *id, lower) {
                Ok(victims) if victims.pods.is_empty() => {}
                Ok(victims) => found.push((*id, victims)),
                Err((plugin, rejection)) => {
                    *plugins |= 1 << plugin;
                    for reason in [rejection.reason].into_iter().chain(rejection.more) {
                        *why.entry(reason).or_default() += 1;
                    }
                }
            }
            // One that breaks no budget is worth looking for longer.
            if found.len() >= most && found.iter().any(|(_, victims): &(NodeId, Victims)| victims.guarded == 0) {
                break;
            }
        }
        self.cache.forget_touched();
        // Everything is as it was before, and what was found out about that still holds.
        if before.1 == self.cache.structure {
            self.cache.generation = before.0;
        }
        (found, why)
    }

    /// Whether the victims of an earlier attempt are still on their way out, on a node that can take the Pod then.
    fn waits_for_victims(&self, pod: &Waiting, failure: &Failure) -> bool {
        let nominated = self.nominations.get(&pod.key).filter(|n| failure.resolvable.contains(&n.node));
        let Some(nominated) = nominated else { return false };
        self.cache.pods_on(nominated.node).any(|(_, placed)| placed.preempted && placed.priority < pod.priority)
    }

    /// The Pods among `pods` that must leave the node so that the Pod fits: as few as possible, rather those that no budget
    /// guards, rather unimportant ones; or why it does not fit even without them all. The cache is afterwards as it was
    /// before.
    fn victims(&mut self, pod: &Waiting, id: NodeId, mut pods: Pods) -> Result<Victims, Refusal> {
        pods.sort_by(by_importance);
        let classes: Vec<_> = pods.iter().map(|(_, placed)| self.cache.class(placed.class).clone()).collect();
        let guarded = self.budgets.violations(pods.iter().zip(&classes).map(|((key, _), class)| (key, &**class)));
        for (key, _) in &pods {
            self.unplace(key);
        }
        let without = self.fits(pod, id);
        let mut victims = Victims { pods: Pods::new(), guarded: 0 };
        // The guarded and the most important are the first to stay.
        let mut in_turn: Vec<_> = guarded.into_iter().zip(pods).collect();
        in_turn.sort_by_key(|(guarded, _)| !guarded);
        for (guarded, (key, placed)) in in_turn {
            self.place(key.clone(), placed.clone());
            if without.is_ok() && self.fits(pod, id).is_err() {
                self.unplace(&key);
                victims.guarded += usize::from(guarded);
                victims.pods.push((key, placed));
            }
        }
        for (key, placed) in &victims.pods {
            self.place(key.clone(), placed.clone());
        }
        victims.pods.sort_by(by_importance);
        without.map(|()| victims)
    }

    /// Whether the node takes the Pod as the cache is now, beside the Pods that are nominated for it.
    fn fits(&mut self, pod: &Waiting, id: NodeId) -> Result<(), Refusal> {
        let (cache, profile) = (&self.cache, self.settings.profile(self.cache.class(pod.class)));
        let memo = self.memos.renewed(pod.class, profile, cache);
        let context = Context { cache, class: memo.class(), args: &profile.args, tallies: &memo.tallies };
        let plugins = concerned(profile, Part::Filter, &context);
        Search::new(&context, self.settings.plugins, &plugins, pod, &self.nominations).live(id)
    }

    /// Victims of a Pod could not be deleted: they stay, and the Pod chooses again.
    pub fn preemption_failed(&mut self, preemptor: &Key, victims: &[Key], now: Instant) {
        for key in victims {
            if self.evicting.remove(key) {
                self.cache.set_preempted(key, false);
            }
        }
        self.queue.wake(preemptor, Change::label(Change::PodAdded as u16), now);
    }
}
