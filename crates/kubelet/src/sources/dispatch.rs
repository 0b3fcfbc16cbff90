//! Brings together what sources want, what the engine tells, and the workers: one per Pod, never more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{Cache, Caches, Key};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::Pod;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    task::JoinSet,
};

use crate::{
    engine::{orphans, pleg},
    kubelet::Node,
    pod::{
        admit::Refusal,
        wanted::Wanted,
        worker::{self, Handle},
    },
    sources::{manifests, mirror},
};

struct Dispatcher {
    node: Arc<Node>,
    cache: Arc<Cache<Pod>>,
    workers: BTreeMap<String, Handle>,
    ended: FuturesUnordered<BoxFuture<'static, String>>,
    /// Work beside that of the Pods: on mirrors, and clearing up.
    beside: JoinSet<()>,
    /// Static Pods by full name, and the mirrors that the API has, by full name.
    statics: BTreeMap<String, Arc<Pod>>,
    api_mirrors: BTreeMap<String, Arc<Pod>>,
    /// Pods (by uid) that were not let in: they take nothing of the node.
    refused: BTreeSet<String>,
    /// The manifests were read at least once.
    files_read: bool,
    /// The API's Pods were all taken in.
    synced: bool,
}

/// For ever.
pub async fn run(node: Arc<Node>, caches: Caches) {
    let cache = caches.selected::<Pod>(&format!("spec.nodeName={}", node.config.node_name));
    let mut changes = cache.subscribe();
    let (statics_tx, mut statics) = mpsc::channel(4);
    let _reader = node.config.manifest_dir.clone().map(|folder| {
        let name = node.config.node_name.clone();
        tokio::spawn(async move { manifests::watch(folder, name, statics_tx).await })
    });
    let _listener = tokio::spawn({
        let node = node.clone();
        async move { pleg::follow(node).await }
    });
    let mut dispatcher = Dispatcher {
        node: node.clone(),
        cache: cache.clone(),
        workers: BTreeMap::new(),
        ended: FuturesUnordered::new(),
        beside: JoinSet::new(),
        statics: BTreeMap::new(),
        api_mirrors: BTreeMap::new(),
        refused: BTreeSet::new(),
        files_read: node.config.manifest_dir.is_none(),
        synced: false,
    };
    // The node's own Pods come first: they need no API server, and have to find their place on the node.
    while !dispatcher.files_read {
        let Some(all) = statics.recv().await else { return };
        dispatcher.static_pods(all).await;
    }
    let known = async { tokio::join!(cache.synced(), node.itself.synced()) };
    tokio::pin!(known);
    loop {
        tokio::select! {
            _ = &mut known, if !dispatcher.synced => {
                dispatcher.synced = true;
                dispatcher.api_pods().await;
                dispatcher.adopt_orphans().await;
            }
            change = changes.recv(), if dispatcher.synced => match change {
                Ok(change) => match change.new {
                    Some(pod) => dispatcher.api_pod(pod).await,
                    None => if let Some(old) = change.old { dispatcher.api_gone(&old) },
                },
                Err(RecvError::Lagged(_)) => {
                    let uids = cache.list().iter().filter_map(|p| p.metadata.uid.clone()).collect();
                    dispatcher.drop_missing(&uids);
                    dispatcher.api_pods().await;
                }
                Err(RecvError::Closed) => return,
            },
            Some(all) = statics.recv() => dispatcher.static_pods(all).await,
            Some(uid) = dispatcher.ended.next() => dispatcher.forget(uid).await,
            Some(_) = dispatcher.beside.join_next() => {}
        }
    }
}

fn full_name(pod: &Pod) -> String {
    Key::of(pod).to_string()
}

impl Dispatcher {
    /// All Pods that the API has: first those that were let in before, then the others in the order of their age.
    async fn api_pods(&mut self) {
        let mut all = self.cache.list();
        let begun = |p: &Pod| p.status.as_ref().is_some_and(|s| s.start_time.is_some());
        all.sort_by_key(|p| (!begun(p), p.metadata.creation_timestamp.clone()));
        for pod in all {
            self.api_pod(pod).await;
        }
    }

