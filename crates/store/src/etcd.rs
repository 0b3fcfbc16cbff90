//! The etcd backend: the same key space in an etcd v3 cluster, over gRPC.
//!
//! Commits are transactions that compare the keys' revisions. A time to live is a lease, which keys written within
//! a short while share. Every watch has a stream of its own, so that a cut connection ends it with an error; whoever
//! watches starts again from the last revision it saw. One member of the cluster is asked until it fails ([`members`]).
//!
//! Progress marks on request are only exact from etcd 3.4.31 and 3.5.13 on (before that, a mark could overtake
//! events). A server works over the [`watch_cache`], which takes none of older ones.

mod compaction;
mod members;
mod newest;
mod reading;
pub mod watch_cache;
mod words;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, Identity, KvClient, PutOptions,
    ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use futures::{
    future::{BoxFuture, pending},
    stream,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::{
    members::{CONNECT_TIMEOUT, Members},
    reading::Reading,
    words::Fault,
};
use crate::{
    Batch, Change, Commit, Entry, Event, Expect, Page, REPEATED, Range, Refused, Result, Revision, Store, StoreError,
    Watch, prefix_end, repeated,
};

/// How long one call may take: whoever waits for it is told soon.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a member is waited for while there are others to ask.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);
/// etcd's own limit for a request, unless its operator raised it.
const REQUEST_LIMIT: usize = 1_572_864;
/// Keys whose time to live differs by up to this share of it, and by a minute at most, share a lease.
const LEASE_REUSE_PERCENT: u64 = 5;
const LEASE_REUSE_SECONDS: u64 = 60;
const LEASE_KEYS: u32 = 1000;

/// Where the cluster is and how to reach it.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `http://` or `https://` addresses of the members.
    pub endpoints: Vec<String>,
    /// Put before every key.
    pub prefix: String,
    /// PEM certificates of the authority that signed the members' certificates.
    pub ca: Option<Vec<u8>>,
    /// PEM certificate and key of the client.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// How often a server over the cluster has it forget its history; `None` leaves that to others.
    pub compaction: Option<Duration>,
}

/// A connection to a cluster.
pub struct Etcd {
    members: Members,
    prefix: String,
    reading: Reading,
    compaction: Option<Duration>,
    leases: tokio::sync::Mutex<HashMap<u32, Lease>>,
    watches: Arc<Watches>,
    exact_progress: bool,
    /// The newest compaction that was heard of.
    compacted: AtomicU64,
}

struct Lease {
    id: i64,
    until: clock::Instant,
    keys: u32,
}

/// The sending ends of the open watches, for progress requests.
#[derive(Default)]
struct Watches {
    open: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<WatchRequestSender>>>>,
    next: AtomicU64,
}

