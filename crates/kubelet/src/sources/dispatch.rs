//! Brings together what sources want, what the engine tells, and the workers: one per Pod, never more.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use client::{Cache, Caches, EventKind, Key};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    task::JoinSet,
};

use crate::{
    engine::{
        orphans::{self, Left},
        pleg::Pleg,
    },
    kubelet::Kubelet,
    node::declared,
    pod::{desired::DesiredPod, worker, workers::Handle},
    sources::{
        Heard, Home, Source,
        admission::{self, Room},
        allocations::{self, Allocations},
        manifests, mirror, web,
    },
};

/// A worker has come to its end.
struct Ended {
    uid: String,
    /// By a panic, not because its Pod has gone.
    broke_off: bool,
}

struct Dispatcher {
    kubelet: Arc<Kubelet>,
    cache: Arc<Cache<Pod>>,
    /// The workers end with the dispatcher; the Pods stay.
    workers: JoinSet<Ended>,
    /// Work beside that of the Pods: reading manifests, listening to the engine, mirrors, and clearing up.
    beside: JoinSet<()>,
    /// Static Pods by full name, each source's own, and the mirrors that the API has, by full name.
    statics: BTreeMap<String, Arc<Pod>>,
    of_source: BTreeMap<Source, Vec<Arc<Pod>>>,
    api_mirrors: BTreeMap<String, Arc<Pod>>,
    /// The resources that each Pod has of the node, and the Pods that want others.
    allocations: Allocations,
    /// The sources of static Pods that were not read yet.
    unheard: BTreeSet<Source>,
    /// The API's Pods were all taken in.
    synced: bool,
    /// All that an earlier kubelet has left running has a worker.
    adopted: bool,
}

