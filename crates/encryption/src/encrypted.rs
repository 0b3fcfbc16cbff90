//! A store over a store: values are plain above and encrypted below, each with the providers of its resource.
//!
//! A value is decrypted each time it is read, and nothing decrypted is kept: the copies in memory and the files of the store
//! below are encrypted. A value of a resource without providers passes untouched.
//!
//! A value in another form than this server writes (protobuf, which upstream's do) is brought into that one by [`Form`], so that
//! nothing above has to know of it.
//!
//! A value that cannot be read makes an error of its own ([`StoreError::Unreadable`]). As upstream, a list fails that it is
//! in; a watch ends there, since it may leave nothing out.

use std::sync::Arc;

use bytes::Bytes;
use clock::Instant;
use futures::{StreamExt, future::BoxFuture, stream};
use meter::Metrics;
use parking_lot::RwLock;
use store::{Batch, Change, Commit, Entry, Page, Range, Refused, Result, Revision, Store, StoreError, Watch};

use crate::{
    opened::Opened,
    provider::{Closed, Providers},
    table::{self, Table},
    transformations::{self, Counter},
    way::Way,
};

/// The table in use, which can be replaced while the store is at work, and what was counted meanwhile.
#[derive(Default)]
pub struct Current {
    table: RwLock<Arc<Table>>,
    metrics: Arc<Metrics>,
}

impl Current {
    pub fn new(table: Table) -> Arc<Self> {
        Arc::new(Current { table: RwLock::new(Arc::new(table)), metrics: Arc::default() })
    }

    pub fn get(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// From here on values are written and read by this table.
    pub fn replace(&self, table: Table) {
        *self.table.write() = Arc::new(table);
    }

    /// The lines about what was written and read, for `/metrics`.
    pub fn figures(&self) -> String {
        self.metrics.render()
    }
}

/// Brings a decrypted value into the form that is read above.
pub type Form = fn(&Bytes) -> std::result::Result<Bytes, String>;

/// Brings a value into the form that is written below.
pub type Written = fn(&Bytes) -> Bytes;

/// The store above.
pub struct Encrypted {
    below: Arc<dyn Store>,
    table: Arc<Current>,
    form: Form,
    written: Option<Written>,
}

/// Reads values with one table. It remembers the providers of the last key: neighbours have the same.
struct Reader {
    table: Arc<Table>,
    metrics: Arc<Metrics>,
    counter: Counter,
    form: Form,
    prefix: String,
    providers: Option<Arc<Providers>>,
    /// The resource that these are of.
    resource: String,
}

impl Reader {
    fn new(current: &Current, form: Form) -> Self {
        Reader {
            table: current.get(),
            metrics: current.metrics.clone(),
            counter: Counter::default(),
            form,
            prefix: String::new(),
            providers: None,
            resource: String::new(),
        }
    }

    fn providers(&mut self, key: &str) -> Option<Arc<Providers>> {
        if self.prefix.is_empty() || !key.starts_with(&self.prefix) {
            let (found, length) = self.table.of(key);
            (self.providers, self.prefix) = (found.cloned(), key.get(..length).unwrap_or(key).to_owned());
            self.resource = if self.providers.is_some() { table::resource(key) } else { String::new() };
        }
        self.providers.clone()
    }

    /// Counts what became of a value.
    fn count(&mut self, way: Way, began: Instant, stored: Option<&[u8]>, fails: bool) {
        if fails {
            transformations::failed(&self.metrics, &self.resource, way, stored.unwrap_or_default());
        } else if let Some(stored) = stored {
            self.counter.done(&self.metrics, &self.resource, way, stored, began.elapsed());
        }
    }

    async fn open(&mut self, key: &str, stored: &Bytes) -> Result<Opened> {
        let opened = match self.providers(key) {
            None => table::plain(stored).map(|()| Opened { value: stored.clone(), stale: false }),
            Some(providers) => {
                let began = Instant::now();
                let opened = match providers.open(key, stored) {
                    Ok(opened) => Ok(opened),
                    Err(Closed::Wrong(why)) => Err(why),
                    Err(Closed::Locked(locked)) => locked.open(key).await,
                };
                let known = opened.is_ok() || providers.knows(stored);
                self.count(Way::FromStorage, began, known.then_some(&**stored), opened.is_err());
                opened
            }
        };
        let formed = opened.and_then(|opened| Ok(Opened { value: (self.form)(&opened.value)?, stale: opened.stale }));
        formed.map_err(|why| StoreError::Unreadable { key: key.to_owned(), why })
    }

    async fn entry(&mut self, entry: &mut Entry) -> Result<()> {
        entry.value = self.open(&entry.key, &entry.value).await?.value;
        Ok(())
    }

    /// An entry that is gone or replaced. Where nobody can read what it was, it shows nothing.
    async fn former(&mut self, entry: &mut Entry) {
        if self.entry(entry).await.is_err() {
            entry.value = Bytes::new();
        }
    }

    async fn batch(&mut self, mut batch: Batch) -> Result<Batch> {
        for event in &mut batch.events {
            if let Some(entry) = &mut event.entry {
                self.entry(entry).await?;
            }
            if let Some(previous) = &mut event.previous {
                self.former(previous).await;
            }
        }
        Ok(batch)
    }

