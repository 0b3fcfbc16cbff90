//! Our own containerd, really started: a sandbox, a container, its log, an exec, its end, and nothing left behind.
//! Needs root, containerd and busybox; says so and passes where they are missing.

use std::{path::Path, time::Duration};

use futures::StreamExt;
use runtime::{
    Runtime, archives,
    container::ContainerConfig,
    containerd::{self, Containerd, Options},
    cri_api::*,
    image_file::{Entry, Recipe},
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
    let [run_as_user, run_as_group] = [1234, 5678].map(|value| Some(Int64Value { value }));
    let namespace_options = Some(namespaces);
    let security = LinuxSandboxSecurityContext { namespace_options, run_as_user, run_as_group, ..Default::default() };
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
    let task = folder.path().join("state/io.containerd.runtime.v2.task/k8s.io").join(&sandbox);
    let pid = std::fs::read_to_string(task.join("init.pid")).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let ids = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()).unwrap();
    assert_eq!((ids("Uid:"), ids("Gid:")), ("1234", "5678"), "the program that holds a sandbox needs nobody's rights");
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

#[tokio::test(flavor = "multi_thread")]
async fn archives_of_a_folder_are_imported_once_and_pinned_and_a_broken_one_is_told() {
    if let Some(reason) = missing() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(folder.path().join("root"), folder.path().join("state"));
    let engine = Containerd::start(options.clone()).await.unwrap();
    let cri = engine.cri();
    let (archives, record) = (folder.path().join("images"), folder.path().join("imports.json"));
    std::fs::create_dir(&archives).unwrap();
    for (name, packs) in [("plain", None), ("packed", Some("gzip")), ("small", Some("zstd"))] {
        if packs.is_some_and(|program| !Path::new("/usr/bin").join(program).exists()) {
            continue;
        }
        let entries = vec![Entry::File { path: "/name".into(), mode: 0o644, data: name.into() }];
        let recipe = Recipe { reference: format!("skiff.local/{name}:1"), entries, ..Recipe::default() };
        let file = archives.join(format!("{name}.tar"));
        images::build(&recipe, &file).unwrap();
        if let Some(program) = packs {
            assert!(std::process::Command::new(program).arg("-q").arg(&file).status().unwrap().success());
        }
        // One of the programs keeps what it has packed.
        if packs.is_some() && file.exists() {
            std::fs::remove_file(&file).unwrap();
        }
    }
    std::fs::write(archives.join("broken.tar.gz"), "no archive").unwrap();
    let wanted = std::fs::read_dir(&archives).unwrap().count() - 1;
    let import = async || archives::import_folder(&cri, cri.socket(), &archives, &record).await;
    let first = import().await;
    assert_eq!(first.images.len(), wanted, "{first:?}");
    assert_eq!(first.images["packed.tar.gz"], ["skiff.local/packed:1"]);
    assert!(first.failures.len() == 1 && first.failures[0].contains("broken.tar.gz"), "{first:?}");
    let mut list = std::process::Command::new("ctr");
    let listed = list.arg("--address").arg(cri.socket()).args(["-n", "k8s.io", "images", "ls"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_pinned =
        |line: &str| line.starts_with("skiff.local/plain:1 ") && line.contains("io.cri-containerd.pinned=pinned");
    assert!(listed.lines().any(is_pinned), "{listed}");
    assert!(import().await.images.is_empty(), "nothing is new");
    let image = cri.image("skiff.local/plain:1").await.unwrap().unwrap();
    cri.remove_image(&image.id).await.unwrap();
    assert_eq!(import().await.images.into_keys().collect::<Vec<_>>(), ["plain.tar"]);
    containerd::stop(&options).await.unwrap();
}
