//! Carries out one step of a decision: folders, sandbox, image, container.

use std::{fs, io, io::Read, path::Path, time::Duration};

use client::EventKind;
use files::modes;
use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1::Container;

use crate::{
    engine::{image, logs},
    kubelet::Node,
    pod::{
        backoff::Backoff,
        decide::{Doom, Memory, Step},
        env, hardening, hook, kill, mounts,
        render::{self, ContainerSetting, SandboxSetting},
        resources,
        running::{Ran, Running, Sandbox, State},
        wanted::Wanted,
    },
    volumes::{self, Sources},
};

/// How long a step that failed waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// False when the step failed and the round is over; why is remembered.
pub async fn step(node: &Node, wanted: &Wanted, running: &Running, memory: &mut Memory, step: &Step) -> bool {
    match step {
        Step::Prepare => prepare(node, wanted, memory).await,
        Step::MakeSandbox { attempt } => make_sandbox(node, wanted, memory, *attempt).await,
        Step::Start { name, restarts } => match wanted.container(name) {
            Some(container) => {
                start(node, wanted, running, memory, container, *restarts).await;
                // Another container may start although this one could not.
                true
            }
            None => true,
        },
        Step::Kill { id, doom, .. } => {
            let seconds = doom.grace_seconds.or(wanted.spec().termination_grace_period_seconds).unwrap_or(30).max(1);
            if let Some(ran) = running.containers.iter().find(|r| r.id == *id) {
                kill::one(node, wanted, running, ran, &doom.why, Duration::from_secs(seconds.unsigned_abs())).await;
            }
            false
        }
        Step::StopSandbox { id } => engine(wanted, node.config.runtime.stop_sandbox(id).await).await,
        Step::Remove { id } => {
            let removed = engine(wanted, node.config.runtime.remove_container(id).await).await;
            if let Some(ran) = running.containers.iter().find(|r| removed && r.id == *id) {
                forget(node, wanted, ran);
            }
            removed
        }
        Step::RemoveSandbox { id } => engine(wanted, node.config.runtime.remove_sandbox(id).await).await,
        // The worker itself does these.
        Step::KillAll | Step::Settle | Step::Finish => true,
    }
}

async fn engine(wanted: &Wanted, outcome: runtime::Result<()>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(error) if error.is_not_found() => true,
        Err(error) => {
            tracing::warn!(pod = wanted.full_name(), %error, "the engine refused");
            clock::sleep(Duration::from_secs(1)).await;
            false
        }
    }
}

/// Removes what a container has left beside the engine: its log, with the older parts of it, and its last words.
fn forget(node: &Node, wanted: &Wanted, ran: &Ran) {
    let words = mounts::message_file(&node.config.pod_dir(wanted.uid()), &ran.name, ran.restarts);
    let gone = [logs::remove(&node.config.log_dir, Path::new(&ran.log_path)), files::remove(&words)];
    for error in gone.into_iter().filter_map(Result::err) {
        tracing::debug!(container = ran.id, %error, "a file of a removed container stays until its Pod goes");
    }
}

fn later(memory: &mut Memory, name: &str) {
    let at = clock::now().checked_add(RETRY).unwrap_or_else(|_| clock::now());
    memory.retry_at.insert(name.to_owned(), at);
}

fn pod_folders(node: &Node, wanted: &Wanted) -> io::Result<()> {
    let pod_dir = node.config.pod_dir(wanted.uid());
    for folder in [pod_dir.clone(), pod_dir.join("volumes"), pod_dir.join("containers")] {
        modes::folder(&folder, modes::NODE_FOLDER)?;
    }
    let logs = node.config.pod_log_dir(wanted.namespace(), wanted.name(), wanted.uid());
    wanted.containers().try_for_each(|c| modes::folder(&logs.join(&c.name), modes::NODE_FOLDER))
}

async fn prepare(node: &Node, wanted: &Wanted, memory: &mut Memory) -> bool {
    let cgroup = node.cgroups.path(api::rules::pod::qos(&wanted.pod), wanted.uid());
    let limits = resources::of_pod(wanted.spec());
    let made =
        pod_folders(node, wanted).and_then(|()| node.weigh()).and_then(|()| node.cgroups.create(&cgroup, limits));
    if let Err(error) = made {
        let text = format!("error making pod data directories or cgroups: {error}");
        node.pod_event(wanted, None, EventKind::Warning, "FailedCreatePodContainer", &text);
        later(memory, "");
        return false;
    }
    let folder = volumes::PodFolder::new(&node.config.root_dir, wanted.uid());
    if let Err(error) = volumes::mount(&wanted.pod, &folder, &node.facts(Vec::new()), &node.sources).await {
        node.pod_event(wanted, None, EventKind::Warning, "FailedMount", &error.to_string());
        let at = clock::now().checked_add(mount_wait(memory.failed_mounts)).unwrap_or_else(|_| clock::now());
        memory.retry_at.insert(String::new(), at);
        memory.failed_mounts += 1;
        return false;
    }
    memory.failed_mounts = 0;
    memory.prepared = true;
    if !node.modules.selinux && hardening::wants_labels(wanted) {
        let text = "seLinuxOptions have no effect: SELinux is not enabled on the node";
        node.pod_event(wanted, None, EventKind::Warning, "SELinuxNotEnabled", text);
    }
    true
}

