//! Brings together what sources want, what the engine tells, and the workers: one per Pod, never more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use client::{Caches, Key};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_cri::v1::{Container, ContainerState};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    task::JoinSet,
};

use crate::{
    manifests,
    node::Node,
    volumes,
    wanted::{POD_NAME, POD_NAMESPACE, POD_UID, Wanted},
    worker::{self, Handle},
};

struct Dispatcher {
    node: Arc<Node>,
    workers: BTreeMap<String, Handle>,
    ended: FuturesUnordered<BoxFuture<'static, String>>,
    mirrors: JoinSet<()>,
    /// Static Pods by full name, and the mirrors that the API has, by full name.
    statics: BTreeMap<String, Arc<Pod>>,
    api_mirrors: BTreeMap<String, Arc<Pod>>,
    /// The manifests were read at least once.
    files_read: bool,
    /// The API's Pods were all taken in.
    synced: bool,
    /// What an earlier kubelet left was looked through.
    adopted: bool,
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
        async move { engine_events(node).await }
    });
    let mut dispatcher = Dispatcher {
        node: node.clone(),
        workers: BTreeMap::new(),
        ended: FuturesUnordered::new(),
        mirrors: JoinSet::new(),
        statics: BTreeMap::new(),
        api_mirrors: BTreeMap::new(),
        files_read: node.config.manifest_dir.is_none(),
        synced: false,
        adopted: false,
    };
    loop {
        dispatcher.adopt_orphans().await;
        tokio::select! {
            () = cache.synced(), if !dispatcher.synced => {
                dispatcher.synced = true;
                cache.list().into_iter().for_each(|pod| dispatcher.api_pod(pod));
            }
            change = changes.recv() => match change {
                Ok(change) => match change.new {
                    Some(pod) => dispatcher.api_pod(pod),
                    None => if let Some(old) = change.old { dispatcher.api_gone(&old) },
                },
                Err(RecvError::Lagged(_)) => {
                    let all = cache.list();
                    let uids: BTreeSet<_> = all.iter().filter_map(|p| p.metadata.uid.clone()).collect();
                    dispatcher.drop_missing(&uids);
                    all.into_iter().for_each(|pod| dispatcher.api_pod(pod));
                }
                Err(RecvError::Closed) => return,
            },
            Some(all) = statics.recv() => dispatcher.static_pods(all),
            Some(uid) = dispatcher.ended.next() => {
                dispatcher.forget(&uid);
                // A Pod of the same name and uid may have come back from its file meanwhile.
                let again = dispatcher.statics.values().find(|p| p.metadata.uid.as_deref() == Some(&uid)).cloned();
                if let Some(pod) = again {
                    dispatcher.want(Wanted { pod, is_static: true, removed: false });
                } else if let Some(pod) = cache.list().into_iter().find(|p| p.metadata.uid.as_deref() == Some(&uid))
                    && pod.metadata.deletion_timestamp.is_none() {
                        dispatcher.api_pod(pod);
                    }
            }
            Some(_) = dispatcher.mirrors.join_next() => {}
        }
    }
}

fn full_name(pod: &Pod) -> String {
    Key::of(pod).to_string()
}

impl Dispatcher {
    fn api_pod(&mut self, pod: Arc<Pod>) {
        if api::pod::is_mirror(&pod) {
            let name = full_name(&pod);
            self.api_mirrors.insert(name.clone(), pod);
            return self.check_mirror(&name);
        }
        self.want(Wanted { pod, is_static: false, removed: false });
    }

