//! The scheduler at work: watch events go from the client's caches into the engine, its decisions to the API.
//!
//! One task owns the engine. Writes go out many at a time and only report back when they fail, so that deciding never
//! waits for the server.
//! Reads: Node, Pod, Namespace, PodDisruptionBudget. Writes: Pod/binding, Pod/status, Pod (delete), Event.
//! Upstream counterpart: pkg/scheduler (ScheduleOne, eventhandlers).

use std::{collections::BTreeSet, future::pending, sync::Arc};

use client::{Cache, Caches, EventRecorder, Key, Kind};
use clock::Instant;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError, error::TryRecvError},
    task::JoinSet,
};

use crate::{
    bind::{self, Nomination, Outcome},
    engine::{Decision, Engine, Settings},
    failure::{Preemption, Victims},
    plugin::Plugin,
};

/// How many writes may be under way. The engine pauses while there are as many.
const WRITES: usize = 256;
/// How many Pods are decided before events are read and other tasks get their turn.
const BATCH: usize = 32;

/// One kind's cache with the changes that the engine has not seen.
struct Feed<K> {
    cache: Arc<Cache<K>>,
    changes: Receiver<client::Change<K>>,
}

impl<K: Kind> Feed<K> {
    fn new(caches: &Caches) -> Self {
        let cache = caches.of::<K>();
        Feed { changes: cache.subscribe(), cache }
    }

