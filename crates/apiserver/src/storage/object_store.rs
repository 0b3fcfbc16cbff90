//! The objects of all kinds over the store: reads, and the writes that the server makes for itself. Those ask no
//! authentication, authorization or admission, and otherwise pass the steps of every write: defaults, strategy, validation,
//! commit.

use std::sync::Arc;

use api::{
    Value,
    kind::{Definition, Target, TypedObject},
    status::StatusError,
};
use store::{Entry, Range, Revision, Store};

use crate::{
    storage::{
        commit::{self, Backing, Companions, Swap},
        conversion::Conversions,
        error::{object_error, store_error},
        informer::{EventHandler, Informer},
        kinds::Kinds,
        measured::Measured,
        object,
        recent::Recent,
        strategy,
    },
    watch_dispatch::WatchDispatch,
};

/// The objects of all kinds over the store.
pub struct ObjectStore {
    pub store: Arc<dyn Store>,
    pub kinds: Arc<Kinds>,
    /// The metrics of `store`.
    pub measured: Arc<Measured>,
    pub watches: Arc<WatchDispatch>,
    pub(crate) conversions: Arc<Conversions>,
    recent: Arc<Recent>,
}

fn there(entry: Option<Entry>, definition: &Definition, name: &str) -> Result<Entry, StatusError> {
    entry.ok_or_else(|| StatusError::not_found(&definition.group, &definition.plural, name))
}

impl ObjectStore {
    /// Begins to read the changes of a store, with the built-in kinds that are on when nothing is said.
    pub async fn new(store: Arc<dyn Store>) -> store::Result<Arc<ObjectStore>> {
        Self::with_kinds(store, Kinds::default()).await
    }

    /// Begins to read the changes of a store.
    pub async fn with_kinds(store: Arc<dyn Store>, kinds: Kinds) -> store::Result<Arc<ObjectStore>> {
        let kinds = Arc::new(kinds);
        let measured = Arc::new(Measured::new(store, kinds.clone()));
        let store: Arc<dyn Store> = measured.clone();
        let watches = WatchDispatch::start(store.clone(), kinds.clone()).await?;
        Ok(Arc::new(ObjectStore {
            store,
            kinds,
            measured,
            watches,
            conversions: Arc::default(),
            recent: Arc::default(),
        }))
    }

    /// The definition of a resource in any version, preferably the stored one. Built-in names are always known, also where the
    /// resource is not served: what the server itself needs, it has.
    pub fn definition(&self, group: &str, plural: &str) -> Result<Arc<Definition>, StatusError> {
        let found = self.kinds.any_version(group, plural).or_else(|| self.kinds.stored(group, plural));
        found.ok_or_else(StatusError::no_route)
    }

    /// An object as it is stored, whatever version that is.
    pub(crate) async fn entry(
        &self,
        definition: &Definition,
        namespace: &str,
        name: &str,
    ) -> Result<Entry, StatusError> {
        let found = self.store.get(&object::key(definition, namespace, name)).await;
        there(found.map_err(object_error)?.0, definition, name)
    }

    /// An object as it is known here: see [`Store::at_hand`].
    pub(crate) async fn entry_at_hand(
        &self,
        definition: &Definition,
        namespace: &str,
        name: &str,
    ) -> Result<Entry, StatusError> {
        let found = self.store.at_hand(&object::key(definition, namespace, name)).await;
        there(found.map_err(object_error)?.0, definition, name)
    }

