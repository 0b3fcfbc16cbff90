//! One scheduling cycle: the next Pod, the search for its node, and what is reserved there.
//! Upstream counterpart: pkg/scheduler/schedule_one.go (schedulingCycle).

use std::sync::Arc;

use api::features::Feature;
use clock::{Duration, Instant};

use crate::{
    batch::{self, Batch, Flush, best},
    cache::{Cache, Placed},
    change::Change,
    engine::{Decision, Engine, Preparation},
    failure::{Failure, Release},
    gangs::Permit,
    memo::{Fixed, Memo},
    node_id::NodeId,
    plugin::{Context, Plugin, ScoresBy},
    plugins::gang_scheduling,
    preemption::Attempt,
    profile::{Enabled, Part, Profile, concerned},
    queue::Waiting,
    search::{Search, pick, rank, rank_again},
};

/// The outcome of a search that found something.
enum Found {
    Node(NodeId),
    /// The nodes that fit are known, and extenders have a word; why the others do not fit.
    Ask {
        failure: Failure,
        nominated: bool,
    },
}

/// Below this many nodes all are looked at, and never are fewer found before the search ends.
const LEAST_NODES: usize = 100;

impl Engine {
    /// When to ask again if [`Engine::schedule_one`] has nothing to do.
    pub fn wake_at(&self) -> Option<Instant> {
        self.queue.wake_at().into_iter().chain(self.gangs.wake_at()).min()
    }

    /// Takes the next Pod and decides. `None` when none is to be tried now.
    pub fn schedule_one(&mut self, now: Instant) -> Option<Decision> {
        if let Some(decision) = self.next_of_gangs(now) {
            return Some(decision);
        }
        let pod = self.next_waiting(now)?;
        waypoint::scheduler::schedule_one(&pod.key.name);
        Some(self.decide(pod, true, now))
    }

    /// Decides about a Pod; `nominated` says whether the node where room was made for it is tried first.
    pub(crate) fn decide(&mut self, pod: Waiting, nominated: bool, now: Instant) -> Decision {
        let profile = self.settings.profile(self.cache.class(pod.class));
        let mut memo = self.memos.take(pod.class, profile, &self.cache);
        let found = self.find(&pod, nominated, &mut memo);
        self.memos.put(pod.class, memo);
        match found {
            Ok(Found::Node(id)) => self.take(pod, id, now),
            Ok(Found::Ask { failure, nominated }) => self.ask_about_nodes(pod, failure, nominated),
            Err(failure) => self.fits_nowhere(pod, failure, now),
        }
    }

    /// Puts the Pod on a node that takes it.
    pub(crate) fn take(&mut self, pod: Waiting, id: NodeId, now: Instant) -> Decision {
        match self.reserve(&pod, id) {
            Ok(()) => match self.permit(&pod) {
                Permit::Granted => self.assume(pod, id, now),
                Permit::Wait => self.wait_for_gang(pod, id, now),
                Permit::Broken(why) => {
                    self.unreserve(&pod, id, now);
                    self.queue.retry_later(pod.clone(), now);
                    Decision::Failed { pod, why: format!("running Permit plugin \"{}\": {why}", gang_scheduling::NAME) }
                }
            },
            Err(failure) => self.fits_nowhere(pod, failure, now),
        }
    }

    /// Parks the Pod, and makes room for it if that can be.
    pub(crate) fn fits_nowhere(&mut self, pod: Waiting, mut failure: Arc<Failure>, now: Instant) -> Decision {
        waypoint::scheduler::unschedulable(&pod.key.name);
        if let Some(why) = &failure.broken {
            let why = why.as_str().to_owned();
            self.queue.retry_later(pod.clone(), now);
            return Decision::Failed { pod, why };
        }
        if let Some(release) = self.release(&pod, &failure) {
            Arc::make_mut(&mut failure).release = release;
        }
        let mut plugins = failure.plugins;
        match self.preempt(&pod, &failure, &mut plugins, now) {
            Attempt::Made(preemption) => {
                self.park_beside(&pod, plugins, &preemption, now);
                Decision::Unschedulable { pod, failure, preemption }
            }
            Attempt::Candidates(candidates) => self.ask_about_victims(pod, failure, plugins, candidates),
        }
    }

