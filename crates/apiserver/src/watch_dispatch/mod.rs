//! From the store's changes to watch events. One task reads all changes; watchers of one scope are one group, an
//! event is encoded once per view, and what a group is sent at one time is one buffer that all its members share.
//! Groups are found through indexes (namespace, name, a field's value), so that an event costs those who want it.

mod encoded_event;
mod feed;
mod hub;
mod scope;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{kind::Definition, status::StatusError};
use bytes::Bytes;
use clock::{Instant, Progress};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use store::{Batch, Event, Revision, Store, StoreError};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use feed::Feed;
use hub::Hub;
use scope::Place;
pub use scope::WatchScope;

use crate::{
    pages::metrics::Metrics,
    storage::{conversion::Conversions, informer::Informer, kinds::Kinds},
};

/// Buffers that may wait for one watcher; one more and it is cut off.
const QUEUE: usize = 1000;
/// At most this many events are handed out in one go.
const TOGETHER: usize = 256;
/// Nobody waits longer until a revision is handed out.
pub const REACH: Duration = Duration::from_secs(3);
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// History older than this is forgotten.
const COMPACT_INTERVAL: Duration = Duration::from_secs(300);

struct State {
    revision: Revision,
    /// Reading began, or began anew, behind this revision.
    started: Revision,
    /// The newest event of each storage prefix since then.
    latest: HashMap<String, Revision>,
    /// By storage prefix; those of versions that a webhook converts by names of their own ([`Feed::hub_of`]).
    hubs: BTreeMap<String, Hub>,
    /// The tasks that convert events, by storage prefix.
    feeds: HashMap<String, Vec<Feed>>,
    /// The names of the hubs that have something to send.
    pending: BTreeSet<String>,
    /// Watches that begin at a revision still to come. Only then are they woken.
    waiting: BTreeMap<Turn, Arc<Notify>>,
    next_id: u64,
}

/// The revision that somebody waits for, and its number among all.
type Turn = (Revision, u64);

impl State {
    /// Wakes those whose revision has come.
    fn wake(&mut self) {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= self.revision) {
            first.remove().notify_one();
        }
    }

    /// Sends what is due; returns when the next is.
    fn flush(&mut self, metrics: &Metrics) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for prefix in std::mem::take(&mut self.pending) {
            if let Some(due) = self.hubs.get_mut(&prefix).and_then(|hub| hub.flush(now, metrics)) {
                next = Some(next.map_or(due, |n| n.min(due)));
                self.pending.insert(prefix);
            }
        }
        next
    }

    fn feed(&self, hub: &str) -> Option<&Feed> {
        self.feeds.get(Feed::prefix_of(hub)?)?.iter().find(|feed| feed.hub == hub)
    }

    /// How far a hub has everything.
    fn reached(&self, hub: &str) -> Revision {
        self.feed(hub).map_or(self.revision, |feed| feed.progress.get().min(self.revision))
    }

    /// Gives those that convert them their events of a batch. One that does not keep up is cut off with its watchers.
    fn feed_all(&mut self, batch: &Batch) {
        for (prefix, feeds) in &mut self.feeds {
            let key = format!("/registry/{prefix}/");
            let own = || batch.events.iter().filter(|event| event.key.starts_with(&key));
            let latest = own().map(|event| event.revision).last();
            feeds.retain_mut(|feed| {
                let kept = latest.is_none_or(|latest| feed.give(own().cloned().collect(), latest));
                if !kept {
                    self.hubs.remove(&feed.hub);
                    tracing::warn!(
                        prefix,
                        "a webhook converts too slowly for the watchers of its kind, which are cut off"
                    );
                }
                feed.settle(batch.revision);
                kept
            });
        }
        self.feeds.retain(|_, feeds| !feeds.is_empty());
    }

    /// Ends what is converted for the watchers of a hub.
    fn end_feed(&mut self, hub: &str) {
        let Some(prefix) = Feed::prefix_of(hub) else { return };
        if let Some(feeds) = self.feeds.get_mut(prefix) {
            feeds.retain(|feed| feed.hub != hub);
            if feeds.is_empty() {
                self.feeds.remove(prefix);
            }
        }
        self.hubs.remove(hub);
    }
}

/// The one reader of the store's changes.
pub struct WatchDispatch {
    state: Mutex<State>,
    progress: Progress,
    pub metrics: Arc<Metrics>,
    /// Ends the tasks, and with them their hold on the store.
    _stop: DropGuard,
}

/// Where a watcher came in.
#[derive(Debug, Clone, Copy)]
pub struct Joined {
    /// It gets everything after this.
    pub revision: Revision,
    /// The newest event of its storage prefix up to there; `Err` when there was none since the revision given.
    pub latest: Result<Revision, Revision>,
}

