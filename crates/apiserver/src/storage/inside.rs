//! The objects as the server's own parts see them: authentication, admission and bootstrap, none of which asks itself.

use std::sync::Arc;

use api::{Value, meta, status::StatusError};
use futures::future::BoxFuture;
use store::Range;

use crate::{
    Core,
    admission::Reader,
    auth::authn::Lookup,
    bootstrap::Objects,
    storage::{core::store_error, mirror::Mirror, object},
};

/// After so many decoded objects others get their turn on this thread.
const AT_ONCE: usize = 64;

/// Reads and writes straight through the core.
pub struct Inside {
    core: Arc<Core>,
    /// Live copies of kinds that are looked up on many requests and of which there are few.
    mirrors: Vec<Arc<Mirror>>,
}

impl Inside {
    /// Without copies: for what is done before requests come.
    pub fn new(core: Arc<Core>) -> Self {
        Inside { core, mirrors: Vec::new() }
    }

    /// With copies of these kinds, complete when this returns.
    pub async fn with_mirrors(core: Arc<Core>, kinds: &[(&str, &str)]) -> Result<Self, StatusError> {
        let mut mirrors = Vec::new();
        for (group, plural) in kinds {
            mirrors.push(core.mirror(&core.definition(group, plural)?).await?);
        }
        Ok(Inside { core, mirrors })
    }

    fn mirror(&self, group: &str, plural: &str) -> Option<&Mirror> {
        let of = |mirror: &&Arc<Mirror>| mirror.definition.plural == plural && mirror.definition.group == group;
        self.mirrors.iter().find(of).map(|mirror| &**mirror)
    }
}

impl Lookup for Inside {
    fn get<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Value>>, StatusError>> {
        // A copy may lag; what it does not have (yet) is looked up below.
        if let Some(object) = self.mirror(group, plural).and_then(|mirror| mirror.get(namespace, name)) {
            return Box::pin(std::future::ready(Ok(Some(object))));
        }
        Box::pin(async move {
            let definition = self.core.definition(group, plural)?;
            match self.core.get(&definition, namespace, name).await {
                Ok(object) => Ok(Some(Arc::new(object))),
                Err(error) if error.code == 404 => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

impl Reader for Inside {
    fn list<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Arc<Value>>, StatusError>> {
        Box::pin(async move {
            if let Some(mirror) = self.mirror(group, plural).filter(|_| namespace.is_empty()) {
                // Lists of admission tell what is usual, and may lag as upstream's caches may.
                return Ok(mirror.all());
            }
            let definition = self.core.definition(group, plural)?;
            let range = Range::prefix(&object::key(&definition, namespace, ""));
            let page = self.core.store.range(range).await.map_err(store_error)?;
            let mut objects = Vec::with_capacity(page.entries.len());
            for entries in page.entries.chunks(AT_ONCE) {
                objects.extend(entries.iter().map(|e| Arc::new(object::of_entry(&definition, e))));
                tokio::task::yield_now().await;
            }
            Ok(objects)
        })
    }
}

impl Objects for Inside {
    fn create<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        object: Value,
    ) -> BoxFuture<'a, Result<Arc<Value>, StatusError>> {
        Box::pin(async move {
            let definition = self.core.definition(group, plural)?;
            self.core.create(&definition, object).await.map(Arc::new)
        })
    }

    fn update<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        object: Value,
    ) -> BoxFuture<'a, Result<Arc<Value>, StatusError>> {
        Box::pin(async move {
            let definition = self.core.definition(group, plural)?;
            let (namespace, name) = (meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
            let change = |present: &mut Value| {
                if meta::resource_version(present) != meta::resource_version(&object) {
                    return Err(StatusError::modified(group, plural, &name));
                }
                *present = object.clone();
                Ok(true)
            };
            self.core.update(&definition, &namespace, &name, api::kind::Target::Object, change).await.map(Arc::new)
        })
    }
}
