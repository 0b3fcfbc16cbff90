//! Events of objects that a webhook converts. One task for each version that is watched turns them into that version, in
//! their order, and hands them to a hub of its own: what the webhook holds up, it holds up for these watchers only.

use std::sync::{Arc, Weak};

use api::kind::Definition;
use clock::{Instant, Progress};
use store::{Event, Revision};
use tokio::sync::mpsc;

use super::{QUEUE, WatchDispatch};
use crate::storage::conversion::Conversions;

/// The work of a task at one time: all events of a kind in one batch of the store's.
type Given = (Vec<Event>, Revision);

/// The dispatcher's end of one task.
pub(super) struct Feed {
    /// The name of the hub that the task hands events to.
    pub hub: String,
    queue: mpsc::Sender<Given>,
    /// Events that are on their way.
    waiting: usize,
    /// How far the hub has everything.
    pub progress: Arc<Progress>,
}

impl Feed {
    /// The name of the hub for a version of a kind.
    pub fn hub_of(definition: &Definition) -> String {
        format!("{}\n{}", definition.storage_prefix, definition.version)
    }

    /// The kind whose events feed a hub, if they are converted for it.
    pub fn prefix_of(hub: &str) -> Option<&str> {
        hub.split_once('\n').map(|(prefix, _)| prefix)
    }

    /// Starts a task from this revision on. It ends with its feed.
    pub fn start(
        watches: Weak<WatchDispatch>,
        definition: Arc<Definition>,
        conversions: Arc<Conversions>,
        revision: Revision,
    ) -> Feed {
        let (queue, given) = mpsc::channel(QUEUE);
        let hub = Feed::hub_of(&definition);
        let progress = Arc::new(Progress::new(revision));
        tokio::spawn(run(watches, (hub.clone(), progress.clone()), definition, conversions, given));
        Feed { hub, queue, waiting: 0, progress }
    }

    /// Gives the task events; false when too many wait already.
    pub fn give(&mut self, events: Vec<Event>, revision: Revision) -> bool {
        self.waiting += events.len();
        self.waiting <= QUEUE && self.queue.try_send((events, revision)).is_ok()
    }

    /// The task has handed over events up to a revision.
    pub fn handed(&mut self, events: usize, revision: Revision) {
        self.waiting = self.waiting.saturating_sub(events);
        self.progress.advance(revision);
    }

    /// Whether this is the feed of the task with this hub and progress: a hub may have got another one since.
    pub fn is(&self, own: &(String, Arc<Progress>)) -> bool {
        Arc::ptr_eq(&self.progress, &own.1)
    }

    /// Nothing is on its way: the hub is as far as the dispatcher.
    pub fn settle(&self, revision: Revision) {
        if self.waiting == 0 {
            self.progress.advance(revision);
        }
    }
}

impl Drop for Feed {
    /// Wakes those who wait for it, so that they look again.
    fn drop(&mut self) {
        self.progress.advance(Revision::MAX);
    }
}

async fn run(
    watches: Weak<WatchDispatch>,
    own: (String, Arc<Progress>),
    definition: Arc<Definition>,
    conversions: Arc<Conversions>,
    mut given: mpsc::Receiver<Given>,
) {
    let mut due: Option<Instant> = None;
    loop {
        let (mut events, mut revision) = tokio::select! {
            biased;
            next = given.recv() => match next {
                Some(next) => next,
                None => return,
            },
            () = clock::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let Some(watches) = watches.upgrade() else { return };
                due = watches.flush();
                continue;
            }
        };
        while events.len() < super::TOGETHER
            && let Ok((more, newer)) = given.try_recv()
        {
            events.extend(more);
            revision = newer;
        }
        let count = events.len();
        let converted = conversions.events(&definition, events).await;
        let Some(watches) = watches.upgrade() else { return };
        match converted {
            Ok(events) => due = watches.dispatch_converted(&own, &definition, &events, (count, revision)),
            Err(error) => return watches.fail(&own, &error),
        }
    }
}