    async fn api_pod(&mut self, pod: Arc<Pod>) {
        if api::rules::pod::is_mirror(&pod) {
            let name = full_name(&pod);
            self.api_mirrors.insert(name.clone(), pod);
            return self.check_mirror(&name);
        }
        self.want(Wanted::new(pod, false)).await;
    }

    fn api_gone(&mut self, pod: &Pod) {
        if api::rules::pod::is_mirror(pod) {
            let name = full_name(pod);
            self.api_mirrors.remove(&name);
            return self.check_mirror(&name);
        }
        self.remove(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    fn drop_missing(&mut self, uids: &BTreeSet<String>) {
        let missing = |(uid, handle): (&String, &Handle)| {
            (!uids.contains(uid) && !handle.wanted.borrow().is_static).then(|| uid.clone())
        };
        for uid in self.workers.iter().filter_map(missing).collect::<Vec<_>>() {
            self.remove(&uid);
        }
    }

    /// The source no longer has it: its worker ends it, and it no longer counts.
    fn remove(&mut self, uid: &str) {
        let Some(handle) = self.workers.get(uid) else { return };
        waypoint::kubelet::pod_removed(&handle.wanted.borrow().full_name());
        handle.wanted.send_if_modified(|w| !std::mem::replace(&mut w.removed, true));
        if let Some(held) = self.node.pods.lock().get_mut(uid) {
            held.removed = true;
        }
    }

    async fn want(&mut self, wanted: Wanted) {
        let (uid, name) = (wanted.uid().to_owned(), wanted.full_name());
        waypoint::kubelet::config_merge(&name);
        match self.workers.get(&uid) {
            Some(handle) => {
                self.node.pods.lock().insert(uid.clone(), wanted.clone());
                // A change of the status alone is an echo of our own report, or a readiness gate's.
                let before = handle.wanted.borrow().pod.clone();
                let gates = wanted.spec().readiness_gates.as_ref().is_some_and(|g| !g.is_empty());
                let same = before.metadata.deletion_timestamp == wanted.pod.metadata.deletion_timestamp
                    && before.metadata.deletion_grace_period_seconds
                        == wanted.pod.metadata.deletion_grace_period_seconds
                    && before.metadata.labels == wanted.pod.metadata.labels
                    && before.metadata.annotations == wanted.pod.metadata.annotations
                    && before.spec == wanted.pod.spec;
                if same && !gates {
                    waypoint::kubelet::pod_reconciled(&name);
                } else {
                    waypoint::kubelet::pod_updated(&name);
                    handle.wanted.send_replace(wanted);
                }
            }
            None => {
                waypoint::kubelet::pod_added(&name);
                let refusal = self.refusal(&wanted).await;
                if refusal.is_some() {
                    self.refused.insert(uid.clone());
                }
                self.node.pods.lock().insert(uid.clone(), wanted.clone());
                let (handle, task) = worker::spawn(self.node.clone(), wanted, refusal);
                self.workers.insert(uid.clone(), handle.clone());
                self.node.looks.lock().insert(uid.clone(), handle.look);
                self.ended.push(Box::pin(async move {
                    if let Err(error) = task.await {
                        tracing::error!(uid, %error, "a Pod's worker broke off");
                        clock::sleep(Duration::from_secs(5)).await;
                    }
                    uid
                }));
            }
        }
    }

    /// Why a new Pod is not let in. One that has begun here, or is over, is not asked again.
    async fn refusal(&mut self, wanted: &Wanted) -> Option<Refusal> {
        let begun = wanted.pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
        if begun || wanted.is_ending() || api::rules::pod::is_terminal(&wanted.pod) {
            return None;
        }
        let first = self.node.admit(wanted, None, &self.refused).err()?;
        if !first.depends_on_node() {
            return Some(first);
        }
        // The label or taint may have changed a moment ago.
        let fresh = self.node.ask_itself().await;
        self.node.admit(wanted, fresh.as_ref(), &self.refused).err()
    }

    /// A worker has ended.
    async fn forget(&mut self, uid: String) {
        self.workers.remove(&uid);
        self.refused.remove(&uid);
        self.node.looks.lock().remove(&uid);
        self.node.pods.lock().remove(&uid);
        self.node.statuses.lock().remove(&uid);
        self.node.evictions.lock().remove(&uid);
        // A Pod of the same name and uid may have come back from its file meanwhile.
        let is_it = |p: &&Arc<Pod>| p.metadata.uid.as_deref() == Some(&uid);
        if let Some(pod) = self.statics.values().find(is_it).cloned() {
            self.want(Wanted::new(pod, true)).await;
        } else if let Some(pod) = self.cache.list().iter().find(is_it).cloned()
            && pod.metadata.deletion_timestamp.is_none()
        {
            self.api_pod(pod).await;
        } else {
            self.beside.spawn(orphans::clear(self.node.clone(), uid));
        }
    }

    async fn static_pods(&mut self, all: Vec<Arc<Pod>>) {
        let fresh: BTreeMap<String, Arc<Pod>> = all.into_iter().map(|p| (full_name(&p), p)).collect();
        let before = std::mem::replace(&mut self.statics, fresh.clone());
        self.files_read = true;
        let gone = |(name, pod): (&String, &Arc<Pod>)| {
            let stays = fresh.get(name).is_some_and(|f| f.metadata.uid == pod.metadata.uid);
            if stays { None } else { pod.metadata.uid.clone() }
        };
        for uid in before.iter().filter_map(gone).collect::<Vec<_>>() {
            self.remove(&uid);
        }
        for pod in fresh.values() {
            self.want(Wanted::new(pod.clone(), true)).await;
        }
        let mirrored: Vec<String> = self.api_mirrors.keys().cloned().collect();
        for name in before.into_keys().chain(fresh.into_keys()).chain(mirrored).collect::<BTreeSet<_>>() {
            self.check_mirror(&name);
        }
    }

    /// The API shows a static Pod exactly as long as its file says so.
    fn check_mirror(&mut self, name: &str) {
        let mirror = self.api_mirrors.get(name).cloned();
        let hash =
            |p: &Pod| p.metadata.annotations.as_ref().and_then(|a| a.get(api::rules::pod::HASH_ANNOTATION).cloned());
        let wanted = self.statics.get(name).cloned();
        let client = self.node.config.client.clone();
        match (wanted, mirror) {
            (Some(pod), Some(mirror))
                if hash(&pod) == hash(&mirror) && mirror.metadata.deletion_timestamp.is_none() =>
            {
                if let Some(handle) = self.workers.get(pod.metadata.uid.as_deref().unwrap_or_default()) {
                    handle.mirror.send_if_modified(|held| {
                        let changed = held.as_ref().map(|h| &h.metadata.uid) != Some(&mirror.metadata.uid);
                        *held = Some(mirror.clone());
                        changed
                    });
                }
            }
            // After a start the API answers before the files are read: nothing is known to be superfluous yet.
            (_, Some(_)) if !self.files_read => {}
            (_, Some(mirror)) => drop(self.beside.spawn(async move { mirror::delete(client, &mirror).await })),
            (Some(pod), None) => {
                let node_name = self.node.config.node_name.clone();
                self.beside.spawn(async move { mirror::create(client, &node_name, &pod).await });
            }
            (None, None) => {}
        }
    }

    /// What an earlier kubelet left of Pods that nobody wants. Nothing is known to be unwanted before every source has
    /// spoken.
    async fn adopt_orphans(&mut self) {
        let running = orphans::still_running(&self.node, |uid| self.workers.contains_key(uid)).await;
        for wanted in running {
            self.want(wanted).await;
        }
        for uid in orphans::left_behind(&self.node, |uid| self.workers.contains_key(uid)) {
            self.beside.spawn(orphans::clear(self.node.clone(), uid));
        }
    }
}
