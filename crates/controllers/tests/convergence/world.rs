//! A small world for one story: the API server over a store in memory, a process of controllers that dies between any two
//! writes and may learn late of what happens, and kubelets that the test plays. All of it follows from one seed, under paused time.
//!
//! A story says what users do and what has to come of it; [`converges`] tells it for a range of seeds.

use std::{
    ops::Range,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use client::{
    Api, Body, Caches, Client, Kind,
    rest::{self, DeleteOptions, Form, Resource, Verb},
};
use http::Method;
use json::{Value, json};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, PersistentVolumeClaim, Pod};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::common::{everything, lagging, object, server};

/// The objects, controllers and changes of a world.
pub trait Story: Sized {
    /// The names of the controllers that run.
    const CONTROLLERS: &'static [&'static str];
    /// How many changes are made.
    const CHANGES: usize = 12;

    async fn begin(world: &World) -> Self;
    /// One change that users make.
    async fn change(&mut self, world: &World);
    /// Panics when something is broken that always holds.
    async fn check(&self, _world: &World) {}
    /// Why the world is not as it was asked for, once nothing disturbs it any more.
    async fn missing(&self, world: &World) -> Option<String>;
}

/// Tells the story once for each seed. `WORLD_SEED=7` tells it for one seed only.
pub fn converges<S: Story>(seeds: Range<u64>) {
    let chosen: Option<u64> = std::env::var("WORLD_SEED").ok().and_then(|text| text.parse().ok());
    let mut deaths = 0;
    for seed in chosen.map_or(seeds, |one| one..one + 1) {
        let _said = SaidOnPanic(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        deaths += runtime.block_on(tell::<S>(seed));
    }
    assert!(deaths > 0 || chosen.is_some(), "no process has died, so nothing was tested");
}

struct SaidOnPanic(u64);

impl Drop for SaidOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with WORLD_SEED={}", self.0);
        }
    }
}

/// Returns how often the process died.
async fn tell<S: Story>(seed: u64) -> u64 {
    let mut world = World::start(seed, S::CONTROLLERS).await;
    let mut story = S::begin(&world).await;
    for _ in 0..S::CHANGES {
        story.change(&world).await;
        for _ in 0..below(4) {
            world.some_kubelets().await;
            world.pass().await;
            story.check(&world).await;
        }
    }
    world.controllers.immortal();
    settle(&mut world, &story).await;
    // From rest, nothing but the change itself can wake a controller.
    for _ in 0..S::CHANGES {
        for _ in 0..1 + below(2) {
            story.change(&world).await;
        }
        settle(&mut world, &story).await;
    }
    let before = world.quiet().await;
    clock::sleep(Duration::from_secs(3000)).await;
    assert_eq!(world.writes().await, before, "somebody wrote though nothing was left to do");
    assert_eq!(story.missing(&world).await, None);
    world.controllers.deaths
}

/// Nothing disturbs the world until it is as it was asked for.
async fn settle<S: Story>(world: &mut World, story: &S) {
    let mut missing = None;
    for _ in 0..600 {
        world.all_kubelets().await;
        world.pass().await;
        story.check(world).await;
        missing = story.missing(world).await;
        if missing.is_none() {
            break;
        }
    }
    assert_eq!(missing, None);
}

/// The claims that a Pod mounts.
pub fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|v| Some(v.persistent_volume_claim.as_ref()?.claim_name.clone())).collect()
}

pub fn below(end: u64) -> u64 {
    clock::random_range(0..end)
}

pub fn chance(percent: u64) -> bool {
    below(100) < percent
}

/// How long a process of controllers lives.
struct Life {
    /// It dies with this write; `None` lives on.
    writes_left: Option<u64>,
    /// Of 100 writes, how many the server refuses for no reason.
    refused: u64,
}

enum Fate {
    Sent,
    Refused,
    /// The process is dead, and the server has never heard of the write.
    Unsent,
    /// The process is dead, but the write was carried out.
    Unanswered,
}

impl Life {
    fn fate(&mut self) -> Fate {
        match &mut self.writes_left {
            Some(0) => Fate::Unsent,
            Some(left) => {
                *left -= 1;
                match *left {
                    0 if chance(50) => Fate::Unsent,
                    0 => Fate::Unanswered,
                    _ if chance(self.refused) => Fate::Refused,
                    _ => Fate::Sent,
                }
            }
            None if chance(self.refused) => Fate::Refused,
            None => Fate::Sent,
        }
    }

    fn is_over(&self) -> bool {
        self.writes_left == Some(0)
    }
}

