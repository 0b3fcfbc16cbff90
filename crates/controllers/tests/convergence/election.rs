//! Several processes that want to do the same work: one does it at any time, and soon another when it dies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use client::{
    Api, Body, Client,
    candidacy::Versions,
    election::{Candidate, lead},
};
use controllers::leader_election;
use json::json;
use k8s_openapi::api::{
    coordination::{
        v1::{Lease, LeaseSpec},
        v1beta1::LeaseCandidate,
    },
    core::v1::{ConfigMap, Event, Namespace},
};
use tokio::task::JoinHandle;

use crate::common::{self, object};

async fn server(seed: u64) -> Client {
    let client = common::server(seed).await;
    let namespace: Namespace = object(json!({"metadata": {"name": "kube-system"}}));
    Api::all(client.clone()).create(&namespace).await.unwrap();
    client
}

/// How the network between a process and the server is: how long a request and its answer take at most, in milliseconds.
/// More than a day is a broken one.
#[derive(Clone, Default)]
struct Network(Arc<AtomicU64>);

const BROKEN: u64 = u64::MAX;

impl Network {
    async fn pass(&self) {
        match self.0.load(Ordering::Relaxed) {
            0 => {}
            BROKEN => std::future::pending().await,
            slowest => clock::sleep(Duration::from_millis(clock::random_range(0..slowest))).await,
        }
    }

    fn client(&self, client: Client) -> Client {
        let network = self.clone();
        client::in_process(tower::service_fn(move |request: http::Request<Body>| {
            let (client, network) = (client.clone(), network.clone());
            async move {
                network.pass().await;
                let answer = client.send(request).await;
                network.pass().await;
                answer
            }
        }))
    }
}

/// A process that works whenever it leads.
struct Process {
    network: Network,
    task: JoinHandle<()>,
}

fn candidate(name: &str) -> Candidate {
    Candidate::new("kube-system", "work", name)
}

/// A candidate that behaves as this version, where the API server chooses.
fn coordinated(name: &str, emulation: &str) -> Candidate {
    let versions = Versions { binary: "1.35.0".to_owned(), emulation: emulation.to_owned() };
    Candidate { coordinated: Some(versions), ..candidate(name) }
}

impl Process {
    fn start(client: &Client, me: Candidate, at_work: Arc<AtomicBool>, turns: Arc<AtomicU64>) -> Self {
        let network = Network::default();
        let client = network.client(client.clone());
        let task = tokio::spawn(async move {
            loop {
                let work = async {
                    struct Ends(Arc<AtomicBool>);
                    impl Drop for Ends {
                        fn drop(&mut self) {
                            self.0.store(false, Ordering::Relaxed);
                        }
                    }
                    assert!(!at_work.swap(true, Ordering::Relaxed), "two are at work");
                    let _ends = Ends(at_work.clone());
                    turns.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                };
                lead(&client, &me, work).await;
            }
        });
        Process { network, task }
    }

    /// An API server's part in elections.
    fn choosing(client: &Client, name: &str) -> Self {
        let network = Network::default();
        let (client, name) = (network.client(client.clone()), name.to_owned());
        let task = tokio::spawn(async move { leader_election::run(client, &name).await });
        Process { network, task }
    }
}

async fn lease(client: &Client, name: &str) -> Option<LeaseSpec> {
    let api: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    api.find(name).await.unwrap()?.spec
}

async fn holder(client: &Client) -> Option<String> {
    lease(client, "work").await?.holder_identity
}