/// Upstream's pauses between tries to mount: from half a second, doubled, to two minutes. A change of what is missing ends
/// them early.
fn mount_wait(failures: u32) -> Duration {
    Duration::from_millis(500).saturating_mul(1 << failures.min(16)).min(Duration::from_secs(122))
}

fn sandbox_config(node: &Node, wanted: &Wanted, attempt: u32) -> PodSandboxConfig {
    let config = &node.config;
    let host = render::parse_resolv_conf(&fs::read_to_string(&config.resolv_conf).unwrap_or_default());
    render::sandbox(
        wanted,
        &SandboxSetting {
            attempt,
            cgroup: node.cgroups.path(api::rules::pod::qos(&wanted.pod), wanted.uid()),
            log_dir: config.pod_log_dir(wanted.namespace(), wanted.name(), wanted.uid()).display().to_string(),
            dns: render::dns(wanted, &config.cluster_dns, &config.cluster_domain, &host),
            cluster_domain: config.cluster_domain.clone(),
        },
    )
}

async fn make_sandbox(node: &Node, wanted: &Wanted, memory: &mut Memory, attempt: u32) -> bool {
    if attempt > 0 {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        node.pod_event(wanted, None, EventKind::Normal, "SandboxChanged", text);
    }
    match try_sandbox(node, wanted, attempt).await {
        Ok(()) => {
            memory.retry_at.remove("");
            true
        }
        Err(error) => {
            let text = format!("Failed to create pod sandbox: {error}");
            node.pod_event(wanted, None, EventKind::Warning, "FailedCreatePodSandBox", &text);
            later(memory, "");
            false
        }
    }
}

async fn try_sandbox(node: &Node, wanted: &Wanted, attempt: u32) -> Result<(), String> {
    // A handler that the engine does not know is refused by the engine itself.
    let handler = node.handler(wanted).await?;
    hardening::own_users(wanted.spec(), &handler)?;
    let made = node.config.runtime.run_sandbox(sandbox_config(node, wanted, attempt), &handler).await;
    made.map(drop).map_err(|error| error.to_string())
}

/// Why a container could not be started: the reason that its status shows, the message, and the event's reason.
struct Failure {
    reason: &'static str,
    message: String,
    event: &'static str,
}

