//! The process that is measured: started in a folder of its own, looked at through /proc, ended with the run.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    api::Api,
    load::{Run, drive},
};

const TOKEN: &str = "bench-token-of-this-run-only";
/// Users beside the administrator: they may do what a row allows them, and one of them asks for more than its share.
pub const USERS: [&str; 2] = ["worker", "glutton"];

/// A path for files of this run, on the disk that data folders are on (memory would flatter the figures).
pub fn scratch(name: &str) -> anyhow::Result<PathBuf> {
    let folder = PathBuf::from("/var/tmp").join(format!("skiff-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.join(name))
}

/// A control plane in the foreground.
pub struct Server {
    child: Child,
    folder: PathBuf,
    address: SocketAddr,
    pub api: Api,
    pub ready_millis: f64,
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Where something of this run can listen.
pub fn free_url() -> anyhow::Result<String> {
    Ok(format!("http://127.0.0.1:{}", free_port()?))
}

impl Server {
    /// Starts `skiff server` with further flags and waits until it says that it is ready.
    pub async fn start(skiff: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let port = free_port()?;
        // Two may stand beside each other.
        let (folder, said) = (scratch(&format!("server-{port}"))?, scratch(&format!("server-{port}.log"))?);
        let tokens = scratch("tokens.csv")?;
        let users = USERS.map(|user| format!("{TOKEN}-{user},{user},{user},workers\n")).concat();
        std::fs::write(&tokens, format!("{TOKEN},bench,bench,\"system:masters\"\n{users}"))?;
        let log = std::fs::File::create(&said)?;
        let begun = Instant::now();
        let child = Command::new(skiff)
            .args(["server", "--bind-address=127.0.0.1", "--data-dir"])
            .arg(&folder)
            .arg(format!("--secure-port={port}"))
            .arg("--token-auth-file")
            .arg(&tokens)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", skiff.display()))?;
        let mut child = Ended(Some(child));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let deadline = begun + Duration::from_secs(30);
        let (api, ready_millis) = loop {
            if let Some(status) = child.0.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                bail!("the server ended ({status}); its log is {}", said.display());
            }
            if let Ok(authority) = std::fs::read_to_string(folder.join("pki/ca.crt"))
                && let Ok(api) = Api::connect(address, &authority, TOKEN, 4).await
                && api.get("/readyz").await.is_ok()
            {
                break (api, begun.elapsed().as_secs_f64() * 1000.0);
            }
            if Instant::now() > deadline {
                bail!("the server is not ready after 30 s; its log is {}", said.display());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let child = child.0.take().context("the child is there")?;
        Ok(Server { child, folder, address, api, ready_millis })
    }

    /// Drives calls to this server, and sees what CPU time of its own each of them takes. Rates swing with what else the
    /// machine does; that does not.
    pub async fn drive<F, Fut, T>(&self, n: usize, in_flight: usize, call: F) -> anyhow::Result<Run>
    where
        F: Fn(usize) -> Fut,
        Fut: Future<Output = anyhow::Result<T>>,
    {
        let before = self.cpu_seconds();
        let mut run = drive(n, in_flight, call).await?;
        run.cpu_micros = (self.cpu_seconds() - before) / n as f64 * 1e6;
        Ok(run)
    }

    /// Where the server listens, and the authorities that it made.
    pub fn way(&self) -> anyhow::Result<(String, pki::Pki)> {
        Ok((format!("https://{}", self.address), pki::Pki::open(&self.folder.join("pki"))?))
    }

    /// One of [`USERS`], over connections of its own.
    pub async fn user(&self, name: &str, connections: usize) -> anyhow::Result<Api> {
        self.way_of(name)?(connections).await
    }

    /// The way in of one of [`USERS`], for a runtime that may be another one.
    pub fn way_of(&self, name: &str) -> anyhow::Result<impl AsyncFnOnce(usize) -> anyhow::Result<Api> + Send + use<>> {
        let authority = std::fs::read_to_string(self.folder.join("pki/ca.crt"))?;
        let (address, token) = (self.address, format!("{TOKEN}-{name}"));
        Ok(async move |connections| Api::connect(address, &authority, &token, connections).await)
    }

    pub fn cpu_seconds(&self) -> f64 {
        used(self.child.id()).0
    }

    /// Resident memory in MB.
    pub fn resident_mb(&self) -> f64 {
        resident_mb(self.child.id())
    }
}

struct Ended(Option<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// It is asked to end: one that was built to tell which ways requests took writes that when it does.
impl Drop for Server {
    fn drop(&mut self) {
        let ends = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).is_ok();
        let late = Instant::now() + Duration::from_secs(10);
        while ends && Instant::now() < late && !self.child.try_wait().is_ok_and(|status| status.is_some()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Removes the files of this run.
pub fn clean_up() {
    if let Ok(path) = scratch("") {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Resident memory of a process in MB; 0 when it is gone.
pub fn resident_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("0");
    let kib: f64 = line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    kib * 1024.0 / 1e6
}

/// CPU seconds and bytes written that a process has used so far.
pub fn used(pid: u32) -> (f64, f64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let written = io.lines().find_map(|l| l.strip_prefix("write_bytes: ")).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    // The kernel counts in ticks of a hundredth of a second on every architecture Linux runs on today.
    ((ticks(11) + ticks(12)) / 100.0, written)
}

/// Runs a command and fails with what it said.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let out = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!("{command:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(text)
}
