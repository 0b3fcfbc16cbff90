//! Which changes of which kinds lead to which keys.

use std::{
    any::TypeId,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use client::{Cache, Caches, Change, Changes, Key, Kind};
use futures::FutureExt;
use tokio::{sync::broadcast::error::RecvError, task::JoinSet};

use crate::{
    act::{Progress, Progresses},
    ownership::controller_of,
    queue::Queue,
};

/// The name of the index by controlling owner: its values are the owner's UID, or [`orphans_in`] a namespace.
pub(crate) const BY_CONTROLLER: &str = "controller";

pub(crate) fn orphans_in(namespace: &str) -> String {
    format!("orphans in {namespace}")
}

fn controller_index<K: Kind>(object: &K) -> Vec<String> {
    let namespace = object.metadata().namespace.as_deref().unwrap_or("");
    vec![controller_of(object).map_or_else(|| orphans_in(namespace), |owner| owner.uid.clone())]
}

/// Declares what a controller of objects `O` looks at.
pub struct Watches<O> {
    caches: Caches,
    primary: Arc<Cache<O>>,
    queue: Arc<Queue>,
    pub(crate) progresses: Progresses,
    pub(crate) tasks: JoinSet<()>,
    synced: BTreeMap<TypeId, Arc<dyn Progress>>,
}

impl<O: Kind> Watches<O> {
    pub(crate) fn new(caches: Caches, queue: Arc<Queue>, concerns: fn(&Change<O>) -> bool) -> Self {
        let primary = caches.of::<O>();
        let mut watches = Watches {
            caches,
            primary,
            queue,
            progresses: HashMap::new(),
            tasks: JoinSet::new(),
            synced: BTreeMap::new(),
        };
        watches.changed::<O>(move |change, _| concerns(change).then(|| change.key.clone()).into_iter().collect());
        watches
    }

    /// Objects of `C` are read, but their changes lead to nothing.
    pub fn reads<C: Kind>(&mut self) -> &mut Self {
        self.read_from(self.caches.of::<C>())
    }

    fn read_from<C: Kind>(&mut self, cache: Arc<Cache<C>>) -> &mut Self {
        self.progresses.insert(TypeId::of::<C>(), cache.clone());
        self.synced.insert(TypeId::of::<C>(), cache);
        self
    }

    /// Objects of `C` can be looked up by their controller.
    pub fn indexed<C: Kind>(&mut self) -> &mut Self {
        self.caches.of::<C>().add_index(BY_CONTROLLER, controller_index::<C>);
        self.reads::<C>()
    }

    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// A change of a `C` that an `O` controls leads to that `O`. Indexes `C` by controller.
    pub fn owned<C: Kind>(&mut self) -> &mut Self {
        self.indexed::<C>();
        self.mapped::<C>(|object, _| {
            let namespace = object.metadata().namespace.as_deref().unwrap_or("");
            let group = O::GROUP;
            let ours = controller_of(object).filter(|owner| {
                let owner_group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
                owner.kind == O::KIND && owner_group == group
            });
            ours.map(|owner| Key::new(namespace, &owner.name)).into_iter().collect()
        })
    }

    /// A `C` without controller leads to each `O` of its namespace that `selects` it.
    pub fn selected<C: Kind>(&mut self, selects: fn(&O, &C) -> bool) -> &mut Self {
        let primary = self.primary.clone();
        self.mapped::<C>(move |object, _| {
            if controller_of(object).is_some() {
                return Vec::new();
            }
            let all = primary.list_in(object.metadata().namespace.as_deref().unwrap_or(""));
            all.iter().filter(|owner| selects(owner, object)).map(|owner| Key::of(&**owner)).collect()
        })
    }

    /// A change of a `C` leads to the keys that its old and its new state map to.
    pub fn mapped<C: Kind>(&mut self, keys: impl Fn(&C, &Caches) -> Vec<Key> + Send + Sync + 'static) -> &mut Self {
        self.changed::<C>(move |change, caches| {
            let states = [&change.old, &change.new];
            states.into_iter().flatten().flat_map(|object| keys(object, caches)).collect()
        })
    }

    /// A change of a `C` leads to the keys that `keys` finds in the change itself.
    pub fn changed<C: Kind>(
        &mut self,
        keys: impl Fn(&Change<C>, &Caches) -> Vec<Key> + Send + Sync + 'static,
    ) -> &mut Self {
        self.changed_in(self.caches.of::<C>(), keys)
    }

    /// A change in this cache, which may hold only a part of a kind, leads to the keys that `keys` finds in it.
    pub fn changed_in<C: Kind>(
        &mut self,
        cache: Arc<Cache<C>>,
        keys: impl Fn(&Change<C>, &Caches) -> Vec<Key> + Send + Sync + 'static,
    ) -> &mut Self {
        self.read_from(cache.clone());
        let (queue, primary) = (self.queue.clone(), self.primary.clone());
        let all = Box::new(move || add_all(&primary, &queue));
        let fed = Fed { keys: Box::new(keys), all, caches: self.caches.clone(), queue: self.queue.clone() };
        // Boxed: a task of a type of its own would be compiled anew for each watch of each controller.
        let changes = cache.subscribe();
        self.tasks.spawn(fed.follow(cache, changes).boxed());
        self
    }

    /// A task that adds keys by itself, for as long as the controller runs.
    pub fn fed_by<F: Future<Output = ()> + Send + 'static>(&mut self, feed: impl FnOnce(Arc<Queue>) -> F) -> &mut Self {
        self.tasks.spawn(feed(self.queue.clone()).boxed());
        self
    }

    /// Returns when every cache that is read holds its first list.
    pub(crate) async fn synced(&self) {
        futures::future::join_all(self.synced.values().map(|cache| cache.clone().reached(0))).await;
    }
}