async fn start(
    node: &Node,
    wanted: &Wanted,
    running: &Running,
    memory: &mut Memory,
    container: &Container,
    restarts: i32,
) {
    waypoint::kubelet::start_container(&wanted.full_name());
    let name = &container.name;
    let sandbox = match running.sandbox() {
        Some(sandbox) => sandbox.clone(),
        // The sandbox was made in this round: the next one sees it.
        None => return,
    };
    let config = sandbox_config(node, wanted, sandbox.attempt);
    let image = match image::ensure(node, wanted, container, &config, memory).await {
        Some(image) => image,
        None => return,
    };
    let last = running.latest(name).filter(|r| r.state == State::Exited);
    if let Some(ended) = last.and_then(|r| r.finished_at) {
        let backoff = Backoff::next(memory.backoff.get(name).copied(), ended, clock::now());
        memory.backoff.insert(name.clone(), backoff);
    }
    match create(node, wanted, container, restarts, running, &sandbox, config, image).await {
        Ok(id) => {
            memory.waiting.remove(name);
            memory.retry_at.remove(name);
            post_start(node, wanted, container, &id, sandbox.ips.first(), memory).await;
        }
        Err(failure) => {
            node.pod_event(
                wanted,
                Some(name),
                EventKind::Warning,
                failure.event,
                &format!("Error: {}", failure.message),
            );
            memory.waiting.insert(name.clone(), (failure.reason.to_owned(), failure.message));
            later(memory, name);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "one call site; each is a different thing that a container is made from")]
async fn create(
    node: &Node,
    wanted: &Wanted,
    container: &Container,
    restarts: i32,
    running: &Running,
    sandbox: &Sandbox,
    config: PodSandboxConfig,
    image: image::Held,
) -> Result<String, Failure> {
    let wrong = |message: String| Failure { reason: "CreateContainerConfigError", message, event: "Failed" };
    let refused = |reason: &'static str| {
        move |error: runtime::Error| Failure { reason, message: error.words().to_owned(), event: "Failed" }
    };
    let ips = if wanted.host_network() { vec![node.config.node_ip.to_string()] } else { sandbox.ips.clone() };
    write_hosts(node, wanted, &ips).map_err(|e| wrong(format!("cannot write the hosts file: {e}")))?;
    let logs = node.config.pod_log_dir(wanted.namespace(), wanted.name(), wanted.uid()).join(&container.name);
    modes::folder(&logs, modes::NODE_FOLDER).map_err(|e| wrong(format!("cannot make {}: {e}", logs.display())))?;
    let user = image.user_of(wanted, container).map_err(wrong)?;
    let env = environment(node, wanted, container, &ips).await.map_err(wrong)?;
    let recursive = mounts::ask_recursive(container) && node.makes_recursive(wanted).await.map_err(wrong)?;
    let mounts = mounts::mounts(node, wanted, container, &env, restarts, recursive).map_err(wrong)?;
    let resources = resources::of_container(wanted.spec(), container, node.machine.memory);
    let target = target(wanted, container, running).map_err(wrong)?;
    let seccomp_dir = node.config.root_dir.join("seccomp");
    let setting = ContainerSetting { restarts, image: image.id, env, mounts, resources, target, seccomp_dir };
    let mut rendered = render::container(wanted, container, setting).map_err(wrong)?;
    if let Some(security) = rendered.linux.as_mut().and_then(|l| l.security_context.as_mut()) {
        user.put(security);
    }
    let runtime = &node.config.runtime;
    let id = runtime.create_container(&sandbox.id, rendered, config).await.map_err(refused("CreateContainerError"))?;
    let name = Some(container.name.as_str());
    node.pod_event(wanted, name, EventKind::Normal, "Created", "Container created");
    runtime.start_container(&id).await.map_err(refused("RunContainerError"))?;
    node.pod_event(wanted, name, EventKind::Normal, "Started", "Container started");
    Ok(id)
}

/// The id of the container that a debugging container looks into.
fn target(wanted: &Wanted, container: &Container, running: &Running) -> Result<Option<String>, String> {
    let Some(name) = wanted.target(&container.name) else { return Ok(None) };
    let found = running.alive().find(|r| r.name == name);
    found.map(|r| Some(r.id.clone())).ok_or_else(|| format!("unable to find target container \"{name}\""))
}

async fn post_start(
    node: &Node,
    wanted: &Wanted,
    container: &Container,
    id: &str,
    ip: Option<&String>,
    memory: &mut Memory,
) {
    let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return };
    if let Err(error) = hook::run(node, handler, container, id, ip.map_or("", String::as_str)).await {
        let text = format!("PostStartHook failed: {error}");
        node.pod_event(wanted, Some(&container.name), EventKind::Warning, "FailedPostStartHook", &text);
        let doom = Doom { why: "FailedPostStartHook".to_owned(), grace_seconds: None };
        memory.condemned.insert(id.to_owned(), doom);
    }
}

fn write_hosts(node: &Node, wanted: &Wanted, ips: &[String]) -> io::Result<()> {
    let of_node = fs::read_to_string("/etc/hosts").unwrap_or_default();
    let text = render::hosts(wanted, &node.config.cluster_domain, ips, &of_node);
    let at = node.config.pod_dir(wanted.uid()).join("etc-hosts");
    // Containers that run have this very file mounted: it is written over, never replaced. They may have made it as long as
    // they like, so no more of it is read than what it should be.
    let mut held = Vec::new();
    let read = fs::File::open(&at).and_then(|file| file.take(text.len() as u64 + 1).read_to_end(&mut held));
    if read.is_ok() && held == text.as_bytes() { Ok(()) } else { modes::write(&at, modes::SEEN_FILE, text) }
}

/// Fetches what the environment refers to, then renders it.
async fn environment(
    node: &Node,
    wanted: &Wanted,
    container: &Container,
    ips: &[String],
) -> Result<Vec<(String, String)>, String> {
    let mut given = env::Given { facts: node.facts(ips.to_vec()), ..Default::default() };
    if clock::timeout(Duration::from_secs(10), node.services.synced()).await.is_err() {
        return Err("services have not yet been read at least once, cannot construct envvars".to_owned());
    }
    let links = wanted.spec().enable_service_links.unwrap_or(true);
    given.services = env::services(wanted.namespace(), links, &node.services.list());
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
    }
    for from in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
        maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
    }
    for name in maps {
        if let Some(data) = node.sources.config_map(wanted.namespace(), &name).await.map_err(|e| e.to_string())? {
            given.config_maps.insert(name, data);
        }
    }
    for name in secrets {
        if let Some(data) = node.sources.secret(wanted.namespace(), &name).await.map_err(|e| e.to_string())? {
            given.secrets.insert(name, data);
        }
    }
    env::render(&wanted.pod, container, &given)
}

