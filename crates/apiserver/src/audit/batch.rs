//! Events on their way in batches: nobody waits for them, and they are lost, and counted, when too many wait.
//!
//! Upstream counterpart: apiserver/plugin/pkg/audit/buffered.

use std::sync::{
    Arc,
    atomic::{AtomicIsize, AtomicUsize, Ordering},
};

use clock::{Duration, Instant};
use tokio::sync::{
    Notify, Semaphore,
    mpsc::{
        self,
        error::{TryRecvError, TrySendError},
    },
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
    waiting: Arc<Waiting>,
    metrics: Arc<Metrics>,
}

/// The events that were handed over and not yet collected. Who collects them is woken for the first of a batch, and then when there
/// are enough: a request is not to pay for a wake each.
struct Waiting {
    bytes: AtomicUsize,
    /// Counted when they can be collected, so one may be taken out before it is counted.
    events: AtomicIsize,
    /// The events that are enough now.
    wanted: AtomicIsize,
    /// They are enough in any case: there is room for as many again.
    most_events: usize,
    most_bytes: usize,
    enough: Notify,
}

impl Waiting {
    fn new(settings: &Settings) -> Self {
        Waiting {
            bytes: AtomicUsize::default(),
            events: AtomicIsize::default(),
            wanted: AtomicIsize::new(1),
            most_events: (settings.buffer / 2).max(1),
            most_bytes: settings.batch_bytes.unwrap_or(BYTES).min(BYTES / 2),
            enough: Notify::new(),
        }
    }

    /// Takes room for an event, if there is some.
    fn reserve(&self, size: usize) -> bool {
        let fits = self.bytes.fetch_add(size, Ordering::Relaxed) + size <= BYTES;
        if !fits {
            self.free(size);
        }
        fits
    }

    fn free(&self, size: usize) {
        self.bytes.fetch_sub(size, Ordering::Relaxed);
    }

    /// An event is there. Either this sees what is wanted, or who wants it sees the event.
    fn add(&self) {
        let there = self.events.fetch_add(1, Ordering::SeqCst) + 1;
        if there >= self.wanted.load(Ordering::SeqCst) || self.bytes.load(Ordering::Relaxed) >= self.most_bytes {
            self.enough.notify_one();
        }
    }

    fn remove(&self, size: usize) {
        self.events.fetch_sub(1, Ordering::SeqCst);
        self.free(size);
    }

    /// Waits until there are as many, or as much as there is to be at a time, or something else to do. False when time is over.
    async fn enough(&self, events: usize, until: Instant) -> bool {
        let wanted = isize::try_from(events.min(self.most_events)).unwrap_or(isize::MAX);
        self.wanted.store(wanted, Ordering::SeqCst);
        if self.events.load(Ordering::SeqCst) >= wanted {
            return true;
        }
        clock::timeout(until.saturating_duration_since(Instant::now()), self.enough.notified()).await.is_ok()
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.waiting.enough.notify_one();
    }
}

impl Batches {
    /// The way in, and the work that has to run behind it.
    pub fn new(settings: Settings, output: Output, metrics: Arc<Metrics>) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(settings.buffer.max(1));
        let waiting = Arc::new(Waiting::new(&settings));
        let (batch_bytes, throttle) = (settings.batch_bytes, settings.throttle.map(Throttle::new));
        let sending = Sending {
            receiver,
            waiting: waiting.clone(),
            output,
            metrics: metrics.clone(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            throttle,
            batch_bytes,
        };
        (Batches { sender, waiting, metrics }, sending.run(settings.batch.max(1), settings.wait))
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
        if !self.waiting.reserve(size) {
            return Err(FULL);
        }
        let offered = self.sender.try_send(Message::Event(event)).map_err(|error| match error {
            TrySendError::Full(_) => FULL,
            TrySendError::Closed(_) => "audit backend shut down",
        });
        match offered {
            Ok(()) => self.waiting.add(),
            Err(_) => self.waiting.free(size),
        }
        offered
    }

    /// Waits until everything before has been sent or given up.
    pub async fn flush(&self) {
        let (done, told) = oneshot::channel();
        if self.sender.send(Message::Flush(done)).await.is_ok() {
            self.waiting.enough.notify_one();
            let _ = told.await;
        }
    }
}

struct Sending {
    receiver: mpsc::Receiver<Message>,
    waiting: Arc<Waiting>,
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
        let (mut events, mut size) = (Vec::new(), 0);
        // Without an event there is nothing to be late with.
        let mut next = self.receiver.recv().await;
        let until = Instant::now() + wait;
        let mut is_late = wait.is_zero();
        loop {
            match next {
                None => return (events, None),
                Some(Message::Flush(done)) => return (events, Some(done)),
                Some(Message::Event(event)) => {
                    size += event.size();
                    self.waiting.remove(event.size());
                    events.push(event);
                }
            }
            if events.len() >= batch || self.batch_bytes.is_some_and(|most| size >= most) {
                return (events, None);
            }
            next = loop {
                match self.receiver.try_recv() {
                    Ok(next) => break Some(next),
                    Err(TryRecvError::Disconnected) => break None,
                    Err(TryRecvError::Empty) if is_late => return (events, None),
                    Err(TryRecvError::Empty) => is_late = !self.waiting.enough(batch - events.len(), until).await,
                }
            };
        }
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
