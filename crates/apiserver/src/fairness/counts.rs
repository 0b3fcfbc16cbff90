//! The figures of a schema's requests at a level: how many there were, how long they waited and took, and what they were taken to need.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use clock::Duration;
use parking_lot::Mutex;

/// The upper bounds of times, in seconds, as upstream has them.
const SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];

pub struct Counts {
    dispatched: AtomicU64,
    executing: AtomicI64,
    seats: AtomicI64,
    queued: AtomicI64,
    queued_seats: AtomicI64,
    /// How often the first of a queue found too few free seats.
    unfit: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    /// The waits in vain, and those for seats.
    waits: [Tally; 2],
    /// How long seats were had: by requests, and until a watch began.
    took: [Tally; 2],
    lengths: Tally,
    needs: Tally,
}

impl Default for Counts {
    fn default() -> Self {
        let times = || [Tally::new(SECONDS), Tally::new(SECONDS)];
        Counts {
            dispatched: AtomicU64::default(),
            executing: AtomicI64::default(),
            seats: AtomicI64::default(),
            queued: AtomicI64::default(),
            queued_seats: AtomicI64::default(),
            unfit: AtomicU64::default(),
            refused: Mutex::default(),
            waits: times(),
            took: times(),
            lengths: Tally::new(LENGTHS),
            needs: Tally::new(SEATS),
        }
    }
}

impl Counts {
    /// A request comes that is taken to need this number of seats.
    pub fn comes(&self, seats: u32) {
        self.needs.observe(f64::from(seats));
    }

    /// A request begins to wait, as the last one of this number in its queue.
    pub fn waits(&self, seats: u32, length: usize) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.queued_seats.fetch_add(i64::from(seats), Ordering::Relaxed);
        self.lengths.observe(length as f64);
    }

    /// It waits no longer.
    pub fn stops_waiting(&self, seats: u32) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.queued_seats.fetch_sub(i64::from(seats), Ordering::Relaxed);
    }

    pub fn waited(&self, took: Duration, executes: bool) {
        self.waits[usize::from(executes)].observe(took.as_secs_f64());
    }

    pub fn does_not_fit(&self) {
        self.unfit.fetch_add(1, Ordering::Relaxed);
    }

    pub fn begins(&self, seats: u32) {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
        self.sits(seats);
    }

    /// A request has its seats, or has them again.
    pub fn sits(&self, seats: u32) {
        self.executing.fetch_add(1, Ordering::Relaxed);
        self.seats.fetch_add(i64::from(seats), Ordering::Relaxed);
    }

    pub fn stands_up(&self, seats: u32) {
        self.executing.fetch_sub(1, Ordering::Relaxed);
        self.seats.fetch_sub(i64::from(seats), Ordering::Relaxed);
    }

    pub fn ended(&self, took: Duration, is_watch: bool) {
        self.took[usize::from(is_watch)].observe(took.as_secs_f64());
    }

    pub fn refused(&self, why: &'static str) -> &'static str {
        *self.refused.lock().entry(why).or_default() += 1;
        why
    }

    /// How many went on, were turned away, waited for too long, and went away.
    pub fn ends(&self) -> [u64; 4] {
        let refused = self.refused.lock();
        let of = |why: &str| refused.get(why).copied().unwrap_or(0);
        let dispatched = self.dispatched.load(Ordering::Relaxed);
        [dispatched, of("queue-full") + of("concurrency-limit"), of("time-out"), of("cancelled")]
    }

    /// Its lines by the name of each metric.
    pub fn render(&self, labels: &str, mut lines: impl FnMut(&'static str, String)) {
        let mut one = |name: &'static str, labels: &str, value: i128| {
            lines(name, format!("apiserver_flowcontrol_{name}{{{labels}}} {value}\n"));
        };
        one("dispatched_requests_total", labels, self.dispatched.load(Ordering::Relaxed).into());
        for (name, gauge) in [
            ("current_executing_requests", &self.executing),
            ("current_executing_seats", &self.seats),
            ("current_inqueue_requests", &self.queued),
            ("current_inqueue_seats", &self.queued_seats),
        ] {
            one(name, labels, gauge.load(Ordering::Relaxed).into());
        }
        let unfit = self.unfit.load(Ordering::Relaxed);
        if unfit > 0 {
            one("request_dispatch_no_accommodation_total", labels, unfit.into());
        }
        for (why, count) in self.refused.lock().iter() {
            one("rejected_requests_total", &format!("{labels},reason=\"{why}\""), (*count).into());
        }
        let waits = self.waits.iter().zip(["false", "true"]).map(|(tally, executes)| {
            ("request_wait_duration_seconds", format!("execute=\"{executes}\",{labels}"), tally)
        });
        let took = self
            .took
            .iter()
            .zip(["regular", "watch"])
            .map(|(tally, sort)| ("request_execution_seconds", format!("{labels},type=\"{sort}\""), tally));
        let others = [("request_queue_length_after_enqueue", &self.lengths), ("work_estimated_seats", &self.needs)];
        let others = others.map(|(name, tally)| (name, labels.to_owned(), tally));
        for (name, labels, tally) in waits.chain(took).chain(others) {
            if let Some(text) = tally.render(&format!("apiserver_flowcontrol_{name}"), &labels) {
                lines(name, text);
            }
        }
    }
}

/// A histogram.
struct Tally {
    bounds: &'static [f64],
    /// Those above all bounds are last.
    buckets: Box<[AtomicU64]>,
    millionths: AtomicU64,
}

impl Tally {
    fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::default()).collect();
        Tally { bounds, buckets, millionths: AtomicU64::default() }
    }

    fn observe(&self, value: f64) {
        let bucket = self.bounds.iter().position(|most| value <= *most).unwrap_or(self.bounds.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.millionths.fetch_add((value * 1e6).round() as u64, Ordering::Relaxed);
    }

    /// The lines of the histogram, once there is anything in it.
    fn render(&self, name: &str, labels: &str) -> Option<String> {
        let (mut sum, mut text) = (0, String::new());
        for (count, most) in self.buckets.iter().zip(self.bounds) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{most}\"}} {sum}");
        }
        sum += self.buckets[self.bounds.len()].load(Ordering::Relaxed);
        let total = self.millionths.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {sum}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {total}\n{name}_count{{{labels}}} {sum}");
        (sum > 0).then_some(text)
    }
}