    /// The claims that a plugin would give up so that the Pod fits later, and how it says so. Most Pods have no such
    /// plugin.
    fn release(&self, pod: &Waiting, failure: &Failure) -> Option<Release> {
        let (class, profile) = (self.cache.class(pod.class), self.profile(pod.class));
        let context = Context { cache: &self.cache, class, args: &profile.args, tallies: &[] };
        let releasing = profile.with(Part::Preempt).filter(|p| (p.plugin.concerns)(&context));
        releasing.filter_map(|p| p.plugin.release).map(|release| release(&context, pod, failure)).next()
    }

    /// The Pod goes to the node.
    fn assume(&mut self, pod: Waiting, id: NodeId, now: Instant) -> Decision {
        self.put_on(&pod, id, now);
        self.bind(pod, id)
    }

    /// A Pod that is on the node is bound to it.
    pub(crate) fn bind(&mut self, pod: Waiting, id: NodeId) -> Decision {
        let (node, prepare) = (self.cache.node(id).name.clone(), self.preparations(&pod));
        if !prepare.is_empty() {
            self.preparing.insert((pod.key.clone(), pod.uid.clone()));
        }
        Decision::Bind { pod, node, prepare }
    }

    /// The Pod counts as being on the node from now on, for all that it helps or hinders.
    pub(crate) fn put_on(&mut self, pod: &Waiting, id: NodeId, now: Instant) {
        let nominated = self.withdraw(&pod.key);
        let (class, priority) = (pod.class, pod.priority);
        let placed =
            Placed { node: id, class, terminating: false, assumed: true, priority, preempted: false, started: None };
        self.place(pod.key.clone(), placed);
        self.binding.insert(pod.key.clone(), pod.clone());
        self.retry(Change::PodAdded as u16, Some(id), now);
        if let Some(elsewhere) = nominated.filter(|n| n.node != id) {
            self.retry(Change::PodDeleted as u16, Some(elsewhere.node), now);
        }
    }