    /// The state that a commit met; one that cannot be read is the error instead.
    async fn error(&mut self, error: StoreError) -> StoreError {
        match error {
            StoreError::Conflict { current: Some(mut entry), revision } => match self.entry(&mut entry).await {
                Ok(()) => StoreError::Conflict { current: Some(entry), revision },
                Err(unreadable) => unreadable,
            },
            other => other,
        }
    }

    /// The commit as the store below gets it.
    fn seal(&mut self, commit: &Commit, written: Option<Written>) -> Result<Commit> {
        let mut sealed = commit.clone();
        if let Change::Put { value, .. } = &mut sealed.change {
            if let Some(written) = written {
                *value = written(value);
            }
            if let Some(providers) = self.providers(&commit.key) {
                let began = Instant::now();
                let written = providers.seal(&commit.key, value);
                match &written {
                    Ok(stored) => self.count(Way::ToStorage, began, Some(&**stored), false),
                    Err(_) => self.count(Way::ToStorage, began, Some(providers.prefix().as_bytes()), true),
                }
                *value = written.map_err(StoreError::Unencrypted)?;
            }
        }
        Ok(sealed)
    }

    /// The answer to a commit: what was written is known.
    async fn committed(&mut self, change: Change, mut entry: Entry) -> Entry {
        match change {
            Change::Put { value, .. } => entry.value = value,
            Change::Delete => self.former(&mut entry).await,
        }
        entry
    }
}

impl Encrypted {
    pub fn new(below: Arc<dyn Store>, table: Arc<Current>) -> Self {
        Encrypted { below, table, form: |value| Ok(value.clone()), written: None }
    }

    /// The same store, which reads values in other forms too.
    pub fn reading(self, form: Form) -> Self {
        Encrypted { form, ..self }
    }

    /// The same store, which writes values in another form than that of those who hand them in.
    pub fn writing(self, written: Option<Written>) -> Self {
        Encrypted { written, ..self }
    }

    fn reader(&self) -> Reader {
        Reader::new(&self.table, self.form)
    }

    async fn opened<T>(&self, (mut entry, with): (Option<Entry>, T)) -> Result<(Option<Entry>, T)> {
        if let Some(entry) = &mut entry {
            self.reader().entry(entry).await?;
        }
        Ok((entry, with))
    }
}

impl Store for Encrypted {
    fn is_shared(&self) -> bool {
        self.below.is_shared()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, Revision)>> {
        Box::pin(async move { self.opened(self.below.get(key).await?).await })
    }

    fn at_hand<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Option<Entry>, bool)>> {
        Box::pin(async move { self.opened(self.below.at_hand(key).await?).await })
    }

    fn at_hand_up_to(&self) -> Option<Revision> {
        self.below.at_hand_up_to()
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            let mut page = self.below.range(range).await?;
            let mut reader = self.reader();
            for entry in &mut page.entries {
                reader.entry(entry).await?;
            }
            Ok(page)
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Entry>> {
        Box::pin(async move {
            let mut reader = self.reader();
            match self.below.commit(reader.seal(&commit, self.written)?).await {
                Ok(entry) => Ok(reader.committed(commit.change, entry).await),
                Err(error) => Err(reader.error(error).await),
            }
        })
    }

    fn commit_all(&self, commits: Vec<Commit>) -> BoxFuture<'_, Result<Vec<Entry>, Refused>> {
        Box::pin(async move {
            let mut reader = self.reader();
            let sealed = commits.iter().enumerate();
            let sealed =
                sealed.map(|(at, commit)| reader.seal(commit, self.written).map_err(|error| Refused { at, error }));
            match self.below.commit_all(sealed.collect::<Result<_, _>>()?).await {
                Ok(entries) => {
                    let mut answers = Vec::with_capacity(entries.len());
                    for (commit, entry) in commits.into_iter().zip(entries) {
                        answers.push(reader.committed(commit.change, entry).await);
                    }
                    Ok(answers)
                }
                Err(Refused { at, error }) => Err(Refused { at, error: reader.error(error).await }),
            }
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Option<Revision>) -> BoxFuture<'a, Result<Watch>> {
        Box::pin(async move {
            let changes = self.below.watch(prefix, after).await?;
            let (table, form) = (self.table.clone(), self.form);
            // Behind an error nothing follows, and nobody waits for it.
            let opened = stream::unfold(Some((changes, table, form)), async |at_work| {
                let (mut changes, table, form) = at_work?;
                let batch = match changes.next().await? {
                    Ok(batch) => Reader::new(&table, form).batch(batch).await,
                    Err(error) => Err(error),
                };
                let goes_on = batch.is_ok().then_some((changes, table, form));
                Some((batch, goes_on))
            });
            Ok(opened.boxed())
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        self.below.compact(revision)
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        self.below.request_progress()
    }

    fn outdated<'a>(&'a self, entry: &'a Entry) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let mut reader = self.reader();
            if reader.providers(&entry.key).is_none() {
                return Ok(false);
            }
            let (stored, _) = self.below.get(&entry.key).await?;
            let Some(stored) = stored.filter(|stored| stored.modified == entry.modified) else { return Ok(false) };
            Ok(reader.open(&stored.key, &stored.value).await?.stale)
        })
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision>> {
        self.below.revision()
    }
}
