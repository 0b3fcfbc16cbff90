//! The parts of the cluster that have names: Services with their endpoints, namespaces, and the addresses of Pods
//! where somebody asks to verify them. Pure; `crate::follow` keeps it as the API has it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use client::Key;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};

/// A Service as its names need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub sort: Sort,
    pub ports: Vec<Port>,
    pub endpoints: Vec<Endpoints>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sort {
    Addresses(Vec<IpAddr>),
    Headless,
    /// The name outside that it stands for.
    External(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    /// In lower case.
    pub protocol: String,
    /// Absent where a Service or its endpoints name no port: then there is nothing for SRV.
    pub number: Option<u16>,
}

/// The ready endpoints of one slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    pub ports: Vec<Port>,
    pub addresses: Vec<Address>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    pub hostname: Option<String>,
    pub pod: Option<String>,
}

impl Address {
    /// The label under the Service's name.
    pub fn label(&self, by_pod_name: bool) -> String {
        let named = self.hostname.as_ref().or(self.pod.as_ref().filter(|_| by_pod_name));
        named.map_or_else(|| dashed(self.ip), |name| name.to_ascii_lowercase())
    }
}

/// An address as a label: no label ends with a dash.
fn dashed(ip: IpAddr) -> String {
    let label = ip.to_string().replace(['.', ':'], "-");
    if label.ends_with('-') { label + "0" } else { label }
}

#[derive(Debug, Default)]
pub struct Cluster {
    services: HashMap<Key, Entry>,
    /// The Services that have an address themselves, and those with an endpoint at it.
    by_address: HashMap<IpAddr, BTreeSet<Key>>,
    by_endpoint: HashMap<IpAddr, BTreeSet<Key>>,
    namespaces: HashSet<String>,
    /// The namespaces of the Pods at each address.
    pods: HashMap<IpAddr, BTreeSet<Key>>,
    /// Grows with every change: the serial number of the zone.
    pub serial: u32,
    /// Whether all of it has been read once: before, a missing name says nothing.
    pub synced: bool,
    /// The parts of that: Services, namespaces.
    read: (bool, bool),
}

impl Cluster {
    pub fn new() -> Self {
        Cluster { serial: 1, ..Cluster::default() }
    }

    pub fn service(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.services.get(&Key::new(namespace, name))
    }

    /// The Services that have records.
    pub fn owners(&self) -> Vec<Key> {
        self.services.keys().cloned().collect()
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    pub fn services_at(&self, ip: IpAddr) -> impl Iterator<Item = &Key> {
        self.by_address.get(&ip).into_iter().flatten()
    }

    pub fn endpoints_at(&self, ip: IpAddr) -> impl Iterator<Item = (&Key, &Address)> {
        let keys = self.by_endpoint.get(&ip).into_iter().flatten();
        keys.flat_map(move |key| {
            let addresses = self.services.get(key).into_iter().flat_map(|e| &e.endpoints).flat_map(|e| &e.addresses);
            addresses.filter(move |a| a.ip == ip).map(move |a| (key, a))
        })
    }

    /// The Pods at an address, by namespace and name.
    pub fn pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &Key> {
        self.pods.get(&ip).into_iter().flatten()
    }

    /// Replaces what is known of one Service; `None` forgets it.
    pub fn set_service(&mut self, key: &Key, entry: Option<Entry>) {
        if self.services.get(key) == entry.as_ref() {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        if let Some(old) = self.services.remove(key) {
            for (index, ip) in addresses(&old) {
                let index = if index { &mut self.by_address } else { &mut self.by_endpoint };
                forget(index, ip, key);
            }
        }
        if let Some(entry) = entry {
            for (index, ip) in addresses(&entry) {
                let index = if index { &mut self.by_address } else { &mut self.by_endpoint };
                index.entry(ip).or_default().insert(key.clone());
            }
            self.services.insert(key.clone(), entry);
        }
    }

    /// Says that all Services have been read once.
    pub fn synced_services(&mut self) {
        self.read.0 = true;
        self.synced = self.read.1;
    }

    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        let changed = if exists { self.namespaces.insert(name.to_owned()) } else { self.namespaces.remove(name) };
        if changed {
            self.serial = self.serial.wrapping_add(1);
        }
    }

    /// Keeps only the namespaces named.
    pub fn set_namespaces(&mut self, names: HashSet<String>) {
        self.read.1 = true;
        self.synced = self.read.0;
        if self.namespaces != names {
            self.namespaces = names;
            self.serial = self.serial.wrapping_add(1);
        }
    }

    /// A Pod went from some addresses to others.
    pub fn move_pod(&mut self, key: &Key, from: &[IpAddr], to: &[IpAddr]) {
        for ip in from {
            forget(&mut self.pods, *ip, key);
        }
        for ip in to {
            self.pods.entry(*ip).or_default().insert(key.clone());
        }
    }

    pub fn forget_pods(&mut self) {
        self.pods.clear();
    }
}

fn forget(index: &mut HashMap<IpAddr, BTreeSet<Key>>, ip: IpAddr, key: &Key) {
    if let Some(keys) = index.get_mut(&ip) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(&ip);
        }
    }
}

