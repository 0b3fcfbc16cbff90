//! Which changes of which kinds lead to which keys.

use std::{
    any::TypeId,
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use client::{Cache, Caches, Change, Following, Key, Kind};
use futures::FutureExt;
use tokio::task::JoinSet;

use crate::{
    act::{Progress, Progresses},
    ownership::controller_of,
    queue::{Queue, panic_text},
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
    follows: Vec<Following>,
    tasks: JoinSet<()>,
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
            follows: Vec::new(),
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
        let fed = Fed { keys: Box::new(keys), caches: self.caches.clone(), queue: self.queue.clone() };
        self.follows.push(fed.by(&cache));
        self.read_from(cache)
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
    caches: Caches,
    queue: Arc<Queue>,
}

impl<C: Kind> Fed<C> {
    fn add(&self, change: &Change<C>) {
        (self.keys)(change, &self.caches).into_iter().for_each(|key| self.queue.add(key));
    }

    /// The keys are found on the task that keeps the cache, which goes on whatever becomes of them.
    fn by(self, cache: &Cache<C>) -> Following {
        cache.follow(move |change| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.add(change))) {
                let panic = panic_text(&*panic);
                tracing::error!(kind = C::KIND, key = %change.key, panic, "panicked, a change leads to no key");
            }
        })
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

    fn watches() -> (Watches<Service>, Arc<Cache<Endpoints>>, Arc<Queue>) {
        let silent = tower::service_fn(|_: http::Request<client::Body>| {
            std::future::pending::<Result<http::Response<client::Body>, std::convert::Infallible>>()
        });
        let caches = Caches::new(client::in_process(silent));
        let queue = Queue::usual("test");
        let cache = caches.of::<Endpoints>();
        (Watches::new(caches, queue.clone(), |_| true), cache, queue)
    }

    fn endpoints(number: u64) -> String {
        format!(r#"{{"metadata": {{"name": "e{number}", "resourceVersion": "{number}"}}}}"#)
    }

    /// More changes at once than a subscriber may lag behind, of objects whose Services do not exist (any more).
    #[tokio::test]
    async fn every_change_leads_to_its_key_until_the_controller_ends() {
        const CHANGES: u64 = 3000;
        let (mut watches, cache, queue) = watches();
        watches.changed::<Endpoints>(|change, _| vec![change.key.clone()]);
        for number in 1..=CHANGES {
            assert_eq!(cache.apply(&endpoints(number)).unwrap(), number);
        }
        assert_eq!(queue.len(), CHANGES as usize);
        drop(watches);
        cache.apply(&endpoints(CHANGES + 1)).unwrap();
        assert_eq!(queue.len(), CHANGES as usize, "nobody works it off");
    }

    #[tokio::test]
    async fn a_panic_holds_up_neither_the_cache_nor_others() {
        let (mut watches, cache, queue) = watches();
        watches.changed::<Endpoints>(|change, _| match change.key.name.as_str() {
            "e1" => panic!("on purpose"),
            _ => vec![change.key.clone()],
        });
        watches.changed::<Endpoints>(|change, _| vec![Key::new("other", &change.key.name)]);
        for number in 1..=2 {
            assert_eq!(cache.apply(&endpoints(number)).unwrap(), number);
        }
        assert_eq!((cache.len(), cache.revision(), queue.len()), (2, 2, 3));
    }
}
