//! From the store's changes to watch events. One task reads all changes; watchers that want the same are one group, an
//! event is encoded once per view, and a group's events of one batch are one buffer that all its members share.
//! Groups are found through indexes (namespace, name, a field's value), so that an event costs those who want it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api::{Value, kind::Definition};
use bytes::Bytes;
use clock::Progress;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use store::{Batch, Event, Revision, Store, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{filter::Filter, kinds::Kinds, metrics::Metrics, mirror::Mirror, object, view, view::View};

/// Buffers that may wait for one watcher; one more and it is cut off.
const QUEUE: usize = 1000;
/// Events that are handed out in one go, when so many have come.
const TOGETHER: usize = 256;
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// History older than this is forgotten.
const COMPACT_INTERVAL: Duration = Duration::from_secs(300);

/// What one watcher wants.
#[derive(Clone)]
pub struct Wanted {
    pub definition: Arc<Definition>,
    pub view: View,
    /// Empty for all.
    pub namespace: String,
    pub name: String,
    pub filter: Filter,
    /// The selectors' text: equal text, equal filter.
    pub selectors: String,
    pub bookmarks: bool,
}

/// Where a group stands in its hub's index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Everywhere,
    Namespace(String),
    Object(String, String),
    Field(String, String),
}

impl Wanted {
    fn place(&self) -> Place {
        if !self.name.is_empty() {
            return Place::Object(self.namespace.clone(), self.name.clone());
        }
        if let Some((field, value)) = self.filter.exact_field() {
            return Place::Field(field.to_owned(), value.to_owned());
        }
        if self.namespace.is_empty() { Place::Everywhere } else { Place::Namespace(self.namespace.clone()) }
    }

    fn same_group(&self, other: &Wanted) -> bool {
        Arc::ptr_eq(&self.definition, &other.definition)
            && self.view == other.view
            && self.namespace == other.namespace
            && self.name == other.name
            && self.selectors == other.selectors
    }

    /// Whether an event of this namespace and name can concern the group at all.
    fn covers(&self, namespace: &str, name: &str) -> bool {
        (self.namespace.is_empty() || self.namespace == namespace) && (self.name.is_empty() || self.name == name)
    }
}

struct Member {
    id: u64,
    bookmarks: bool,
    queue: mpsc::Sender<Bytes>,
}

struct Group {
    wanted: Wanted,
    members: Vec<Member>,
    /// Events of the batch at hand, not sent yet.
    pending: Vec<Bytes>,
}

/// The watchers of one storage prefix.
#[derive(Default)]
struct Hub {
    /// Ordered, as the hubs are: whom a bookmark wakes first must not depend on chance.
    places: BTreeMap<Place, Vec<Group>>,
    /// Field labels that some group is indexed by, with the number of such groups.
    fields: HashMap<String, usize>,
    mirrors: Vec<Arc<Mirror>>,
    /// Places with groups that have events pending.
    touched: Vec<Place>,
}

struct State {
    revision: Revision,
    /// Reading began, or began anew, behind this revision.
    started: Revision,
    /// The newest event of each storage prefix since then.
    latest: HashMap<String, Revision>,
    hubs: BTreeMap<String, Hub>,
    next_id: u64,
}

