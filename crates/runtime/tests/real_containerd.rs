//! Our own containerd, really started: a sandbox, a container, its log, an exec, its end, and nothing left behind.
//! Needs root, containerd and busybox; says so and passes where they are missing.

use std::{path::Path, time::Duration};

use futures::StreamExt;
use runtime::{
    Runtime,
    containerd::{self, Containerd, Options},
    cri_api::*,
    images,
};

fn missing() -> Option<&'static str> {
    if !nix::unistd::Uid::effective().is_root() {
        return Some("not root");
    }
    if !["/usr/bin/containerd", "/usr/sbin/runc", "/bin/busybox"].iter().all(|p| Path::new(p).exists()) {
        return Some("containerd, runc or busybox-static is not installed");
    }
    None
}

fn sandbox_config(logs: &Path) -> PodSandboxConfig {
    let namespaces = NamespaceOption { network: NamespaceMode::Node as i32, ..Default::default() };
    let security = LinuxSandboxSecurityContext { namespace_options: Some(namespaces), ..Default::default() };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "p".into(),
            uid: "u1".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        log_directory: logs.display().to_string(),
        linux: Some(LinuxPodSandboxConfig { security_context: Some(security), ..Default::default() }),
        ..Default::default()
    }
}

fn container_config(script: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(ImageSpec { image: images::BUSYBOX.into(), ..Default::default() }),
        command: vec!["sh".into(), "-c".into(), script.into()],
        log_path: "c.log".into(),
        linux: Some(LinuxContainerConfig::default()),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_comes_and_goes_without_a_trace() {
    if let Some(reason) = missing() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(folder.path().join("root"), folder.path().join("state"));
    let engine = Containerd::start(options.clone()).await.unwrap();
    assert!(engine.is_new());
    let cri = engine.cri();
    images::ensure(&cri, cri.socket(), &images::busybox(images::BUSYBOX).unwrap(), folder.path()).await.unwrap();
    let mut events = cri.events().await.expect("containerd has events");

    let sandbox_config = sandbox_config(folder.path());
    let sandbox = cri.run_sandbox(sandbox_config.clone(), "").await.unwrap();
    let script = "echo hello; trap 'exit 3' TERM; while :; do sleep 0.1; done";
    let id = cri.create_container(&sandbox, container_config(script), sandbox_config).await.unwrap();
    cri.start_container(&id).await.unwrap();
    let output = cri.exec_sync(&id, vec!["echo".into(), "from exec".into()], Duration::from_secs(10)).await.unwrap();
    assert_eq!((output.exit_code, output.stdout.as_slice()), (0, b"from exec\n".as_slice()));

    // A second start finds the first, and the container still runs.
    drop(engine);
    let again = Containerd::start(options.clone()).await.unwrap();
    assert!(!again.is_new());
    assert_eq!(cri.container_status(&id).await.unwrap().state(), ContainerState::ContainerRunning);

    cri.stop_container(&id, Duration::from_secs(5)).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(20), events.next()).await.expect("an event");
    assert_eq!(told.as_deref(), Some(id.as_str()));
    assert_eq!(cri.container_status(&id).await.unwrap().exit_code, 3);
    let log = std::fs::read_to_string(folder.path().join("c.log")).unwrap();
    assert!(log.contains(" stdout F hello\n"), "{log:?}");

    containerd::stop(&options).await.unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder.path().display().to_string()), "{mounts}");
    assert!(!Path::new(&format!("/proc/{}", again.pid())).exists() || !is_running(again.pid()));
}

fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}
