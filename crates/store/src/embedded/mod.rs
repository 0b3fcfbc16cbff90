//! The embedded store: an append-only log, snapshots and an index in memory, in one folder.
//!
//! Commits queue for one writer thread, which makes all that wait durable with one write and one sync
//! ([`writer`]), then applies them to the index ([`Index`]), answers, and wakes the watchers ([`Hub`]). Reads take
//! the index's read lock and nothing else. In the background a snapshot replaces the log when that has grown as
//! large as the data. A full disk refuses writes until there is room ([`reserve`]); a log that can neither be written
//! nor put back stops the process. The files that must be there when the store opens are written down ([`manifest`]).

pub mod disk;
mod edits;
mod expiry;
mod files;
pub mod folder;
mod frame;
mod log_file;
pub mod maintenance;
mod manifest;
pub mod memory;
mod open_error;
mod recovery;
mod reserve;
mod snapshot;
mod writer;

use std::{
    path::Path,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use futures::future::BoxFuture;
pub use open_error::OpenError;
use parking_lot::{Condvar, Mutex, RwLock};
pub use recovery::Torn;
use tokio::sync::oneshot;

use self::{
    disk::Disk,
    expiry::Expiry,
    files::log_name,
    folder::Folder,
    manifest::Manifest,
    memory::Memory,
    writer::{Begun, Outbox, Request, Writer},
};
pub use crate::index::Figures;
use crate::{
    Change, Commit, Entry, Page, REPEATED, Range, Refused, Result, Revision, Store, StoreError, Watch, hub::Hub,
    index::Index, repeated,
};

/// How a store behaves. The defaults are right for a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// History that is kept without a compaction, in bytes; the oldest goes first.
    pub history_bytes: usize,
    /// The size of the log in bytes below which no snapshot is made.
    pub snapshot_after_bytes: u64,
    /// Room that is kept for the next snapshot, at the least; none is kept when this is 0.
    pub reserve_bytes: u64,
    /// The number of waiting events at which a watcher is cut off.
    pub watch_queue_events: usize,
    /// Commit on the calling task, without threads: for the simulation.
    pub inline: bool,
    /// Stop the process when the log can neither be written nor put back. Otherwise the store only refuses to work.
    pub abort_when_broken: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            history_bytes: 48 << 20,
            snapshot_after_bytes: 32 << 20,
            reserve_bytes: 16 << 20,
            watch_queue_events: 50_000,
            inline: false,
            abort_when_broken: true,
        }
    }
}

/// The state that readers, the writer and the background work share.
struct Shared {
    options: Options,
    disk: Arc<dyn Disk>,
    /// The store's number, as its files have it.
    store: u64,
    index: Arc<RwLock<Index>>,
    hub: Arc<Hub>,
    expiry: Arc<Expiry>,
    queue: Mutex<Queue>,
    wake: Condvar,
    outbox: Arc<Outbox>,
    /// The writer itself, when there is no thread that owns it.
    inline: Mutex<Option<Writer>>,
    /// Why the store works no more.
    broken: OnceLock<String>,
    snapshot_running: AtomicBool,
    snapshot_thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    requests: Vec<Request>,
    closed: bool,
}

impl Shared {
    fn break_down(&self, reason: String) {
        tracing::error!(reason, folder = self.disk.name(), "the store is broken");
        if self.options.abort_when_broken {
            eprintln!("the store in {} is broken: {reason}", self.disk.name());
            std::process::abort();
        }
        self.hub.close(&reason);
        let _ = self.broken.set(reason);
    }
}

/// An open store. Dropping it ends its watches and closes the log in order.
pub struct Embedded {
    shared: Arc<Shared>,
    writer: Option<std::thread::JoinHandle<()>>,
    expiry: tokio::task::JoinHandle<()>,
    _lock: Box<dyn Send + Sync>,
}

impl Embedded {
    /// Opens the store in a folder, which is created when it is missing. Must be called inside a tokio runtime.
    pub fn open(folder: &Path, options: Options) -> Result<Self, OpenError> {
        let name = folder.display().to_string();
        let disk = Folder::create(folder);
        let disk = disk.map_err(|source| OpenError::Io { path: name, action: "create the folder", source })?;
        Self::open_on(Arc::new(disk), options)
    }

