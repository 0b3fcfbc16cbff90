//! The flags. Where upstream has a flag for the same thing, it has the same name.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use apiserver::{Routing, server::Limits};
use clap::{Args, Parser, Subcommand};
use client::{candidacy::Versions, election::Candidate};
use ipnet::IpNet;

use crate::flags::{
    admission::AdmissionFlags,
    audit::AuditFlags,
    authentication::AuthenticationFlags,
    authorization::AuthorizationFlags,
    encryption::EncryptionFlags,
    etcd::EtcdFlags,
    evictions::Evictions,
    front_proxy::FrontProxyFlags,
    image_credentials::ImageCredentials,
    in_flight::InFlight,
    kube_proxy::{self, KubeProxyFlags},
    kubelet_config::KubeletConfig,
    logging::LoggingFlags,
    lost_nodes::LostNodes,
    node_ranges::NodeRanges,
    ranges::{self, Ranges},
    service_accounts::ServiceAccountFlags,
    serving::ServingFlags,
    switches::{FeatureGates, ServedVersions},
    tracing::TracingFlags,
    value,
    volumes::Volumes,
    web::WebFlags,
};

/// The text that `skiff version` and `skiff --version` print behind the name.
pub const LONG_VERSION: &str =
    concat!("v", env!("CARGO_PKG_VERSION"), " (Kubernetes ", api::kubernetes_version!(), ")");

pub const DATA_DIR: &str = "/var/lib/skiff";

#[derive(Parser)]
#[command(name = "skiff", about = "Kubernetes in one binary", version = LONG_VERSION, disable_help_subcommand = true, max_term_width = 110)]
#[command(
    after_help = "Every flag of up, server and agent can stand in /etc/skiff/config.yaml too, without the dashes."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one value in a process, moved twice")]
pub enum Command {
    /// Start a cluster on this machine and wait until it is ready
    Up(Up),
    /// End the cluster of this machine and remove every trace of it
    Down(Down),
    /// Run the control plane in the foreground
    Server(Server),
    /// Run one node (kubelet, proxy, network, DNS) in the foreground
    Agent(Agent),
    /// Run the Service proxy alone, in the place of upstream's kube-proxy
    KubeProxy(KubeProxyFlags),
    /// Say whether this machine is fit to run skiff, one line for each thing
    Check(Check),
    /// Build, import and list container images
    #[command(subcommand)]
    Images(Images),
    /// Make, list and end the tokens with which nodes join
    #[command(subcommand)]
    Token(Token),
    /// Look after the embedded store
    #[command(subcommand)]
    Store(Store),
    /// Print the version
    Version,
}

/// The flags of every long-running command.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Where everything is kept
    #[arg(long, default_value = DATA_DIR)]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub logging: LoggingFlags,
}

/// How many nodes a machine has at the most.
const MOST_NODES: i64 = 50;

#[derive(Args, Clone, Debug)]
pub struct Up {
    #[command(flatten)]
    pub control_plane: ControlPlane,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub common: Common,
    /// How many nodes the cluster has on this machine; each further one in a network namespace, with an engine of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=MOST_NODES))]
    pub nodes: u8,
    /// Stay in the foreground instead of returning when the cluster is ready
    #[arg(long)]
    pub foreground: bool,
    /// How many seconds to wait for the cluster before giving up
    #[arg(long, default_value_t = 120)]
    pub wait: u64,
}

#[derive(Args, Clone, Debug)]
pub struct Down {
    /// The data folder that the cluster was started with
    #[arg(long, default_value = DATA_DIR)]
    pub data_dir: PathBuf,
    /// Keep the store, the keys and local volumes, so that the next `skiff up` continues
    #[arg(long)]
    pub keep_data: bool,
    /// The cgroup that the node was started with
    #[arg(long, default_value = "/", value_parser = value::cgroup)]
    pub cgroup_root: String,
    /// The network namespace that the node is in
    #[arg(long, hide = true, value_name = "FILE")]
    pub network_namespace: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct Server {
    #[command(flatten)]
    pub control_plane: ControlPlane,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("cluster").required(true).args(["kubeconfig", "server"]))]
