//! A containerd of our own: the distribution's binary with its own configuration, root, state and socket, so that
//! nothing of it mixes with one that the machine may run besides.
//!
//! It is started apart from our process and outlives it: after a crash the next start finds it again, and the Pods have
//! not noticed. [`stop`] ends it with everything that it ever started.

mod options;
mod runtimes;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use files::modes;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    cri::Cri,
    engine::{Error as EngineError, Runtime},
    images,
};

pub use options::{Mirror, Options};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("containerd is not installed: install the packages containerd and runc")]
    Missing,
    #[error("{what}: {source}")]
    File { what: String, source: io::Error },
    #[error("containerd did not start: {message} (its log: {log})")]
    Start { message: String, log: PathBuf },
    #[error("processes of containerd would not end: {}", .0.iter().map(i32::to_string).collect::<Vec<_>>().join(", "))]
    Stop(Vec<i32>),
    #[error(transparent)]
    Image(#[from] images::Error),
}

fn file_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::File { what, source }
}

/// A containerd that answers. Dropping this leaves it running.
pub struct Containerd {
    options: Options,
    /// `None` when an earlier process of ours started it.
    child: Option<Child>,
    pid: i32,
}

impl Containerd {
    /// Finds the containerd of these options, or starts it, and waits until CRI answers and the sandbox image is there.
    pub async fn start(options: Options) -> Result<Containerd, Error> {
        write_mirror(&options)?;
        // In it are the roots of containers, whose users may be none of the machine's: these have to get there.
        let state = &options.state;
        modes::passage(state).map_err(file_error(format!("creating {}", state.display())))?;
        let handlers = runtimes::installed(&runtimes::programs());
        let mut containerd = match running(&options) {
            Some(pid) => {
                let told = fs::read_to_string(options.config_file()).unwrap_or_default();
                let missing = [
                    (options.mirror.is_some() && !told.contains("config_path"), "asks no other nodes"),
                    (options.selinux && !told.contains(options::SELINUX), "gives no SELinux labels"),
                ];
                for (_, what) in missing.into_iter().filter(|(is_missing, _)| *is_missing) {
                    tracing::warn!("containerd runs with an older configuration; it {what} until it starts anew");
                }
                for handler in handlers.iter().filter(|handler| !told.contains(&handler.section())) {
                    let name = &handler.name;
                    tracing::warn!(
                        "containerd has run since before {name} was installed; the handler {name} is there when it starts anew"
                    );
                }
                Containerd { options, child: None, pid }
            }
            None => spawn(options, &handlers)?,
        };
        if let Err(error) = containerd.wait_until_ready().await {
            containerd.give_up();
            return Err(error);
        }
        let cri = containerd.cri();
        if containerd.options.sandbox_image == images::PAUSE {
            images::ensure(&cri, cri.socket(), &images::pause()?, &containerd.options.root).await?;
        }
        Ok(containerd)
    }

    pub fn cri(&self) -> Cri {
        Cri::new(&self.options.socket().to_string_lossy())
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether this process started it, rather than finding it.
    pub fn is_new(&self) -> bool {
        self.child.is_some()
    }

    /// Ends what was started and is of no use; one that was found is left as it is.
    fn give_up(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    async fn wait_until_ready(&mut self) -> Result<(), Error> {
        let cri = self.cri();
        let deadline = clock::Instant::now() + Duration::from_secs(30);
        loop {
            let error = match cri.version().await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let log = self.options.log_file();
            if self.ended() {
                return Err(Error::Start { message: last_line(&log), log });
            }
            let broken = matches!(&error, EngineError::Refused { code: tonic::Code::Unimplemented, .. });
            if broken || clock::Instant::now() > deadline {
                return Err(Error::Start { message: error.to_string(), log });
            }
            clock::sleep(Duration::from_millis(20)).await;
        }
    }

    fn ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child.try_wait().is_ok_and(|status| status.is_some()),
            None => !is_alive(self.pid),
        }
    }

    /// Starts it anew whenever it ends, for ever. Drop the future to leave off.
    pub async fn supervise(mut self) {
        loop {
            // Its children keep running without it, so a short gap does not matter.
            clock::sleep(Duration::from_secs(2)).await;
            if !self.ended() {
                continue;
            }
            tracing::warn!(pid = self.pid, "containerd ended, starting it again");
            match Containerd::start(self.options.clone()).await {
                Ok(next) => self = next,
                Err(error) => tracing::error!(%error, "containerd could not be started again"),
            }
        }
    }
}

