//! Services: their number, and the load balancers and node ports among them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use super::{Resources, Usage, number};

pub(super) fn counts(name: &str) -> bool {
    matches!(name, "count/services" | "services" | "services.nodeports" | "services.loadbalancers")
}

impl Usage for Service {
    /// A Service's node ports are not taken yet when it is charged: what it will take is counted.
    fn used(&self, _: Timestamp) -> Resources {
        let spec = self.spec.as_ref();
        let ports = || spec.iter().flat_map(|s| s.ports.iter().flatten());
        let (balancers, node_ports) = match spec.and_then(|s| s.type_.as_deref()) {
            Some("NodePort") => (0, ports().count()),
            Some("LoadBalancer") if spec.and_then(|s| s.allocate_load_balancer_node_ports) == Some(false) => {
                (1, ports().filter(|port| port.node_port.is_some_and(|port| port != 0)).count())
            }
            Some("LoadBalancer") => (1, ports().count()),
            _ => (0, 0),
        };
        let node_ports = i64::try_from(node_ports).unwrap_or(i64::MAX);
        let all = [
            ("count/services", 1),
            ("services", 1),
            ("services.loadbalancers", balancers),
            ("services.nodeports", node_ports),
        ];
        all.map(|(name, value)| (name.to_owned(), number(value))).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::used;
    use json::json;

    #[test]
    fn node_ports_are_those_that_the_type_takes() {
        let check = |spec: json::Value, balancers: u32, node_ports: u32| {
            let expected = format!(
                "count/services=1 services=1 services.loadbalancers={balancers} services.nodeports={node_ports}"
            );
            assert_eq!(used("services", json!({"spec": spec})), expected);
        };
        let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30001}]);
        check(json!({"ports": ports}), 0, 0);
        check(json!({"type": "ClusterIP", "ports": ports}), 0, 0);
        check(json!({"type": "NodePort", "ports": ports}), 0, 2);
        check(json!({"type": "LoadBalancer", "ports": ports}), 1, 2);
        check(json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}), 1, 1);
        check(json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": true}), 1, 2);
        check(json!({"type": "LoadBalancer", "ports": [{"port": 1}], "allocateLoadBalancerNodePorts": false}), 1, 0);
        check(json!({"type": "LoadBalancer"}), 1, 0);
        check(json!({"type": "ExternalName", "externalName": "a.example"}), 0, 0);
    }
}
