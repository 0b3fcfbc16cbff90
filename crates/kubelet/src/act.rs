//! Carries out one step of a decision: folders, sandbox, image, container.

use std::{fs, io, path::Path, time::Duration};

use client::EventKind;
use k8s_cri::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1::Container;

use crate::{
    backoff::Backoff,
    decide::{Doom, Memory, Step},
    env, hook, image, kill, logs, mounts,
    node::Node,
    render::{self, ContainerSetting, SandboxSetting},
    resources,
    running::{Ran, Running, Sandbox, State},
    volumes::{self, Sources},
    wanted::Wanted,
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
    for path in logs::parts(Path::new(&ran.log_path)).into_iter().chain([words]) {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %path.display(), %error, "a file of a removed container stays until its Pod goes");
        }
    }
}

fn later(memory: &mut Memory, name: &str) {
    let at = clock::now().checked_add(RETRY).unwrap_or_else(|_| clock::now());
    memory.retry_at.insert(name.to_owned(), at);
}

async fn prepare(node: &Node, wanted: &Wanted, memory: &mut Memory) -> bool {
    let folders = || -> io::Result<()> {
        let pod_dir = node.config.pod_dir(wanted.uid());
        fs::create_dir_all(pod_dir.join("volumes"))?;
        fs::create_dir_all(pod_dir.join("containers"))?;
        let logs = node.config.pod_log_dir(wanted.namespace(), wanted.name(), wanted.uid());
        wanted.containers().try_for_each(|c| fs::create_dir_all(logs.join(&c.name)))
    };
    let cgroup = node.cgroups.path(api::pod::qos(&wanted.pod), wanted.uid());
    let limits = resources::of_pod(wanted.spec());
    let made = folders().and_then(|()| node.weigh()).and_then(|()| node.cgroups.create(&cgroup, limits));
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
            cgroup: node.cgroups.path(api::pod::qos(&wanted.pod), wanted.uid()),
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
    // A class that no engine of ours knows is refused by the engine itself.
    let handler = wanted.spec().runtime_class_name.clone().unwrap_or_default();
    match node.config.runtime.run_sandbox(sandbox_config(node, wanted, attempt), &handler).await {
        Ok(_) => {
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
    fs::create_dir_all(&logs).map_err(|e| wrong(format!("cannot make {}: {e}", logs.display())))?;
    let user = image.user_of(wanted, container).map_err(wrong)?;
    let env = environment(node, wanted, container, &ips).await.map_err(wrong)?;
    let mounts = mounts::mounts(node, wanted, container, &env, restarts).map_err(wrong)?;
    let resources = resources::of_container(wanted.spec(), container, node.machine.memory);
    let target = target(wanted, container, running).map_err(wrong)?;
    let seccomp_dir = node.config.root_dir.join("seccomp");
    let setting = ContainerSetting { restarts, image: image.id, env, mounts, resources, target, seccomp_dir };
    let mut rendered = render::container(wanted, container, setting);
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
    // Containers that run have this very file mounted: it is written over, never replaced.
    if fs::read_to_string(&at).is_ok_and(|held| held == text) { Ok(()) } else { fs::write(at, text) }
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
    const MOST: usize = 4096;
    let at = mounts::message_file(&node.config.pod_dir(wanted.uid()), &ran.name, ran.restarts);
    let mut text = fs::read(at).unwrap_or_default();
    text.truncate(MOST);
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if text.is_empty() && from_log && ran.exit_code != 0 {
        let log = fs::read_to_string(&ran.log_path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter_map(|l| l.splitn(4, ' ').nth(3)).collect();
        let tail = lines[lines.len().saturating_sub(80)..].join("\n");
        return tail.chars().rev().take(2048).collect::<Vec<_>>().into_iter().rev().collect();
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_tried_ever_more_seldom() {
        let waits = [0, 1, 2, 7, 8, 30].map(|failures| mount_wait(failures).as_millis());
        assert_eq!(waits, [500, 1000, 2000, 64_000, 122_000, 122_000]);
    }
}
