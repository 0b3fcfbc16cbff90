//! A recorded history, checked: clients create, change, delete, read, list and watch the same objects while the server
//! is killed again and again, on the embedded store and on etcd, which is killed, stopped and compacted too.
//!
//! The promises that must hold are said in `checker`. The binary is the one that cargo built for this test, or
//! `$SKIFF`.

mod checker;
mod clients;
mod outages;
mod processes;
mod record;
mod watchers;
mod wrong_histories;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use checker::Figures;
use clients::{END, Worker, carry_out, noise};
use processes::{Etcd, Server};
use record::{Answer, Call, Fresh, History, Recorder, Seen};
use store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use watchers::{Manner, Watcher};

const WORKERS: usize = 4;
/// The number of answers that clients get between two blows.
const ANSWERS: usize = 400;
/// Reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster with clients at work.
struct Run {
    servers: Vec<Server>,
    etcd: Option<Etcd>,
    recorder: Recorder,
    stop: CancellationToken,
    workers: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<Vec<Seen>>>,
    /// Where the watcher is that is always there.
    attentive: Arc<AtomicU64>,
    end: Arc<AtomicU64>,
}

impl Run {
    async fn start(servers: Vec<Server>, etcd: Option<Etcd>) -> Run {
        let clients = || servers.iter().map(Server::client).collect::<Vec<_>>();
        let (recorder, stop, end) = (Recorder::new(), CancellationToken::new(), Arc::<AtomicU64>::default());
        let (mut watchers, mut places) = (Vec::new(), Vec::new());
        for manner in [Manner::Attentive, Manner::Attentive, Manner::Streaming, Manner::Lazy] {
            let watcher = Watcher::new(manner, clients(), end.clone());
            places.push(watcher.place.clone());
            watchers.push(tokio::spawn(watcher.run()));
        }
        while places[0].load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let workers = (0..WORKERS)
            .map(|number| tokio::spawn(Worker::new(number, clients(), recorder.clone()).run(stop.clone())))
            .collect();
        Run { servers, etcd, recorder, stop, workers, watchers, attentive: places.swap_remove(0), end }
    }

    /// Waits until the clients have got some more answers.
    async fn work(&self) {
        let (wanted, deadline) = (self.recorder.answered() + ANSWERS, Instant::now() + PATIENCE);
        while self.recorder.answered() < wanted {
            assert!(Instant::now() < deadline, "the clients get no answers\n{}", self.logs());
            assert!(!self.workers.iter().any(JoinHandle::is_finished), "a client gave up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn etcd(&mut self) -> &mut Etcd {
        self.etcd.as_mut().expect("this run has an etcd")
    }

    /// etcd forgets what lies before the place of the watcher that is always there.
    async fn compact(&mut self) {
        let revision = self.attentive.load(Ordering::SeqCst);
        self.etcd().connect().await.compact(revision).await.unwrap();
    }

    /// Lets the clients finish, and the watchers see the end; checks what they saw.
    async fn check(mut self) -> Figures {
        self.work().await;
        self.stop.cancel();
        for worker in std::mem::take(&mut self.workers) {
            worker.await.unwrap();
        }
        self.finish().await;
        let mut history = History { operations: self.recorder.operations(), watchers: Vec::new() };
        for watcher in std::mem::take(&mut self.watchers) {
            let seen = tokio::time::timeout(PATIENCE, watcher).await.expect("every watcher comes to the end");
            history.watchers.push(seen.unwrap());
        }
        let figures = checker::check(&history).unwrap_or_else(|complaints| {
            let (count, first) = (complaints.len(), &complaints[..complaints.len().min(10)]);
            panic!("{count} complaints, the first: {first:#?}\n{}", self.logs());
        });
        eprintln!("{figures:?}");
        assert!(figures.acknowledged > 50 && figures.reads > 50 && figures.events > figures.changes, "{figures:?}");
        figures
    }

    /// The last write, and a watcher that comes back when others have written since.
    async fn finish(&mut self) {
        let client = self.servers[0].client();
        let create = Call::Create { name: END.to_owned(), value: END.to_owned() };
        let list = Call::List(Fresh::Newest);
        let before = self.recorder.record(list.clone(), carry_out(&client, &list)).await;
        let Answer::Listed(revision, objects) = before else { panic!("nobody disturbs this list: {before:?}") };
        let written = self.recorder.record(create.clone(), carry_out(&client, &create)).await;
        let Answer::Written(last) = written else { panic!("nobody disturbs the last write: {written:?}") };
        noise(&client).await;
        self.end.store(last.revision, Ordering::SeqCst);
        for server in &self.servers {
            let back = Watcher::coming_back(revision, objects.clone(), vec![server.client()], self.end.clone());
            self.watchers.push(tokio::spawn(back.run()));
        }
        self.recorder.record(list.clone(), carry_out(&client, &list)).await;
    }

    fn logs(&self) -> String {
        self.servers.iter().map(Server::log).collect::<Vec<_>>().join("\n---\n")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_its_own_store_that_is_killed() {
    let mut run = Run::start(vec![Server::start(None).await], None).await;
    for _ in 0..6 {
        run.work().await;
        run.servers[0].kill_and_start().await;
    }
    run.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_etcd_and_both_are_killed() {
    let Some(etcd) = Etcd::start().await else { return };
    let mut run = Run::start(vec![Server::start(Some(&etcd)).await], Some(etcd)).await;
    for _ in 0..2 {
        run.work().await;
        run.servers[0].kill_and_start().await;
        run.work().await;
        run.etcd().kill_and_start().await;
        run.work().await;
        run.compact().await;
    }
    run.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_over_one_etcd() {
    let Some(etcd) = Etcd::start().await else { return };
    let first = Server::start(Some(&etcd)).await;
    let second = first.beside(&etcd).await;
    let servers = vec![first, second];
    let mut run = Run::start(servers, Some(etcd)).await;
    for at in [0, 1, 0] {
        run.work().await;
        run.servers[at].kill_and_start().await;
        run.work().await;
        run.etcd().freeze(Duration::from_secs(1)).await;
        run.work().await;
        run.compact().await;
    }
    run.check().await;
}
