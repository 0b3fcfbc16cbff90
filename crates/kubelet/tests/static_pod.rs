//! A static Pod on a real containerd, with an API server that holds nothing: it runs, writes its log, survives a restart of
//! the kubelet, and goes with its file. Needs root, containerd and busybox; says so and passes where they are missing.

use std::{convert::Infallible, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use client::Caches;
use http::{Method, Request, Response};
use http_body_util::Full;
use runtime::{
    Runtime,
    containerd::{self, Containerd, Options},
    images,
};

/// Lists are empty, watches are silent, and what is created is there.
async fn api(request: Request<kube::client::Body>) -> Result<Response<Full<Bytes>>, Infallible> {
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
        root_dir: folder.join("kubelet"),
        log_dir: folder.join("logs"),
        client,
        runtime: engine,
        cluster_dns: Vec::new(),
        cluster_domain: "cluster.local".into(),
        resolv_conf: "/etc/resolv.conf".into(),
        manifest_dir: Some(folder.join("manifests")),
        cgroup_root: "/skiff-kubelet-test".into(),
        max_pods: 110,
        node_labels: Default::default(),
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

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_runs_outlives_its_kubelet_and_goes_with_its_file() {
    let root = nix::unistd::Uid::effective().is_root();
    if !root || !["/usr/bin/containerd", "/bin/busybox"].iter().all(|p| Path::new(p).exists()) {
        eprintln!("SKIPPED: needs root, containerd and busybox-static");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let options = Options::new(at.join("root"), at.join("state"));
    let engine = Containerd::start(options.clone()).await.unwrap();
    let cri = engine.cri();
    images::ensure(&cri, cri.socket(), &images::busybox(images::BUSYBOX).unwrap(), at).await.unwrap();
    std::fs::create_dir(at.join("manifests")).unwrap();
    let manifest = at.join("manifests/p.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  hostNetwork: true\n  terminationGracePeriodSeconds: 2\n  \
         initContainers: [{{name: i, image: {0}, command: [sh, -c, 'echo made > /shared/f'], \
         volumeMounts: [{{name: v, mountPath: /shared}}]}}]\n  containers: [{{name: c, image: {0}, \
         command: [sh, -c, 'echo $NODE $(cat /shared/f); exec sleep 1000'], env: [{{name: NODE, valueFrom: {{fieldRef: \
         {{fieldPath: spec.nodeName}}}}}}], volumeMounts: [{{name: v, mountPath: /shared}}]}}]\n  volumes: [{{name: v, emptyDir: {{}}}}]\n",
        images::BUSYBOX
    );
    std::fs::write(&manifest, text).unwrap();

    let start = || {
        let client = client::in_process(tower::service_fn(api));
        let config = config(at, Arc::new(cri.clone()), client.clone());
        tokio::spawn(kubelet::run(config, Caches::new(client)))
    };
    let first = start();
    until("the container's log", async || log(at).contains(" stdout F n1 made\n")).await;
    let ids = async || -> Vec<String> {
        let all = cri.containers(None).await.unwrap();
        all.into_iter().filter(|c| c.state == 1).map(|c| c.id).collect()
    };
    let before = ids().await;
    assert_eq!(before.len(), 1);
    first.abort();

    let second = start();
    clock::sleep(Duration::from_secs(3)).await;
    assert_eq!(ids().await, before, "a restart of the kubelet leaves containers alone");

    std::fs::remove_file(&manifest).unwrap();
    until("the sandbox's end", async || cri.sandboxes(None).await.unwrap().is_empty()).await;
    until("the folder's end", async || {
        std::fs::read_dir(at.join("kubelet/pods")).is_ok_and(|mut pods| pods.next().is_none())
    })
    .await;
    second.abort();
    containerd::stop(&options).await.unwrap();
    kubelet::remove_traces(&at.join("kubelet"), "/skiff-kubelet-test").unwrap();
    for cgroup in ["/sys/fs/cgroup/memory/skiff-kubelet-test", "/sys/fs/cgroup/skiff-kubelet-test"] {
        assert!(!Path::new(cgroup).exists(), "{cgroup} is left");
    }
}
