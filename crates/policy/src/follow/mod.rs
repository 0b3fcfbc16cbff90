//! Follows the cluster and brings the kernel to what its policies say, change by change.

mod cluster;
mod sources;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use client::{Change, Client, EventKind, EventRecorder, Key};
use k8s_openapi::Metadata;
use tokio::sync::{mpsc, oneshot};

use crate::{
    Config,
    gate::Arrival,
    kind::PolicyName,
    names::{Heard, Learned},
    pod::{Facts, Pod},
    tables::Tables,
    text,
    world::{Identity, World},
};

use cluster::{Cluster, News};
use sources::Changed;

pub use sources::Sources;

/// The longest message of an event, as the API takes them.
const MESSAGE_MAX: usize = 1024;

pub struct Follower {
    config: Config,
    sources: Sources,
    events: EventRecorder,
    world: World,
    /// The state of the kernel; `None` when it is not known.
    kernel: Option<Tables>,
    /// Pods of this node with the addresses that the kubelet named, which count before those that the API shows.
    arrived: BTreeMap<Identity, Facts>,
    waiting: Vec<Waiting>,
    /// The way by which addresses of domains come, where cluster DNS runs here.
    heard: Option<Heard>,
    /// Answers of DNS that wait for the next transaction.
    waiting_answers: Vec<oneshot::Sender<()>>,
    watch: nft::Watch,
}

/// A Pod that waits for the next transaction.
struct Waiting {
    namespace: String,
    done: oneshot::Sender<()>,
}

/// Something that happened.
enum Happened {
    Policy(Changed),
    News(News),
    Arrival(Box<Arrival>),
    Learned(Learned),
    /// An address of a domain is not good any more.
    Ended,
}

