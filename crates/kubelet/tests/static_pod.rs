//! A static Pod on a real containerd, with an API server that holds nothing: it runs, writes its log, survives a restart of
//! the kubelet, and goes with its file. Needs root, containerd and busybox; says so and passes where they are missing.

use std::{convert::Infallible, panic::AssertUnwindSafe, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use client::Caches;
use futures::FutureExt;
use http::{Method, Request, Response};
use http_body_util::Full;
use k8s_cri::v1::Container;
use runtime::{
    Runtime,
    containerd::{self, Containerd, Options},
    images,
};
use tokio::task::JoinSet;

/// Lists are empty, watches are silent, and what is created is there.
async fn api(request: Request<client::Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    let uri = request.uri().to_string();
    if uri.contains("watch=true") {
        std::future::pending::<()>().await;
    }
    let list = [("/services", "ServiceList"), ("/pods", "PodList")]
        .into_iter()
        .find(|(end, _)| request.method() == Method::GET && request.uri().path().ends_with(end));
    let body = match list {
        Some((_, kind)) => {
            format!(r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[]}}"#).into()
        }
        None => request.into_body().collect_bytes().await.unwrap_or_default(),
    };
    Ok(Response::new(Full::new(body)))
}

fn config(folder: &Path, engine: Arc<dyn Runtime>, client: client::Client) -> kubelet::Config {
    kubelet::Config {
        node_name: "n1".into(),
        node_ip: std::net::Ipv4Addr::LOCALHOST.into(),
        second_node_ip: None,
        root_dir: folder.join("kubelet"),
        log_dir: folder.join("logs"),
        shared_logs: None,
        local_volumes: None,
        client,
        runtime: engine,
        cluster_dns: Vec::new(),
        cluster_domain: "cluster.local".into(),
        resolv_conf: "/etc/resolv.conf".into(),
        manifest_dir: Some(folder.join("manifests")),
        cgroup_root: CGROUP.into(),
        max_pods: 110,
        users_part: None,
        evictions: Default::default(),
        sysctls: kubelet::Sysctls::new(&[]).unwrap(),
        selinux_labels: false,
        features: Default::default(),
        settings: Default::default(),
        document: None,
        node_labels: Default::default(),
        node_annotations: Default::default(),
        gate: None,
        sharing: None,
        serving: None,
    }
}

async fn until(what: &str, mut yes: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if yes().await {
            return;
        }
        clock::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

fn log(folder: &Path) -> String {
    let pods = std::fs::read_dir(folder.join("logs")).into_iter().flatten().flatten();
    pods.map(|p| std::fs::read_to_string(p.path().join("c/0.log")).unwrap_or_default()).collect()
}

const CGROUP: &str = "/skiff-kubelet-test";

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_runs_outlives_its_kubelet_and_goes_with_its_file() {
    let root = nix::unistd::Uid::effective().is_root();
    if !root || !["/usr/bin/containerd", "/bin/busybox"].iter().all(|p| Path::new(p).exists()) {
        eprintln!("SKIPPED: needs root, containerd and busybox-static");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(folder.path().join("root"), folder.path().join("state"));
    let outcome = AssertUnwindSafe(story(folder.path(), &options)).catch_unwind().await;
    // Also after a failure nothing may stay on the machine.
    containerd::stop(&options).await.unwrap();
    kubelet::remove_traces(&folder.path().join("kubelet"), CGROUP).unwrap();
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure);
    }
    for cgroup in [format!("/sys/fs/cgroup/memory{CGROUP}"), format!("/sys/fs/cgroup{CGROUP}")] {
        assert!(!Path::new(&cgroup).exists(), "{cgroup} is left");
    }
}

const FIRST: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: i, image: IMAGE, command: [sh, -c, 'echo made > /shared/f'], volumeMounts: [{name: v, mountPath: /shared}]}
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'echo $NODE $(cat /shared/f); exec sleep 1000']
    env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    volumeMounts: [{name: v, mountPath: /shared}]
  volumes: [{name: v, emptyDir: {}}]
";

const SECOND: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: q}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 2
  containers: [{name: d, image: IMAGE, command: [sleep, '1000']}]
";

async fn story(at: &Path, options: &Options) {
    let engine = Containerd::start(options.clone()).await.unwrap();
    let cri = engine.cri();
    images::ensure(&cri, cri.socket(), &images::busybox(images::BUSYBOX).unwrap(), at).await.unwrap();
    let manifests = at.join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(manifests.join(name), text.replace("IMAGE", images::BUSYBOX)).unwrap();
    };
    write("p.yaml", FIRST);

    // Kubelets that end with this story, however it ends.
    let mut kubelets = JoinSet::new();
    let start = |kubelets: &mut JoinSet<_>| {
        let client = client::in_process(tower::service_fn(api));
        let config = config(at, Arc::new(cri.clone()), client.clone());
        kubelets.spawn(kubelet::run(config, Caches::new(client)));
    };
    let running = async |name: &str| -> Vec<String> {
        let all = cri.containers(None).await.unwrap();
        let of_name = |c: &&Container| c.state == 1 && c.metadata.as_ref().is_some_and(|m| m.name == name);
        all.iter().filter(of_name).map(|c| c.id.clone()).collect()
    };
    start(&mut kubelets);
    until("the container's log", async || log(at).contains(" stdout F n1 made\n")).await;
    until("the container", async || running("c").await.len() == 1).await;
    let before = running("c").await;
    kubelets.shutdown().await;

    // A Pod that only the second kubelet starts shows that it has been through everything it found.
    write("q.yaml", SECOND);
    start(&mut kubelets);
    until("the second Pod", async || running("d").await.len() == 1).await;
    assert_eq!(running("c").await, before, "a restart of the kubelet leaves containers alone");

    std::fs::remove_dir_all(&manifests).unwrap();
    until("the sandboxes' end", async || cri.sandboxes(None).await.unwrap().is_empty()).await;
    until("the folders' end", async || {
        std::fs::read_dir(at.join("kubelet/pods")).is_ok_and(|mut pods| pods.next().is_none())
    })
    .await;
    kubelets.shutdown().await;
}
