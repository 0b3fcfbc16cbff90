//! Consulting: a decision in which extenders have a word stops where they are asked, and goes on with their answer.
//! Upstream counterpart: findNodesThatPassExtenders, prioritizeNodes (schedule_one.go), callExtenders (preemption).

use std::{collections::HashMap, sync::Arc};

use clock::Instant;

use crate::{
    asked::Asked,
    batch::best,
    candidates::{Possible, Victims},
    class::ClassId,
    engine::{Decision, Engine},
    extender::{self, About, Answer, Candidate, Candidates, Question, Refused},
    failure::Failure,
    node_id::NodeId,
    plugin::Context,
    profile::{Part, concerned},
    queue::Waiting,
    rejection::{Rejection, Text},
    search::{pick, rank},
};

impl Engine {
    /// The extenders that have a word in Pods of a class.
    fn interested(&self, class: ClassId) -> Vec<usize> {
        let class = self.cache.class(class);
        let all = self.settings.extenders.iter().enumerate();
        all.filter(|(_, extender)| extender.is_interested(class, &self.cache)).map(|(index, _)| index).collect()
    }

    /// Whether an extender chooses among victims for Pods of a class.
    pub(crate) fn extenders_preempt(&self, class: ClassId) -> bool {
        self.interested(class).into_iter().any(|index| !self.settings.extenders[index].preempt.is_empty())
    }

    /// The extender that binds the Pod, if one does.
    pub fn binder(&self, decision: &Decision) -> Option<usize> {
        let Decision::Bind { pod, .. } = decision else { return None };
        self.interested(pod.class).into_iter().find(|index| !self.settings.extenders[*index].bind.is_empty())
    }

    pub(crate) fn ask_about_nodes(&mut self, pod: Waiting, failure: Failure, nominated: bool) -> Decision {
        let feasible = std::mem::take(&mut self.feasible);
        let names = feasible.iter().map(|id| self.cache.node(*id).name.clone()).collect();
        let question = Question { extenders: self.interested(pod.class), about: About::Nodes(names), pod: pod.clone() };
        self.asked = Some(Asked::Nodes { pod, feasible, failure, nominated });
        Decision::Consult(question)
    }

    pub(crate) fn ask_about_victims(
        &mut self,
        pod: Waiting,
        failure: Arc<Failure>,
        plugins: u32,
        possible: Possible,
    ) -> Decision {
        let mut candidates = Candidates::new();
        for (id, victims) in &possible.0 {
            let pods = victims.pods.iter().map(|(key, _)| key.clone()).collect();
            candidates.insert(self.cache.node(*id).name.clone(), Candidate { pods, guarded: victims.guarded });
        }
        let extenders = self.interested(pod.class);
        let question = Question { extenders, about: About::Victims(candidates), pod: pod.clone() };
        self.asked = Some(Asked::Victims { pod, failure, plugins, possible });
        Decision::Consult(question)
    }

    /// Goes on with the decision that stopped at a [`Decision::Consult`].
    ///
    /// # Panics
    ///
    /// If no question is open, or another sort of one.
    pub fn consulted(&mut self, answer: Answer, now: Instant) -> Decision {
        match (self.asked.take().expect("a question is open"), answer) {
            (Asked::Nodes { pod, .. }, Answer::Failed(why)) => {
                self.queue.retry_later(pod.clone(), now);
                Decision::Failed { pod, why }
            }
            // The Pod fits nowhere as it is, and no room is made for it this time.
            (Asked::Victims { pod, failure, plugins, possible: (_, why) }, Answer::Failed(_)) => {
                let preemption = failure.fruitless(failure.resolvable.len(), why);
                self.queue.park(pod.clone(), plugins | self.extender_bit(), now);
                Decision::Unschedulable { pod, failure, preemption }
            }
            (Asked::Nodes { pod, feasible, failure, nominated }, Answer::Nodes { refused, scores }) => {
                self.among(pod, (feasible, failure, nominated), (&refused, &scores), now)
            }
            (Asked::Victims { pod, failure, plugins, possible: (found, why) }, Answer::Victims(left)) => {
                let found = found.into_iter().filter_map(|(id, victims)| {
                    let chosen = left.get(&*self.cache.node(id).name)?;
                    let pods = victims.pods.into_iter().filter(|(key, _)| chosen.pods.contains(key)).collect();
                    Some((id, Victims { pods, guarded: chosen.guarded }))
                });
                let possible = (found.filter(|(_, victims)| !victims.pods.is_empty()).collect(), why);
                let preemption = self.make_room(&pod, &failure, possible, now);
                self.park_beside(&pod, plugins | self.extender_bit(), &preemption, now);
                Decision::Unschedulable { pod, failure, preemption }
            }
            (Asked::Nodes { .. }, Answer::Victims(_)) | (Asked::Victims { .. }, Answer::Nodes { .. }) => {
                panic!("an answer to another question")
            }
        }
    }

    /// Decides among the nodes that the extenders left.
    fn among(
        &mut self,
        pod: Waiting,
        (feasible, mut failure, nominated): (Vec<NodeId>, Failure, bool),
        (refused, scores): (&Refused, &HashMap<String, i64>),
        now: Instant,
    ) -> Decision {
        let (index, mut left) = (self.extender_index(), Vec::new());
        for id in feasible {
            match refused.get(&*self.cache.node(id).name) {
                None => left.push(id),
                Some((why, unresolvable)) => {
                    let reason = Text::Shared(why.as_str().into());
                    failure.add(
                        index,
                        id,
                        Rejection { reason, more: Vec::new(), unresolvable: *unresolvable, broken: false },
                    );
                }
            }
        }
        if left.is_empty() {
            // The search may have ended before it saw all of them.
            failure.nodes = self.cache.order().len();
            return match nominated {
                true => self.decide(pod, false, now),
                false => self.fits_nowhere(pod, Arc::new(failure), now),
            };
        }
        waypoint::scheduler::score(&pod.key.name);
        let more: Vec<i64> =
            left.iter().map(|id| scores.get(&*self.cache.node(*id).name).copied().unwrap_or(0)).collect();
        let profile = self.settings.profile(self.cache.class(pod.class));
        let memo = self.memos.take(pod.class, profile, &self.cache);
        let (class, args) = (memo.class().clone(), &profile.args);
        let context = Context { cache: &self.cache, class: &class, args, tallies: &memo.tallies };
        let ranked = rank(&context, &concerned(profile, Part::Score, &context), &left, Some(&more));
        let chosen = pick(&best(&ranked));
        self.memos.put(pod.class, memo);
        self.take(pod, chosen, now)
    }

    /// The place of all extenders together in the list of plugins.
    fn extender_index(&self) -> usize {
        self.settings.plugins.iter().position(|plugin| plugin.name == extender::NAME).unwrap_or(0)
    }

    fn extender_bit(&self) -> u32 {
        1 << self.extender_index()
    }
}
