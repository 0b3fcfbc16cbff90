//! The cluster DNS Service: its fixed address, and as endpoints every node, because each node answers its own Pods.
//! Reads: Node. Writes: Service and EndpointSlice `kube-system/kube-dns`, and the rights of its readers.

use std::{net::Ipv4Addr, sync::Arc};

use client::{Caches, Client, slices::SERVICE_NAME_LABEL};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// The role and the account that kubeadm gives to CoreDNS.
const ROLE: &str = "system:coredns";
/// Whom cluster DNS is to the API server.
pub const USER: &str = "system:serviceaccount:kube-system:coredns";

/// Keeps both objects as they must be, until cancelled.
pub async fn run(client: Client, caches: Caches, address: Ipv4Addr, port: u16) {
    let nodes = caches.of::<Node>();
    let mut changes = nodes.subscribe();
    nodes.synced().await;
    let mut written = None;
    loop {
        let wanted = (service(address), slice(&nodes.list(), port));
        if written.as_ref() != Some(&wanted) {
            match write(&client, &wanted).await {
                Ok(()) => written = Some(wanted),
                Err(error) => {
                    tracing::warn!(%error, "cannot write the cluster DNS Service yet");
                    clock::sleep(clock::Duration::from_secs(1)).await;
                    continue;
                }
            }
        }
        // Lost changes only mean another look at all nodes.
        let _ = changes.recv().await;
    }
}

async fn write(client: &Client, (service, slice): &(Value, Value)) -> Result<(), kube::Error> {
    let params = PatchParams::apply("skiff-dns").force();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.patch(ROLE, &params, &Patch::Apply(role())).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.patch(ROLE, &params, &Patch::Apply(binding())).await?;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    services.patch(NAME, &params, &Patch::Apply(service)).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    slices.patch(NAME, &params, &Patch::Apply(slice)).await?;
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

fn binding() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": USER}],
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

fn slice(nodes: &[Arc<Node>], port: u16) -> Value {
    let endpoints: Vec<Value> = nodes.iter().filter_map(|n| endpoint(n)).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {
            SERVICE_NAME_LABEL: NAME, "endpointslice.kubernetes.io/managed-by": "skiff-dns"}},
        "ports": [{"name": "dns", "port": port, "protocol": "UDP"}, {"name": "dns-tcp", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

fn endpoint(node: &Node) -> Option<Value> {
    let status = node.status.as_ref()?;
    let address = status.addresses.iter().flatten().find(|a| a.type_ == "InternalIP")?;
    let name = node.metadata.name.as_deref()?;
    // DNS runs wherever the node's process runs, so it is ready even while the kubelet still gets ready.
    Some(json!({"addresses": [address.address], "nodeName": name, "conditions": {"ready": true, "serving": true}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_with_an_address_answers() {
        let node = |json: Value| Arc::new(serde_json::from_value::<Node>(json).unwrap());
        let nodes = [
            node(
                json!({"metadata": {"name": "a"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
            ),
            node(json!({"metadata": {"name": "b"}})),
        ];
        let slice = slice(&nodes, 10053);
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 1);
        assert_eq!(slice["endpoints"][0]["nodeName"], "a");
        assert_eq!(slice["ports"][0]["port"], 10053);
    }
}
