//! Follows the cluster and brings the kernel to what its policies say, change by change.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use client::{Cache, Caches, Change, Key};
use k8s_openapi::api::{core::v1::Namespace, networking::v1::NetworkPolicy};
use tokio::sync::{
    broadcast::{
        Receiver,
        error::{RecvError, TryRecvError},
    },
    mpsc, oneshot,
};

use crate::{
    Config,
    gate::Arrival,
    pod::{Facts, Pod},
    rule::Policy,
    tables::Tables,
    text,
    world::{Identity, World},
};

/// Pods that ended have no address any more.
const WITH_ADDRESS: &str = "status.phase!=Succeeded,status.phase!=Failed";

pub struct Follower {
    config: Config,
    policies: Arc<Cache<NetworkPolicy>>,
    policy_changes: Receiver<Change<NetworkPolicy>>,
    world: World,
    /// The state of the kernel; `None` when it is not known.
    kernel: Option<Tables>,
    /// Pods of this node with the addresses that the kubelet named, which count before those that the API shows.
    arrived: BTreeMap<Identity, Facts>,
    /// Those who wait for the next transaction.
    waiting: Vec<oneshot::Sender<()>>,
    watch: nft::Watch,
}

/// The caches beside that of policies, while they are followed.
struct Cluster {
    namespaces: Arc<Cache<Namespace>>,
    namespace_changes: Receiver<Change<Namespace>>,
    pods: Arc<Cache<Pod>>,
    pod_changes: Receiver<Change<Pod>>,
}

/// Something that happened.
enum News {
    Policy(Result<Change<NetworkPolicy>, RecvError>),
    Namespace(Result<Change<Namespace>, RecvError>),
    Pod(Result<Change<Pod>, RecvError>),
    Arrival(Box<Arrival>),
}

impl Cluster {
    async fn follow(caches: &Caches) -> Self {
        let (namespaces, pods) = (caches.of::<Namespace>(), caches.selected::<Pod>(WITH_ADDRESS));
        let cluster =
            Cluster { namespace_changes: namespaces.subscribe(), pod_changes: pods.subscribe(), namespaces, pods };
        cluster.namespaces.synced().await;
        cluster.pods.synced().await;
        cluster
    }
}

/// The change that is there already, as from `recv`.
fn there<T: Clone>(from: &mut Receiver<T>) -> Option<Result<T, RecvError>> {
    match from.try_recv() {
        Ok(change) => Some(Ok(change)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Lagged(count)) => Some(Err(RecvError::Lagged(count))),
        Err(TryRecvError::Closed) => None,
    }
}

impl Follower {
    pub fn new(config: Config, policies: Arc<Cache<NetworkPolicy>>) -> Self {
        Follower {
            config,
            policy_changes: policies.subscribe(),
            policies,
            world: World::default(),
            kernel: None,
            arrived: BTreeMap::new(),
            waiting: Vec::new(),
            watch: nft::Watch::default(),
        }
    }

