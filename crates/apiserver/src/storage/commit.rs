//! How objects come into the store: a new one where there is none, and compare-and-swap of one that is there. Every writer
//! commits through here.

use api::{Value, codec::bounds::OBJECT_BYTES_MAX, kind::Definition, meta, status::StatusError};
use store::{Change, Commit, Entry, Expect, Store, StoreError};

use crate::storage::{error::store_error, object};

/// How often a read-change-write is tried before its conflict goes to the client.
const ATTEMPTS: usize = 100;

/// Commits a new object.
pub async fn insert(store: &dyn Store, definition: &Definition, object: &Value) -> Result<Entry, StatusError> {
    let (namespace, name) = (meta::namespace(object), meta::name(object));
    let change = put(definition, object);
    check_size(&change, 0)?;
    let key = object::key(definition, namespace, name).into();
    store.commit(Commit { key, expect: Expect::Absent, change }).await.map_err(|error| match error {
        StoreError::Conflict { .. } => StatusError::already_exists(&definition.group, &definition.plural, name),
        other => store_error(other),
    })
}

/// The compare-and-swap of one object. Its writer makes a change of what `entry` holds and commits it; when somebody else
/// was faster, `entry` is what they left, and the writer begins again.
pub struct Swap<'a> {
    store: &'a dyn Store,
    definition: &'a Definition,
    pub entry: Entry,
    attempts: usize,
}

impl<'a> Swap<'a> {
    pub fn new(store: &'a dyn Store, definition: &'a Definition, entry: Entry) -> Self {
        Swap { store, definition, entry, attempts: 0 }
    }

    /// The object as it is.
    pub fn object(&self) -> Value {
        object::of_entry(self.definition, &self.entry)
    }

    /// Commits the changed object; unchanged bytes are not written. `None` when somebody else was faster.
    pub async fn replace(&mut self, object: &Value) -> Result<Option<Entry>, StatusError> {
        let change = put(self.definition, object);
        if let Change::Put { value, .. } = &change
            && *value == self.entry.value
        {
            return Ok(Some(self.entry.clone()));
        }
        check_size(&change, self.entry.value.len())?;
        self.commit(change).await
    }

    /// Removes the object. `None` when somebody else was faster.
    pub async fn remove(&mut self) -> Result<Option<Entry>, StatusError> {
        self.commit(Change::Delete).await
    }

    async fn commit(&mut self, change: Change) -> Result<Option<Entry>, StatusError> {
        let expect = Expect::Modified(self.entry.modified);
        match self.store.commit(Commit { key: self.entry.key.clone(), expect, change }).await {
            Ok(entry) => Ok(Some(entry)),
            Err(StoreError::Conflict { current: Some(current), .. }) => {
                self.entry = current;
                self.attempts += 1;
                if self.attempts == ATTEMPTS { Err(self.modified()) } else { Ok(None) }
            }
            Err(StoreError::Conflict { current: None, .. }) => {
                Err(StatusError::not_found(&self.definition.group, &self.definition.plural, self.name()))
            }
            Err(other) => Err(store_error(other)),
        }
    }

    /// The conflict for a writer that may not begin again.
    pub fn modified(&self) -> StatusError {
        StatusError::modified(&self.definition.group, &self.definition.plural, self.name())
    }

    fn name(&self) -> &str {
        object::names(self.definition, &self.entry.key).1
    }
}

fn put(definition: &Definition, object: &Value) -> Change {
    let value = if definition.is_converted() {
        let mut stored = object.clone();
        definition.strategy.to_storage(&mut stored);
        object::encode(definition, &stored)
    } else {
        object::encode(definition, object)
    };
    Change::Put { value, ttl_seconds: definition.lifetime_seconds }
}

/// Every store takes objects of the same size. One that is larger already may still shrink.
fn check_size(change: &Change, present: usize) -> Result<(), StatusError> {
    match change {
        Change::Put { value, .. } if value.len() > OBJECT_BYTES_MAX.max(present) => {
            Err(store_error(StoreError::TooLarge { bytes: value.len(), limit: OBJECT_BYTES_MAX }))
        }
        _ => Ok(()),
    }
}
