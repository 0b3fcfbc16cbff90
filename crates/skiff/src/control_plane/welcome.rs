//! The objects that the control plane keeps ready for nodes that join: who may ask for which certificate, how a
//! newcomer tells the cluster from an impostor (`kube-public/cluster-info`), and the cluster's settings
//! (`kube-system/skiff-cluster`). Names and rights are kubeadm's where kubeadm has them.

use std::{collections::BTreeMap, net::IpAddr};

use api::rules::certificate_request::NODE_SERVICES;
use base64::{Engine, engine::general_purpose::STANDARD};
use client::{Api, Client};
use ipnet::IpNet;
use json::{Value, json};
use k8s_openapi::api::core::v1::ConfigMap;
use network::overlay::plan::Mode;
use policy::kind::{GROUP, PolicyKind};

use crate::{
    control_plane::{
        cluster_dns::read_corefile,
        objects::{Attempts, apply, bind_cluster_role, remove, role_and_binding, subject},
    },
    flags::{
        options::{self, ControlPlane},
        ranges,
    },
};

/// The group of those who hold a token for new nodes.
pub const NEWCOMERS: &str = "system:bootstrappers:kubeadm:default-node-token";
const NODES: &str = "system:nodes";
const GET_NODES: &str = "kubeadm:get-nodes";
const SERVICES_CERTIFICATES: &str = "skiff:node-services-certificates";

pub const INFO_NAMESPACE: &str = "kube-public";
pub const INFO: &str = "cluster-info";
const SETTINGS_NAMESPACE: &str = "kube-system";
const SETTINGS: &str = "skiff-cluster";

/// The settings that every node must know alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address of the Service that cluster DNS has.
    pub dns_service: IpAddr,
    /// The servers that Pods are told.
    pub cluster_dns: Vec<IpAddr>,
    /// Addresses of all Pods, a range of each family at the most.
    pub cluster_cidrs: Vec<IpNet>,
    pub cluster_domain: String,
    pub pod_network: Mode,
}

impl Settings {
    pub fn of(options: &ControlPlane) -> Self {
        Settings {
            dns_service: options.dns_service(),
            cluster_dns: told(&options.cluster_dns, options.dns_service()),
            cluster_cidrs: options.cluster_cidr.all().to_vec(),
            cluster_domain: options.cluster_domain.clone(),
            pod_network: options.pod_network,
        }
    }

    fn data(&self) -> Value {
        let ranges = self.cluster_cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
        let servers = self.cluster_dns.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        json!({
            "clusterDNS": self.dns_service, "podDNS": servers, "clusterCIDR": ranges, "clusterDomain": self.cluster_domain,
            "podNetwork": self.pod_network.to_string(),
        })
    }

    fn read(data: &BTreeMap<String, String>) -> Option<Self> {
        let dns_service = data.get("clusterDNS")?.parse().ok()?;
        // An older control plane does not say it.
        let servers = data.get("podDNS").map(|all| all.split(',').map(|one| one.parse().ok()).collect());
        Some(Settings {
            dns_service,
            cluster_dns: servers.unwrap_or_else(|| Some(vec![dns_service]))?,
            cluster_cidrs: ranges::of_pods(data.get("clusterCIDR")?).ok()?.all().to_vec(),
            cluster_domain: data.get("clusterDomain")?.clone(),
            // An older control plane does not say.
            pod_network: data.get("podNetwork").map_or(Some(Mode::default()), |mode| mode.parse().ok())?,
        })
    }

    /// The cluster's, with the node's own flags before them; and whether there are any. A control plane that has none is not
    /// skiff's: then flags and the usual values count.
    pub async fn for_agent(client: &Client, options: &options::Agent) -> Result<(Self, bool), client::Error> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), SETTINGS_NAMESPACE);
        let map = match api.find(SETTINGS).await {
            Err(client::Error::Api(status)) if status.code == 403 => None,
            other => other?,
        };
        let usual = ControlPlane::usual();
        let cluster = map.and_then(|m| Self::read(&m.data?));
        let is_skiffs = cluster.is_some();
        let cluster = cluster.unwrap_or_else(|| Self::of(&usual));
        let given = options.cluster_dns.first().copied();
        let settings = Settings {
            // Another's control plane does not say which address its Service has.
            dns_service: given.filter(|_| !is_skiffs).unwrap_or(cluster.dns_service),
            cluster_dns: if given.is_some() { options.cluster_dns.clone() } else { cluster.cluster_dns },
            cluster_cidrs: options.cluster_cidr.as_ref().map_or(cluster.cluster_cidrs, |ranges| ranges.all().to_vec()),
            cluster_domain: options.cluster_domain.clone().unwrap_or(cluster.cluster_domain),
            pod_network: cluster.pod_network,
        };
        Ok((settings, is_skiffs))
    }
}

/// The servers that Pods are told: the ones that are given, or the Service.
fn told(given: &[IpAddr], service: IpAddr) -> Vec<IpAddr> {
    if given.is_empty() { vec![service] } else { given.to_vec() }
}