    /// Keeps the kernel without a table until there is a policy. Pods begin without waiting.
    pub async fn idle(&mut self, arrivals: &mut mpsc::Receiver<Arrival>) {
        if !self.policies.is_empty() {
            return;
        }
        let mut wait = Duration::from_secs(1);
        while let Err(error) = crate::remove().await {
            tracing::warn!(%error, "cannot remove the rules of network policies, trying again");
            clock::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
        (self.kernel, self.world) = (None, World::default());
        while self.policies.is_empty() {
            tokio::select! {
                // Lost changes only mean another look.
                _ = self.policy_changes.recv() => {}
                Some(arrival) = arrivals.recv() => {
                    self.arrive(arrival);
                    self.answer();
                }
            }
        }
    }

    /// Enforces policies until there is none.
    pub async fn enforce(&mut self, caches: &Caches, arrivals: &mut mpsc::Receiver<Arrival>) {
        let mut cluster = Cluster::follow(caches).await;
        self.look_at_all(&cluster);
        self.sync().await;
        while !self.policies.is_empty() {
            let news = tokio::select! {
                change = self.policy_changes.recv() => Some(News::Policy(change)),
                change = cluster.namespace_changes.recv() => Some(News::Namespace(change)),
                change = cluster.pod_changes.recv() => Some(News::Pod(change)),
                Some(arrival) = arrivals.recv() => Some(News::Arrival(Box::new(arrival))),
                // Somebody else changed rules.
                () = self.watch.others() => None,
            };
            match news {
                Some(news) => self.hear(&cluster, news),
                None => self.compare().await,
            }
            // A burst is one piece of work.
            while let Some(news) = self.more(&mut cluster, arrivals) {
                self.hear(&cluster, news);
            }
            self.sync().await;
        }
    }

    fn more(&mut self, cluster: &mut Cluster, arrivals: &mut mpsc::Receiver<Arrival>) -> Option<News> {
        let policy = there(&mut self.policy_changes).map(News::Policy);
        let namespace = || there(&mut cluster.namespace_changes).map(News::Namespace);
        let news = policy.or_else(namespace);
        let news = news.or_else(|| there(&mut cluster.pod_changes).map(News::Pod));
        news.or_else(|| arrivals.try_recv().ok().map(|arrival| News::Arrival(Box::new(arrival))))
    }

    fn hear(&mut self, cluster: &Cluster, news: News) {
        match news {
            News::Policy(Ok(change)) => self.look_at_policy(&change.key),
            News::Namespace(Ok(change)) => self.look_at_namespace(cluster, &change.key.name),
            News::Pod(Ok(change)) => {
                let (old, new) = (change.old.map(|p| p.identity()), change.new.map(|p| p.identity()));
                if let Some(gone) = old.filter(|old| new.as_ref() != Some(old)) {
                    self.arrived.remove(&gone);
                    self.world.set_pod(&gone, None);
                }
                self.look_at_pod(cluster, &change.key);
            }
            News::Policy(Err(_)) | News::Namespace(Err(_)) | News::Pod(Err(_)) => self.look_at_all(cluster),
            News::Arrival(arrival) => self.arrive(*arrival),
        }
    }

    /// Takes in a Pod with the addresses that it has now. Whoever had them before is gone.
    fn arrive(&mut self, arrival: Arrival) {
        let Arrival { pod, addresses, done } = arrival;
        let id = pod.identity();
        let facts = Facts { addresses, is_local: true, ..pod.facts(&self.config.node_name) };
        let has = |held: &Facts, address: &IpAddr| held.addresses.contains(address);
        self.arrived.retain(|held, other| *held == id || !facts.addresses.iter().any(|address| has(other, address)));
        self.arrived.insert(id.clone(), facts.clone());
        self.world.set_pod(&id, Some(facts));
        self.waiting.push(done);
    }

    fn look_at_policy(&mut self, key: &Key) {
        self.world.set_policy(key, self.policies.get(key).map(|policy| Policy::of(&policy)));
    }

    fn look_at_namespace(&mut self, cluster: &Cluster, name: &str) {
        let namespace = cluster.namespaces.get(&Key::new("", name));
        let labels = namespace.map(|n| n.metadata.labels.clone().unwrap_or_default());
        self.world.set_namespace(name, labels.as_ref());
    }

    fn look_at_pod(&mut self, cluster: &Cluster, key: &Key) {
        let Some(pod) = cluster.pods.get(key) else { return };
        let id = pod.identity();
        let mut facts = pod.facts(&self.config.node_name);
        if let Some(arrived) = self.arrived.get(&id) {
            (facts.addresses, facts.is_local) = (arrived.addresses.clone(), true);
        }
        self.world.set_pod(&id, Some(facts));
    }

    /// Compares everything with what is known.
    fn look_at_all(&mut self, cluster: &Cluster) {
        let namespaces = cluster.namespaces.list();
        let names = namespaces.iter().filter_map(|n| n.metadata.name.clone()).chain(self.world.namespaces());
        for name in names.collect::<BTreeSet<_>>() {
            self.look_at_namespace(cluster, &name);
        }
        let pods = cluster.pods.list();
        let mut known: BTreeSet<Identity> = self.world.pods().into_iter().collect();
        for pod in &pods {
            known.remove(&pod.identity());
            self.look_at_pod(cluster, &Key::of(&**pod));
        }
        // Those that arrived may not be in the cache yet.
        for id in known.into_iter().filter(|id| !self.arrived.contains_key(id)) {
            self.world.set_pod(&id, None);
        }
        for (id, facts) in &self.arrived {
            if !self.world.has_pod(id) {
                self.world.set_pod(id, Some(facts.clone()));
            }
        }
        let keys = self.policies.list();
        let keys = keys.iter().map(|policy| Key::of(&**policy)).chain(self.world.policies());
        for key in keys.collect::<BTreeSet<_>>() {
            self.look_at_policy(&key);
        }
    }

    /// Brings the kernel to the plan, and lets in who waits for it.
    async fn sync(&mut self) {
        let plan = self.world.plan();
        if let Some(kernel) = &self.kernel {
            let script = kernel.changes(&plan);
            let done = if script.is_empty() { Ok(()) } else { nft::transaction(&script.text()).await };
            match done {
                Ok(()) => self.kernel = Some(plan),
                Err(error) => {
                    tracing::warn!(%error, "the kernel refused a change of network policies, writing all of them");
                    self.rebuild(plan).await;
                }
            }
        } else {
            self.rebuild(plan).await;
        }
        self.answer();
    }

    /// Knows the kernel's state no more when something is missing in it.
    async fn compare(&mut self) {
        let Some(script) = self.kernel.as_ref().map(|tables| self.everything(tables)) else { return };
        if let Some(missing) = self.watch.missing(text::TABLE, &script).await {
            tracing::warn!(missing, "somebody changed the rules of network policies, writing them again");
            self.kernel = None;
        }
    }

    /// The script that makes the whole table.
    fn everything(&self, tables: &Tables) -> String {
        let everything = Tables::default().changes(tables).text();
        format!("{}{everything}", text::fresh_table(self.config.pod_links))
    }

    /// Replaces the whole table in one transaction, trying until the kernel takes it.
    async fn rebuild(&mut self, plan: Tables) {
        let script = self.everything(&plan);
        let mut wait = Duration::from_secs(1);
        while let Err(error) = nft::transaction(&script).await {
            tracing::error!(%error, "cannot write the rules of network policies, trying again");
            clock::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
        self.kernel = Some(plan);
    }

    fn answer(&mut self) {
        for done in self.waiting.drain(..) {
            // The one who asked may have given up.
            let _ = done.send(());
        }
    }
}
