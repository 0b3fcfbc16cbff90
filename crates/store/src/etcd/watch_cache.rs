//! The watch cache: all keys of an etcd cluster below a prefix, in memory, kept up to date by one watch.
//!
//! Reads are consistent, and answered from here: etcd is asked only for its newest revision, once for all who ask at the
//! same time, and the answer is given when the copy has reached it (upstream's ConsistentListFromCache). Usually the last
//! event brings the copy there. Where it does not, since that revision is about somebody else's key, progress marks do; of
//! an etcd whose marks can overtake events none are taken, and a key of this store's own is written instead.
//!
//! Watches and reads of the past are answered from here as far as the copy goes back. When etcd is away the copy waits, and
//! goes on from where it was: watchers notice nothing. Writes go to etcd, which compares. Now and then etcd is told to
//! forget its history, which the copy keeps to a part of its own.

use std::sync::Arc;

use bytes::Bytes;
use clock::{Duration, Instant, Progress};
use futures::{StreamExt, future::BoxFuture};
use parking_lot::{Mutex, RwLock};
use tokio::task::JoinHandle;

use super::{Etcd, Previous, compaction, newest::Questions};
use crate::{
    Batch, Change, Commit, Entry, Expect, Page, Range, Refused, Result, Revision, Store, StoreError, Watch, hub::Hub,
    index::Index,
};

/// The copy begins this number of revisions before the newest, so that those who watched another server, or this one
/// before it was started again, can go on.
const BACK: u64 = 2000;
/// History that is kept without a compaction, in bytes.
const HISTORY_BYTES: usize = 48 << 20;
/// The number of waiting events at which a watcher is cut off.
const QUEUE_EVENTS: usize = 50_000;
/// The number of entries that are read at once when the copy begins.
const PAGE: usize = 1000;
/// How long a read waits for the copy to get to the newest revision.
const PATIENCE: Duration = Duration::from_secs(3);
/// An event that is on its way is here by then. A mark costs etcd little, a write of our own costs more.
const BEFORE_A_MARK: Duration = Duration::from_millis(10);
const BETWEEN_MARKS: Duration = Duration::from_millis(100);
const BEFORE_COMING_BACK: Duration = Duration::from_millis(200);
/// The name below the prefix that is written where marks cannot be trusted. No object has such a name.
const MARK: &str = ".progress";

/// An etcd cluster with a copy of its keys.
pub struct WatchCache {
    copy: Arc<Copy>,
    following: JoinHandle<()>,
    compacting: Option<JoinHandle<()>>,
}

struct Copy {
    etcd: Arc<Etcd>,
    prefix: String,
    index: RwLock<Index>,
    hub: Hub,
    reached: Progress,
    questions: Arc<Questions>,
    marked: Mutex<Option<Instant>>,
}

impl WatchCache {
    /// Reads all keys with the prefix, and follows their changes.
    pub async fn open(etcd: Etcd, prefix: &str) -> Result<Self> {
        let newest = etcd.revision().await?;
        let index = begin(&etcd, prefix, newest.saturating_sub(BACK).max(1)).await?;
        let etcd = Arc::new(etcd);
        let compacting = etcd.compaction.map(|every| tokio::spawn(compaction::run(etcd.clone(), every)));
        let copy = Arc::new(Copy {
            etcd,
            prefix: prefix.to_owned(),
            hub: Hub::new(index.revision()),
            reached: Progress::new(index.revision()),
            index: RwLock::new(index),
            questions: Arc::default(),
            marked: Mutex::default(),
        });
        let following = tokio::spawn(follow(copy.clone()));
        let cache = WatchCache { copy, following, compacting };
        cache.copy.reach(newest).await?;
        Ok(cache)
    }
}

impl Drop for WatchCache {
    fn drop(&mut self) {
        self.following.abort();
        self.compacting.iter().for_each(JoinHandle::abort);
        self.copy.hub.close("it is closed");
    }
}

/// All entries as of a revision, or of the oldest that etcd still has.
async fn begin(etcd: &Etcd, prefix: &str, start: Revision) -> Result<Index> {
    match load(etcd, prefix, Some(start)).await {
        Err(StoreError::Compacted { .. }) => {}
        loaded => return loaded,
    }
    // Only a watch is told what the oldest is.
    let told = etcd.watch(prefix, Some(start)).await?.next().await;
    if let Some(Err(StoreError::Compacted { oldest, .. })) = told {
        match load(etcd, prefix, Some(oldest)).await {
            Err(StoreError::Compacted { .. }) => {}
            loaded => return loaded,
        }
    }
    load(etcd, prefix, None).await
}

/// All entries with the prefix as of a revision, or of now.
async fn load(etcd: &Etcd, prefix: &str, revision: Option<Revision>) -> Result<Index> {
    let mut range = Range { limit: PAGE, revision, ..Range::prefix(prefix) };
    let mut page = etcd.range(range.clone()).await?;
    let mut index = Index::starting_at(page.revision);
    let is_object = |entry: &Entry| entry.key.strip_prefix(prefix) != Some(MARK);
    loop {
        let left = range.behind(&page);
        page.entries.into_iter().filter(is_object).for_each(|entry| index.load(entry));
        let Some(left) = left else { return Ok(index) };
        page = etcd.range(left.clone()).await?;
        range = left;
    }
}

/// Follows etcd for as long as the cache is there.
async fn follow(copy: Arc<Copy>) {
    let mut lost = false;
    loop {
        let error = copy.follow(&mut lost).await;
        let error = match error {
            StoreError::Compacted { .. } => copy.begin_anew().await.err(),
            other => Some(other),
        };
        if let Some(error) = error.filter(|_| !lost) {
            lost = true;
            tracing::warn!(%error, "the changes in etcd cannot be followed for now");
        }
        clock::sleep(BEFORE_COMING_BACK).await;
    }
}