/// Writes everything, trying until it succeeds.
pub async fn run(client: Client, server: String, authority: String, settings: Settings) {
    let objects = objects(&server, &authority, &settings);
    let mut attempts = Attempts::new();
    let retired = [bind_cluster_role("skiff:node-proxier", "system:node-proxier", subject("Group", NODES))];
    let (stay, go) = (objects.iter().map(|o| (o, true)), retired.iter().map(|o| (o, false)));
    for (object, stays) in stay.chain(go) {
        while let Err(error) = if stays { apply(&client, object).await } else { remove(&client, object).await } {
            let name = &object["metadata"]["name"];
            let tell = |error| tracing::warn!(error, %name, "cannot write what new nodes need, trying again");
            attempts.failed(&error, tell).await;
        }
    }
}

fn objects(server: &str, authority: &str, settings: &Settings) -> Vec<Value> {
    let certificates = "system:certificates.k8s.io:certificatesigningrequests";
    let approver = || json!({"kind": "ServiceAccount", "name": "certificate-controller", "namespace": "kube-system"});
    let get =
        |name: &str| json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]});
    let mut all = vec![
        bind_cluster_role("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", subject("Group", NEWCOMERS)),
        bind_cluster_role(
            "kubeadm:node-autoapprove-bootstrap",
            &format!("{certificates}:nodeclient"),
            subject("Group", NEWCOMERS),
        ),
        bind_cluster_role(
            "kubeadm:node-autoapprove-certificate-rotation",
            &format!("{certificates}:selfnodeclient"),
            subject("Group", NODES),
        ),
        bind_cluster_role(
            "skiff:kubelet-serving-approver",
            "system:certificates.k8s.io:kubelet-serving-approver",
            approver(),
        ),
        bind_cluster_role(
            "skiff:node-services-approver",
            "system:certificates.k8s.io:kube-apiserver-client-approver",
            approver(),
        ),
        get_nodes(),
        bind_cluster_role(GET_NODES, GET_NODES, subject("Group", NEWCOMERS)),
        node_services(),
        bind_cluster_role(NODE_SERVICES, NODE_SERVICES, subject("Group", NODE_SERVICES)),
        services_certificates(),
        bind_cluster_role(SERVICES_CERTIFICATES, SERVICES_CERTIFICATES, subject("Group", NODES)),
    ];
    all.extend(role_and_binding(
        INFO_NAMESPACE,
        "kubeadm:bootstrap-signer-clusterinfo",
        get(INFO),
        subject("User", "system:anonymous"),
    ));
    all.extend(role_and_binding(SETTINGS_NAMESPACE, "skiff:cluster-settings", get(SETTINGS), subject("Group", NODES)));
    all.extend(role_and_binding(
        SETTINGS_NAMESPACE,
        "skiff:corefile",
        read_corefile(),
        subject("Group", NODE_SERVICES),
    ));
    let map = |namespace: &str, name: &str, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data});
    all.push(map(SETTINGS_NAMESPACE, SETTINGS, settings.data()));
    all.push(map(INFO_NAMESPACE, INFO, json!({"kubeconfig": kubeconfig(server, authority)})));
    all
}

/// A node that joins looks whether its name is taken.
fn get_nodes() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": GET_NODES},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
    })
}

/// A node's proxy, DNS, Pod network and network policies speak with a certificate of their own, since they see the whole cluster: the
/// addresses of Nodes and of their Pods, and, as policies are about them, labels and addresses of Pods anywhere. The Node authorizer keeps
/// all that from kubelets. The kinds of administrators are there only where a user defined them, so they look for these definitions,
/// and for no others.
fn node_services() -> Value {
    let administrators = PolicyKind::OF_ADMINISTRATORS.map(|kind| kind.resource().plural);
    let definitions = administrators.clone().map(|plural| format!("{plural}.{GROUP}"));
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": NODE_SERVICES},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "nodes", "pods", "services"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies", "servicecidrs"], "verbs": ["list", "watch"]},
            {"apiGroups": [GROUP], "resources": administrators, "verbs": ["list", "watch"]},
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
                "resourceNames": definitions, "verbs": ["list", "watch"]},
            {"apiGroups": ["events.k8s.io", ""], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        ],
    })
}

/// A node may have a certificate for those parts of its own: the approver asks the authorizer for this.
fn services_certificates() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": SERVICES_CERTIFICATES},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/selfnodeservices"],
            "verbs": ["create"]}],
    })
}

/// Where the cluster is and who vouches for it, without a user.
fn kubeconfig(server: &str, authority: &str) -> String {
    let authority = STANDARD.encode(authority);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {authority}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_way_through_the_cluster() {
        let usual = Settings::of(&ControlPlane::usual());
        assert_eq!(usual.cluster_dns, [usual.dns_service]);
        let servers = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap()).to_vec();
        let told = Settings { cluster_dns: servers, ..usual.clone() };
        for settings in [&usual, &told] {
            let data: BTreeMap<String, String> = json::from_value(settings.data()).unwrap();
            assert_eq!(Settings::read(&data).as_ref(), Some(settings));
        }
        let mut older: BTreeMap<String, String> = json::from_value(told.data()).unwrap();
        older.remove("podDNS");
        assert_eq!(Settings::read(&older), Some(usual));
        assert_eq!(Settings::read(&BTreeMap::new()), None);
    }

    #[test]
    fn the_info_is_a_kubeconfig() {
        let text = kubeconfig("https://10.0.0.1:6443", "PEM");
        let read = client::Kubeconfig::parse(&text).unwrap();
        let cluster = read.first_cluster().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://10.0.0.1:6443"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some(STANDARD.encode("PEM").as_str()));
    }
}