    /// A store in memory that works on the calling task: for tests and the simulation.
    pub fn memory() -> Self {
        let options = Options { inline: true, reserve_bytes: 0, ..Options::default() };
        Self::open_on(Arc::new(Memory::default()), options).expect("an empty folder in memory opens")
    }

    /// Opens the store on any disk.
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Self, OpenError> {
        let lock = disk.lock().map_err(|error| OpenError::lock(&*disk, error))?;
        let loaded = recovery::load(&*disk)?;
        let store = loaded.store.unwrap_or_else(manifest::new_store);
        let (file, logs) = prepare(&*disk, &loaded, store)?;
        reserve::take(&*disk, options.reserve_bytes, loaded.index.live_bytes());
        let expiry = Arc::new(Expiry::default());
        let deadlines = loaded.expiries.iter().filter_map(|(key, at)| {
            let entry = loaded.index.get(key)?;
            Some((entry.key.clone(), entry.modified, *at))
        });
        expiry.note(&deadlines.collect::<Vec<_>>());
        let mut index = loaded.index;
        index.bound_history(options.history_bytes, index.revision());
        let inline = options.inline;
        let (hub, index) = (Arc::new(Hub::new(index.revision())), Arc::new(RwLock::new(index)));
        let outbox = Outbox::new(hub.clone(), index.clone(), options.watch_queue_events, options.history_bytes);
        let shared = Arc::new(Shared {
            options,
            disk,
            store,
            hub,
            index,
            expiry,
            queue: Mutex::default(),
            wake: Condvar::new(),
            outbox,
            inline: Mutex::new(None),
            broken: OnceLock::new(),
            snapshot_running: AtomicBool::new(false),
            snapshot_thread: Mutex::new(None),
        });
        let begun = Begun { logs, format: loaded.format, bytes: loaded.log_bytes, folded: loaded.folded_bytes };
        let writer = Writer::new(shared.clone(), file, begun);
        let thread = if inline {
            *shared.inline.lock() = Some(writer);
            None
        } else {
            let begin = || {
                let (source, answers) = (shared.clone(), shared.outbox.visit()?);
                let named = std::thread::Builder::new().name("store-writer".into());
                let thread = named.spawn(move || write_loop(source, writer))?;
                tokio::spawn(answers);
                Ok(thread)
            };
            let action = "start the writer thread of";
            Some(begin().map_err(|source| OpenError::Io { path: shared.disk.name(), action, source })?)
        };
        let expiry = tokio::spawn(expiry::run(Arc::downgrade(&shared)));
        Ok(Embedded { shared, writer: thread, expiry, _lock: lock })
    }

    /// Figures for metrics and for `status`.
    pub fn figures(&self) -> Figures {
        self.shared.index.read().figures()
    }

    fn check_size(commit: &Commit) -> Result<()> {
        waypoint::store::commit(&commit.key);
        match &commit.change {
            Change::Put { value, .. } if value.len() > writer::VALUE_LIMIT => {
                Err(StoreError::TooLarge { bytes: value.len(), limit: writer::VALUE_LIMIT })
            }
            _ => Ok(()),
        }
    }

    async fn submit_all(&self, commits: Vec<Commit>) -> Result<Vec<Entry>, Refused> {
        let keys: Vec<Arc<str>> = commits.iter().map(|commit| commit.key.clone()).collect();
        for (at, commit) in commits.iter().enumerate() {
            Self::check_size(commit).map_err(|error| Refused { at, error })?;
        }
        if let Some(at) = repeated(&commits) {
            return Err(Refused { at, error: StoreError::Unavailable(REPEATED.to_owned()) });
        }
        let answer = self.shared.request(|reply| Request::CommitAll(commits, reply));
        let outcome = answer.await.unwrap_or_else(|_| Err(Refused { at: 0, error: closed() }));
        if let Err(Refused { at, error: StoreError::Conflict { .. } }) = &outcome {
            waypoint::store::conflict(&keys[*at]);
        }
        outcome
    }

