//! Access to objects for the server's own parts (authorizers, admission, bootstrap, special subresources): no
//! authentication, authorization or admission, but the same storage form, defaults, validation and commits.

use std::sync::Arc;

use api::{
    Value,
    codec::bounds::OBJECT_BYTES_MAX,
    kind::{Definition, Target},
    meta,
    status::StatusError,
};
use store::{Change, Commit, Entry, Expect, Range, Revision, Store, StoreError};

use crate::{
    storage::{
        kinds::Kinds,
        mirror::{Follower, Mirror},
        object,
    },
    watch_dispatch::Feed,
};

/// How often a read-change-write is tried before its conflict goes to the client.
const ATTEMPTS: usize = 100;

/// Kinds whose objects the store deletes by itself, by storage prefix, with their time in seconds.
const LIFETIMES: &[(&str, u32)] = &[("events", 3600)];

/// The objects of all kinds over the store.
pub struct Core {
    pub store: Arc<dyn Store>,
    pub kinds: Arc<Kinds>,
    pub feed: Arc<Feed>,
}

impl Core {
    /// Opens the feed on a store, with the built-in kinds.
    pub async fn new(store: Arc<dyn Store>) -> store::Result<Arc<Core>> {
        let kinds = Arc::new(Kinds::default());
        let feed = Feed::start(store.clone(), kinds.clone()).await?;
        Ok(Arc::new(Core { store, kinds, feed }))
    }

    /// The definition of a resource in any version, preferably the stored one. Built-in names are always known.
    pub fn definition(&self, group: &str, plural: &str) -> Result<Arc<Definition>, StatusError> {
        self.kinds.any_version(group, plural).ok_or_else(StatusError::no_route)
    }

    pub(crate) async fn entry(
        &self,
        definition: &Definition,
        namespace: &str,
        name: &str,
    ) -> Result<Entry, StatusError> {
        let key = object::key(definition, namespace, name);
        let (entry, _) = self.store.get(&key).await.map_err(store_error)?;
        entry.ok_or_else(|| StatusError::not_found(&definition.group, &definition.plural, name))
    }

    /// One object, with its resourceVersion.
    pub async fn get(&self, definition: &Definition, namespace: &str, name: &str) -> Result<Value, StatusError> {
        Ok(object::of_entry(definition, &self.entry(definition, namespace, name).await?))
    }

    /// All objects of a kind, in one namespace or (empty) in all.
    pub async fn list(&self, definition: &Definition, namespace: &str) -> Result<Vec<Value>, StatusError> {
        let range = Range::prefix(&object::key(definition, namespace, ""));
        let page = self.store.range(range).await.map_err(store_error)?;
        Ok(page.entries.iter().map(|e| object::of_entry(definition, e)).collect())
    }

