//! The plugin's side of the Container Network Interface (specification 1.0.0): the engine runs it with the command in the
//! environment and the configuration on standard input, and reads the result from standard output.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
};

use ipnet::IpNet;
use json::{Value, json};
use nft::Family;
use serde::Deserialize;

use crate::{
    host_ports, ipam,
    link::{self, PodAddress, PodInterface},
    rules::HostPort,
};

pub const CNI_VERSION: &str = "1.0.0";
const SUPPORTED: &[&str] = &["0.3.1", "0.4.0", "1.0.0"];

/// The plugin that engines call besides the network's own, to bring a sandbox's `lo` up.
pub const LOOPBACK: &str = "loopback";

#[derive(Debug, Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    #[serde(default)]
    cni_version: String,
    /// The ranges of the node's Pods, one of each family at the most; every Pod has an address of each.
    #[serde(default)]
    subnets: Vec<IpNet>,
    state_dir: PathBuf,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<PortMapping>,
}

/// The specification writes `hostPort`; containerd writes `HostPort`, which Go's JSON reader accepts as well.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortMapping {
    #[serde(alias = "HostPort")]
    host_port: u16,
    #[serde(alias = "ContainerPort")]
    container_port: u16,
    #[serde(default, alias = "Protocol")]
    protocol: String,
    #[serde(default, rename = "hostIP", alias = "HostIP")]
    host_ip: String,
}

impl PortMapping {
    fn rule(&self) -> Result<HostPort, CniError> {
        let wrong = || error(7, format!("the host address {:?} of a port is not valid", self.host_ip));
        let host_ip = match self.host_ip.as_str() {
            "" => None,
            text => Some(api::rules::ip::parse(text).ok_or_else(wrong)?),
        };
        let protocol = if self.protocol.is_empty() { "tcp".to_owned() } else { self.protocol.clone() };
        Ok(HostPort { protocol, host_ip, host_port: self.host_port, container_port: self.container_port })
    }
}

/// An error in the specification's terms.
#[derive(Debug)]
struct CniError {
    code: u32,
    message: String,
}

/// Codes of the specification: 4 bad environment, 6 undecodable content, 7 invalid configuration, 11 try again later; from 100 on our own.
fn error(code: u32, message: impl ToString) -> CniError {
    CniError { code, message: message.to_string() }
}

/// The whole program when the binary is called as the plugin.
pub fn main() -> ExitCode {
    let environment: HashMap<String, String> = std::env::vars().filter(|(k, _)| k.starts_with("CNI_")).collect();
    let mut input = String::new();
    let read = std::io::stdin().read_to_string(&mut input);
    let outcome = match read {
        Err(e) => Err(error(5, e)),
        Ok(_) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| error(100, e))
            .and_then(|runtime| runtime.block_on(call(&environment, &input))),
    };
    let (text, code) = match outcome {
        Ok(Value::Null) => (String::new(), ExitCode::SUCCESS),
        Ok(result) => (result.to_string(), ExitCode::SUCCESS),
        Err(e) => {
            let body = json!({"cniVersion": CNI_VERSION, "code": e.code, "msg": e.message});
            (body.to_string(), ExitCode::FAILURE)
        }
    };
    // If the engine closed the pipe nobody is left to tell.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

async fn call(environment: &HashMap<String, String>, input: &str) -> Result<Value, CniError> {
    let get = |name: &str| environment.get(name).filter(|v| !v.is_empty());
    let required =
        |name: &str| get(name).ok_or_else(|| error(4, format!("the environment variable {name} is missing")));
    let command = required("CNI_COMMAND")?.as_str();
    if command == "VERSION" {
        return Ok(json!({"cniVersion": CNI_VERSION, "supportedVersions": SUPPORTED}));
    }
    if serde_json::from_str::<Plugin>(input).is_ok_and(|p| p.kind == LOOPBACK) {
        return loopback(command, get("CNI_NETNS").map(String::as_str)).await;
    }
    let network: Network =
        serde_json::from_str(input).map_err(|e| error(6, format!("the network configuration is not valid: {e}")))?;
    if !network.cni_version.is_empty() && !SUPPORTED.contains(&network.cni_version.as_str()) {
        return Err(error(1, format!("CNI version {} is not supported", network.cni_version)));
    }
    if matches!(command, "STATUS" | "GC") {
        return Ok(Value::Null);
    }
    let owner = format!("{} {}", required("CNI_CONTAINERID")?, required("CNI_IFNAME")?);
    match command {
        "ADD" => {
            let netns = required("CNI_NETNS")?;
            let added = add(&network, &owner, netns, required("CNI_IFNAME")?).await;
            if added.is_err() {
                // Whatever got done is undone; the error that counts is the first.
                let _ = delete(&network, &owner).await;
            }
            added
        }
        "DEL" => delete(&network, &owner).await.map(|()| Value::Null),
        "CHECK" => check(&network, &owner).await.map(|()| Value::Null),
        other => Err(error(4, format!("CNI_COMMAND {other:?} is not known"))),
    }
}