    /// The compare-and-swap of an object as it is known here: see [`Swap::look_again`]. A dry run commits nothing that would
    /// prove it the newest.
    pub(crate) async fn swap_at_hand<'a>(
        &'a self,
        definition: &'a Definition,
        (namespace, name): (&str, &str),
        dry_run: bool,
    ) -> Result<Swap<'a>, StatusError> {
        if dry_run {
            return Ok(self.swap(definition, self.entry(definition, namespace, name).await?));
        }
        let key = object::key(definition, namespace, name);
        match self.store.at_hand(&key).await.map_err(object_error)? {
            (Some(entry), newest) => Ok(self.swap(definition, entry).of_age(newest)),
            (None, true) => Err(StatusError::not_found(&definition.group, &definition.plural, name)),
            (None, false) => Ok(self.swap(definition, self.entry(definition, namespace, name).await?)),
        }
    }

    /// One object, with its resourceVersion.
    pub async fn get(&self, definition: &Definition, namespace: &str, name: &str) -> Result<Value, StatusError> {
        let entry = self.entry(definition, namespace, name).await?;
        Ok(object::of_entry(definition, &self.conversions.shown_one(definition, entry).await?))
    }

    /// All objects of a kind as they are stored, in one namespace or (empty) in all.
    pub(crate) async fn entries(&self, definition: &Definition, namespace: &str) -> Result<Vec<Entry>, StatusError> {
        let range = Range::prefix(&object::key(definition, namespace, ""));
        Ok(self.store.range(range).await.map_err(store_error)?.entries)
    }

    /// All objects of a kind, in one namespace or (empty) in all.
    pub async fn list(&self, definition: &Definition, namespace: &str) -> Result<Vec<Value>, StatusError> {
        let entries = self.conversions.shown(definition, self.entries(definition, namespace).await?).await?;
        Ok(entries.iter().map(|entry| object::of_entry(definition, entry)).collect())
    }

    /// Creates an object of the server's own.
    pub async fn create(&self, definition: &Definition, mut object: Value) -> Result<(), StatusError> {
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion", Value::from(definition.api_version()));
            map.insert("kind", Value::from(definition.kind.clone()));
        }
        definition.default(&mut object, || clock::now_seconds().to_string());
        let checked = strategy::before_create(definition, &mut object)?;
        self.insert_with(definition, &Arc::new(object), None, checked.typed).await.map(|_| ())
    }

    /// Reads, changes and writes an object until no one else writes in between. `change` returns false to leave it.
    pub async fn update(
        &self,
        definition: &Definition,
        (namespace, name): (&str, &str),
        target: Target,
        mut change: impl FnMut(&mut Value) -> Result<bool, StatusError> + Send,
    ) -> Result<(), StatusError> {
        let mut swap = self.swap(definition, self.entry(definition, namespace, name).await?);
        loop {
            let old = swap.read().await?;
            let mut new = old.clone();
            if !change(&mut new)? {
                return Ok(());
            }
            definition.strategy.prepare_update(&mut new, &old, target);
            strategy::check_update(definition, &new, &old, target)?;
            if swap.replace(new).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Commits a new object with what it takes, and hands it over in its type; `None` when the first cannot be had.
    pub(crate) async fn insert_with(
        &self,
        definition: &Definition,
        object: &Arc<Value>,
        with: Option<Box<dyn Companions>>,
        typed: Option<TypedObject>,
    ) -> Result<Option<Entry>, StatusError> {
        commit::insert_with(self.backing(), definition, (object, typed), with).await
    }

    /// The compare-and-swap of an object that `entry` is the state of.
    pub(crate) fn swap<'a>(&'a self, definition: &'a Definition, entry: Entry) -> Swap<'a> {
        Swap::new(self.backing(), definition, entry)
    }

    fn backing(&self) -> Backing<'_> {
        Backing { store: &*self.store, conversions: &self.conversions, recent: &self.recent }
    }

    /// A live copy of all objects of a kind; all callers share one.
    pub async fn informer(&self, definition: &Arc<Definition>) -> Result<Arc<Informer>, StatusError> {
        let same = |i: &Arc<Informer>| Arc::ptr_eq(&i.definition, definition) && !i.has_handler();
        let known = self.watches.informers().into_iter().find(same);
        if let Some(known) = known {
            return Ok(known);
        }
        self.start(Informer::new(definition.clone(), None, self.recent.clone())).await
    }

    /// Tells the handler of all objects of a kind as they are now, and of every change from here on.
    pub async fn add_event_handler(
        &self,
        definition: &Arc<Definition>,
        handler: Arc<dyn EventHandler>,
    ) -> Result<(), StatusError> {
        self.start(Informer::new(definition.clone(), Some(handler), self.recent.clone())).await.map(|_| ())
    }

    async fn start(&self, informer: Informer) -> Result<Arc<Informer>, StatusError> {
        let informer = Arc::new(informer);
        self.watches.add_informer(informer.clone());
        informer.fill(&*self.store).await.map_err(store_error)?;
        Ok(informer)
    }

    /// Waits until informers and watches have everything that is committed now.
    pub async fn caught_up(&self) -> Result<Revision, StatusError> {
        let revision = self.store.revision().await.map_err(store_error)?;
        if !self.watches.reached(revision, &*self.store).await {
            return Err(StatusError::timeout("the caches did not catch up with the store in time"));
        }
        Ok(revision)
    }
}
