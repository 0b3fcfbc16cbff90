//! A cluster of real components on hollow nodes, whose parts can be killed and started at will.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use apiserver::{User, auth};
use client::{
    Caches, Client, Key,
    election::{self, Candidate},
};
use clock::{Duration, Instant, Timestamp};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use store::{
    Range, Store, StoreError, Watch,
    embedded::{Embedded, Options, memory::Memory},
};
use tokio::task::JoinHandle;

use crate::{
    attacher,
    check::Model,
    duty::Component,
    fault::{Faults, Faulty, Line, Weather},
    hollow::{self, Profile},
    leaders, random,
    usage::Usage,
    witness::Witness,
};

/// A running cluster.
pub struct Cluster {
    seed: u64,
    /// How many controller managers there are. Several elect a leader.
    pub managers: usize,
    /// With which the managers run from their next start on.
    pub options: controllers::Options,
    line: Line,
    disk: Memory,
    pub weather: Weather,
    pub model: Arc<Mutex<Model>>,
    running: BTreeMap<Component, JoinHandle<()>>,
    checker: JoinHandle<()>,
    store: Arc<dyn Store>,
    /// How often history was cut off. A watch that was behind lists again.
    compactions: usize,
    told: Mutex<String>,
    /// Caches that live in the weather all the time.
    caches: Caches,
    witness: Witness,
    watching: JoinHandle<()>,
}

/// The seeds to run: those given, or the one in `SIM_SEED`. Each run in CI adds a fresh one, and `SIM_FRESH=n` adds n.
pub fn seeds(usual: impl IntoIterator<Item = u64>) -> Vec<u64> {
    if let Some(seed) = std::env::var("SIM_SEED").ok().and_then(|s| s.parse().ok()) {
        return vec![seed];
    }
    let mut seeds: Vec<u64> = usual.into_iter().collect();
    let asked = std::env::var("SIM_FRESH").ok().and_then(|n| n.parse().ok());
    for _ in 0..asked.unwrap_or(usize::from(std::env::var_os("CI").is_some())) {
        let fresh = clock::random_range(1_000..1 << 32);
        // The test harness keeps what `eprintln!` says of a test that passes.
        let _ = writeln!(std::io::stderr(), "a fresh seed, to be repeated with SIM_SEED={fresh}");
        seeds.push(fresh);
    }
    seeds
}