pub struct Agent {
    /// The kubeconfig with which the node reaches the API server; of a node, or of somebody who may add nodes
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub kubeconfig: Option<PathBuf>,
    /// The API server's address, such as https://10.0.0.1:6443
    #[arg(long, value_name = "URL", requires = "token", value_parser = value::server)]
    pub server: Option<String>,
    /// The token that lets this node in: `skiff token create` on the server prints one
    #[arg(long, env = "SKIFF_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The SHA-256 of the cluster's authority, as `skiff token create` prints it
    #[arg(long, value_name = "sha256:HEX", requires = "server", value_parser = value::pin)]
    pub discovery_token_ca_cert_hash: Option<String>,
    /// The authority that signed the API server's certificate; asked of the server, and checked, when not given
    #[arg(long, value_name = "FILE", requires = "server", value_parser = value::readable)]
    pub certificate_authority: Option<PathBuf>,
    /// The authority that signs the API server's client certificate towards the kubelet, when it is another
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub client_ca_file: Option<PathBuf>,
    /// The addresses of cluster DNS that Pods are told; as the cluster says when not given
    #[arg(long, value_delimiter = ',', value_name = "IP", value_parser = value::cluster_dns)]
    pub cluster_dns: Vec<IpAddr>,
    /// Addresses of all Pods; as the cluster says when not given
    #[arg(long, value_parser = ranges::of_pods)]
    pub cluster_cidr: Option<Ranges>,
    /// The cluster's DNS domain; as the cluster says when not given
    #[arg(long, value_parser = value::domain)]
    pub cluster_domain: Option<String>,
    /// Parts to leave out
    #[arg(long, value_delimiter = ',', value_parser = ["dns", "proxy", "network"])]
    pub disable: Vec<String>,
    #[command(flatten)]
    pub gates: FeatureGates,
    /// The network namespace that the node is in
    #[arg(long, hide = true, value_name = "FILE")]
    pub network_namespace: Option<PathBuf>,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args, Clone, Debug)]
