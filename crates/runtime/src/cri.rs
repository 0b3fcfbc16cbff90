//! CRI v1 over a unix socket.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_cri::v1::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient, *};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tonic::{codegen::http::uri::PathAndQuery, service::interceptor::InterceptedService, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    container::{ContainerConfig, ContainerStatus, ContainerStatusResponse, CreateContainerRequest},
    engine::{CgroupDriver, Credentials, Error, Result, Runtime},
    events, grpc,
    services::tasks,
    stats,
    traces::{self, Carry},
};

/// The connection, on which calls say which trace they are of.
type Traced = InterceptedService<Channel, Carry>;

/// How long an ordinary call may take, and one that waits for the network or for other programs.
const CALL: Duration = Duration::from_secs(30);
const LONG_CALL: Duration = Duration::from_secs(240);
/// A pull ends by itself when it makes no progress (the engine's own rule); this is only a last bound.
const PULL: Duration = Duration::from_secs(3600);
/// Lists of a full node exceed tonic's default of 4 MiB.
const MESSAGE_BYTES: usize = 64 << 20;

/// A client of a CRI engine. Cloning shares the connection, which is opened on first use and again after it broke.
#[derive(Clone)]
pub struct Cri {
    socket: PathBuf,
    channel: Channel,
}

impl Cri {
    /// `endpoint` is a path or a `unix://` URL. Nothing is opened yet.
    pub fn new(endpoint: &str) -> Self {
        let socket = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        Cri { channel: grpc::channel(&socket), socket }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn runtime(&self) -> RuntimeServiceClient<Traced> {
        let carry: Carry = traces::carry;
        RuntimeServiceClient::with_interceptor(self.channel.clone(), carry).max_decoding_message_size(MESSAGE_BYTES)
    }

    fn image_service(&self) -> ImageServiceClient<Traced> {
        let carry: Carry = traces::carry;
        ImageServiceClient::with_interceptor(self.channel.clone(), carry).max_decoding_message_size(MESSAGE_BYTES)
    }

    async fn call<T>(
        &self,
        method: &'static str,
        limit: Duration,
        work: impl Future<Output = std::result::Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T> {
        match traces::called(method, tokio::time::timeout(limit, work)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.error(status)),
            Err(_) => Err(Error::Refused {
                code: tonic::Code::DeadlineExceeded,
                message: "context deadline exceeded".to_owned(),
            }),
        }
    }

    /// A call whose messages are newer than those that the crate of CRI knows.
    async fn unary<Q: prost::Message + 'static, A: prost::Message + Default + 'static>(
        &self,
        path: &'static str,
        request: Q,
    ) -> std::result::Result<tonic::Response<A>, tonic::Status> {
        let carry: Carry = traces::carry;
        let service = InterceptedService::new(self.channel.clone(), carry);
        let mut client = tonic::client::Grpc::new(service).max_decoding_message_size(MESSAGE_BYTES);
        client.ready().await.map_err(|error| tonic::Status::from_error(error.into()))?;
        let codec = ProstCodec::<Q, A>::default();
        client.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await
    }

    /// Ends what the engine refused to remove because it runs, so that it can be asked once more. Each container is ended once: one
    /// that is refused all the same stays, and the caller is told.
    async fn end_refused(&self, refusal: Error, ended: &mut Vec<String>) -> Result<()> {
        let running = tasks::still_running(&refusal).map(str::to_owned).filter(|id| !ended.contains(id));
        let Some(running) = running else { return Err(refusal) };
        tracing::info!(id = running, "a container that counts as ended runs, and is ended");
        tasks::end(&self.channel, &running).await.map_err(|status| self.error(status))?;
        ended.push(running);
        Ok(())
    }

    fn error(&self, status: tonic::Status) -> Error {
        let transport = std::error::Error::source(&status).is_some();
        if status.code() == tonic::Code::Unavailable || (status.code() == tonic::Code::Unknown && transport) {
            return Error::Unreachable {
                socket: self.socket.display().to_string(),
                message: status.message().to_owned(),
            };
        }
        Error::Refused { code: status.code(), message: grpc::words(&status) }
    }
}

fn spec(reference: &str) -> Option<ImageSpec> {
    Some(ImageSpec { image: reference.to_owned(), ..Default::default() })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[async_trait]
impl Runtime for Cri {
    fn process(&self) -> Option<i32> {
        // The kernel tells who listens. A socket that systemd has made is systemd's own.
        let connection = UnixStream::connect(&self.socket).ok()?;
        let listener = getsockopt(&connection, PeerCredentials).ok()?.pid();
        Some(listener).filter(|pid| *pid > 1)
    }

    async fn version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: "0.1.0".to_owned() };
        self.call("runtime.v1.RuntimeService/Version", CALL, self.runtime().version(request)).await
    }

    async fn status(&self) -> Result<StatusResponse> {
        self.call("runtime.v1.RuntimeService/Status", CALL, self.runtime().status(StatusRequest { verbose: false }))
            .await
    }