/// Says where the mirror is, in a file that containerd reads for each pull, or that there is none.
fn write_mirror(options: &Options) -> Result<(), Error> {
    let folder = options.registries().join("_default");
    let file = folder.join("hosts.toml");
    let Some(mirror) = &options.mirror else {
        return files::remove(&file).map_err(file_error(format!("removing {}", file.display())));
    };
    for folder in [&options.root, &options.registries(), &folder] {
        modes::folder(folder, modes::PRIVATE_FOLDER).map_err(file_error(format!("creating {}", folder.display())))?;
    }
    modes::write(&file, modes::PRIVATE_FILE, mirror.hosts()).map_err(file_error(format!("writing {}", file.display())))
}

fn spawn(options: Options, handlers: &[runtimes::Handler]) -> Result<Containerd, Error> {
    let root = &options.root;
    modes::folder(root, modes::PRIVATE_FOLDER).map_err(file_error(format!("creating {}", root.display())))?;
    let config = options.config_file();
    modes::write(&config, modes::PRIVATE_FILE, options.config(handlers))
        .map_err(file_error(format!("writing {}", config.display())))?;
    let log = modes::append(&options.log_file(), modes::LOG_FILE);
    let log = log.map_err(file_error(format!("opening {}", options.log_file().display())))?;
    let errors = log.try_clone().map_err(file_error("the log of containerd"))?;
    let program = installed("containerd").ok_or(Error::Missing)?;
    // A shell would read as a script of its own what the kernel refuses to run.
    let runs = runs(&program).map_err(file_error("starting containerd"))?;
    if !runs {
        return Err(file_error("starting containerd")(nix::errno::Errno::ENOEXEC.into()));
    }
    // Containers begin with the limits of their engine, and many programs do not take high numbers of files well: they
    // get the usual number, although this process has raised its own. The engine raises its own again.
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -S -n 1024 2>/dev/null; exec \"$0\" \"$@\""])
        .arg(program)
        .arg("--config")
        .arg(&config)
        .args(["--log-level", "warn"])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors);
    // A group of its own: what a terminal sends to us does not reach it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command.spawn().map_err(file_error("starting containerd"))?;
    let pid = child.id().cast_signed();
    modes::write(&options.pid_file(), modes::PRIVATE_FILE, pid.to_string())
        .map_err(file_error("writing containerd.pid"))?;
    Ok(Containerd { options, child: Some(child), pid })
}

