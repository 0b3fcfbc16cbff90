//! The cost of nodes to the control plane: a hundred of them, each our real kubelet over an engine in memory, with a certificate
//! of its own, over TLS. The kubelets run in this process, and the server is measured alone.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use client::{Api, Caches, Client, Config, config::Trust};
use json::{Value, json};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use tokio::task::JoinSet;

use crate::{
    report::{Goal::AtMost, Report},
    subject::{Server, scratch},
};

const NODES: usize = 100;
const PODS: i32 = 1000;
/// How long the quiet cluster is watched.
const WINDOW: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn measure(skiff: &Path, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &[]).await?;
    let (url, pki) = server.way()?;
    let mut kubelets = JoinSet::new();
    let begun = Instant::now();
    for number in 0..NODES {
        let (config, caches) = node(&url, &pki, &format!("hollow-{number:03}"))?;
        kubelets.spawn(kubelet::run_hollow(config, caches));
    }
    let viewer = client(&url, &pki, pki.admin()?)?;
    let nodes: Api<Node> = Api::all(viewer.clone());
    let ready = async || Ok(nodes.list(&[]).await?.iter().filter(|node| is_ready(node)).count() == NODES);
    until("the nodes are ready", &mut kubelets, ready).await?;
    report.add(
        &format!("{NODES} nodes registered and ready"),
        begun.elapsed().as_secs_f64(),
        "s",
        None,
        "real kubelets",
    );

    let begun = Instant::now();
    server.api.post("/apis/apps/v1/namespaces/default/deployments", &deployment()).await?;
    let deployments: Api<Deployment> = Api::namespaced(viewer, "default");
    let running = async || {
        let status = deployments.get("hollow").await?.status;
        Ok(status.and_then(|s| s.ready_replicas) == Some(PODS))
    };
    until("the Pods run", &mut kubelets, running).await?;
    let what = format!("a Deployment of {PODS} Pods on them, created to all ready");
    report.add(&what, begun.elapsed().as_secs_f64(), "s", None, "");

    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = server.cpu_seconds();
    tokio::time::sleep(WINDOW).await;
    let used = (server.cpu_seconds() - before) / WINDOW.as_secs_f64() * 100.0;
    let what = format!("control plane with {NODES} idle nodes and {PODS} Pods");
    report.add(&format!("{what}: CPU"), used, "% of a core", Some(AtMost(5.0)), "over 60 s; at most 5 % is the goal");
    let memory = server.resident_mb();
    report.add(&format!("{what}: resident memory"), memory, "MB", Some(AtMost(200.0)), "at most 200 MB is the goal");
    Ok(())
}

fn client(url: &str, pki: &pki::Pki, credential: pki::Credential) -> anyhow::Result<Client> {
    let trust = Trust::Authorities(pki.authority.certificate().to_owned());
    Ok(client::from_config(&Config { trust, credential: Some(credential), ..Config::new(url)? })?)
}

/// A kubelet's settings, and its way to the server as its node.
fn node(url: &str, pki: &pki::Pki, name: &str) -> anyhow::Result<(kubelet::Config, Caches)> {
    let client = client(url, pki, pki.node_client(name)?)?;
    let folder = scratch("hollow")?.join(name);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let settings = kubelet::Config {
        node_name: name.to_owned(),
        node_ip: [127, 0, 0, 1].into(),
        second_node_ip: None,
        root_dir: folder.join("kubelet"),
        log_dir: folder.join("logs"),
        shared_logs: None,
        local_volumes: None,
        client: client.clone(),
        runtime: Arc::new(runtime::fake::Fake::default()),
        cluster_dns: Vec::new(),
        cluster_domain: "cluster.local".to_owned(),
        resolv_conf: "/etc/resolv.conf".into(),
        manifest_dir: None,
        cgroup_root: "/".to_owned(),
        max_pods: 110,
        users_part: None,
        evictions: Default::default(),
        sysctls: kubelet::Sysctls::new(&[]).map_err(anyhow::Error::msg)?,
        selinux_labels: false,
        features: Default::default(),
        settings: Default::default(),
        document: None,
        node_labels: Default::default(),
        node_annotations: Default::default(),
        gate: None,
        sharing: None,
        serving: None,
    };
    Ok((settings, Caches::new(client)))
}

fn deployment() -> Value {
    let labels = json!({"app": "hollow"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "hollow"}, "spec": {
        "replicas": PODS, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "hollow:1", "imagePullPolicy": "IfNotPresent"}],
        }},
    }})
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn until(
    what: &str,
    kubelets: &mut JoinSet<Result<(), kubelet::Error>>,
    is_so: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_so().await? {
        if let Some(ended) = kubelets.try_join_next() {
            bail!("a kubelet ended: {ended:?}");
        }
        if begun.elapsed() > PATIENCE {
            bail!("not within {} s: {what}", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
