//! A cluster of real components on hollow nodes, whose parts can be killed and started at will.

use std::{collections::BTreeMap, sync::Arc};

use apiserver::{Server, User, auth};
use client::{Caches, Client, Key};
use clock::{Duration, Instant, Timestamp};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use store::{Store, Watch, embedded::Embedded};
use tokio::task::JoinHandle;

use crate::{
    check::Model,
    fault::{Faults, Faulty, Weather},
    hollow::{self, Profile},
    random,
};

/// A part that can be killed and started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    Controllers,
    Scheduler,
    Node(usize),
}

/// See the module.
pub struct Cluster {
    seed: u64,
    server: Server,
    pub weather: Weather,
    pub model: Arc<Mutex<Model>>,
    running: BTreeMap<Component, JoinHandle<()>>,
    checker: JoinHandle<()>,
    /// Caches that live in the weather all the time.
    witness: Caches,
}

/// The seeds to run: those given, or the one in `SIM_SEED`.
pub fn seeds(usual: impl IntoIterator<Item = u64>) -> Vec<u64> {
    match std::env::var("SIM_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => usual.into_iter().collect(),
    }
}

/// The longest that a story may take, in its own time.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Runs a story on a thread of its own under paused time, with all randomness from the seed.
pub fn simulate<T: Send>(seed: u64, story: impl AsyncFnOnce(u64) -> T + Send) -> T {
    let run = || {
        random::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads starts");
        runtime.block_on(async {
            let start = Timestamp::from_second(1_750_000_000).expect("a time of our days");
            clock::simulate(start, seed);
            let ended = clock::timeout(LIMIT, story(seed)).await;
            ended.unwrap_or_else(|_| panic!("{}", failure(seed, &format!("not at its end after {LIMIT:?}"))))
        })
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn failure(seed: u64, what: &str) -> String {
    format!("seed {seed}: {what}\nrepeat it with: SIM_SEED={seed} cargo test -p sim")
}

impl Cluster {
    /// The server and all components, on `nodes` nodes, in good weather.
    pub async fn start(seed: u64, nodes: usize) -> Self {
        let store: Arc<dyn Store> = Arc::new(Embedded::memory());
        let model: Arc<Mutex<Model>> = Arc::default();
        let changes = store.watch("/registry/", None).await.expect("a new store can be watched");
        let checker = tokio::spawn(follow(changes, model.clone()));
        let server = crate::server::start(store).await;
        let weather = Weather::new(Faults::NONE);
        let witness = Caches::new(client(&server, Some(&weather)));
        let _ = witness.of::<Pod>();
        let mut cluster = Cluster { seed, server, weather, model, running: BTreeMap::new(), checker, witness };
        cluster.run(Component::Controllers);
        cluster.run(Component::Scheduler);
        (0..nodes).for_each(|number| cluster.run(Component::Node(number)));
        cluster
    }

    /// A client that no fault touches.
    pub fn client(&self) -> Client {
        client(&self.server, None)
    }

    /// Starts a component. One that runs already is killed first.
    pub fn run(&mut self, component: Component) {
        self.kill(component);
        let client = client(&self.server, Some(&self.weather));
        let task = match component {
            Component::Controllers => tokio::spawn(async move {
                let caches = Caches::new(client.clone());
                let mut tasks = controllers::run(&caches, |_| client.clone(), &controllers::Options::default());
                while tasks.join_next().await.is_some() {}
            }),
            Component::Scheduler => tokio::spawn(scheduler::run(Caches::new(client), scheduler::Settings::default())),
            Component::Node(number) => tokio::spawn(hollow::run(client, Profile::new(number))),
        };
        self.running.insert(component, task);
    }

    /// Ends a component at whatever it is waiting for.
    pub fn kill(&mut self, component: Component) {
        if let Some(task) = self.running.remove(&component) {
            task.abort();
        }
    }

    /// Fails if a checker has objected.
    pub fn check(&self, when: &str) {
        let violations = self.model.lock().violations.join("; ");
        if !violations.is_empty() {
            self.fail(&format!("{when}: {violations}"));
        }
    }

    /// Waits until nothing is under way, then compares what a fresh cache and one that lived through everything hold with
    /// the store.
    pub async fn quiesce(&self) {
        for cache in [&self.witness, &Caches::new(self.client())] {
            let pods = cache.of::<Pod>();
            pods.synced().await;
            let same = || {
                let model = self.model.lock();
                let stored = model.pods().map(|p| (Key::of(p), p.metadata.uid.clone()));
                let cached = pods.list();
                stored.eq(cached.iter().map(|p| (Key::of(&**p), p.metadata.uid.clone())))
            };
            let end = Instant::now() + Duration::from_secs(60);
            while !same() {
                if Instant::now() >= end {
                    self.fail("a cache does not hold what the store holds");
                }
                clock::sleep(Duration::from_millis(100)).await;
            }
        }
        let orphans = self.model.lock().orphans();
        if !orphans.is_empty() {
            self.fail(&format!("orphans: {}", orphans.join(", ")));
        }
    }

    /// Lets time pass until `done` says so. Fails when that takes longer than `limit`, or as soon as a checker objects.
    pub async fn until(&self, what: &str, limit: Duration, done: impl Fn(&Model) -> bool) {
        let end = Instant::now() + limit;
        loop {
            {
                let model = self.model.lock();
                if !model.violations.is_empty() {
                    self.fail(&format!("before {what}: {}", model.violations.join("; ")));
                }
                if done(&model) {
                    return;
                }
                if Instant::now() >= end {
                    self.fail(&format!("not {what} after {limit:?}: {}", model.summary()));
                }
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends the story with what went wrong and how to see it again.
    pub fn fail(&self, what: &str) -> ! {
        panic!("{}", failure(self.seed, what))
    }
}

/// A client that may do everything, in the weather or not.
fn client(server: &Server, weather: Option<&Weather>) -> Client {
    let user = User::new("system:simulation", [auth::user::GROUP_MASTERS]).authenticated();
    let service = server.in_process().as_user(user);
    match weather {
        Some(weather) => client::in_process(Faulty { service, weather: weather.clone() }),
        None => client::in_process(service),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.checker.abort();
        self.running.values().for_each(JoinHandle::abort);
    }
}

/// Shows the model every change of the store.
async fn follow(mut changes: Watch, model: Arc<Mutex<Model>>) {
    while let Some(batch) = changes.next().await {
        let mut model = model.lock();
        match batch {
            Ok(batch) => batch.events.iter().for_each(|event| model.apply(event)),
            Err(error) => model.violations.push(format!("the store ended the checkers' watch: {error}")),
        }
    }
}
