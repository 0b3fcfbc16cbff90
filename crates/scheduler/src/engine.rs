//! The engine: watch events in, decisions out. It knows no API and no task, so a benchmark can drive it alone.

use std::{collections::HashMap, sync::Arc};

use client::Key;
use clock::Instant;
use k8s_openapi::api::core::v1::{self, Namespace};

use crate::{
    class::ClassId,
    failure::Failure,
    node::NodeId,
    picture::{Memo, Picture},
    plugin::{Change, Context, Filter, PLUGINS, Plugin},
    queue::{Queue, Waiting},
};

/// What the engine is told once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Pods that name another scheduler are left alone.
    pub scheduler_name: String,
    /// How many of the nodes, in percent, must be found to fit before the search ends; 0 chooses by their number.
    pub percentage_of_nodes_to_score: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { scheduler_name: "default-scheduler".to_owned(), percentage_of_nodes_to_score: 0 }
    }
}

/// The outcome of one cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The Pod is assumed to be on the node: bind it, and tell [`Engine::bind_failed`] if that fails.
    Bind { pod: Waiting, node: Arc<str> },
    /// The Pod fits nowhere and is parked.
    Unschedulable { pod: Waiting, failure: Arc<Failure> },
}

/// See the module.
#[derive(Default)]
pub struct Engine {
    settings: Settings,
    pub picture: Picture,
    pub queue: Queue,
    /// Assumed Pods whose binding the API has not shown yet.
    binding: HashMap<Key, Waiting>,
    /// Where the next search over the nodes starts.
    start: usize,
    feasible: Vec<NodeId>,
}

/// Below this many nodes all are looked at, and never are fewer found before the search ends.
const LEAST_NODES: usize = 100;

impl Engine {
    pub fn new(settings: Settings) -> Self {
        Engine { settings, ..Engine::default() }
    }

    // Events.

    pub fn set_node(&mut self, node: &v1::Node, now: Instant) {
        let (id, changes) = self.picture.set_node(node);
        if changes != 0 {
            self.retry(changes, Some(id), now);
        }
    }

    pub fn remove_node(&mut self, name: &str, now: Instant) {
        self.picture.remove_node(name);
        // A smaller cluster can meet a spread constraint that a greater one does not.
        self.retry(Change::NodeLabels as u16, None, now);
    }

    pub fn set_namespace(&mut self, namespace: &Namespace, now: Instant) {
        let name = namespace.metadata.name.as_deref().unwrap_or("");
        if self.picture.set_namespace(name, Some(namespace.metadata.labels.clone().unwrap_or_default())) {
            self.retry(Change::NamespaceLabels as u16, None, now);
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.picture.set_namespace(name, None);
    }

    pub fn set_pod(&mut self, pod: &v1::Pod, now: Instant) {
        let key = Key::of(pod);
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return self.remove_pod(&key, now);
        }
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        match node {
            Some(node) => self.set_placed(key, pod, node, now),
            None => self.set_waiting(key, pod, now),
        }
    }

    fn set_placed(&mut self, key: Key, pod: &v1::Pod, node: &str, now: Instant) {
        self.forget_waiting(&key);
        self.binding.remove(&key);
        let class = self.picture.enter_class(pod);
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let mut changes = Change::PodAdded as u16;
        if let Some(held) = self.picture.placed(&key).cloned() {
            let there = self.picture.node(held.node).name.as_ref() == node;
            if there && held.class == class && held.terminating == terminating {
                self.picture.leave_class(class);
                self.picture.confirm(&key);
                if held.assumed {
                    self.retry(changes, Some(held.node), now);
                }
                return;
            }
            self.picture.unplace(&key);
            self.picture.leave_class(held.class);
            changes = Change::PodLabels as u16 | Change::PodDeleted as u16;
        }
        self.picture.place(key, node, class, terminating, false);
        let id = self.picture.node_id(node);
        self.retry(changes, id, now);
    }