    /// The work of the plugins before a Pod is bound. For most it is nothing.
    fn preparations(&self, pod: &Waiting) -> Vec<Preparation> {
        let (class, profile) = (self.cache.class(pod.class), self.profile(pod.class));
        let context = Context { cache: &self.cache, class, args: &profile.args, tallies: &[] };
        let acting =
            profile.with(Part::PreBind).filter(|p| p.plugin.pre_bind.is_some() && (p.plugin.concerns)(&context));
        let preparation = |plugin: &'static Plugin| Preparation {
            plugin,
            class: class.clone(),
            args: profile.args.clone(),
            brought: (plugin.bring)(&self.cache, pod),
        };
        acting.map(|p| preparation(p.plugin)).collect()
    }

    fn find(&mut self, pod: &Waiting, try_nominated: bool, memo: &mut Memo) -> Result<Found, Arc<Failure>> {
        // A Pod like one that just failed fails the same way until something changes.
        if let Some((_, failure)) = memo.failure.as_ref().filter(|(g, _)| *g == self.cache.generation) {
            return Err(failure.clone());
        }
        self.cache.arrange();
        let (class, profile) = (memo.class().clone(), self.settings.profile(memo.class()));
        let (cache, args) = (&self.cache, &profile.args);
        let context = Context { cache, class: &class, args, tallies: &memo.tallies };
        if let Some(failure) = outright(profile, &context) {
            return Err(Arc::new(failure));
        }
        let plugins = concerned(profile, Part::Filter, &context);
        let mut search = Search::new(&context, self.settings.plugins, &plugins, pod, &self.nominations);
        search.wanted = wanted(profile.percentage_of_nodes_to_score, cache.order().len());
        let asks = self.settings.extenders.iter().any(|extender| extender.is_interested(&class, cache));
        search.all_reasons = asks;
        self.feasible.clear();
        waypoint::scheduler::filter(&pod.key.name);
        let scoring = concerned(profile, Part::Score, &context);
        let on = self.settings.features.enabled(Feature::OpportunisticBatching);
        let batches = on && !asks && self.nominations.is_empty() && can_batch(&plugins, &scoring);
        let (mut cycle, began) = (batch::Cycle::default(), self.time());
        let held = memo.batch.take_if(|_| batches);
        let next = held.map(|batch| next_of(batch, &mut search, &mut memo.fixed, &scoring));
        cycle.asking = self.since(began);
        match next {
            Some(Ok((id, batch))) => {
                memo.batch = Some(batch);
                self.batching = Some(batch::Cycle { served: true, ..cycle });
                return Ok(Found::Node(id));
            }
            Some(Err(flush)) => cycle.flushed = Some(flush),
            None => {}
        }
        self.batching = on.then_some(cycle);
        // The node where room was made needs no comparison with others.
        if let Some(nominated) = self.nominations.get(&pod.key).filter(|n| try_nominated && cache.node(n.node).known)
            && search.takes(nominated.node, &mut memo.fixed)
        {
            self.feasible.push(nominated.node);
            let failure = Failure::default();
            return Ok(if asks { Found::Ask { failure, nominated: true } } else { Found::Node(nominated.node) });
        }
        let (looked_at, failure) = search.run(self.start, &mut memo.fixed, &mut self.feasible);
        let kept_off = search.kept_off;
        self.start = (self.start + looked_at) % cache.order().len().max(1);
        if failure.broken.is_some() {
            return Err(Arc::new(failure));
        }
        if self.feasible.is_empty() {
            let failure = Arc::new(failure);
            // Room that is kept from this Pod may be free for another one of higher priority, so that failure is not kept.
            memo.failure = (!kept_off).then(|| (cache.generation, failure.clone()));
            return Err(failure);
        }
        if asks {
            return Ok(Found::Ask { failure, nominated: false });
        }
        waypoint::scheduler::score(&pod.key.name);
        let ranked = rank(&context, &scoring, &self.feasible, None);
        let best = best(&ranked);
        let began = self.time();
        memo.batch = batches.then(|| Batch::new(ranked, looked_at == cache.order().len(), cache));
        let keeping = Some(self.since(began));
        self.batching = on.then_some(batch::Cycle {
            keeping,
            flushed: if batches { cycle.flushed } else { Some(Flush::NotBatchable) },
            ..cycle
        });
        Ok(Found::Node(pick(&best)))
    }

    /// The time, where whoever drives the engine wants to know how long something takes. Nothing is decided by it.
    fn time(&self) -> Option<Instant> {
        self.stopwatch.map(|time| time())
    }

    fn since(&self, began: Option<Instant>) -> Duration {
        began.zip(self.time()).map_or(Duration::ZERO, |(began, now)| now.saturating_duration_since(began))
    }

    /// Lets the plugins reserve what the Pod will use on the node. When one cannot, all give back what they have.
    fn reserve(&mut self, pod: &Waiting, node: NodeId) -> Result<(), Arc<Failure>> {
        waypoint::scheduler::reserve(&pod.key.name);
        let profile = self.settings.profile(self.cache.class(pod.class));
        for enabled in profile.with(Part::Reserve) {
            let Some(reserve) = enabled.plugin.reserve else { continue };
            if let Err(rejection) = reserve(&mut self.cache, pod, node) {
                let mut failure = Failure::default();
                failure.add(enabled.index, node, rejection);
                give_back(profile, &mut self.cache, pod, node, false);
                return Err(Arc::new(failure));
            }
        }
        Ok(())
    }

    /// The plugins give back what they reserved for the Pod, the last one first.
    pub(crate) fn unreserve(&mut self, pod: &Waiting, node: NodeId, now: Instant) {
        let profile = self.settings.profile(self.cache.class(pod.class));
        let under_way = self.preparing.contains(&(pod.key.clone(), pod.uid.clone()));
        give_back(profile, &mut self.cache, pod, node, under_way);
        if self.cache.devices.was_freed() {
            self.devices_freed(now);
        }
    }
}