    async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        Ok(self
            .call("runtime.v1.RuntimeService/RunPodSandbox", LONG_CALL, self.runtime().run_pod_sandbox(request))
            .await?
            .pod_sandbox_id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("runtime.v1.RuntimeService/StopPodSandbox", LONG_CALL, self.runtime().stop_pod_sandbox(request))
            .await
            .map(drop)
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let mut ended = Vec::new();
        loop {
            let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
            match self
                .call(
                    "runtime.v1.RuntimeService/RemovePodSandbox",
                    LONG_CALL,
                    self.runtime().remove_pod_sandbox(request),
                )
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) => self.end_refused(error, &mut ended).await?,
            }
        }
    }

    async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let response = self
            .call("runtime.v1.RuntimeService/PodSandboxStatus", CALL, self.runtime().pod_sandbox_status(request))
            .await?;
        response.status.ok_or(Error::Incomplete { call: "PodSandboxStatus", field: "status" })
    }

    async fn sandboxes(&self, filter: Option<PodSandboxFilter>) -> Result<Vec<PodSandbox>> {
        Ok(self
            .call(
                "runtime.v1.RuntimeService/ListPodSandbox",
                CALL,
                self.runtime().list_pod_sandbox(ListPodSandboxRequest { filter }),
            )
            .await?
            .items)
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let call = self.unary::<_, CreateContainerResponse>("/runtime.v1.RuntimeService/CreateContainer", request);
        Ok(self.call("runtime.v1.RuntimeService/CreateContainer", LONG_CALL, call).await?.container_id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let request = StartContainerRequest { container_id: id.to_owned() };
        self.call("runtime.v1.RuntimeService/StartContainer", LONG_CALL, self.runtime().start_container(request))
            .await
            .map(drop)
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: seconds(grace) };
        self.call("runtime.v1.RuntimeService/StopContainer", grace + LONG_CALL, self.runtime().stop_container(request))
            .await
            .map(drop)
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let mut ended = Vec::new();
        loop {
            let request = RemoveContainerRequest { container_id: id.to_owned() };
            match self
                .call("runtime.v1.RuntimeService/RemoveContainer", LONG_CALL, self.runtime().remove_container(request))
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) => self.end_refused(error, &mut ended).await?,
            }
        }
    }

    async fn end_given_up(&self, id: &str) -> Result<()> {
        match tasks::end(&self.channel, id).await {
            Ok(()) => Ok(()),
            // Another engine than containerd, which is not known to go on running what it has given up.
            Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
            Err(status) => Err(self.error(status)),
        }
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let call = self.unary::<_, ContainerStatusResponse>("/runtime.v1.RuntimeService/ContainerStatus", request);
        let response = self.call("runtime.v1.RuntimeService/ContainerStatus", CALL, call).await?;
        response.status.ok_or(Error::Incomplete { call: "ContainerStatus", field: "status" })
    }

    async fn containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>> {
        Ok(self
            .call(
                "runtime.v1.RuntimeService/ListContainers",
                CALL,
                self.runtime().list_containers(ListContainersRequest { filter }),
            )
            .await?
            .containers)
    }

    async fn update_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..Default::default()
        };
        self.call(
            "runtime.v1.RuntimeService/UpdateContainerResources",
            CALL,
            self.runtime().update_container_resources(request),
        )
        .await
        .map(drop)
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        let request = ReopenContainerLogRequest { container_id: id.to_owned() };
        self.call("runtime.v1.RuntimeService/ReopenContainerLog", CALL, self.runtime().reopen_container_log(request))
            .await
            .map(drop)
    }

    async fn checkpoint(&self, id: &str, location: &str, timeout: Duration) -> Result<()> {
        let (container_id, location) = (id.to_owned(), location.to_owned());
        let request = CheckpointContainerRequest { container_id, location, timeout: seconds(timeout) };
        let limit = if timeout.is_zero() { LONG_CALL } else { timeout + CALL };
        self.call("runtime.v1.RuntimeService/CheckpointContainer", limit, self.runtime().checkpoint_container(request))
            .await
            .map(drop)
    }

    async fn container_stats(&self) -> Result<Vec<stats::ContainerStats>> {
        Ok(self
            .call(
                "runtime.v1.RuntimeService/ListContainerStats",
                CALL,
                self.unary::<_, stats::ListContainerStatsResponse>(
                    "/runtime.v1.RuntimeService/ListContainerStats",
                    stats::ListContainerStatsRequest { filter: None },
                ),
            )
            .await?
            .stats)
    }

    async fn sandbox_stats(&self, id: Option<&str>) -> Result<Vec<stats::PodSandboxStats>> {
        let filter = id.map(|id| PodSandboxStatsFilter { id: id.to_owned(), ..Default::default() });
        Ok(self
            .call(
                "runtime.v1.RuntimeService/ListPodSandboxStats",
                CALL,
                self.unary::<_, stats::ListPodSandboxStatsResponse>(
                    "/runtime.v1.RuntimeService/ListPodSandboxStats",
                    stats::ListPodSandboxStatsRequest { filter },
                ),
            )
            .await?
            .stats)
    }

    async fn metric_descriptors(&self) -> Result<Vec<MetricDescriptor>> {
        Ok(self
            .call(
                "runtime.v1.RuntimeService/ListMetricDescriptors",
                CALL,
                self.runtime().list_metric_descriptors(ListMetricDescriptorsRequest {}),
            )
            .await?
            .descriptors)
    }

    async fn sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>> {
        Ok(self
            .call(
                "runtime.v1.RuntimeService/ListPodSandboxMetrics",
                CALL,
                self.runtime().list_pod_sandbox_metrics(ListPodSandboxMetricsRequest {}),
            )
            .await?
            .pod_metrics)
    }

    async fn images(&self) -> Result<Vec<Image>> {
        Ok(self
            .call(
                "runtime.v1.ImageService/ListImages",
                CALL,
                self.image_service().list_images(ListImagesRequest { filter: None }),
            )
            .await?
            .images)
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        let request = ImageStatusRequest { image: spec(reference), verbose: false };
        Ok(self
            .call("runtime.v1.ImageService/ImageStatus", CALL, self.image_service().image_status(request))
            .await?
            .image)
    }

    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<Credentials>,
        sandbox: PodSandboxConfig,
    ) -> Result<String> {
        let auth = credentials.map(|c| AuthConfig {
            username: c.username,
            password: c.password,
            server_address: c.server,
            ..Default::default()
        });
        let request = PullImageRequest { image: spec(reference), auth, sandbox_config: Some(sandbox) };
        Ok(self
            .call("runtime.v1.ImageService/PullImage", PULL, self.image_service().pull_image(request))
            .await?
            .image_ref)
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.call(
            "runtime.v1.ImageService/RemoveImage",
            CALL,
            self.image_service().remove_image(RemoveImageRequest { image: spec(reference) }),
        )
        .await
        .map(drop)
    }

    async fn image_filesystems(&self) -> Result<Vec<FilesystemUsage>> {
        Ok(self
            .call(
                "runtime.v1.ImageService/ImageFsInfo",
                CALL,
                self.image_service().image_fs_info(ImageFsInfoRequest {}),
            )
            .await?
            .image_filesystems)
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecSyncResponse> {
        let request = ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout: seconds(timeout) };
        // The engine enforces the command's own limit; some extra lets its answer arrive.
        let limit = if timeout.is_zero() { PULL } else { timeout + CALL };
        self.call("runtime.v1.RuntimeService/ExecSync", limit, self.runtime().exec_sync(request)).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<String> {
        Ok(self.call("runtime.v1.RuntimeService/Exec", CALL, self.runtime().exec(request)).await?.url)
    }

    async fn attach(&self, request: AttachRequest) -> Result<String> {
        Ok(self.call("runtime.v1.RuntimeService/Attach", CALL, self.runtime().attach(request)).await?.url)
    }

    async fn port_forward(&self, request: PortForwardRequest) -> Result<String> {
        Ok(self.call("runtime.v1.RuntimeService/PortForward", CALL, self.runtime().port_forward(request)).await?.url)
    }

    async fn events(&self) -> Option<BoxStream<'static, String>> {
        events::subscribe(self.channel.clone()).await
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        const METHOD: &str = "/runtime.v1.RuntimeService/RuntimeConfig";
        let asked = self.unary::<_, RuntimeConfigResponse>(METHOD, RuntimeConfigRequest {});
        match self.call("runtime.v1.RuntimeService/RuntimeConfig", CALL, asked).await {
            Ok(answer) => Ok(answer.linux.map(|linux| match linux.cgroup_driver {
                0 => CgroupDriver::Systemd,
                _ => CgroupDriver::Cgroupfs,
            })),
            Err(error) if error.is_unimplemented() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn set_pod_cidr(&self, cidr: &str) -> Result<()> {
        let network_config = Some(NetworkConfig { pod_cidr: cidr.to_owned() });
        let request = UpdateRuntimeConfigRequest { runtime_config: Some(RuntimeConfig { network_config }) };
        self.call("runtime.v1.RuntimeService/UpdateRuntimeConfig", CALL, self.runtime().update_runtime_config(request))
            .await
            .map(drop)
    }
}

/// runtime.v1.RuntimeConfigRequest, which is newer than the crate of CRI, as the next two are.
#[derive(Clone, PartialEq, prost::Message)]
struct RuntimeConfigRequest {}

/// runtime.v1.RuntimeConfigResponse
#[derive(Clone, PartialEq, prost::Message)]
struct RuntimeConfigResponse {
    #[prost(message, optional, tag = "1")]
    linux: Option<LinuxRuntimeConfiguration>,
}

/// runtime.v1.LinuxRuntimeConfiguration
#[derive(Clone, PartialEq, prost::Message)]
struct LinuxRuntimeConfiguration {
    /// 0 is systemd, 1 cgroupfs.
    #[prost(int32, tag = "1")]
    cgroup_driver: i32,
}
