//! The flags of `skiff kube-proxy`, and the file that takes their place: upstream's names and meanings.
//! Upstream counterpart: cmd/kube-proxy/app/options.go, pkg/proxy/apis/config.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use ipnet::IpNet;
use json::Value;
use proxy::{Family, MASQUERADE_BIT, Mode, apply::limits::Limits, iptables, node::Interface};
use serde::Deserialize;

use crate::flags::{
    logging::{LoggingFile, LoggingFlags},
    ranges, value,
};

const VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";
const HEALTH_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;

#[derive(Args, Clone, Debug)]
pub struct KubeProxyFlags {
    /// The settings as a KubeProxyConfiguration; it takes the place of all flags but --hostname-override
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub config: Option<PathBuf>,
    /// The kubeconfig with which the proxy reaches the API server
    #[arg(long, value_name = "FILE", value_parser = value::readable, conflicts_with = "config", required_unless_present_any = ["config", "cleanup"])]
    pub kubeconfig: Option<PathBuf>,
    /// The node's name; this machine's host name when not given
    #[arg(long, value_parser = value::node_name)]
    pub hostname_override: Option<String>,
    /// Addresses of all Pods: one range, or one of each family
    #[arg(long, conflicts_with = "config", default_value = "", hide_default_value = true)]
    pub cluster_cidr: String,
    /// How packets are led: `nftables` (when not given) or `iptables`
    #[arg(long, conflicts_with = "config", default_value = "")]
    pub proxy_mode: String,
    /// How traffic of the cluster's Pods is known: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, conflicts_with = "config", default_value = "")]
    pub detect_local_mode: String,
    /// The interface of BridgeInterface
    #[arg(long, conflicts_with = "config", default_value = "")]
    pub pod_bridge_interface: String,
    /// The beginning of the names of the interfaces of InterfaceNamePrefix
    #[arg(long, conflicts_with = "config", default_value = "")]
    pub pod_interface_name_prefix: String,
    /// In the mode iptables: node ports are reached at 127.0.0.1 too (true when not given)
    #[arg(long, conflicts_with = "config", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub iptables_localhost_nodeports: Option<bool>,
    /// Make the node the source of everything that goes to a Service
    #[arg(long, conflicts_with = "config")]
    pub masquerade_all: bool,
    /// The ranges of the node's addresses at which node ports are, or `primary` (its own in each family); when not given, primary, and
    /// all of the machine's in the mode iptables
    #[arg(long, conflicts_with = "config", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// Where /healthz and /livez are answered
    #[arg(long, conflicts_with = "config", default_value = "")]
    pub healthz_bind_address: String,
    /// Where /metrics and /proxyMode are answered
    #[arg(long, conflicts_with = "config", default_value = "")]
    pub metrics_bind_address: String,
    /// How many connections the kernel follows for each processor; 0 leaves it
    #[arg(long, conflicts_with = "config")]
    pub conntrack_max_per_core: Option<u64>,
    /// How many at least
    #[arg(long, conflicts_with = "config")]
    pub conntrack_min: Option<u64>,
    /// How long TCP connections are followed on which nothing comes; 0 leaves it
    #[arg(long, conflicts_with = "config", value_parser = value::duration)]
    pub conntrack_tcp_timeout_established: Option<Duration>,
    /// How long those are followed that one end has closed; 0 leaves it
    #[arg(long, conflicts_with = "config", value_parser = value::duration)]
    pub conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// How long UDP flows without an answer are followed; 0 leaves it
    #[arg(long, conflicts_with = "config", value_parser = value::duration)]
    pub conntrack_udp_timeout: Option<Duration>,
    /// How long those with answers are followed; 0 leaves it
    #[arg(long, conflicts_with = "config", value_parser = value::duration)]
    pub conntrack_udp_timeout_stream: Option<Duration>,
    /// Take packets outside of a TCP connection's window
    #[arg(long, conflicts_with = "config")]
    pub conntrack_tcp_be_liberal: bool,
    /// Remove all rules that a proxy of skiff has written, and end
    #[arg(long)]
    pub cleanup: bool,
    #[command(flatten)]
    pub logging: LoggingFlags,
}

