//! Objects for tests of what looks them up: in a store in memory, as they are given, without the rules of writes.

use std::sync::Arc;

use api::{Value, kind::Definition};
use store::embedded::Embedded;

use crate::storage::{loopback::Loopback, object_store::ObjectStore};

/// The kind of that name; tests need no two with one name.
pub fn kind(objects: &ObjectStore, plural: &str) -> Arc<Definition> {
    let found = objects.kinds.table().all().iter().find(|d| d.plural == plural).map(|d| d.group.clone());
    objects.definition(&found.unwrap_or_default(), plural).unwrap()
}

/// A store of these objects, each with the plural of its kind.
pub async fn store(objects: Vec<(&str, Value)>) -> Arc<ObjectStore> {
    let store = ObjectStore::new(Arc::new(Embedded::memory())).await.unwrap();
    for (plural, object) in objects {
        store.insert_with(&kind(&store, plural), &Arc::new(object), None, None).await.unwrap();
    }
    store
}

pub async fn loopback(objects: Vec<(&str, Value)>) -> Arc<Loopback> {
    Arc::new(Loopback::new(store(objects).await, &[]).await.unwrap())
}

/// Puts an object where another one may be; `None` removes that.
pub async fn put(objects: &ObjectStore, plural: &str, (namespace, name): (&str, &str), object: Option<Value>) {
    let kind = kind(objects, plural);
    let object = object.map(|mut object| {
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["name"] = name.into();
        object
    });
    match (objects.entry(&kind, namespace, name).await, object) {
        (Ok(entry), Some(object)) => drop(objects.swap(&kind, entry).replace(object).await.unwrap()),
        (Ok(entry), None) => drop(objects.swap(&kind, entry).remove().await.unwrap()),
        (Err(_), Some(object)) => drop(objects.insert_with(&kind, &Arc::new(object), None, None).await.unwrap()),
        (Err(_), None) => {}
    }
}
