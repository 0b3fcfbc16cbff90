//! The queue of keys and the loop that works it off.
//!
//! A key is in the queue at most once and worked on by at most one task. A key that is added while it is worked on is
//! worked on once more afterwards. Each key has at most one timer: the last outcome's.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use client::Key;
use clock::Instant;
use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};

use crate::metrics::{self, Counts, Looked};

/// The request that a finished attempt leaves to the queue.
#[derive(Default)]
pub struct Done {
    /// Look at the key again after this time even if nothing changes.
    pub requeue_after: Option<Duration>,
    /// The key is not worked on again before this is ready. It does not count against the concurrency.
    pub settled: Option<BoxFuture<'static, ()>>,
    /// Something failed: the key is tried again with backoff. Writes that went before still have to settle.
    pub failed: bool,
}

/// The work that a key stands for. The futures are boxed: what drives them is compiled once, not for each controller.
pub trait Reconcile: Send + Sync + 'static {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Done>;
}

#[derive(Default)]
struct State {
    ready: VecDeque<Key>,
    /// The keys in `ready`, and those that must go there once they are no longer running, since when.
    wanted: HashMap<Key, Instant>,
    /// Since when they are worked on.
    running: HashMap<Key, Instant>,
    timers: BTreeSet<(Instant, Key)>,
    timer_of: BTreeMap<Key, Instant>,
    failures: HashMap<Key, u32>,
}

/// The keys that wait to be worked on.
pub struct Queue {
    /// The name in metrics.
    name: &'static str,
    state: Mutex<State>,
    changed: Notify,
    longest_delay: Duration,
    counts: Counts,
}

/// The first delay after a failure, and the longest one of most controllers, as upstream's rate limiter has them.
const FIRST_DELAY: Duration = Duration::from_millis(5);
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(1000);

impl Queue {
    /// A queue in which a key that keeps failing is tried again with the usual delays.
    pub fn usual(name: &'static str) -> Arc<Self> {
        Queue::new(name, LONGEST_DELAY)
    }

    /// A queue in which a key that keeps failing is tried again after this time at the latest.
    pub fn new(name: &'static str, longest_delay: Duration) -> Arc<Self> {
        let (state, changed, counts) = (Mutex::default(), Notify::new(), Counts::of(name));
        let queue = Arc::new(Queue { name, state, changed, longest_delay, counts });
        let looked: Arc<dyn Looked> = queue.clone();
        metrics::follow(Arc::downgrade(&looked));
        queue
    }

    fn backoff(&self, failures: u32) -> Duration {
        FIRST_DELAY.saturating_mul(1 << failures.min(20)).min(self.longest_delay)
    }

    /// Asks for the key to be worked on.
    pub fn add(&self, key: Key) {
        let mut state = self.state.lock();
        state.drop_timer(&key);
        if state.want(key, &self.counts) {
            self.changed.notify_one();
        }
    }

    /// Asks for the key to be worked on after `delay`, unless it is asked for earlier.
    pub fn add_after(&self, key: Key, delay: Duration) {
        self.counts.retries.count();
        self.state.lock().set_timer(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// How many keys wait or are worked on.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        state.ready.len() + state.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key to work on, or when to look again.
    fn take(&self) -> Result<Key, Option<Instant>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        while let Some((_, key)) = state.timers.first().filter(|(at, _)| *at <= now).cloned() {
            state.drop_timer(&key);
            state.want(key, &self.counts);
        }
        match state.ready.pop_front() {
            Some(key) => {
                let since = state.wanted.remove(&key).unwrap_or(now);
                self.counts.waited.observe(now.saturating_duration_since(since).as_secs_f64());
                state.running.insert(key.clone(), now);
                Ok(key)
            }
            None => Err(state.timers.first().map(|(at, _)| *at)),
        }
    }

    fn finish(&self, key: Key, failed: bool, requeue_after: Option<Duration>) {
        let mut state = self.state.lock();
        state.running.remove(&key);
        let failures = state.failures.remove(&key).unwrap_or(0);
        let mut delay = requeue_after;
        if failed {
            let base = self.backoff(failures);
            let jitter = Duration::from_micros(clock::random_range(0..base.as_micros() as u64 / 10 + 1));
            delay = Some(base + jitter);
            state.failures.insert(key.clone(), failures + 1);
        }
        if state.wanted.contains_key(&key) {
            state.ready.push_back(key);
        } else if let Some(delay) = delay {
            self.counts.retries.count();
            state.set_timer(key, Instant::now() + delay);
        }
        self.changed.notify_one();
    }
}

impl Looked for Queue {
    fn name(&self) -> &'static str {
        self.name
    }

    fn look(&self) -> (usize, Vec<Duration>) {
        let (state, now) = (self.state.lock(), Instant::now());
        (state.wanted.len(), state.running.values().map(|since| now.saturating_duration_since(*since)).collect())
    }
}

impl State {
    /// Wants the key to be worked on. True when it is ready for that, and was not before.
    fn want(&mut self, key: Key, counts: &Counts) -> bool {
        if self.wanted.contains_key(&key) {
            return false;
        }
        counts.adds.count();
        self.wanted.insert(key.clone(), Instant::now());
        let ready = !self.running.contains_key(&key);
        if ready {
            self.ready.push_back(key);
        }
        ready
    }

    fn drop_timer(&mut self, key: &Key) {
        if let Some(at) = self.timer_of.remove(key) {
            self.timers.remove(&(at, key.clone()));
        }
    }

    fn set_timer(&mut self, key: Key, at: Instant) {
        if self.wanted.contains_key(&key) || self.timer_of.get(&key).is_some_and(|earlier| *earlier <= at) {
            return;
        }
        self.drop_timer(&key);
        self.timer_of.insert(key.clone(), at);
        self.timers.insert((at, key));
    }
}