/// The proxy's settings, from flags or from the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub kubeconfig: PathBuf,
    pub node_name: Option<String>,
    pub mode: Mode,
    pub local: Local,
    pub masquerade_all: bool,
    pub node_ports: NodePorts,
    pub healthz: SocketAddr,
    pub metrics: SocketAddr,
    pub conntrack: Limits,
    pub logging: LoggingFile,
    /// Fields of the file that ask for something that this proxy does not do.
    pub in_vain: Vec<String>,
}

/// How traffic of the cluster's Pods is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local {
    /// These are all of the cluster's ranges; where there are none, nobody knows.
    Cluster(Vec<IpNet>),
    /// The ranges that this node has.
    Node,
    Interface(Interface),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePorts {
    Everywhere,
    /// The node's own addresses, as its Node names them.
    Primary,
    Within(Vec<IpNet>),
}

impl NodePorts {
    /// The addresses where nobody names any. As with upstream, rules of iptables alone are at all of them.
    pub fn usual(mode: Mode) -> Self {
        match mode {
            Mode::Nftables => NodePorts::Primary,
            Mode::Iptables(_) => NodePorts::Everywhere,
        }
    }

    /// The addresses of one family on a node with this one; `None` are all.
    pub fn of(&self, family: Family, ip: Option<IpAddr>) -> Option<Vec<IpNet>> {
        match self {
            NodePorts::Everywhere => None,
            NodePorts::Primary => Some(ip.into_iter().map(IpNet::from).collect()),
            NodePorts::Within(ranges) => {
                Some(ranges.iter().filter(|range| Family::of(range.addr()) == family).copied().collect())
            }
        }
    }
}

/// Fields that upstream's file may hold without a meaning for this proxy are known by name ([`WITHOUT_EFFECT`]), and a warning tells of
/// those that ask for something.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    api_version: String,
    kind: String,
    mode: Option<String>,
    client_connection: Connection,
    hostname_override: Option<String>,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: Option<String>,
    detect_local_mode: Option<String>,
    detect_local: DetectLocal,
    node_port_addresses: Option<Vec<String>>,
    nftables: Rules,
    iptables: Rules,
    conntrack: Conntrack,
    #[serde(rename = "bindAddress")]
    _bind_address: Option<String>,
    #[serde(rename = "bindAddressHardFail")]
    _bind_address_hard_fail: Option<bool>,
    #[serde(rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(rename = "showHiddenMetricsForVersion")]
    _show_hidden_metrics_for_version: Option<String>,
    #[serde(rename = "featureGates")]
    _feature_gates: Option<Value>,
    logging: LoggingFile,
    #[serde(rename = "ipvs")]
    _ipvs: Option<Value>,
    #[serde(rename = "winkernel")]
    _winkernel: Option<Value>,
    #[serde(rename = "configSyncPeriod")]
    _config_sync_period: Option<String>,
    #[serde(rename = "oomScoreAdj")]
    _oom_score_adj: Option<i32>,
    #[serde(rename = "portRange")]
    _port_range: Option<String>,
    #[serde(rename = "windowsRunAsService")]
    _windows_run_as_service: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Connection {
    kubeconfig: Option<String>,
    #[serde(rename = "acceptContentTypes")]
    _accept_content_types: Option<String>,
    #[serde(rename = "contentType")]
    _content_type: Option<String>,
    #[serde(rename = "qps")]
    _qps: Option<f32>,
    #[serde(rename = "burst")]
    _burst: Option<i32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DetectLocal {
    bridge_interface: Option<String>,
    interface_name_prefix: Option<String>,
}

/// Of nftables and of iptables: the choices that both modes have.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Rules {
    masquerade_bit: Option<i32>,
    masquerade_all: Option<bool>,
    localhost_node_ports: Option<bool>,
    #[serde(rename = "syncPeriod")]
    _sync_period: Option<String>,
    #[serde(rename = "minSyncPeriod")]
    _min_sync_period: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Conntrack {
    max_per_core: Option<u64>,
    min: Option<u64>,
    tcp_established_timeout: Option<String>,
    tcp_close_wait_timeout: Option<String>,
    udp_timeout: Option<String>,
    udp_stream_timeout: Option<String>,
    tcp_be_liberal: Option<bool>,
}

impl KubeProxyFlags {
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let Some(path) = &self.config else { return self.typed() };
        let wrong = || format!("--config {}", path.display());
        let text = std::fs::read_to_string(path).with_context(wrong)?;
        let mut settings = read(&text).with_context(wrong)?;
        settings.node_name = self.hostname_override.clone().or(settings.node_name);
        Ok(settings)
    }

    fn typed(&self) -> anyhow::Result<Settings> {
        let usual = Limits::default();
        let mode = mode(&self.proxy_mode, self.iptables_localhost_nodeports, self.conntrack_tcp_be_liberal)?;
        Ok(Settings {
            mode,
            kubeconfig: self.kubeconfig.clone().context("--kubeconfig or --config is needed")?,
            node_name: self.hostname_override.clone(),
            local: local(
                &self.detect_local_mode,
                &self.cluster_cidr,
                &self.pod_bridge_interface,
                &self.pod_interface_name_prefix,
            )?,
            masquerade_all: self.masquerade_all,
            node_ports: node_ports(&self.nodeport_addresses, mode)?,
            healthz: bind(&self.healthz_bind_address, ([0, 0, 0, 0], HEALTH_PORT).into())?,
            metrics: bind(&self.metrics_bind_address, ([127, 0, 0, 1], METRICS_PORT).into())?,
            conntrack: Limits {
                max_per_core: self.conntrack_max_per_core.unwrap_or(usual.max_per_core),
                min: self.conntrack_min.unwrap_or(usual.min),
                tcp_established: self.conntrack_tcp_timeout_established.unwrap_or(usual.tcp_established),
                tcp_close_wait: self.conntrack_tcp_timeout_close_wait.unwrap_or(usual.tcp_close_wait),
                udp: self.conntrack_udp_timeout.unwrap_or(usual.udp),
                udp_stream: self.conntrack_udp_timeout_stream.unwrap_or(usual.udp_stream),
                tcp_be_liberal: self.conntrack_tcp_be_liberal,
            },
            logging: LoggingFile::default(),
            in_vain: Vec::new(),
        })
    }
}