/// The next addresses of a name; never where no DNS runs here.
async fn next(heard: &mut Option<Heard>) -> Learned {
    match heard {
        // The end of DNS is the node's.
        Some(heard) => match heard.learned.recv().await {
            Some(learned) => learned,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Addresses that end within this time end together, in one transaction.
const TOGETHER: Duration = Duration::from_secs(1);

/// Waits for the end of an address, if there is one.
async fn until(end: Option<clock::Instant>) {
    match end {
        Some(end) => clock::sleep_until(end + TOGETHER).await,
        None => std::future::pending().await,
    }
}

impl Follower {
    pub fn new(config: Config, sources: Sources, events: EventRecorder, heard: Option<Heard>) -> Self {
        Follower {
            config,
            sources,
            events,
            world: World::default(),
            kernel: None,
            arrived: BTreeMap::new(),
            waiting: Vec::new(),
            heard,
            waiting_answers: Vec::new(),
            watch: nft::Watch::default(),
        }
    }

    /// Keeps the kernel without a table until there is a policy. Pods begin without waiting.
    pub async fn idle(&mut self, arrivals: &mut mpsc::Receiver<Arrival>) {
        if !self.sources.is_empty() {
            return;
        }
        let mut wait = Duration::from_secs(1);
        while let Err(error) = crate::remove().await {
            tracing::warn!(%error, "cannot remove the rules of network policies, trying again");
            clock::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
        (self.kernel, self.world) = (None, World::default());
        self.want();
        self.answer();
        while self.sources.is_empty() {
            tokio::select! {
                // Lost changes only mean another look.
                _ = self.sources.change() => {}
                Some(arrival) = arrivals.recv() => {
                    self.arrive(arrival);
                    self.answer();
                }
            }
        }
    }

    /// Enforces policies until there is none.
    pub async fn enforce(&mut self, client: &Client, arrivals: &mut mpsc::Receiver<Arrival>) {
        let mut cluster = Cluster::follow(client).await;
        self.look_at_all(&cluster);
        self.sync(&mut cluster).await;
        while !self.sources.is_empty() {
            let end = self.world.next_end();
            let happened = tokio::select! {
                change = self.sources.change() => Some(Happened::Policy(change)),
                news = cluster.news() => Some(Happened::News(news)),
                Some(arrival) = arrivals.recv() => Some(Happened::Arrival(Box::new(arrival))),
                learned = next(&mut self.heard) => Some(Happened::Learned(learned)),
                () = until(end) => Some(Happened::Ended),
                // Somebody else changed rules.
                () = self.watch.others() => None,
            };
            let mut has_work = match happened {
                Some(happened) => self.hear(&cluster, happened),
                None => {
                    self.compare().await;
                    true
                }
            };
            // A burst is one piece of work.
            while let Some(happened) = self.more(&mut cluster, arrivals) {
                has_work |= self.hear(&cluster, happened);
            }
            if has_work {
                self.sync(&mut cluster).await;
            }
        }
    }

    fn more(&mut self, cluster: &mut Cluster, arrivals: &mut mpsc::Receiver<Arrival>) -> Option<Happened> {
        let policy = self.sources.there().map(Happened::Policy);
        let happened = policy.or_else(|| cluster.there().map(Happened::News));
        let happened =
            happened.or_else(|| arrivals.try_recv().ok().map(|arrival| Happened::Arrival(Box::new(arrival))));
        happened.or_else(|| self.heard.as_mut()?.learned.try_recv().ok().map(Happened::Learned))
    }

    /// Takes in what happened. Returns whether the kernel may have to know of it.
    fn hear(&mut self, cluster: &Cluster, happened: Happened) -> bool {
        match happened {
            Happened::Learned(learned) => return self.learn(learned),
            Happened::Ended => self.world.end(clock::Instant::now()),
            Happened::Policy(Some(name)) => self.look_at_policy(&name),
            Happened::News(News::Namespace(Ok(change))) => self.look_at_namespace(cluster, &change.key.name),
            Happened::News(News::Node(Ok(change))) => self.look_at_node(cluster, &change.key.name),
            Happened::News(News::Pod(Ok(change))) => self.hear_of_pod(cluster, &change),
            Happened::Policy(None) | Happened::News(_) => self.look_at_all(cluster),
            Happened::Arrival(arrival) => self.arrive(*arrival),
        }
        true
    }

    /// Takes in the addresses of a name. Its answer waits if the kernel does not know them all.
    fn learn(&mut self, learned: Learned) -> bool {
        let Learned { name, addresses, done } = learned;
        let is_new = self.world.learn(&name, &addresses, clock::Instant::now());
        if is_new || !self.waiting_answers.is_empty() {
            self.waiting_answers.push(done);
        } else {
            // The one who asked may have given up.
            let _ = done.send(());
        }
        is_new
    }

    /// Tells cluster DNS which domains policies are about.
    fn want(&self) {
        if let Some(heard) = &self.heard {
            heard.want(self.world.domains());
        }
    }

    fn hear_of_pod(&mut self, cluster: &Cluster, change: &Change<Pod>) {
        let [old, new] = [&change.old, &change.new].map(|pod| pod.as_ref().map(|pod| pod.identity()));
        if let Some(gone) = old.filter(|old| new.as_ref() != Some(old)) {
            self.arrived.remove(&gone);
            self.world.set_pod(&gone, None);
        }
        self.look_at_pod(cluster, &change.key);
    }

    /// Takes in a Pod with the addresses that it has now. Whoever had them before is gone.
    fn arrive(&mut self, arrival: Arrival) {
        let Arrival { pod, addresses, done } = arrival;
        let id = pod.identity();
        let facts = Facts { addresses, is_local: true, ..pod.facts(&self.config.node_name) };
        let has = |held: &Facts, address: &IpAddr| held.addresses.contains(address);
        self.arrived.retain(|held, other| *held == id || !facts.addresses.iter().any(|address| has(other, address)));
        self.arrived.insert(id.clone(), facts.clone());
        let namespace = facts.namespace.clone();
        self.world.set_pod(&id, Some(facts));
        self.waiting.push(Waiting { namespace, done });
    }

    fn look_at_policy(&mut self, name: &PolicyName) {
        let policy = self.sources.get(name);
        let problems = policy.as_ref().map(|policy| policy.problems.as_slice()).unwrap_or_default();
        if !problems.is_empty() && self.world.policy(name).is_none_or(|known| known.problems != problems) {
            self.tell(name, &problems.join("; "));
        }
        self.world.set_policy(name, policy);
    }

    /// Tells whoever wrote a policy that it is not enforced as it is written.
    fn tell(&self, name: &PolicyName, problems: &str) {
        tracing::warn!(policy = %name, problems, "a policy is not enforced as it is written");
        let message: String = format!("not enforced as it is written: {problems}").chars().take(MESSAGE_MAX).collect();
        self.events.event(&self.sources.reference(name), EventKind::Warning, "NotEnforced", &message);
    }

    fn look_at_node(&mut self, cluster: &Cluster, name: &str) {
        let node = cluster.nodes().and_then(|nodes| nodes.get(&Key::new("", name)));
        self.world.set_node(name, node.map(|node| node.facts()));
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
        let names: BTreeSet<PolicyName> = self.sources.names().into_iter().chain(self.world.policies()).collect();
        for name in names {
            self.look_at_policy(&name);
        }
        self.look_at_nodes(cluster);
    }

    fn look_at_nodes(&mut self, cluster: &Cluster) {
        let nodes = cluster.nodes().map(|nodes| nodes.list()).unwrap_or_default();
        let names = nodes.iter().filter_map(|node| Metadata::metadata(&**node).name.clone());
        for name in names.chain(self.world.nodes()).collect::<BTreeSet<_>>() {
            self.look_at_node(cluster, &name);
        }
    }

    /// Brings the kernel to the plan, and lets in who waits for it.
    async fn sync(&mut self, cluster: &mut Cluster) {
        if cluster.with_nodes(self.world.asks_for_nodes()).await {
            self.look_at_nodes(cluster);
        }
        self.want();
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

    /// Lets in those who wait. Administrators select Pods by the labels of their namespace, so a Pod whose namespace nobody has told
    /// of yet waits on.
    fn answer(&mut self) {
        for done in self.waiting_answers.drain(..) {
            let _ = done.send(());
        }
        let needs_namespace = self.sources.has_administrators();
        // Some who asked have given up.
        self.waiting.retain(|waiting| !waiting.done.is_closed());
        let is_known = |waiting: &mut Waiting| !needs_namespace || self.world.has_namespace(&waiting.namespace);
        for waiting in self.waiting.extract_if(.., is_known) {
            let _ = waiting.done.send(());
        }
    }
}