/// Whether one search can serve several Pods: what other nodes have must not matter to any plugin.
fn can_batch(filtering: &[Enabled], scoring: &[Enabled]) -> bool {
    filtering.iter().all(|enabled| enabled.plugin.node_local)
        && scoring
            .iter()
            .all(|enabled| enabled.plugin.score.is_none() || enabled.plugin.scores_by != ScoresBy::Everything)
}

/// The node that the last search has for one more Pod, and what it has for others.
fn next_of(
    mut batch: Batch,
    search: &mut Search,
    fixed: &mut Fixed,
    scoring: &[Enabled],
) -> Result<(NodeId, Batch), Flush> {
    let context = search.context;
    let best = batch.follow(context.cache, |id| search.takes(id, fixed).then(|| rank_again(context, scoring, id)))?;
    Ok((pick(&best), batch))
}

/// `under_way`: the writes before the binding are not over yet.
fn give_back(profile: &Profile, cache: &mut Cache, pod: &Waiting, node: NodeId, under_way: bool) {
    let giving = profile.with(Part::Reserve).rev().filter(|p| !(under_way && p.plugin.holds));
    for unreserve in giving.filter_map(|p| p.plugin.unreserve) {
        unreserve(cache, pod, node);
    }
}

/// Why no node can do, when a plugin knows that before any is looked at.
fn outright(profile: &Profile, context: &Context) -> Option<Failure> {
    profile.with(Part::Filter).find_map(|enabled| {
        let reason = enabled.plugin.admit?(context).err()?;
        let nodes = context.cache.order().len();
        Some(Failure { nodes, plugins: 1 << enabled.index, outright: Some(reason), ..Failure::default() })
    })
}

/// How many fitting nodes are enough, so that a search over a large cluster ends early.
fn wanted(percentage: usize, nodes: usize) -> usize {
    let percentage = match percentage {
        0 => 50usize.saturating_sub(nodes / 125).max(5),
        given => given,
    };
    if nodes < LEAST_NODES || percentage >= 100 { nodes } else { (nodes * percentage / 100).max(LEAST_NODES) }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    /// An engine that schedules Pods `p`, each waiting for the one before, and what each had of batches.
    fn batches(on: bool, affinity: &json::Value, pods: usize) -> Vec<Option<batch::Cycle>> {
        let features = api::features::Features::default().with(Feature::OpportunisticBatching, on);
        let (mut engine, now) = (Engine::new(crate::Settings { features, ..Default::default() }), Instant::now());
        for name in ["a", "b"] {
            let labels = json!({"kubernetes.io/hostname": name});
            let node = json!({"metadata": {"name": name, "labels": labels},
                "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "9"}}});
            engine.set_node(&json::from_value(node).unwrap(), now);
        }
        let one = |index: usize| {
            let name = format!("p{index}");
            let resources = json!({"requests": {"cpu": "1"}});
            let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": "a"}},
                "spec": {"containers": [{"name": "c", "resources": resources}], "affinity": affinity}});
            engine.set_pod(&json::from_value(pod).unwrap(), now);
            let bound = matches!(engine.schedule_one(now), Some(Decision::Bind { .. }));
            assert_eq!(bound, index < 4, "two Pods fit each of two nodes");
            engine.batching.take()
        };
        (0..pods).map(one).collect()
    }

    #[test]
    fn a_search_serves_the_next_pod_of_a_class_that_looks_at_no_other_pods() {
        let none = json!(null);
        let near = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]}});
        let said = |on: bool, affinity: &json::Value, pods: usize| {
            let told = batches(on, affinity, pods).into_iter().map(|cycle| {
                cycle.map(|cycle| (cycle.served, cycle.flushed.map(Flush::as_str), cycle.keeping.is_some()))
            });
            told.collect::<Vec<_>>()
        };
        let (searched, served) = (Some((false, None, true)), Some((true, None, false)));
        assert_eq!(
            said(true, &none, 5),
            [searched, served, served, served, Some((false, Some("empty_list"), false))],
            "until all nodes are full"
        );
        let alone = Some((false, Some("pod_not_batchable"), true));
        assert_eq!(said(true, &near, 2), [alone, alone], "other Pods matter");
        assert_eq!(said(false, &none, 4), [None; 4], "the feature is off");
    }
}
