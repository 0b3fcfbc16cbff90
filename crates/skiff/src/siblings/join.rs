//! The further nodes join the cluster of the process that starts them: with a token of theirs, over the network between them.

use std::{ffi::OsString, net::IpAddr};

use anyhow::Context;
use api::rules::bootstrap_token::{self, End};
use client::{Api, rest::DeleteOptions};
use clock::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use network::local_nodes::Meeting;

use crate::{
    commands::{agent, server, token},
    control_plane::welcome,
    flags::options::Up,
    layout::Layout,
    progress::Progress,
    siblings::{
        Sibling, Siblings,
        process::{Family, Orders},
        server_address,
    },
};

/// How long the token lasts if nobody is left to delete it.
const TOKEN_SECONDS: i64 = 3600;

/// Starts the nodes, one after the other, and waits until each is ready.
pub async fn all(
    control_plane: &server::Running,
    siblings: &Siblings,
    options: &Up,
    cluster: &Layout,
    family: &mut Family,
    progress: &Progress,
) -> anyhow::Result<()> {
    if siblings.all.is_empty() && siblings.gone.is_empty() {
        return Ok(());
    }
    let client = control_plane.client("skiff", "system:skiff", &["system:masters"]);
    let first = agent::node_name(&options.node)?;
    // Written last of what lets nodes in.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), welcome::INFO_NAMESPACE);
    maps.wait(welcome::INFO, |info| info.is_some()).await;
    let nodes: Api<Node> = Api::all(client.clone());
    for sibling in &siblings.gone {
        client::rest::found(nodes.delete(&sibling.name(&first), DeleteOptions::default()).await)
            .context("cannot delete a node that is no more")?;
    }
    let Some(meeting) = &siblings.meeting else { return Ok(()) };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), bootstrap_token::NAMESPACE);
    let end = Timestamp::from_second(clock::now_seconds().as_second() + TOKEN_SECONDS)?;
    let token = token::issue(&secrets, End::At(end)).await.context("cannot make a token for the other nodes")?;
    for sibling in &siblings.all {
        let name = sibling.name(&first);
        let orders = Orders {
            args: args(sibling, meeting, options, cluster, &name)?,
            sibling: sibling.clone(),
            name: name.clone(),
            token: format!("{}.{}", token.id, token.secret),
        };
        let ready = agent::ready(client.clone(), &name);
        progress.step(&format!("node {name} joined and ready"), family.start(orders, ready)).await?;
    }
    // It ends by itself if that fails.
    let _ = secrets.delete(&bootstrap_token::secret_name(&token.id), DeleteOptions::default()).await;
    Ok(())
}

/// The agent's command line: what makes it this node, and the flags that all nodes of the machine have alike.
fn args(
    sibling: &Sibling,
    meeting: &Meeting,
    options: &Up,
    cluster: &Layout,
    name: &str,
) -> anyhow::Result<Vec<OsString>> {
    let server = server_address(options, &meeting.addresses(1))?;
    let (node, common) = (&options.node, &options.common);
    let mut args = vec![OsString::from("agent")];
    let mut flag = |name: &str, value: OsString| {
        let mut text = OsString::from(format!("--{name}="));
        text.push(value);
        args.push(text);
    };
    flag("data-dir", sibling.layout.root.clone().into());
    flag("network-namespace", sibling.layout.network_namespace().into());
    flag("node-name", name.into());
    flag("node-ip", texts(&meeting.addresses(sibling.number)).into());
    flag("cgroup-root", sibling.cgroup().into());
    flag("number-on-machine", sibling.number.to_string().into());
    flag("server", server.into());
    flag("certificate-authority", cluster.pki().join("ca.crt").into());
    flag("kubelet-port", node.kubelet_port.to_string().into());
    flag("dns-port", node.dns_port.to_string().into());
    flag("proxy-healthz-bind-address", node.proxy_healthz_bind_address.clone().into());
    flag("proxy-metrics-bind-address", node.proxy_metrics_bind_address.clone().into());
    flag("proxy-mode", node.proxy_mode.name().into());
    for range in &node.nodeport_addresses {
        flag("nodeport-addresses", range.into());
    }
    flag("resolv-conf", node.resolv_conf.clone().into());
    flag("max-pods", node.max_pods.to_string().into());
    for (name, value) in node.evictions.texts() {
        flag(name, value.into());
    }
    for (name, path) in node.kubelet_config.texts() {
        flag(name, path.into());
    }
    for (name, path) in node.image_credentials.texts() {
        flag(name, path.into());
    }
    // Archives that are given to one node of the machine are for all of them.
    flag("image-archives", node.image_archives.clone().unwrap_or_else(|| cluster.images()).into());
    flag("embedded-registry", node.embedded_registry.to_string().into());
    flag("selinux", node.selinux.to_string().into());
    for sysctl in &node.allowed_unsafe_sysctls {
        flag("allowed-unsafe-sysctls", sysctl.into());
    }
    for gates in options.control_plane.gates.texts() {
        flag("feature-gates", gates.into());
    }
    for part in ["dns", "proxy", "network"].into_iter().filter(|part| !options.control_plane.runs(part)) {
        flag("disable", part.into());
    }
    for (name, value) in common.logging.texts() {
        flag(name, value.into());
    }
    Ok(args)
}

/// Addresses as one flag takes them.
fn texts(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
}