/// The addresses of an entry: whether it is the Service's own, and which.
fn addresses(entry: &Entry) -> Vec<(bool, IpAddr)> {
    let own: &[IpAddr] = if let Sort::Addresses(own) = &entry.sort { own } else { &[] };
    let endpoints = entry.endpoints.iter().flat_map(|e| &e.addresses).map(|a| (false, a.ip));
    own.iter().map(|ip| (true, *ip)).chain(endpoints).collect()
}

/// The part of a Service and its slices that its names follow from.
pub fn entry(service: &Service, slices: &[Arc<EndpointSlice>]) -> Option<Entry> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        // An address is no name that another can stand for.
        let target = spec.external_name.as_deref().filter(|n| api::rules::ip::parse(n).is_none())?;
        let target = target.trim_end_matches('.').to_ascii_lowercase();
        return Some(Entry { sort: Sort::External(target), ports: Vec::new(), endpoints: Vec::new() });
    }
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip).filter_map(|ip| api::rules::ip::parse(ip)) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    let ports = spec.ports.iter().flatten();
    let ports = ports.map(|p| port(p.name.as_deref(), p.protocol.as_deref().or(Some("TCP")), Some(p.port))).collect();
    let sort = if ips.is_empty() { Sort::Headless } else { Sort::Addresses(ips) };
    Some(Entry { sort, ports: or_none(ports), endpoints: slices.iter().filter_map(endpoints).collect() })
}

fn port(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Port {
    Port {
        name: name.unwrap_or_default().to_ascii_lowercase(),
        protocol: protocol.unwrap_or_default().to_ascii_lowercase(),
        number: number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0),
    }
}

/// Names are there without ports too.
fn or_none(ports: Vec<Port>) -> Vec<Port> {
    if ports.is_empty() { vec![port(None, None, None)] } else { ports }
}

fn endpoints(slice: &Arc<EndpointSlice>) -> Option<Endpoints> {
    let ports = slice.ports.iter().flatten().map(|p| port(p.name.as_deref(), p.protocol.as_deref(), p.port)).collect();
    let mut addresses = Vec::new();
    for endpoint in slice.endpoints.iter().filter(|e| is_ready(e)) {
        let pod =
            endpoint.target_ref.as_ref().and_then(|t| t.name.clone()).filter(|n| n.len() < 64 && !n.contains('.'));
        for ip in endpoint.addresses.iter().filter_map(|a| api::rules::ip::parse(a)) {
            addresses.push(Address { ip, hostname: endpoint.hostname.clone(), pod: pod.clone() });
        }
    }
    (!addresses.is_empty()).then(|| Endpoints { ports: or_none(ports), addresses })
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
}

/// The addresses by which a Pod has a name. Those of a Pod that goes or ended are somebody else's soon.
pub fn pod_addresses(pod: &Pod) -> Vec<IpAddr> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref());
    if pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let several = status.iter().flat_map(|s| s.pod_ips.iter().flatten()).map(|ip| ip.ip.as_str());
    let one = status.and_then(|s| s.pod_ip.as_deref());
    let ips: BTreeSet<IpAddr> = several.chain(one).filter_map(api::rules::ip::parse).collect();
    ips.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_addresses() {
        for (ip, expected) in [("10.0.0.1", "10-0-0-1"), ("fd00::9", "fd00--9"), ("fd00::", "fd00--0")] {
            assert_eq!(dashed(ip.parse().unwrap()), expected);
        }
    }

    #[test]
    fn what_goes_leaves_nothing() {
        let service = json::json!({"metadata": {}, "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}});
        let slice = json::json!({"metadata": {}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.5"]}]});
        let entry = entry(&json::from_value(service).unwrap(), &[Arc::new(json::from_value(slice).unwrap())]);
        let mut cluster = Cluster::new();
        let key = Key::new("d", "web");
        cluster.set_service(&key, entry.clone());
        let serial = cluster.serial;
        cluster.set_service(&key, entry);
        assert_eq!(cluster.serial, serial, "the same again is no change");
        assert_eq!(cluster.endpoints_at("10.244.0.5".parse().unwrap()).count(), 1);
        cluster.move_pod(&key, &[], &["10.244.0.5".parse().unwrap()]);
        cluster.move_pod(&key, &["10.244.0.5".parse().unwrap()], &[]);
        cluster.set_service(&key, None);
        assert!(cluster.by_address.is_empty() && cluster.by_endpoint.is_empty() && cluster.services.is_empty());
        assert!(cluster.pods.is_empty());
    }

    #[test]
    fn pods_that_end_have_no_name() {
        let pod =
            |status: json::Value| json::from_value::<Pod>(json::json!({"metadata": {}, "status": status})).unwrap();
        let running =
            json::json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
        assert_eq!(pod_addresses(&pod(running)).len(), 2);
        assert!(pod_addresses(&pod(json::json!({"phase": "Failed", "podIP": "10.0.0.1"}))).is_empty());
    }
}