pub struct ControlPlane {
    /// The API server's port
    #[arg(long, default_value = "6443", value_parser = value::port)]
    pub secure_port: u16,
    /// The address that the API server listens on
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The address that clients and Pods reach the API server at; this machine's own when not given
    #[arg(long, value_parser = value::reachable)]
    pub advertise_address: Option<IpAddr>,
    /// Further names and addresses for the API server's certificate
    #[arg(long = "tls-san", value_delimiter = ',', value_parser = value::host)]
    pub tls_san: Vec<String>,
    /// A file of static tokens: `token,user,uid,"group1,group2"`
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub token_auth_file: Option<PathBuf>,
    #[command(flatten)]
    pub admission: AdmissionFlags,
    /// Settings of the scheduler: a KubeSchedulerConfiguration (profiles, plugins and their arguments)
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub scheduler_config: Option<PathBuf>,
    #[command(flatten)]
    pub authentication: AuthenticationFlags,
    #[command(flatten)]
    pub serving: ServingFlags,
    #[command(flatten)]
    pub front_proxy: FrontProxyFlags,
    #[command(flatten)]
    pub service_accounts: ServiceAccountFlags,
    #[command(flatten)]
    pub authorization: AuthorizationFlags,
    #[command(flatten)]
    pub audit: AuditFlags,
    #[command(flatten)]
    pub in_flight: InFlight,
    #[command(flatten)]
    pub web: WebFlags,
    /// Make profiles for clients that ask at /debug/pprof/
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub profiling: bool,
    #[command(flatten)]
    pub tracing: TracingFlags,
    #[command(flatten)]
    pub etcd: EtcdFlags,
    #[command(flatten)]
    pub encryption: EncryptionFlags,
    /// Reach API servers that APIServices name at their endpoints instead of their Services' addresses
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub enable_aggregator_routing: bool,
    /// Addresses of Services; one range, or one of each family (`10.96.0.0/16,fd00:10:96::/112`)
    #[arg(long, default_value = "10.96.0.0/12", value_parser = ranges::of_services)]
    pub service_cluster_ip_range: Ranges,
    /// Ports that NodePort Services get
    #[arg(long, default_value = "30000-32767", value_parser = value::port_range)]
    pub service_node_port_range: RangeInclusive<u16>,
    /// Addresses of Pods; one range, or one of each family. Each node gets a part, of the size that `--node-cidr-mask-size` says
    #[arg(long, default_value = "10.244.0.0/16", value_parser = ranges::of_pods)]
    pub cluster_cidr: Ranges,
    #[command(flatten)]
    pub node_ranges: NodeRanges,
    /// How Pods of different nodes reach each other: `direct` routes between nodes on one link, a `vxlan` tunnel, or `auto`, which
    /// takes the tunnel to nodes that are further away. Networks that drop addresses they did not give out (most clouds) need `vxlan`.
    /// With `wireguard` all that Pods of different nodes send each other is encrypted
    #[arg(long, default_value_t, value_name = "MODE")]
    pub pod_network: network::overlay::plan::Mode,
    /// The cluster's DNS domain
    #[arg(long, default_value = "cluster.local", value_parser = value::domain)]
    pub cluster_domain: String,
    /// The addresses of cluster DNS that Pods are told, the first of which is asked first; the tenth address of the range of Services when
    /// not given
    #[arg(long, value_delimiter = ',', value_name = "IP", value_parser = value::cluster_dns)]
    pub cluster_dns: Vec<IpAddr>,
    /// Controllers to run: `*` for all, `-name` leaves one out
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true, value_parser = controllers::parse_name)]
    pub controllers: Vec<String>,
    #[command(flatten)]
    pub gates: FeatureGates,
    #[command(flatten)]
    pub served: ServedVersions,
    /// How often the metrics of an autoscaler are looked at
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = value::period)]
    pub horizontal_pod_autoscaler_sync_period: Duration,
    /// How far what is used may be from the target before anything is scaled, as a part of it
    #[arg(long, default_value = "0.1", value_name = "PART", value_parser = value::tolerance)]
    pub horizontal_pod_autoscaler_tolerance: f64,
    /// How long after its start a Pod's use of the processor may be left out
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = value::duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// How long after its start a change of a Pod's readiness counts as its first
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = value::duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// How far back the highest recommendation of an autoscaler counts; an hour at most
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = value::within_an_hour)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How many autoscalers are looked at at once
    #[arg(long, default_value = "5", value_parser = value::concurrency)]
    pub concurrent_horizontal_pod_autoscaler_syncs: usize,
    #[command(flatten)]
    pub lost_nodes: LostNodes,
    #[command(flatten)]
    pub volumes: Volumes,
    /// Let only one of several servers run the controllers, and one the scheduler; so by default with --etcd-servers
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// How long the others wait after the leader's last sign of life
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = value::duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader works on after its last sign of life; shorter than the lease
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = value::duration)]
    pub leader_elect_renew_deadline: Duration,
    /// How often all of them try
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = value::duration)]
    pub leader_elect_retry_period: Duration,
    /// Parts to leave out
    #[arg(long, value_delimiter = ',', value_parser = PARTS)]
    pub disable: Vec<String>,
}

/// The parts of a control plane and of the node beside it that can be left out.
const PARTS: [&str; 6] = ["scheduler", "controllers", "dns", "proxy", "network", "local-storage"];

impl ControlPlane {
    /// The values that count when no flag is given.
    pub fn usual() -> Self {
        #[derive(Parser)]
        struct NoFlags {
            #[command(flatten)]
            control_plane: ControlPlane,
        }
        NoFlags::parse_from([""]).control_plane
    }

    pub fn runs(&self, part: &str) -> bool {
        !self.disable.iter().any(|d| d == part)
    }

    /// The words of `--controllers`, and before them what is left out as a part.
    pub fn enabled_controllers(&self) -> Vec<String> {
        let off = (!self.runs("local-storage")).then(|| format!("-{}", controllers::storage::local::NAME));
        off.into_iter().chain(self.controllers.iter().cloned()).collect()
    }

    /// Which address behind the Service of another API server is dialed.
    pub fn routing(&self) -> Routing {
        if self.enable_aggregator_routing { Routing::Endpoints } else { Routing::ClusterAddress }
    }

    pub fn autoscaling(&self) -> controllers::autoscaling::settings::Settings {
        controllers::autoscaling::settings::Settings {
            sync_period: self.horizontal_pod_autoscaler_sync_period,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            cpu_initialization: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness: self.horizontal_pod_autoscaler_initial_readiness_delay,
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            concurrent: self.concurrent_horizontal_pod_autoscaler_syncs,
        }
    }

