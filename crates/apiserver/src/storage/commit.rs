//! How objects come into the store: a new one where there is none, and compare-and-swap of one that is there. Every writer
//! commits through here.

use std::sync::Arc;

use api::{
    Value,
    codec::bounds::OBJECT_BYTES_MAX,
    kind::{Definition, TypedObject},
    meta,
    status::StatusError,
};
use client::handover;
use futures::future::OptionFuture;
use spans::Span;
use store::{Change, Commit, Entry, Expect, Refused, Store, StoreError};

use crate::storage::{
    conversion::Conversions,
    error::{object_error, store_error},
    object,
    recent::Recent,
};

/// How often a read-change-write is tried before its conflict goes to the client.
pub const ATTEMPTS: usize = 100;

/// Changes that stand or fall with the change of an object: what it takes out of a limited supply, and gives back.
pub trait Companions: Send + Sync {
    /// The commits as they fit what is known.
    fn commits(&self) -> Vec<Commit>;
    /// Learns the state of the key that the commit at this place did not fit. False when the object cannot have what it
    /// was to get.
    fn learn(&mut self, at: usize, current: Option<&Entry>) -> bool;
    /// Where writers of a key that many share wait for each other, so that all but one don't try in vain.
    fn turn(&self) -> Option<Arc<tokio::sync::Mutex<()>>>;
}

/// Commits the change of an object and what goes with it, all or nothing. `None` when the object cannot have what was to
/// go with it.
async fn commit_with(
    store: &dyn Store,
    commit: Commit,
    with: Option<Box<dyn Companions>>,
) -> Result<Option<Entry>, StoreError> {
    let Some(mut with) = with else { return store.commit(commit).await.map(Some) };
    let turn = with.turn();
    let _turn = OptionFuture::from(turn.as_ref().map(|turn| turn.lock())).await;
    for _ in 0..ATTEMPTS {
        let others = with.commits();
        if others.is_empty() {
            return store.commit(commit).await.map(Some);
        }
        match store.commit_all(std::iter::once(commit.clone()).chain(others).collect()).await {
            Ok(entries) => return Ok(entries.into_iter().next()),
            Err(Refused { at, error: StoreError::Conflict { current, .. } }) if at > 0 => {
                if !with.learn(at - 1, current.as_ref()) {
                    return Ok(None);
                }
            }
            Err(refused) => return Err(refused.error),
        }
    }
    Ok(None)
}

/// Where objects are written, and what is kept of them beside the store.
#[derive(Clone, Copy)]
pub struct Backing<'a> {
    pub store: &'a dyn Store,
    pub conversions: &'a Conversions,
    pub recent: &'a Recent,
}

/// The span of a write. Its name is upstream's, whichever store there is.
fn span(name: &'static str, definition: &Definition, key: &str) -> Option<Span> {
    let mut span = spans::part(name)?;
    for (name, value) in
        [("key", key), ("type", &definition.kind), ("group", &definition.group), ("resource", &definition.plural)]
    {
        span.set(name, value);
    }
    Some(span)
}

fn failed(error: &StoreError) {
    spans::event_with("Txn call failed", || [("err", (&*error.to_string()).into())]);
}

/// Commits a new object, and with it what it takes. `None` when that cannot be had. In its type it goes to the caches.
pub async fn insert_with(
    backing: Backing<'_>,
    definition: &Definition,
    (object, typed): (&Arc<Value>, Option<TypedObject>),
    with: Option<Box<dyn Companions>>,
) -> Result<Option<Entry>, StatusError> {
    let key: Arc<str> = object::key(definition, meta::namespace(object), meta::name(object)).into();
    let span = span("Create etcd3", definition, &key);
    spans::within(span, || insert(backing, definition, (key, object, typed), with)).await
}

async fn insert(
    backing: Backing<'_>,
    definition: &Definition,
    (key, object, typed): (Arc<str>, &Arc<Value>, Option<TypedObject>),
    with: Option<Box<dyn Companions>>,
) -> Result<Option<Entry>, StatusError> {
    let change = backing.put(definition, &key, object, 0).await?;
    // Stored in another version it is another object to whoever reads it.
    if let (Change::Put { value, .. }, Some(typed), false) = (&change, typed, definition.is_converted()) {
        handover::give(value, typed);
    }
    let commit = Commit { key, expect: Expect::Absent, change };
    let inserted = commit_with(backing.store, commit, with).await.map_err(|error| match error {
        StoreError::Conflict { .. } => {
            StatusError::already_exists(&definition.group, &definition.plural, meta::name(object))
        }
        other => {
            failed(&other);
            store_error(other)
        }
    })?;
    spans::event("Txn call succeeded");
    Ok(inserted)
}

/// The compare-and-swap of one object. Its writer makes a change of what `entry` holds and commits it; when somebody else
/// was faster, `entry` is what they left, and the writer begins again.
pub struct Swap<'a> {
    backing: Backing<'a>,
    definition: &'a Definition,
    pub entry: Entry,
    /// `entry` was the newest when it was read. Otherwise only a commit proves it, and what follows from it without one (a
    /// refusal, or that nothing is to be written) does not count before `look_again`.
    newest: bool,
    attempts: usize,
    with: Option<Box<dyn Companions>>,
    /// The last commit failed because the object could not have what was to go with it.
    pub lost: bool,
}