/// Processes die and are cut off, and answers come late, at random; two never work at once, and whenever one could work one does.
/// Where API servers choose among the processes, these die and are cut off too.
fn one_works(seed: u64, chosen: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let client = server(seed).await;
        let (at_work, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let begin = |name: &str| {
            if chosen && name.starts_with("server") {
                return Process::choosing(&client, name);
            }
            let emulation = format!("1.{}.0", 33 + clock::random_range(0..3));
            let me = if chosen { coordinated(name, &emulation) } else { candidate(name) };
            Process::start(&client, me, at_work.clone(), turns.clone())
        };
        let names: &[&str] = if chosen { &["a", "b", "c", "server-1", "server-2"] } else { &["a", "b", "c"] };
        let mut processes: Vec<Process> = names.iter().map(|name| begin(name)).collect();
        for round in 0..30 {
            let index = clock::random_range(0..names.len() as u64) as usize;
            match clock::random_range(0..4) {
                0 => {
                    processes[index].task.abort();
                    clock::sleep(Duration::from_millis(clock::random_range(1..20_000))).await;
                    // Upstream's identity has a random part: a process that comes back is another one.
                    processes[index] = begin(&format!("{}{round}", names[index]));
                }
                1 => processes[index].network.0.store(BROKEN, Ordering::Relaxed),
                2 => processes[index].network.0.store(clock::random_range(1..15_000), Ordering::Relaxed),
                _ => processes[index].network.0.store(0, Ordering::Relaxed),
            }
            clock::sleep(Duration::from_millis(clock::random_range(0..20_000))).await;
            assert!(processes.iter().all(|process| !process.task.is_finished()), "seed {seed}");
        }
        for process in &processes {
            process.task.abort();
        }
        processes =
            ["last", "least", "server-3"][..if chosen { 3 } else { 2 }].iter().map(|name| begin(name)).collect();
        clock::sleep(Duration::from_secs(if chosen { 60 } else { 30 })).await;
        assert!(at_work.load(Ordering::Relaxed), "nobody works with seed {seed}");
        assert!(turns.load(Ordering::Relaxed) > 1, "nobody was replaced with seed {seed}");
        drop(processes);
    });
}

#[test]
fn one_works_at_any_time() {
    (0..40).for_each(|seed| one_works(seed, false));
}

#[test]
fn one_that_was_chosen_works_at_any_time() {
    (0..20).for_each(|seed| one_works(seed, true));
}

#[tokio::test(start_paused = true)]
async fn the_one_that_behaves_as_the_oldest_takes_over() {
    let client = server(3).await;
    let _choosing = Process::choosing(&client, "server");
    let (at_work, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begin = |me| Process::start(&client, me, at_work.clone(), turns.clone());
    let _first = begin(coordinated("first", "1.35.0"));
    clock::sleep(Duration::from_secs(30)).await;
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("first"), 1));
    // One that is no better changes nothing.
    let _equal = begin(coordinated("second", "1.35.0"));
    clock::sleep(Duration::from_secs(60)).await;
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("first"), 1));
    let older = begin(coordinated("older", "1.34.0"));
    clock::sleep(Duration::from_secs(25)).await;
    assert!(at_work.load(Ordering::Relaxed));
    let held = lease(&client, "work").await.unwrap();
    assert_eq!(held.holder_identity.as_deref(), Some("older"));
    assert_eq!((held.strategy.as_deref(), held.preferred_holder), (Some("OldestEmulationVersion"), None));
    assert_eq!(held.lease_duration_seconds, Some(15));
    clock::sleep(Duration::from_secs(600)).await;
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("older"), 2));
    // It dies, and the best of the others follows; of the dead one nothing is left in the end.
    older.task.abort();
    clock::sleep(Duration::from_secs(40)).await;
    assert!(at_work.load(Ordering::Relaxed));
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("first"), 3));
    let candidates: Api<LeaseCandidate> = Api::namespaced(client.clone(), "kube-system");
    let names = async || -> Vec<String> {
        candidates.list(&[]).await.unwrap().into_iter().filter_map(|candidate| candidate.metadata.name).collect()
    };
    assert_eq!(names().await, ["first", "older", "second"]);
    clock::sleep(Duration::from_secs(35 * 60)).await;
    assert_eq!(names().await, ["first", "second"]);
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("first"), 3));
    let spec = candidates.get("first").await.unwrap().spec.unwrap();
    assert_eq!((spec.lease_name.as_str(), spec.binary_version.as_str()), ("work", "1.35.0"));
    let events: Vec<Event> = Api::namespaced(client.clone(), "kube-system").list(&[]).await.unwrap();
    let told: Vec<String> = events.into_iter().filter_map(|event| event.message).collect();
    for event in ["first became leader", "first stopped leading", "older became leader"] {
        assert!(told.iter().any(|message| message == event), "{event}: {told:?}");
    }
}