    fn api_gone(&mut self, pod: &Pod) {
        if api::pod::is_mirror(pod) {
            let name = full_name(pod);
            self.api_mirrors.remove(&name);
            return self.check_mirror(&name);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(handle) = self.workers.get(&uid) {
            waypoint::kubelet::pod_removed(&full_name(pod));
            handle.wanted.send_modify(|w| w.removed = true);
        }
    }

    fn drop_missing(&mut self, uids: &BTreeSet<String>) {
        for (uid, handle) in &self.workers {
            if !uids.contains(uid) {
                handle.wanted.send_if_modified(|w| !w.is_static && !std::mem::replace(&mut w.removed, true));
            }
        }
    }

    fn want(&mut self, wanted: Wanted) {
        let (uid, name) = (wanted.uid().to_owned(), wanted.full_name());
        waypoint::kubelet::config_merge(&name);
        self.node.pods.lock().insert(uid.clone(), wanted.clone());
        match self.workers.get(&uid) {
            Some(handle) => {
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
                let (handle, task) = worker::spawn(self.node.clone(), wanted);
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

    fn forget(&mut self, uid: &str) {
        self.workers.remove(uid);
        self.node.looks.lock().remove(uid);
        self.node.pods.lock().remove(uid);
    }

    fn static_pods(&mut self, all: Vec<Arc<Pod>>) {
        let fresh: BTreeMap<String, Arc<Pod>> = all.into_iter().map(|p| (full_name(&p), p)).collect();
        let before = std::mem::replace(&mut self.statics, fresh.clone());
        self.files_read = true;
        for (name, pod) in &before {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if fresh.get(name).is_none_or(|f| f.metadata.uid != pod.metadata.uid)
                && let Some(handle) = self.workers.get(&uid)
            {
                waypoint::kubelet::pod_removed(name);
                handle.wanted.send_modify(|w| w.removed = true);
            }
        }
        for pod in fresh.values() {
            self.want(Wanted { pod: pod.clone(), is_static: true, removed: false });
        }
        let mirrored: Vec<String> = self.api_mirrors.keys().cloned().collect();
        for name in before.into_keys().chain(fresh.into_keys()).chain(mirrored).collect::<BTreeSet<_>>() {
            self.check_mirror(&name);
        }
    }

    /// The API shows a static Pod exactly as long as its file says so.
    fn check_mirror(&mut self, name: &str) {
        let mirror = self.api_mirrors.get(name).cloned();
        let hash = |p: &Pod| p.metadata.annotations.as_ref().and_then(|a| a.get(api::pod::HASH_ANNOTATION).cloned());
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
            (_, Some(mirror)) => drop(self.mirrors.spawn(async move { delete_mirror(client, &mirror).await })),
            (Some(pod), None) => {
                let node_name = self.node.config.node_name.clone();
                self.mirrors.spawn(async move { create_mirror(client, &node_name, &pod).await });
            }
            (None, None) => {}
        }
    }

    /// What an earlier kubelet left: sandboxes of Pods that nobody wants, their folders and cgroups. Nothing is known
    /// to be unwanted before every source has spoken.
    async fn adopt_orphans(&mut self) {
        if !(self.synced && self.files_read) || std::mem::replace(&mut self.adopted, true) {
            return;
        }
        for sandbox in self.node.config.runtime.sandboxes(None).await.unwrap_or_default() {
            let label = |name: &str| sandbox.labels.get(name).cloned();
            let (Some(uid), Some(name), Some(namespace)) = (label(POD_UID), label(POD_NAME), label(POD_NAMESPACE))
            else {
                continue;
            };
            if self.workers.contains_key(&uid) {
                continue;
            }
            let mut pod = Pod { spec: Some(PodSpec::default()), ..Default::default() };
            (pod.metadata.uid, pod.metadata.name, pod.metadata.namespace) = (Some(uid), Some(name), Some(namespace));
            self.want(Wanted { pod: Arc::new(pod), is_static: true, removed: true });
        }
        let folders = std::fs::read_dir(self.node.config.root_dir.join("pods")).into_iter().flatten().flatten();
        for folder in folders {
            let uid = folder.file_name().to_string_lossy().into_owned();
            if !self.workers.contains_key(&uid) {
                let orphan = volumes::PodFolder::new(&self.node.config.root_dir, &uid);
                if let Err(error) = volumes::unmount(&orphan).await {
                    tracing::warn!(folder = %folder.path().display(), %error, "an orphaned folder stays");
                }
            }
        }
        for uid in self.node.cgroups.pods().into_iter().filter(|uid| !self.workers.contains_key(uid)) {
            for qos in [api::pod::GUARANTEED, api::pod::BURSTABLE, api::pod::BEST_EFFORT] {
                self.node.cgroups.remove(&self.node.cgroups.path(qos, &uid));
            }
        }
    }
}

async fn create_mirror(client: client::Client, node_name: &str, pod: &Pod) {
    let mut mirror = pod.clone();
    let hash = pod.metadata.annotations.as_ref().and_then(|a| a.get(api::pod::HASH_ANNOTATION).cloned());
    let notes = mirror.metadata.annotations.get_or_insert_default();
    notes.insert(api::pod::MIRROR_ANNOTATION.to_owned(), hash.unwrap_or_default());
    mirror.metadata.uid = None;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    let api: Api<Pod> = Api::namespaced(client, pod.metadata.namespace.as_deref().unwrap_or("default"));
    loop {
        let owner = nodes.get(node_name).await.ok().and_then(|n| n.metadata.uid);
        mirror.metadata.owner_references = owner.map(|uid| {
            vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node_name.to_owned(),
                uid,
                controller: Some(true),
                ..Default::default()
            }]
        });
        match api.create(&PostParams::default(), &mirror).await {
            Ok(_) => return,
            Err(kube::Error::Api(s)) if s.code == 409 => return,
            Err(error) => tracing::warn!(%error, "a mirror Pod could not be made, trying again"),
        }
        clock::sleep(Duration::from_secs(5)).await;
    }
}

async fn delete_mirror(client: client::Client, mirror: &Pod) {
    let api: Api<Pod> = Api::namespaced(client, mirror.metadata.namespace.as_deref().unwrap_or("default"));
    let params = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    if let Err(error) = api.delete(mirror.metadata.name.as_deref().unwrap_or_default(), &params).await {
        tracing::debug!(%error, "a mirror Pod could not be deleted");
    }
}

type Seen = BTreeMap<String, BTreeSet<(String, i32)>>;

fn seen(containers: Vec<Container>) -> Seen {
    let mut seen = Seen::new();
    for container in containers {
        let uid = container.labels.get(POD_UID).cloned().unwrap_or_default();
        seen.entry(uid).or_default().insert((container.id, container.state));
    }
    seen
}

fn state_of(seen: &Seen, id: &str) -> Option<i32> {
    seen.values().flatten().find(|(container, _)| container == id).map(|(_, state)| *state)
}

/// Lists all containers and wakes the workers whose Pods have changed; whether any had.
async fn relist(node: &Node, last: &mut Seen) -> bool {
    waypoint::kubelet::sync_loop(&node.config.node_name);
    let Ok(containers) = node.config.runtime.containers(None).await else { return false };
    let fresh = seen(containers);
    let looks = node.looks.lock();
    let uids: BTreeSet<&String> = last.keys().chain(fresh.keys()).collect();
    let mut changed = false;
    for uid in uids {
        if last.get(uid) != fresh.get(uid) {
            changed = true;
            if let Some(look) = looks.get(uid) {
                look.notify_one();
            }
        }
    }
    drop(looks);
    *last = fresh;
    changed
}

/// Wakes workers when the engine says that something happened; where the engine is silent, lists once a second while
/// there are Pods.
async fn engine_events(node: Arc<Node>) {
    let mut last = Seen::new();
    loop {
        let Some(mut events) = node.config.runtime.events().await else {
            clock::sleep(Duration::from_secs(1)).await;
            if !node.pods.lock().is_empty() {
                relist(&node, &mut last).await;
            }
            continue;
        };
        relist(&node, &mut last).await;
        while let Some(id) = events.next().await {
            // CRI's own picture follows the event by a moment; until it shows the end, another change (the start that
            // came just before) must not pass for it.
            for wait in [2, 10, 30, 60, 120, 250, 500] {
                clock::sleep(Duration::from_millis(wait)).await;
                let changed = relist(&node, &mut last).await;
                match state_of(&last, &id) {
                    Some(state) if state == ContainerState::ContainerExited as i32 => break,
                    // A sandbox, or a container that is gone: only its worker can tell what that means.
                    None => {
                        node.looks.lock().values().for_each(|look| look.notify_one());
                        break;
                    }
                    Some(_) if changed && wait > 250 => break,
                    Some(_) => {}
                }
            }
        }
        // The engine restarted: look at everything again.
        clock::sleep(Duration::from_millis(500)).await;
        node.looks.lock().values().for_each(|look| look.notify_one());
    }
}
