//! An etcd cluster of three members: one that is gone, or says nothing, is noticed by nobody but those who were just writing.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use store::{
    Expect, StoreError,
    etcd::{Etcd, Options, watch_cache::WatchCache},
};
use tempfile::TempDir;

use crate::behaviour::{Shared, events, put, soon};

const COUNT: usize = 3;

/// Three members, gone with their data when this is dropped.
struct Cluster {
    folder: TempDir,
    clients: Vec<String>,
    peers: Vec<String>,
    members: Vec<Child>,
}

impl Cluster {
    /// `None`, and a word about it, where there is no etcd.
    fn start() -> Option<Cluster> {
        let url = |_| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            format!("http://{}", listener.local_addr().unwrap())
        };
        let (clients, peers) = ((0..COUNT).map(url).collect(), (0..COUNT).map(url).collect());
        let mut cluster = Cluster { folder: tempfile::tempdir().unwrap(), clients, peers, members: Vec::new() };
        for at in 0..COUNT {
            let Ok(member) = cluster.spawn(at) else {
                eprintln!("SKIPPED: no etcd on the path (Debian: etcd-server)");
                return None;
            };
            cluster.members.push(member);
        }
        Some(cluster)
    }

    fn spawn(&self, at: usize) -> std::io::Result<Child> {
        let (client, peer) = (&self.clients[at], &self.peers[at]);
        let all: Vec<String> = self.peers.iter().enumerate().map(|(n, peer)| format!("m{n}={peer}")).collect();
        Command::new("etcd")
            .args(["--name", &format!("m{at}"), "--log-level", "error", "--initial-cluster", &all.join(",")])
            .arg("--data-dir")
            .arg(self.folder.path().join(at.to_string()))
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    fn options(&self) -> Options {
        Options { endpoints: self.clients.clone(), prefix: "/several".to_owned(), ..Options::default() }
    }

    async fn connect(&self) -> Etcd {
        soon(async {
            loop {
                if let Ok(etcd) = Etcd::connect(self.options()).await {
                    return etcd;
                }
            }
        })
        .await
    }

    fn kill(&mut self, at: usize) {
        self.members[at].kill().unwrap();
        self.members[at].wait().unwrap();
    }

    fn start_again(&mut self, at: usize) {
        self.members[at] = self.spawn(at).unwrap();
    }

    fn signal(&self, at: usize, name: &str) {
        let pid = self.members[at].id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// Writes until one write succeeds: the members may have to agree on a leader first, and who writes to a member as it goes is told
/// that nobody knows what became of it.
async fn until_written(store: &Shared, key: &str) {
    soon(async {
        loop {
            match put(store, key, "1", Expect::Any).await {
                Ok(_) => return,
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await;
}

/// From here on everything succeeds, however often it is tried.
async fn all_is_well(store: &Shared, what: &str) {
    for n in 0..40 {
        let key = format!("/{what}/{n}");
        let written =
            soon(put(store, &key, "1", Expect::Absent)).await.unwrap_or_else(|error| panic!("{key}: {error}"));
        let read = soon(store.get(&key)).await.unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(read.0, Some(written));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_less_is_nobodys_business() {
    let Some(mut cluster) = Cluster::start() else { return };
    let plain: Shared = Arc::new(cluster.connect().await);
    let cached: Shared = Arc::new(WatchCache::open(cluster.connect().await, "/").await.unwrap());
    let mut watch = cached.watch("/seen/", None).await.unwrap();
    until_written(&plain, "/ready").await;
    for at in 0..COUNT {
        cluster.kill(at);
        // One that starts meanwhile finds the others.
        let late: Shared = Arc::new(cluster.connect().await);
        for (name, store) in [("plain", &plain), ("cached", &cached), ("late", &late)] {
            until_written(store, "/again").await;
            all_is_well(store, &format!("{name}{at}")).await;
        }
        put(&plain, &format!("/seen/{at}"), "1", Expect::Absent).await.unwrap();
        cluster.start_again(at);
        // All three are there again before the next one goes.
        let only = Options { endpoints: vec![cluster.clients[at].clone()], ..cluster.options() };
        soon(async { while Etcd::connect(only.clone()).await.is_err() {} }).await;
        until_written(&plain, "/ready").await;
    }
    assert_eq!(events(&mut watch, COUNT).await, ["/seen/0=1", "/seen/1=1", "/seen/2=1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_says_nothing_is_left() {
    let Some(cluster) = Cluster::start() else { return };
    let cached: Shared = Arc::new(WatchCache::open(cluster.connect().await, "/").await.unwrap());
    let mut watch = cached.watch("/seen/", None).await.unwrap();
    until_written(&cached, "/ready").await;
    for at in 0..COUNT {
        cluster.signal(at, "STOP");
        // Whoever reads waits for a moment and does not learn of it, unless the leader has gone.
        soon(async { while cached.get("/ready").await.is_err() {} }).await;
        until_written(&cached, "/again").await;
        all_is_well(&cached, &format!("without{at}")).await;
        put(&cached, &format!("/seen/{at}"), "1", Expect::Absent).await.unwrap();
        cluster.signal(at, "CONT");
        until_written(&cached, "/ready").await;
    }
    assert_eq!(events(&mut watch, COUNT).await, ["/seen/0=1", "/seen/1=1", "/seen/2=1"]);
}

#[tokio::test]
async fn all_addresses_are_named_where_nobody_answers() {
    let endpoints = ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(str::to_owned).into();
    let options = Options { endpoints, ..Options::default() };
    let error = soon(Etcd::connect(options)).await.map(drop).unwrap_err().to_string();
    let expected = "etcd at http://127.0.0.1:1, http://127.0.0.1:2 cannot be used: nothing listens there";
    assert!(error.contains(expected), "{error}");
}
