//! A priority level while requests go through it. Its lock is held for a moment when one comes and when one goes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use clock::{Duration, Instant};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    queues::{Arrival, Queues, Shape},
    ratios::Ratios,
    schema::Schema,
    shares::{Bounds, Demand, Meter, Share},
};

/// How a level is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub uid: String,
    pub exempt: bool,
    pub share: Share,
    pub shape: Shape,
}

pub struct Level {
    pub name: String,
    began: Instant,
    inner: Mutex<Inner>,
}

/// By which a request that waits is told that it has its seats, and what is known of it.
pub struct Turn {
    sender: oneshot::Sender<()>,
    pub about: About,
}

/// The part of a request that the pages for people show.
#[derive(Default)]
pub struct About {
    pub schema: String,
    pub flow: String,
    pub details: Vec<String>,
}

pub struct Inner {
    pub settings: Settings,
    pub bounds: Bounds,
    pub queues: Queues<Turn>,
    meter: Meter,
    ratios: Ratios,
    at: f64,
}

impl Inner {
    fn measure(&mut self, now: f64) {
        let (seconds, demand) = ((now - self.at).max(0.0), f64::from(self.queues.demand()));
        self.meter.set(seconds, demand);
        self.ratios.set(seconds, demand / self.measure_of_demand());
        self.at = now;
    }

    /// The seats that its demand is seen beside: those it has, or a tenth of the server's where it has none.
    fn measure_of_demand(&self) -> f64 {
        match self.queues.limit {
            0 => (f64::from(self.bounds.most) / 10.0).round().max(1.0),
            seats => f64::from(seats),
        }
    }

    /// Gives free seats to those who wait. One that has just given up gives its back.
    fn serve(&mut self, now: f64) {
        while let Some((_, waiting)) = self.queues.next(now) {
            let _ = waiting.tell.sender.send(());
        }
        self.measure(now);
    }
}

impl Level {
    pub fn new(name: &str, settings: Settings) -> Self {
        let queues = Queues::new(settings.shape, 0);
        let inner = Inner {
            settings,
            bounds: Bounds::default(),
            queues,
            meter: Meter::default(),
            ratios: Ratios::default(),
            at: 0.0,
        };
        Level { name: name.to_owned(), began: Instant::now(), inner: Mutex::new(inner) }
    }

    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Looks at it as it is.
    pub fn look<T>(&self, see: impl FnOnce(&Inner) -> T) -> T {
        see(&self.inner.lock())
    }

    pub fn configure(&self, settings: Settings) {
        let mut inner = self.inner.lock();
        inner.queues.reshape(settings.shape);
        inner.settings = settings;
    }

    /// Says what it may have, with which it begins anew.
    pub fn bound(&self, bounds: Bounds) {
        let now = self.now();
        let mut inner = self.inner.lock();
        if inner.bounds != bounds {
            inner.bounds = bounds;
            inner.queues.limit = bounds.nominal;
            inner.serve(now);
        }
    }

    /// Ends a period of measuring.
    pub fn demand(&self) -> (Bounds, Demand) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.measure(now);
        (inner.bounds, inner.meter.period())
    }

    /// The lines of the histogram of its demand beside its seats.
    pub fn demand_ratios(&self, labels: &str) -> String {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.measure(now);
        inner.ratios.render(labels)
    }

    /// Sets the number of seats from now on.
    pub fn allot(&self, seats: u32) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.queues.limit = seats;
        inner.serve(now);
    }

    /// Gives a request its seats, when its turn comes. The error is the reason, in upstream's word.
    pub async fn seat(
        self: &Arc<Self>,
        flow: &Arc<Flow>,
        (hash, seats): (u64, u32),
        wait: Duration,
        about: impl FnOnce() -> About,
    ) -> Result<Seat, &'static str> {
        let since = Instant::now();
        let now = since.duration_since(self.began).as_secs_f64();
        let mut told = None;
        let (exempt, arrival) = {
            let mut inner = self.inner.lock();
            let exempt = inner.settings.exempt;
            // Nobody who is exempt ever waits.
            let limit = exempt.then(|| std::mem::replace(&mut inner.queues.limit, u32::MAX));
            let tell = || {
                let (sender, receiver) = oneshot::channel();
                told = Some(receiver);
                Turn { sender, about: about() }
            };
            let arrival = inner.queues.arrive(now, hash, seats, tell);
            if let Some(limit) = limit {
                inner.queues.limit = limit;
            }
            inner.measure(now);
            (exempt, arrival)
        };
        let seat = |queue, since| Seat { level: self.clone(), flow: flow.clone(), queue, seats, since };
        let (queue, number, told) = match (arrival, told) {
            (Arrival::Seated(queue), _) => {
                if !exempt {
                    flow.counts.waited(since.elapsed(), true);
                }
                flow.counts.executing(1, seats);
                return Ok(seat(queue, since));
            }
            (Arrival::Queued(queue, number), Some(told)) => (queue, number, told),
            (Arrival::Refused(why), _) => return Err(flow.counts.refused(why)),
            (Arrival::Queued(..), None) => return Err(flow.counts.refused("cancelled")),
        };
        let mut waits = Waits { level: self, flow, queue, number, seats, done: false };
        flow.counts.queued.fetch_add(1, Ordering::Relaxed);
        let seated = clock::timeout(wait, told).await;
        flow.counts.waited(since.elapsed(), matches!(seated, Ok(Ok(()))));
        match seated {
            Ok(Ok(())) => {
                waits.done = true;
                flow.counts.executing(1, seats);
                Ok(seat(queue, Instant::now()))
            }
            _ => Err(flow.counts.refused("time-out")),
        }
    }

    fn leave(&self, queue: usize, seats: u32, took: f64) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.queues.leave(now, queue, seats, took);
        inner.serve(now);
    }
}

