//! A priority level while requests go through it. Its lock is held for a moment when one comes and when one goes.

use std::sync::Arc;

use clock::{Duration, Instant};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    counts::Counts,
    queues::{Arrival, Queues, Shape},
    ratios::{self, Ratios},
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
    counts: Arc<Counts>,
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
    over_time: OverTime,
    /// Its demand in the last whole period.
    wanted: Demand,
    at: f64,
}

/// Numbers beside what bounds them.
struct OverTime {
    demand: Ratios,
    seats: Ratios,
    executing: Ratios,
    waiting: Ratios,
}

impl Inner {
    fn measure(&mut self, now: f64) {
        let (seconds, queues) = ((now - self.at).max(0.0), &self.queues);
        let (demand, seats) = (f64::from(queues.demand()), f64::from(queues.limit.max(1)));
        let shape = self.settings.shape;
        let places = (shape.queues * shape.length).max(1) as f64;
        let (in_use, executing, waiting) = (queues.seats, queues.executing, queues.waiting);
        self.meter.set(seconds, demand);
        let beside = self.measure_of_demand();
        let over_time = &mut self.over_time;
        over_time.demand.set(seconds, demand / beside);
        over_time.seats.set(seconds, f64::from(in_use) / seats);
        over_time.executing.set(seconds, f64::from(executing) / seats);
        over_time.waiting.set(seconds, f64::from(waiting) / places);
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
        if let Some(first) = self.queues.unfit() {
            first.tell.counts.does_not_fit();
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
            over_time: OverTime {
                demand: Ratios::new(ratios::DEMAND),
                seats: Ratios::new(ratios::SEATS),
                executing: Ratios::new(ratios::REQUESTS),
                waiting: Ratios::new(ratios::REQUESTS),
            },
            wanted: Demand::default(),
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
        inner.wanted = inner.meter.period();
        (inner.bounds, inner.wanted)
    }

    /// Its lines by the name of each metric.
    pub fn render(&self, labels: &str, mut lines: impl FnMut(&'static str, String)) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.measure(now);
        let (bounds, wanted, queues) = (inner.bounds, inner.wanted, &inner.queues);
        let mut one = |name: &'static str, more: &str, value: f64| {
            lines(name, format!("apiserver_flowcontrol_{name}{{{more}{labels}}} {value}\n"));
        };
        for (name, value) in [
            ("nominal_limit_seats", f64::from(bounds.nominal)),
            ("lower_limit_seats", f64::from(bounds.least)),
            ("upper_limit_seats", f64::from(bounds.most)),
            ("current_limit_seats", f64::from(queues.limit)),
            ("demand_seats_high_watermark", wanted.highest),
            ("demand_seats_average", wanted.average),
            ("demand_seats_stdev", wanted.deviation),
            ("demand_seats_smoothed", wanted.smooth),
            ("target_seats", wanted.target()),
        ] {
            one(name, "", value);
        }
        if inner.settings.shape.queues > 0 {
            one("current_r", "", queues.virtual_now);
            if let Some(last) = &queues.last {
                one("dispatch_r", "", last.at);
                one("latest_s", "", last.began);
                for (bound, next, discounted) in
                    [("min", last.next.0, last.discounted.0), ("max", last.next.1, last.discounted.1)]
                {
                    one("next_s_bounds", &format!("bound=\"{bound}\","), next);
                    one("next_discounted_s_bounds", &format!("bound=\"{bound}\","), discounted);
                }
            }
        }
        let OverTime { demand, seats, executing, waiting } = &inner.over_time;
        for (name, phase, ratios) in [
            ("demand_seats", "", demand),
            ("priority_level_seat_utilization", "phase=\"executing\",", seats),
            ("priority_level_request_utilization", "phase=\"executing\",", executing),
            ("priority_level_request_utilization", "phase=\"waiting\",", waiting),
        ] {
            lines(name, ratios.render(&format!("apiserver_flowcontrol_{name}"), &format!("{phase}{labels}")));
        }
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
        (hash, seats, is_watch): (u64, u32, bool),
        wait: Duration,
        about: impl FnOnce() -> About,
    ) -> Result<Seat, &'static str> {
        let since = Instant::now();
        let now = since.duration_since(self.began).as_secs_f64();
        let mut told = None;
        flow.counts.comes(seats);
        let (exempt, arrival) = {
            let mut inner = self.inner.lock();
            let exempt = inner.settings.exempt;
            // Nobody who is exempt ever waits.
            let limit = exempt.then(|| std::mem::replace(&mut inner.queues.limit, u32::MAX));
            let tell = || {
                let (sender, receiver) = oneshot::channel();
                told = Some(receiver);
                Turn { sender, counts: flow.counts.clone(), about: about() }
            };
            let arrival = inner.queues.arrive(now, hash, seats, tell);
            if let Some(limit) = limit {
                inner.queues.limit = limit;
            }
            match &arrival {
                Arrival::Queued(queue, _) => {
                    flow.counts.waits(seats, inner.queues.all[*queue].waiting.len());
                    // There may be free seats, and too few of them.
                    inner.serve(now);
                }
                _ => inner.measure(now),
            }
            (exempt, arrival)
        };
        let (level, flow_of) = (self.clone(), flow.clone());
        let seat = |queue, since| Seat { level, flow: flow_of, queue, seats, began: since, had: Some(since), is_watch };
        let (queue, number, told) = match (arrival, told) {
            (Arrival::Seated(queue), _) => {
                if !exempt {
                    flow.counts.waited(since.elapsed(), true);
                }
                flow.counts.begins(seats);
                return Ok(seat(queue, since));
            }
            (Arrival::Queued(queue, number), Some(told)) => (queue, number, told),
            (Arrival::Refused(why), _) => return Err(flow.counts.refused(why)),
            (Arrival::Queued(..), None) => return Err(flow.counts.refused("cancelled")),
        };
        let mut waits = Waits { level: self, flow, queue, number, seats, done: false };
        let seated = clock::timeout(wait, told).await;
        flow.counts.waited(since.elapsed(), matches!(seated, Ok(Ok(()))));
        match seated {
            Ok(Ok(())) => {
                waits.done = true;
                flow.counts.begins(seats);
                Ok(seat(queue, Instant::now()))
            }
            _ => Err(flow.counts.refused("time-out")),
        }
    }

    fn take_back(&self, queue: usize, seats: u32) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.queues.take_back(now, queue, seats);
        inner.measure(now);
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
        self.flow.counts.stops_waiting(self.seats);
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
    began: Instant,
    /// Since when it has them; it may do without for a while.
    had: Option<Instant>,
    is_watch: bool,
}

impl Seat {
    /// Gives the seats to others until they are taken back.
    pub fn leave(&mut self) {
        if let Some(since) = self.had.take() {
            self.flow.counts.stands_up(self.seats);
            self.level.leave(self.queue, self.seats, since.elapsed().as_secs_f64());
        }
    }

    /// Has the seats again, at once: there may be more in use than there are until others are done.
    pub fn take_back(&mut self) {
        if self.had.is_none() {
            self.had = Some(Instant::now());
            self.flow.counts.sits(self.seats);
            self.level.take_back(self.queue, self.seats);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
        self.flow.counts.ended(self.began.elapsed(), self.is_watch);
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
