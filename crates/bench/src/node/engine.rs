//! The engine alone: sandboxes with a container each, one after another and as many at once as a burst has Pods, asked for without a
//! node in between. What Pods take beyond that is skiff's.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use kubelet::pod::desired::POD_NAME;
use runtime::{
    Cri, Runtime,
    container::ContainerConfig,
    cri_api::{
        ContainerMetadata, ImageSpec, LinuxContainerConfig, LinuxContainerResources, LinuxPodSandboxConfig, PodSandbox,
        PodSandboxConfig, PodSandboxMetadata,
    },
};

use crate::{load::drive, report::Report};

/// How many are started one after another.
const SINGLE: usize = 5;
/// Calls beyond this only wait for each other in the engine: it is as many as a kubelet asks for at a time on two processors.
const MOST: usize = 8;
const IMAGE: &str = "skiff.local/busybox:1";

fn sandbox(i: usize, logs: &Path) -> PodSandboxConfig {
    let name = format!("engine-{i}");
    let metadata =
        PodSandboxMetadata { name: name.clone(), uid: name.clone(), namespace: "bench".to_owned(), attempt: 0 };
    let parent = "/kubepods/besteffort".to_owned();
    let linux = LinuxPodSandboxConfig { cgroup_parent: parent, ..LinuxPodSandboxConfig::default() };
    PodSandboxConfig {
        metadata: Some(metadata),
        hostname: name,
        log_directory: logs.display().to_string(),
        linux: Some(linux),
        ..PodSandboxConfig::default()
    }
}

fn container() -> ContainerConfig {
    let resources = LinuxContainerResources { cpu_shares: 2, ..LinuxContainerResources::default() };
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: IMAGE.to_owned(), annotations: HashMap::new(), ..ImageSpec::default() }),
        command: ["sleep", "100000"].map(str::to_owned).into(),
        log_path: "main.log".to_owned(),
        linux: Some(LinuxContainerConfig { resources: Some(resources), ..LinuxContainerConfig::default() }),
        ..ContainerConfig::default()
    }
}

/// The engine of the node that has a data folder.
pub struct Engine {
    cri: Cri,
    logs: PathBuf,
}

impl Engine {
    pub fn of(folder: &Path) -> Self {
        Engine { cri: Cri::new(&folder.join("run/containerd.sock").display().to_string()), logs: folder.join("logs") }
    }

    async fn start(&self, i: usize) -> anyhow::Result<()> {
        let config = sandbox(i, &self.logs);
        let id = self.cri.run_sandbox(config.clone(), "").await?;
        let container = self.cri.create_container(&id, container(), config).await?;
        Ok(self.cri.start_container(&container).await?)
    }

    pub async fn one_after_another(&self, report: &mut Report) -> anyhow::Result<()> {
        let single = drive(SINGLE, 1, |i| self.start(i)).await?;
        let what = "the engine alone: a sandbox and a container, started";
        report.add(what, single.quantile(0.5), "ms", None, "median of 5");
        remove(&self.cri).await
    }

    /// As many at once as a burst has Pods, within the bound; the seconds that it took.
    pub async fn at_once(&self, pods: usize, report: &mut Report) -> anyhow::Result<f64> {
        let all = drive(pods, pods.min(MOST), |i| self.start(i)).await?;
        let what = format!("the engine alone: {pods} sandboxes at once, each with a container that is started");
        let note = format!("without volumes, probes and events, {} in flight", pods.min(MOST));
        report.add(&what, all.seconds, "s", None, note);
        remove(&self.cri).await?;
        Ok(all.seconds)
    }

    /// When it had started the containers of a node's Pods, in seconds since 1970, by the names of these.
    pub async fn started(&self) -> anyhow::Result<HashMap<String, f64>> {
        let mut started = HashMap::new();
        for container in self.cri.containers(None).await? {
            let Some(pod) = container.labels.get(POD_NAME) else { continue };
            let status = self.cri.container_status(&container.id).await?;
            started.insert(pod.clone(), status.started_at as f64 / 1e9);
        }
        Ok(started)
    }
}

async fn remove(engine: &Cri) -> anyhow::Result<()> {
    let own = |sandbox: &PodSandbox| sandbox.metadata.as_ref().is_some_and(|metadata| metadata.namespace == "bench");
    let made: Vec<String> = engine.sandboxes(None).await?.into_iter().filter(own).map(|sandbox| sandbox.id).collect();
    let made = &made;
    let remove = |i: usize| async move {
        engine.stop_sandbox(&made[i]).await?;
        engine.remove_sandbox(&made[i]).await?;
        anyhow::Ok(())
    };
    drive(made.len(), 8, remove).await?;
    Ok(())
}
