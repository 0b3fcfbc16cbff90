//! Where events go: the log or the webhook, at once or in batches, whole or without what is too large.

use std::sync::Arc;

use listener::Connection;

use super::{
    batch::{self, Batches},
    event::Event,
    group::Group,
    metrics::{Metrics, Part},
    output::Output,
    policy::{Level, Stage},
};

/// How the sender of a request waits for its events.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// Not at all.
    Batch(batch::Settings),
    /// Until they are kept, or cannot be: nothing changes before the first one is, and no byte of the answer leaves before
    /// those are that were taken by then.
    Blocking,
    /// And a request whose first event cannot be kept is refused.
    BlockingStrict,
}

/// The part of the server that waits until an event is kept, where any does.
#[derive(Clone, Copy)]
pub enum Until<'a> {
    /// Nothing: the request has no answer yet and does not change anything before it has one, or it is over.
    Whenever,
    /// The request itself.
    Written,
    /// The bytes that leave on its connection from now on.
    Leaving(&'a Connection),
}

/// Larger events lose their objects; those that are too large even so are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    pub event_bytes: usize,
    pub batch_bytes: usize,
}

enum Way {
    Batches(Batches),
    Group { log: Group, strict: bool },
    At { once: Output, strict: bool },
}

pub struct Sink {
    way: Way,
    truncation: Option<Truncation>,
    wants_lines: bool,
}

impl Sink {
    /// Work that goes on beside requests runs in `background`.
    pub fn new(
        output: Output,
        mode: Mode,
        truncation: Option<Truncation>,
        metrics: &Arc<Metrics>,
        background: &mut tokio::task::JoinSet<()>,
    ) -> Self {
        let wants_lines = output.wants_lines();
        let strict = mode == Mode::BlockingStrict;
        let way = match (mode, output) {
            (Mode::Batch(mut settings), output) => {
                settings.batch_bytes = truncation.map(|truncation| truncation.batch_bytes);
                let (batches, work) = Batches::new(settings, output, metrics.clone());
                background.spawn(work);
                Way::Batches(batches)
            }
            (_, Output::Log(log)) => {
                let (log, late) = Group::new(log, metrics.clone());
                background.spawn(late);
                Way::Group { log, strict }
            }
            (_, once) => Way::At { once, strict },
        };
        Sink { way, truncation, wants_lines }
    }

    pub fn wants_lines(&self) -> bool {
        self.wants_lines
    }

    /// Takes an event; false when the request has to be refused.
    pub async fn take(&self, event: Event, until: Until<'_>, metrics: &Metrics) -> bool {
        let Some(event) = self.fitting(event, metrics) else { return true };
        let first = event.stage == Stage::RequestReceived;
        match (&self.way, until) {
            (Way::Batches(batches), _) => {
                batches.add(event);
                true
            }
            (Way::Group { log, strict: true }, _) if first => log.write(&event).await,
            (Way::Group { log, .. }, Until::Whenever) => {
                log.add(&event);
                true
            }
            (Way::Group { log, .. }, Until::Leaving(connection)) => {
                log.hold(connection, &event);
                true
            }
            (Way::Group { log, .. }, Until::Written) => {
                log.write(&event).await;
                true
            }
            (Way::At { once, strict }, _) => once.write(&[event], metrics).await || !(*strict && first),
        }
    }

    /// The event as large as it may be.
    fn fitting(&self, event: Event, metrics: &Metrics) -> Option<Event> {
        let Some(truncation) = self.truncation.filter(|most| event.size() > most.event_bytes) else {
            return Some(event);
        };
        let smaller = if event.level >= Level::Request { event.truncated() } else { event };
        if smaller.size() > truncation.event_bytes {
            metrics.lost(Part::Truncate, 1, "event is too large even after truncating");
            return None;
        }
        Some(smaller)
    }

    /// Waits for everything that was taken before.
    pub async fn flush(&self) {
        match &self.way {
            Way::Batches(batches) => batches.flush().await,
            Way::Group { log, .. } => log.flush(),
            Way::At { .. } => {}
        }
    }
}
