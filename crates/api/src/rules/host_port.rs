//! The ports of a node that Pods take for themselves, and when two of them are in each other's way.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::rules::pod::is_sidecar;

/// Every address of the node.
const ANY: &str = "0.0.0.0";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub protocol: String,
    /// `0.0.0.0` means every address.
    pub ip: String,
    pub port: i32,
}

impl HostPort {
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let meets = self.ip == other.ip || self.ip == ANY || other.ip == ANY;
        meets && self.port == other.port && self.protocol == other.protocol
    }
}

/// The host ports of one container, as port, protocol and address.
pub fn of_container(container: &Container) -> impl Iterator<Item = (i32, &str, &str)> {
    container.ports.iter().flatten().filter_map(|p| {
        let port = p.host_port.filter(|port| *port > 0)?;
        let ip = p.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or(ANY);
        Some((port, p.protocol.as_deref().unwrap_or("TCP"), ip))
    })
}

/// Those that a Pod takes as long as it runs: of its main containers and sidecars.
pub fn of_pod(spec: &PodSpec) -> impl Iterator<Item = HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let ports = spec.containers.iter().chain(sidecars).flat_map(of_container);
    ports.map(|(port, protocol, ip)| HostPort { protocol: protocol.to_owned(), ip: ip.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn ports_conflict_on_a_common_address() {
        let ports = |list: json::Value| -> Vec<HostPort> {
            let init = json!([{"name": "i", "ports": [{"containerPort": 1, "hostPort": 81}]}]);
            let spec = json!({"containers": [{"name": "c", "ports": list}], "initContainers": init});
            of_pod(&json::from_value(spec).unwrap()).collect()
        };
        let one = |ip: &str, port: i32, protocol: &str| {
            ports(json!([{"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol}])).remove(0)
        };
        for (a, b, expected) in [
            (("", 80, "TCP"), ("10.0.0.1", 80, "TCP"), true),
            (("10.0.0.2", 80, "TCP"), ("10.0.0.1", 80, "TCP"), false),
            (("10.0.0.1", 80, "TCP"), ("10.0.0.1", 80, "TCP"), true),
            (("", 80, "TCP"), ("", 81, "TCP"), false),
            (("", 80, "TCP"), ("", 80, "UDP"), false),
        ] {
            let (x, y) = (one(a.0, a.1, a.2), one(b.0, b.1, b.2));
            assert_eq!((x.conflicts(&y), y.conflicts(&x)), (expected, expected), "{a:?} {b:?}");
        }
        assert_eq!(
            ports(json!([{"containerPort": 1}])),
            [],
            "without a host port nothing is taken, nor while starting"
        );
    }
}