/// The keys that a change of an object `C` leads to.
type KeysOf<C> = dyn Fn(&Change<C>, &Caches) -> Vec<Key> + Send + Sync;

/// The queue that the changes of one cache feed.
struct Fed<C> {
    keys: Box<KeysOf<C>>,
    /// Adds the keys of all objects that the controller is about.
    all: Box<dyn Fn() + Send + Sync>,
    caches: Caches,
    queue: Arc<Queue>,
}

impl<C: Kind> Fed<C> {
    fn add(&self, change: &Change<C>) {
        (self.keys)(change, &self.caches).into_iter().for_each(|key| self.queue.add(key));
    }

    async fn follow(self, cache: Arc<Cache<C>>, mut changes: Changes<C>) {
        loop {
            match changes.recv().await {
                Ok(change) => self.add(&change),
                // An object in this cache may belong to a key whose own object is gone, so those keys are found anew.
                Err(RecvError::Lagged(_)) => {
                    (self.all)();
                    for object in cache.list() {
                        self.add(&Change { key: Key::of(&*object), old: None, new: Some(object) });
                    }
                }
                Err(RecvError::Closed) => return,
            }
        }
    }
}

pub(crate) fn add_all<O: Kind>(primary: &Cache<O>, queue: &Queue) {
    for object in primary.list() {
        queue.add(Key::of(&*object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Sink;
    use k8s_openapi::api::core::v1::{Endpoints, Service};

    /// More changes than a subscriber may lag behind, of objects whose Services do not exist (any more).
    #[tokio::test]
    async fn no_key_is_lost_with_its_events() {
        const CHANGES: u64 = 3000;
        let silent = tower::service_fn(|_: http::Request<client::Body>| {
            std::future::pending::<Result<http::Response<client::Body>, std::convert::Infallible>>()
        });
        let caches = Caches::new(client::in_process(silent));
        let queue = Queue::usual("test");
        let mut watches = Watches::<Service>::new(caches.clone(), queue.clone(), |_| true);
        watches.changed::<Endpoints>(|change, _| vec![change.key.clone()]);
        let cache = caches.of::<Endpoints>();
        for number in 1..=CHANGES {
            let endpoints = format!(r#"{{"metadata": {{"name": "e{number}", "resourceVersion": "{number}"}}}}"#);
            assert_eq!(cache.apply(&endpoints).unwrap(), number);
        }
        for _ in 0..CHANGES {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.len(), CHANGES as usize);
    }
}
