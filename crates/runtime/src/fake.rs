//! An engine in memory that records every call, for tests: sandboxes become ready and containers run at once, and a test
//! ends them with [`Fake::exit`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use k8s_cri::v1::*;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::engine::{Credentials, Error, Result, Runtime};

#[derive(Default)]
struct State {
    calls: Vec<String>,
    serial: u64,
    sandboxes: BTreeMap<String, PodSandboxStatus>,
    containers: BTreeMap<String, (String, ContainerStatus)>,
    images: BTreeSet<String>,
    failing: BTreeMap<String, String>,
    exec: ExecSyncResponse,
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

    /// From now on the call named `verb name` (as recorded) fails with `message`.
    pub fn fail(&self, call: &str, message: &str) {
        self.state.lock().failing.insert(call.to_owned(), message.to_owned());
    }

    /// From now on every command ends like this.
    pub fn answer_exec(&self, answer: ExecSyncResponse) {
        self.state.lock().exec = answer;
    }

    /// The container of that name ends.
    pub fn exit(&self, name: &str, code: i32) {
        let mut state = self.state.lock();
        let running = state.containers.values_mut().map(|(_, c)| c).find(|c| {
            c.state() == ContainerState::ContainerRunning && c.metadata.as_ref().is_some_and(|m| m.name == name)
        });
        if let Some(container) = running {
            end(container, code);
            // Nobody listening is fine.
            let _ = self.events.send(container.id.clone());
        }
    }

    fn record(&self, call: String) -> Result<String> {
        let mut state = self.state.lock();
        let failure = state.failing.get(&call).cloned();
        state.calls.push(call);
        state.serial += 1;
        match failure {
            Some(message) => Err(Error::Refused { code: tonic::Code::Unknown, message }),
            None => Ok(format!("{:04}", state.serial)),
        }
    }