    fn set_waiting(&mut self, key: Key, pod: &v1::Pod, now: Instant) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(binding) = self.binding.get(&key) {
            if binding.uid == uid {
                return;
            }
            self.remove_pod(&key, now);
        } else if self.picture.placed(&key).is_some() {
            self.remove_pod(&key, now);
        }
        let spec = pod.spec.as_ref();
        let named = spec.and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler");
        if named != self.settings.scheduler_name || pod.metadata.deletion_timestamp.is_some() {
            self.forget_waiting(&key);
            return;
        }
        let class = self.picture.enter_class(pod);
        let waiting = Waiting {
            uid,
            class,
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            gated: spec.and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty()),
            never_preempts: spec.and_then(|s| s.preemption_policy.as_deref()) == Some("Never"),
            attempts: 0,
            key,
        };
        if self.queue.get(&waiting.key).is_some_and(|held| Waiting { attempts: 0, ..held.clone() } == waiting) {
            self.picture.leave_class(class);
            return;
        }
        self.forget_waiting(&waiting.key);
        waypoint::scheduler::queue(&waiting.key.name);
        self.queue.add(waiting, now);
    }

    fn forget_waiting(&mut self, key: &Key) {
        if let Some(waiting) = self.queue.remove(key) {
            self.picture.leave_class(waiting.class);
        }
    }

    /// The Pod is gone, or will use no node any more.
    pub fn remove_pod(&mut self, key: &Key, now: Instant) {
        self.forget_waiting(key);
        self.binding.remove(key);
        if let Some(placed) = self.picture.unplace(key) {
            self.picture.leave_class(placed.class);
            self.retry(Change::PodDeleted as u16, Some(placed.node), now);
        }
    }

    /// The binding that was decided did not come about: the Pod waits again.
    pub fn bind_failed(&mut self, key: &Key, uid: &str, now: Instant) {
        if self.binding.get(key).is_none_or(|b| b.uid != uid) {
            return;
        }
        let (Some(waiting), Some(placed)) = (self.binding.remove(key), self.picture.unplace(key)) else { return };
        self.queue.retry_later(waiting, now);
        self.retry(Change::PodDeleted as u16, Some(placed.node), now);
    }

    /// Keys of all Pods that the engine holds, for a comparison with the API.
    pub fn pod_keys(&self) -> Vec<Key> {
        self.picture.pods().map(|(key, _)| key.clone()).chain(self.queue.keys().cloned()).collect()
    }

    /// Keys of all nodes that have a Node object.
    pub fn node_keys(&self) -> Vec<Key> {
        self.picture.nodes().filter(|(_, n)| n.known).map(|(_, n)| Key::new("", &*n.name)).collect()
    }

    pub fn namespace_keys(&self) -> Vec<Key> {
        self.picture.namespaces.keys().map(|name| Key::new("", name)).collect()
    }

    /// Puts parked Pods back that the changes could help. `node` is where they happened.
    fn retry(&mut self, changes: u16, node: Option<NodeId>, now: Instant) {
        for (class, plugins) in self.queue.parked() {
            if self.could_help(changes, node, class, plugins) {
                self.queue.retry(class, now);
            }
        }
    }

    fn could_help(&self, changes: u16, node: Option<NodeId>, class: ClassId, plugins: u32) -> bool {
        let those = || PLUGINS.iter().enumerate().filter(move |(i, _)| plugins & (1 << i) != 0).map(|(_, p)| p);
        // No plugin turned the Pod away: there was no node at all.
        let asked = if plugins == 0 { changes & Change::NodeAdded as u16 } else { changes };
        if plugins != 0 && !those().any(|p| p.retry_bits() & asked != 0) {
            return false;
        }
        let Some(id) = node.filter(|_| those().all(|p| p.node_local)) else { return asked != 0 };
        let Some(Some(there)) = self.picture.nodes.get(id.index()) else { return false };
        let context = Context { picture: &self.picture, class: self.picture.class(class), tallies: &[] };
        there.known
            && PLUGINS.iter().filter(|p| p.node_local && (p.concerns)(&context)).all(|p| match p.filter {
                Filter::None => true,
                Filter::Fixed { fits, .. } => fits(context.class, there),
                Filter::Live(filter) => filter(&context, id, there).is_ok(),
            })
    }

    // Cycles.

    /// When to ask again if [`Engine::schedule_one`] has nothing to do.
    pub fn wake_at(&self) -> Option<Instant> {
        self.queue.wake_at()
    }

    /// Takes the next Pod and decides. `None` when none is to be tried now.
    pub fn schedule_one(&mut self, now: Instant) -> Option<Decision> {
        let pod = self.queue.pop(now)?;
        waypoint::scheduler::schedule_one(&pod.key.name);
        let mut memo = self.picture.take_memo(pod.class);
        let found = self.find(&pod, &mut memo);
        self.picture.put_memo(pod.class, memo);
        Some(match found {
            Ok(id) => {
                let node = self.picture.node(id).name.clone();
                waypoint::scheduler::reserve(&pod.key.name);
                self.picture.place(pod.key.clone(), &node, pod.class, false, true);
                self.binding.insert(pod.key.clone(), pod.clone());
                Decision::Bind { pod, node }
            }
            Err(failure) => {
                waypoint::scheduler::unschedulable(&pod.key.name);
                self.queue.park(pod.clone(), failure.plugins, now);
                Decision::Unschedulable { pod, failure }
            }
        })
    }

    fn find(&mut self, pod: &Waiting, memo: &mut Memo) -> Result<NodeId, Arc<Failure>> {
        // A Pod like one that just failed fails the same way until something changes.
        let same = |f: &Failure| f.never_preempts == pod.never_preempts;
        if let Some((_, failure)) = memo.failure.as_ref().filter(|(g, f)| *g == self.picture.generation && same(f)) {
            return Err(failure.clone());
        }
        self.picture.arrange();
        let class = self.picture.class(pod.class).clone();
        let (picture, tallies) = (&self.picture, &memo.tallies);
        let context = Context { picture, class: &class, tallies };
        let plugins: Vec<(usize, &Plugin)> =
            PLUGINS.iter().enumerate().filter(|(_, p)| (p.concerns)(&context)).collect();
        let search = Search { context: &context, plugins: &plugins, wanted: self.wanted(picture.order().len()) };
        self.feasible.clear();
        waypoint::scheduler::filter(&pod.key.name);
        let (looked_at, mut failure) = search.run(self.start, &mut memo.fixed, &mut self.feasible);
        self.start = (self.start + looked_at) % picture.order().len().max(1);
        if self.feasible.is_empty() {
            failure.never_preempts = pod.never_preempts;
            let failure = Arc::new(failure);
            memo.failure = Some((picture.generation, failure.clone()));
            return Err(failure);
        }
        waypoint::scheduler::score(&pod.key.name);
        Ok(select(&context, &plugins, &self.feasible))
    }

    /// How many fitting nodes are enough, so that a search over a large cluster ends early.
    fn wanted(&self, nodes: usize) -> usize {
        let percentage = match self.settings.percentage_of_nodes_to_score {
            0 => 50usize.saturating_sub(nodes / 125).max(5),
            given => given,
        };
        if nodes < LEAST_NODES || percentage >= 100 { nodes } else { (nodes * percentage / 100).max(LEAST_NODES) }
    }
}