impl Etcd {
    /// Connects, and fails when no member answers.
    pub async fn connect(options: Options) -> Result<Self> {
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(Duration::from_secs(30), CONNECT_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if options.ca.is_some() || options.identity.is_some() {
            let mut tls = TlsOptions::new();
            if let Some(ca) = &options.ca {
                tls = tls.ca_certificate(Certificate::from_pem(ca));
            }
            if let Some((certificate, key)) = &options.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            connect = connect.with_tls(tls);
        }
        let (members, versions) = Members::connect(&options.endpoints, &connect).await?;
        let exact_progress = versions.iter().all(|version| has_exact_progress(version));
        if !exact_progress {
            tracing::info!(
                version = versions.join(", "),
                "this etcd's progress marks are not exact, so keys are written instead; 3.4.31, 3.5.13 and newer ones need none"
            );
        }
        Ok(Etcd {
            members,
            reading: Reading { cut: options.prefix.len(), form: |value| value },
            prefix: options.prefix,
            compaction: options.compaction,
            leases: tokio::sync::Mutex::default(),
            watches: Arc::default(),
            exact_progress,
            compacted: AtomicU64::new(0),
        })
    }

    /// The same cluster, whose values pass through the function as they come: anybody may have written them.
    #[must_use]
    pub fn reading(self, form: fn(Bytes) -> Bytes) -> Self {
        Etcd { reading: Reading { form, ..self.reading }, ..self }
    }

    /// Whether marks come behind the events that they cover.
    fn has_exact_progress(&self) -> bool {
        self.exact_progress
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Asks a member, and the next ones where that cannot do harm; says failures in the store's words. `revision` is what
    /// the call is about.
    async fn call<T, F>(&self, repeats: Repeats, revision: Option<Revision>, ask: impl Fn(&Client) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, etcd_client::Error>>,
    {
        let until = clock::Instant::now() + CALL_TIMEOUT;
        let mut left = self.members.count();
        loop {
            left -= 1;
            let (turn, member) = self.members.now();
            let rest = until.duration_since(clock::Instant::now());
            let patience = if left > 0 && repeats == Repeats::Always { rest.min(MEMBER_TIMEOUT) } else { rest };
            let (fault, error) = match clock::timeout(patience, ask(member)).await {
                Ok(Ok(done)) => {
                    self.members.answered(turn);
                    return Ok(done);
                }
                Ok(Err(error)) => (words::fault(&error), self.refusal(&words::plain(&error), revision)),
                Err(_) => (Fault::Unclear, StoreError::Unavailable("etcd did not answer in time".to_owned())),
            };
            if fault == Fault::Answered {
                return Err(error);
            }
            self.members.failed(turn);
            let again = fault == Fault::Unreached || repeats == Repeats::Always;
            if left == 0 || !again {
                return Err(error);
            }
        }
    }

    /// The error that a call's failure is, by what etcd says.
    fn refusal(&self, text: &str, revision: Option<Revision>) -> StoreError {
        let requested = revision.unwrap_or(0);
        if text.contains("required revision has been compacted") {
            let oldest = self.compacted.fetch_max(requested + 1, Ordering::Relaxed).max(requested + 1);
            StoreError::Compacted { requested, oldest }
        } else if text.contains("required revision is a future revision") {
            StoreError::Future { requested, newest: 0 }
        } else if text.contains("database space exceeded") {
            StoreError::Full(
                "etcd's database space is exceeded; compact and defragment it, or raise its quota".to_owned(),
            )
        } else {
            StoreError::Unavailable(format!("etcd: {text}"))
        }
    }

    /// A revision in the future is told with the newest one, for which etcd has to be asked.
    async fn dated(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Future { requested, .. } => match self.newest().await {
                Ok(newest) => StoreError::Future { requested, newest },
                Err(error) => error,
            },
            other => other,
        }
    }

    async fn newest(&self) -> Result<Revision> {
        let key = self.key("/");
        let ask = |member: &Client| {
            let (mut kv, key) = (kv(member), key.clone());
            async move { kv.get(key, Some(GetOptions::new().with_count_only())).await }
        };
        let answer = self.call(Repeats::Always, None, ask).await?;
        Ok(revision_of(answer.header()))
    }

    /// A lease that lasts at least so long.
    async fn lease(&self, ttl_seconds: u32) -> Result<i64> {
        let mut leases = self.leases.lock().await;
        let now = clock::Instant::now();
        if let Some(lease) = leases.get_mut(&ttl_seconds).filter(|l| l.until > now && l.keys < LEASE_KEYS) {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let shared = (u64::from(ttl_seconds) * LEASE_REUSE_PERCENT / 100).min(LEASE_REUSE_SECONDS);
        let seconds = i64::from(ttl_seconds) + shared.cast_signed();
        // One that was granted and never heard of ends by itself.
        let grant = |member: &Client| {
            let mut client = member.lease_client();
            async move { client.grant(seconds, None).await }
        };
        let id = self.call(Repeats::Always, None, grant).await?.id();
        leases.retain(|_, lease| lease.until > now);
        leases.insert(ttl_seconds, Lease { id, until: now + Duration::from_secs(shared), keys: 1 });
        Ok(id)
    }

    /// The comparisons and the operation of a commit in a transaction. `known` is the entry that the commit compares with,
    /// where it is at hand: etcd need not send it along.
    async fn operation(&self, commit: &Commit, known: Option<&Entry>) -> Result<(Vec<Compare>, TxnOp)> {
        waypoint::store::commit(&commit.key);
        let key = self.key(&commit.key);
        let compares = match (commit.expect, &commit.change) {
            (Expect::Absent, _) => vec![Compare::create_revision(key.clone(), CompareOp::Equal, 0)],
            (Expect::Modified(revision), _) => {
                vec![Compare::mod_revision(key.clone(), CompareOp::Equal, revision.cast_signed())]
            }
            (Expect::Any, Change::Put { .. }) => vec![],
            (Expect::Any, Change::Delete) => vec![Compare::create_revision(key.clone(), CompareOp::Greater, 0)],
        };
        let operation = match &commit.change {
            Change::Delete => {
                let options = DeleteOptions::new();
                TxnOp::delete(key.clone(), Some(if known.is_some() { options } else { options.with_prev_key() }))
            }
            Change::Put { value, ttl_seconds } => {
                if value.len() > REQUEST_LIMIT {
                    return Err(StoreError::TooLarge { bytes: value.len(), limit: REQUEST_LIMIT });
                }
                let mut options = PutOptions::new();
                // A key that must be absent has none.
                if commit.expect != Expect::Absent && known.is_none() {
                    options = options.with_prev_key();
                }
                if let Some(ttl) = ttl_seconds {
                    options = options.with_lease(self.lease(*ttl).await?);
                }
                TxnOp::put(key.clone(), value.to_vec(), Some(options))
            }
        };
        // Deleting what must be absent can only conflict; etcd would count it as a success that does nothing.
        let compares = match (&commit.change, commit.expect) {
            (Change::Delete, Expect::Absent) => vec![Compare::create_revision(key, CompareOp::Less, 0)],
            _ => compares,
        };
        Ok((compares, operation))
    }

    /// `known` has the entries that the commits compare with, as far as they are at hand: each at the place of its commit,
    /// and at the revision that the commit expects.
    async fn transact(&self, commits: Vec<Commit>, known: Vec<Option<Entry>>) -> Result<Vec<Entry>, Refused> {
        let refused = |at| move |error| Refused { at, error };
        if let Some(at) = repeated(&commits) {
            return Err(Refused { at, error: StoreError::Unavailable(REPEATED.to_owned()) });
        }
        let (mut compares, mut operations, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (commit, known)) in commits.iter().zip(&known).enumerate() {
            let (compare, operation) = self.operation(commit, known.as_ref()).await.map_err(refused(at))?;
            compares.extend(compare);
            operations.push(operation);
            reads.push(TxnOp::get(self.key(&commit.key), None));
        }
        let txn = Txn::new().when(compares).and_then(operations).or_else(reads);
        let ask = |member: &Client| {
            let (mut kv, txn) = (kv(member), txn.clone());
            async move { kv.txn(txn).await }
        };
        let answer = self.call(Repeats::Unsent, None, ask).await.map_err(refused(0))?;
        let revision = revision_of(answer.header());
        let unfit = || StoreError::Unavailable("etcd's answer does not fit the transaction".to_owned());
        let mut done = Vec::with_capacity(commits.len());
        let commits = commits.into_iter().zip(known).enumerate();
        for ((at, (commit, known)), response) in commits.zip(answer.op_responses()) {
            match (response, &commit.change) {
                (TxnOpResponse::Put(mut put), Change::Put { value, .. }) => {
                    let told = || put.take_prev_key().map(|kv| kv.create_revision().cast_unsigned());
                    let created = known.map(|entry| entry.created).or_else(told).unwrap_or(revision);
                    done.push(Entry { key: commit.key, value: value.clone(), created, modified: revision });
                }
                (TxnOpResponse::Delete(mut delete), Change::Delete) => {
                    let told = || delete.take_prev_kvs().pop().map(|kv| self.reading.entry(kv));
                    let removed = known.or_else(told).ok_or_else(unfit).map_err(refused(at))?;
                    done.push(Entry { modified: revision, ..removed });
                }
                // One of them did not fit, and all were read instead.
                (TxnOpResponse::Get(mut get), _) => {
                    let current = get.take_kvs().pop().map(|kv| self.reading.entry(kv));
                    if !commit.fits(current.as_ref()) {
                        waypoint::store::conflict(&commit.key);
                        return Err(Refused { at, error: StoreError::Conflict { current, revision } });
                    }
                }
                _ => return Err(Refused { at, error: unfit() }),
            }
        }
        if done.is_empty() { Err(Refused { at: 0, error: unfit() }) } else { Ok(done) }
    }

    async fn commit_one(&self, commit: Commit, known: Option<Entry>) -> Result<Entry> {
        let done = self.transact(vec![commit], vec![known]).await.map_err(|refused| refused.error)?;
        done.into_iter().next().ok_or_else(|| StoreError::Unavailable("etcd gave no answer to a commit".to_owned()))
    }

    async fn open_watch(&self, prefix: &str, after: Option<Revision>, previous: Previous) -> Result<Watch> {
        let start = self.key(prefix);
        let mut options = WatchOptions::new().with_range(prefix_end(&start)).with_progress_notify();
        if previous == Previous::Told {
            options = options.with_prev_key();
        }
        if let Some(after) = after {
            options = options.with_start_revision((after + 1).cast_signed());
        }
        let mut moves = (self.members.count() > 1).then(|| self.members.moves());
        let ask = |member: &Client| {
            let mut client = member.watch_client().max_decoding_message_size(usize::MAX);
            let (start, options) = (start.clone(), options.clone());
            async move {
                let (sender, mut responses) = client.watch(start, Some(options)).await?.split();
                let created = responses.message().await?;
                Ok::<_, etcd_client::Error>((sender, responses, created))
            }
        };
        let (sender, responses, created) = self.call(Repeats::Always, after, ask).await?;
        // Moves until here have led to the member that answered.
        moves.iter_mut().for_each(watch::Receiver::mark_unchanged);
        let Some(created) = created.filter(WatchResponse::created) else {
            return Err(StoreError::Unavailable("etcd did not open the watch".to_owned()));
        };
        let id = self.watches.next.fetch_add(1, Ordering::Relaxed);
        self.watches.open.lock().insert(id, Arc::new(tokio::sync::Mutex::new(sender)));
        let open = OpenWatch {
            responses,
            moves,
            watches: self.watches.clone(),
            id,
            reading: self.reading,
            requested: after.unwrap_or(0),
            delivered: after.unwrap_or_else(|| revision_of(created.header())),
            ended: false,
        };
        Ok(Box::pin(stream::unfold(open, |mut open| async move { Some((open.next().await?, open)) })))
    }
}

/// The receiving end of a watch.
struct OpenWatch {
    responses: WatchResponseStream,
    /// Tells when another member is asked: this one's events may never come. `None` where there is no other.
    moves: Option<watch::Receiver<usize>>,
    watches: Arc<Watches>,
    id: u64,
    reading: Reading,
    requested: Revision,
    delivered: Revision,
    ended: bool,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.watches.open.lock().remove(&self.id);
    }
}

impl OpenWatch {
    async fn next(&mut self) -> Option<Result<Batch>> {
        if self.ended {
            return None;
        }
        let outcome = self.receive().await;
        self.ended = outcome.is_err();
        Some(outcome)
    }

    async fn receive(&mut self) -> Result<Batch> {
        loop {
            let moved = async {
                match &mut self.moves {
                    Some(moves) => drop(moves.changed().await),
                    None => pending().await,
                }
            };
            let received = tokio::select! {
                received = self.responses.message() => received,
                () = moved => return Err(StoreError::Unavailable("etcd: another member is asked now".to_owned())),
            };
            let response = match received {
                Ok(Some(response)) => response,
                Ok(None) => return Err(StoreError::Unavailable("etcd ended the watch".to_owned())),
                Err(error) => return Err(StoreError::Unavailable(format!("etcd: {}", words::plain(&error)))),
            };
            if response.compact_revision() > 0 {
                let oldest = response.compact_revision().cast_unsigned();
                return Err(StoreError::Compacted { requested: self.requested, oldest });
            }
            if response.canceled() {
                return Err(StoreError::Unavailable(format!("etcd cancelled the watch: {}", response.cancel_reason())));
            }
            let events: Vec<Event> = response.events().iter().filter_map(|event| self.reading.event(event)).collect();
            // The header's revision is the server's, which may be ahead of a watch that is still catching up; only
            // an answer without events is a mark.
            let revision = events.last().map_or_else(|| revision_of(response.header()), |e| e.revision);
            if response.created() || (events.is_empty() && revision <= self.delivered) {
                continue;
            }
            for event in &events {
                waypoint::store::event(&event.key);
            }
            self.delivered = revision;
            return Ok(Batch { events, revision });
        }
    }
}

/// Whether a watch tells what was there before each change. etcd reads that for every watch anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Previous {
    Told,
    Untold,
}

/// Whether a call may be made again at another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeats {
    /// Whatever became of it.
    Always,
    /// If it did not get to the first: a write that was made is not to be made again.
    Unsent,
}

