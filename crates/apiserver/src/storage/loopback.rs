//! How the server's own parts look objects up by name, and change a few: authentication and admission, which need no
//! authorization.

use std::sync::Arc;

use api::{
    Value,
    kind::{Definition, Target},
    status::StatusError,
};

use crate::storage::{informer::Informer, object, object_store::ObjectStore};

/// Decoded objects between which others get their turn on this thread.
const AT_ONCE: usize = 64;

/// Reads from live copies where there are some, and else from the store.
///
/// A copy lags the store by milliseconds. An object that it does not have is looked up in the store, so that nothing
/// that exists is missed; one that was deleted in these milliseconds is still found. That is no weaker than the rest:
/// an accepted token is believed for ten seconds, and upstream's token checks and admission read from informers in this
/// way too.
pub struct Loopback {
    objects: Arc<ObjectStore>,
    informers: Vec<Arc<Informer>>,
}

impl Loopback {
    /// With live copies of these kinds, complete when this returns: kinds that are looked up on many requests and of
    /// which there are few.
    pub async fn new(objects: Arc<ObjectStore>, kinds: &[(&str, &str)]) -> Result<Self, StatusError> {
        let mut informers = Vec::new();
        for (group, plural) in kinds {
            informers.push(objects.informer(&objects.definition(group, plural)?).await?);
        }
        Ok(Loopback { objects, informers })
    }

    /// Creates an object of the server's own, with its kind's defaults and rules.
    pub async fn create(&self, (group, plural): (&str, &str), object: Value) -> Result<(), StatusError> {
        self.objects.create(&*self.objects.definition(group, plural)?, object).await
    }

    /// Changes an object or its status until nobody else changes it in between; `change` returns false to leave it.
    pub async fn update(
        &self,
        (group, plural): (&str, &str),
        target: Target,
        (namespace, name): (&str, &str),
        change: impl FnMut(&mut Value) -> Result<bool, StatusError> + Send,
    ) -> Result<(), StatusError> {
        let definition = self.objects.definition(group, plural)?;
        self.objects.update(&definition, (namespace, name), target, change).await
    }

    fn informer(&self, group: &str, plural: &str) -> Option<&Informer> {
        let of = |i: &&Arc<Informer>| i.definition.plural == plural && i.definition.group == group;
        self.informers.iter().find(of).map(|informer| &**informer)
    }

    /// The resource of a kind.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Definition>> {
        self.objects.kinds.table().by_kind(group, version, kind).cloned()
    }

    /// Resources with the same objects as this one, in other versions and groups.
    pub fn equivalents(&self, definition: &Definition) -> Vec<Arc<Definition>> {
        let other = |d: &&Arc<Definition>| {
            d.storage_prefix == definition.storage_prefix
                && (d.group != definition.group || d.version != definition.version)
        };
        self.objects.kinds.table().all().iter().filter(other).cloned().collect()
    }

    /// An object of one version as another version of the same objects shows it.
    pub async fn between(&self, from: &Definition, to: &Definition, object: &Value) -> Result<Value, StatusError> {
        self.objects.conversions.between(from, to, object).await
    }

    pub async fn get(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, StatusError> {
        if let Some(object) = self.informer(group, plural).and_then(|informer| informer.get(namespace, name)) {
            return Ok(Some(object));
        }
        Ok(self.live(group, plural, namespace, name).await?.map(Arc::new))
    }

    /// The object in the version of the definition.
    pub async fn get_in(
        &self,
        definition: &Definition,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, StatusError> {
        if let Some(object) = self.informer_in(definition).and_then(|informer| informer.get(namespace, name)) {
            return Ok(Some(object));
        }
        found(self.objects.get(definition, namespace, name).await).map(|object| object.map(Arc::new))
    }

    fn informer_in(&self, definition: &Definition) -> Option<&Informer> {
        let informer = self.informer(&definition.group, &definition.plural);
        informer.filter(|informer| informer.definition.version == definition.version)
    }

    /// The object as the store has it.
    pub async fn live(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, StatusError> {
        let definition = self.objects.definition(group, plural)?;
        found(self.objects.get(&definition, namespace, name).await)
    }

    /// All objects of a kind, in one namespace or (with an empty one) in all.
    pub async fn list(&self, group: &str, plural: &str, namespace: &str) -> Result<Vec<Arc<Value>>, StatusError> {
        if let Some(informer) = self.informer(group, plural) {
            return Ok(if namespace.is_empty() { informer.all() } else { informer.all_in(namespace) });
        }
        self.list_in(&*self.objects.definition(group, plural)?, namespace).await
    }

    /// All objects of a kind, in the version of the definition.
    pub async fn list_in(&self, definition: &Definition, namespace: &str) -> Result<Vec<Arc<Value>>, StatusError> {
        if let Some(informer) = self.informer_in(definition) {
            return Ok(if namespace.is_empty() { informer.all() } else { informer.all_in(namespace) });
        }
        let entries = self.objects.entries(definition, namespace).await?;
        let entries = self.objects.conversions.shown(definition, entries).await?;
        let mut objects = Vec::with_capacity(entries.len());
        for entries in entries.chunks(AT_ONCE) {
            objects.extend(entries.iter().map(|e| Arc::new(object::of_entry(definition, e))));
            tokio::task::yield_now().await;
        }
        Ok(objects)
    }
}

/// A missing object is no error.
fn found<T>(read: Result<T, StatusError>) -> Result<Option<T>, StatusError> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
