//! The one writer: checks commits against the state in order, makes all that wait durable with one write and one sync,
//! then applies and acknowledges them.
//!
//! A commit that depends on another one of the same batch is checked against it; both become durable together. Every
//! answer that tells of a commit is given after the sync, also that of a conflict.

mod outbox;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::oneshot;

use outbox::{Answers, News};
pub(super) use outbox::{Outbox, Transacted};

use super::{
    Shared,
    disk::{Disk, DiskFile},
    files::{Files, UNFINISHED, log_name, snapshot_name},
    frame::{self, FrameBuilder, Role},
    manifest::Manifest,
    reserve, snapshot,
};
use crate::{Change, Commit, Entry, Refused, Result, Revision, StoreError};

/// The largest value. The API server takes requests of 3 MiB.
pub(super) const VALUE_LIMIT: usize = 16 << 20;
/// The size of a frame in bytes at which its batch is closed.
const BATCH_BYTES: usize = 4 << 20;
/// The bytes of log after which a failed snapshot or rotation is tried again.
const RETRY_BYTES: u64 = 4 << 20;

/// A request that waits for the writer.
pub(super) enum Request {
    Commit(Commit, oneshot::Sender<Result<Entry>>),
    /// All of them or none.
    CommitAll(Vec<Commit>, oneshot::Sender<Transacted>),
    Compact(Revision, oneshot::Sender<Result<()>>),
}

/// One change that passed its checks.
struct Passed {
    key: Arc<str>,
    revision: Revision,
    entry: Option<Entry>,
    expires_ms: u64,
}