fn kv(member: &Client) -> KvClient {
    member.kv_client().max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| header.revision().cast_unsigned())
}

/// Whether a server of this version sends progress marks behind the events that they cover.
fn has_exact_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) > (3, 5),
    }
}

impl Store for Etcd {
    fn is_shared(&self) -> bool {
        true
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        Box::pin(async move {
            let key = self.key(key);
            let ask = |member: &Client| {
                let (mut kv, key) = (kv(member), key.clone());
                async move { kv.get(key, None).await }
            };
            let mut answer = self.call(Repeats::Always, None, ask).await?;
            let revision = revision_of(answer.header());
            Ok((answer.take_kvs().pop().map(|kv| self.reading.entry(kv)), revision))
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            let mut options = GetOptions::new().with_range(self.key(&range.end)).with_limit(range.limit as i64);
            if let Some(revision) = range.revision {
                options = options.with_revision(revision.cast_signed());
            }
            let start = self.key(&range.start);
            let ask = |member: &Client| {
                let (mut kv, start, options) = (kv(member), start.clone(), options.clone());
                async move { kv.get(start, Some(options)).await }
            };
            let mut answer = match self.call(Repeats::Always, range.revision, ask).await {
                Ok(answer) => answer,
                Err(error) => return Err(self.dated(error).await),
            };
            let revision = range.revision.unwrap_or_else(|| revision_of(answer.header()));
            let count = usize::try_from(answer.count()).unwrap_or(0);
            let entries: Vec<Entry> = answer.take_kvs().into_iter().map(|kv| self.reading.entry(kv)).collect();
            let remaining = count.saturating_sub(entries.len());
            Ok(Page { entries, revision, remaining })
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        Box::pin(self.commit_one(commit, None))
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        let known = vec![None; commits.len()];
        Box::pin(self.transact(commits, known))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        Box::pin(self.open_watch(prefix, after, Previous::Told))
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let ask = |member: &Client| {
                let mut kv = kv(member);
                async move { kv.compact(revision.cast_signed(), None).await }
            };
            match self.call(Repeats::Always, Some(revision), ask).await {
                // Another server was here first.
                Ok(_) | Err(StoreError::Compacted { .. }) => {
                    self.compacted.fetch_max(revision, Ordering::Relaxed);
                    Ok(())
                }
                Err(error) => Err(self.dated(error).await),
            }
        })
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let open: Vec<_> = self.watches.open.lock().values().cloned().collect();
            for sender in open {
                // A watch that cannot be asked is about to end with an error of its own.
                let _ = sender.lock().await.request_progress().await;
            }
            Ok(())
        })
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.newest())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_with_exact_progress() {
        let check = |version, expected| assert_eq!(super::has_exact_progress(version), expected, "{version}");
        check("3.4.23", false);
        check("3.4.31", true);
        check("3.5.12", false);
        check("3.5.13", true);
        check("3.6.0-rc.1", true);
    }
}