/// A client whose writes meet the fate of its process. Events are told in any case: nothing depends on them.
fn mortal(client: Client, life: Arc<Mutex<Life>>) -> Client {
    client::in_process(tower::service_fn(move |request: http::Request<Body>| {
        let (client, life) = (client.clone(), life.clone());
        async move {
            let harmless = request.method() == Method::GET || request.uri().path().contains("/events");
            let fate = if harmless { Fate::Sent } else { life.lock().fate() };
            match fate {
                Fate::Sent => client.send(request).await,
                Fate::Unsent => std::future::pending().await,
                Fate::Unanswered => {
                    let _ = client.send(request).await;
                    std::future::pending().await
                }
                Fate::Refused => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "reason": "InternalError", "message": "the server is in a bad mood", "code": 500});
                    Ok(http::Response::builder().status(500).body(Body::from(status.to_string().into_bytes())).unwrap())
                }
            }
        }
    }))
}

/// The certificate of an authority.
pub static AUTHORITY: LazyLock<String> =
    LazyLock::new(|| pki::Authority::create("authority").unwrap().certificate().to_owned());

/// The process that the controllers run in.
struct Process {
    client: Client,
    enabled: Vec<String>,
    life: Arc<Mutex<Life>>,
    deaths: u64,
    _tasks: JoinSet<()>,
}

impl Process {
    fn start(client: Client, names: &[&str]) -> Self {
        let enabled = names.iter().map(|name| (*name).to_owned()).collect();
        let mut process = Process {
            client,
            enabled,
            life: Arc::new(Mutex::new(Life { writes_left: None, refused: 0 })),
            deaths: 0,
            _tasks: JoinSet::new(),
        };
        process.restart();
        process
    }

    fn restart(&mut self) {
        self.deaths += u64::from(self.life.lock().is_over());
        let writes_left = chance(80).then(|| 1 + below(12));
        let refused = if chance(30) { 20 } else { 0 };
        self.life = Arc::new(Mutex::new(Life { writes_left, refused }));
        let client = mortal(self.client.clone(), self.life.clone());
        let lag = if chance(40) { below(2000) } else { 0 };
        let caches = Caches::new(lagging(self.client.clone(), Duration::from_millis(lag)));
        let options = controllers::Options {
            enabled: self.enabled.clone(),
            root_ca: AUTHORITY.clone(),
            features: everything().0,
            served: everything().1,
            ..Default::default()
        };
        self._tasks = controllers::run(&caches, |_| client.clone(), &options);
    }

    /// From now on it neither dies nor is refused anything.
    fn immortal(&mut self) {
        if self.life.lock().is_over() {
            self.restart();
        }
        *self.life.lock() = Life { writes_left: None, refused: 0 };
    }
}

pub struct World {
    pub client: Client,
    controllers: Process,
    /// Writes of [`World::writes`]' own.
    marks: AtomicU64,
}

impl World {
    async fn start(seed: u64, names: &[&str]) -> Self {
        let client = server(seed).await;
        let world = World { controllers: Process::start(client.clone(), names), client, marks: AtomicU64::new(0) };
        let namespace: Namespace = object(json!({"metadata": {"name": "d"}}));
        Api::all(world.client.clone()).create(&namespace).await.unwrap();
        for node in ["n1", "n2", "n3"] {
            world.add_node(node).await;
        }
        world
    }

