//! The scheduler's metrics, under upstream's names. The engine only counts what comes into its queue; times are measured
//! by what drives it, so that deciding needs no clock.
//! Upstream counterpart: pkg/scheduler/metrics.

use std::{collections::BTreeMap, fmt, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{
    batch::{self, Flush},
    claims_made::ClaimsMade,
    engine::{Decision, Engine},
    failure::{Preemption, Victims},
    queue::Waiting,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Attempt {
    profile: String,
    /// `scheduled`, `unschedulable` or `error`.
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Attempts {
    attempts: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InQueue {
    queue: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Incoming {
    event: &'static str,
    queue: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnedAway {
    plugin: &'static str,
    profile: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Held {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProfile {
    profile: String,
}

/// `hint_used` or `no_hint`. A hint that is not used does not happen here: a batch knows what its nodes have now.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Batched {
    profile: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Flushed {
    profile: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hinted {
    hinted: &'static str,
    profile: String,
}

/// The number of attempts on a Pod from which they are not told apart, so that a Pod that never fits makes no series of
/// its own.
const MANY_ATTEMPTS: u32 = 15;

/// All that one scheduler counts. Whoever serves the page may ask for it at any time.
pub struct Metrics {
    registry: Mutex<Registry>,
    attempts: Family<Attempt, Counter>,
    attempt_seconds: Family<Attempt, Histogram, fn() -> Histogram>,
    algorithm_seconds: Histogram,
    sli_seconds: Family<Attempts, Histogram, fn() -> Histogram>,
    attempts_of_pods: Histogram,
    pending: Family<InQueue, Gauge>,
    incoming: Family<Incoming, Counter>,
    preemptions: Counter,
    victims: Histogram,
    turned_away: Family<TurnedAway, Gauge>,
    held: Family<Held, Gauge>,
    pub(crate) made: ClaimsMade,
    batched: Family<Batched, Counter>,
    flushed: Family<Flushed, Counter>,
    hint_seconds: Family<Hinted, Histogram, fn() -> Histogram>,
    store_seconds: Family<OfProfile, Histogram, fn() -> Histogram>,
}

fn attempt_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn batch_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.00001, 2.0, 12))
}

fn sli_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 2.0, 20))
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Metrics {
            registry: Mutex::default(),
            attempts: Family::default(),
            attempt_seconds: Family::new_with_constructor(attempt_seconds),
            algorithm_seconds: attempt_seconds(),
            sli_seconds: Family::new_with_constructor(sli_seconds),
            attempts_of_pods: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            pending: Family::default(),
            incoming: Family::default(),
            preemptions: Counter::default(),
            victims: Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            turned_away: Family::default(),
            held: Family::default(),
            made: ClaimsMade::default(),
            batched: Family::default(),
            flushed: Family::default(),
            hint_seconds: Family::new_with_constructor(batch_seconds),
            store_seconds: Family::new_with_constructor(batch_seconds),
        };
        metrics.register(&mut metrics.registry.lock());
        metrics
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Counters get `_total` behind their names from the registry.
    fn register(&self, registry: &mut Registry) {
        let to = registry.sub_registry_with_prefix("scheduler");
        to.register("schedule_attempts", "Attempts to schedule a Pod, by result", self.attempts.clone());
        let help = "Time of one attempt in seconds, deciding and binding";
        to.register("scheduling_attempt_duration_seconds", help, self.attempt_seconds.clone());
        let help = "Time of deciding about one Pod in seconds";
        to.register("scheduling_algorithm_duration_seconds", help, self.algorithm_seconds.clone());
        let help = "Time in seconds from a Pod's first place in the queue until it is bound";
        to.register("pod_scheduling_sli_duration_seconds", help, self.sli_seconds.clone());
        let help = "Attempts that it took to schedule a Pod";
        to.register("pod_scheduling_attempts", help, self.attempts_of_pods.clone());
        to.register("pending_pods", "Pods that wait, by queue", self.pending.clone());
        let help = "Pods that came into a queue, by queue and event";
        to.register("queue_incoming_pods", help, self.incoming.clone());
        to.register("preemption_attempts", "Attempts to make room for a Pod", self.preemptions.clone());
        to.register("preemption_victims", "Pods that had to go for another one", self.victims.clone());
        let help = "Waiting Pods that a plugin turned away in their last attempt";
        to.register("unschedulable_pods", help, self.turned_away.clone());
        to.register("cache_size", "Nodes and Pods in the scheduler's memory", self.held.clone());
        self.made.register(to);
        let help = "Pods that were to get their node from the search for another one, by result";
        to.register("batch_attempts", help, self.batched.clone());
        to.register("batch_cache_flushed", "Searches that serve no more Pods, by reason", self.flushed.clone());
        let help = "Time of asking the last search for a node in seconds";
        to.register("get_node_hint_duration_seconds", help, self.hint_seconds.clone());
        let help = "Time of keeping what a search found in seconds";
        to.register("store_schedule_results_duration_seconds", help, self.store_seconds.clone());
    }

    /// The lines of the metrics page.
    pub fn render(&self) -> String {
        let mut page = String::new();
        // Writing into a String does not fail.
        let _ = text::encode_registry(&mut page, &self.registry.lock());
        named_as_their_samples(&page)
    }

    /// A decision was made for a Pod of a profile; deciding took so long. A Pod that gets a node is counted when it is bound.
    pub(crate) fn decided(&self, decision: &Decision, profile: &str, took: Duration) {
        self.algorithm_seconds.observe(took.as_secs_f64());
        let result = match decision {
            Decision::Bind { .. } | Decision::Waits { .. } | Decision::Consult(_) => return,
            Decision::Failed { .. } => "error",
            Decision::Unschedulable { preemption, .. } => {
                if !matches!(preemption, Preemption::Off | Preemption::NotTried) {
                    self.preemptions.inc();
                }
                if let Preemption::Victims(Victims { pods, sent_back, .. }) = preemption {
                    self.victims.observe((pods.len() + sent_back.len()) as f64);
                }
                "unschedulable"
            }
        };
        self.attempted(profile, result, took);
    }

    /// Counts the part of batches in the cycle of a Pod of a profile.
    pub(crate) fn batched(&self, cycle: batch::Cycle, profile: &str) {
        let profile = profile.to_owned();
        let result = if cycle.served { "hint_used" } else { "no_hint" };
        self.batched.get_or_create(&Batched { profile: profile.clone(), result }).inc();
        if let Some(reason) = cycle.flushed.map(Flush::as_str) {
            self.flushed.get_or_create(&Flushed { profile: profile.clone(), reason }).inc();
        }
        let hinted = Hinted { hinted: if cycle.served { "hint" } else { "no_hint" }, profile: profile.clone() };
        self.hint_seconds.get_or_create(&hinted).observe(cycle.asking.as_secs_f64());
        if let Some(keeping) = cycle.keeping {
            self.store_seconds.get_or_create(&OfProfile { profile }).observe(keeping.as_secs_f64());
        }
    }

    /// A Pod was bound, or could not be, so long after the scheduler began to decide about it.
    pub(crate) fn bound(&self, pod: &Waiting, profile: &str, worked: bool, took: Duration) {
        self.attempted(profile, if worked { "scheduled" } else { "error" }, took);
        if !worked {
            return;
        }
        let attempts = pod.attempts + pod.errors + 1;
        self.attempts_of_pods.observe(f64::from(attempts));
        let label = if attempts < MANY_ATTEMPTS { attempts.to_string() } else { format!("{MANY_ATTEMPTS}+") };
        if let Some(since) = pod.waits_since {
            let waited = clock::Instant::now().saturating_duration_since(since);
            self.sli_seconds.get_or_create(&Attempts { attempts: label }).observe(waited.as_secs_f64());
        }
    }

    fn attempted(&self, profile: &str, result: &'static str, took: Duration) {
        let labels = Attempt { profile: profile.to_owned(), result };
        self.attempts.get_or_create(&labels).inc();
        self.attempt_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Takes over what the engine holds and has counted since the last time.
    pub(crate) fn follow(&self, engine: &mut Engine) {
        // No page is written while the numbers change.
        let _page = self.registry.lock();
        for ((queue, event), count) in engine.queue.take_incoming() {
            self.incoming.get_or_create(&Incoming { event, queue }).inc_by(count);
        }
        for (queue, count) in engine.queue.lengths() {
            self.pending.get_or_create(&InQueue { queue }).set(count as i64);
        }
        for (r#type, count) in engine.sizes() {
            self.held.get_or_create(&Held { r#type }).set(count as i64);
        }
        let mut turned_away: BTreeMap<(usize, &str), i64> = BTreeMap::new();
        for (parked, pods) in engine.queue.parked_counts() {
            let profile = &engine.profile(parked.class).scheduler_name;
            let plugins = (0..engine.settings.plugins.len()).filter(|index| parked.plugins & (1 << index) != 0);
            plugins.for_each(|index| *turned_away.entry((index, profile)).or_default() += pods as i64);
        }
        self.turned_away.clear();
        for ((index, profile), pods) in turned_away {
            let labels = TurnedAway { plugin: engine.settings.plugins[index].name, profile: profile.to_owned() };
            self.turned_away.get_or_create(&labels).set(pods);
        }
    }
}

/// The registry writes OpenMetrics, where a counter is declared without the `_total` of its samples. In the older text
/// form, which every scraper reads, both have one name.
fn named_as_their_samples(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let counters: Vec<&str> =
        page.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(sort), Some(name), rest) if counters.contains(&name) => {
                out.extend(["# ", sort, " ", name, "_total ", rest.unwrap_or_default()]);
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}
