//! Servers and an etcd in processes of their own, which can be killed and started again.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use client::{Client, rest};
use store::etcd::{Etcd as Connection, Options};

/// Long enough for a start on a slow machine; reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An API server alone, always on the same port and data folder.
pub struct Server {
    folder: tempfile::TempDir,
    flags: Vec<String>,
    process: Option<Process>,
}

impl Server {
    pub async fn start(etcd: Option<&Etcd>) -> Server {
        Self::start_in(tempfile::tempdir().unwrap(), etcd).await
    }

    /// Another server of the same cluster: it has the keys of the first.
    pub async fn beside(&self, etcd: &Etcd) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (self.folder.path().join("data"), folder.path().join("data"));
        fs::create_dir_all(to.join("pki")).unwrap();
        fs::copy(from.join("version"), to.join("version")).unwrap();
        for file in fs::read_dir(from.join("pki")).unwrap().map(|file| file.unwrap()) {
            fs::copy(file.path(), to.join("pki").join(file.file_name())).unwrap();
        }
        Self::start_in(folder, Some(etcd)).await
    }

    async fn start_in(folder: tempfile::TempDir, etcd: Option<&Etcd>) -> Server {
        let mut flags: Vec<String> = [
            "server",
            "--bind-address=127.0.0.1",
            "--advertise-address=10.255.0.1",
            "--disable=scheduler,controllers,dns",
        ]
        .map(str::to_owned)
        .into();
        flags.push(format!("--secure-port={}", free_port()));
        flags.push(format!("--data-dir={}", folder.path().join("data").display()));
        flags.extend(etcd.map(|etcd| format!("--etcd-servers={}", etcd.endpoint)));
        let mut server = Server { folder, flags, process: None };
        server.spawn().await;
        server
    }

    /// No last word, no last write: the process is gone. Then it starts again.
    pub async fn kill_and_start(&mut self) {
        self.process = None;
        self.spawn().await;
    }

    async fn spawn(&mut self) {
        let binary =
            std::env::var_os("SKIFF").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_skiff")), PathBuf::from);
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let process = Command::new(binary)
            .args(&self.flags)
            .env("SKIFF_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the server's binary starts");
        self.process = Some(Process(process));
        self.until_ready().await;
    }

    pub async fn until_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready().await {
            assert!(Instant::now() < deadline, "no server:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn is_ready(&self) -> bool {
        self.kubeconfig().exists() && rest::read(&self.client(), "/readyz", rest::Form::Whole).await.is_ok()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("data/admin.kubeconfig")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn client(&self) -> Client {
        client::connect::from_kubeconfig(&self.kubeconfig()).unwrap()
    }
}

pub struct Etcd {
    folder: tempfile::TempDir,
    pub endpoint: String,
    peer: String,
    process: Option<Process>,
}

impl Etcd {
    /// `None` where there is no etcd on this machine.
    pub async fn start() -> Option<Etcd> {
        let folder = tempfile::tempdir().unwrap();
        let url = || format!("http://127.0.0.1:{}", free_port());
        let mut etcd = Etcd { folder, endpoint: url(), peer: url(), process: None };
        if etcd.spawn().is_err() {
            eprintln!("SKIPPED: no etcd on the path (Debian: etcd-server)");
            return None;
        }
        etcd.connect().await;
        Some(etcd)
    }

    fn spawn(&mut self) -> std::io::Result<()> {
        let data: &Path = self.folder.path();
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(data)
            .args(["--listen-client-urls", &self.endpoint, "--advertise-client-urls", &self.endpoint])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", &format!("default={}", self.peer), "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.process = Some(Process(process));
        Ok(())
    }

    pub async fn connect(&self) -> Connection {
        let options = Options { endpoints: vec![self.endpoint.clone()], ..Options::default() };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Connection::connect(options.clone()).await {
                Ok(connection) => return connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    pub async fn kill_and_start(&mut self) {
        self.kill();
        self.spawn().expect("what started once starts again");
        self.connect().await;
    }

    /// It says nothing for a while, and then goes on.
    pub async fn freeze(&self, time: Duration) {
        self.signal("STOP");
        tokio::time::sleep(time).await;
        self.signal("CONT");
        self.connect().await;
    }

    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("it runs").signal(name);
    }
}
