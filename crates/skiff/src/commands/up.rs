//! `skiff up`: starts the cluster in a process of its own, shows its steps, and returns when it is ready.

use std::{
    os::fd::OwnedFd,
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context, bail};
use files::modes;

use crate::{
    commands::{agent, check, down, server},
    flags::options::Up,
    holder,
    layout::Layout,
    node::alone,
    program_text,
    progress::{self, Message, Progress},
    siblings::{self, join, process::Family},
};

/// Set for the process that stays: its standard output is the pipe that the steps go to.
const STAYS: &str = "SKIFF_PROGRESS";

pub fn run(options: Up) -> anyhow::Result<ExitCode> {
    if std::env::var_os(STAYS).is_some() {
        return stay(options);
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("`skiff up` makes network interfaces, cgroups and mounts and so needs root; run it with sudo");
    }
    options.control_plane.check()?;
    siblings::check(&options)?;
    let layout = Layout::new(&options.common.data_dir);
    layout.open()?;
    if let Some(pid) = still_holding(&layout) {
        println!("skiff runs already (process {pid})");
        println!("export KUBECONFIG={}", layout.admin_kubeconfig().display());
        return Ok(ExitCode::SUCCESS);
    }
    check::require(&check::for_cluster(&options))?;
    if options.foreground {
        options.common.logging.install()?;
        return cluster(options, Progress::default());
    }
    start(&options, &layout)
}

/// The process that holds the folder and goes on holding it: one that was just killed lets go within a moment, on a busy machine within
/// a long one.
fn still_holding(layout: &Layout) -> Option<i32> {
    const PAUSE: Duration = Duration::from_millis(50);
    const LOOKS: usize = 10;
    const LOOKS_AT_DYING: usize = 600;
    let mut looks = 0;
    loop {
        let pid = layout.holder()?;
        looks += 1;
        if looks > if holder::is_dying(pid) { LOOKS_AT_DYING } else { LOOKS } {
            return Some(pid);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Starts the process that stays, and shows what it says.
fn start(options: &Up, layout: &Layout) -> anyhow::Result<ExitCode> {
    let log_path = layout.log();
    let log = modes::append(&log_path, modes::LOG_FILE);
    let log = log.with_context(|| format!("cannot write {}", log_path.display()))?;
    let mut child = Command::new(std::env::current_exe().context("cannot find the skiff binary")?)
        .args(std::env::args_os().skip(1))
        .env(STAYS, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the cluster's process")?;
    let pipe: OwnedFd = child.stdout.take().context("the pipe is missing")?.into();
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || progress::read(pipe).try_for_each(|m| tx.send(m)));
    let deadline = std::time::Instant::now() + Duration::from_secs(options.wait);
    let begun = std::time::Instant::now();
    loop {
        match rx.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            Ok(Message::Step { what, millis }) => println!("  {what:<44} {:>9}", progress::duration(millis)),
            Ok(Message::Note { what }) => println!("  note: {what}"),
            Ok(Message::Ready) => {
                println!("ready in {}", progress::duration(begun.elapsed().as_millis() as u64));
                println!("export KUBECONFIG={}", layout.admin_kubeconfig().display());
                return Ok(ExitCode::SUCCESS);
            }
            Ok(Message::Failed { why }) => {
                let _ = child.wait();
                bail!("{why} (log: {})", log_path.display());
            }
            Err(mpsc::RecvTimeoutError::Timeout) => bail!(
                "the cluster is not ready after {} s; it goes on trying, its log is {}; `skiff down` ends it",
                options.wait,
                log_path.display()
            ),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().map(|s| s.to_string()).unwrap_or_default();
                bail!("the cluster's process ended ({status}); its log is {}", log_path.display());
            }
        }
    }
}

/// The process that stays.
fn stay(options: Up) -> anyhow::Result<ExitCode> {
    // The caller's terminal must not end us; a failure means we lead a session already.
    let _ = nix::unistd::setsid();
    options.common.logging.install()?;
    let pipe = nix::unistd::dup(std::io::stdout()).context("cannot keep the pipe")?;
    let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    nix::unistd::dup2_stdout(null).context("cannot close standard output")?;
    let progress = Progress::to(pipe);
    let outcome = cluster(options, progress.clone());
    if let Err(error) = &outcome {
        tracing::error!("{}", crate::sentence::sentence(error));
        progress.failed(error);
    }
    outcome
}

/// Control plane and node in one process, and a process for each further node, until a signal ends them.
fn cluster(mut options: Up, progress: Progress) -> anyhow::Result<ExitCode> {
    let layout = Layout::new(&options.common.data_dir);
    layout.open()?;
    let _held = layout.hold()?;
    let alone = alone::claim()?;
    server::runtime()?.block_on(async {
        let stop = server::stop_signal()?;
        tokio::pin!(stop);
        let siblings = siblings::prepare(&mut options, &layout).await?;
        let control_plane = match server::start(&options.control_plane, &layout, &progress).await {
            Ok(control_plane) => control_plane,
            Err(error) => {
                siblings::end::undo_start(&siblings.all).await;
                return Err(error);
            }
        };
        let mut family = Family::default();
        let started = async {
            let node = agent::start_beside(&control_plane, &options.node, &layout, alone, &progress).await?;
            join::all(&control_plane, &siblings, &options, &layout, &mut family, &progress).await?;
            anyhow::Ok(node)
        };
        let started = tokio::select! {
            started = started => started,
            () = &mut stop => Err(anyhow::anyhow!("asked to end before the cluster was ready")),
        };
        let node = match started {
            Ok(node) => node,
            Err(error) => {
                family.stop().await;
                control_plane.stop().await;
                siblings::end::undo_start(&siblings.all).await;
                down::undo_start(&layout, &options.node).await;
                return Err(error);
            }
        };
        progress.ready();
        tracing::info!("the cluster is ready");
        tokio::select! {
            () = stop => tracing::info!("asked to end; Pods keep running"),
            failed = node.failed() => {
                family.stop().await;
                return Err(failed);
            }
            never = program_text::keep_small() => match never {},
        }
        family.stop().await;
        control_plane.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}
