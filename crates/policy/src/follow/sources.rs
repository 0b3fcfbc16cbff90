//! The policies of all kinds, as the API server shows them, and their changes.

use std::sync::Arc;

use client::{Cache, Caches, Change, Changes, Client, Key, Kind};
use k8s_openapi::api::{core::v1::ObjectReference, networking::v1::NetworkPolicy};
use tokio::{
    sync::broadcast::{
        Receiver,
        error::{RecvError, TryRecvError},
    },
    task::JoinSet,
};

use crate::{
    admin::{self, custom::Custom, served},
    kind::{PolicyKind, PolicyName},
    rule::Policy,
};

/// The policies of one kind.
struct Source<K> {
    kind: PolicyKind,
    cache: Arc<Cache<K>>,
    changes: Changes<K>,
}

/// The name of a policy that changed; `None` when changes were lost.
pub type Changed = Option<PolicyName>;

impl<K: Kind> Source<K> {
    fn new(kind: PolicyKind, cache: Arc<Cache<K>>) -> Self {
        Source { kind, changes: cache.subscribe(), cache }
    }

    fn named(&self, change: Result<Arc<Change<K>>, RecvError>) -> Changed {
        change.ok().map(|change| PolicyName::new(self.kind, change.key.clone()))
    }

    async fn change(&mut self) -> Changed {
        let change = self.changes.recv().await;
        self.named(change)
    }

    fn there(&mut self) -> Option<Changed> {
        there(&mut self.changes).map(|change| self.named(change))
    }

    fn names(&self) -> impl Iterator<Item = PolicyName> {
        self.cache.list().into_iter().map(|policy| PolicyName::new(self.kind, Key::of(&*policy)))
    }
}

/// The change that is there already, as from `recv`.
pub fn there<T: Clone>(from: &mut Receiver<T>) -> Option<Result<T, RecvError>> {
    match from.try_recv() {
        Ok(change) => Some(Ok(change)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Lagged(count)) => Some(Err(RecvError::Lagged(count))),
        Err(TryRecvError::Closed) => None,
    }
}

pub struct Sources {
    of_namespaces: Source<NetworkPolicy>,
    of_administrators: [Source<Custom>; 3],
    /// Whether addresses of domains are learned.
    learns_names: bool,
    /// The caches are kept current while these live.
    _caches: Caches,
    _tasks: JoinSet<()>,
}

impl Sources {
    /// Follows all kinds of policies.
    pub fn follow(client: &Client, learns_names: bool) -> Self {
        let caches = Caches::new(client.clone());
        let mut tasks = JoinSet::new();
        let of_administrators = PolicyKind::OF_ADMINISTRATORS.map(|kind| {
            let cache = Arc::<Cache<Custom>>::default();
            tasks.spawn(served::follow(client.clone(), kind.resource(), cache.clone()));
            Source::new(kind, cache)
        });
        Sources {
            of_namespaces: Source::new(PolicyKind::Network, caches.of::<NetworkPolicy>()),
            of_administrators,
            learns_names,
            _caches: caches,
            _tasks: tasks,
        }
    }

    /// Returns when it is known which policies there are.
    pub async fn synced(&self) {
        self.of_namespaces.cache.synced().await;
        for source in &self.of_administrators {
            source.cache.synced().await;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.of_namespaces.cache.is_empty() && !self.has_administrators()
    }

    /// Whether an administrator wrote any.
    pub fn has_administrators(&self) -> bool {
        self.of_administrators.iter().any(|source| !source.cache.is_empty())
    }

    pub fn names(&self) -> Vec<PolicyName> {
        let of_administrators = self.of_administrators.iter().flat_map(Source::names);
        self.of_namespaces.names().chain(of_administrators).collect()
    }

    fn custom(&self, name: &PolicyName) -> Option<Arc<Custom>> {
        self.of_administrators.iter().find(|source| source.kind == name.kind)?.cache.get(&name.key)
    }

    pub fn get(&self, name: &PolicyName) -> Option<Policy> {
        match name.kind {
            PolicyKind::Network => self.of_namespaces.cache.get(&name.key).map(|policy| Policy::of(&policy)),
            kind => self.custom(name).map(|policy| admin::read_as(kind, &policy.spec, self.learns_names)),
        }
    }

    /// How events refer to a policy.
    pub fn reference(&self, name: &PolicyName) -> ObjectReference {
        let resource = name.kind.resource();
        let metadata = match name.kind {
            PolicyKind::Network => self.of_namespaces.cache.get(&name.key).map(|policy| policy.metadata.clone()),
            _ => self.custom(name).map(|policy| k8s_openapi::Metadata::metadata(&*policy).clone()),
        };
        let metadata = metadata.unwrap_or_default();
        ObjectReference {
            api_version: Some(resource.api_version()),
            kind: Some(resource.kind),
            namespace: metadata.namespace,
            name: Some(name.key.name.clone()),
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            field_path: None,
        }
    }

    pub async fn change(&mut self) -> Changed {
        let [admin, baseline, cluster] = &mut self.of_administrators;
        tokio::select! {
            change = self.of_namespaces.change() => change,
            change = admin.change() => change,
            change = baseline.change() => change,
            change = cluster.change() => change,
        }
    }

    /// The change that is there already.
    pub fn there(&mut self) -> Option<Changed> {
        self.of_namespaces.there().or_else(|| self.of_administrators.iter_mut().find_map(Source::there))
    }
}
