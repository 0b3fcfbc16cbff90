//! `skiff kube-proxy`: the Service proxy alone, in the place of upstream's on a node of any control plane.

use std::{net::IpAddr, process::ExitCode, sync::Arc};

use anyhow::{Context, bail};
use client::{Api, Caches, Client, Kubeconfig, rest};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as ApiNode;
use proxy::{
    Family,
    node::{FromPods, Node},
};

use crate::{
    commands::{agent, server},
    flags::kube_proxy::{KubeProxyFlags, Local, Settings},
    node::address,
};

pub fn run(flags: KubeProxyFlags) -> anyhow::Result<ExitCode> {
    // The file says how to log too, so that nothing is logged before it is read.
    let settings = if flags.cleanup { None } else { Some(flags.settings()?) };
    let of_file = settings.as_ref().map(|settings| settings.logging.clone()).unwrap_or_default();
    flags.logging.install_with(&of_file)?;
    for field in settings.iter().flat_map(|settings| &settings.in_vain) {
        tracing::warn!("--config: {field} has no effect on this proxy");
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("`skiff kube-proxy` writes rules of the kernel and so needs root; run it with sudo");
    }
    let Some(settings) = settings else {
        server::runtime()?.block_on(proxy::remove())?;
        return Ok(ExitCode::SUCCESS);
    };
    server::runtime()?.block_on(async {
        let stop = server::stop_signal()?;
        let config = Kubeconfig::current_of(&settings.kubeconfig)
            .with_context(|| format!("cannot use the kubeconfig {}", settings.kubeconfig.display()))?;
        let client = client::from_config(&config)?.named("kube-proxy");
        let name = settings.node_name.clone().map_or_else(address::host_name, Ok)?;
        tokio::select! {
            () = stop => {}
            never = serve(&client, &name, &settings) => match never? {},
        }
        tracing::info!("asked to end; Services keep working, `skiff kube-proxy --cleanup` removes their rules");
        Ok(ExitCode::SUCCESS)
    })
}

async fn serve(client: &Client, name: &str, settings: &Settings) -> anyhow::Result<std::convert::Infallible> {
    let node = node(client, name).await;
    let addresses = addresses(&node);
    let families = families(&node, name, settings)?;
    settings.mode.available(&families).await.context("the proxy mode iptables needs its programs")?;
    settings.mode.remove_other().await;
    let with_v6 = |address| agent::on_all(address, families.iter().any(|node| node.family == Family::V6));
    let config = proxy::Config {
        node_name: name.to_owned(),
        healthz: Some(with_v6(settings.healthz)),
        metrics: Some(with_v6(settings.metrics)),
        conntrack: settings.conntrack.clone(),
        families: families.clone(),
        mode: settings.mode,
    };
    let addresses = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    tracing::info!(node = name, addresses, mode = settings.mode.name(), "leading packets to Services");
    proxy::run(Caches::new(client.clone()), config).await;
    bail!("nothing tells of Services any more")
}

/// The node, as soon as it has registered and has an address.
async fn node(client: &Client, name: &str) -> Arc<ApiNode> {
    let api: Api<ApiNode> = Api::all(client.clone());
    let mut wait = clock::Duration::from_millis(500);
    loop {
        match api.find(name).await {
            Ok(Some(node)) if !addresses(&node).is_empty() => return Arc::new(node),
            Ok(_) => tracing::info!(node = name, "waiting for the node to register"),
            Err(error) => {
                let error = rest::message(&error);
                tracing::warn!(error, "cannot ask for this node, trying again");
            }
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(clock::Duration::from_secs(15));
    }
}

fn addresses(node: &ApiNode) -> Vec<IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    all.filter(|a| a.type_ == "InternalIP").filter_map(|a| api::rules::ip::parse(&a.address)).collect()
}

