//! The settings of one kubelet.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::features::Features;
use client::Client;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use runtime::Runtime;

use crate::{
    configuration::{Document, settings::Settings},
    eviction::limits::Limits,
    pod::spec::hardening::Sysctls,
    sharing,
    users::range::Part,
};

/// The kubelet's own HTTPS server: its port, its certificate, and the authority that it trusts.
pub struct Serving {
    pub port: u16,
    pub tls: Arc<rustls::ServerConfig>,
    /// PEM of the authority whose client certificates are believed.
    pub client_authority: String,
    /// The lines about the node's certificates for `/metrics`: the program around the kubelet renews them.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// A folder of container logs in which others may have logs too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLogs {
    pub folder: PathBuf,
    /// The folder with a link to each log, as `/var/log/containers` is upstream.
    pub links: PathBuf,
}

/// The gate that a Pod with these addresses has to pass before its containers begin. Its error, why the Pod may not yet,
/// is for people to read.
pub type Gate = Arc<dyn Fn(Arc<Pod>, Vec<IpAddr>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Everything a kubelet needs. Several may run on one machine, each with folders, cgroup and network of its own.
pub struct Config {
    pub node_name: String,
    /// The node's first address, whose family comes first in its Pods too.
    pub node_ip: IpAddr,
    /// Its address of the other family, if it has one.
    pub second_node_ip: Option<IpAddr>,
    /// Pod folders, as `/var/lib/kubelet` is upstream.
    pub root_dir: PathBuf,
    /// The node's own folder of container logs.
    pub log_dir: PathBuf,
    /// The folder that takes its place where logs are to be found by others, as `/var/log/pods` is upstream.
    pub shared_logs: Option<SharedLogs>,
    /// The volumes that the node makes for claims; it makes none when absent.
    pub local_volumes: Option<PathBuf>,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    /// Static Pods are read from here.
    pub manifest_dir: Option<PathBuf>,
    /// The cgroup below which `kubepods` is made; `/` unless several kubelets share a machine.
    pub cgroup_root: String,
    pub max_pods: u32,
    /// The part of the machine's user ids that Pods get, where it has other nodes.
    pub users_part: Option<Part>,
    /// The limits below which Pods are evicted.
    pub evictions: Limits,
    /// The parameters of the kernel that Pods may set.
    pub sysctls: Sysctls,
    /// The engine gives processes SELinux labels where the kernel has SELinux. Ours does if it is told to.
    pub selinux_labels: bool,
    pub features: Features,
    /// The settings of a KubeletConfiguration beside all this.
    pub settings: Settings,
    /// The KubeletConfiguration as it was written, where there is one.
    pub document: Option<Document>,
    pub node_labels: BTreeMap<String, String>,
    pub node_annotations: BTreeMap<String, String>,
    /// Every Pod with a network of its own passes it before each start of a container.
    pub gate: Option<Gate>,
    /// Images are shared with other nodes, on the server.
    pub sharing: Option<sharing::Config>,
    /// No server when absent.
    pub serving: Option<Serving>,
}

impl Config {
    /// The node's addresses, the first one first.
    pub fn node_ips(&self) -> impl Iterator<Item = IpAddr> {
        [Some(self.node_ip), self.second_node_ip].into_iter().flatten()
    }

    /// Where new containers' logs go.
    pub fn log_folder(&self) -> &Path {
        self.shared_logs.as_ref().map_or(&self.log_dir, |shared| &shared.folder)
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }
}