/// Works the queue off for ever, at most `concurrency` keys at once. A panic counts as a failure of its key.
pub async fn drive(name: &'static str, queue: Arc<Queue>, reconcile: Arc<dyn Reconcile>, concurrency: usize) {
    let permits = Arc::new(tokio::sync::Semaphore::new(concurrency));
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let key = match queue.take() {
            Ok(key) => key,
            Err(until) => {
                drop(permit);
                let timer = async {
                    match until {
                        Some(at) => clock::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = queue.changed.notified() => {}
                    () = timer => {}
                    Some(_) = tasks.join_next() => {}
                }
                continue;
            }
        };
        let (queue, reconcile) = (queue.clone(), reconcile.clone());
        tasks.spawn(async move {
            let began = Instant::now();
            let outcome = AssertUnwindSafe(reconcile.reconcile(&key)).catch_unwind().await;
            queue.counts.worked.observe(began.elapsed().as_secs_f64());
            drop(permit);
            let done = outcome.unwrap_or_else(|panic| {
                tracing::error!(controller = name, %key, panic = panic_text(&*panic), "panicked, trying again later");
                Done { failed: true, ..Done::default() }
            });
            if let Some(settled) = done.settled {
                settled.await;
            }
            queue.finish(key, done.failed, done.requeue_after);
        });
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Log {
        seen: Mutex<Vec<(u64, String)>>,
        start: Instant,
        queue: Arc<Queue>,
    }

    impl Log {
        async fn note(&self, key: &Key) -> Done {
            let at = self.start.elapsed().as_millis() as u64;
            let tries = {
                let mut seen = self.seen.lock();
                seen.push((at, key.name.clone()));
                seen.iter().filter(|(_, n)| *n == key.name).count()
            };
            match key.name.as_str() {
                "panics" if tries < 3 => panic!("on purpose"),
                "slow" if tries == 1 => {
                    self.queue.add(key.clone());
                    self.queue.add(key.clone());
                    clock::sleep(Duration::from_millis(100)).await;
                    Done::default()
                }
                "again" if tries == 1 => Done { requeue_after: Some(Duration::from_secs(2)), ..Done::default() },
                "settles" if tries == 1 => {
                    self.queue.add(key.clone());
                    Done { settled: Some(clock::sleep(Duration::from_secs(1)).boxed()), ..Done::default() }
                }
                _ => Done::default(),
            }
        }
    }

    impl Reconcile for Log {
        fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Done> {
            self.note(key).boxed()
        }
    }

    async fn run(names: &[&str], for_seconds: u64) -> Vec<(u64, String)> {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let queue = Queue::usual("test");
        let log = Arc::new(Log { seen: Mutex::default(), start: Instant::now(), queue: queue.clone() });
        for name in names {
            queue.add(Key::new("", *name));
        }
        let _ = clock::timeout(Duration::from_secs(for_seconds), drive("test", queue, log.clone(), 2)).await;
        std::mem::take(&mut *log.seen.lock())
    }

    fn times(seen: &[(u64, String)], name: &str) -> Vec<u64> {
        seen.iter().filter(|(_, n)| n == name).map(|(at, _)| *at).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn single_flight_requeue_backoff_and_settling() {
        let seen = run(&["panics", "again", "slow", "settles", "plain", "plain"], 10).await;
        assert_eq!(times(&seen, "plain").len(), 1, "added twice, done once: {seen:?}");
        let slow = times(&seen, "slow");
        assert_eq!(slow[1] - slow[0], 100, "worked on again only after the first attempt ended");
        assert_eq!(slow.len(), 2);
        let again = times(&seen, "again");
        assert_eq!((again[1] - again[0]) / 1000, 2);
        let settles = times(&seen, "settles");
        assert_eq!(settles[1] - settles[0], 1000);
        let panics = times(&seen, "panics");
        assert_eq!(panics.len(), 3);
        assert!((5..8).contains(&(panics[1] - panics[0])) && (10..14).contains(&(panics[2] - panics[1])), "{panics:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_and_what_takes_long_is_told() {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let queue = Queue::usual("told");
        queue.add(Key::new("", "a"));
        queue.add(Key::new("", "a"));
        queue.add(Key::new("", "b"));
        clock::sleep(Duration::from_secs(2)).await;
        let first = queue.take().expect("a key");
        clock::sleep(Duration::from_secs(3)).await;
        let told = |lines: &[&str]| {
            let page = metrics::render();
            lines.iter().for_each(|line| assert!(page.contains(&format!("workqueue_{line}\n")), "{line} in {page}"));
        };
        told(&[
            "adds_total{name=\"told\"} 2",
            "depth{name=\"told\"} 1",
            "queue_duration_seconds_bucket{name=\"told\",le=\"1\"} 0",
            "queue_duration_seconds_bucket{name=\"told\",le=\"10\"} 1",
            "unfinished_work_seconds{name=\"told\"} 3",
            "longest_running_processor_seconds{name=\"told\"} 3",
        ]);
        queue.finish(first, true, None);
        told(&["retries_total{name=\"told\"} 1", "unfinished_work_seconds{name=\"told\"} 0"]);
        drop(queue);
        assert!(!metrics::render().contains("depth{name=\"told\"}"), "a queue that is gone has no depth");
    }

    #[test]
    fn backoff_doubles_to_its_bound() {
        let queue = Queue::usual("test");
        let table: Vec<_> = [0, 1, 2, 17, 18, 40].map(|n| queue.backoff(n).as_millis()).into();
        assert_eq!(table, [5, 10, 20, 655_360, 1_000_000, 1_000_000]);
    }
}