    pub fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "d")
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub async fn create<K: Kind>(&self, value: Value) {
        self.api::<K>().create(&object(value)).await.unwrap();
    }

    pub async fn list<K: Kind>(&self) -> Vec<K> {
        self.api::<K>().list(&[]).await.unwrap()
    }

    pub async fn add_node(&self, name: &str) {
        let node: Node = object(json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}));
        self.nodes().create(&node).await.unwrap();
    }

    /// How much was written, with all that is on its way: the store writes in a thread of its own, one write after the
    /// other, and the world's time does not wait for it. So this writes something itself, which counts as nothing. Nor does
    /// an event whose time is over: its end is a revision more and an event less.
    async fn writes(&self) -> u64 {
        let marks = self.marks.fetch_add(1, Ordering::Relaxed) + 1;
        let mark: ConfigMap = object(json!({"metadata": {"name": format!("mark-{marks}")}}));
        Api::namespaced(self.client.clone(), "default").create(&mark).await.unwrap();
        let events = rest::read(&self.client, &Resource::of::<Event>().path("d", "", ""), Form::Whole).await.unwrap();
        let page = rest::page(&events).unwrap();
        page.metadata.resource_version.unwrap().parse::<u64>().unwrap() + page.items.len() as u64 - marks
    }

    /// How much was written when nobody writes any more. Events are written late, but not that late.
    async fn quiet(&self) -> u64 {
        let mut before = 0;
        for _ in 0..10 {
            clock::sleep(Duration::from_secs(60)).await;
            self.all_kubelets().await;
            let now = self.writes().await;
            if now == before {
                return now;
            }
            before = now;
        }
        panic!("somebody writes every minute");
    }

    /// Some time passes; a process that has died is started again, or not yet.
    async fn pass(&mut self) {
        clock::sleep(Duration::from_millis(below(3000))).await;
        if self.controllers.life.lock().is_over() && chance(70) {
            self.controllers.restart();
        }
    }

    /// Each Pod takes a step in its life, or does not.
    async fn some_kubelets(&self) {
        for pod in self.list::<Pod>().await {
            if chance(40) {
                continue;
            }
            let phase = phase(&pod);
            if pod.metadata.deletion_timestamp.is_some() {
                self.finish(&pod).await;
            } else if node_of(&pod).is_empty() {
                self.bind(&pod).await;
            } else if matches!(phase, "Pending" | "Running") {
                match below(12) {
                    0 => self.say(&pod, "Failed", false).await,
                    1 => self.say(&pod, "Succeeded", false).await,
                    2 | 3 => self.say(&pod, "Running", false).await,
                    _ => self.say(&pod, "Running", true).await,
                }
            }
        }
    }

    /// Every Pod is bound, runs and is ready, or is gone, as far as it depends on nodes.
    pub async fn all_kubelets(&self) {
        for pod in self.list::<Pod>().await {
            if pod.metadata.deletion_timestamp.is_some() {
                self.finish(&pod).await;
                continue;
            }
            if node_of(&pod).is_empty() {
                self.bind(&pod).await;
            }
            let ready = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let ready = ready.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
            if matches!(phase(&pod), "Pending" | "Running") && !ready {
                self.say(&pod, "Running", true).await;
            }
        }
    }

    /// The node's last word about a Pod.
    async fn finish(&self, pod: &Pod) {
        let options = DeleteOptions { grace_seconds: Some(0), uid: pod.metadata.uid.clone(), ..Default::default() };
        // It may be gone by now.
        let _ = self.api::<Pod>().delete(name(pod), options).await;
    }

    /// The scheduler's part: onto the node that the Pod asks for, or onto any, once its claims are there to stay.
    async fn bind(&self, pod: &Pod) {
        for claim in claims_of(pod) {
            let claim = self.api::<PersistentVolumeClaim>().get(&claim).await;
            if !claim.is_ok_and(|claim| claim.metadata.deletion_timestamp.is_none()) {
                return;
            }
        }
        let nodes: Vec<String> =
            self.nodes().list(&[]).await.unwrap().into_iter().filter_map(|n| n.metadata.name).collect();
        let asked = asked_node(pod);
        let node = match &asked {
            Some(asked) => nodes.iter().find(|n| *n == asked),
            None => nodes.get(below(nodes.len() as u64) as usize),
        };
        let Some(node) = node else { return };
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let pods = Resource::of::<Pod>();
        let bound = rest::write(&self.client, &pods, "d", name(pod), "binding", &Verb::Create(binding)).await;
        // It may be gone or going by now.
        let expected = |e: &client::Error| matches!(rest::reason(e), "NotFound" | "Conflict");
        assert!(bound.as_ref().err().is_none_or(expected), "a Pod cannot be bound: {bound:?}");
    }

    /// A kubelet's report.
    pub async fn say(&self, pod: &Pod, phase: &str, ready: bool) {
        let ready = json!({"type": "Ready", "status": if ready { "True" } else { "False" },
            "lastTransitionTime": clock::now_seconds().to_string()});
        let status = json!({"phase": phase, "conditions": [ready]});
        let _ = self.api::<Pod>().merge_patch(name(pod), "status", json!({"status": status})).await;
    }

    /// A user takes a Pod away.
    pub async fn delete_some_pod(&self) {
        let pods = self.list::<Pod>().await;
        if let Some(pod) = pods.get(below(pods.len().max(1) as u64) as usize) {
            let _ = self.api::<Pod>().delete(name(pod), DeleteOptions::default()).await;
        }
    }
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("")
}

/// The node that a Pod's affinity names.
pub fn asked_node(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    terms.iter().flat_map(|t| t.match_fields.iter().flatten()).find_map(|f| f.values.as_ref()?.first().cloned())
}