    /// Whether the parts are led by one of several servers.
    pub fn leads(&self) -> bool {
        self.leader_elect.unwrap_or(!self.etcd.etcd_servers.is_empty())
    }

    /// The candidate for a part's leadership, named after the machine; `None` where nobody else could lead. The embedded
    /// store has one server, and no need to write every two seconds that it is still there.
    pub fn candidate(&self, lease: &str, host: &str) -> Option<Candidate> {
        // A process that starts again must not take itself for the one before.
        let identity = format!("{host}_{}", clock::uuid());
        self.leads().then(|| Candidate {
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            coordinated: self.coordinated(),
            ..Candidate::new("kube-system", lease, &identity)
        })
    }

    /// The versions that this server's components announce where API servers choose the leaders.
    pub fn coordinated(&self) -> Option<Versions> {
        let (features, served) = (self.gates.features().ok()?, self.served.config().ok()?);
        controllers::leader_election::versions(&features, &served)
    }

    /// The times of an election, in upstream's words.
    fn check_election(&self) -> anyhow::Result<()> {
        let retry = self.leader_elect_retry_period;
        if retry.is_zero() || self.leader_elect_lease_duration < Duration::from_secs(1) {
            anyhow::bail!(
                "--leader-elect-retry-period must be greater than zero, --leader-elect-lease-duration a second"
            );
        }
        if self.leader_elect_lease_duration <= self.leader_elect_renew_deadline {
            anyhow::bail!("--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline");
        }
        if self.leader_elect_renew_deadline <= retry + retry / 5 {
            anyhow::bail!("--leader-elect-renew-deadline must be greater than 1.2 times --leader-elect-retry-period");
        }
        Ok(())
    }

    fn check_ranges(&self) -> anyhow::Result<()> {
        self.node_ranges.of(&self.cluster_cidr).map_err(anyhow::Error::msg)?;
        for services in self.service_cluster_ip_range.all() {
            let pods = self.cluster_cidr.all().iter().find(|pods| services.contains(*pods) || pods.contains(services));
            if let Some(pods) = pods {
                anyhow::bail!(
                    "--service-cluster-ip-range {services} and --cluster-cidr {pods} overlap; choose ranges apart"
                );
            }
            if self.runs("network") && !self.cluster_cidr.has_family_of(services.addr()) {
                anyhow::bail!(
                    "no Pod would be behind Services of {services}: --cluster-cidr has no range of its family"
                );
            }
        }
        Ok(())
    }

    /// Where the API server listens. As upstream's, `0.0.0.0` takes connections to addresses of IPv6 too where the cluster has them.
    pub fn listen_address(&self) -> IpAddr {
        let has_v6 = self.service_cluster_ip_range.all().iter().any(|range| range.addr().is_ipv6());
        if self.bind_address == IpAddr::V4(Ipv4Addr::UNSPECIFIED) && has_v6 {
            return Ipv6Addr::UNSPECIFIED.into();
        }
        self.bind_address
    }

    /// The issuer of the tokens of service accounts where no flag names another.
    pub fn issuer(&self) -> String {
        format!("https://kubernetes.default.svc.{}", self.cluster_domain)
    }

    /// The issuers whose tokens are the server's own.
    pub fn issuers(&self) -> Vec<String> {
        self.service_accounts.issuers(&self.issuer())
    }

    pub fn limits(&self) -> Limits {
        Limits {
            streams: self.serving.streams(),
            watch_grace: self.web.shutdown_watch_termination_grace_period,
            ..self.in_flight.limits()
        }
    }

    /// Says what is wrong with the flags together.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_election()?;
        self.volumes.settings()?;
        self.check_ranges()?;
        self.etcd.check()?;
        self.encryption.check()?;
        self.audit.check()?;
        self.authorization.settings()?;
        self.authentication.settings(&self.issuers())?;
        self.serving.check()?;
        self.front_proxy.check()?;
        self.tracing.config()?;
        self.service_accounts.check()?;
        self.in_flight.check()?;
        self.web.settings()?;
        self.served.config()?;
        self.scheduler().map(|_| ())
    }

    /// The scheduler's settings. A mistake in the file is told before anything begins.
    pub fn scheduler(&self) -> anyhow::Result<scheduler::Settings> {
        let features = self.gates.features()?;
        let Some(file) = &self.scheduler_config else {
            return Ok(scheduler::Settings { features, ..scheduler::Settings::default() });
        };
        let wrong = |why: String| anyhow::anyhow!("--scheduler-config: {}: {why}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        let value = serde_saphyr::from_str(&text).map_err(|error| wrong(format!("it is not valid YAML: {error}")))?;
        scheduler::config::parse(value, features).map_err(wrong)
    }

    /// The cluster DNS Service's address: the tenth of the service range, as kubeadm has it.
    pub fn dns_service(&self) -> IpAddr {
        service_address(self.service_cluster_ip_range.first(), 10)
    }
}