/// The one reader of the store's changes.
pub struct Feed {
    state: Mutex<State>,
    progress: Progress,
    pub metrics: Arc<Metrics>,
    /// Ends the feed's tasks, and with them their hold on the store.
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

/// A watcher's end of the feed. Ends when the watcher is cut off or the feed starts anew.
pub struct Subscription {
    pub events: mpsc::Receiver<Bytes>,
    feed: Arc<Feed>,
    prefix: String,
    place: Place,
    id: u64,
}

impl Subscription {
    /// Takes the watcher out; returns the revision up to which it got, or has waiting, everything.
    pub fn leave(&self) -> Revision {
        self.feed.leave(&self.prefix, &self.place, self.id)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Feed {
    /// Starts reading at the store's present revision. Reading ends when the last reference is gone.
    pub async fn start(store: Arc<dyn Store>, kinds: Arc<Kinds>) -> store::Result<Arc<Feed>> {
        let revision = store.revision().await?;
        let state = State { revision, started: revision, latest: HashMap::new(), hubs: BTreeMap::new(), next_id: 0 };
        let stop = CancellationToken::new();
        let feed = Arc::new(Feed {
            _stop: stop.clone().drop_guard(),
            state: Mutex::new(state),
            progress: Progress::new(revision),
            metrics: Arc::default(),
        });
        let reading = run(Arc::downgrade(&feed), store.clone(), kinds);
        tokio::spawn(stop.clone().run_until_cancelled_owned(reading));
        tokio::spawn(stop.run_until_cancelled_owned(compact(Arc::downgrade(&feed), store)));
        Ok(feed)
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
        clock::timeout(Duration::from_secs(3), self.progress.reached(revision)).await.is_ok()
    }

    /// Adds a watcher: it gets every event after the revision in the answer.
    pub fn subscribe(self: &Arc<Self>, wanted: Wanted) -> (Subscription, Joined) {
        let (queue, events) = mpsc::channel(QUEUE);
        let place = wanted.place();
        let prefix = wanted.definition.storage_prefix.clone();
        let mut state = self.state.lock();
        state.next_id += 1;
        let id = state.next_id;
        let hub = state.hubs.entry(prefix.clone()).or_default();
        let member = Member { id, bookmarks: wanted.bookmarks, queue };
        let groups = hub.places.entry(place.clone()).or_default();
        match groups.iter_mut().find(|g| g.wanted.same_group(&wanted)) {
            Some(group) => group.members.push(member),
            None => {
                groups.push(Group { wanted, members: vec![member], pending: Vec::new() });
                if let Place::Field(field, _) = &place {
                    *hub.fields.entry(field.clone()).or_default() += 1;
                }
            }
        }
        let subscription = Subscription { events, feed: self.clone(), prefix, place, id };
        let latest = state.latest.get(&subscription.prefix).copied();
        let joined = Joined { revision: state.revision, latest: latest.ok_or(state.started) };
        (subscription, joined)
    }

    fn leave(&self, prefix: &str, place: &Place, id: u64) -> Revision {
        let mut state = self.state.lock();
        let revision = state.revision;
        if let Some(hub) = state.hubs.get_mut(prefix) {
            hub.remove(place, |m| m.id == id);
        }
        revision
    }

    /// Registers a mirror; the caller fills it from a range at the revision returned or a later one.
    pub fn add_mirror(&self, mirror: Arc<Mirror>) -> Revision {
        let mut state = self.state.lock();
        let hub = state.hubs.entry(mirror.definition.storage_prefix.clone()).or_default();
        hub.mirrors.push(mirror);
        state.revision
    }

    /// The mirrors there are, each with its kind.
    pub fn mirrors(&self) -> Vec<Arc<Mirror>> {
        self.state.lock().hubs.values().flat_map(|h| h.mirrors.iter().cloned()).collect()
    }

    fn dispatch(&self, batch: &Batch, kinds: &Kinds) {
        let table = kinds.table();
        let mut state = self.state.lock();
        let mut touched: Vec<String> = Vec::new();
        for event in &batch.events {
            let Some((prefix, definition)) = table.of_key(&event.key) else { continue };
            match state.latest.get_mut(prefix) {
                Some(latest) => *latest = event.revision,
                None => {
                    state.latest.insert(prefix.to_owned(), event.revision);
                }
            }
            let Some(hub) = state.hubs.get_mut(prefix) else { continue };
            for mirror in &hub.mirrors {
                mirror.apply(event);
            }
            if hub.places.is_empty() {
                continue;
            }
            waypoint::apiserver::watch_event(&event.key);
            hub.offer(definition, event);
            if !touched.iter().any(|t| t == prefix) {
                touched.push(prefix.to_owned());
            }
        }
        for prefix in touched {
            if let Some(hub) = state.hubs.get_mut(&prefix) {
                hub.flush(&self.metrics);
            }
        }
        state.revision = state.revision.max(batch.revision);
        let revision = state.revision;
        drop(state);
        self.progress.advance(revision);
    }

    /// Ends all watches: their clients resume from the store's history.
    fn reset(&self) {
        for hub in self.state.lock().hubs.values_mut() {
            hub.places.clear();
            hub.fields.clear();
        }
    }

    fn bookmark_all(&self) {
        let mut state = self.state.lock();
        let revision = state.revision;
        for group in state.hubs.values_mut().flat_map(|h| h.places.values_mut()).flatten() {
            if !group.members.iter().any(|m| m.bookmarks) {
                continue;
            }
            let line = Bytes::from(view::bookmark(&group.wanted.definition, group.wanted.view, revision, false));
            for member in group.members.iter().filter(|m| m.bookmarks) {
                // A full queue shows soon enough, by an event that does not fit.
                let _ = member.queue.try_send(line.clone());
            }
        }
    }
}

/// One event with what was found out about it so far.
struct Offer<'e> {
    definition: &'e Definition,
    event: &'e Event,
    new: std::cell::OnceCell<Value>,
    old: std::cell::OnceCell<Value>,
    encoded: Vec<(usize, View, &'static str, Bytes)>,
}

impl<'e> Offer<'e> {
    fn new(definition: &'e Definition, event: &'e Event) -> Self {
        Offer { definition, event, new: Default::default(), old: Default::default(), encoded: Vec::new() }
    }

    fn value(&self, old: bool) -> Option<&Value> {
        let (cell, entry) = if old { (&self.old, &self.event.previous) } else { (&self.new, &self.event.entry) };
        let entry = entry.as_ref()?;
        Some(cell.get_or_init(|| serde_json::from_slice(&entry.value).unwrap_or_default()))
    }

    fn matches(&self, wanted: &Wanted, old: bool) -> bool {
        let entry = if old { &self.event.previous } else { &self.event.entry };
        let Some(entry) = entry else { return false };
        if wanted.filter.is_everything() {
            return true;
        }
        if !wanted.filter.may_match(&entry.value) {
            return false;
        }
        if object::converted(&wanted.definition) {
            return wanted.filter.matches_bytes(&wanted.definition, &entry.value);
        }
        self.value(old).is_some_and(|v| wanted.filter.matches(self.definition, v))
    }

    /// The line for this group, if the event concerns it.
    fn line(&mut self, wanted: &Wanted) -> Option<Bytes> {
        let (kind, entry) = match (self.matches(wanted, true), self.matches(wanted, false)) {
            (false, true) => ("ADDED", self.event.entry.as_ref()?),
            (true, true) => ("MODIFIED", self.event.entry.as_ref()?),
            (true, false) => ("DELETED", self.event.previous.as_ref()?),
            (false, false) => return None,
        };
        let of = Arc::as_ptr(&wanted.definition) as usize;
        let known = self.encoded.iter().find(|(d, v, k, _)| *d == of && *v == wanted.view && *k == kind);
        if let Some((.., line)) = known {
            return Some(line.clone());
        }
        let line = view::event(&wanted.definition, wanted.view, kind, &entry.value, self.event.revision);
        let line = Bytes::from(line);
        self.encoded.push((of, wanted.view, kind, line.clone()));
        Some(line)
    }
}

impl Hub {
    fn offer(&mut self, definition: &Definition, event: &Event) {
        let (namespace, name) = object::names(definition, &event.key);
        let mut offer = Offer::new(definition, event);
        let mut places = vec![
            Place::Everywhere,
            Place::Namespace(namespace.to_owned()),
            Place::Object(namespace.to_owned(), name.to_owned()),
            Place::Object(String::new(), name.to_owned()),
        ];
        if !definition.namespaced() {
            places.pop();
        }
        if !self.fields.is_empty() {
            for old in [false, true] {
                let Some(value) = offer.value(old) else { continue };
                for (label, value) in definition.behaviour.selectable(value) {
                    let place = Place::Field(label.to_owned(), value);
                    if self.fields.contains_key(label) && !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
        }
        for place in places {
            for group in self.places.get_mut(&place).into_iter().flatten() {
                if group.wanted.covers(namespace, name)
                    && let Some(line) = offer.line(&group.wanted)
                {
                    if group.pending.is_empty() {
                        self.touched.push(place.clone());
                    }
                    group.pending.push(line);
                }
            }
        }
    }

    /// Sends what is pending; members that cannot take it are cut off.
    fn flush(&mut self, metrics: &Metrics) {
        let mut cut = Vec::new();
        for place in std::mem::take(&mut self.touched) {
            let Some(groups) = self.places.get_mut(&place) else { continue };
            for group in groups.iter_mut().filter(|g| !g.pending.is_empty()) {
                let events = group.pending.len();
                let buffer = match group.pending.as_slice() {
                    [one] => one.clone(),
                    many => many.concat().into(),
                };
                group.pending.clear();
                metrics.watch_events.fetch_add((events * group.members.len()) as u64, Ordering::Relaxed);
                for member in &group.members {
                    if let Err(error) = member.queue.try_send(buffer.clone()) {
                        if matches!(error, mpsc::error::TrySendError::Full(_)) {
                            metrics.watchers_cut.fetch_add(1, Ordering::Relaxed);
                            tracing::warn!(
                                kind = group.wanted.definition.kind,
                                namespace = group.wanted.namespace,
                                "a watcher did not keep up and was cut off"
                            );
                        }
                        cut.push((place.clone(), member.id));
                    }
                }
            }
        }
        for (place, id) in cut {
            self.remove(&place, |m| m.id == id);
        }
    }

    fn remove(&mut self, place: &Place, gone: impl Fn(&Member) -> bool) {
        let Some(groups) = self.places.get_mut(place) else { return };
        for group in groups.iter_mut() {
            group.members.retain(|m| !gone(m));
        }
        let before = groups.len();
        groups.retain(|g| !g.members.is_empty());
        let ended = before - groups.len();
        if groups.is_empty() {
            self.places.remove(place);
        }
        if let Place::Field(field, _) = place
            && ended > 0
            && let Some(count) = self.fields.get_mut(field)
        {
            *count -= ended;
            if *count == 0 {
                self.fields.remove(field);
            }
        }
    }
}

/// Reads changes until the feed is gone; begins anew when the store cuts the watch.
async fn run(feed: std::sync::Weak<Feed>, store: Arc<dyn Store>, kinds: Arc<Kinds>) {
    let mut bookmarks = tokio::time::interval_at(clock::Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
    bookmarks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let Some(after) = feed.upgrade().map(|f| f.revision()) else { return };
        let mut changes = match store.watch("/registry/", Some(after)).await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "watching the store failed");
                let Some(feed) = feed.upgrade() else { return };
                restart(&feed, &*store).await;
                continue;
            }
        };
        loop {
            tokio::select! {
                biased;
                batch = changes.next() => {
                    let Some(feed) = feed.upgrade() else { return };
                    let end = match batch {
                        Some(Ok(batch)) => {
                            let (batch, end) = gather(batch, &mut changes);
                            feed.dispatch(&batch, &kinds);
                            end
                        }
                        Some(Err(error)) => Some(Some(error)),
                        None => Some(None),
                    };
                    if let Some(why) = end {
                        if let Some(error) = why {
                            tracing::warn!(%error, "the store ended the watch");
                        }
                        restart(&feed, &*store).await;
                        break;
                    }
                }
                _ = bookmarks.tick() => {
                    let Some(feed) = feed.upgrade() else { return };
                    feed.bookmark_all();
                }
            }
        }
    }
}

/// Adds the batches that are there already, so that under load watchers are woken less often than the store commits.
/// The second part tells that the watch has ended behind them, and the error it ended with.
fn gather(mut batch: Batch, changes: &mut store::Watch) -> (Batch, Option<Option<StoreError>>) {
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

/// Events may have been missed: all watches end, mirrors are read again, and reading goes on from now.
async fn restart(feed: &Arc<Feed>, store: &dyn Store) {
    clock::sleep(Duration::from_millis(200)).await;
    feed.reset();
    if let Ok(revision) = store.revision().await {
        let mut state = feed.state.lock();
        state.revision = revision;
        state.started = revision;
        state.latest.clear();
        drop(state);
        feed.progress.reset(revision);
    }
    for mirror in feed.mirrors() {
        if let Err(error) = mirror.fill(store).await {
            tracing::warn!(%error, kind = mirror.definition.kind, "reading all objects of a kind failed");
        }
    }
}

/// Forgets history that is older than the interval.
async fn compact(feed: std::sync::Weak<Feed>, store: Arc<dyn Store>) {
    let mut forget: Option<Revision> = None;
    loop {
        clock::sleep(COMPACT_INTERVAL).await;
        let Some(revision) = feed.upgrade().map(|f| f.revision()) else { return };
        if let Some(old) = forget.filter(|old| *old < revision)
            && let Err(error) = store.compact(old).await
        {
            tracing::debug!(%error, "compaction failed");
        }
        forget = Some(revision);
    }
}
