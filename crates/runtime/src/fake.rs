//! An engine in memory that records every call, for tests: sandboxes become ready and containers run at once, and a test
//! ends them with [`Fake::exit`]. A test may stand before and after each call: to let the engine answer late, wrongly or never.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write,
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use files::modes;
use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use k8s_cri::v1::*;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::{
    container::{self, ContainerConfig, ContainerStatus},
    engine::{Credentials, Error, Result, Runtime},
    stats,
};

/// Where in a call a test stands: before the engine does what it is told, or before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// Called for each moment of each call, which goes by its name as [`Fake::calls`] has it. The call waits for what comes
/// back, and fails if that is an error.
pub type Interceptor = Arc<dyn Fn(&str, Moment) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Asked whenever somebody wants to hear of containers, in the place of the engine itself.
pub type Teller = Arc<dyn Fn() -> BoxFuture<'static, Option<BoxStream<'static, String>>> + Send + Sync>;

#[derive(Default)]
struct State {
    calls: Vec<String>,
    serial: u64,
    sandboxes: BTreeMap<String, PodSandboxStatus>,
    /// With the sandbox of each.
    containers: BTreeMap<String, (String, ContainerStatus)>,
    images: BTreeSet<String>,
    /// The passwords without which images cannot be pulled.
    passwords: BTreeMap<String, String>,
    failing: BTreeMap<String, String>,
    exec: ExecSyncResponse,
    /// The bytes of memory that containers use, by name.
    uses: BTreeMap<String, u64>,
    /// It measures Pods: what each uses, by name, beside its containers.
    of_pods: Option<BTreeMap<String, stats::LinuxPodSandboxStats>>,
    /// The metrics that it counts, and those that it has counted.
    counts: Option<(Vec<MetricDescriptor>, Vec<PodSandboxMetrics>)>,
    /// The configuration of each sandbox and each container that was made, by its id.
    of_sandboxes: BTreeMap<String, PodSandboxConfig>,
    of_containers: BTreeMap<String, ContainerConfig>,
    /// The abilities of its handlers, by their names.
    handlers: BTreeMap<String, RuntimeHandlerFeatures>,
    /// It can leave a container without the groups of its image.
    keeps_groups: bool,
    /// Why its network is not ready.
    network_trouble: Option<String>,
    writes_logs: bool,
    interceptor: Option<Interceptor>,
    teller: Option<Teller>,
}

/// See the module. Cloning shares the state.
#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<String>,
}

impl Default for Fake {
    fn default() -> Self {
        Fake { state: Arc::default(), events: broadcast::Sender::new(64) }
    }
}