/// The n-th address of the service range; the first is the API server's own.
pub fn service_address(range: IpNet, n: u32) -> IpAddr {
    match range {
        IpNet::V4(range) => Ipv4Addr::from(u32::from(range.network()) + n).into(),
        IpNet::V6(range) => Ipv6Addr::from(u128::from(range.network()) + u128::from(n)).into(),
    }
}

#[derive(Args, Clone, Debug)]
pub struct Node {
    /// The node's name; this machine's host name when not given
    #[arg(long = "node-name", alias = "hostname-override", value_parser = value::node_name)]
    pub node_name: Option<String>,
    /// The node's address, or one of each family; those of the default routes when not given
    #[arg(long, value_delimiter = ',', value_parser = value::reachable)]
    pub node_ip: Vec<IpAddr>,
    /// Use this container engine instead of a containerd of our own (unix:///…)
    #[arg(long, value_name = "SOCKET", value_parser = value::socket)]
    pub container_runtime_endpoint: Option<String>,
    /// The kubelet's port
    #[arg(long, default_value = "10250", value_parser = value::port)]
    pub kubelet_port: u16,
    /// Static Pods are read from this folder; `manifests` in the data folder when not given
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Where cluster DNS listens on the node's address
    #[arg(long, default_value = "10053", value_parser = value::port)]
    pub dns_port: u16,
    /// Where the Service proxy says at /healthz and /livez whether it keeps up, and whether the node takes traffic; load balancers ask
    /// there. Empty for nowhere
    #[arg(long, default_value = "0.0.0.0:10256", value_name = "ADDRESS:PORT", value_parser = value::listening)]
    pub proxy_healthz_bind_address: String,
    /// Where the Service proxy's /metrics and /proxyMode are; empty for nowhere
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "ADDRESS:PORT", value_parser = value::listening)]
    pub proxy_metrics_bind_address: String,
    /// How the Service proxy leads packets: `nftables` or `iptables`
    #[arg(long, default_value = "nftables", value_name = "MODE", value_parser = kube_proxy::usual_mode)]
    pub proxy_mode: proxy::Mode,
    /// The ranges of the node's addresses at which node ports of Services are, or `primary` (its own in each family); when not given,
    /// primary, and all of the machine's in the mode iptables
    #[arg(long, value_delimiter = ',', value_name = "RANGES", value_parser = kube_proxy::node_port_address)]
    pub nodeport_addresses: Vec<String>,
    /// The file that names the resolvers for names outside the cluster
    #[arg(long, default_value = "/etc/resolv.conf", value_parser = value::readable)]
    pub resolv_conf: PathBuf,
    /// How many Pods the node takes
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_pods: u32,
    /// The cgroup in which those of Pods are made; `skiff down` has to be told too
    #[arg(long, default_value = "/", value_parser = value::cgroup)]
    pub cgroup_root: String,
    #[command(flatten)]
    pub evictions: Evictions,
    #[command(flatten)]
    pub kubelet_config: KubeletConfig,
    #[command(flatten)]
    pub image_credentials: ImageCredentials,
    /// Image archives in this folder (.tar, .tar.gz, .tar.zst) are imported before the first Pod; `images` in the data folder when
    /// not given
    #[arg(long, value_name = "FOLDER")]
    pub image_archives: Option<PathBuf>,
    /// Get images from nodes that have pulled them before their registries are asked, and give other nodes those that this one has
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub embedded_registry: bool,
    /// Give the processes and files of containers SELinux labels; containerd of our own does not otherwise. The kernel and the policy
    /// of the machine have to be ready for containers (container-selinux)
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub selinux: bool,
    /// Sysctls that Pods may set besides the safe ones; a name or, with a `*` at its end, the beginning of names
    #[arg(long, value_delimiter = ',', value_name = "SYSCTLS", value_parser = value::sysctl)]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The number of this node among those of its machine, where it has several
    #[arg(long, hide = true, value_parser = clap::value_parser!(u8).range(1..=MOST_NODES))]
    pub number_on_machine: Option<u8>,
}

