//! Carries out one step of a decision: folders, volumes, cgroup, sandbox, and what is left of containers. Containers begin
//! in [`start`](super::start).

use std::{fs, io, path::Path, time::Duration};

use client::EventKind;
use clock::Timestamp;
use files::modes;
use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1::Container;
use tokio::sync::Mutex;

use crate::{
    engine::{handler, linked, log_folders, logs, parallel_starts::Turn},
    kubelet::Kubelet,
    pod::{
        admit::Refusal,
        backoff::Backoff,
        decide::Step,
        desired::DesiredPod,
        kill::{self, Ending},
        memory::{Life, Memory},
        restart,
        running::{ContainerRun, RunningPod, State},
        spec::{
            hardening, linux, mounts, names,
            render::{self, SandboxSetting},
            resources, security,
        },
    },
    users::held,
    volumes::{self, error::VolumeError, folder::blocking},
};

/// How long a step that failed waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// One round of a Pod's worker: what its steps act on, and where they keep what they learn.
pub struct Round<'a> {
    pub kubelet: &'a Kubelet,
    pub desired: &'a DesiredPod,
    pub running: &'a RunningPod,
    pub memory: &'a mut Memory,
    /// Held while the engine starts a container: the Pod's end waits for it.
    pub at_engine: &'a Mutex<()>,
}

/// The moment after such a pause.
pub fn after(pause: Duration) -> Timestamp {
    clock::now().checked_add(pause).unwrap_or_else(|_| clock::now())
}

/// The moment at which a step that has just failed is tried again.
pub fn later() -> Timestamp {
    after(RETRY)
}

