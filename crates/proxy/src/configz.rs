//! The configuration in force, as `/configz` shows it: no credentials are in it, since nobody says who asks.

use clock::go_time;
use json::{Value, json};

use crate::{
    Config,
    family::Mode,
    node::{FromPods, Node},
    script::MASQUERADE_BIT,
};

/// The configuration by the name of its group.
pub fn page(config: &Config) -> Value {
    json!({ "kubeproxy.config.k8s.io": shown(config) })
}

fn shown(config: &Config) -> Value {
    let (limits, families) = (&config.conntrack, &config.families);
    let address = |address: Option<std::net::SocketAddr>| address.map(|a| a.to_string()).unwrap_or_default();
    let ranges = families.iter().filter_map(|node| match &node.pods {
        Some(FromPods::Range(range)) => Some(range.to_string()),
        _ => None,
    });
    let by_interface = |node: &Node| matches!(node.pods, Some(FromPods::Interface(_)));
    let node_ports = families.iter().flat_map(|node| node.node_ports.iter().flatten());
    let mut rules =
        json!({"masqueradeAll": families.iter().any(|node| node.masquerade_all), "masqueradeBit": MASQUERADE_BIT});
    if let Mode::Iptables(settings) = config.mode {
        rules["localhostNodePorts"] = json!(settings.localhost_node_ports);
    }
    json!({
        "kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "hostnameOverride": config.node_name,
        "mode": config.mode.name(),
        "clusterCIDR": ranges.collect::<Vec<_>>().join(","),
        "detectLocalMode": if families.iter().any(by_interface) { "InterfaceNamePrefix" } else { "ClusterCIDR" },
        "healthzBindAddress": address(config.healthz), "metricsBindAddress": address(config.metrics),
        "nodePortAddresses": node_ports.map(ToString::to_string).collect::<Vec<_>>(),
        (config.mode.name()): rules,
        "conntrack": {
            "maxPerCore": limits.max_per_core, "min": limits.min, "tcpBeLiberal": limits.tcp_be_liberal,
            "tcpEstablishedTimeout": go_time(limits.tcp_established),
            "tcpCloseWaitTimeout": go_time(limits.tcp_close_wait),
            "udpTimeout": go_time(limits.udp), "udpStreamTimeout": go_time(limits.udp_stream),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, apply::limits::Limits, iptables};

    #[test]
    fn the_page_says_what_is_in_force() {
        let of = |pods: &str, family| Node {
            family,
            pods: Some(FromPods::Range(pods.parse().unwrap())),
            masquerade_all: family == Family::V6,
            ..Node::default()
        };
        let config = Config {
            node_name: "n1".to_owned(),
            families: vec![of("10.244.0.0/16", Family::V4), of("fd00::/56", Family::V6)],
            mode: Mode::Nftables,
            conntrack: Limits::default(),
            healthz: None,
            metrics: Some(([127, 0, 0, 1], 10249).into()),
        };
        let page = page(&config);
        let shown = &page["kubeproxy.config.k8s.io"];
        assert_eq!(
            (&shown["clusterCIDR"], &shown["hostnameOverride"]),
            (&json!("10.244.0.0/16,fd00::/56"), &json!("n1"))
        );
        assert_eq!(
            (&shown["metricsBindAddress"], &shown["healthzBindAddress"]),
            (&json!("127.0.0.1:10249"), &json!(""))
        );
        assert_eq!((&shown["nftables"]["masqueradeAll"], &shown["nodePortAddresses"]), (&json!(true), &json!([])));
        assert_eq!(shown["conntrack"]["tcpEstablishedTimeout"], "24h0m0s");
        let mut config = Config { mode: Mode::Iptables(iptables::Settings::default()), ..config };
        config.families[1].pods = crate::node::Interface::new("cali*").map(FromPods::Interface);
        let page = super::page(&config);
        let shown = &page["kubeproxy.config.k8s.io"];
        assert_eq!(shown["detectLocalMode"], "InterfaceNamePrefix");
        assert_eq!((&shown["mode"], &shown["iptables"]["localhostNodePorts"]), (&json!("iptables"), &json!(true)));
        assert!(shown["nftables"].is_null());
    }
}
