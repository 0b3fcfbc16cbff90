//! The engine alone: sandboxes with a container each, one after another and as many at once as the burst has Pods, asked for without a
//! node in between. What Pods take beyond that is skiff's.

use std::{collections::HashMap, path::Path};

use runtime::{
    Cri, Runtime,
    container::ContainerConfig,
    cri_api::{
        ContainerMetadata, ImageSpec, LinuxContainerConfig, LinuxContainerResources, LinuxPodSandboxConfig, PodSandbox,
        PodSandboxConfig, PodSandboxMetadata,
    },
};

use super::burst::PODS;
use crate::{load::drive, report::Report};

/// How many are started one after another.
const SINGLE: usize = 5;
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

/// Over the engine of the node that has this data folder.
pub async fn measure(folder: &Path, report: &mut Report) -> anyhow::Result<()> {
    let (engine, logs) = (&Cri::new(&folder.join("run/containerd.sock").display().to_string()), &folder.join("logs"));
    let start = |i: usize| async move {
        let config = sandbox(i, logs);
        let id = engine.run_sandbox(config.clone(), "").await?;
        let container = engine.create_container(&id, container(), config).await?;
        engine.start_container(&container).await?;
        anyhow::Ok(())
    };
    let single = drive(SINGLE, 1, start).await?;
    report.add("the engine alone: a sandbox and a container, started", single.quantile(0.5), "ms", None, "median of 5");
    remove(engine).await?;
    let all = drive(PODS, PODS, start).await?;
    let what = format!("the engine alone: {PODS} sandboxes at once, each with a container that is started");
    report.add(&what, all.seconds, "s", None, "without volumes, probes and events");
    remove(engine).await
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