impl Round<'_> {
    /// False when the step failed and the round is over; why is remembered.
    pub async fn step(&mut self, step: &Step) -> bool {
        let engine = &self.kubelet.config.runtime;
        match step {
            Step::Prepare => self.prepare().await,
            Step::MakeSandbox { attempt } => self.make_sandbox(*attempt).await,
            Step::Start { name, restarts } => {
                if let Some(container) = self.desired.container(name) {
                    self.start(container, *restarts).await;
                }
                // Another container may start although this one could not.
                true
            }
            Step::Resize => self.resize().await,
            Step::Kill { id, name, why } => {
                let record = self.memory.container_mut(name);
                record.renewal = why.renewal.or(record.renewal);
                let asked = why.grace_seconds.or(self.desired.spec().termination_grace_period_seconds);
                let grace = Duration::from_secs(asked.unwrap_or(30).max(1).unsigned_abs());
                if let Some(ran) = self.running.containers.iter().find(|r| r.id == *id) {
                    self.ending().one(ran, &why.message, grace).await;
                }
                false
            }
            Step::Interrupt => {
                let end = self.ending();
                let looks_in =
                    |ran: &&ContainerRun| self.desired.ephemeral_containers().iter().any(|c| c.name == ran.name);
                let all = self.running.alive().filter(|ran| !looks_in(ran)).map(|ran| end.abruptly(ran));
                futures::future::join_all(all).await;
                false
            }
            Step::StopSandbox { id } => {
                let stopped = engine.stop_sandbox(id).await;
                if let Some(error) = stopped.as_ref().err().filter(|error| !error.is_not_found()) {
                    let failure = kill::failure("KillPodSandbox", self.desired.uid(), error);
                    kill::tell(self.kubelet, self.desired, &[failure]);
                }
                self.done(stopped).await
            }
            Step::Remove { id } => {
                let removed = self.done(engine.remove_container(id).await).await;
                if let Some(ran) = self.running.containers.iter().find(|r| removed && r.id == *id) {
                    self.forget(ran);
                    self.count(ran);
                }
                removed
            }
            Step::RemoveSandbox { id } => self.done(engine.remove_sandbox(id).await).await,
            // The worker itself does these.
            Step::KillAll | Step::Settle | Step::Finish => true,
        }
    }

    fn ending(&self) -> Ending<'_> {
        Ending { kubelet: self.kubelet, desired: self.desired, running: self.running }
    }

    /// Whether the engine did what it was told, or had nothing to do.
    async fn done(&self, outcome: runtime::Result<()>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(error) if error.is_not_found() => true,
            Err(error) => {
                tracing::warn!(pod = self.desired.full_name(), %error, "the engine refused");
                clock::sleep(Duration::from_secs(1)).await;
                false
            }
        }
    }

    /// Removes what a container has left beside the engine: its log, with the older parts of it and the link to it, and its termination message.
    fn forget(&self, ran: &ContainerRun) {
        let config = &self.kubelet.config;
        let message = mounts::message_file(&config.pod_dir(self.desired.uid()), &ran.name, ran.restarts);
        let link = linked::remove(self.kubelet, self.desired, &ran.name, &ran.id);
        let gone = [link, logs::remove(&self.kubelet.logs, Path::new(&ran.log_path)), files::remove(&message)];
        for error in gone.into_iter().filter_map(Result::err) {
            tracing::debug!(container = ran.id, %error, "a file of a removed container stays until its Pod goes");
        }
    }

    /// Keeps what the next run of a container goes on from, when the engine has none of its runs any more.
    fn count(&mut self, ran: &ContainerRun) {
        if self.running.latest(&ran.name).is_none_or(|latest| latest.id != ran.id) {
            return;
        }
        let asked = restart::asking(self.desired, self.running).iter().any(|asks| asks.id == ran.id);
        let record = self.memory.container_mut(&ran.name);
        if ran.state == State::Created {
            // It never started, and is no run that others follow.
            record.restarts = (ran.restarts > 0).then(|| ran.restarts - 1);
            return;
        }
        (record.restarts, record.waiting, record.is_anew) = (Some(ran.restarts), None, true);
        if let Some(ended) = ran.finished_at.filter(|_| asked) {
            let pauses = self.kubelet.restart_pauses();
            record.backoff = Some(Backoff::next(record.backoff, ended, clock::now(), pauses));
        }
    }

    /// A warning about the whole Pod.
    fn warn(&self, reason: &str, text: &str) {
        self.kubelet.events.pod(self.desired, EventKind::Warning, reason, text);
    }

    async fn prepare(&mut self) -> bool {
        let (kubelet, desired) = (self.kubelet, self.desired);
        let made = kubelet.weigh().and_then(|()| self.cgroup());
        let made = made
            .map_err(|error| ("FailedCreatePodContainer", format!("unable to ensure pod container exists: {error}")));
        let made = made.and_then(|()| {
            let folders = pod_folders(kubelet, desired);
            folders.map_err(|error| ("Failed", format!("error making pod data directories: {error}")))
        });
        if let Err((reason, text)) = made {
            self.warn(reason, &text);
            self.memory.retry_at = Some(later());
            return false;
        }
        self.memory.cgroup = Some(resources::of_pod(desired.spec(), self.memory.cfs));
        let mounted =
            match volumes::mount(&desired.pod, &kubelet.pod_folder(desired.uid()), &kubelet.volume_means()).await {
                Ok(mounted) => mounted,
                Err(errors) => {
                    for error in &errors {
                        error.reasons().iter().for_each(|reason| self.warn(reason, &error.to_string()));
                    }
                    if errors.iter().any(|error| matches!(error.source, VolumeError::Exhausted(_))) {
                        let refusal = Refusal::no_place_for_volumes();
                        self.warn(&refusal.reason, &refusal.message);
                        self.memory.life.refuse(refusal);
                    } else if let Life::Preparing { failed_mounts } = &mut self.memory.life {
                        self.memory.retry_at = Some(after(mount_wait(*failed_mounts)));
                        *failed_mounts += 1;
                    }
                    return false;
                }
            };
        if let Err(why) = kubelet.claims.prepare(&desired.pod).await {
            let text = format!("Failed to prepare dynamic resources: prepare dynamic resources: {why}");
            self.warn("FailedPrepareDynamicResources", &text);
            self.memory.retry_at = Some(later());
            return false;
        }
        self.memory.life = Life::Prepared(mounted);
        if !kubelet.host.modules.selinux && hardening::wants_labels(desired) {
            self.warn("SELinuxNotEnabled", "seLinuxOptions have no effect: SELinux is not enabled on the node");
        }
        true
    }

    fn cgroup(&self) -> io::Result<()> {
        let cgroups = &self.kubelet.host.cgroups;
        let path = cgroups.path(api::rules::pod::qos(&self.desired.pod), self.desired.uid());
        let begun = clock::Instant::now();
        let made = cgroups.create(&path, self.kubelet.pod_limits(self.desired));
        let made = made.and_then(|()| self.kubelet.bound_huge_pages(Some(self.desired)));
        self.kubelet.figures.cgroup("create", begun.elapsed());
        made
    }

    pub fn sandbox_config(&self, attempt: u32) -> PodSandboxConfig {
        let (config, desired) = (&self.kubelet.config, self.desired);
        let is_unbounded = self.kubelet.affinity.frees_quota_of_pod(desired.uid());
        let setting = SandboxSetting {
            attempt,
            cgroup: self.kubelet.host.cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid()),
            log_dir: config.log_folder().join(log_folders::of(desired)).display().to_string(),
            dns: self.resolver().0,
            cluster_domain: config.cluster_domain.clone(),
            groups: security::groups(desired, self.memory.life.volumes()),
            amounts: linux::of_sandbox(desired.spec(), &self.kubelet.ground(), is_unbounded),
            users: self.kubelet.users.held(desired.uid()).filter(|_| held::wants(desired.spec())),
        };
        render::sandbox(desired, &setting)
    }

    fn resolver(&self) -> (names::Dns, Vec<names::Complaint>) {
        let config = &self.kubelet.config;
        let host = names::parse_resolv_conf(&fs::read_to_string(&config.resolv_conf).unwrap_or_default());
        names::dns(self.desired, &config.cluster_dns, &config.cluster_domain, &host)
    }

    async fn make_sandbox(&mut self, attempt: u32) -> bool {
        self.resolver().1.iter().for_each(|(reason, text)| self.warn(reason, text));
        if attempt > 0 {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.kubelet.events.pod(self.desired, EventKind::Normal, "SandboxChanged", text);
        }
        let made = self.try_sandbox(attempt).await;
        self.kubelet.figures.started_pod(made.is_ok());
        match made {
            Ok(()) => {
                self.memory.retry_at = None;
                true
            }
            Err(error) => {
                self.warn("FailedCreatePodSandBox", &format!("Failed to create pod sandbox: {error}"));
                self.memory.retry_at = Some(later());
                false
            }
        }
    }

    async fn try_sandbox(&self, attempt: u32) -> Result<(), String> {
        // A handler that the engine does not know is refused by the engine itself.
        let handler = handler::of(self.kubelet, self.desired).await?;
        names::fits(self.desired, &self.kubelet.config.cluster_domain)?;
        if held::wants(self.desired.spec()) {
            hardening::own_users(&handler, handler::features(self.kubelet, &handler).await?.as_ref())?;
            let (users, uid) = (self.kubelet.users.clone(), self.desired.uid().to_owned());
            blocking(move || users.take(&uid)).await?;
        }
        let logs = self.kubelet.logs.make(&log_folders::of(self.desired));
        logs.map_err(|error| format!("cannot make the folder of its logs: {error}"))?;
        let call = async { self.kubelet.config.runtime.run_sandbox(self.sandbox_config(attempt), &handler).await };
        let made = self.kubelet.starts.run(Turn::of_sandbox(self.desired), call).await;
        made.map(drop).map_err(|error| error.to_string())
    }
}