/// How often a story asks again whether something is done while nothing is written.
const ASKED_EVERY: Duration = Duration::from_secs(1);

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
            // `cargo test -- --nocapture` tells how much of a cluster's life was seen.
            eprintln!("seed {seed}: {} simulated seconds", clock::now().as_second() - start.as_second());
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
        let model: Arc<Mutex<Model>> = Arc::default();
        model.lock().traced = std::env::var_os("SIM_TRACE").is_some();
        let weather = Weather::new(Faults::NONE, Usage::of(model.clone()));
        let (disk, line) = (Memory::default(), Line::default());
        let (store, checker) = serve(&disk, &line, &model).await;
        let caches = Caches::new(client(&line, Some((&weather, None))));
        let _ = caches.of::<Pod>();
        let witness = Witness::default();
        let watching = tokio::spawn(witness.clone().watch(client(&line, Some((&weather, None)))));
        let running = BTreeMap::new();
        let mut cluster = Cluster {
            seed,
            managers: if seed.is_multiple_of(4) { 2 } else { 1 },
            options: controllers::Options::default(),
            line,
            disk,
            weather,
            model,
            running,
            checker,
            store,
            compactions: 0,
            told: Mutex::default(),
            caches,
            witness,
            watching,
        };
        (0..cluster.managers).for_each(|number| cluster.run(Component::Manager(number)));
        cluster.run(Component::Scheduler);
        (0..nodes).for_each(|number| cluster.run(Component::Node(number)));
        cluster
    }

    /// A client that no fault touches.
    pub fn client(&self) -> Client {
        client(&self.line, None)
    }

    /// A client whose requests and watches suffer from the weather.
    pub fn client_in_weather(&self) -> Client {
        client(&self.line, Some((&self.weather, None)))
    }

    /// Cuts the power of the machine with the API server and the store in the middle of a write, and starts both again.
    pub async fn cut_power(&mut self) {
        self.model.lock().power_cut = true;
        self.disk.die_at_sync();
        // Somebody writes within a heartbeat.
        self.until("the store is dead", Duration::from_secs(60), |m| m.store_ended).await;
        self.line.cut();
        clock::sleep(Duration::from_millis(clock::random_range(0..5000))).await;
        self.disk.lose_power(|unsynced| clock::random_range(0..unsynced as u64 + 1) as usize);
        self.checker.abort();
        (self.store, self.checker) = serve(&self.disk, &self.line, &self.model).await;
        let mut model = self.model.lock();
        (model.power_cut, model.store_ended) = (false, false);
    }

    /// Cuts off the history of the store, but for the last `kept` revisions.
    pub async fn compact(&mut self, kept: u64) {
        let revision = self.model.lock().revision.saturating_sub(kept).max(1);
        self.compactions += 1;
        match self.store.compact(revision).await {
            Ok(()) | Err(StoreError::Compacted { .. }) => {}
            Err(error) => self.fail(&format!("the store cannot be compacted: {error}")),
        }
    }

    /// Waits until nothing but heartbeats is written any more, and that this stays so.
    pub async fn stays_quiet(&self, time: Duration, limit: Duration) {
        let quiet = move |m: &Model| m.last_work.as_ref().is_none_or(|(_, at)| at.elapsed() >= time);
        let end = Instant::now() + limit;
        while !quiet(&self.model.lock()) {
            self.check_model("before the cluster is at rest");
            if Instant::now() >= end {
                let last = self.model.lock().last_work.as_ref().map(|(key, _)| key.clone());
                self.fail(&format!("the cluster does not come to rest; the last thing written is {last:?}"));
            }
            clock::sleep(Duration::from_secs(1)).await;
        }
        self.check("at rest");
    }

    /// Lets time pass, unless a checker objects.
    pub async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            clock::sleep_until(end.min(Instant::now() + ASKED_EVERY)).await;
            self.check_model("while time passes");
        }
    }

    /// Fails if the checkers of the store have objected: cheaper than asking all.
    fn check_model(&self, when: &str) {
        let objects = !self.model.lock().violations.is_empty();
        if objects {
            self.check(when);
        }
    }

    /// Notes a step of the story, for a failure.
    pub fn tell(&self, step: &str) {
        // `cargo test -- --nocapture` follows a story.
        eprintln!("{} {step}", clock::now());
        let mut told = self.told.lock();
        told.push_str(step);
        told.push_str("; ");
    }

    /// Starts a component. One that runs already is killed first.
    pub fn run(&mut self, component: Component) {
        self.kill(component);
        let client = client(&self.line, Some((&self.weather, Some(component))));
        let task = match component {
            Component::Manager(number) => {
                tokio::spawn(manage(client, (self.managers > 1).then_some(number), self.options.clone()))
            }
            Component::Scheduler => {
                tokio::spawn(scheduler::run(Caches::new(client), scheduler::Settings::default(), Arc::default()))
            }
            Component::Node(number) => tokio::spawn(hollow::run(client, Profile::new(number))),
            Component::Attacher => tokio::spawn(attacher::run(client)),
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
        let objections = self.objections(&self.model.lock());
        if !objections.is_empty() {
            self.fail(&format!("{when}: {objections}"));
        }
    }

    /// The objections of all checkers so far.
    fn objections(&self, model: &Model) -> String {
        let witness = self.witness.objection(&model.pod_changes);
        let all = model.violations.iter().cloned().chain(self.weather.trespasses()).chain(witness);
        all.collect::<Vec<_>>().join("; ")
    }

    /// Waits until nothing is under way, then compares what a fresh cache and one that lived through everything hold with
    /// the store.
    pub async fn quiesce(&self) {
        for cache in [&self.caches, &Caches::new(self.client())] {
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
        self.check("when nothing is under way");
        let (changes, lists) = self.witness.figures();
        if lists > 1 + self.compactions + changes / 100 {
            self.fail(&format!("a watch listed {lists} times for {changes} changes"));
        }
        let orphans = self.model.lock().orphans();
        if !orphans.is_empty() {
            self.fail(&format!("orphans: {}", orphans.join(", ")));
        }
    }

    /// Lets time pass until `done` says so. Fails when that takes longer than `limit`, or as soon as a checker objects.
    /// Changes reach the model in a task of their own. It is asked once it has seen all that was written before: a story
    /// that has just written something is not told that all is done by a model that does not know of the write.
    pub async fn until(&self, what: &str, limit: Duration, done: impl Fn(&Model) -> bool) {
        let end = Instant::now() + limit;
        // A store without power has no revision, and shows nothing more.
        let written = self.store.revision().await.unwrap_or_default();
        let mut asked: Option<(u64, Instant)> = None;
        loop {
            {
                let model = self.model.lock();
                if !model.violations.is_empty() {
                    self.fail(&format!("before {what}: {}", self.objections(&model)));
                }
                // The work that is to be done changes with the store, or with time.
                let (now, revision) = (Instant::now(), model.revision);
                let is_news = asked.is_none_or(|(seen, at)| seen != revision || now >= at + ASKED_EVERY);
                if is_news && (revision >= written || model.store_ended) {
                    asked = Some((revision, now));
                    if done(&model) {
                        return;
                    }
                }
                if now >= end {
                    let objections = self.objections(&model);
                    let seen = format!("revision {revision} of {written} seen");
                    self.fail(&format!("not {what} after {limit:?}: {seen}, {}; {objections}", model.summary()));
                }
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends the story with what went wrong and how to see it again.
    pub fn fail(&self, what: &str) -> ! {
        panic!("{}", failure(self.seed, &format!("{what}\nafter: {}", self.told.lock())))
    }
}

/// All controllers, in a process that has this number among several.
async fn manage(client: Client, number: Option<usize>, options: controllers::Options) {
    let work = || async {
        let caches = Caches::new(client.clone());
        let mut tasks = controllers::run(&caches, |_| client.clone(), &options);
        while tasks.join_next().await.is_some() {}
    };
    match number {
        None => work().await,
        Some(number) => {
            let identity = format!("manager-{number}_{}", clock::uuid());
            let me = Candidate::new("kube-system", leaders::LEASE, &identity);
            while election::lead(&client, &me, work()).await.is_none() {}
        }
    }
}

/// Opens the store and starts an API server on it; returns the store and the task that shows the model every change.
async fn serve(disk: &Memory, line: &Line, model: &Arc<Mutex<Model>>) -> (Arc<dyn Store>, JoinHandle<()>) {
    let options = Options { inline: true, abort_when_broken: false, reserve_bytes: 0, ..Options::default() };
    let store = Embedded::open_on(Arc::new(disk.clone()), options).unwrap_or_else(|error| panic!("the store: {error}"));
    let store: Arc<dyn Store> = Arc::new(store);
    let page = store.range(Range::prefix("/registry/")).await.expect("the store can be read");
    let after = {
        let mut model = model.lock();
        if model.revision > 0 {
            model.survived(&page.entries.iter().map(|e| (e.key.to_string(), e.modified)).collect(), page.revision);
        }
        (model.revision > 0).then_some(model.revision.min(page.revision))
    };
    let changes = store.watch("/registry/", after).await.expect("the store can be watched");
    let checker = tokio::spawn(follow(changes, model.clone()));
    let user = User::new("system:simulation", [auth::user::GROUP_MASTERS]).authenticated();
    line.connect(crate::server::start(store.clone()).await.in_process().as_user(user));
    (store, checker)
}

/// A client that may do everything, in the weather (as some component) or not.
fn client(line: &Line, weather: Option<(&Weather, Option<Component>)>) -> Client {
    let service = line.clone();
    match weather {
        Some((weather, sender)) => client::in_process(Faulty { service, weather: weather.clone(), sender }),
        None => client::in_process(service),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.checker.abort();
        self.watching.abort();
        self.running.values().for_each(JoinHandle::abort);
    }
}

/// Shows the model every change of the store.
async fn follow(mut changes: Watch, model: Arc<Mutex<Model>>) {
    while let Some(batch) = changes.next().await {
        let mut model = model.lock();
        match batch {
            Ok(batch) => batch.events.iter().for_each(|event| model.apply(event)),
            Err(_) if model.power_cut => model.store_ended = true,
            Err(error) => model.violations.push(format!("the store ended the checkers' watch: {error}")),
        }
    }
}