/// A watcher's end. It ends when the watcher is cut off or reading begins anew.
pub struct Subscription {
    pub events: mpsc::Receiver<Bytes>,
    watches: Arc<WatchDispatch>,
    hub: String,
    place: Place,
    id: u64,
}

impl Subscription {
    /// Takes the watcher out; returns the revision up to which it got, or has waiting, everything.
    pub fn leave(&self) -> Revision {
        self.watches.leave(&self.hub, &self.place, self.id)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave();
    }
}

/// One who waits for a revision, until it does not any more.
struct Waiting<'w> {
    watches: &'w WatchDispatch,
    turn: Turn,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.watches.state.lock().waiting.remove(&self.turn);
    }
}

impl WatchDispatch {
    /// Starts reading at the store's present revision. Reading ends when the last reference is gone.
    pub async fn start(store: Arc<dyn Store>, kinds: Arc<Kinds>) -> store::Result<Arc<WatchDispatch>> {
        let revision = store.revision().await?;
        let state = State {
            revision,
            started: revision,
            latest: HashMap::new(),
            hubs: BTreeMap::new(),
            feeds: HashMap::new(),
            pending: BTreeSet::new(),
            waiting: BTreeMap::new(),
            next_id: 0,
        };
        let stop = CancellationToken::new();
        let watches = Arc::new(WatchDispatch {
            _stop: stop.clone().drop_guard(),
            state: Mutex::new(state),
            progress: Progress::new(revision),
            metrics: Arc::default(),
        });
        let reading = run(Arc::downgrade(&watches), store.clone(), kinds);
        tokio::spawn(stop.clone().run_until_cancelled_owned(reading));
        tokio::spawn(stop.run_until_cancelled_owned(compact(Arc::downgrade(&watches), store)));
        Ok(watches)
    }

    pub fn revision(&self) -> Revision {
        self.progress.get()
    }

    /// Waits until everything up to `revision` was handed out; false when that took too long.
    pub async fn reached(&self, revision: Revision, store: &dyn Store) -> bool {
        if self.progress.get() >= revision {
            return true;
        }
        let _ = store.request_progress().await;
        clock::timeout(REACH, self.progress.reached(revision)).await.is_ok()
    }

    /// Waits until there is everything up to `revision`, however long that takes: the caller bounds it.
    pub async fn passed(&self, revision: Revision) {
        let (turn, come) = {
            let mut state = self.state.lock();
            if state.revision >= revision {
                return;
            }
            state.next_id += 1;
            let (turn, come) = ((revision, state.next_id), Arc::new(Notify::new()));
            state.waiting.insert(turn, come.clone());
            (turn, come)
        };
        let _waiting = Waiting { watches: self, turn };
        come.notified().await;
    }

    /// Adds a watcher: it gets every event after the revision in the answer.
    pub fn subscribe(self: &Arc<Self>, scope: WatchScope) -> (Subscription, Joined) {
        let hub = scope.definition.storage_prefix.clone();
        self.join(&mut self.state.lock(), hub, scope)
    }

    /// Adds a watcher whose events a webhook converts, once that has come as far as `reach`; `Err` says how far it is when
    /// that takes too long.
    pub async fn subscribe_converted(
        self: &Arc<Self>,
        scope: WatchScope,
        reach: Revision,
        conversions: &Arc<Conversions>,
    ) -> Result<(Subscription, Joined), Revision> {
        // The feed goes on for as long as it has a watcher.
        let (holding, progress) = self.join_fed(scope.clone(), conversions);
        if clock::timeout(REACH, progress.reached(reach)).await.is_err() {
            return Err(progress.get());
        }
        let (joined, _) = self.join_fed(scope, conversions);
        drop(holding);
        Ok(joined)
    }

    fn join_fed(
        self: &Arc<Self>,
        scope: WatchScope,
        conversions: &Arc<Conversions>,
    ) -> ((Subscription, Joined), Arc<Progress>) {
        let hub = Feed::hub_of(&scope.definition);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let progress = match state.feed(&hub) {
            Some(feed) => feed.progress.clone(),
            None => {
                let of = scope.definition.clone();
                let feed = Feed::start(Arc::downgrade(self), of, conversions.clone(), state.revision);
                let progress = feed.progress.clone();
                state.feeds.entry(scope.definition.storage_prefix.clone()).or_default().push(feed);
                progress
            }
        };
        (self.join(state, hub, scope), progress)
    }