    fn named(&self, id: &str) -> String {
        let state = self.state.lock();
        let container = state.containers.get(id).and_then(|(_, c)| c.metadata.as_ref()).map(|m| m.name.clone());
        container.unwrap_or_else(|| id.to_owned())
    }
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

fn not_found(what: &str) -> Error {
    Error::Refused { code: tonic::Code::NotFound, message: format!("{what}: not found") }
}

fn matches(
    wanted: &std::collections::HashMap<String, String>,
    labels: &std::collections::HashMap<String, String>,
) -> bool {
    wanted.iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[async_trait]
impl Runtime for Fake {
    async fn version(&self) -> Result<VersionResponse> {
        Ok(VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "fake".to_owned(),
            runtime_version: "1.0.0".to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn status(&self) -> Result<StatusResponse> {
        let ready = |kind: &str| RuntimeCondition { r#type: kind.to_owned(), status: true, ..Default::default() };
        let status = RuntimeStatus { conditions: vec![ready("RuntimeReady"), ready("NetworkReady")] };
        Ok(StatusResponse { status: Some(status), ..Default::default() })
    }

    async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let with = if handler.is_empty() { String::new() } else { format!(" with {handler}") };
        let id = format!("s{}", self.record(format!("run_sandbox {}{with}", metadata.name))?);
        let mut status = PodSandboxStatus {
            id: id.clone(),
            metadata: Some(metadata),
            created_at: nanos(),
            labels: config.labels,
            annotations: config.annotations,
            network: Some(PodSandboxNetworkStatus { ip: "10.88.0.5".to_owned(), additional_ips: Vec::new() }),
            ..Default::default()
        };
        status.set_state(PodSandboxState::SandboxReady);
        self.state.lock().sandboxes.insert(id.clone(), status);
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.record("stop_sandbox".to_owned())?;
        let mut state = self.state.lock();
        state.sandboxes.get_mut(id).ok_or_else(|| not_found(id))?.set_state(PodSandboxState::SandboxNotready);
        state.containers.values_mut().filter(|(s, _)| s == id).for_each(|(_, c)| {
            if c.state() == ContainerState::ContainerRunning {
                end(c, 137);
            }
        });
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.record("remove_sandbox".to_owned())?;
        let mut state = self.state.lock();
        state.sandboxes.remove(id);
        state.containers.retain(|_, (sandbox, _)| sandbox != id);
        Ok(())
    }

    async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        self.state.lock().sandboxes.get(id).cloned().ok_or_else(|| not_found(id))
    }

    async fn sandboxes(&self, filter: Option<PodSandboxFilter>) -> Result<Vec<PodSandbox>> {
        let wanted = filter.map(|f| f.label_selector).unwrap_or_default();
        let state = self.state.lock();
        let found = state.sandboxes.values().filter(|s| matches(&wanted, &s.labels));
        Ok(found
            .map(|s| PodSandbox {
                id: s.id.clone(),
                metadata: s.metadata.clone(),
                state: s.state,
                created_at: s.created_at,
                labels: s.labels.clone(),
                annotations: s.annotations.clone(),
                ..Default::default()
            })
            .collect())
    }

    async fn create_container(&self, sandbox: &str, config: ContainerConfig, _: PodSandboxConfig) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let id = format!("c{}", self.record(format!("create {}", metadata.name))?);
        let mut status = ContainerStatus {
            id: id.clone(),
            metadata: Some(metadata),
            created_at: nanos(),
            image_ref: config.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
            image: config.image,
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        status.set_state(ContainerState::ContainerCreated);
        self.state.lock().containers.insert(id.clone(), (sandbox.to_owned(), status));
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.record(format!("start {}", self.named(id)))?;
        let mut state = self.state.lock();
        let (_, container) = state.containers.get_mut(id).ok_or_else(|| not_found(id))?;
        container.set_state(ContainerState::ContainerRunning);
        container.started_at = nanos();
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.record(format!("stop {} {}", self.named(id), grace.as_secs()))?;
        let mut state = self.state.lock();
        let (_, container) = state.containers.get_mut(id).ok_or_else(|| not_found(id))?;
        end(container, 143);
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.record(format!("remove {}", self.named(id)))?;
        self.state.lock().containers.remove(id);
        Ok(())
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.state.lock().containers.get(id).map(|(_, c)| c.clone()).ok_or_else(|| not_found(id))
    }

    async fn containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>> {
        let wanted = filter.map(|f| f.label_selector).unwrap_or_default();
        let state = self.state.lock();
        let found = state.containers.values().filter(|(_, c)| matches(&wanted, &c.labels));
        Ok(found
            .map(|(sandbox, c)| Container {
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
            })
            .collect())
    }

    async fn update_resources(&self, id: &str, _: LinuxContainerResources) -> Result<()> {
        self.record(format!("update {}", self.named(id))).map(drop)
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        self.record(format!("reopen_log {}", self.named(id))).map(drop)
    }

    async fn container_stats(&self) -> Result<Vec<ContainerStats>> {
        Ok(Vec::new())
    }

    async fn images(&self) -> Result<Vec<Image>> {
        let image = |r: &String| Image { id: r.clone(), repo_tags: vec![r.clone()], size: 1, ..Default::default() };
        Ok(self.state.lock().images.iter().map(image).collect())
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        let held = self.state.lock().images.contains(reference);
        Ok(held.then(|| Image { id: reference.to_owned(), size: 1, ..Default::default() }))
    }

    async fn pull_image(&self, reference: &str, _: Option<Credentials>, _: PodSandboxConfig) -> Result<String> {
        self.record(format!("pull {reference}"))?;
        self.add_image(reference);
        Ok(reference.to_owned())
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.state.lock().images.remove(reference);
        Ok(())
    }

    async fn image_filesystems(&self) -> Result<Vec<FilesystemUsage>> {
        Ok(Vec::new())
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, _: Duration) -> Result<ExecSyncResponse> {
        self.record(format!("exec {} {}", self.named(id), command.join(" ")))?;
        Ok(self.state.lock().exec.clone())
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
        let ids = tokio_stream::wrappers::BroadcastStream::new(self.events.subscribe());
        Some(ids.filter_map(|id| std::future::ready(id.ok())).boxed())
    }

    async fn set_pod_cidr(&self, _: &str) -> Result<()> {
        Ok(())
    }
}
