//! The objects of one kind in their type, read and written one at a time. Requests and answers are [`rest`]'s; here
//! only the types are added, so that little code is compiled for each kind.

use std::marker::PhantomData;

use api::object::{Kind, Object};
use json::Value;

use crate::{
    Client, Error,
    reflector::{One, reflect},
    rest::{self, Collection, DeleteOptions, Form, Resource, Verb},
};

/// The objects of a kind in one namespace, or in all.
#[derive(Clone)]
pub struct Api<K> {
    client: Client,
    resource: Resource,
    namespace: String,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Api<K> {
    /// Of a kind without namespaces, or in all namespaces.
    pub fn all(client: Client) -> Self {
        Self::namespaced(client, "")
    }

    pub fn namespaced(client: Client, namespace: &str) -> Self {
        Api { client, resource: Resource::of::<K>(), namespace: namespace.to_owned(), kind: PhantomData }
    }

    pub async fn get(&self, name: &str) -> Result<K, Error> {
        let path = self.resource.path(&self.namespace, name, "");
        decoded(&rest::read(&self.client, &path, Form::Whole).await?)
    }

    /// The object, or `None` when there is none of that name.
    pub async fn find(&self, name: &str) -> Result<Option<K>, Error> {
        rest::found(self.get(name).await)
    }

    /// The objects that a query such as `[("labelSelector", "a=b")]` takes; an empty one takes all.
    pub async fn list(&self, query: &[(&str, &str)]) -> Result<Vec<K>, Error> {
        let path = rest::with_query(self.resource.path(&self.namespace, "", ""), query);
        let answer = rest::read(&self.client, &path, Form::Whole).await?;
        rest::page(&answer)?.items.into_iter().map(|item| K::from_json(item.get()).map_err(Error::Decode)).collect()
    }

    pub async fn create(&self, object: &K) -> Result<K, Error> {
        self.write("", "", Verb::Create(object.to_value())).await
    }

    /// Creates what a subresource takes, such as a TokenRequest of a ServiceAccount, and returns what it gives.
    pub async fn create_below<T: Object>(&self, name: &str, subresource: &str, object: &T) -> Result<T, Error> {
        let verb = Verb::Create(object.to_value());
        decoded(&rest::send(&self.client, &self.resource, &self.namespace, name, subresource, &verb).await?)
    }

    /// Replaces the object, or one of its subresources (`status`, `approval`).
    pub async fn replace(&self, name: &str, subresource: &str, object: &K) -> Result<K, Error> {
        self.write(name, subresource, Verb::Update(object.to_value())).await
    }

    pub async fn merge_patch(&self, name: &str, subresource: &str, patch: Value) -> Result<K, Error> {
        self.write(name, subresource, Verb::MergePatch(patch)).await
    }

    pub async fn strategic_patch(&self, name: &str, subresource: &str, patch: Value) -> Result<K, Error> {
        self.write(name, subresource, Verb::StrategicPatch(patch)).await
    }

    pub async fn delete(&self, name: &str, options: DeleteOptions) -> Result<(), Error> {
        let verb = Verb::Delete(options);
        rest::write(&self.client, &self.resource, &self.namespace, name, "", &verb).await.map(drop)
    }

    async fn write(&self, name: &str, subresource: &str, verb: Verb) -> Result<K, Error> {
        decoded(&rest::send(&self.client, &self.resource, &self.namespace, name, subresource, &verb).await?)
    }

    /// Watches one object and returns its state as soon as `done` holds; `None` stands for an object that is gone.
    pub async fn wait(&self, name: &str, done: impl Fn(Option<&K>) -> bool + Send + Sync) -> Option<K> {
        let collection = Collection::one(self.resource.clone(), &self.namespace, name);
        let (found, mut state) = tokio::sync::watch::channel(None);
        let sink = One::new(move |object| drop(found.send(Some(object))));
        tokio::select! {
            () = reflect(&self.client, &collection, &sink) => None,
            seen = state.wait_for(|seen: &Option<Option<K>>| seen.as_ref().is_some_and(|o| done(o.as_ref()))) => {
                seen.ok().and_then(|seen| seen.clone()).flatten()
            }
        }
    }
}

fn decoded<T: Object>(text: &[u8]) -> Result<T, Error> {
    T::from_json(rest::text(text)?).map_err(Error::Decode)
}