    fn join(self: &Arc<Self>, state: &mut State, hub: String, scope: WatchScope) -> (Subscription, Joined) {
        let (queue, events) = mpsc::channel(QUEUE);
        let (place, definition) = (scope.place(), scope.definition.clone());
        state.next_id += 1;
        let id = state.next_id;
        state.hubs.entry(hub.clone()).or_default().join(scope, id, queue, &self.metrics);
        let latest = state.latest.get(&definition.storage_prefix).copied();
        let joined = Joined { revision: state.reached(&hub), latest: latest.ok_or(state.started) };
        (Subscription { events, watches: self.clone(), hub, place, id }, joined)
    }

    fn leave(&self, hub: &str, place: &Place, id: u64) -> Revision {
        let mut state = self.state.lock();
        let revision = state.reached(hub);
        if let Some(found) = state.hubs.get_mut(hub) {
            found.leave(place, id, &self.metrics);
            if !found.has_watchers() {
                state.end_feed(hub);
            }
        }
        revision
    }

    /// Hands out events that were converted; returns when [`WatchDispatch::flush`] has to be called for what is gathered.
    fn dispatch_converted(
        &self,
        own: &(String, Arc<Progress>),
        definition: &Definition,
        events: &[Event],
        (given, revision): (usize, Revision),
    ) -> Option<Instant> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let feed = state.feeds.values_mut().flatten().find(|feed| feed.is(own))?;
        feed.handed(given, revision);
        feed.settle(state.revision);
        if let Some(hub) = state.hubs.get_mut(&own.0) {
            events.iter().for_each(|event| hub.dispatch(definition, event));
        }
        state.pending.insert(own.0.clone());
        state.flush(&self.metrics)
    }

    /// Ends the watches whose events cannot be converted, and tells them why.
    fn fail(&self, own: &(String, Arc<Progress>), error: &StatusError) {
        let mut state = self.state.lock();
        if !state.feeds.values().flatten().any(|feed| feed.is(own)) {
            return;
        }
        if let Some(hub) = state.hubs.get_mut(&own.0) {
            hub.fail(error);
        }
        state.end_feed(&own.0);
    }

    /// Registers an informer; the caller fills it from a range at the revision returned or a later one.
    pub fn add_informer(&self, informer: Arc<Informer>) -> Revision {
        let mut state = self.state.lock();
        let hub = state.hubs.entry(informer.definition.storage_prefix.clone()).or_default();
        hub.informers.push(informer);
        state.revision
    }

    /// The informers there are, each with its kind.
    pub fn informers(&self) -> Vec<Arc<Informer>> {
        self.state.lock().hubs.values().flat_map(|h| h.informers.iter().cloned()).collect()
    }

    /// Hands a batch out; returns when [`WatchDispatch::flush`] has to be called for what is gathered.
    fn dispatch(&self, batch: &Batch, kinds: &Kinds) -> Option<Instant> {
        let table = kinds.table();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for event in &batch.events {
            let Some((prefix, definition)) = table.of_key(&event.key) else { continue };
            match state.latest.get_mut(prefix) {
                Some(latest) => *latest = event.revision,
                None => {
                    state.latest.insert(prefix.to_owned(), event.revision);
                }
            }
            let Some(hub) = state.hubs.get_mut(prefix) else { continue };
            for informer in &hub.informers {
                informer.apply(event);
            }
            if !hub.has_watchers() {
                continue;
            }
            waypoint::apiserver::watch_event(&event.key);
            hub.dispatch(definition, event);
            if !state.pending.contains(prefix) {
                state.pending.insert(prefix.to_owned());
            }
        }
        state.revision = state.revision.max(batch.revision);
        state.wake();
        if !state.feeds.is_empty() {
            state.feed_all(batch);
        }
        let (due, revision) = (state.flush(&self.metrics), state.revision);
        drop(guard);
        self.progress.advance(revision);
        due
    }

    fn flush(&self) -> Option<Instant> {
        self.state.lock().flush(&self.metrics)
    }

    /// Ends all watches: their clients resume from the store's history.
    fn reset(&self) {
        let mut state = self.state.lock();
        state.hubs.values_mut().for_each(Hub::end_all);
        state.feeds.clear();
    }

    /// Ends the watches of a storage prefix: what they were asked for is not what is served now.
    pub fn end(&self, prefix: &str) {
        let mut state = self.state.lock();
        if let Some(hub) = state.hubs.get_mut(prefix) {
            hub.end_all();
        }
        for feed in state.feeds.remove(prefix).unwrap_or_default() {
            state.hubs.remove(&feed.hub);
        }
    }

    /// How many watches there are.
    pub fn watchers(&self) -> usize {
        self.state.lock().hubs.values().map(Hub::watchers).sum()
    }

    /// Ends this number of watches, or all there are: their clients go on at another server.
    pub fn end_some(&self, most: usize) {
        let mut left = most;
        for hub in self.state.lock().hubs.values_mut() {
            left -= hub.end_some(left, &self.metrics);
        }
    }

    fn bookmark_all(&self) {
        let mut state = self.state.lock();
        let revision = state.revision;
        let behind: Vec<String> =
            state.feeds.values().flatten().filter(|f| f.progress.get() < revision).map(|f| f.hub.clone()).collect();
        // Those that are behind have not everything up to there.
        let hubs = state.hubs.iter_mut().filter(|(name, _)| !behind.contains(name));
        hubs.for_each(|(_, hub)| hub.bookmark(revision, &self.metrics));
    }
}

