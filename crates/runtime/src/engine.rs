//! All that the kubelet asks of a container engine, in the terms of CRI v1.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_cri::v1::{
    AttachRequest, Container, ContainerFilter, ExecRequest, ExecSyncResponse, FilesystemUsage, Image,
    LinuxContainerResources, MetricDescriptor, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxMetrics,
    PodSandboxStatus, PortForwardRequest, StatusResponse, VersionResponse,
};

use crate::{
    container::{ContainerConfig, ContainerStatus},
    stats::{ContainerStats, PodSandboxStats},
};

/// Why a call to the engine failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The engine answered with an error.
    #[error("{message}")]
    Refused { code: tonic::Code, message: String },
    /// The engine cannot be reached.
    #[error("the container engine at {socket} cannot be reached: {message}")]
    Unreachable { socket: String, message: String },
    /// An answer lacked what CRI promises.
    #[error("the container engine's answer to {call} lacks {field}")]
    Incomplete { call: &'static str, field: &'static str },
}

impl Error {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Refused { code: tonic::Code::NotFound, .. })
    }

    /// The failure in words, without those of the transport around it.
    pub fn words(&self) -> &str {
        match self {
            Error::Refused { message, .. } => message.split_once(" desc = ").map_or(message, |(_, words)| words),
            Error::Unreachable { message, .. } => message,
            Error::Incomplete { call, .. } => call,
        }
    }

    /// The engine does not know this call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Error::Refused { code: tonic::Code::Unimplemented, .. })
    }

    pub fn is_deadline(&self) -> bool {
        matches!(self, Error::Refused { code: tonic::Code::DeadlineExceeded, .. })
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Credentials for one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
    pub server: String,
}

/// The maker of cgroups, by the word that configurations have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Everybody who needs one makes it, in the kernel's files.
    Cgroupfs,
    Systemd,
}

impl CgroupDriver {
    pub fn name(self) -> &'static str {
        match self {
            CgroupDriver::Cgroupfs => "cgroupfs",
            CgroupDriver::Systemd => "systemd",
        }
    }
}

/// A container engine. Calls are safe to drop at any point: what they left behind is found by the next list.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> Result<VersionResponse>;
    async fn status(&self) -> Result<StatusResponse>;
    /// The engine's own process, where it is one of this machine.
    fn process(&self) -> Option<i32> {
        None
    }

    async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String>;
    async fn stop_sandbox(&self, id: &str) -> Result<()>;
    async fn remove_sandbox(&self, id: &str) -> Result<()>;
    async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus>;
    async fn sandboxes(&self, filter: Option<PodSandboxFilter>) -> Result<Vec<PodSandbox>>;

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String>;
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Sends the stop signal and, after `grace`, kills. Returns when the container has ended.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;
    async fn remove_container(&self, id: &str) -> Result<()>;
    /// Sees to it that nothing of a container runs whose start the engine says to have given up. It says so also where the caller
    /// of the start was gone before the container's process began.
    async fn end_given_up(&self, id: &str) -> Result<()>;
    async fn container_status(&self, id: &str) -> Result<ContainerStatus>;
    async fn containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>>;
    async fn update_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()>;
    /// The engine opens the container's log file anew, after the old one was moved away.
    async fn reopen_log(&self, id: &str) -> Result<()>;
    /// Writes all that a running container is into an archive at `location`, within that time; zero is the engine's own limit.
    async fn checkpoint(&self, id: &str, location: &str, timeout: Duration) -> Result<()>;
    async fn container_stats(&self) -> Result<Vec<ContainerStats>>;
    /// The use of all Pods, or of the one with this sandbox, with their containers. Engines that do not measure Pods refuse it as
    /// unimplemented.
    async fn sandbox_stats(&self, id: Option<&str>) -> Result<Vec<PodSandboxStats>>;
    /// The metrics that the engine counts of Pods and containers, and what it has counted of each.
    async fn metric_descriptors(&self) -> Result<Vec<MetricDescriptor>>;
    async fn sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>>;

    async fn images(&self) -> Result<Vec<Image>>;
    /// `None` when the node does not hold the image.
    async fn image(&self, reference: &str) -> Result<Option<Image>>;
    /// Returns the engine's own reference of the pulled image.
    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<Credentials>,
        sandbox: PodSandboxConfig,
    ) -> Result<String>;
    async fn remove_image(&self, reference: &str) -> Result<()>;
    async fn image_filesystems(&self) -> Result<Vec<FilesystemUsage>>;

    /// Runs a command to its end. A zero `timeout` means none.
    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecSyncResponse>;
    /// The URL at which the engine serves the stream.
    async fn exec(&self, request: ExecRequest) -> Result<String>;
    async fn attach(&self, request: AttachRequest) -> Result<String>;
    async fn port_forward(&self, request: PortForwardRequest) -> Result<String>;

    /// One item whenever a container may have changed state, holding its id. `None` when the engine offers no events:
    /// then the caller has to list now and then.
    async fn events(&self) -> Option<BoxStream<'static, String>>;

    /// The maker of cgroups in this engine's eyes; none where it does not say.
    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        Ok(None)
    }

    /// Tells the engine the node's range of Pod addresses.
    async fn set_pod_cidr(&self, cidr: &str) -> Result<()>;
}
