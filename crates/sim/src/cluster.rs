//! A cluster of real components on hollow nodes, whose parts can be killed and started at will.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use apiserver::{Server, User, auth};
use client::{Caches, Client, EventRecorder};
use clock::{Duration, Instant, Timestamp};
use futures::StreamExt;
use parking_lot::Mutex;
use store::{Store, embedded::Embedded};
use tokio::task::JoinHandle;

use crate::{
    check::Model,
    fault::{Faults, Faulty, Weather},
    hollow::{self, Profile},
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
}

/// The seeds to run: those given, or the one in `SIM_SEED`.
pub fn seeds(usual: impl IntoIterator<Item = u64>) -> Vec<u64> {
    match std::env::var("SIM_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => usual.into_iter().collect(),
    }
}

/// Runs a story in a thread of its own under paused time. A panic in it tells the seed.
pub fn simulate<F: Future<Output = u64>>(seed: u64, story: impl FnOnce(u64) -> F) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads starts");
    runtime.block_on(async {
        let start = Timestamp::from_second(1_750_000_000).expect("a time of our days");
        clock::simulate(start, seed);
        story(seed).await
    })
}

impl Cluster {
    /// The server and all components, on `nodes` nodes, in good weather.
    pub async fn start(seed: u64, nodes: usize) -> Self {
        let store: Arc<dyn Store> = Arc::new(Embedded::memory());
        let model: Arc<Mutex<Model>> = Arc::default();
        let checker = tokio::spawn(follow(store.clone(), model.clone()));
        let server = crate::server::start(store).await;
        let weather = Weather::new(Faults::NONE);
        let mut cluster = Cluster { seed, server, weather, model, running: BTreeMap::new(), checker };
        cluster.run(Component::Controllers);
        cluster.run(Component::Scheduler);
        (0..nodes).for_each(|number| cluster.run(Component::Node(number)));
        cluster
    }

    fn user() -> User {
        User::new("system:simulation", [auth::user::GROUP_MASTERS]).authenticated()
    }

    /// A client that no fault touches.
    pub fn client(&self) -> Client {
        client::in_process(self.server.in_process().as_user(Self::user()))
    }

    /// A client in the weather.
    pub fn exposed_client(&self) -> Client {
        let service = self.server.in_process().as_user(Self::user());
        client::in_process(Faulty { service, weather: self.weather.clone() })
    }

    /// Starts a component. One that runs already is killed first.
    pub fn run(&mut self, component: Component) {
        self.kill(component);
        let client = self.exposed_client();
        let task = match component {
            Component::Controllers => tokio::spawn(async move {
                let recorder = EventRecorder::new(client.clone(), "controllers", None);
                let setup = controller::Setup { caches: Caches::new(client.clone()), client, recorder };
                controllers::run_all(setup).await;
            }),
            Component::Scheduler => {
                tokio::spawn(scheduler::run(Caches::new(client), scheduler::Settings::default()))
            }
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

    /// Lets time pass until `done` says so. Fails when that takes longer than `limit`, or as soon as a checker objects.
    pub async fn until(&self, what: &str, limit: Duration, done: impl Fn(&Model) -> bool) {
        let end = Instant::now() + limit;
        loop {
            {
                let model = self.model.lock();
                if !model.violations.is_empty() {
                    self.fail(&format!("while waiting until {what}: {}", model.violations.join("; ")));
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
        panic!("seed {}: {what}\nrepeat it with: SIM_SEED={} cargo test -p sim", self.seed, self.seed)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.checker.abort();
        self.running.values().for_each(JoinHandle::abort);
    }
}

/// Shows the model every change of the store.
async fn follow(store: Arc<dyn Store>, model: Arc<Mutex<Model>>) {
    let mut watch = store.watch("/registry/", Some(0)).await.expect("a new store has all its history");
    while let Some(batch) = watch.next().await {
        let mut model = model.lock();
        match batch {
            Ok(batch) => batch.events.iter().for_each(|event| model.apply(event)),
            Err(error) => model.violations.push(format!("the store ended the checkers' watch: {error}")),
        }
    }
}