/// Reads changes until nobody holds the dispatch; begins anew when the store cuts the watch.
async fn run(watches: std::sync::Weak<WatchDispatch>, store: Arc<dyn Store>, kinds: Arc<Kinds>) {
    let mut bookmarks = tokio::time::interval_at(clock::Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
    bookmarks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let Some(after) = watches.upgrade().map(|f| f.revision()) else { return };
        let mut changes = match store.watch("/registry/", Some(after)).await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "watching the store failed");
                let Some(watches) = watches.upgrade() else { return };
                restart(&watches, &*store).await;
                continue;
            }
        };
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                batch = changes.next() => {
                    let Some(watches) = watches.upgrade() else { return };
                    let end = match batch {
                        Some(Ok(batch)) => {
                            let (batch, end) = coalesce(batch, &mut changes);
                            due = watches.dispatch(&batch, &kinds);
                            end
                        }
                        Some(Err(error)) => Some(Some(error)),
                        None => Some(None),
                    };
                    if let Some(why) = end {
                        if let Some(error) = why {
                            tracing::warn!(%error, "the store ended the watch");
                        }
                        restart(&watches, &*store).await;
                        break;
                    }
                }
                () = clock::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let Some(watches) = watches.upgrade() else { return };
                    due = watches.flush();
                }
                _ = bookmarks.tick() => {
                    let Some(watches) = watches.upgrade() else { return };
                    watches.bookmark_all();
                }
            }
        }
    }
}

/// Adds the batches that are there already, so that under load watchers are woken less often than the store commits.
/// The second part tells that the watch has ended behind them, and the error it ended with.
fn coalesce(mut batch: Batch, changes: &mut store::Watch) -> (Batch, Option<Option<StoreError>>) {
    while batch.events.len() < TOGETHER {
        match changes.next().now_or_never() {
            Some(Some(Ok(more))) => {
                batch.events.extend(more.events);
                batch.revision = more.revision;
            }
            Some(Some(Err(error))) => return (batch, Some(Some(error))),
            Some(None) => return (batch, Some(None)),
            None => break,
        }
    }
    (batch, None)
}

/// Events may have been missed: all watches end, informers are read again, and reading goes on from now.
async fn restart(watches: &Arc<WatchDispatch>, store: &dyn Store) {
    clock::sleep(Duration::from_millis(200)).await;
    watches.reset();
    if let Ok(revision) = store.revision().await {
        let mut state = watches.state.lock();
        state.revision = revision;
        state.started = revision;
        state.wake();
        state.latest.clear();
        drop(state);
        watches.progress.reset(revision);
    }
    for informer in watches.informers() {
        if let Err(error) = informer.fill(store).await {
            tracing::warn!(%error, kind = informer.definition.kind, "reading all objects of a kind failed");
        }
    }
}

/// Forgets history that is older than the interval.
async fn compact(watches: std::sync::Weak<WatchDispatch>, store: Arc<dyn Store>) {
    let mut forget: Option<Revision> = None;
    loop {
        clock::sleep(COMPACT_INTERVAL).await;
        let Some(revision) = watches.upgrade().map(|f| f.revision()) else { return };
        if let Some(old) = forget.filter(|old| *old < revision)
            && let Err(error) = store.compact(old).await
        {
            tracing::debug!(%error, "compaction failed");
        }
        forget = Some(revision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_ended_waits_no_longer() {
        let store = Arc::new(store::embedded::Embedded::memory());
        let watches = WatchDispatch::start(store, Arc::new(Kinds::default())).await.expect("an empty store");
        watches.passed(watches.revision()).await;
        let mut ended = Box::pin(watches.passed(watches.revision() + 7));
        assert!((&mut ended).now_or_never().is_none());
        assert_eq!(watches.state.lock().waiting.len(), 1);
        drop(ended);
        assert!(watches.state.lock().waiting.is_empty());
    }
}