impl Copy {
    /// Takes the changes as they come, until that ends.
    async fn follow(&self, lost: &mut bool) -> StoreError {
        let from = self.index.read().revision();
        // The state before each change is here.
        let mut changes = match self.etcd.open_watch(&self.prefix, Some(from), Previous::Untold).await {
            Ok(changes) => changes,
            Err(error) => return error,
        };
        if std::mem::take(lost) {
            tracing::info!("the changes in etcd are followed again");
        }
        loop {
            match changes.next().await {
                Some(Ok(batch)) => self.take(batch),
                Some(Err(error)) => return error,
                None => return StoreError::Unavailable("etcd ended the watch".to_owned()),
            }
        }
    }

    fn take(&self, batch: Batch) {
        let mut events = Vec::with_capacity(batch.events.len());
        let mut index = self.index.write();
        for event in batch.events {
            if event.key.strip_prefix(&*self.prefix) != Some(MARK) {
                events.push(index.follow(event.key, event.revision, event.entry));
            }
        }
        index.advance(batch.revision);
        let revision = index.revision();
        drop(index);
        self.hub.publish(&events, revision, QUEUE_EVENTS);
        self.index.write().bound_history(HISTORY_BYTES, revision);
        self.reached.advance(revision);
    }

    /// The events meanwhile are forgotten: the copy begins anew, and all watches end.
    async fn begin_anew(&self) -> Result<()> {
        let index = load(&self.etcd, &self.prefix, None).await?;
        let revision = index.revision();
        *self.index.write() = index;
        self.hub.leap(revision, "etcd has forgotten what happened meanwhile");
        self.reached.advance(revision);
        Ok(())
    }

    /// Waits until the copy has everything that was acknowledged before.
    async fn catch_up(self: &Arc<Self>) -> Result<()> {
        let (asked, arriving) = (self.clone(), self.clone());
        let ask = move || async move { asked.etcd.revision().await };
        self.questions.share(ask, move |newest| async move { arriving.reach(newest).await }).await
    }

    async fn current(self: &Arc<Self>) -> Result<Revision> {
        self.catch_up().await?;
        Ok(self.index.read().revision())
    }

    /// The state of the key that a commit compares with, if it is known here: etcd need not tell it once more.
    fn compared(&self, commit: &Commit) -> Option<Entry> {
        let Expect::Modified(revision) = commit.expect else { return None };
        self.index.read().get(&commit.key).filter(|entry| entry.modified == revision).cloned()
    }

    async fn reach(&self, revision: Revision) -> Result<()> {
        if self.reached.get() >= revision {
            return Ok(());
        }
        let (member, _) = self.etcd.members.now();
        let arriving = async {
            let mut pause = if self.etcd.has_exact_progress() { BEFORE_A_MARK } else { BETWEEN_MARKS };
            while clock::timeout(pause, self.reached.reached(revision)).await.is_err() {
                self.mark().await;
                pause = BETWEEN_MARKS;
            }
        };
        clock::timeout(PATIENCE, arriving).await.map_err(|_| {
            // It answers, but its events do not come: another member's may.
            self.etcd.members.failed(member);
            StoreError::Unavailable("etcd does not tell its newest changes".to_owned())
        })
    }

    /// Has etcd tell how far the watch is. However many wait, it is asked once at a time.
    async fn mark(&self) {
        let now = Instant::now();
        let recent = |before: Instant| now.duration_since(before) < BETWEEN_MARKS / 2;
        if self.marked.lock().replace(now).is_some_and(recent) {
            return;
        }
        // A failure shows in the watch, or in the wait for it.
        if self.etcd.has_exact_progress() {
            let _ = self.etcd.request_progress().await;
        } else {
            let key = format!("{}{MARK}", self.prefix).into();
            let change = Change::Put { value: Bytes::new(), ttl_seconds: None };
            let _ = self.etcd.commit(Commit { key, expect: Expect::Any, change }).await;
        }
    }
}

impl Store for WatchCache {
    fn is_shared(&self) -> bool {
        true
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        Box::pin(async move {
            self.copy.catch_up().await?;
            let index = self.copy.index.read();
            Ok((index.get(key).cloned(), index.revision()))
        })
    }

    fn at_hand<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, bool)>> {
        let entry = self.copy.index.read().get(key).cloned();
        Box::pin(async { Ok((entry, false)) })
    }

    fn at_hand_up_to(&self) -> Option<Revision> {
        Some(self.copy.reached.get())
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            let known = range.revision.is_some_and(|revision| revision <= self.copy.reached.get());
            if !known {
                self.copy.catch_up().await?;
            }
            let page = self.copy.index.read().range(&range);
            match page {
                // etcd may go further back than the copy.
                Err(StoreError::Compacted { .. }) => self.copy.etcd.range(range).await,
                page => page,
            }
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        let known = self.copy.compared(&commit);
        Box::pin(self.copy.etcd.commit_one(commit, known))
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        let known = commits.iter().map(|commit| self.copy.compared(commit)).collect();
        Box::pin(self.copy.etcd.transact(commits, known))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        Box::pin(async move {
            if after.is_none_or(|after| after > self.copy.reached.get()) {
                self.copy.catch_up().await?;
            }
            Ok(Box::pin(self.copy.hub.watch(&self.copy.index, prefix, after)?) as Watch)
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.copy.etcd.compact(revision).await?;
            self.copy.index.write().compact(revision);
            Ok(())
        })
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.copy.catch_up().await?;
            self.copy.hub.progress(&self.copy.index);
            Ok(())
        })
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.copy.current())
    }
}