    fn submit(shared: &Arc<Shared>, commit: Commit) -> impl Future<Output = Result<Entry>> + Send + use<> {
        let key = commit.key.clone();
        let fits = Self::check_size(&commit);
        let answer = fits.map(|()| shared.request(|reply| Request::Commit(commit, reply)));
        async move {
            let outcome = answer?.await.unwrap_or_else(|_| Err(closed()));
            if matches!(outcome, Err(StoreError::Conflict { .. })) {
                waypoint::store::conflict(&key);
            }
            outcome
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("it is closed".to_owned())
}

/// Repairs a torn tail, removes what is superfluous and opens the segment to append to; gives the begun segments too.
fn prepare(
    disk: &dyn Disk,
    loaded: &recovery::Loaded,
    store: u64,
) -> Result<(Box<dyn disk::DiskFile>, Vec<Revision>), OpenError> {
    for name in &loaded.stale {
        disk.remove(name).map_err(OpenError::io(disk, "remove", name))?;
    }
    let (revision, mut logs) = (loaded.index.revision(), loaded.logs.clone());
    let file = match (logs.last(), loaded.tail) {
        (Some(log), len) => open_tail(disk, *log, len, loaded.torn.as_ref())?,
        (None, _) => {
            logs.push(revision);
            let made = writer::new_segment(disk, revision, store);
            made.map_err(OpenError::io(disk, "create", &log_name(revision)))?
        }
    };
    if let Err(error) = (Manifest { store, logs: logs.clone(), revision }).write(disk) {
        // The manifest of before still holds, and reads need no more.
        tracing::warn!(%error, folder = disk.name(), "the store's manifest cannot be written");
    }
    Ok((file, logs))
}

fn open_tail(
    disk: &dyn Disk,
    base: Revision,
    len: u64,
    torn: Option<&Torn>,
) -> Result<Box<dyn disk::DiskFile>, OpenError> {
    let name = log_name(base);
    let mut file = disk.append(&name, len).map_err(OpenError::io(disk, "open", &name))?;
    if let Some(torn) = torn {
        tracing::warn!(file = torn.file, from = torn.good, to = torn.len, "cutting off an interrupted write");
        let repaired = file.truncate(torn.good).and_then(|()| file.sync());
        repaired.map_err(OpenError::io(disk, "cut off an interrupted write of", &name))?;
    }
    Ok(file)
}

impl Shared {
    fn request<A>(&self, make: impl FnOnce(oneshot::Sender<A>) -> Request) -> oneshot::Receiver<A> {
        let (reply, answer) = oneshot::channel();
        let request = make(reply);
        if self.options.inline {
            if let Some(writer) = &mut *self.inline.lock() {
                writer.process(vec![request]);
            }
            return answer;
        }
        let mut queue = self.queue.lock();
        if !queue.closed {
            queue.requests.push(request);
            if queue.requests.len() == 1 {
                self.wake.notify_one();
            }
        }
        answer
    }
}

/// Stops the process if the writer panics: what it left half done must not be served.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn write_loop(shared: Arc<Shared>, mut writer: Writer) {
    let _guard = AbortOnPanic;
    loop {
        let requests = {
            let mut queue = shared.queue.lock();
            while queue.requests.is_empty() && !queue.closed {
                shared.wake.wait(&mut queue);
            }
            if queue.requests.is_empty() {
                break;
            }
            std::mem::take(&mut queue.requests)
        };
        writer.process(requests);
    }
    writer.close();
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.expiry.abort();
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.writer.take() {
            // The thread aborts the process rather than panic.
            let _ = thread.join();
        }
        self.shared.outbox.close();
        // Taking the inline writer also breaks its cycle with what it shares.
        if let Some(mut writer) = self.shared.inline.lock().take() {
            writer.close();
        }
        let snapshot = self.shared.snapshot_thread.lock().take();
        if let Some(thread) = snapshot {
            let _ = thread.join();
        }
        self.shared.hub.close("it is closed");
    }
}

impl Store for Embedded {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        Box::pin(async move {
            let index = self.shared.index.read();
            Ok((index.get(key).cloned(), index.revision()))
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move { self.shared.index.read().range(&range) })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        Box::pin(Self::submit(&self.shared, commit))
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        Box::pin(self.submit_all(commits))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        Box::pin(async move {
            if let Some(reason) = self.shared.broken.get() {
                return Err(StoreError::Unavailable(reason.clone()));
            }
            Ok(Box::pin(self.shared.hub.watch(&self.shared.index, prefix, after)?) as Watch)
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let answer = self.shared.request(|reply| Request::Compact(revision, reply));
            answer.await.unwrap_or_else(|_| Err(closed()))
        })
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.shared.hub.progress(&self.shared.index);
            Ok(())
        })
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(async move { Ok(self.shared.index.read().revision()) })
    }
}
