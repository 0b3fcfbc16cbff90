//! A Pod as far as policies ask: its labels, its addresses, its named ports, and whether it is on this node.
//!
//! Every node follows the Pods of the whole cluster, so what is kept of each is little.

use std::{collections::BTreeMap, net::IpAddr};

use api::{
    object::Object,
    rules::pod::{HASH_ANNOTATION, MIRROR_ANNOTATION, is_sidecar, is_terminal},
};
use client::Key;
use json::{Error, Value};
use k8s_openapi::{
    Metadata, NamespaceResourceScope, Resource, api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::traffic::Protocol;

pub type Labels = BTreeMap<String, String>;

/// A Pod of the API, without what policies do not ask for.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Of its annotations only those that say which Pod it is.
    metadata: ObjectMeta,
    node_name: Option<String>,
    /// Not on the host's network, and not over.
    has_network: bool,
    addresses: Vec<IpAddr>,
    ports: Vec<NamedPort>,
}

impl Pod {
    pub fn of(pod: &core::Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let on_host = spec.and_then(|s| s.host_network).unwrap_or(false);
        let listed = status.into_iter().flat_map(|s| s.pod_ips.iter().flatten().map(|ip| &ip.ip).chain(&s.pod_ip));
        let mut addresses: Vec<IpAddr> = listed.filter_map(|ip| api::rules::ip::parse(ip)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Pod {
            metadata: little(&pod.metadata),
            node_name: spec.and_then(|s| s.node_name.clone()),
            has_network: !on_host && !is_terminal(pod),
            addresses,
            ports: spec.map(ports).unwrap_or_default(),
        }
    }

    /// The text that tells this Pod from all others, also those of its name before and after. A static Pod and its
    /// mirror are one Pod. The name is part of it, because whoever makes a Pod chooses its annotations.
    pub fn identity(&self) -> String {
        let annotations = self.metadata.annotations.as_ref();
        let hash = annotations.and_then(|a| a.get(MIRROR_ANNOTATION).or_else(|| a.get(HASH_ANNOTATION)));
        let run = hash.or(self.metadata.uid.as_ref()).map_or("", String::as_str);
        format!("{}/{run}", Key::of(self))
    }

    /// The facts that policies ask for. A Pod on the host's network has no address of its own, and one that ended has
    /// it no more.
    pub fn facts(&self, node: &str) -> Facts {
        Facts {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            labels: self.metadata.labels.clone().unwrap_or_default(),
            addresses: if self.has_network { self.addresses.clone() } else { Vec::new() },
            ports: self.ports.clone(),
            is_local: self.has_network && self.node_name.as_deref() == Some(node),
        }
    }
}

/// The named ports of containers that run side by side.
fn ports(spec: &core::PodSpec) -> Vec<NamedPort> {
    let beside = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let all = spec.containers.iter().chain(beside).flat_map(|c| c.ports.iter().flatten());
    let named = all.filter_map(|port| {
        Some(NamedPort {
            name: port.name.clone()?,
            protocol: Protocol::parse(port.protocol.as_deref())?,
            number: u16::try_from(port.container_port).ok()?,
        })
    });
    named.collect()
}

/// Without what nobody asks for.
fn little(meta: &ObjectMeta) -> ObjectMeta {
    let annotations = meta.annotations.iter().flatten();
    let kept = annotations.filter(|(key, _)| [MIRROR_ANNOTATION, HASH_ANNOTATION].contains(&key.as_str()));
    ObjectMeta {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        labels: meta.labels.clone(),
        annotations: Some(kept.map(|(key, value)| (key.clone(), value.clone())).collect()),
        ..ObjectMeta::default()
    }
}

/// The facts that policies ask for about a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    pub namespace: String,
    pub labels: Labels,
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<NamedPort>,
    /// On this node, with a network of its own: policies that select it are enforced here.
    pub is_local: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

impl Object for Pod {
    fn from_value(value: &Value) -> Result<Self, Error> {
        core::Pod::from_value(value).map(|pod| Pod::of(&pod))
    }

    fn from_json(text: &str) -> Result<Self, Error> {
        core::Pod::from_json(text).map(|pod| Pod::of(&pod))
    }

    /// Never written: this is not the whole object.
    fn to_value(&self) -> Value {
        Value::Null
    }
}

impl Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn pod(object: &Value) -> Pod {
        Pod::from_json(&object.to_string()).unwrap()
    }

    #[test]
    fn only_a_pod_that_runs_in_a_network_of_its_own_has_addresses() {
        let mut object = json!({
            "metadata": {"namespace": "d", "name": "p", "uid": "u", "labels": {"a": "b"}, "annotations": {"long": "text"}},
            "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": 80}, {"containerPort": 81}]}],
                "initContainers": [{"ports": [{"name": "no", "containerPort": 1}]},
                    {"restartPolicy": "Always", "ports": [{"name": "yes", "protocol": "UDP", "containerPort": 2}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        let facts = pod(&object).facts("n1");
        let ports: Vec<_> = facts.ports.iter().map(|p| (p.name.as_str(), p.protocol, p.number)).collect();
        assert_eq!(ports, [("http", Protocol::Tcp, 80), ("yes", Protocol::Udp, 2)]);
        assert_eq!(facts.addresses, ["10.0.0.1", "fd00::1"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert!(facts.is_local && !pod(&object).facts("n2").is_local);
        assert_eq!(pod(&object).metadata.annotations, Some(Labels::new()), "what nobody asks for is not kept");
        object["spec"]["hostNetwork"] = json!(true);
        assert_eq!((pod(&object).facts("n1").addresses, pod(&object).facts("n1").is_local), (Vec::new(), false));
        object["spec"]["hostNetwork"] = json!(false);
        object["status"]["phase"] = json!("Succeeded");
        assert!(pod(&object).facts("n1").addresses.is_empty());
    }

    #[test]
    fn a_static_pod_and_its_mirror_are_one() {
        let of = |name: &str, annotation: &str, uid: &str| {
            let metadata = json!({"namespace": "d", "name": name, "uid": uid, "annotations": {annotation: "hash"}});
            pod(&json!({ "metadata": metadata })).identity()
        };
        let mirror = "kubernetes.io/config.mirror";
        assert_eq!(of("p", mirror, "1"), of("p", "kubernetes.io/config.hash", "hash"));
        assert_ne!(of("p", mirror, "1"), of("q", mirror, "1"), "who copies an annotation stays another Pod");
        assert_eq!(of("p", "other", "1"), "d/p/1");
    }
}