/// The fields that are taken, as JSON pointers, and change nothing.
const WITHOUT_EFFECT: [&str; 21] = [
    "/bindAddress",
    "/bindAddressHardFail",
    "/enableProfiling",
    "/showHiddenMetricsForVersion",
    "/featureGates",
    "/logging/flushFrequency",
    "/logging/options",
    "/ipvs",
    "/winkernel",
    "/configSyncPeriod",
    "/oomScoreAdj",
    "/portRange",
    "/windowsRunAsService",
    "/clientConnection/acceptContentTypes",
    "/clientConnection/contentType",
    "/clientConnection/qps",
    "/clientConnection/burst",
    "/nftables/syncPeriod",
    "/nftables/minSyncPeriod",
    "/iptables/syncPeriod",
    "/iptables/minSyncPeriod",
];

/// Whether a field says more than the zero values that upstream's tools write for all that nobody chose.
fn asks(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(on) => *on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0" | "0s" | "0.0.0.0" | "::"),
        Value::Array(items) => items.iter().any(asks),
        Value::Object(fields) => fields.iter().any(|(_, value)| asks(value)),
    }
}

/// The fields of a file that ask for something in vain.
fn in_vain(file: &Value) -> impl Iterator<Item = String> {
    WITHOUT_EFFECT.iter().filter(|path| file.pointer(path).is_some_and(asks)).map(|path| path[1..].replace('/', "."))
}