/// Runs for ever.
pub async fn run(kubelet: Arc<Kubelet>, caches: Caches) {
    let cache = caches.selected::<Pod>(&format!("spec.nodeName={}", kubelet.config.node_name));
    let mut changes = cache.subscribe();
    let (statics_tx, mut statics) = mpsc::channel(4);
    let mut beside = JoinSet::new();
    let mut unheard = BTreeSet::new();
    let home = || Home::new(&kubelet.config.node_name, &kubelet.config.features);
    if let Some(folder) = kubelet.config.manifest_dir.clone() {
        unheard.insert(Source::Files);
        beside.spawn(manifests::watch(folder, home(), statics_tx.clone()));
    }
    if let Some(place) = kubelet.config.settings.static_url.clone() {
        unheard.insert(Source::Web);
        beside.spawn(web::watch(place, home(), statics_tx.clone()));
    }
    beside.spawn(Pleg::new(kubelet.clone()).run());
    let mut dispatcher = Dispatcher {
        kubelet: kubelet.clone(),
        cache: cache.clone(),
        workers: JoinSet::new(),
        beside,
        statics: BTreeMap::new(),
        of_source: BTreeMap::new(),
        api_mirrors: BTreeMap::new(),
        allocations: Allocations::new(kubelet.clone()),
        unheard,
        synced: false,
        adopted: false,
    };
    // The node's own Pods come first: they need no API server, and have to find their place on the node.
    while dispatcher.unheard.contains(&Source::Files) {
        let Some(heard) = statics.recv().await else { return };
        dispatcher.static_pods(heard).await;
    }
    let known = async { tokio::join!(cache.synced(), kubelet.node.synced()) };
    tokio::pin!(known);
    loop {
        // Whatever has happened, there may be room now for a Pod that waits to grow.
        if dispatcher.synced {
            dispatcher.allocations.resize(&cache);
        }
        tokio::select! {
            () = clock::sleep(allocations::RETRY), if dispatcher.allocations.waits() => {}
            _ = &mut known, if !dispatcher.synced => {
                dispatcher.synced = true;
                dispatcher.api_pods().await;
                dispatcher.adopt_orphans().await;
            }
            change = changes.recv(), if dispatcher.synced => match change {
                Ok(change) => match &change.new {
                    Some(pod) => dispatcher.api_pod(pod.clone()).await,
                    None => if let Some(old) = &change.old { dispatcher.api_gone(old) },
                },
                Err(RecvError::Lagged(_)) => {
                    let uids = cache.list().iter().filter_map(|p| p.metadata.uid.clone()).collect();
                    dispatcher.drop_missing(&uids);
                    dispatcher.api_pods().await;
                }
                Err(RecvError::Closed) => return,
            },
            Some(heard) = statics.recv() => {
                dispatcher.static_pods(heard).await;
                dispatcher.adopt_orphans().await;
            }
            Some(Ok(ended)) = dispatcher.workers.join_next() => dispatcher.forget(ended).await,
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
            self.kubelet.pods.set_mirrors(self.api_mirrors.len());
            return self.check_mirror(&name);
        }
        self.want(DesiredPod::new(pod, false)).await;
    }

    fn api_gone(&mut self, pod: &Pod) {
        if api::rules::pod::is_mirror(pod) {
            let name = full_name(pod);
            self.api_mirrors.remove(&name);
            self.kubelet.pods.set_mirrors(self.api_mirrors.len());
            return self.check_mirror(&name);
        }
        self.remove(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    fn drop_missing(&mut self, uids: &BTreeSet<String>) {
        for desired in self.kubelet.pods.all().iter().map(|pod| pod.desired()) {
            if !(desired.is_static || uids.contains(desired.uid())) {
                self.remove(desired.uid());
            }
        }
    }

    /// The source no longer has it: its worker ends it, and it no longer counts.
    fn remove(&mut self, uid: &str) {
        if let Some(pod) = self.kubelet.pods.get(uid) {
            waypoint::kubelet::pod_removed(&pod.desired().full_name());
            pod.remove();
        }
    }

    async fn want(&mut self, wanted: DesiredPod) {
        let (uid, name) = (wanted.uid().to_owned(), wanted.full_name());
        waypoint::kubelet::config_merge(&name);
        if let Some(pod) = self.kubelet.pods.get(&uid) {
            let config = &self.kubelet.config;
            let cpus = config.settings.managers.cpus;
            if let Some(message) = declared::lacks(&config.features, cpus, &pod.desired().pod, &wanted.pod) {
                self.kubelet.events.pod(&wanted, EventKind::Warning, declared::FAILED, &message);
            }
            let desired = self.allocations.place(wanted);
            let report =
                if pod.update(desired) { waypoint::kubelet::pod_updated } else { waypoint::kubelet::pod_reconciled };
            return report(&name);
        }
        waypoint::kubelet::pod_added(&name);
        let desired = self.allocations.recall(wanted);
        let (room, refusal) = match admission::judge(&self.kubelet, &desired).await {
            Ok(room) => (room, None),
            Err(refusal) => (Room::default(), Some(refusal)),
        };
        if refusal.is_none() {
            self.allocations.admit(&desired);
        }
        room.make(&self.kubelet);
        let (handle, work) = worker::new(self.kubelet.clone(), desired, refusal);
        self.kubelet.pods.insert(&uid, handle);
        self.workers.spawn(async move {
            futures::future::join_all(room.victims.into_iter().map(Handle::left)).await;
            let broke_off = AssertUnwindSafe(work).catch_unwind().await.is_err();
            if broke_off {
                tracing::error!(uid, "a Pod's worker broke off");
                clock::sleep(Duration::from_secs(5)).await;
            }
            Ended { uid, broke_off }
        });
    }

    /// A static Pod begins once no other of its name has a worker: two versions of one would take the same ports and folders. The
    /// one that has to wait is kept nowhere but in `statics`, so that only the newest manifest counts, and none when the file has
    /// gone. Only the dispatcher changes `statics` and the list of workers, one after the other, and it asks again after every
    /// worker's end: no end is missed between this look and the next.
    async fn want_static(&mut self, pod: Arc<Pod>) {
        let wanted = DesiredPod::new(pod, true);
        let (uid, name) = (wanted.uid(), wanted.full_name());
        let precedes = |other: &DesiredPod| other.is_static && other.uid() != uid && other.full_name() == name;
        if !self.kubelet.pods.all().iter().any(|pod| precedes(&pod.desired())) {
            self.want(wanted).await;
        }
    }

    async fn forget(&mut self, Ended { uid, broke_off }: Ended) {
        let ended = self.kubelet.pods.forget(&uid).map(|pod| pod.desired());
        self.allocations.forget(&uid);
        if let Some(ended) = ended.filter(|ended| ended.is_static) {
            self.follow_static(ended, broke_off).await;
        }
        // The API may have a Pod whose worker came to its end too early.
        let is_it = |p: &&Arc<Pod>| p.metadata.uid.as_deref() == Some(&uid);
        if !self.kubelet.pods.has(&uid)
            && let Some(pod) = self.cache.list().iter().find(is_it).cloned()
            && (broke_off || pod.metadata.deletion_timestamp.is_none())
        {
            self.api_pod(pod).await;
        }
        if !self.kubelet.pods.has(&uid) {
            self.beside.spawn(orphans::clear(self.kubelet.clone(), uid, Left::ByWorker));
        }
    }

    /// The place of a static Pod whose worker has ended is taken by what its source has now of that name, which may be the same
    /// again. Containers that a worker has broken off from may still run: it has to end them first.
    async fn follow_static(&mut self, ended: DesiredPod, broke_off: bool) {
        let name = ended.full_name();
        if broke_off && ended.removed {
            self.want(ended).await;
        } else if let Some(pod) = self.statics.get(&name).cloned() {
            self.want_static(pod).await;
        }
        self.check_mirror(&name);
    }

    async fn static_pods(&mut self, Heard { source, pods }: Heard) {
        self.unheard.remove(&source);
        self.of_source.insert(source, self.without_namesakes(source, pods));
        // Of two Pods of one name the file's counts: it is the machine's own.
        let all = self.of_source.values().rev().flatten();
        let fresh: BTreeMap<String, Arc<Pod>> = all.map(|p| (full_name(p), p.clone())).collect();
        let before = std::mem::replace(&mut self.statics, fresh.clone());
        let gone = |(name, pod): (&String, &Arc<Pod>)| {
            let stays = fresh.get(name).is_some_and(|f| f.metadata.uid == pod.metadata.uid);
            if stays { None } else { pod.metadata.uid.clone() }
        };
        for uid in before.iter().filter_map(gone).collect::<Vec<_>>() {
            self.remove(&uid);
        }
        if !self.adopted {
            // A manifest may have changed while no kubelet was here: what runs of the old one comes first, too.
            for ending in orphans::predecessors(&self.kubelet, &fresh).await {
                self.want(ending).await;
            }
        }
        for pod in fresh.values() {
            self.want_static(pod.clone()).await;
        }
        let mirrored: Vec<String> = self.api_mirrors.keys().cloned().collect();
        for name in before.into_keys().chain(fresh.into_keys()).chain(mirrored).collect::<BTreeSet<_>>() {
            self.check_mirror(&name);
        }
    }

    /// Of Pods of one name in one source the first one counts; of the others is told.
    fn without_namesakes(&self, source: Source, pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let mut names = BTreeSet::new();
        let (first, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| names.insert(full_name(pod)));
        for pod in others {
            let of = |field: &Option<String>| field.clone().unwrap_or_default();
            let (name, namespace, uid) = (of(&pod.metadata.name), of(&pod.metadata.namespace), of(&pod.metadata.uid));
            let what = format!("Error validating pod {name}_{namespace}({uid}) from {}", source.word());
            let text = format!("{what} due to duplicate pod name {name:?}, ignoring");
            self.kubelet.events.object(&pod, EventKind::Warning, "FailedValidation", &text);
        }
        first
    }

    /// The static Pod that this mirror shows has a worker. A static Pod's uid is its hash.
    fn is_here(&self, name: &str, mirror_hash: Option<String>) -> bool {
        let shown = mirror_hash.and_then(|uid| self.kubelet.pods.get(&uid)).map(|worker| worker.desired());
        shown.is_some_and(|shown| shown.is_static && shown.full_name() == name)
    }

    /// The API shows a static Pod from when its source says so until its containers have ended.
    fn check_mirror(&mut self, name: &str) {
        let mirror = self.api_mirrors.get(name).cloned();
        let hash =
            |p: &Pod| p.metadata.annotations.as_ref().and_then(|a| a.get(api::rules::pod::HASH_ANNOTATION).cloned());
        let desired = self.statics.get(name).cloned();
        let client = self.kubelet.config.client.clone();
        match (desired, mirror) {
            (Some(pod), Some(mirror))
                if hash(&pod) == hash(&mirror) && mirror.metadata.deletion_timestamp.is_none() =>
            {
                if let Some(worker) = self.kubelet.pods.get(pod.metadata.uid.as_deref().unwrap_or_default()) {
                    worker.set_mirror(&mirror);
                }
            }
            // After a start the API answers before all sources and the engine do: nothing is known to be superfluous yet.
            (_, Some(_)) if !self.adopted => {}
            // The containers that it shows still run. Their worker's end asks again.
            (_, Some(mirror)) if mirror.metadata.deletion_timestamp.is_none() && self.is_here(name, hash(&mirror)) => {}
            (_, Some(mirror)) => drop(self.beside.spawn(async move { mirror::delete(client, &mirror).await })),
            (Some(pod), None) => {
                let node_name = self.kubelet.config.node_name.clone();
                self.beside.spawn(async move { mirror::create(client, &node_name, &pod).await });
            }
            (None, None) => {}
        }
    }

    /// Takes care, once, of what an earlier kubelet left of Pods that no source wants. That is known when every source has
    /// spoken.
    async fn adopt_orphans(&mut self) {
        if self.adopted || !self.synced || !self.unheard.is_empty() {
            return;
        }
        self.adopted = true;
        for desired in orphans::still_running(&self.kubelet).await {
            self.want(desired).await;
        }
        self.kubelet.devices.retain(|uid| self.kubelet.pods.has(uid)).await;
        self.kubelet.affinity.retain(|uid| self.kubelet.pods.has(uid)).await;
        for uid in orphans::left_behind(&self.kubelet) {
            self.beside.spawn(orphans::clear(self.kubelet.clone(), uid, Left::ByEarlier));
        }
        let mirrored: Vec<String> = self.api_mirrors.keys().cloned().collect();
        mirrored.iter().for_each(|name| self.check_mirror(name));
    }
}