/// What a container left in its message file, or, if it wants that and failed, the end of its log.
pub fn termination_message(node: &Node, wanted: &Wanted, container: &Container, ran: &Ran) -> String {
    const MOST: u64 = 4096;
    /// So much of a log holds its last lines, as far as they are shown.
    const END_OF_LOG: u64 = 64 << 10;
    let pod_dir = node.config.pod_dir(wanted.uid());
    let text = mounts::message(&pod_dir, &ran.name, ran.restarts, MOST).unwrap_or_default();
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if text.is_empty() && from_log && ran.exit_code != 0 {
        let log = logs::open(&node.config.log_dir, Path::new(&ran.log_path));
        let log = log.and_then(|file| mounts::last_bytes(file, END_OF_LOG)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter_map(|l| l.splitn(4, ' ').nth(3)).collect();
        let tail = lines[lines.len().saturating_sub(80)..].join("\n");
        return tail.chars().rev().take(2048).collect::<Vec<_>>().into_iter().rev().collect();
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture;
    use runtime::fake::Fake;
    use serde_json::json;

    /// The engine's calls for a sandbox of this Pod, where the class `sandboxed` names the handler `runsc`.
    async fn sandbox_of(spec: &str) -> (bool, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let engine = Fake::default();
        let node = fixture::node(folder.path(), engine.clone(), |_, path| {
            let class = json!({"metadata": {"name": "sandboxed"}, "handler": "runsc"});
            path.ends_with("/runtimeclasses/sandboxed").then_some(class)
        });
        let (wanted, mut memory) = (fixture::pod(spec), Memory::default());
        let made = step(&node, &wanted, &Running::default(), &mut memory, &Step::MakeSandbox { attempt: 0 }).await;
        assert_eq!(made, !memory.retry_at.contains_key(""), "what failed is tried again");
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
    async fn what_this_node_cannot_do_is_not_let_in() {
        let folder = tempfile::tempdir().unwrap();
        let node = fixture::node(folder.path(), Fake::default(), |_, _| None);
        let reason = |spec: &str| {
            let refused = node.admit(&fixture::pod(spec), None, &Default::default());
            refused.err().map(|refusal| refusal.reason).unwrap_or_default()
        };
        let sysctl = |name: &str| {
            format!(r#"{{"containers": [], "securityContext": {{"sysctls": [{{"name": "{name}", "value": "1"}}]}}}}"#)
        };
        assert_eq!(reason(&sysctl("net.ipv4.tcp_syncookies")), "");
        assert_eq!(reason(&sysctl("net.core.somaxconn")), "SysctlForbidden");
        assert_eq!(reason(r#"{"containers": [], "securityContext": {"supplementalGroupsPolicy": "Merge"}}"#), "");
        let strict = r#"{"containers": [], "securityContext": {"supplementalGroupsPolicy": "Strict"}}"#;
        assert_eq!(reason(strict), "SupplementalGroupsPolicyNotSupported");
        let armor =
            r#"{"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]}"#;
        assert_eq!(reason(armor), if node.modules.apparmor { "" } else { "AppArmor" });
    }

    #[tokio::test]
    async fn nobody_but_the_node_enters_the_folders_of_a_pod() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let node = fixture::node(folder.path(), Fake::default(), |_, _| None);
        let wanted = fixture::pod(
            r#"{"containers": [{"name": "c"}], "volumes": [{"name": "e", "emptyDir": {}}, {"name": "m",
            "configMap": {"name": "none", "optional": true}}]}"#,
        );
        pod_folders(&node, &wanted).unwrap();
        let pod = volumes::PodFolder::new(&node.config.root_dir, "u");
        volumes::mount(&wanted.pod, &pod, &node.facts(Vec::new()), &node.sources).await.unwrap();
        mounts::mounts(&node, &wanted, &wanted.spec().containers[0], &[], 0, false).unwrap();
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
        // What an older kubelet made is narrowed.
        for below in ["kubelet/pods/u", "logs/d_p_u"] {
            fs::set_permissions(folder.path().join(below), fs::Permissions::from_mode(0o755)).unwrap();
        }
        crate::engine::orphans::narrow(&node.config);
        check("kubelet/pods/u", 0o750);
        check("logs/d_p_u", 0o750);
    }

    #[test]
    fn mounts_are_tried_ever_more_seldom() {
        let waits = [0, 1, 2, 7, 8, 30].map(|failures| mount_wait(failures).as_millis());
        assert_eq!(waits, [500, 1000, 2000, 64_000, 122_000, 122_000]);
    }
}
