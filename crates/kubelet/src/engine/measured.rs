//! An engine whose calls are counted and timed. It does nothing else.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use clock::Instant;
use futures::stream::BoxStream;
use k8s_cri::v1::{
    AttachRequest, Container, ContainerFilter, ExecRequest, ExecSyncResponse, FilesystemUsage, Image,
    LinuxContainerResources, MetricDescriptor, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxMetrics,
    PodSandboxStatus, PortForwardRequest, StatusResponse, VersionResponse,
};
use runtime::{
    CgroupDriver, Credentials, Result, Runtime,
    container::{ContainerConfig, ContainerStatus},
    stats::{ContainerStats, PodSandboxStats},
};

use crate::counted::Figures;

pub struct Measured {
    pub engine: Arc<dyn Runtime>,
    pub figures: Arc<Figures>,
}

#[async_trait]
impl Runtime for Measured {
    fn process(&self) -> Option<i32> {
        self.engine.process()
    }

    async fn version(&self) -> Result<VersionResponse> {
        self.figures.call("version", self.engine.version()).await
    }

    async fn status(&self) -> Result<StatusResponse> {
        self.figures.call("status", self.engine.status()).await
    }

    async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<String> {
        let begun = Instant::now();
        let made = self.figures.call("run_podsandbox", self.engine.run_sandbox(config, handler)).await;
        self.figures.sandbox(handler, made.is_ok(), begun.elapsed());
        made
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.figures.call("stop_podsandbox", self.engine.stop_sandbox(id)).await
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.figures.call("remove_podsandbox", self.engine.remove_sandbox(id)).await
    }

    async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        self.figures.call("podsandbox_status", self.engine.sandbox_status(id)).await
    }

    async fn sandboxes(&self, filter: Option<PodSandboxFilter>) -> Result<Vec<PodSandbox>> {
        self.figures.call("list_podsandbox", self.engine.sandboxes(filter)).await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        of_sandbox: PodSandboxConfig,
    ) -> Result<String> {
        self.figures.call("create_container", self.engine.create_container(sandbox, config, of_sandbox)).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.figures.call("start_container", self.engine.start_container(id)).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.figures.call("stop_container", self.engine.stop_container(id, grace)).await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.figures.call("remove_container", self.engine.remove_container(id)).await
    }

    async fn end_given_up(&self, id: &str) -> Result<()> {
        self.engine.end_given_up(id).await
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        self.figures.call("container_status", self.engine.container_status(id)).await
    }

    async fn containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>> {
        self.figures.call("list_containers", self.engine.containers(filter)).await
    }

    async fn update_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        self.figures.call("update_container", self.engine.update_resources(id, resources)).await
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        self.figures.call("reopen_container_log", self.engine.reopen_log(id)).await
    }

    async fn checkpoint(&self, id: &str, location: &str, timeout: Duration) -> Result<()> {
        self.figures.call("checkpoint_container", self.engine.checkpoint(id, location, timeout)).await
    }

    async fn container_stats(&self) -> Result<Vec<ContainerStats>> {
        self.figures.call("list_container_stats", self.engine.container_stats()).await
    }

    async fn sandbox_stats(&self, id: Option<&str>) -> Result<Vec<PodSandboxStats>> {
        self.figures.call("list_podsandbox_stats", self.engine.sandbox_stats(id)).await
    }

    async fn metric_descriptors(&self) -> Result<Vec<MetricDescriptor>> {
        self.figures.call("list_metric_descriptors", self.engine.metric_descriptors()).await
    }

    async fn sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>> {
        self.figures.call("list_podsandbox_metrics", self.engine.sandbox_metrics()).await
    }

    async fn images(&self) -> Result<Vec<Image>> {
        self.figures.call("list_images", self.engine.images()).await
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        self.figures.call("image_status", self.engine.image(reference)).await
    }

    async fn pull_image(
        &self,
        reference: &str,
        credentials: Option<Credentials>,
        sandbox: PodSandboxConfig,
    ) -> Result<String> {
        self.figures.call("pull_image", self.engine.pull_image(reference, credentials, sandbox)).await
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        self.figures.call("remove_image", self.engine.remove_image(reference)).await
    }

    async fn image_filesystems(&self) -> Result<Vec<FilesystemUsage>> {
        self.figures.call("info_imagefs", self.engine.image_filesystems()).await
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: Duration) -> Result<ExecSyncResponse> {
        self.figures.call("exec_sync", self.engine.exec_sync(id, command, timeout)).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<String> {
        self.figures.call("exec", self.engine.exec(request)).await
    }

    async fn attach(&self, request: AttachRequest) -> Result<String> {
        self.figures.call("attach", self.engine.attach(request)).await
    }

    async fn port_forward(&self, request: PortForwardRequest) -> Result<String> {
        self.figures.call("port_forward", self.engine.port_forward(request)).await
    }

    async fn set_pod_cidr(&self, cidr: &str) -> Result<()> {
        self.figures.call("update_runtime_config", self.engine.set_pod_cidr(cidr)).await
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        self.figures.call("runtime_config", self.engine.cgroup_driver()).await
    }

    async fn events(&self) -> Option<BoxStream<'static, String>> {
        self.engine.events().await
    }
}
