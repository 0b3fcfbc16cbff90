//! The process of a further node: a `skiff agent` that ends with its parent, and is started again when it ends by itself.

use std::{ffi::OsString, path::PathBuf, process::Stdio};

use anyhow::{Context, bail};
use clock::Duration;
use files::modes;
use tokio::{
    process::{Child, ChildStdin, Command},
    sync::watch,
    task::JoinSet,
};

use crate::siblings::Sibling;

/// Set for an agent that ends when its standard input does: the other end is with its parent, and closes however that ends.
const LIFELINE: &str = "SKIFF_LIFELINE";
/// The configuration file is its parent's; what counts of it is in the flags.
pub const NO_FILE: (&str, &str) = ("SKIFF_CONFIG", "/dev/null");
/// How long an agent gets to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn binary() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the skiff binary")
}

/// Resolves when the process ends that this one is to end with; never, if there is none.
pub async fn parent_ended() {
    if std::env::var_os(LIFELINE).is_none() {
        return std::future::pending().await;
    }
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait for a read that may never end.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        // The receiver is gone when the process ends for another reason.
        let _ = tell.send(());
    });
    let _ = told.await;
}

/// The arguments and settings that an agent is started with.
#[derive(Debug, Clone)]
pub struct Orders {
    pub sibling: Sibling,
    pub name: String,
    pub args: Vec<OsString>,
    pub token: String,
}

impl Orders {
    fn spawn(&self) -> anyhow::Result<Agent> {
        let path = self.sibling.layout.log();
        let log = modes::append(&path, modes::LOG_FILE);
        let log = log.with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = Command::new(binary()?);
        command
            .args(&self.args)
            .env(LIFELINE, "1")
            .env("SKIFF_TOKEN", &self.token)
            .env(NO_FILE.0, NO_FILE.1)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // A signal that a terminal sends goes to the parent, which ends this one in its turn.
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start the node {}", self.name))?;
        // Waiting for a process would close what it holds of its standard input.
        let lifeline = child.stdin.take();
        Ok(Agent { child, lifeline })
    }

    /// Why a process ended that should not have.
    fn last_words(&self) -> String {
        let path = self.sibling.layout.log();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        format!("{} (log: {})", line.trim_start_matches("skiff: "), path.display())
    }
}

/// An agent that was started, and what it ends with.
struct Agent {
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Agent {
    async fn end(mut self) {
        drop(self.lifeline.take());
        if clock::timeout(PATIENCE, self.child.wait()).await.is_err() {
            // It may end at just this moment.
            let _ = self.child.kill().await;
        }
    }
}

/// The processes of the further nodes. They end when it is dropped; [`Family::stop`] waits for that.
pub struct Family {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Default for Family {
    fn default() -> Self {
        Family { tasks: JoinSet::new(), stop: watch::channel(false).0 }
    }
}

impl Family {
    /// Starts a node, and waits until it is ready. From then on it is started again whenever it ends.
    pub async fn start<T>(
        &mut self,
        orders: Orders,
        ready: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut agent = orders.spawn()?;
        let ready = tokio::select! {
            ready = ready => ready,
            _ = agent.child.wait() => bail!("the node {} did not start: {}", orders.name, orders.last_words()),
        };
        if ready.is_ok() {
            self.tasks.spawn(supervise(orders, agent, self.stop.subscribe()));
        }
        ready
    }

    /// Ends all of them, and waits until they have ended.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Resolves when all are to end.
async fn told(stop: &mut watch::Receiver<bool>) {
    // Nobody who could tell is left: then, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn supervise(orders: Orders, mut agent: Agent, mut stop: watch::Receiver<bool>) {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(30);
    let mut wait = FIRST;
    loop {
        let started = clock::Instant::now();
        tokio::select! {
            _ = agent.child.wait() => {}
            () = told(&mut stop) => return agent.end().await,
        }
        tracing::warn!(node = orders.name, "the node's process ended, starting it again: {}", orders.last_words());
        wait = if started.elapsed() > LONGEST { FIRST } else { (wait * 2).min(LONGEST) };
        tokio::select! {
            () = clock::sleep(wait) => {}
            () = told(&mut stop) => return,
        }
        match orders.spawn() {
            Ok(next) => agent = next,
            // The process that has ended is waited for once more, and ends this at once.
            Err(error) => tracing::error!("{}", crate::sentence::sentence(&error)),
        }
    }
}