fn read(text: &str) -> anyhow::Result<Settings> {
    let value: Value = serde_saphyr::from_str(text).context("it is not valid YAML")?;
    let in_vain = in_vain(&value).collect();
    let file: File = json::from_value(without_nulls(value))?;
    if (file.api_version.as_str(), file.kind.as_str()) != (VERSION, KIND) {
        bail!("it is no {KIND} of {VERSION}");
    }
    let be_liberal = file.conntrack.tcp_be_liberal.unwrap_or_default();
    let mode = mode(file.mode.as_deref().unwrap_or_default(), file.iptables.localhost_node_ports, be_liberal)?;
    let rules = [&file.nftables, &file.iptables];
    if let Some(bit) = rules.iter().find_map(|r| r.masquerade_bit.filter(|bit| *bit != MASQUERADE_BIT)) {
        bail!("masqueradeBit {bit} is not available; it is {MASQUERADE_BIT}");
    }
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let kubeconfig = text(&file.client_connection.kubeconfig);
    if kubeconfig.is_empty() {
        bail!("clientConnection.kubeconfig is needed");
    }
    let (bridge, prefix) = (text(&file.detect_local.bridge_interface), text(&file.detect_local.interface_name_prefix));
    Ok(Settings {
        mode,
        kubeconfig: kubeconfig.into(),
        node_name: file.hostname_override.clone().filter(|name| !name.is_empty()),
        local: local(&text(&file.detect_local_mode), &text(&file.cluster_cidr), &bridge, &prefix)?,
        masquerade_all: rules.iter().any(|r| r.masquerade_all == Some(true)),
        node_ports: node_ports(file.node_port_addresses.as_deref().unwrap_or_default(), mode)?,
        healthz: bind(&text(&file.healthz_bind_address), ([0, 0, 0, 0], HEALTH_PORT).into())?,
        metrics: bind(&text(&file.metrics_bind_address), ([127, 0, 0, 1], METRICS_PORT).into())?,
        conntrack: limits(&file.conntrack)?,
        logging: file.logging,
        in_vain,
    })
}

/// A field that is null is one that is not there.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect(),
        ),
        other => other,
    }
}

fn limits(file: &Conntrack) -> anyhow::Result<Limits> {
    let usual = Limits::default();
    let time = |name: &str, text: &Option<String>, usual: Duration| match text {
        None => Ok(usual),
        Some(text) => value::duration(text).map_err(|why| anyhow::anyhow!("conntrack.{name}: {why}")),
    };
    Ok(Limits {
        max_per_core: file.max_per_core.unwrap_or(usual.max_per_core),
        min: file.min.unwrap_or(usual.min),
        tcp_established: time("tcpEstablishedTimeout", &file.tcp_established_timeout, usual.tcp_established)?,
        tcp_close_wait: time("tcpCloseWaitTimeout", &file.tcp_close_wait_timeout, usual.tcp_close_wait)?,
        udp: time("udpTimeout", &file.udp_timeout, usual.udp)?,
        udp_stream: time("udpStreamTimeout", &file.udp_stream_timeout, usual.udp_stream)?,
        tcp_be_liberal: file.tcp_be_liberal.unwrap_or(usual.tcp_be_liberal),
    })
}

/// The mode by its name, with upstream's defaults of what else belongs to it.
pub fn usual_mode(text: &str) -> anyhow::Result<Mode> {
    mode(text, None, Limits::default().tcp_be_liberal)
}

/// The mode by its name. Who asks for one that there is not would get other rules than the ones that are looked for.
fn mode(text: &str, localhost_node_ports: Option<bool>, tcp_be_liberal: bool) -> anyhow::Result<Mode> {
    match text {
        "" | "nftables" => Ok(Mode::Nftables),
        "iptables" => {
            let localhost_node_ports = localhost_node_ports.unwrap_or(true);
            Ok(Mode::Iptables(iptables::Settings { localhost_node_ports, tcp_be_liberal }))
        }
        "ipvs" => bail!("the proxy mode ipvs is not available, and Kubernetes itself gives it up; leave the mode out"),
        other => bail!("{other:?} is no proxy mode; there are nftables and iptables"),
    }
}

