//! A small world for tests: objects that parts of the server look up.

use std::{collections::BTreeMap, sync::Arc};

use api::{Value, meta, status::StatusError};
use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::{admission::Reader, auth::authn::Lookup};

/// Objects by `plural/namespace/name`.
#[derive(Default)]
pub struct Objects(pub Mutex<BTreeMap<String, Arc<Value>>>);

pub fn key(plural: &str, object: &Value) -> String {
    format!("{plural}/{}/{}", meta::namespace(object), meta::name(object))
}

impl Objects {
    pub fn of(objects: Vec<(&str, Value)>) -> Self {
        let all = objects.into_iter().map(|(plural, object)| (key(plural, &object), Arc::new(object)));
        Objects(Mutex::new(all.collect()))
    }
}

impl Lookup for Objects {
    fn get<'a>(
        &'a self,
        _: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Value>>, StatusError>> {
        let found = self.0.lock().get(&format!("{plural}/{namespace}/{name}")).cloned();
        Box::pin(std::future::ready(Ok(found)))
    }
}

impl Reader for Objects {
    fn list<'a>(
        &'a self,
        _: &'a str,
        plural: &'a str,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Arc<Value>>, StatusError>> {
        let start = if namespace.is_empty() { format!("{plural}/") } else { format!("{plural}/{namespace}/") };
        let all = self.0.lock().iter().filter(|(key, _)| key.starts_with(&start)).map(|(_, o)| o.clone()).collect();
        Box::pin(std::future::ready(Ok(all)))
    }
}
