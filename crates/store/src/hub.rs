//! Watches: how a durable batch reaches those who watch a prefix.
//!
//! Watchers are grouped by prefix, so that an event is compared once per distinct prefix. A watcher owns a bounded
//! queue; one that lets it fill up is cut off with an error and costs the others nothing.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures::Stream;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;

use crate::{Batch, Event, Result, Revision, StoreError, index::Index};

/// The most events of the past that go out in one batch.
const BACKLOG_BATCH: usize = 1000;

struct Subscriber {
    queue: mpsc::UnboundedSender<Result<Batch>>,
    /// Events in the queue.
    waiting: Arc<AtomicUsize>,
    /// The revision up to which the watcher has or will get everything.
    delivered: Revision,
}

pub(crate) struct Hub {
    state: Mutex<State>,
}

struct State {
    subscribers: BTreeMap<Box<str>, Vec<Subscriber>>,
    /// Every event up to here is in the queues of those who watch it. Never behind a compaction.
    published: Revision,
}

impl Hub {
    pub fn new(published: Revision) -> Self {
        Hub { state: Mutex::new(State { subscribers: BTreeMap::new(), published }) }
    }

    /// Opens a watch. The backlog is read while the hub is locked, so no event falls between it and the queue.
    pub fn watch(&self, index: &RwLock<Index>, prefix: &str, after: Option<Revision>) -> Result<Watcher> {
        let mut state = self.state.lock();
        let (backlog, newest) = {
            let index = index.read();
            let newest = index.revision();
            (index.events_after(prefix, after.unwrap_or(newest))?, newest)
        };
        let (queue, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let subscriber = Subscriber { queue, waiting: waiting.clone(), delivered: newest };
        let group = state.subscribers.entry(prefix.into()).or_default();
        group.retain(|s| !s.queue.is_closed());
        group.push(subscriber);
        Ok(Watcher { backlog: backlog.into_iter(), newest, queue: receiver, waiting, ended: false })
    }

    /// Hands the events of one durable batch to everyone who watches them.
    pub fn publish(&self, events: &[Event], revision: Revision, queue_events: usize) {
        for event in events {
            waypoint::store::event(&event.key);
        }
        let mut state = self.state.lock();
        state.published = revision;
        state.subscribers.retain(|prefix, group| {
            let matching: Vec<&Event> = events.iter().filter(|e| e.key.starts_with(&**prefix)).collect();
            if !matching.is_empty() {
                group.retain_mut(|subscriber| subscriber.send(&matching, revision, queue_events));
            }
            !group.is_empty()
        });
    }

    /// Queues a mark for every watcher that has not heard of this revision.
    pub fn progress(&self, index: &RwLock<Index>) {
        let mut state = self.state.lock();
        let published = state.published;
        // A batch that was applied but not yet published must not be overtaken by its own mark: whatever the index
        // knows beyond the last publication goes out with the mark, and `publish` skips what was delivered.
        let index = index.read();
        state.subscribers.retain(|prefix, group| {
            group.retain_mut(|subscriber| {
                if subscriber.delivered >= index.revision() {
                    return !subscriber.queue.is_closed();
                }
                let complete = subscriber.delivered.max(published);
                let events = index.events_after(prefix, complete).expect("unpublished events are never compacted");
                let events: Vec<&Event> = events.iter().collect();
                subscriber.send(&events, index.revision(), usize::MAX)
            });
            !group.is_empty()
        });
    }

    /// Ends every watch.
    pub fn close(&self, reason: &str) {
        self.state.lock().close(reason);
    }

    /// Ends every watch, and goes on from a revision: what lies between is not known.
    pub fn leap(&self, revision: Revision, reason: &str) {
        let mut state = self.state.lock();
        state.close(reason);
        state.published = revision;
    }
}

impl State {
    fn close(&mut self, reason: &str) {
        for subscriber in std::mem::take(&mut self.subscribers).into_values().flatten() {
            let _ = subscriber.queue.send(Err(StoreError::Unavailable(reason.to_owned())));
        }
    }
}

impl Subscriber {
    /// False when the watcher is gone or was cut off.
    fn send(&mut self, events: &[&Event], revision: Revision, queue_events: usize) -> bool {
        let events: Vec<Event> =
            events.iter().filter(|e| e.revision > self.delivered).map(|e| Event::clone(e)).collect();
        if self.waiting.fetch_add(events.len(), Ordering::Relaxed) + events.len() > queue_events {
            let _ = self.queue.send(Err(StoreError::Unavailable("the watcher did not keep up".into())));
            return false;
        }
        if revision <= self.delivered {
            return true;
        }
        self.delivered = revision;
        self.queue.send(Ok(Batch { events, revision })).is_ok()
    }
}

/// The watching end: first the past in pieces, then what comes.
pub(crate) struct Watcher {
    backlog: std::vec::IntoIter<Event>,
    newest: Revision,
    queue: mpsc::UnboundedReceiver<Result<Batch>>,
    waiting: Arc<AtomicUsize>,
    ended: bool,
}

impl Stream for Watcher {
    type Item = Result<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if this.backlog.len() > 0 {
            let mut events: Vec<Event> = this.backlog.by_ref().take(BACKLOG_BATCH).collect();
            let last = events.last().map_or(this.newest, |e| e.revision);
            // A batch has all of its last revision.
            while this.backlog.as_slice().first().is_some_and(|event| event.revision == last) {
                events.extend(this.backlog.next());
            }
            let revision = if this.backlog.len() == 0 { this.newest } else { last };
            return Poll::Ready(Some(Ok(Batch { events, revision })));
        }
        match ready!(this.queue.poll_recv(cx)) {
            Some(Ok(batch)) => {
                this.waiting.fetch_sub(batch.events.len(), Ordering::Relaxed);
                Poll::Ready(Some(Ok(batch)))
            }
            Some(Err(error)) => {
                this.ended = true;
                Poll::Ready(Some(Err(error)))
            }
            None => Poll::Ready(None),
        }
    }
}