/// `lo` has its addresses as soon as it is up, and goes with its namespace.
async fn loopback(command: &str, netns: Option<&str>) -> Result<Value, CniError> {
    if command != "ADD" {
        return Ok(Value::Null);
    }
    let netns = netns.ok_or_else(|| error(4, "the environment variable CNI_NETNS is missing"))?;
    link::loopback_up(netns.as_ref()).await.map_err(|e| error(102, e))?;
    Ok(json!({
        "cniVersion": CNI_VERSION,
        "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": netns}],
        "ips": [{"address": "127.0.0.1/8", "interface": 0}],
    }))
}

async fn add(network: &Network, owner: &str, netns: &str, interface: &str) -> Result<Value, CniError> {
    let mut addresses = Vec::new();
    for range in &network.subnets {
        let address = ipam::claim(&network.state_dir, *range, owner).map_err(|e| error(101, e))?;
        addresses.push(PodAddress { address, gateway: ipam::gateway(*range) });
    }
    if addresses.is_empty() {
        return Err(error(7, "the network configuration has no range of addresses"));
    }
    let host_name = link::host_name(owner);
    let (netns, addresses) = (netns.as_ref(), addresses.as_slice());
    let pod = PodInterface { netns, interface, host_name: &host_name, addresses, mtu: network.mtu };
    // A half-made pair of an earlier attempt would be in the way.
    link::remove(&host_name).await.map_err(|e| error(102, e))?;
    let mac = link::create(&pod).await.map_err(|e| error(102, e))?;
    let mappings = network.runtime_config.port_mappings.iter().filter(|m| m.host_port > 0);
    let ports = mappings.map(PortMapping::rule).collect::<Result<Vec<_>, _>>()?;
    if ports.iter().any(|port| port.is_of(Family::V4)) {
        link::answer_loopback(&host_name).map_err(|e| error(102, e))?;
    }
    for PodAddress { address, .. } in addresses {
        open_ports(network, *address, &ports).await?;
    }
    Ok(result(&network.cni_version, &pod, &mac))
}

/// Opens the ports that are at addresses of the Pod's family. They are kept before they are opened, so that whatever happens in
/// between, they are closed again; when they cannot be opened, they are another Pod's, who keeps them.
async fn open_ports(network: &Network, address: IpAddr, ports: &[HostPort]) -> Result<(), CniError> {
    let ports: Vec<HostPort> = ports.iter().filter(|port| port.is_of(Family::of(address))).cloned().collect();
    if ports.is_empty() {
        return Ok(());
    }
    host_ports::keep(&network.state_dir, address, &ports).map_err(|e| error(101, e))?;
    let script: String = ports.iter().map(|port| port.open(address)).collect();
    if let Err(refused) = nft::transaction(&script).await {
        host_ports::forget(&network.state_dir, address).map_err(|e| error(101, e))?;
        return Err(error(103, format!("cannot open the Pod's host ports: {refused}")));
    }
    Ok(())
}

/// Removes link, ports and addresses. Everything may be gone already: `DEL` must succeed again and again.
async fn delete(network: &Network, owner: &str) -> Result<(), CniError> {
    for address in ipam::held_by(&network.state_dir, owner).map_err(|e| error(101, e))? {
        for port in host_ports::kept(&network.state_dir, address).into_iter().flatten() {
            // nft fails when the element is gone, which is the wanted state.
            let _ = nft::transaction(&port.close(Family::of(address))).await;
        }
    }
    link::remove(&link::host_name(owner)).await.map_err(|e| error(102, e))?;
    ipam::release(&network.state_dir, owner).map_err(|e| error(101, e))
}

async fn check(network: &Network, owner: &str) -> Result<(), CniError> {
    let held = ipam::held_by(&network.state_dir, owner).map_err(|e| error(101, e))?;
    if held.is_empty() {
        return Err(error(104, "the sandbox holds no address"));
    }
    match link::exists(&link::host_name(owner)).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(error(104, "the sandbox's interface on the host is gone")),
        Err(e) => Err(error(102, e)),
    }
}

fn result(version: &str, pod: &PodInterface<'_>, mac: &str) -> Value {
    let version = if version.is_empty() { CNI_VERSION } else { version };
    let (mut ips, mut routes) = (Vec::new(), Vec::new());
    for PodAddress { address, gateway } in pod.addresses {
        let mut ip = json!({"address": IpNet::from(*address).to_string(), "gateway": gateway, "interface": 1});
        if version.starts_with("0.") {
            ip["version"] = json!(if address.is_ipv4() { "4" } else { "6" });
        }
        ips.push(ip);
        routes.push(json!({"dst": if address.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "gw": gateway}));
    }
    json!({
        "cniVersion": version,
        "interfaces": [
            {"name": pod.host_name},
            {"name": pod.interface, "mac": mac, "sandbox": pod.netns},
        ],
        "ips": ips,
        "routes": routes,
        "dns": {},
    })
}
