//! The cluster DNS Service: its fixed address, and as endpoints every node that runs DNS, because each node answers its
//! own Pods. A node says with an annotation at which port it does.
//! Reads: Node. Writes: Service `kube-system/kube-dns` and its EndpointSlices, and the rights of those who answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use client::{
    Api, Caches, Changes, Client,
    rest::{self, DeleteOptions},
    slices::SERVICE_NAME_LABEL,
};
use json::{Value, json};
use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use tokio::sync::broadcast::error::TryRecvError;

use crate::control_plane::objects::{apply, bind_cluster_role, role_and_binding, subject};

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

/// More endpoints are not allowed in one slice.
const MAX_ENDPOINTS: usize = 1000;

const FIRST_WAIT: clock::Duration = clock::Duration::from_millis(200);

/// Keeps all of it as it must be, until cancelled.
pub async fn run(client: Client, caches: Caches, address: IpAddr) {
    let nodes = caches.of::<Node>();
    let mut changes = nodes.subscribe();
    nodes.synced().await;
    let (mut written, mut wait) = (None, FIRST_WAIT);
    loop {
        let wanted = slices(&nodes.list(), address.is_ipv6());
        if written.as_ref() != Some(&wanted) {
            match write(&client, address, &wanted).await {
                Ok(()) => (written, wait) = (Some(wanted), FIRST_WAIT),
                Err(error) => {
                    let error = rest::message(&error);
                    tracing::warn!(error, "cannot write the cluster DNS Service, trying again");
                    clock::sleep(wait).await;
                    wait = (wait * 2).min(clock::Duration::from_secs(60));
                    continue;
                }
            }
        }
        news(&mut changes, address.is_ipv6()).await;
    }
}

/// Waits until a node answers elsewhere than before, or not any more, and takes with it all that is known by then. Lost
/// changes mean another look at all nodes.
async fn news(changes: &mut Changes<Node>, v6: bool) {
    let answers = |node: &Option<Arc<Node>>| node.as_deref().and_then(|node| endpoint(node, v6));
    while let Ok(change) = changes.recv().await
        && answers(&change.old) == answers(&change.new)
    {}
    while !matches!(changes.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
}

async fn write(client: &Client, address: IpAddr, slices: &BTreeMap<String, Value>) -> Result<(), client::Error> {
    let binding = bind_cluster_role(ROLE, ROLE, subject("User", USER));
    let corefile = role_and_binding(NAMESPACE, ROLE, read_corefile(), subject("User", USER));
    let mine = [&role(), &binding, &service(address)];
    for object in mine.into_iter().chain(&corefile).chain(slices.values()) {
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
            {"apiGroups": [""], "resources": ["namespaces", "pods", "services"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    })
}

/// The right to follow the ConfigMap with the Corefile.
pub fn read_corefile() -> Value {
    json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["coredns"], "verbs": ["get", "list", "watch"]})
}

fn service(address: IpAddr) -> Value {
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

/// The slices by name: one for each port, because the ports of a slice are those of all its endpoints, and as many more
/// as a port has nodes for.
fn slices(nodes: &[Arc<Node>], v6: bool) -> BTreeMap<String, Value> {
    let mut by_port: BTreeMap<u16, Vec<Value>> = BTreeMap::new();
    for (port, endpoint) in nodes.iter().filter_map(|n| endpoint(n, v6)) {
        by_port.entry(port).or_default().push(endpoint);
    }
    let mut slices = BTreeMap::new();
    for (port, endpoints) in by_port {
        for (place, part) in endpoints.chunks(MAX_ENDPOINTS).enumerate() {
            let name = if place == 0 { format!("{NAME}-{port}") } else { format!("{NAME}-{port}-{place}") };
            slices.insert(name.clone(), slice(&name, port, part, v6));
        }
    }
    slices
}

fn slice(name: &str, port: u16, endpoints: &[Value], v6: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": if v6 { "IPv6" } else { "IPv4" },
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {
            SERVICE_NAME_LABEL: NAME, MANAGED_BY.0: MANAGED_BY.1}},
        "ports": [{"name": "dns", "port": port, "protocol": "UDP"}, {"name": "dns-tcp", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// Where a node answers: at its address of the family of the Service.
fn endpoint(node: &Node, v6: bool) -> Option<(u16, Value)> {
    let port = node.metadata.annotations.as_ref()?.get(PORT_ANNOTATION)?.parse().ok()?;
    let status = node.status.as_ref()?;
    let is_it = |address: &str| address.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == v6);
    let mut addresses = status.addresses.iter().flatten();
    let address = addresses.find(|a| a.type_ == "InternalIP" && is_it(&a.address))?;
    let name = node.metadata.name.as_deref()?;
    // DNS runs wherever the node's process runs, so it is ready even while the kubelet still gets ready.
    let conditions = json!({"ready": true, "serving": true});
    Some((port, json!({"addresses": [address.address], "nodeName": name, "conditions": conditions})))
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll};

    use super::*;

    fn node(name: &str, address: &str, port: Option<&str>) -> Arc<Node> {
        let annotations = port.map(|p| json!({PORT_ANNOTATION: p}));
        let addresses = json!([{"type": "InternalIP", "address": address}]);
        let node = json!({"metadata": {"name": name, "annotations": annotations}, "status": {"addresses": addresses}});
        Arc::new(json::from_value::<Node>(node).unwrap())
    }

    #[test]
    fn every_node_with_an_address_and_a_port_answers() {
        let nodes = [
            node("a", "10.0.0.1", Some("10053")),
            node("b", "10.0.0.2", Some("10053")),
            node("c", "10.0.0.3", Some("53")),
            node("d", "10.0.0.4", None),
            node("e", "10.0.0.5", Some("many")),
        ];
        let slices = slices(&nodes, false);
        let shown: Vec<_> = slices
            .values()
            .map(|s| (s["ports"][0]["port"].clone(), s["endpoints"].as_array().unwrap().len()))
            .collect();
        assert_eq!(shown, [(json!(10053), 2), (json!(53), 1)]);
        assert_eq!(slices["kube-dns-53"]["endpoints"][0]["nodeName"], "c");
    }

    #[test]
    fn no_slice_has_more_endpoints_than_are_allowed() {
        let nodes: Vec<_> = (0..MAX_ENDPOINTS + 1).map(|i| node(&format!("n{i}"), "10.0.0.1", Some("53"))).collect();
        let counts: Vec<_> =
            slices(&nodes, false).iter().map(|(n, s)| (n.clone(), s["endpoints"].as_array().unwrap().len())).collect();
        assert_eq!(counts, [("kube-dns-53".to_owned(), MAX_ENDPOINTS), ("kube-dns-53-1".to_owned(), 1)]);
    }

    #[tokio::test]
    async fn a_heartbeat_is_no_news() {
        let (sender, mut changes) = tokio::sync::broadcast::channel(4);
        let change = |old, new| Arc::new(client::Change { key: client::Key::new("", "a"), old, new });
        let (silent, speaks) = (node("a", "10.0.0.1", None), node("a", "10.0.0.1", Some("53")));
        let send =
            |old: &Arc<Node>, new: &Arc<Node>| sender.send(change(Some(old.clone()), Some(new.clone()))).unwrap();
        send(&speaks, &speaks);
        let mut waits = Box::pin(news(&mut changes, false));
        assert!(poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await, "it waits on");
        send(&silent, &speaks);
        send(&speaks, &silent);
        waits.await;
        assert!(changes.is_empty(), "what was there by then is taken");
    }
}
