//! The store: one revisioned key space under the API server.
//!
//! A revision is the store's one counter: every commit takes the next one, none is reused. Two backends give the
//! same behaviour: [`embedded`] (an append-only log in one folder) and [`etcd`] (a v3 cluster over gRPC, with a copy of
//! its keys in memory).
//! Only the apiserver crate opens a store.

use std::sync::Arc;

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};

pub mod embedded;
pub mod etcd;
mod hub;
mod index;
pub mod transfer;

/// The store's counter. An empty store is at revision 1 (as an empty etcd is), its first commit gets revision 2.
pub type Revision = u64;

/// One key with its value as of some revision. Cheap to clone: key and value are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<str>,
    pub value: Bytes,
    /// The revision that created the key (this incarnation of it).
    pub created: Revision,
    /// The revision that last wrote the key.
    pub modified: Revision,
}

/// The condition that a commit makes on the key's present state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key exists and was last written at this revision.
    Modified(Revision),
    /// Anything.
    Any,
}

/// The effect of a commit on its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes the value; with `ttl_seconds` the store deletes the key by itself when the time is over.
    Put {
        value: Bytes,
        ttl_seconds: Option<u32>,
    },
    Delete,
}

/// A compare-and-swap on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub key: Arc<str>,
    pub expect: Expect,
    pub change: Change,
}

impl Commit {
    /// Whether a key in this state takes the commit. There is nothing to delete where there is nothing.
    fn fits(&self, current: Option<&Entry>) -> bool {
        match (&self.change, self.expect, current) {
            (Change::Delete, _, None) => false,
            (_, Expect::Any, _) | (_, Expect::Absent, None) => true,
            (_, Expect::Modified(wanted), Some(entry)) => entry.modified == wanted,
            (_, Expect::Absent, Some(_)) | (_, Expect::Modified(_), None) => false,
        }
    }
}

/// Keys `start <= key < end`, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub start: String,
    pub end: String,
    /// The greatest number of entries; 0 means no limit.
    pub limit: usize,
    /// The state as of this revision; `None` means the newest.
    pub revision: Option<Revision>,
}

impl Range {
    /// All keys that begin with `prefix`, at the newest revision.
    pub fn prefix(prefix: &str) -> Self {
        Range { start: prefix.to_owned(), end: prefix_end(prefix), limit: 0, revision: None }
    }

    /// The rest of the range behind a page of it, in the same snapshot; `None` behind the last.
    pub fn behind(&self, page: &Page) -> Option<Range> {
        let last = page.entries.last().filter(|_| page.remaining > 0)?;
        Some(Range { start: format!("{}\0", last.key), revision: Some(page.revision), ..self.clone() })
    }
}

/// The smallest key that is greater than every key with this prefix. Keys are ASCII, so the last byte can grow.
pub fn prefix_end(prefix: &str) -> String {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) if *last < 0x7f => *last += 1,
        _ => end.push(0x7f),
    }
    String::from_utf8(end).expect("an ASCII prefix stays ASCII")
}

/// The answer to a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// The revision that the page is a picture of.
    pub revision: Revision,
    /// How many more keys the range holds behind the last entry; 0 when it is complete.
    pub remaining: usize,
}

/// One change, in revision order. `entry` is `None` for a deletion, `previous` for a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub key: Arc<str>,
    pub revision: Revision,
    pub entry: Option<Entry>,
    pub previous: Option<Entry>,
}

/// Consecutive events of a watch; `revision` says that everything up to and including it was delivered
/// (so a batch without events is a progress mark).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub events: Vec<Event>,
    pub revision: Revision,
}

/// The error of a store. `Conflict` carries the key's present state, so that a caller can retry without another read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the key's state is not the expected one")]
    Conflict { current: Option<Entry>, revision: Revision },
    #[error("revision {requested} was compacted, the oldest readable one is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} is in the future, the newest is {newest}")]
    Future { requested: Revision, newest: Revision },
    /// The value at the key is not one that this process can read: it is encrypted with another key, or was changed.
    #[error("unable to transform key {key:?}: {why}")]
    Unreadable { key: String, why: String },
    /// The value cannot be encrypted now, and is not stored in another way.
    #[error("{0}")]
    Unencrypted(String),
    #[error("the value has {bytes} bytes, the store takes at most {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// There is no room for a write; reads go on.
    #[error("the store takes no writes: {0}")]
    Full(String),
    #[error("the store takes no writes: {0}")]
    ReadOnly(String),
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why nothing of a transaction was committed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("commit {at} of the transaction: {error}")]
pub struct Refused {
    /// The place of the commit that was refused; 0 when it was none of them in particular.
    pub at: usize,
    pub error: StoreError,
}

/// The place of a commit whose key an earlier one of the transaction names too. A transaction that has one is refused by
/// both backends: which of the two would count is nobody's guess.
fn repeated(commits: &[Commit]) -> Option<usize> {
    let mut keys = std::collections::HashSet::new();
    commits.iter().position(|commit| !keys.insert(&*commit.key))
}

const REPEATED: &str = "a transaction names a key twice";

/// A watch: batches in order without gaps, or an error (`Compacted`, or `Unavailable` for a watcher that was cut off
/// because it did not keep up) after which the stream ends.
pub type Watch = BoxStream<'static, Result<Batch>>;

/// The operations of both backends.
pub trait Store: Send + Sync + 'static {
    /// One key and the revision that the answer is a picture of. Linearizable.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>>;
    /// One key as it is known here, for a writer that compares when it commits. True when it is the newest; where another
    /// place would have to be asked for that, it may be older.
    fn at_hand<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, bool)>> {
        Box::pin(async move { Ok((self.get(key).await?.0, true)) })
    }
    /// The revision up to which everything is known here, where another place would have to be asked for the newest. A
    /// range at it, and [`Store::at_hand`], ask nobody: they are answered while that place is away.
    fn at_hand_up_to(&self) -> Option<Revision> {
        None
    }
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>>;
    /// Commits durably: when this returns `Ok`, the change survives a power cut. For a `Delete` the entry returned is the
    /// one that was removed (with `modified` set to the revision of the deletion), for a `Put` the one written.
    /// A `Delete` of a key that does not exist is a `Conflict` without a current entry, whatever it expects.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>>;
    /// Commits all of these or none: no reader and no crash sees a part of them. Each names another key. The answers are
    /// in the order of the commits. The changes of a transaction have one revision, or several that follow each other.
    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>>;
    /// All changes of keys with the prefix that have a revision greater than `after`. `None` starts behind the newest.
    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>>;
    /// Forgets the history before `revision`; later reads and watches from before it get `Compacted`.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>>;
    /// Asks every open watch for a progress mark at the newest revision, soon and in order behind its events. Watches
    /// get marks only this way (a mark for every commit would wake every watcher): who waits until a watch has reached
    /// a revision, or wants to move an idle watch past the next compaction, calls this.
    fn request_progress(&self) -> BoxFuture<'_, Result<()>>;
    /// Whether other processes may write to it at the same time.
    fn is_shared(&self) -> bool {
        false
    }
    /// Whether the key, still in the state of this entry, is stored in another form than a write would give it now: then
    /// the same value is worth writing once more.
    fn outdated<'a>(&'a self, _entry: &'a Entry) -> BoxFuture<'a, Result<bool>> {
        Box::pin(std::future::ready(Ok(false)))
    }
    /// The newest committed revision.
    fn revision(&self) -> BoxFuture<'_, Result<Revision>>;
}
