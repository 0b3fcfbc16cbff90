//! Events on their way in batches: nobody waits for them, and they are lost, and counted, when too many wait.
//!
//! Upstream counterpart: apiserver/plugin/pkg/audit/buffered.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use clock::{Duration, Instant};
use tokio::sync::{
    Semaphore,
    mpsc::{self, error::TrySendError},
    oneshot,
};

use super::{
    event::Event,
    metrics::{Metrics, Part},
    output::Output,
};

/// Batches that are being sent at once.
const AT_ONCE: usize = 32;
/// Events that wait have at most this many bytes together, however few they are.
const BYTES: usize = 256 << 20;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Events that wait at most.
    pub buffer: usize,
    /// Events in one batch at most.
    pub batch: usize,
    /// The bytes of a batch, where they are bounded.
    pub batch_bytes: Option<usize>,
    /// A batch is sent after this time, however small it is.
    pub wait: Duration,
    /// Batches per second, and how many may go at once after a pause.
    pub throttle: Option<(f32, u32)>,
}

enum Message {
    Event(Event),
    /// Everything before is to be sent; then this is told.
    Flush(oneshot::Sender<()>),
}

/// The way in.
pub struct Batches {
    sender: mpsc::Sender<Message>,
    bytes: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Batches {
    /// The way in, and the work that has to run behind it.
    pub fn new(settings: Settings, output: Output, metrics: Arc<Metrics>) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(settings.buffer.max(1));
        let bytes = Arc::new(AtomicUsize::new(0));
        let (batch_bytes, throttle) = (settings.batch_bytes, settings.throttle.map(Throttle::new));
        let sending = Sending {
            receiver,
            bytes: bytes.clone(),
            output,
            metrics: metrics.clone(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            throttle,
            batch_bytes,
        };
        (Batches { sender, bytes, metrics }, sending.run(settings.batch.max(1), settings.wait))
    }

    /// Hands an event over, if there is room.
    pub fn add(&self, event: Event) {
        if let Err(why) = self.offer(event) {
            self.metrics.lost(Part::Buffered, 1, why);
        }
    }

    /// The error is the reason in upstream's words: there is no room, or nobody sends events any more.
    pub(super) fn offer(&self, event: Event) -> Result<(), &'static str> {
        const FULL: &str = "audit buffer queue blocked";
        let size = event.size();
        let waiting = self.bytes.fetch_add(size, Ordering::Relaxed);
        let offered = if waiting + size > BYTES {
            Err(FULL)
        } else {
            self.sender.try_send(Message::Event(event)).map_err(|error| match error {
                TrySendError::Full(_) => FULL,
                TrySendError::Closed(_) => "audit backend shut down",
            })
        };
        if offered.is_err() {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
        }
        offered
    }

    /// Waits until everything before has been sent or given up.
    pub async fn flush(&self) {
        let (done, told) = oneshot::channel();
        if self.sender.send(Message::Flush(done)).await.is_ok() {
            let _ = told.await;
        }
    }
}

struct Sending {
    receiver: mpsc::Receiver<Message>,
    bytes: Arc<AtomicUsize>,
    output: Output,
    metrics: Arc<Metrics>,
    at_once: Arc<Semaphore>,
    throttle: Option<Throttle>,
    batch_bytes: Option<usize>,
}

impl Sending {
    async fn run(mut self, batch: usize, wait: Duration) {
        loop {
            let (events, flushed) = self.collect(batch, wait).await;
            let ended = events.is_empty() && flushed.is_none();
            self.send(events).await;
            if let Some(flushed) = flushed {
                // When all places are free nothing is being sent any more.
                let _all = self.at_once.acquire_many(AT_ONCE as u32).await;
                let _ = flushed.send(());
            }
            if ended && self.receiver.is_closed() && self.receiver.is_empty() {
                return;
            }
        }
    }

    /// The events of one batch.
    async fn collect(&mut self, batch: usize, wait: Duration) -> (Vec<Event>, Option<oneshot::Sender<()>>) {
        let mut events = Vec::new();
        let mut size = 0;
        let until = Instant::now() + wait;
        while events.len() < batch && self.batch_bytes.is_none_or(|most| size < most) {
            // Without an event there is nothing to be late with.
            let next = match (events.is_empty(), wait.is_zero()) {
                (true, _) => self.receiver.recv().await,
                (false, true) => break,
                (false, false) => {
                    match clock::timeout(until.saturating_duration_since(Instant::now()), self.receiver.recv()).await {
                        Ok(next) => next,
                        Err(_) => break,
                    }
                }
            };
            match next {
                None => break,
                Some(Message::Flush(done)) => return (events, Some(done)),
                Some(Message::Event(event)) => {
                    size += event.size();
                    self.bytes.fetch_sub(event.size(), Ordering::Relaxed);
                    events.push(event);
                }
            }
        }
        (events, None)
    }

    async fn send(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        if let Some(throttle) = &mut self.throttle {
            throttle.turn().await;
        }
        if !self.output.takes_long() {
            self.output.write(&events, &self.metrics).await;
            return;
        }
        let Ok(place) = self.at_once.clone().acquire_owned().await else { return };
        let (output, metrics) = (self.output.clone(), self.metrics.clone());
        tokio::spawn(async move {
            output.write(&events, &metrics).await;
            drop(place);
        });
    }
}

/// A bucket of turns that fills again with time.
struct Throttle {
    per_second: f32,
    burst: f32,
    turns: f32,
    at: Instant,
}

impl Throttle {
    fn new((per_second, burst): (f32, u32)) -> Self {
        Throttle { per_second, burst: burst as f32, turns: burst as f32, at: Instant::now() }
    }

    async fn turn(&mut self) {
        let now = Instant::now();
        self.turns = (self.turns + now.duration_since(self.at).as_secs_f32() * self.per_second).min(self.burst);
        self.at = now;
        if self.turns < 1.0 {
            let missing = Duration::from_secs_f32((1.0 - self.turns) / self.per_second);
            clock::sleep(missing).await;
            self.at = Instant::now();
            self.turns = 1.0;
        }
        self.turns -= 1.0;
    }
}