/// The families that are served: those of the node's addresses, the first one first.
fn families(node: &ApiNode, name: &str, settings: &Settings) -> anyhow::Result<Vec<Node>> {
    let ranges = match &settings.local {
        Local::Cluster(ranges) => ranges.clone(),
        Local::Node => network::overlay::peers::ranges_of(node),
        Local::Interface(_) => Vec::new(),
    };
    if settings.local == Local::Node && ranges.is_empty() {
        bail!("the node {name} has no podCIDR, by which NodeCIDR would know local traffic");
    }
    let mut families: Vec<Node> = Vec::new();
    for ip in addresses(node) {
        let family = Family::of(ip);
        if families.iter().any(|other| other.family == family) {
            continue;
        }
        let of_family = |range: &&IpNet| Family::of(range.addr()) == family;
        let pods = match &settings.local {
            Local::Interface(name) => Some(FromPods::Interface(name.clone())),
            Local::Cluster(_) | Local::Node => ranges.iter().find(of_family).copied().map(FromPods::Range),
        };
        let node_ports = settings.node_ports.of(family, Some(ip));
        let masquerade_all = settings.masquerade_all;
        families.push(Node {
            name: name.to_owned(),
            family,
            ip: Some(ip),
            pods,
            node_ports,
            masquerade_all,
            ..Node::default()
        });
    }
    Ok(families)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use json::json;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: KubeProxyFlags,
    }

    #[test]
    fn the_node_says_which_families_are_served() {
        let node: ApiNode = json::from_value(json!({
            "spec": {"podCIDRs": ["10.244.3.0/24"]},
            "status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "192.0.2.2"}, {"type": "InternalIP", "address": "2001:db8::1"}]},
        }))
        .unwrap();
        let check = |flags: &[&str], expected: &str| {
            let all = ["kube-proxy", "--kubeconfig=/dev/null"].iter().chain(flags);
            let settings = Cli::try_parse_from(all).unwrap().flags.settings().unwrap();
            let text = |node: &Node| {
                let pods = node.pods.as_ref().map_or("nobody".to_owned(), FromPods::yes);
                let ports = node.node_ports.as_ref().map_or("all".to_owned(), |r| format!("{r:?}"));
                format!("{}: {pods}, {ports}", node.ip.unwrap())
            };
            let families = families(&node, "n", &settings).unwrap();
            assert_eq!(families.iter().map(text).collect::<Vec<_>>().join("; "), expected, "{flags:?}");
        };
        check(&[], "192.0.2.1: nobody, [192.0.2.1/32]; 2001:db8::1: nobody, [2001:db8::1/128]");
        check(&["--proxy-mode=iptables"], "192.0.2.1: nobody, all; 2001:db8::1: nobody, all");
        check(
            &["--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=primary"],
            "192.0.2.1: ip saddr 10.244.0.0/16, [192.0.2.1/32]; 2001:db8::1: nobody, [2001:db8::1/128]",
        );
        check(
            &["--detect-local-mode=NodeCIDR", "--nodeport-addresses=192.0.2.0/24"],
            "192.0.2.1: ip saddr 10.244.3.0/24, [192.0.2.0/24]; 2001:db8::1: nobody, []",
        );
        check(
            &["--proxy-mode=iptables", "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali"],
            "192.0.2.1: iifname \"cali*\", all; 2001:db8::1: iifname \"cali*\", all",
        );
        let settings = Cli::try_parse_from(["kube-proxy", "--kubeconfig=/dev/null", "--detect-local-mode=NodeCIDR"]);
        let settings = settings.unwrap().flags.settings().unwrap();
        assert!(families(&ApiNode::default(), "n", &settings).is_err());
        let refused = |flags: &[&str]| Cli::try_parse_from(["kube-proxy"].iter().chain(flags)).is_err();
        assert!(refused(&[]) && refused(&["--config=/dev/null", "--cluster-cidr=10.0.0.0/8"]));
        assert!(!refused(&["--cleanup"]) && !refused(&["--config=/dev/null", "--hostname-override=n"]));
    }
}