/// The log as it was found.
pub(super) struct Begun {
    /// Where the segments begin; the last is the one that is written to.
    pub logs: Vec<Revision>,
    /// The format of that one.
    pub format: u32,
    /// Bytes of log that no snapshot covers.
    pub bytes: u64,
    /// By how much the values in it are longer than what is written of them.
    pub folded: u64,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    file: Box<dyn DiskFile>,
    log: Begun,
    frame: FrameBuilder,
    /// The state as the batch being built leaves it, where it differs from the index.
    overlay: HashMap<Arc<str>, Option<Entry>>,
    snapshot_at: u64,
    /// The last write found no room.
    full: bool,
    /// A snapshot would make room.
    wants_room: bool,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, file: Box<dyn DiskFile>, log: Begun) -> Self {
        let mut writer = Writer {
            shared,
            file,
            log,
            frame: FrameBuilder::default(),
            overlay: HashMap::new(),
            snapshot_at: 0,
            full: false,
            wants_room: false,
        };
        writer.frame.clear();
        writer.snapshot_at = writer.threshold();
        writer
    }

    /// A snapshot is due when the log is as large as the live data, so that each byte is written about twice.
    fn threshold(&self) -> u64 {
        self.shared.index.read().live_bytes().max(self.shared.options.snapshot_after_bytes)
    }

    /// The cost of the log for whoever reads it: a start takes as long, and needs as much memory, as if all values were
    /// written out.
    fn weight(&self) -> u64 {
        self.log.bytes + self.log.folded
    }

    /// Works off the requests in order.
    pub fn process(&mut self, requests: Vec<Request>) {
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            self.batch(&mut requests);
        }
        if self.weight() >= self.snapshot_at || std::mem::take(&mut self.wants_room) {
            self.start_snapshot();
        }
    }

    fn batch(&mut self, requests: &mut impl Iterator<Item = Request>) {
        let before = self.shared.index.read().revision();
        let (mut passed, mut answers) = (Vec::new(), Answers::default());
        let (mut compact, mut compacts) = (None, Vec::new());
        let now_ms = now_ms();
        for request in requests {
            match request {
                Request::Commit(commit, reply) => {
                    let revision = before + passed.len() as u64 + 1;
                    let outcome = self.check(commit, revision, now_ms, &mut passed);
                    answers.commits.push((reply, outcome));
                }
                Request::CommitAll(commits, reply) => {
                    let outcome = self.check_all(commits, before, now_ms, &mut passed);
                    answers.transactions.push((reply, outcome));
                }
                Request::Compact(revision, reply) => {
                    compact = compact.max(Some(revision.min(before)));
                    compacts.push((reply, revision));
                }
            }
            if self.frame.len() >= BATCH_BYTES {
                break;
            }
        }
        if let Some(revision) = compact {
            self.frame.compact(revision);
        }
        self.overlay.clear();
        let durable = if self.frame.is_empty() { Ok(()) } else { self.make_durable(before) };
        self.frame.clear();
        match durable {
            Ok(()) => {
                self.apply(passed, answers);
                self.compact(compact, compacts);
            }
            Err(error) => {
                answers.refuse(before, &error);
                self.shared.outbox.leave(answers, None);
                for (reply, _) in compacts {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Checks the commits of a transaction, and writes them into the frame when all pass. A frame is durable as a whole
    /// or not at all, and a batch is closed between requests only, so a transaction is in one frame.
    fn check_all(
        &mut self,
        commits: Vec<Commit>,
        before: Revision,
        now_ms: u64,
        passed: &mut Vec<Passed>,
    ) -> Result<Vec<Entry>, Refused> {
        for (at, commit) in commits.iter().enumerate() {
            let current = self.current(&commit.key);
            if !commit.fits(current.as_ref()) {
                let revision = before + passed.len() as u64;
                return Err(Refused { at, error: StoreError::Conflict { current, revision } });
            }
        }
        let mut check = |(at, commit)| {
            let revision = before + passed.len() as u64 + 1;
            self.check(commit, revision, now_ms, passed).map_err(|error| Refused { at, error })
        };
        commits.into_iter().enumerate().map(&mut check).collect()
    }

    /// The key's state as the batch leaves it.
    fn current(&self, key: &str) -> Option<Entry> {
        match self.overlay.get(key) {
            Some(entry) => entry.clone(),
            None => self.shared.index.read().get(key).cloned(),
        }
    }

    /// Checks one commit against the state before it and writes it into the frame.
    fn check(&mut self, commit: Commit, revision: Revision, now_ms: u64, passed: &mut Vec<Passed>) -> Result<Entry> {
        let current = self.current(&commit.key);
        if !commit.fits(current.as_ref()) {
            return Err(StoreError::Conflict { current, revision: revision - 1 });
        }
        // One key, one allocation: the new state shares the key of the old one.
        let key = current.as_ref().map_or(commit.key, |entry| entry.key.clone());
        let (outcome, entry, expires_ms) = match commit.change {
            Change::Put { value, ttl_seconds } => {
                let created = current.as_ref().map_or(revision, |entry| entry.created);
                let entry = Entry { key: key.clone(), value, created, modified: revision };
                let expires_ms = ttl_seconds.map_or(0, |ttl| now_ms + u64::from(ttl) * 1000);
                match current.filter(|before| self.has_written(before)) {
                    Some(before) => self.frame.put_over(&before, &entry, expires_ms),
                    None => self.frame.put(&entry, expires_ms),
                }
                (entry.clone(), Some(entry), expires_ms)
            }
            Change::Delete => {
                let Some(removed) = current else {
                    return Err(StoreError::Conflict { current: None, revision: revision - 1 });
                };
                self.frame.delete(&key, revision);
                (Entry { modified: revision, ..removed }, None, 0)
            }
        };
        self.overlay.insert(key.clone(), entry.clone());
        passed.push(Passed { key, revision, entry, expires_ms });
        Ok(outcome)
    }

    /// Whether a state stands in the segment that is written to, so that the next one can be told by what is different.
    /// A segment says the whole of everything that it tells of: what can be read of a store that lost other files is as
    /// much as ever.
    fn has_written(&self, entry: &Entry) -> bool {
        self.log.format == frame::FORMAT && self.log.logs.last().is_some_and(|begin| entry.modified > *begin)
    }

    /// Writes and syncs the frame. After a failure the file is as it was before; if not even that can be had, the
    /// store is broken.
    fn make_durable(&mut self, before: Revision) -> Result<()> {
        if let Some(reason) = self.shared.broken.get() {
            return Err(StoreError::Unavailable(reason.clone()));
        }
        let good = self.file.size();
        self.frame.fill(good, self.file.block());
        let bytes = self.frame.finish(before);
        let written = self.file.append(bytes).and_then(|()| self.file.sync());
        let Err(error) = written else {
            self.log.bytes += self.file.size() - good;
            self.log.folded += self.frame.folded();
            if std::mem::take(&mut self.full) {
                tracing::info!(folder = self.shared.disk.name(), "there is room again; the store takes writes");
            }
            return Ok(());
        };
        // All before `good` is durable already. Cutting the rest off and syncing that leaves nothing half written.
        if let Err(second) = self.file.truncate(good).and_then(|()| self.file.sync()) {
            self.shared.break_down(format!("writing the log failed ({error}), and so did undoing it ({second})"));
            return Err(StoreError::Unavailable(error.to_string()));
        }
        let folder = self.shared.disk.name();
        if !reserve::is_full(&error) {
            tracing::error!(%error, folder, "the store could not write");
            return Err(StoreError::ReadOnly(format!("{folder}: {error}")));
        }
        let full = format!(
            "the disk of {folder} is full; make room there, or stop the server and run `skiff store compact`; reads go on"
        );
        // Said once and tried once, until there was room again.
        if !std::mem::replace(&mut self.full, true) {
            tracing::error!(%error, "the store takes no writes: {full}");
            let live_bytes = self.shared.index.read().live_bytes();
            self.wants_room = self.log.bytes > live_bytes * 2;
        }
        Err(StoreError::Full(full))
    }

    fn apply(&mut self, passed: Vec<Passed>, answers: Answers) {
        let mut events = Vec::with_capacity(passed.len());
        let mut deadlines = Vec::with_capacity(passed.len());
        let revision = {
            let mut index = self.shared.index.write();
            for change in passed {
                deadlines.push((change.key.clone(), change.revision, change.expires_ms));
                events.push(index.apply(change.key, change.revision, change.entry));
            }
            index.revision()
        };
        // All reads see the changes from here on.
        let news = (!events.is_empty()).then_some(News { events, revision });
        self.shared.outbox.leave(answers, news);
        self.shared.expiry.note(&deadlines);
    }

    fn compact(&mut self, compact: Option<Revision>, answers: Vec<(oneshot::Sender<Result<()>>, Revision)>) {
        // Watchers are told first of what is forgotten now.
        let forget = |revision| {
            self.shared.outbox.tell_watchers();
            self.shared.index.write().compact(revision);
        };
        let compacted = compact.map(forget);
        for (reply, requested) in answers {
            let newest = self.shared.index.read().revision();
            let future = requested > newest && compacted.is_some();
            let _ = reply.send(if future { Err(StoreError::Future { requested, newest }) } else { Ok(()) });
        }
    }

    /// Begins a new segment and has everything before it written to a snapshot, beside the running store.
    fn start_snapshot(&mut self) {
        let shared = self.shared.clone();
        if shared.broken.get().is_some() || shared.snapshot_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let revision = shared.index.read().revision();
        if let Err(error) = self.begin_segment(revision) {
            tracing::warn!(%error, "a new log segment could not be begun; trying again later");
            self.snapshot_at = self.weight() + RETRY_BYTES;
            shared.snapshot_running.store(false, Ordering::Release);
            return;
        }
        shared.index.write().pin(revision);
        (self.log.bytes, self.log.folded) = (self.file.size(), 0);
        self.snapshot_at = self.threshold();
        let work = move || {
            if let Err(error) = reserve::with_room(&*shared.disk, || take_snapshot(&shared, revision)) {
                // The segments stay, so nothing is lost; the next snapshot covers them too.
                tracing::warn!(%error, "the snapshot could not be written; trying again later");
            }
            let live_bytes = shared.index.read().live_bytes();
            reserve::take(&*shared.disk, shared.options.reserve_bytes, live_bytes);
            shared.index.write().unpin();
            shared.snapshot_running.store(false, Ordering::Release);
        };
        if self.shared.options.inline {
            work();
        } else {
            let handle = std::thread::Builder::new().name("store-snapshot".into()).spawn(work);
            *self.shared.snapshot_thread.lock() = handle.ok();
        }
    }

    /// Goes over to a segment that begins at `revision`. After an error the one at hand goes on.
    fn begin_segment(&mut self, revision: Revision) -> std::io::Result<()> {
        let (disk, store) = (&*self.shared.disk, self.shared.store);
        let (file, logs) = reserve::with_room(disk, || {
            let file = new_segment(disk, revision, store)?;
            let mut logs = self.remaining_logs()?;
            logs.retain(|log| *log != revision);
            logs.push(revision);
            Manifest { store, logs: logs.clone(), revision }.replace(disk)?;
            Ok((file, logs))
        })?;
        if let Err(error) = disk.sync_folder() {
            // Which segment a power cut would leave as the last one is not known any more.
            self.shared.break_down(format!("a new log segment was begun, but its folder cannot be synced ({error})"));
            return Err(error);
        }
        (self.file, self.log.logs, self.log.format) = (file, logs, frame::FORMAT);
        Ok(())
    }

    /// The begun segments that no snapshot has replaced.
    fn remaining_logs(&self) -> std::io::Result<Vec<Revision>> {
        let there = Files::list(&*self.shared.disk).map_err(std::io::Error::other)?.logs;
        Ok(self.log.logs.iter().copied().filter(|log| there.contains(log)).collect())
    }

    /// Marks the end of an orderly run: damage to the last frame can then be told from an interrupted write.
    pub fn close(&mut self) {
        if self.shared.broken.get().is_none() {
            let before = self.shared.index.read().revision();
            self.frame.clear();
            let marked = self.make_durable(before).is_ok();
            let manifest =
                |logs| Manifest { store: self.shared.store, logs, revision: before }.write(&*self.shared.disk);
            if marked && let Err(error) = self.remaining_logs().and_then(manifest) {
                tracing::debug!(%error, "the manifest keeps what it said before");
            }
        }
    }
}

/// Creates the segment that continues `base`. A segment of that name holds nothing: it would have been read otherwise.
/// It gets the name when its header is durable.
pub(super) fn new_segment(disk: &dyn Disk, base: Revision, store: u64) -> std::io::Result<Box<dyn DiskFile>> {
    let name = log_name(base);
    let unfinished = format!("{name}{UNFINISHED}");
    let header = frame::file_header(Role::Log, base, store);
    let made = disk.create(&unfinished).and_then(|mut file| {
        file.append(&header)?;
        file.sync()
    });
    if let Err(error) = made {
        // Best effort: what stays is removed at the next start.
        let _ = disk.remove(&unfinished);
        return Err(error);
    }
    disk.rename(&unfinished, &name)?;
    disk.sync_folder()?;
    disk.append(&name, header.len() as u64)
}

fn take_snapshot(shared: &Shared, revision: Revision) -> std::io::Result<()> {
    const PAGE: usize = 512;
    snapshot::write(&*shared.disk, &snapshot_name(revision), revision, shared.store, |last| {
        let page = shared.index.read().snapshot_page(last.map(|e| &*e.key), PAGE, revision);
        page.into_iter().map(|entry| (entry.clone(), shared.expiry.deadline(&entry))).collect()
    })?;
    let files = Files::list(&*shared.disk).map_err(std::io::Error::other)?;
    for name in (files.logs.iter().filter(|log| **log < revision).map(|log| log_name(*log)))
        .chain(files.snapshots.iter().filter(|s| **s < revision).map(|s| snapshot_name(*s)))
    {
        shared.disk.remove(&name)?;
    }
    shared.disk.sync_folder()
}

fn now_ms() -> u64 {
    u64::try_from(clock::now().as_millisecond()).unwrap_or(0)
}