/// A request that waits. When it goes without its seats, it waits no longer, or gives back what it was just given.
struct Waits<'a> {
    level: &'a Level,
    flow: &'a Flow,
    queue: usize,
    number: u64,
    seats: u32,
    done: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.flow.counts.queued.fetch_sub(1, Ordering::Relaxed);
        if self.done {
            return;
        }
        let now = self.level.now();
        let gave_up = {
            let mut inner = self.level.inner.lock();
            let gave_up = inner.queues.give_up(self.queue, self.number);
            inner.measure(now);
            gave_up
        };
        if !gave_up {
            self.level.leave(self.queue, self.seats, 0.0);
        }
    }
}

/// The seats of a request, until it is done with them.
pub struct Seat {
    level: Arc<Level>,
    flow: Arc<Flow>,
    queue: usize,
    seats: u32,
    since: Instant,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.flow.counts.executing(-1, self.seats);
        self.level.leave(self.queue, self.seats, self.since.elapsed().as_secs_f64());
    }
}

/// A schema with its level: what a request is found to be of.
pub struct Flow {
    pub schema: Schema,
    pub level: Arc<Level>,
    /// The values of the headers that say so.
    pub headers: [HeaderValue; 2],
    pub counts: Arc<Counts>,
}

/// Upper bounds of the times of waiting, in seconds, as upstream has them.
const BUCKETS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// The figures of a schema's requests.
#[derive(Default)]
pub struct Counts {
    dispatched: AtomicU64,
    executing: AtomicI64,
    seats: AtomicI64,
    queued: AtomicI64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    /// The waits in vain, and those for seats.
    waits: [Times; 2],
}

#[derive(Default)]
struct Times {
    buckets: [AtomicU64; 14],
    microseconds: AtomicU64,
}

impl Counts {
    fn executing(&self, requests: i64, seats: u32) {
        if requests > 0 {
            self.dispatched.fetch_add(1, Ordering::Relaxed);
        }
        self.executing.fetch_add(requests, Ordering::Relaxed);
        self.seats.fetch_add(requests * i64::from(seats), Ordering::Relaxed);
    }

    fn refused(&self, why: &'static str) -> &'static str {
        *self.refused.lock().entry(why).or_default() += 1;
        why
    }

    fn waited(&self, took: std::time::Duration, executes: bool) {
        let bucket = BUCKETS.iter().position(|most| took.as_secs_f64() <= *most).unwrap_or(BUCKETS.len());
        let times = &self.waits[usize::from(executes)];
        times.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        times.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// How many went on, were turned away, waited for too long, and went away.
    pub fn ends(&self) -> [u64; 4] {
        let refused = self.refused.lock();
        let of = |why: &str| refused.get(why).copied().unwrap_or(0);
        let dispatched = self.dispatched.load(Ordering::Relaxed);
        [dispatched, of("queue-full") + of("concurrency-limit"), of("time-out"), of("cancelled")]
    }

    /// Its series by the name of each metric.
    pub fn render(&self, labels: &str, mut series: impl FnMut(&'static str, String)) {
        let number = |counter: &AtomicI64| counter.load(Ordering::Relaxed);
        let dispatched = self.dispatched.load(Ordering::Relaxed);
        series("dispatched_requests_total", format!("{{{labels}}} {dispatched}"));
        series("current_executing_requests", format!("{{{labels}}} {}", number(&self.executing)));
        series("current_executing_seats", format!("{{{labels}}} {}", number(&self.seats)));
        series("current_inqueue_requests", format!("{{{labels}}} {}", number(&self.queued)));
        for (why, count) in self.refused.lock().iter() {
            series("rejected_requests_total", format!("{{{labels},reason=\"{why}\"}} {count}"));
        }
        for (times, executes) in self.waits.iter().zip(["false", "true"]) {
            if let Some(text) = times.render(&format!("execute=\"{executes}\",{labels}")) {
                series("request_wait_duration_seconds", text);
            }
        }
    }
}

impl Times {
    /// The lines of the histogram, once there is anything in it.
    fn render(&self, labels: &str) -> Option<String> {
        let (mut sum, mut text) = (0, String::new());
        let name = "apiserver_flowcontrol_request_wait_duration_seconds";
        for (count, most) in self.buckets.iter().zip(BUCKETS) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{most}\"}} {sum}");
        }
        sum += self.buckets[BUCKETS.len()].load(Ordering::Relaxed);
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {sum}");
        let _ = write!(text, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}");
        (sum > 0).then_some(text)
    }
}