fn pod_folders(kubelet: &Kubelet, desired: &DesiredPod) -> io::Result<()> {
    let pod_dir = kubelet.config.pod_dir(desired.uid());
    let all = [pod_dir.clone(), pod_dir.join("volumes"), pod_dir.join("containers")];
    all.iter().try_for_each(|folder| modes::folder(folder, modes::NODE_FOLDER))
}

/// Upstream's pauses between tries to mount, or to unmount: from half a second, doubled, to two minutes. A change of what is missing ends
/// them early.
pub fn mount_wait(failures: u32) -> Duration {
    Duration::from_millis(500).saturating_mul(1 << failures.min(16)).min(Duration::from_secs(122))
}

/// The text that a container left in its message file, or, if it wants that and failed, the end of its log.
pub fn termination_message(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    container: &Container,
    ran: &ContainerRun,
) -> String {
    const MOST: u64 = 4096;
    /// This much of a log holds its last lines, as far as they are shown.
    const END_OF_LOG: u64 = 64 << 10;
    let pod_dir = kubelet.config.pod_dir(desired.uid());
    let text = mounts::message(&pod_dir, &ran.name, ran.restarts, MOST).unwrap_or_default();
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if text.is_empty() && from_log && ran.exit_code != 0 {
        let log = logs::open(&kubelet.logs, Path::new(&ran.log_path));
        let log = log.and_then(|file| mounts::last_bytes(file, END_OF_LOG)).unwrap_or_default();
        return last_words(&String::from_utf8_lossy(&log));
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The end of a log, as the container said it.
fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let said = |line: &&str| logs::render(line.as_bytes(), false, &logs::Options::default());
    let tail: Vec<u8> = lines[lines.len().saturating_sub(80)..].iter().filter_map(said).flatten().collect();
    let tail = String::from_utf8_lossy(&tail);
    tail[tail.ceil_char_boundary(tail.len().saturating_sub(2048))..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture;
    use crate::pod::spec::mounts::MountSetting;
    use json::json;
    use runtime::fake::Fake;

    /// The engine's calls for a sandbox of this Pod, where the class `sandboxed` names the handler `runsc`.
    async fn sandbox_of(spec: &str) -> (bool, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let engine = Fake::default();
        let kubelet = fixture::kubelet(folder.path(), engine.clone(), |_, path| {
            let class = json!({"metadata": {"name": "sandboxed"}, "handler": "runsc"});
            path.ends_with("/runtimeclasses/sandboxed").then_some(class)
        });
        let (desired, running, mut memory) = (fixture::pod(spec), RunningPod::default(), Memory::default());
        let (kubelet, desired, running, memory) = (&*kubelet, &desired, &running, &mut memory);
        let mut round = Round { kubelet, desired, running, memory, at_engine: &Mutex::default() };
        let made = round.step(&Step::MakeSandbox { attempt: 0 }).await;
        assert_eq!(made, memory.retry_at.is_none(), "what failed is tried again");
        (made, engine.calls())
    }

    #[tokio::test]
    async fn the_engine_is_told_the_handler_of_a_class_and_nothing_runs_as_another() {
        let calls = |list: &[&str]| list.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        assert_eq!(sandbox_of(r#"{"containers": []}"#).await, (true, calls(&["run_sandbox p"])));
        let class = r#"{"containers": [], "runtimeClassName": "sandboxed"}"#;
        assert_eq!(sandbox_of(class).await, (true, calls(&["run_sandbox p with runsc"])));
        // Neither by the name of a class that is not there, nor as users of the node.
        assert_eq!(sandbox_of(r#"{"containers": [], "runtimeClassName": "runsc"}"#).await, (false, calls(&[])));
        assert_eq!(sandbox_of(r#"{"containers": [], "hostUsers": false}"#).await, (false, calls(&[])));
    }

    #[tokio::test]
    async fn nobody_but_the_node_enters_the_folders_of_a_pod() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), Fake::default(), |_, _| None);
        let desired = fixture::pod(
            r#"{"containers": [{"name": "c", "volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}]}],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "m", "configMap": {"name": "none", "optional": true}}]}"#,
        );
        pod_folders(&kubelet, &desired).unwrap();
        kubelet.logs.make_for(&log_folders::of(&desired), Path::new("c/0.log")).unwrap();
        let pod = kubelet.pod_folder("u");
        let volumes = &volumes::mount(&desired.pod, &pod, &kubelet.volume_means()).await.unwrap();
        let (env, restarts, recursive) = (&[], 0, false);
        let setting = MountSetting {
            desired: &desired,
            container: &desired.spec().containers[0],
            volumes,
            env,
            restarts,
            recursive,
            images: &Default::default(),
            parts_of_images: false,
        };
        mounts::mounts(&kubelet, &setting).unwrap();
        let check = |below: &str, expected: u32| {
            let mode = fs::metadata(folder.path().join(below)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(format!("{mode:o}"), format!("{expected:o}"), "{below}");
        };
        for below in [
            "",
            "/pods",
            "/pods/u",
            "/pods/u/volumes",
            "/pods/u/containers",
            "/pods/u/containers/c",
            "/pods/u/volumes/kubernetes.io~empty-dir",
        ] {
            check(&format!("kubelet{below}"), 0o750);
        }
        for below in ["", "/d_p_u", "/d_p_u/c"] {
            check(&format!("logs{below}"), 0o750);
        }
        check("kubelet/pods/u/volumes/kubernetes.io~empty-dir/e", 0o777);
        check("kubelet/pods/u/volumes/kubernetes.io~configmap/m", 0o755);
        check("kubelet/pods/u/containers/c/0", 0o666);
        // A folder that an older kubelet made is narrowed.
        for below in ["kubelet/pods/u", "logs/d_p_u"] {
            fs::set_permissions(folder.path().join(below), fs::Permissions::from_mode(0o755)).unwrap();
        }
        crate::engine::orphans::narrow(&kubelet.config);
        check("kubelet/pods/u", 0o750);
        check("logs/d_p_u", 0o750);
    }

    #[test]
    fn the_end_of_a_log_is_told_as_it_was_said() {
        let said = |lines: &[&str]| {
            lines.iter().map(|line| format!("2026-01-01T00:00:00Z stdout {line}\n")).collect::<String>()
        };
        let check = |lines: &[&str], expected: &str| assert_eq!(last_words(&said(lines)), expected);
        check(&["F one two", "F three"], "one two\nthree\n");
        check(&["P DONE"], "DONE");
        check(&["P long ", "F line", "F "], "long line\n\n");
        check(&["P:x a", "F:y b"], "ab\n");
        assert_eq!(last_words("garbage"), "");
        let many: String = (0..100).map(|i| format!("t stdout F {i}\n")).collect();
        assert!(last_words(&many).starts_with("20\n21\n") && last_words(&many).ends_with("\n99\n"));
        let long = format!("t stdout F {}\n", "x".repeat(5000));
        assert_eq!(last_words(&long).len(), 2048);
    }

    #[test]
    fn mounts_are_tried_ever_more_seldom() {
        let waits = [0, 1, 2, 7, 8, 30].map(|failures| mount_wait(failures).as_millis());
        assert_eq!(waits, [500, 1000, 2000, 64_000, 122_000, 122_000]);
    }
}