/// One search over the nodes.
struct Search<'a> {
    context: &'a Context<'a>,
    plugins: &'a [(usize, &'a Plugin)],
    wanted: usize,
}

impl Search<'_> {
    /// Collects fitting nodes, beginning at `start` of the order. Answers how many it looked at, and why those that do not
    /// fit do not.
    fn run(
        &self,
        start: usize,
        fixed: &mut [Option<(u32, Option<u8>)>],
        feasible: &mut Vec<NodeId>,
    ) -> (usize, Failure) {
        let mut failure = Failure::default();
        let picture = self.context.picture;
        let order = picture.order();
        if let Some(names) = &self.context.class.only_nodes {
            let named: Vec<NodeId> =
                names.iter().filter_map(|n| picture.node_id(n)).filter(|id| picture.node(*id).known).collect();
            let (index, plugin) =
                self.plugins.iter().find(|(_, p)| p.name == "NodeAffinity").expect("it concerns them");
            failure.add_unnamed(*index, plugin.name, order.len() - named.len());
            named.into_iter().for_each(|id| self.look(id, fixed, feasible, &mut failure));
            return (0, failure);
        }
        let start = if order.is_empty() { 0 } else { start % order.len() };
        let mut looked_at = 0;
        for id in order[start..].iter().chain(&order[..start]) {
            looked_at += 1;
            self.look(*id, fixed, feasible, &mut failure);
            if feasible.len() >= self.wanted {
                break;
            }
        }
        (looked_at, failure)
    }

    fn look(
        &self,
        id: NodeId,
        fixed: &mut [Option<(u32, Option<u8>)>],
        feasible: &mut Vec<NodeId>,
        failure: &mut Failure,
    ) {
        let node = self.context.picture.node(id);
        let verdict = match fixed[id.index()] {
            Some((version, verdict)) if version == node.version => verdict,
            _ => {
                let mut asked = self.plugins.iter();
                let refused = asked
                    .find(|(_, p)| matches!(p.filter, Filter::Fixed { fits, .. } if !fits(self.context.class, node)));
                let verdict = refused.map(|(index, _)| *index as u8);
                fixed[id.index()] = Some((node.version, verdict));
                verdict
            }
        };
        if let Some(index) = verdict {
            if feasible.is_empty() {
                let Filter::Fixed { reason, .. } = PLUGINS[usize::from(index)].filter else { return };
                failure.add(usize::from(index), crate::plugin::Rejection::unresolvable(reason));
            }
            return;
        }
        for (index, plugin) in self.plugins {
            let Filter::Live(filter) = plugin.filter else { continue };
            if let Err(rejection) = filter(self.context, id, node) {
                // Reasons are read only when no node fits.
                if feasible.is_empty() {
                    failure.add(*index, rejection);
                }
                return;
            }
        }
        feasible.push(id);
    }
}

/// The best of the nodes; among equals a random one.
fn select(context: &Context, plugins: &[(usize, &Plugin)], nodes: &[NodeId]) -> NodeId {
    if let [only] = nodes {
        return *only;
    }
    let mut totals = vec![0; nodes.len()];
    let mut scores = vec![0; nodes.len()];
    for (_, plugin) in plugins {
        let Some(score) = plugin.score else { continue };
        scores.fill(0);
        score(context, nodes, &mut scores);
        totals.iter_mut().zip(&scores).for_each(|(total, score)| *total += plugin.weight * score);
    }
    let best = *totals.iter().max().expect("there is a node");
    let mut equals = totals.iter().zip(nodes).filter(|(total, _)| **total == best).map(|(_, id)| *id);
    let count = equals.clone().count() as u64;
    let pick = if count == 1 { 0 } else { clock::random_range(0..count) };
    equals.nth(pick as usize).expect("picked below their number")
}