impl Fake {
    /// The calls that changed something, in order, as `verb name`.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    pub fn add_image(&self, reference: &str) {
        self.state.lock().images.insert(reference.to_owned());
    }

    /// From now on an image is pulled with this password alone.
    pub fn lock_image(&self, reference: &str, password: &str) {
        self.state.lock().passwords.insert(reference.to_owned(), password.to_owned());
    }

    /// From now on the call named `verb name` (as recorded) fails with `message`.
    pub fn fail(&self, call: &str, message: &str) {
        self.state.lock().failing.insert(call.to_owned(), message.to_owned());
    }

    /// The call named like that no longer fails.
    pub fn succeed(&self, call: &str) {
        self.state.lock().failing.remove(call);
    }

    /// From now on a container that starts says which one it is, in its log.
    pub fn write_logs(&self) {
        self.state.lock().writes_logs = true;
    }

    /// From now on every command ends like this.
    pub fn answer_exec(&self, answer: ExecSyncResponse) {
        self.state.lock().exec = answer;
    }

    /// From now on the container of that name uses this much memory.
    pub fn uses(&self, name: &str, bytes: u64) {
        self.state.lock().uses.insert(name.to_owned(), bytes);
    }

    /// From now on it measures Pods, and the one of that name, beside its containers, uses this.
    pub fn pod_uses(&self, pod: &str, usage: stats::LinuxPodSandboxStats) {
        self.state.lock().of_pods.get_or_insert_default().insert(pod.to_owned(), usage);
    }

    /// From now on it has these metrics, and has counted that.
    pub fn counts(&self, descriptors: Vec<MetricDescriptor>, counted: Vec<PodSandboxMetrics>) {
        self.state.lock().counts = Some((descriptors, counted));
    }

    /// The resources that the newest container of that name may take.
    pub fn resources(&self, name: &str) -> Option<LinuxContainerResources> {
        newest(&self.state.lock(), name)?.resources.as_ref()?.linux.clone()
    }

    /// The configuration that the newest container of that name was made from.
    pub fn container(&self, name: &str) -> Option<ContainerConfig> {
        let state = self.state.lock();
        state.of_containers.get(&newest(&state, name)?.id).cloned()
    }

    /// The CDI devices that the newest container of that name was made with.
    pub fn cdi_devices(&self, name: &str) -> Vec<String> {
        let devices = self.container(name).map(|config| config.cdi_devices);
        devices.into_iter().flatten().map(|device| device.name).collect()
    }

    /// The mounts that the newest container of that name was made with.
    pub fn mounts(&self, name: &str) -> Vec<container::Mount> {
        self.container(name).map(|config| config.mounts).unwrap_or_default()
    }

    /// The configuration that the newest sandbox of the Pod of that name was made from.
    pub fn sandbox(&self, pod: &str) -> Option<PodSandboxConfig> {
        let state = self.state.lock();
        let is_of = |config: &&PodSandboxConfig| config.metadata.as_ref().is_some_and(|m| m.name == pod);
        state.of_sandboxes.values().rfind(is_of).cloned()
    }

    /// From now on it has a handler of that name that can do this.
    pub fn offers(&self, handler: &str, features: RuntimeHandlerFeatures) {
        self.state.lock().handlers.insert(handler.to_owned(), features);
    }

    /// From now on its network is not ready, for that reason; or it is again.
    pub fn lose_network(&self, why: Option<&str>) {
        self.state.lock().network_trouble = why.map(str::to_owned);
    }

    /// From now on it can leave a container without the groups of its image.
    pub fn keep_groups(&self) {
        self.state.lock().keeps_groups = true;
    }

    /// The users of the sandboxes that are there, by the names of their Pods.
    pub fn users(&self) -> BTreeMap<String, UserNamespace> {
        let of = |sandbox: &PodSandboxStatus| {
            let options = sandbox.linux.as_ref()?.namespaces.as_ref()?.options.as_ref()?;
            Some((sandbox.metadata.as_ref()?.name.clone(), options.userns_options.clone()?))
        };
        self.state.lock().sandboxes.values().filter_map(of).collect()
    }

    /// Calls are intercepted from now on, or no longer.
    pub fn intercept(&self, interceptor: Option<Interceptor>) {
        self.state.lock().interceptor = interceptor;
    }

    /// The names of the containers that run.
    pub fn running(&self) -> Vec<String> {
        let state = self.state.lock();
        let running = state.containers.values().filter(|(_, c)| c.state() == ContainerState::ContainerRunning);
        running.map(|(_, c)| name_of(c)).collect()
    }

    /// Neither a sandbox nor a container is left.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.sandboxes.is_empty() && state.containers.is_empty()
    }

    /// The container of that name ends.
    pub fn exit(&self, name: &str, code: i32) {
        self.exit_quietly(name, code);
        self.speak_of(name);
    }

    /// The running container of that name ends as one whose start the engine gave up.
    pub fn give_up(&self, name: &str) {
        self.exit_quietly(name, 128);
        for (_, container) in self.state.lock().containers.values_mut().filter(|(_, c)| name_of(c) == name) {
            container.reason = "StartError".to_owned();
        }
        self.speak_of(name);
    }

    /// The container of that name ends, and no event says so.
    pub fn exit_quietly(&self, name: &str, code: i32) {
        let mut state = self.state.lock();
        let mut containers = state.containers.values_mut().map(|(_, c)| c);
        let running = containers.find(|c| c.state() == ContainerState::ContainerRunning && name_of(c) == name);
        if let Some(container) = running {
            end(container, code);
        }
    }

    /// An event about the newest container of that name.
    pub fn speak_of(&self, name: &str) {
        if let Some(container) = newest(&self.state.lock(), name) {
            // Nobody listening is fine.
            let _ = self.events.send(container.id.clone());
        }
    }

    /// The ids of the containers that it speaks of from now on.
    pub fn spoken_of(&self) -> BoxStream<'static, String> {
        let ids = tokio_stream::wrappers::BroadcastStream::new(self.events.subscribe());
        ids.filter_map(|id| std::future::ready(id.ok())).boxed()
    }

    /// From now on somebody else tells of its containers.
    pub fn let_tell(&self, teller: Teller) {
        self.state.lock().teller = Some(teller);
    }

    /// A call that changes something.
    async fn change<T>(&self, call: String, work: impl FnOnce(&mut State) -> Result<T> + Send) -> Result<T> {
        self.meet(&call, Moment::Before).await?;
        let done = {
            let mut state = self.state.lock();
            let failure = state.failing.get(&call).cloned();
            state.calls.push(call.clone());
            state.serial += 1;
            match failure {
                Some(message) => return Err(Error::Refused { code: tonic::Code::Unknown, message }),
                None => work(&mut state)?,
            }
        };
        self.meet(&call, Moment::After).await?;
        Ok(done)
    }

    /// A call that only asks.
    async fn read<T>(&self, call: &str, work: impl FnOnce(&State) -> Result<T> + Send) -> Result<T> {
        self.meet(call, Moment::Before).await?;
        let answer = work(&self.state.lock())?;
        self.meet(call, Moment::After).await?;
        Ok(answer)
    }

    async fn meet(&self, call: &str, moment: Moment) -> Result<()> {
        let interceptor = self.state.lock().interceptor.clone();
        match interceptor {
            Some(interceptor) => interceptor(call, moment).await,
            None => Ok(()),
        }
    }

    fn named(&self, id: &str) -> String {
        self.state.lock().containers.get(id).map_or_else(|| id.to_owned(), |(_, c)| name_of(c))
    }
}