/// Where a program is, among the folders of programs.
fn installed(program: &str) -> Option<PathBuf> {
    runtimes::programs().into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Whether a file says of itself that the kernel can run it: a binary, or a script that names its interpreter.
fn runs(program: &Path) -> io::Result<bool> {
    use io::Read as _;
    let mut head = Vec::new();
    fs::File::open(program)?.take(4).read_to_end(&mut head)?;
    Ok(head.starts_with(b"\x7fELF") || head.starts_with(b"#!"))
}

/// The process of an earlier start, if it still runs and is what the pid file says.
fn running(options: &Options) -> Option<i32> {
    let pid: i32 = fs::read_to_string(options.pid_file()).ok()?.trim().parse().ok()?;
    let config = options.config_file();
    let ours = command_line(pid).iter().any(|arg| Path::new(arg) == config);
    (ours && is_alive(pid)).then_some(pid)
}

fn is_alive(pid: i32) -> bool {
    // A zombie (state Z) has ended; its parent has only not looked yet.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

fn command_line(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.split(|b| *b == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it ended without a word").to_owned()
}

/// Ends everything: Pods (through the engine, so that their networks are undone), containerd, what is left of its
/// shims and of their containers, and every mount below its folders. The folders themselves stay.
pub async fn stop(options: &Options) -> Result<(), Error> {
    if running(options).is_some() || options.root.join("io.containerd.metadata.v1.bolt").exists() {
        // A containerd that crashed is started once more: only it knows the networks of its Pods.
        match Containerd::start(options.clone()).await {
            Ok(mut containerd) => {
                remove_pods(&containerd.cri()).await;
                signal(containerd.pid, Signal::SIGTERM);
                wait_for_end(&mut containerd).await;
            }
            Err(error) => tracing::warn!(%error, "cleaning up without containerd"),
        }
    }
    end_processes(options).await?;
    unmount_below(&[&options.root, &options.state]);
    // The pid file speaks of nothing any more.
    let _ = fs::remove_file(options.pid_file());
    Ok(())
}

/// The process of an earlier start that still runs.
pub fn pid(options: &Options) -> Option<i32> {
    running(options)
}

/// Whether an earlier process started it and it still runs.
pub fn is_running(options: &Options) -> bool {
    running(options).is_some()
}

/// Ends a containerd that runs no Pods. One that does is left alone; says which it was.
pub async fn stop_idle(options: &Options) -> bool {
    let socket = options.socket().to_string_lossy().into_owned();
    if processes().into_iter().any(|pid| is_shim(pid, &socket)) {
        return false;
    }
    if let Some(pid) = running(options) {
        let mut idle = Containerd { options: options.clone(), child: None, pid };
        signal(pid, Signal::SIGTERM);
        wait_for_end(&mut idle).await;
        let _ = fs::remove_file(options.pid_file());
    }
    true
}

async fn remove_pods(cri: &Cri) {
    let sandboxes = cri.sandboxes(None).await.unwrap_or_default();
    let removals = sandboxes.iter().map(|sandbox| async {
        let removed = async {
            cri.stop_sandbox(&sandbox.id).await?;
            cri.remove_sandbox(&sandbox.id).await
        };
        if let Err(error) = removed.await {
            tracing::warn!(sandbox = sandbox.id, %error, "the sandbox could not be removed");
        }
    });
    futures::future::join_all(removals).await;
}

async fn wait_for_end(containerd: &mut Containerd) {
    for round in 0..500 {
        if containerd.ended() {
            return;
        }
        if round == 250 {
            signal(containerd.pid, Signal::SIGKILL);
        }
        clock::sleep(Duration::from_millis(20)).await;
    }
}

fn signal(pid: i32, signal: Signal) {
    // A process that has ended meanwhile is what we want.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Kills shims that still speak to our socket, and all that lives below them.
async fn end_processes(options: &Options) -> Result<(), Error> {
    let socket = options.socket().to_string_lossy().into_owned();
    for _ in 0..100 {
        let parents: Vec<(i32, i32)> = processes().into_iter().map(|pid| (pid, parent(pid))).collect();
        let mut ours: Vec<i32> = parents.iter().map(|p| p.0).filter(|pid| is_shim(*pid, &socket)).collect();
        let mut next = 0;
        while next < ours.len() {
            let above = ours[next];
            ours.extend(parents.iter().filter(|(_, up)| *up == above).map(|(pid, _)| *pid));
            next += 1;
        }
        if ours.is_empty() {
            return Ok(());
        }
        for pid in ours {
            signal(pid, Signal::SIGKILL);
        }
        clock::sleep(Duration::from_millis(20)).await;
    }
    Err(Error::Stop(processes().into_iter().filter(|pid| is_shim(*pid, &socket)).collect()))
}

fn is_shim(pid: i32, socket: &str) -> bool {
    let line = command_line(pid);
    line.first().is_some_and(|c| c.contains("containerd-shim")) && line.iter().any(|arg| arg == socket)
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    fields.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or(0)
}

/// Unmounts all that is mounted below the folders, the deepest first. A folder that is a mount itself stays: it is a disk
/// that the user put there.
pub fn unmount_below(folders: &[&Path]) {
    let flags = nix::mount::MntFlags::MNT_DETACH | nix::mount::MntFlags::UMOUNT_NOFOLLOW;
    for point in folders.iter().flat_map(|folder| files::mounts::below(folder)) {
        if let Err(error) = nix::mount::umount2(&point, flags) {
            tracing::warn!(mount = %point.display(), %error, "unmounting failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_asked_for_content_alone_and_only_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let plain = Options::new(folder.path().join("root"), folder.path().join("state"));
        let mirror = Mirror {
            server: "https://10.0.0.1:10250".to_owned(),
            authority: "/p/ca.crt".into(),
            certificate: "/p/n.crt".into(),
            key: "/p/n.key".into(),
        };
        let with = Options { mirror: Some(mirror), ..plain.clone() };
        let file = with.registries().join("_default/hosts.toml");
        write_mirror(&with).unwrap();
        let hosts = std::fs::read_to_string(&file).unwrap();
        assert!(
            hosts.contains("capabilities = [\"pull\"]") && hosts.contains("client = [[\"/p/n.crt\", \"/p/n.key\"]]")
        );
        assert!(with.config(&[]).contains("config_path = ") && !plain.config(&[]).contains("config_path"));
        write_mirror(&plain).unwrap();
        assert!(!file.exists());
        write_mirror(&plain).unwrap();
    }
}