fn local(mode: &str, cluster: &str, bridge: &str, prefix: &str) -> anyhow::Result<Local> {
    let interface = |name: &str, what: &str| {
        Interface::new(name)
            .map(Local::Interface)
            .with_context(|| format!("{what} {name:?} is no name of an interface"))
    };
    match mode {
        "" | "ClusterCIDR" if cluster.is_empty() => Ok(Local::Cluster(Vec::new())),
        "" | "ClusterCIDR" => {
            let ranges = ranges::any(cluster).map_err(|why| anyhow::anyhow!("the cluster CIDR {cluster:?}: {why}"))?;
            Ok(Local::Cluster(ranges.all().to_vec()))
        }
        "NodeCIDR" => Ok(Local::Node),
        "BridgeInterface" => interface(bridge, "the bridge interface"),
        "InterfaceNamePrefix" => interface(&format!("{prefix}*"), "the beginning of interfaces' names"),
        other => bail!(
            "{other:?} is no way to know local traffic: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"
        ),
    }
}

/// The addresses that are named; where none are, those of the mode.
pub fn node_ports(texts: &[String], mode: Mode) -> anyhow::Result<NodePorts> {
    match texts {
        [] => Ok(NodePorts::usual(mode)),
        [one] if one == PRIMARY => Ok(NodePorts::Primary),
        texts => Ok(NodePorts::Within(texts.iter().map(|text| node_port_range(text)).collect::<anyhow::Result<_>>()?)),
    }
}

const PRIMARY: &str = "primary";

fn node_port_range(text: &str) -> anyhow::Result<IpNet> {
    let range = text.parse::<IpNet>().map(|range| range.trunc());
    range.with_context(|| format!("{text:?} is no range of addresses"))
}

/// One of the values of a flag.
pub fn node_port_address(text: &str) -> anyhow::Result<String> {
    if text != PRIMARY {
        node_port_range(text)?;
    }
    Ok(text.to_owned())
}