impl<'a> Swap<'a> {
    pub fn new(backing: Backing<'a>, definition: &'a Definition, entry: Entry) -> Self {
        Swap { backing, definition, entry, newest: true, attempts: 0, with: None, lost: false }
    }

    /// Says whether the entry is the newest.
    pub fn of_age(mut self, newest: bool) -> Self {
        self.newest = newest;
        self
    }

    /// Reads the newest entry if this one may be older. True when it was.
    pub async fn look_again(&mut self) -> Result<bool, StatusError> {
        if std::mem::replace(&mut self.newest, true) {
            return Ok(false);
        }
        let (newest, _) = self.backing.store.get(&self.entry.key).await.map_err(object_error)?;
        let newest = newest.ok_or_else(|| self.not_found())?;
        let older = newest.modified != self.entry.modified;
        self.entry = newest;
        Ok(older)
    }

    fn not_found(&self) -> StatusError {
        StatusError::not_found(&self.definition.group, &self.definition.plural, self.name())
    }

    /// Sets the companions that the next commit takes and gives back.
    pub fn bring(&mut self, with: Option<Box<dyn Companions>>) {
        self.with = with;
    }

    /// The object as it is, of a kind that no webhook converts.
    pub fn object(&self) -> Value {
        match self.backing.recent.take(self.definition, &self.entry) {
            Some(mut object) => {
                object::set_revision(&mut object, self.entry.modified);
                object
            }
            None => object::of_entry(self.definition, &self.entry),
        }
    }

    /// The object as it is.
    pub async fn read(&self) -> Result<Value, StatusError> {
        if self.definition.webhook.is_none() {
            return Ok(self.object());
        }
        let shown = self.backing.conversions.shown_one(self.definition, self.entry.clone()).await?;
        Ok(object::of_entry(self.definition, &shown))
    }

    /// Commits the changed object; unchanged bytes are not written, unless they are encrypted with a key that is on its way
    /// out. `None` when somebody else was faster. Each attempt has a span of its own.
    pub async fn replace(&mut self, object: Value) -> Result<Option<Entry>, StatusError> {
        let span = span("GuaranteedUpdate etcd3", self.definition, &self.entry.key);
        spans::within(span, || self.replace_once(object)).await
    }

    async fn replace_once(&mut self, object: Value) -> Result<Option<Entry>, StatusError> {
        let (key, object) = (self.entry.key.clone(), Arc::new(object));
        let change = self.backing.put(self.definition, &key, &object, self.entry.value.len()).await?;
        if let Change::Put { value, .. } = &change
            && object::is_same(value, &self.entry.value)
        {
            if self.look_again().await? {
                return self.again();
            }
            if !self.backing.store.outdated(&self.entry).await.map_err(store_error)? {
                return Ok(Some(self.entry.clone()));
            }
        }
        self.commit(change).await
    }

    /// Removes the object. `None` when somebody else was faster.
    pub async fn remove(&mut self) -> Result<Option<Entry>, StatusError> {
        self.commit(Change::Delete).await
    }

    async fn commit(&mut self, change: Change) -> Result<Option<Entry>, StatusError> {
        let (expect, writes) = (Expect::Modified(self.entry.modified), matches!(change, Change::Put { .. }));
        let commit = Commit { key: self.entry.key.clone(), expect, change };
        // As upstream, a deletion is a part of its handler's span, and tells no steps.
        let tell = |event| {
            if writes {
                spans::event(event)
            }
        };
        tell("Transaction prepared");
        let committed = commit_with(self.backing.store, commit, self.with.take()).await;
        tell("Txn call completed");
        self.lost = matches!(committed, Ok(None));
        self.newest |= matches!(committed, Ok(Some(_)) | Err(StoreError::Conflict { .. }));
        match committed {
            Ok(Some(entry)) => {
                tell("Transaction committed");
                Ok(Some(entry))
            }
            Ok(None) => self.again(),
            Err(StoreError::Conflict { current: Some(current), .. }) => {
                self.entry = current;
                tell("Retry value restored");
                self.again()
            }
            Err(StoreError::Conflict { current: None, .. }) => Err(self.not_found()),
            Err(other) => {
                failed(&other);
                Err(store_error(other))
            }
        }
    }

    fn again(&mut self) -> Result<Option<Entry>, StatusError> {
        self.attempts += 1;
        if self.attempts == ATTEMPTS { Err(self.modified()) } else { Ok(None) }
    }

    /// The conflict for a writer that may not begin again.
    pub fn modified(&self) -> StatusError {
        StatusError::modified(&self.definition.group, &self.definition.plural, self.name())
    }

    fn name(&self) -> &str {
        object::names(self.definition, &self.entry.key).1
    }
}

impl Backing<'_> {
    /// The change that stores an object. Every store takes objects of the same size; one that is larger already may still
    /// shrink.
    async fn put(
        &self,
        definition: &Definition,
        key: &str,
        object: &Arc<Value>,
        present: usize,
    ) -> Result<Change, StatusError> {
        spans::event("About to Encode");
        let value = self.conversions.stored(definition, object).await?;
        spans::event_with("Encode succeeded", || [("len", value.len().into())]);
        if value.len() > OBJECT_BYTES_MAX.max(present) {
            return Err(store_error(StoreError::TooLarge { bytes: value.len(), limit: OBJECT_BYTES_MAX }));
        }
        self.recent.keep(definition, key, &value, object.clone());
        Ok(Change::Put { value, ttl_seconds: definition.lifetime_seconds })
    }
}