/// While the server that chooses dies and another takes its place, whoever leads goes on.
#[tokio::test(start_paused = true)]
async fn one_of_several_servers_chooses() {
    let client = server(4).await;
    let (at_work, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begin = |me| Process::start(&client, me, at_work.clone(), turns.clone());
    let one = Process::choosing(&client, "one");
    let _leader = begin(coordinated("leader", "1.35.0"));
    clock::sleep(Duration::from_secs(30)).await;
    let _two = Process::choosing(&client, "two");
    clock::sleep(Duration::from_secs(60)).await;
    let choosing = async || lease(&client, leader_election::NAME).await.unwrap().holder_identity;
    assert_eq!(choosing().await.as_deref(), Some("one"));
    one.task.abort();
    clock::sleep(Duration::from_secs(60)).await;
    assert_eq!(choosing().await.as_deref(), Some("two"));
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("leader"), 1));
    let _older = begin(coordinated("older", "1.34.0"));
    clock::sleep(Duration::from_secs(30)).await;
    assert_eq!((holder(&client).await.as_deref(), turns.load(Ordering::Relaxed)), (Some("older"), 2));
    assert!(at_work.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_when_its_lease_is_over() {
    let client = server(1).await;
    let (at_work, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let first = Process::start(&client, candidate("first"), at_work.clone(), turns.clone());
    clock::sleep(Duration::from_secs(1)).await;
    let _second = Process::start(&client, candidate("second"), at_work.clone(), turns.clone());
    clock::sleep(Duration::from_secs(60)).await;
    assert_eq!(holder(&client).await.as_deref(), Some("first"));
    // Killed, it cannot give the lease up.
    first.task.abort();
    clock::sleep(Duration::from_secs(12)).await;
    assert!(!at_work.load(Ordering::Relaxed));
    clock::sleep(Duration::from_secs(8)).await;
    assert!(at_work.load(Ordering::Relaxed));
    assert_eq!(holder(&client).await.as_deref(), Some("second"));
    clock::sleep(Duration::from_secs(60)).await;
    let events: Vec<Event> = Api::namespaced(client.clone(), "kube-system").list(&[]).await.unwrap();
    let mut told: Vec<String> = events.into_iter().filter_map(|event| event.message).collect();
    told.sort();
    assert_eq!(told, ["first became leader", "second became leader"]);
}

/// The work of a leader that is killed between two writes is done to its end by the next one, each piece once.
#[tokio::test(start_paused = true)]
async fn work_goes_on_where_the_dead_leader_left_it() {
    let client = server(2).await;
    let worker = |name: &'static str| {
        let client = client.clone();
        tokio::spawn(async move {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
            let work = async {
                for number in 0..20 {
                    let name = format!("piece-{number}");
                    if maps.find(&name).await.unwrap().is_none() {
                        let map = json!({"metadata": {"name": name}});
                        maps.create(&object(map)).await.unwrap();
                    }
                    clock::sleep(Duration::from_secs(1)).await;
                }
            };
            lead(&client, &Candidate::new("kube-system", "work", name), work).await
        })
    };
    let first = worker("first");
    clock::sleep(Duration::from_millis(7500)).await;
    let second = worker("second");
    first.abort();
    assert_eq!(second.await.unwrap(), Some(()));
    let maps: Vec<ConfigMap> = Api::namespaced(client.clone(), "kube-system").list(&[]).await.unwrap();
    assert_eq!(maps.len(), 20);
    // It is done and has given the lease up: whoever comes next need not wait.
    assert_eq!(holder(&client).await.as_deref(), Some(""));
}