/// An address with or without a port; the usual one when it is empty.
fn bind(text: &str, usual: SocketAddr) -> anyhow::Result<SocketAddr> {
    if text.is_empty() {
        return Ok(usual);
    }
    let with_port = text.parse::<SocketAddr>().ok();
    let alone = || text.parse().ok().map(|ip| SocketAddr::new(ip, usual.port()));
    with_port.or_else(alone).with_context(|| format!("{text:?} is no address to listen on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_ask_in_vain_are_named() {
        let named = |text: &str| in_vain(&serde_saphyr::from_str(text).unwrap()).collect::<Vec<_>>();
        let zeros = "bindAddress: 0.0.0.0\noomScoreAdj: null\nlogging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}}\n\
            ipvs: {strictARP: false, excludeCIDRs: null}\nclientConnection: {qps: 0, contentType: \"\"}\nconfigSyncPeriod: 0s\n";
        assert_eq!(named(zeros), Vec::<String>::new());
        let asking = "oomScoreAdj: -999\nfeatureGates: {A: true}\nclientConnection: {qps: 5}\niptables: {minSyncPeriod: 1s}\nmode: nftables\n";
        assert_eq!(named(asking), ["featureGates", "oomScoreAdj", "clientConnection.qps", "iptables.minSyncPeriod"]);
    }

    /// The file that kubeadm writes, in its words.
    const KUBEADM: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nbindAddress: 0.0.0.0\nbindAddressHardFail: false\n\
        clientConnection:\n  acceptContentTypes: \"\"\n  burst: 0\n  contentType: \"\"\n  kubeconfig: /x/kubeconfig.conf\n  qps: 0\n\
        clusterCIDR: 10.244.0.0/16,fd00:10:244::/56\nconfigSyncPeriod: 0s\nconntrack:\n  maxPerCore: null\n  min: null\n  \
        tcpBeLiberal: false\n  tcpCloseWaitTimeout: null\n  tcpEstablishedTimeout: 2h30m\n  udpStreamTimeout: 0s\n  udpTimeout: 0s\n\
        detectLocal:\n  bridgeInterface: \"\"\n  interfaceNamePrefix: \"\"\ndetectLocalMode: \"\"\nenableProfiling: false\n\
        healthzBindAddress: \"\"\nhostnameOverride: \"\"\niptables:\n  localhostNodePorts: null\n  masqueradeAll: false\n  \
        masqueradeBit: null\n  minSyncPeriod: 0s\n  syncPeriod: 0s\nipvs:\n  excludeCIDRs: null\nkind: KubeProxyConfiguration\n\
        logging:\n  flushFrequency: 0\nmetricsBindAddress: \"\"\nmode: \"\"\nnftables:\n  masqueradeAll: false\n  masqueradeBit: null\n\
        nodePortAddresses: null\noomScoreAdj: null\nportRange: \"\"\nshowHiddenMetricsForVersion: \"\"\nwinkernel:\n  sourceVip: \"\"\n";

    #[test]
    fn kubeadms_file_is_taken_as_it_is() {
        let settings = read(KUBEADM).unwrap();
        assert_eq!(settings.kubeconfig, PathBuf::from("/x/kubeconfig.conf"));
        assert_eq!(
            (settings.healthz.to_string(), settings.metrics.to_string()),
            ("0.0.0.0:10256".into(), "127.0.0.1:10249".into())
        );
        assert!(matches!(&settings.local, Local::Cluster(ranges) if ranges.len() == 2));
        assert_eq!(settings.conntrack, Limits { tcp_established: Duration::from_secs(9000), ..Limits::default() });
        assert_eq!(
            (settings.node_ports, settings.masquerade_all, settings.node_name),
            (NodePorts::Primary, false, None)
        );
    }

    #[test]
    fn each_field_is_followed_or_refused() {
        let with = |field: &str, line: &str| {
            let lines = KUBEADM.lines().map(|old| if old.starts_with(field) { line } else { old });
            read(&lines.collect::<Vec<_>>().join("\n"))
        };
        let good = |field: &str, line: &str| with(field, line).unwrap();
        let refused = |field: &str, line: &str, words: &str| {
            let error = format!("{:#}", with(field, line).unwrap_err());
            assert!(error.contains(words), "{line}: {error}");
        };
        assert_eq!(good("detectLocalMode", "detectLocalMode: NodeCIDR").local, Local::Node);
        assert!(matches!(good("healthz", "healthzBindAddress: 127.0.0.1").healthz, address if address.port() == 10256));
        assert_eq!(good("metrics", "metricsBindAddress: '[::1]:9'").metrics.to_string(), "[::1]:9");
        assert_eq!(good("hostname", "hostnameOverride: n1").node_name.as_deref(), Some("n1"));
        assert_eq!(good("nodePortAddresses", "nodePortAddresses: [primary]").node_ports, NodePorts::Primary);
        assert!(good("  masqueradeAll", "  masqueradeAll: true").masquerade_all);
        refused("nodePortAddresses", "nodePortAddresses: [x]", "no range of addresses");
        refused("detectLocalMode", "detectLocalMode: BridgeInterface", "is no name of an interface");
        refused("detectLocalMode", "detectLocalMode: Guess", "is no way to know local traffic");
        assert_eq!(good("mode", "mode: nftables").mode, Mode::Nftables);
        let old = good("mode", "mode: iptables");
        assert_eq!(old.mode, Mode::Iptables(iptables::Settings::default()));
        assert_eq!(old.node_ports, NodePorts::Everywhere);
        let chosen = KUBEADM
            .replace("mode: \"\"\n", "mode: iptables\n")
            .replace("localhostNodePorts: null", "localhostNodePorts: false");
        assert!(matches!(read(&chosen).unwrap().mode, Mode::Iptables(settings) if !settings.localhost_node_ports));
        refused("mode", "mode: ipvs", "ipvs is not available");
        refused("mode", "mode: userspace", "is no proxy mode");
        refused("mode", "modes: nftables", "modes");
        refused("kind", "kind: KubeletConfiguration", "it is no KubeProxyConfiguration");
        refused("clusterCIDR", "clusterCIDR: 10.0.0.0", "cluster CIDR");
        refused("  masqueradeBit", "  masqueradeBit: 3", "masqueradeBit 3 is not available");
        refused("  kubeconfig", "  kubeconfig: ''", "clientConnection.kubeconfig is needed");
        refused("  udpTimeout", "  udpTimeout: soon", "conntrack.udpTimeout");
        refused("  bridgeInterface", "  bridge: x", "bridge");
    }
}
