//! The cluster DNS Service: its fixed address, and as endpoints every node that runs DNS, because each node answers its
//! own Pods. A node says with an annotation at which port it does.
//! Reads: Node. Writes: Service `kube-system/kube-dns` and its EndpointSlices, and the rights of its readers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use client::{
    Api, Caches, Client,
    rest::{self, DeleteOptions},
    slices::SERVICE_NAME_LABEL,
};
use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use serde_json::{Value, json};

use crate::control_plane::objects::{apply, bind_cluster_role, subject};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// The role and the account that kubeadm gives to CoreDNS.
const ROLE: &str = "system:coredns";
/// The identity of cluster DNS to the API server.
pub const USER: &str = "system:serviceaccount:kube-system:coredns";
/// The annotation with which a node says where its DNS listens.
pub const PORT_ANNOTATION: &str = "skiff.dev/dns-port";
/// The name of this controller in the label of each slice.
const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "skiff-dns");

const FIRST_WAIT: clock::Duration = clock::Duration::from_millis(200);

/// Keeps all of it as it must be, until cancelled.
pub async fn run(client: Client, caches: Caches, address: Ipv4Addr) {
    let nodes = caches.of::<Node>();
    let mut changes = nodes.subscribe();
    nodes.synced().await;
    let (mut written, mut wait) = (None, FIRST_WAIT);
    loop {
        let wanted = slices(&nodes.list());
        if written.as_ref() != Some(&wanted) {
            match write(&client, address, &wanted).await {
                Ok(()) => (written, wait) = (Some(wanted), FIRST_WAIT),
                Err(error) => {
                    let message = rest::message(&error);
                    tracing::warn!(message, "cannot write the cluster DNS Service, trying again");
                    clock::sleep(wait).await;
                    wait = (wait * 2).min(clock::Duration::from_secs(60));
                    continue;
                }
            }
        }
        // Lost changes only mean another look at all nodes.
        let _ = changes.recv().await;
    }
}

async fn write(client: &Client, address: Ipv4Addr, slices: &BTreeMap<String, Value>) -> Result<(), kube::Error> {
    let binding = bind_cluster_role(ROLE, ROLE, subject("User", USER));
    for object in [&role(), &binding, &service(address)].into_iter().chain(slices.values()) {
        apply(client, object).await?;
    }
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let ours = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let held = api.list(&[("labelSelector", &ours)]).await?;
    let held: BTreeSet<String> = held.into_iter().filter_map(|s| s.metadata.name).collect();
    for name in held.iter().filter(|name| !slices.contains_key(*name)) {
        api.delete(name, DeleteOptions::default()).await?;
    }
    Ok(())
}

fn role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [
            {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    })
}

fn service(address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {
            "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
        "spec": {
            "clusterIP": address, "clusterIPs": [address], "type": "ClusterIP", "internalTrafficPolicy": "Local",
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                      {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53}],
        },
    })
}

/// The slices by name: one for each port, because the ports of a slice are those of all its endpoints.
fn slices(nodes: &[Arc<Node>]) -> BTreeMap<String, Value> {
    let mut by_port: BTreeMap<u16, Vec<Value>> = BTreeMap::new();
    for (port, endpoint) in nodes.iter().filter_map(|n| endpoint(n)) {
        by_port.entry(port).or_default().push(endpoint);
    }
    by_port.into_iter().map(|(port, endpoints)| (format!("{NAME}-{port}"), slice(port, &endpoints))).collect()
}

fn slice(port: u16, endpoints: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{NAME}-{port}"), "namespace": NAMESPACE, "labels": {
            SERVICE_NAME_LABEL: NAME, MANAGED_BY.0: MANAGED_BY.1}},
        "ports": [{"name": "dns", "port": port, "protocol": "UDP"}, {"name": "dns-tcp", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

fn endpoint(node: &Node) -> Option<(u16, Value)> {
    let port = node.metadata.annotations.as_ref()?.get(PORT_ANNOTATION)?.parse().ok()?;
    let status = node.status.as_ref()?;
    let address = status.addresses.iter().flatten().find(|a| a.type_ == "InternalIP")?;
    let name = node.metadata.name.as_deref()?;
    // DNS runs wherever the node's process runs, so it is ready even while the kubelet still gets ready.
    let conditions = json!({"ready": true, "serving": true});
    Some((port, json!({"addresses": [address.address], "nodeName": name, "conditions": conditions})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_with_an_address_and_a_port_answers() {
        let node = |name: &str, address: &str, port: Option<&str>| {
            let annotations = port.map(|p| json!({PORT_ANNOTATION: p}));
            let addresses = json!([{"type": "InternalIP", "address": address}]);
            let node =
                json!({"metadata": {"name": name, "annotations": annotations}, "status": {"addresses": addresses}});
            Arc::new(serde_json::from_value::<Node>(node).unwrap())
        };
        let nodes = [
            node("a", "10.0.0.1", Some("10053")),
            node("b", "10.0.0.2", Some("10053")),
            node("c", "10.0.0.3", Some("53")),
            node("d", "10.0.0.4", None),
            node("e", "10.0.0.5", Some("many")),
        ];
        let slices = slices(&nodes);
        let shown: Vec<_> = slices
            .values()
            .map(|s| (s["ports"][0]["port"].clone(), s["endpoints"].as_array().unwrap().len()))
            .collect();
        assert_eq!(shown, [(json!(10053), 2), (json!(53), 1)]);
        assert_eq!(slices["kube-dns-53"]["endpoints"][0]["nodeName"], "c");
    }
}