    /// Hands over all changes that are there. When some were lost, everything that the cache holds is handed over, and
    /// those of `held` that it does not hold as gone.
    fn drain(&mut self, engine: &mut Engine, held: fn(&Engine) -> Vec<Key>, apply: Apply<K>) {
        loop {
            match self.changes.try_recv() {
                Ok(change) => apply(engine, &change.key, change.new.as_deref()),
                Err(TryRecvError::Lagged(_)) => {
                    self.changes = self.changes.resubscribe();
                    self.replay(engine, held, apply);
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn replay(&self, engine: &mut Engine, held: fn(&Engine) -> Vec<Key>, apply: Apply<K>) {
        let objects = self.cache.list();
        let there: BTreeSet<Key> = objects.iter().map(|o| Key::of(&**o)).collect();
        held(engine).iter().filter(|key| !there.contains(key)).for_each(|key| apply(engine, key, None));
        objects.iter().for_each(|o| apply(engine, &Key::of(&**o), Some(o)));
    }

    /// The next change, or `None` when some were lost.
    async fn next(&mut self) -> Option<client::Change<K>> {
        match self.changes.recv().await {
            Ok(change) => Some(change),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => pending().await,
        }
    }
}

type Apply<K> = fn(&mut Engine, &Key, Option<&K>);

struct Feeds {
    nodes: Feed<Node>,
    pods: Feed<Pod>,
    namespaces: Feed<Namespace>,
    budgets: Feed<PodDisruptionBudget>,
}

fn apply_node(engine: &mut Engine, key: &Key, node: Option<&Node>) {
    match node {
        Some(node) => engine.set_node(node, Instant::now()),
        None => engine.remove_node(&key.name, Instant::now()),
    }
}

fn apply_pod(engine: &mut Engine, key: &Key, pod: Option<&Pod>) {
    match pod {
        Some(pod) => engine.set_pod(pod, Instant::now()),
        None => engine.remove_pod(key, Instant::now()),
    }
}

fn apply_namespace(engine: &mut Engine, key: &Key, namespace: Option<&Namespace>) {
    match namespace {
        Some(namespace) => engine.set_namespace(namespace, Instant::now()),
        None => engine.remove_namespace(&key.name, Instant::now()),
    }
}

fn apply_budget(engine: &mut Engine, key: &Key, budget: Option<&PodDisruptionBudget>) {
    match budget {
        Some(budget) => engine.set_budget(budget),
        None => engine.remove_budget(key),
    }
}

impl Feeds {
    /// Subscribes before it reads, so that nothing falls between.
    async fn start(caches: &Caches, engine: &mut Engine) -> Self {
        let feeds = Feeds {
            nodes: Feed::new(caches),
            pods: Feed::new(caches),
            namespaces: Feed::new(caches),
            budgets: Feed::new(caches),
        };
        feeds.nodes.cache.synced().await;
        feeds.pods.cache.synced().await;
        feeds.namespaces.cache.synced().await;
        feeds.budgets.cache.synced().await;
        feeds.budgets.replay(engine, Engine::budget_keys, apply_budget);
        feeds.namespaces.replay(engine, Engine::namespace_keys, apply_namespace);
        feeds.nodes.replay(engine, Engine::node_keys, apply_node);
        feeds.pods.replay(engine, Engine::pod_keys, apply_pod);
        feeds
    }

    fn drain(&mut self, engine: &mut Engine) {
        self.budgets.drain(engine, Engine::budget_keys, apply_budget);
        self.namespaces.drain(engine, Engine::namespace_keys, apply_namespace);
        self.nodes.drain(engine, Engine::node_keys, apply_node);
        self.pods.drain(engine, Engine::pod_keys, apply_pod);
    }

    /// Waits for a change and applies it.
    async fn next(&mut self, engine: &mut Engine) {
        tokio::select! {
            biased;
            node = self.nodes.next() => match node {
                Some(change) => apply_node(engine, &change.key, change.new.as_deref()),
                None => self.nodes.replay(engine, Engine::node_keys, apply_node),
            },
            pod = self.pods.next() => match pod {
                Some(change) => apply_pod(engine, &change.key, change.new.as_deref()),
                None => self.pods.replay(engine, Engine::pod_keys, apply_pod),
            },
            namespace = self.namespaces.next() => match namespace {
                Some(change) => apply_namespace(engine, &change.key, change.new.as_deref()),
                None => self.namespaces.replay(engine, Engine::namespace_keys, apply_namespace),
            },
            budget = self.budgets.next() => match budget {
                Some(change) => apply_budget(engine, &change.key, change.new.as_deref()),
                None => self.budgets.replay(engine, Engine::budget_keys, apply_budget),
            },
        }
    }
}

/// Schedules until the future is dropped.
pub async fn run(caches: Caches, settings: Settings) {
    let recorder = EventRecorder::new(caches.client().clone(), &settings.scheduler_name, None);
    let plugins = settings.plugins;
    let mut engine = Engine::new(settings);
    let mut feeds = Feeds::start(&caches, &mut engine).await;
    let mut writes: JoinSet<Outcome> = JoinSet::new();
    loop {
        feeds.drain(&mut engine);
        let mut decided = 0;
        while decided < BATCH && writes.len() < WRITES {
            let Some(decision) = engine.schedule_one(Instant::now()) else { break };
            decided += 1;
            start_write(&mut writes, &caches, plugins, &recorder, decision);
        }
        if decided == BATCH {
            while let Some(outcome) = writes.try_join_next() {
                settle(&mut engine, outcome);
            }
            tokio::task::yield_now().await;
            continue;
        }
        let wake = engine.wake_at();
        tokio::select! {
            biased;
            Some(outcome) = writes.join_next() => settle(&mut engine, outcome),
            () = feeds.next(&mut engine) => {}
            () = async { clock::sleep_until(wake.unwrap_or_else(Instant::now)).await }, if wake.is_some() => {}
        }
    }
}

fn start_write(
    writes: &mut JoinSet<Outcome>,
    caches: &Caches,
    plugins: &'static [Plugin],
    recorder: &EventRecorder,
    decision: Decision,
) {
    match decision {
        Decision::Bind { pod, node } => {
            writes.spawn(bind::bind(caches.clone(), recorder.clone(), plugins, pod, node));
        }
        Decision::Unschedulable { pod, failure, preemption } => {
            let (client, pods) = (caches.client().clone(), caches.of::<Pod>());
            let Some(object) = pods.get(&pod.key) else {
                // Nobody needs the room any more.
                if let Preemption::Victims(Victims { pods: victims, .. }) = preemption {
                    writes.spawn(async move { Outcome::NotPreempted { preemptor: pod.key, victims } });
                }
                return;
            };
            let message = failure.message(&preemption);
            let nominated = match preemption {
                Preemption::Victims(Victims { node, pods: victims, displaced }) => {
                    for other in displaced.iter().filter_map(|key| pods.get(key)) {
                        writes.spawn(bind::clear_nomination(client.clone(), other));
                    }
                    let victims: Vec<_> = victims.iter().filter_map(|key| pods.get(key)).collect();
                    if !victims.is_empty() {
                        let (recorder, node) = (recorder.clone(), node.clone());
                        let scheduler = object.spec.as_ref().and_then(|s| s.scheduler_name.as_deref());
                        let scheduler = Arc::from(scheduler.unwrap_or("default-scheduler"));
                        writes.spawn(bind::evict(client.clone(), recorder, scheduler, pod, node, victims));
                    }
                    Nomination::Node(node)
                }
                Preemption::Fruitless(_) => Nomination::None,
                Preemption::NotEligible(_) => Nomination::AsBefore,
            };
            writes.spawn(bind::report(client, recorder.clone(), object, message, nominated));
        }
    }
}

fn settle(engine: &mut Engine, outcome: Result<Outcome, tokio::task::JoinError>) {
    match outcome {
        Ok(Outcome::NotBound { key, uid }) => engine.bind_failed(&key, &uid, Instant::now()),
        Ok(Outcome::NotPreempted { preemptor, victims }) => {
            engine.preemption_failed(&preemptor, &victims, Instant::now());
        }
        Ok(Outcome::Done) => {}
        Err(error) => tracing::error!(%error, "a write of the scheduler panicked"),
    }
}