    /// Creates an object: defaults, server-owned metadata, validation, commit. Returns it as stored.
    pub async fn create(&self, definition: &Definition, mut object: Value) -> Result<Value, StatusError> {
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::from(definition.api_version()));
            map.insert("kind".to_owned(), Value::from(definition.kind.clone()));
        }
        definition.strategy.default(&mut object);
        begin(&mut object);
        definition.strategy.prepare_create(&mut object);
        let errors = definition.strategy.validate(&object);
        if !errors.is_empty() {
            return Err(StatusError::invalid(&definition.group, &definition.kind, meta::name(&object), &errors));
        }
        let entry = self.insert(definition, &object).await?;
        Ok(object::of_entry(definition, &entry))
    }

    /// Reads, changes and writes an object until no one else writes in between. `change` returns false to leave it.
    pub async fn update(
        &self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        target: Target,
        mut change: impl FnMut(&mut Value) -> Result<bool, StatusError> + Send,
    ) -> Result<Value, StatusError> {
        let mut entry = self.entry(definition, namespace, name).await?;
        for _ in 0..ATTEMPTS {
            let old = object::of_entry(definition, &entry);
            let mut new = old.clone();
            if !change(&mut new)? {
                return Ok(old);
            }
            definition.strategy.prepare_update(&mut new, &old, target);
            let errors = definition.strategy.validate_update(&new, &old, target);
            if !errors.is_empty() {
                return Err(StatusError::invalid(&definition.group, &definition.kind, name, &errors));
            }
            match self.replace(definition, &entry, &new).await? {
                Replaced::Written(entry) => return Ok(object::of_entry(definition, &entry)),
                Replaced::Conflict(Some(current)) => entry = current,
                Replaced::Conflict(None) => {
                    return Err(StatusError::not_found(&definition.group, &definition.plural, name));
                }
            }
        }
        Err(StatusError::modified(&definition.group, &definition.plural, name))
    }

    /// A live copy of all objects of a kind; the same one for all who ask.
    pub async fn mirror(&self, definition: &Arc<Definition>) -> Result<Arc<Mirror>, StatusError> {
        let same = |m: &Arc<Mirror>| Arc::ptr_eq(&m.definition, definition) && !m.is_followed();
        let known = self.feed.mirrors().into_iter().find(same);
        if let Some(known) = known {
            return Ok(known);
        }
        let mirror = Arc::new(Mirror::new(definition.clone(), None));
        self.feed.add_mirror(mirror.clone());
        mirror.fill(&*self.store).await.map_err(store_error)?;
        Ok(mirror)
    }

    /// Tells the follower of all objects of a kind as they are now, and of every change from here on.
    pub async fn follow(&self, definition: &Arc<Definition>, follower: Arc<dyn Follower>) -> Result<(), StatusError> {
        let mirror = Arc::new(Mirror::new(definition.clone(), Some(follower)));
        self.feed.add_mirror(mirror.clone());
        mirror.fill(&*self.store).await.map_err(store_error)
    }

    /// Waits until mirrors and watches have everything that is committed now.
    pub async fn caught_up(&self) -> Result<Revision, StatusError> {
        let revision = self.store.revision().await.map_err(store_error)?;
        if !self.feed.reached(revision, &*self.store).await {
            return Err(StatusError::timeout("the caches did not catch up with the store in time"));
        }
        Ok(revision)
    }

    /// Commits a new object.
    pub(crate) async fn insert(&self, definition: &Definition, object: &Value) -> Result<Entry, StatusError> {
        let (namespace, name) = (meta::namespace(object), meta::name(object));
        let change = put(definition, object);
        check_size(&change, 0)?;
        let key = object::key(definition, namespace, name).into();
        let commit = Commit { key, expect: Expect::Absent, change };
        self.store.commit(commit).await.map_err(|error| match error {
            StoreError::Conflict { .. } => StatusError::already_exists(&definition.group, &definition.plural, name),
            other => store_error(other),
        })
    }

    /// Commits a changed object if nobody wrote it since `entry`; unchanged bytes are not written.
    pub(crate) async fn replace(
        &self,
        definition: &Definition,
        entry: &Entry,
        object: &Value,
    ) -> Result<Replaced, StatusError> {
        let change = put(definition, object);
        if let Change::Put { value, .. } = &change
            && *value == entry.value
        {
            return Ok(Replaced::Written(entry.clone()));
        }
        check_size(&change, entry.value.len())?;
        let commit = Commit { key: entry.key.clone(), expect: Expect::Modified(entry.modified), change };
        match self.store.commit(commit).await {
            Ok(entry) => Ok(Replaced::Written(entry)),
            Err(StoreError::Conflict { current, .. }) => Ok(Replaced::Conflict(current)),
            Err(other) => Err(store_error(other)),
        }
    }

    /// Removes an object if nobody wrote it since `entry`.
    pub(crate) async fn remove(&self, entry: &Entry) -> Result<Replaced, StatusError> {
        let commit =
            Commit { key: entry.key.clone(), expect: Expect::Modified(entry.modified), change: Change::Delete };
        match self.store.commit(commit).await {
            Ok(entry) => Ok(Replaced::Written(entry)),
            Err(StoreError::Conflict { current, .. }) => Ok(Replaced::Conflict(current)),
            Err(other) => Err(store_error(other)),
        }
    }
}

/// How a write went.
pub(crate) enum Replaced {
    Written(Entry),
    /// Somebody was faster; this is the key's present state.
    Conflict(Option<Entry>),
}

fn put(definition: &Definition, object: &Value) -> Change {
    let value = if definition.is_converted() {
        let mut stored = object.clone();
        definition.strategy.to_storage(&mut stored);
        object::encode(definition, &stored)
    } else {
        object::encode(definition, object)
    };
    let ttl_seconds = LIFETIMES.iter().find(|(p, _)| *p == definition.storage_prefix).map(|(_, seconds)| *seconds);
    Change::Put { value, ttl_seconds }
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

/// Takes from a new object what only the server says: an object that was exported can be created again.
pub(crate) fn wipe(object: &mut Value) {
    let Some(metadata) = meta::metadata_mut(object) else { return };
    let ours = ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];
    for field in ours.iter().chain(&["resourceVersion"]) {
        metadata.remove(*field);
    }
}

/// Gives a new object the metadata that the server owns.
pub(crate) fn begin(object: &mut Value) {
    wipe(object);
    let Some(metadata) = meta::metadata_mut(object) else { return };
    metadata.insert("uid".to_owned(), Value::from(clock::uuid()));
    metadata.insert("creationTimestamp".to_owned(), Value::from(clock::now_seconds().to_string()));
}

/// What a client reads when the store refuses.
pub(crate) fn store_error(error: StoreError) -> StatusError {
    match error {
        StoreError::Compacted { .. } => StatusError::expired("The resourceVersion for the provided list is too old."),
        StoreError::Future { requested, newest } => too_large_version(requested, newest),
        StoreError::TooLarge { bytes, limit } => {
            // The first words are those of upstream's store, which people look for.
            StatusError::too_large(format!(
                "etcdserver: request is too large: the object has {bytes} bytes, at most {limit} are stored"
            ))
        }
        StoreError::Conflict { .. } => StatusError::internal("a write met an unexpected state"),
        full @ StoreError::Full(_) => StatusError::insufficient_storage(full.to_string()),
        other => StatusError::unavailable(other.to_string()),
    }
}

/// A revision that the server has not reached.
pub(crate) fn too_large_version(requested: Revision, newest: Revision) -> StatusError {
    let mut error = StatusError::timeout(format!("Too large resource version: {requested}, current: {newest}"));
    let cause = api::k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause {
        message: Some("Too large resource version".to_owned()),
        reason: Some("ResourceVersionTooLarge".to_owned()),
        ..Default::default()
    };
    error.details = Some(Box::new(api::k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails {
        causes: Some(vec![cause]),
        retry_after_seconds: Some(1),
        ..Default::default()
    }));
    error
}
