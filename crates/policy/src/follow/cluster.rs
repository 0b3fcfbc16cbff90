//! The objects that policies are about, while there are policies: namespaces, Pods, and nodes where a rule asks for them.

use std::{future::pending, sync::Arc};

use client::{Cache, Caches, Change, Changes, Client};
use k8s_openapi::api::core::v1::Namespace;
use tokio::sync::broadcast::error::RecvError;

use super::sources::there;
use crate::{node::Node, pod::Pod};

/// Pods that ended have no address any more.
const WITH_ADDRESS: &str = "status.phase!=Succeeded,status.phase!=Failed";

pub struct Cluster {
    client: Client,
    pub namespaces: Arc<Cache<Namespace>>,
    namespace_changes: Changes<Namespace>,
    pub pods: Arc<Cache<Pod>>,
    pod_changes: Changes<Pod>,
    nodes: Option<Nodes>,
    /// The caches are kept current while this lives.
    _caches: Caches,
}

struct Nodes {
    cache: Arc<Cache<Node>>,
    changes: Changes<Node>,
    /// It goes when no rule asks for nodes any more.
    _caches: Caches,
}

/// One change.
pub enum News {
    Namespace(Result<Arc<Change<Namespace>>, RecvError>),
    Pod(Result<Arc<Change<Pod>>, RecvError>),
    Node(Result<Arc<Change<Node>>, RecvError>),
}

impl Cluster {
    pub async fn follow(client: &Client) -> Self {
        let caches = Caches::new(client.clone());
        let (namespaces, pods) = (caches.of::<Namespace>(), caches.selected::<Pod>(WITH_ADDRESS));
        let cluster = Cluster {
            client: client.clone(),
            namespace_changes: namespaces.subscribe(),
            pod_changes: pods.subscribe(),
            namespaces,
            pods,
            nodes: None,
            _caches: caches,
        };
        cluster.namespaces.synced().await;
        cluster.pods.synced().await;
        cluster
    }

    /// Follows nodes from now on, or no longer. Returns whether that is new.
    pub async fn with_nodes(&mut self, wanted: bool) -> bool {
        if self.nodes.is_some() == wanted {
            return false;
        }
        self.nodes = None;
        if wanted {
            let caches = Caches::new(self.client.clone());
            let cache = caches.of::<Node>();
            let nodes = Nodes { changes: cache.subscribe(), cache, _caches: caches };
            nodes.cache.synced().await;
            self.nodes = Some(nodes);
        }
        true
    }

    pub fn nodes(&self) -> Option<&Cache<Node>> {
        self.nodes.as_ref().map(|nodes| &*nodes.cache)
    }

    pub async fn news(&mut self) -> News {
        let node = async {
            match &mut self.nodes {
                Some(nodes) => nodes.changes.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            change = self.namespace_changes.recv() => News::Namespace(change),
            change = self.pod_changes.recv() => News::Pod(change),
            change = node => News::Node(change),
        }
    }

    /// The change that is there already.
    pub fn there(&mut self) -> Option<News> {
        let namespace = there(&mut self.namespace_changes).map(News::Namespace);
        let news = namespace.or_else(|| there(&mut self.pod_changes).map(News::Pod));
        news.or_else(|| there(&mut self.nodes.as_mut()?.changes).map(News::Node))
    }
}
