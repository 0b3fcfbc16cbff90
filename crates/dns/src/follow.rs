//! Keeps what is answered as the API has it: Services, namespaces, Pods where they are verified, and the Corefile.
//! Reads: Service, EndpointSlice, Namespace, Pod, ConfigMap `kube-system/coredns`.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use client::{
    Cache, Caches, Change, Changes, EventKind, EventRecorder, Key,
    slices::{Changed, Services},
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use parking_lot::RwLock;
use tokio::{sync::broadcast::error::RecvError, task::JoinSet};

use crate::{
    Config,
    cluster::{self, Cluster},
    corefile, pages,
    plugins::{Around, Chains},
};

/// Where the Corefile is, as kubeadm has it.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "coredns";
const KEY: &str = "Corefile";

/// Keeps the names of Services.
pub async fn services(caches: &Caches, cluster: &RwLock<Cluster>) {
    let mut services = Services::follow(caches);
    services.synced().await;
    let mut changed = Changed::Any;
    loop {
        let keys: BTreeSet<Key> = match changed {
            Changed::These(keys) => keys,
            Changed::Any => services.keys().into_iter().chain(cluster.read().owners()).collect(),
        };
        for key in keys {
            let entry = services.get(&key).and_then(|(service, slices)| cluster::entry(&service, &slices));
            cluster.write().set_service(&key, entry);
        }
        cluster.write().synced_services();
        changed = services.changed().await;
    }
}

/// Keeps the namespaces that are there.
pub async fn namespaces(caches: &Caches, cluster: &RwLock<Cluster>) {
    let namespaces = caches.of::<Namespace>();
    let mut changes = namespaces.subscribe();
    namespaces.synced().await;
    let all = || namespaces.list().iter().filter_map(|n| n.metadata.name.clone()).collect();
    cluster.write().set_namespaces(all());
    loop {
        match changes.recv().await {
            Ok(change) => cluster.write().set_namespace(&change.key.name, change.new.is_some()),
            Err(RecvError::Lagged(_)) => cluster.write().set_namespaces(all()),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Keeps the addresses of Pods.
async fn pods(caches: &Caches, cluster: &RwLock<Cluster>) {
    let pods = caches.of::<Pod>();
    let mut changes = pods.subscribe();
    pods.synced().await;
    reread(&pods, cluster);
    loop {
        match changes.recv().await {
            Ok(change) => moved(&change, cluster),
            Err(RecvError::Lagged(_)) => reread(&pods, cluster),
            Err(RecvError::Closed) => return,
        }
    }
}

fn moved(change: &Change<Pod>, cluster: &RwLock<Cluster>) {
    let addresses =
        |pod: &Option<Arc<Pod>>| -> Vec<IpAddr> { pod.as_deref().map(cluster::pod_addresses).unwrap_or_default() };
    let (from, to) = (addresses(&change.old), addresses(&change.new));
    if from != to {
        cluster.write().move_pod(&change.key, &from, &to);
    }
}

fn reread(pods: &Cache<Pod>, cluster: &RwLock<Cluster>) {
    let mut cluster = cluster.write();
    cluster.forget_pods();
    for pod in pods.list() {
        cluster.move_pod(&Key::of(&*pod), &[], &cluster::pod_addresses(&pod));
    }
}

/// The Corefile in force, and the means to read another.
pub struct Corefile {
    pub chains: Arc<RwLock<Arc<Chains>>>,
    pub around: Around,
    domain: String,
    resolv_conf: String,
    events: EventRecorder,
}

impl Corefile {
    /// Answers as a cluster without a Corefile of its own does.
    pub fn standard(config: &Config, around: Around, events: EventRecorder) -> Result<Self, corefile::Error> {
        let resolv_conf = config.resolv_conf_without_us();
        let near = corefile::Around { resolv_conf: resolv_conf.clone(), ..corefile::Around::default() };
        let blocks = corefile::parse(&corefile::standard(&config.domain), &near)?;
        let chains = Arc::new(RwLock::new(Chains::new(blocks, around.clone())));
        Ok(Corefile { chains, around, domain: config.domain.clone(), resolv_conf, events })
    }

    /// Follows the ConfigMap. A file that is wrong is told, and the last good one stays.
    pub async fn follow(self, caches: &Caches) {
        let maps = caches.one::<ConfigMap>(NAMESPACE, NAME);
        let mut changes = maps.subscribe();
        let mut running = JoinSet::new();
        self.pods_if_wanted(caches, &mut running);
        maps.synced().await;
        let mut read = None;
        let first = self.chains.read().clone();
        let mut shown = pages::serve(&first, &self.around).await;
        loop {
            let map = maps.get(&Key::new(NAMESPACE, NAME));
            let data = map.as_ref().and_then(|m| m.data.clone()).filter(|d| d.contains_key(KEY));
            if data != read {
                if let Some(chains) = self.read(map.as_deref(), data.as_ref()) {
                    // The pages of before must have left their ports.
                    shown.shutdown().await;
                    *self.chains.write() = chains.clone();
                    shown = pages::serve(&chains, &self.around).await;
                    self.pods_if_wanted(caches, &mut running);
                }
                read = data;
            }
            if !next(&mut changes).await {
                return;
            }
        }
    }

    fn pods_if_wanted(&self, caches: &Caches, running: &mut JoinSet<()>) {
        let verifies = self.chains.read().verifies_pods();
        if verifies && running.is_empty() {
            let (caches, cluster) = (caches.clone(), self.around.cluster.clone());
            running.spawn(async move { pods(&caches, &cluster).await });
        } else if !verifies {
            running.abort_all();
            *running = JoinSet::new();
            self.around.cluster.write().forget_pods();
        }
    }

    /// The chains that a Corefile makes; `None` when it is wrong.
    fn read(
        &self,
        map: Option<&ConfigMap>,
        data: Option<&std::collections::BTreeMap<String, String>>,
    ) -> Option<Arc<Chains>> {
        let files = data.cloned().unwrap_or_default();
        let text = files.get(KEY).cloned().unwrap_or_else(|| corefile::standard(&self.domain));
        let near = corefile::Around { resolv_conf: self.resolv_conf.clone(), files };
        match corefile::parse(&text, &near) {
            Ok(blocks) => {
                tracing::info!(blocks = blocks.len(), "the Corefile of cluster DNS was read");
                Some(Chains::new(blocks, self.around.clone()))
            }
            Err(error) => {
                tracing::error!(%error, "the Corefile of cluster DNS is wrong; the one before stays in force");
                if let Some(map) = map {
                    let message = format!("{error}; cluster DNS answers as before");
                    self.events.about(map, EventKind::Warning, "InvalidCorefile", &message);
                }
                None
            }
        }
    }
}

/// Waits for a change; lost ones are changes. `false` when there will be none.
async fn next<K>(changes: &mut Changes<K>) -> bool {
    !matches!(changes.recv().await, Err(RecvError::Closed))
}