fn name_of(container: &ContainerStatus) -> String {
    container.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default()
}

/// Of the containers of that name the one that was made last.
fn newest<'a>(state: &'a State, name: &str) -> Option<&'a ContainerStatus> {
    let named = state.containers.values().map(|(_, c)| c).filter(|c| name_of(c) == name);
    named.max_by_key(|c| &c.id)
}

fn nanos() -> i64 {
    i64::try_from(clock::now().as_nanosecond()).unwrap_or(i64::MAX)
}

fn end(container: &mut ContainerStatus, code: i32) {
    container.set_state(ContainerState::ContainerExited);
    container.exit_code = code;
    container.finished_at = nanos();
    container.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
}

/// As containerd does: a cpuset of which nothing is said stays, and where nothing else is said all else does.
fn updated(held: LinuxContainerResources, told: LinuxContainerResources) -> LinuxContainerResources {
    let (cpus, mems) = (told.cpuset_cpus.clone(), told.cpuset_mems.clone());
    let rest = LinuxContainerResources { cpuset_cpus: String::new(), cpuset_mems: String::new(), ..told };
    let base = if rest == LinuxContainerResources::default() { held.clone() } else { rest };
    let or = |new: String, old: String| if new.is_empty() { old } else { new };
    LinuxContainerResources { cpuset_cpus: or(cpus, held.cpuset_cpus), cpuset_mems: or(mems, held.cpuset_mems), ..base }
}

fn shown(mount: &container::Mount) -> container::Mount {
    container::Mount {
        container_path: mount.container_path.clone(),
        readonly: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
        ..Default::default()
    }
}

fn unimplemented<T>(method: &str) -> Result<T> {
    let message = format!("unknown method {method} for service runtime.v1.RuntimeService");
    Err(Error::Refused { code: tonic::Code::Unimplemented, message })
}

/// Of the containers alone that a test has said something of.
fn stats_of(state: &State, container: &ContainerStatus) -> Option<stats::ContainerStats> {
    let usage_bytes = Some(UInt64Value { value: *state.uses.get(&name_of(container))? });
    let attributes = ContainerAttributes {
        id: container.id.clone(),
        metadata: container.metadata.clone(),
        labels: container.labels.clone(),
        annotations: container.annotations.clone(),
    };
    let memory = stats::MemoryUsage { usage_bytes, working_set_bytes: usage_bytes, ..Default::default() };
    Some(stats::ContainerStats { attributes: Some(attributes), memory: Some(memory), ..Default::default() })
}