impl Node {
    /// The part of the machine's user ids that its Pods get. The parts are always as many as a machine may have nodes, so that none of
    /// them moves when nodes come or go.
    pub fn users_part(&self) -> Option<kubelet::UsersPart> {
        let of = u32::try_from(MOST_NODES).unwrap_or_default();
        self.number_on_machine.map(|number| kubelet::UsersPart { number: number.into(), of })
    }
}

#[derive(Args, Clone, Debug)]
pub struct Check {
    #[arg(long, default_value = DATA_DIR)]
    pub data_dir: PathBuf,
    /// Say instead how the cluster of this machine stands to the CIS Kubernetes benchmark, one line for each of its checks
    #[arg(long)]
    pub cis: bool,
    /// The API server's port
    #[arg(long, default_value = "6443", value_parser = value::port)]
    pub secure_port: u16,
    /// The kubelet's port
    #[arg(long, default_value = "10250", value_parser = value::port)]
    pub kubelet_port: u16,
    /// A container engine that is there already
    #[arg(long, value_name = "SOCKET", value_parser = value::socket)]
    pub container_runtime_endpoint: Option<String>,
    /// How Pods of different nodes are to reach each other
    #[arg(long, default_value_t, value_name = "MODE")]
    pub pod_network: network::overlay::plan::Mode,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Images {
    /// Import image archives (docker save or OCI layout) into the cluster's engine
    Import {
        /// Files to import
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[arg(long, default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// List the images that the cluster's engine has
    List {
        #[arg(long, default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Build an image from files; with --output write the archive, otherwise import it
    Build {
        /// The image's name, such as skiff.local/tools:1
        #[arg(short, long)]
        tag: String,
        /// Files to put in, as SOURCE=/PATH/IN/IMAGE
        #[arg(long = "file", value_name = "SOURCE=PATH")]
        files: Vec<String>,
        /// Put the machine's static busybox in, with a link for each of its programs
        #[arg(long)]
        busybox: bool,
        /// The command that the image runs
        #[arg(long, value_delimiter = ' ')]
        entrypoint: Vec<String>,
        /// Write the archive here instead of importing it
        #[arg(short, long)]
        output: Option<PathBuf>,
        #[arg(long, default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum Token {
    /// Make a token and print the command that a new node runs
    Create {
        /// How long it lets nodes in, such as 24h; 0 is for ever
        #[arg(long, default_value = "24h")]
        ttl: String,
        #[arg(long, default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// List the tokens, without their secret half
    List {
        #[arg(long, default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// End a token; nodes that joined with it stay
    Delete {
        /// The token, or its first half
        token: String,
        #[arg(long, default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum Store {
    /// Show revision, size and health
    Status(StorePlace),
    /// Write a copy of the whole store to a file
    Snapshot {
        file: PathBuf,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Fill an empty store from a snapshot
    Restore {
        file: PathBuf,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Read everything and check every checksum
    Verify(StorePlace),
    /// Rewrite the log without what is superseded
    Compact(StorePlace),
    /// Write everything once more that is not encrypted with the first key of its resource, while running or not
    Encrypt {
        /// The EncryptionConfiguration that the server is started with; the cluster's own when not given
        #[arg(long, value_name = "FILE", value_parser = value::readable)]
        encryption_provider_config: Option<PathBuf>,
        #[command(flatten)]
        etcd: EtcdFlags,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Copy the store into an etcd that holds no cluster yet
    ToEtcd {
        #[command(flatten)]
        etcd: EtcdFlags,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Fill an empty store from an etcd
    FromEtcd {
        #[command(flatten)]
        etcd: EtcdFlags,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Go on with what can still be read of a store that is damaged or has lost files
    AcceptLoss(StorePlace),
}

#[derive(Args, Clone, Debug)]
pub struct StorePlace {
    #[arg(long, default_value = DATA_DIR)]
    pub data_dir: PathBuf,
}
