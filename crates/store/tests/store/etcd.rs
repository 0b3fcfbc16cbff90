//! The etcd backend against the list that every backend must pass, on a real etcd that is started for it.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use store::{
    Store, StoreError,
    etcd::{Etcd, Options},
};

/// A running etcd, gone with its data when this is dropped.
pub struct Server {
    process: Child,
    endpoint: String,
    peer: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// `None`, and a word about it, where there is no etcd.
    pub fn start() -> Option<Server> {
        let folder = tempfile::tempdir().unwrap();
        let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (endpoint, peer) = (format!("http://127.0.0.1:{}", port()), format!("http://127.0.0.1:{}", port()));
        match Self::spawn(folder.path(), &endpoint, &peer) {
            Ok(process) => Some(Server { process, endpoint, peer, folder }),
            Err(_) => {
                eprintln!("SKIPPED: no etcd on the path (Debian: etcd-server)");
                None
            }
        }
    }

    fn spawn(folder: &Path, endpoint: &str, peer: &str) -> std::io::Result<Child> {
        Command::new("etcd")
            .arg("--data-dir")
            .arg(folder)
            .args(["--listen-client-urls", endpoint, "--advertise-client-urls", endpoint])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again, after it was killed.
    pub fn start_again(&mut self) {
        self.process = Self::spawn(self.folder.path(), &self.endpoint, &self.peer).unwrap();
    }

    /// Kills it and starts it again at another place, where those who know the old one do not find it.
    pub fn move_away(&mut self) -> String {
        self.kill();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let place = std::mem::replace(&mut self.endpoint, format!("http://127.0.0.1:{port}"));
        self.start_again();
        place
    }

    pub fn move_back(&mut self, place: String) {
        self.kill();
        self.endpoint = place;
        self.start_again();
    }

    /// Makes it say nothing (`STOP`), or go on (`CONT`).
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
        // The last of its threads may still be answering when the signal has been sent.
        while name == "STOP" && !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).into_iter().flatten().flatten();
        let state = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        threads.into_iter().all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(state))
    }

    pub async fn connect(&self, prefix: &str) -> Etcd {
        self.connect_with(Options { prefix: prefix.to_owned(), ..Options::default() }).await
    }

    pub async fn connect_with(&self, options: Options) -> Etcd {
        let options = Options { endpoints: vec![self.endpoint.clone()], ..options };
        crate::behaviour::soon(async {
            loop {
                match Etcd::connect(options.clone()).await {
                    Ok(store) => return store,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        })
        .await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behaviour_on_a_real_etcd() {
    let Some(mut server) = Server::start() else { return };
    let beside = server.connect("").await;
    crate::behaviour::all(Arc::new(server.connect("/tenant").await)).await;
    let page = beside.range(store::Range::prefix("/")).await.unwrap();
    assert!(!page.entries.is_empty() && page.entries.iter().all(|e| e.key.starts_with("/tenant/")));

    // The end of the server ends watches and calls with an error, soon.
    let mut watch = beside.watch("/", None).await.unwrap();
    server.kill();
    let ended = crate::behaviour::soon(futures::StreamExt::next(&mut watch)).await;
    assert!(matches!(ended, Some(Err(StoreError::Unavailable(_)))), "{ended:?}");
    let failed = crate::behaviour::soon(beside.revision()).await;
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
}

#[tokio::test]
async fn an_address_where_nobody_answers_is_named() {
    let options = Options { endpoints: vec!["http://127.0.0.1:1".to_owned()], ..Options::default() };
    let error = crate::behaviour::soon(Etcd::connect(options)).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("etcd at http://127.0.0.1:1 cannot be used: nothing listens there"), "{error}");
}

/// Something that is no etcd: it says nothing in Rust's words.
#[tokio::test]
async fn what_is_no_etcd_is_told() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        }
    });
    for (scheme, host) in [("http", "127.0.0.1"), ("https", "127.0.0.1"), ("http", "no-such-host.invalid")] {
        let endpoint = format!("{scheme}://{host}:{port}");
        let options = Options { endpoints: vec![endpoint.clone()], ..Options::default() };
        let error = crate::behaviour::soon(Etcd::connect(options)).await.map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("etcd at {endpoint} cannot be used: ")), "{error}");
        for debug in ["Error(", "Error {", "Os {", "kind:", "ConnectError", "code: '"] {
            assert!(!error.contains(debug), "{error}");
        }
    }
    answers.abort();
}