fn not_found(what: &str) -> Error {
    Error::Refused { code: tonic::Code::NotFound, message: format!("{what}: not found") }
}

/// As containerd does: a name is made of the attempt, too, and given away once.
fn reserved(what: &str) -> Error {
    Error::Refused { code: tonic::Code::Unknown, message: format!("failed to reserve name \"{what}\"") }
}

fn matches(wanted: &HashMap<String, String>, labels: &HashMap<String, String>) -> bool {
    wanted.iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[async_trait]
impl Runtime for Fake {
    async fn version(&self) -> Result<VersionResponse> {
        self.read("version", |_| {
            Ok(VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "fake".to_owned(),
                runtime_version: "1.0.0".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        })
        .await
    }

    async fn status(&self) -> Result<StatusResponse> {
        let ready = |kind: &str| RuntimeCondition { r#type: kind.to_owned(), status: true, ..Default::default() };
        self.read("status", |state| {
            let network = match &state.network_trouble {
                None => ready("NetworkReady"),
                Some(why) => RuntimeCondition {
                    reason: "NetworkPluginNotReady".to_owned(),
                    message: why.clone(),
                    status: false,
                    ..ready("NetworkReady")
                },
            };
            let status = RuntimeStatus { conditions: vec![ready("RuntimeReady"), network] };
            let handler = |(name, features): (&String, &RuntimeHandlerFeatures)| RuntimeHandler {
                name: name.clone(),
                features: Some(*features),
            };
            let runtime_handlers = state.handlers.iter().map(handler).collect();
            let features = Some(RuntimeFeatures { supplemental_groups_policy: state.keeps_groups });
            Ok(StatusResponse { status: Some(status), runtime_handlers, features, ..Default::default() })
        })
        .await
    }

    async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let with = if handler.is_empty() { String::new() } else { format!(" with {handler}") };
        self.change(format!("run_sandbox {}{with}", metadata.name), |state| {
            if state.sandboxes.values().any(|s| s.metadata.as_ref() == Some(&metadata)) {
                return Err(reserved(&metadata.name));
            }
            let id = format!("s{:04}", state.serial);
            state.of_sandboxes.insert(id.clone(), config.clone());
            let mut status = PodSandboxStatus {
                id: id.clone(),
                metadata: Some(metadata),
                created_at: nanos(),
                labels: config.labels,
                annotations: config.annotations,
                linux: Some(LinuxPodSandboxStatus {
                    namespaces: Some(Namespace {
                        options: config.linux.and_then(|linux| linux.security_context?.namespace_options),
                    }),
                }),
                network: Some(PodSandboxNetworkStatus { ip: "10.88.0.5".to_owned(), additional_ips: Vec::new() }),
                ..Default::default()
            };
            status.set_state(PodSandboxState::SandboxReady);
            state.sandboxes.insert(id.clone(), status);
            Ok(id)
        })
        .await
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.change("stop_sandbox".to_owned(), |state| {
            state.sandboxes.get_mut(id).ok_or_else(|| not_found(id))?.set_state(PodSandboxState::SandboxNotready);
            state.containers.values_mut().filter(|(s, _)| s == id).for_each(|(_, c)| {
                if c.state() == ContainerState::ContainerRunning {
                    end(c, 137);
                }
            });
            Ok(())
        })
        .await
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.change("remove_sandbox".to_owned(), |state| {
            state.sandboxes.remove(id);
            state.containers.retain(|_, (sandbox, _)| sandbox != id);
            Ok(())
        })
        .await
    }

    async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        self.read("sandbox_status", |state| state.sandboxes.get(id).cloned().ok_or_else(|| not_found(id))).await
    }

    async fn sandboxes(&self, filter: Option<PodSandboxFilter>) -> Result<Vec<PodSandbox>> {
        let wanted = filter.map(|f| f.label_selector).unwrap_or_default();
        self.read("sandboxes", |state| {
            let found = state.sandboxes.values().filter(|s| matches(&wanted, &s.labels));
            let listed = found.map(|s| PodSandbox {
                id: s.id.clone(),
                metadata: s.metadata.clone(),
                state: s.state,
                created_at: s.created_at,
                labels: s.labels.clone(),
                annotations: s.annotations.clone(),
                ..Default::default()
            });
            Ok(listed.collect())
        })
        .await
    }

    async fn create_container(&self, sandbox: &str, config: ContainerConfig, of: PodSandboxConfig) -> Result<String> {
        let log = Path::new(&of.log_directory).join(&config.log_path).display().to_string();
        let metadata = config.metadata.clone().unwrap_or_default();
        self.change(format!("create {}", metadata.name), |state| {
            let mut of_sandbox = state.containers.values().filter(|(s, _)| s == sandbox);
            if of_sandbox.any(|(_, c)| c.metadata.as_ref() == Some(&metadata)) {
                return Err(reserved(&metadata.name));
            }
            let id = format!("c{:04}", state.serial);
            state.of_containers.insert(id.clone(), config.clone());
            let linux = config.linux.unwrap_or_default();
            let groups = linux.security_context.as_ref().map(|context| context.supplemental_groups.clone());
            let mut status = ContainerStatus {
                id: id.clone(),
                metadata: Some(metadata),
                created_at: nanos(),
                mounts: config.mounts.iter().map(shown).collect(),
                user: Some(ContainerUser {
                    linux: Some(LinuxContainerUser {
                        supplemental_groups: groups.unwrap_or_default(),
                        ..Default::default()
                    }),
                }),
                image_ref: config.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
                image: config.image,
                labels: config.labels,
                annotations: config.annotations,
                log_path: log,
                resources: Some(ContainerResources { linux: linux.resources, ..Default::default() }),
                stop_signal: config.stop_signal,
                ..Default::default()
            };
            status.set_state(ContainerState::ContainerCreated);
            state.containers.insert(id.clone(), (sandbox.to_owned(), status));
            Ok(id)
        })
        .await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.change(format!("start {}", self.named(id)), |state| {
            let (_, container) = state.containers.get_mut(id).ok_or_else(|| not_found(id))?;
            container.set_state(ContainerState::ContainerRunning);
            container.started_at = nanos();
            if state.writes_logs {
                let line = format!("2026-01-02T03:04:05Z stdout F this is {id}\n");
                let written = modes::append(Path::new(&container.log_path), modes::LOG_FILE)
                    .and_then(|mut log| log.write_all(line.as_bytes()));
                return written
                    .map_err(|error| Error::Refused { code: tonic::Code::Unknown, message: error.to_string() });
            }
            Ok(())
        })
        .await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.change(format!("stop {} {}", self.named(id), grace.as_secs()), |state| {
            let (_, container) = state.containers.get_mut(id).ok_or_else(|| not_found(id))?;
            if container.state() == ContainerState::ContainerRunning {
                end(container, 143);
            }
            Ok(())
        })
        .await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.change(format!("remove {}", self.named(id)), |state| {
            state.containers.remove(id);
            Ok(())
        })
        .await
    }

    async fn end_given_up(&self, id: &str) -> Result<()> {
        self.change(format!("end {}", self.named(id)), |_| Ok(())).await
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let found = |state: &State| state.containers.get(id).map(|(_, c)| c.clone()).ok_or_else(|| not_found(id));
        self.read("container_status", found).await
    }

    async fn containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>> {
        let wanted = filter.map(|f| f.label_selector).unwrap_or_default();
        self.read("containers", |state| {
            let found = state.containers.values().filter(|(_, c)| matches(&wanted, &c.labels));
            let listed = found.map(|(sandbox, c)| Container {
                id: c.id.clone(),
                pod_sandbox_id: sandbox.clone(),
                metadata: c.metadata.clone(),
                image: c.image.clone(),
                image_ref: c.image_ref.clone(),
                state: c.state,
                created_at: c.created_at,
                labels: c.labels.clone(),
                annotations: c.annotations.clone(),
                ..Default::default()
            });
            Ok(listed.collect())
        })
        .await
    }

    async fn update_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        self.change(format!("update {}", self.named(id)), |state| {
            let (_, container) = state.containers.get_mut(id).ok_or_else(|| not_found(id))?;
            let held = container.resources.take().and_then(|all| all.linux).unwrap_or_default();
            let linux = Some(updated(held, resources));
            container.resources = Some(ContainerResources { linux, ..Default::default() });
            Ok(())
        })
        .await
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        self.change(format!("reopen_log {}", self.named(id)), |_| Ok(())).await
    }

    async fn checkpoint(&self, id: &str, _: &str, _: Duration) -> Result<()> {
        self.change(format!("checkpoint {}", self.named(id)), |_| Ok(())).await
    }

    async fn container_stats(&self) -> Result<Vec<stats::ContainerStats>> {
        self.read("container_stats", |state| {
            Ok(state.containers.values().filter_map(|(_, container)| stats_of(state, container)).collect())
        })
        .await
    }

    async fn sandbox_stats(&self, id: Option<&str>) -> Result<Vec<stats::PodSandboxStats>> {
        self.read(if id.is_some() { "sandbox_stats of one" } else { "sandbox_stats" }, |state| {
            let Some(of_pods) = &state.of_pods else { return unimplemented("ListPodSandboxStats") };
            let one = |sandbox: &PodSandboxStatus| {
                let metadata = sandbox.metadata.clone()?;
                let mut linux = of_pods.get(&metadata.name)?.clone();
                let own = state.containers.values().filter(|(of, _)| *of == sandbox.id);
                linux.containers.extend(own.filter_map(|(_, container)| stats_of(state, container)));
                let attributes = PodSandboxAttributes {
                    id: sandbox.id.clone(),
                    metadata: Some(metadata),
                    labels: sandbox.labels.clone(),
                    annotations: sandbox.annotations.clone(),
                };
                Some(stats::PodSandboxStats { attributes: Some(attributes), linux: Some(linux) })
            };
            let asked = state.sandboxes.values().filter(|sandbox| id.is_none_or(|id| sandbox.id == id));
            Ok(asked.filter_map(one).collect())
        })
        .await
    }

    async fn metric_descriptors(&self) -> Result<Vec<MetricDescriptor>> {
        self.read("metric_descriptors", |state| match &state.counts {
            Some((descriptors, _)) => Ok(descriptors.clone()),
            None => unimplemented("ListMetricDescriptors"),
        })
        .await
    }

    async fn sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>> {
        self.read("sandbox_metrics", |state| match &state.counts {
            Some((_, counted)) => Ok(counted.clone()),
            None => unimplemented("ListPodSandboxMetrics"),
        })
        .await
    }

    async fn images(&self) -> Result<Vec<Image>> {
        let image = |r: &String| Image { id: r.clone(), repo_tags: vec![r.clone()], size: 1, ..Default::default() };
        self.read("images", |state| Ok(state.images.iter().map(image).collect())).await
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        let image = || Image { id: reference.to_owned(), size: 1, ..Default::default() };
        self.read("image", |state| Ok(state.images.contains(reference).then(image))).await
    }

    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<Credentials>,
        _: PodSandboxConfig,
    ) -> Result<String> {
        self.change(format!("pull {reference}"), |state| {
            let given = credentials.map(|credentials| credentials.password);
            if state.passwords.get(reference).is_some_and(|password| given.as_ref() != Some(password)) {
                let message = format!("pull access denied for {reference}");
                return Err(Error::Refused { code: tonic::Code::Unknown, message });
            }
            state.images.insert(reference.to_owned());
            Ok(reference.to_owned())
        })
        .await
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.state.lock().images.remove(reference);
        Ok(())
    }

    async fn image_filesystems(&self) -> Result<Vec<FilesystemUsage>> {
        Ok(Vec::new())
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, _: Duration) -> Result<ExecSyncResponse> {
        self.change(format!("exec {} {}", self.named(id), command.join(" ")), |state| Ok(state.exec.clone())).await
    }

    async fn exec(&self, _: ExecRequest) -> Result<String> {
        Err(not_found("streaming"))
    }

    async fn attach(&self, _: AttachRequest) -> Result<String> {
        Err(not_found("streaming"))
    }

    async fn port_forward(&self, _: PortForwardRequest) -> Result<String> {
        Err(not_found("streaming"))
    }

    async fn events(&self) -> Option<BoxStream<'static, String>> {
        let teller = self.state.lock().teller.clone();
        match teller {
            Some(teller) => teller().await,
            None => Some(self.spoken_of()),
        }
    }

    async fn set_pod_cidr(&self, _: &str) -> Result<()> {
        Ok(())
    }
}
