//! Namespaces, the `kubernetes` Service, priority classes, and what extension servers read about authentication.

use api::{
    kind::{
        KindTable,
        group::{GROUPS, Group},
    },
    kinds::metrics,
};
use ipnet::IpNet;
use json::{Map, Value, json};

use super::{
    authorities,
    cluster::{Cluster, family, first_address},
    endpoints,
    object::{AUTOMANAGED, BootstrapObject},
};
use crate::auth::authn::front_proxy::Headers;

pub fn objects(cluster: &Cluster, served: &KindTable) -> Vec<BootstrapObject> {
    let mut all = namespaces();
    all.extend(priority_classes());
    all.extend(service(cluster));
    all.push(authentication(cluster));
    all.push(token_tracking(&cluster.now));
    all.push(service_range(&cluster.service_ranges, &cluster.now));
    all.extend(api_services(served));
    all
}

/// The group versions that Kubernetes itself serves. One that somebody changed is as it was again after a start, unless the label
/// was taken off. That of metrics is missing, as upstream where no metrics server is installed: whoever installs one finds its
/// name free. That of the APIServices themselves is missing too: no other server can ever serve it.
fn api_services(served: &KindTable) -> impl Iterator<Item = BootstrapObject> {
    let one = |group: &Group, (version, priority): (&str, i32)| {
        let object = json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {
                "name": format!("{version}.{}", group.name),
                "labels": {AUTOMANAGED: "onstart"},
            },
            "spec": {
                "group": group.name, "version": version,
                "groupPriorityMinimum": group.priority, "versionPriority": priority,
            },
        });
        BootstrapObject::new("apiregistration.k8s.io", "apiservices", object).owning(&["/spec"])
    };
    let named = |group: &&Group| group.name != metrics::GROUP && group.name != "apiregistration.k8s.io";
    let own = GROUPS.iter().filter(named);
    let versions = own.flat_map(|group| group.versions.iter().map(move |version| (group, *version)));
    versions.filter(|(group, version)| served.serves(group.name, version.0)).map(move |(group, v)| one(group, v))
}

pub fn namespaces() -> Vec<BootstrapObject> {
    let namespace = |name: &&str| {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        });
        BootstrapObject::new("", "namespaces", object)
    };
    ["default", "kube-system", "kube-public", "kube-node-lease"].iter().map(namespace).collect()
}

fn priority_classes() -> Vec<BootstrapObject> {
    let class = |name: &str, value: i64, description: &str| {
        let object = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        });
        BootstrapObject::new("scheduling.k8s.io", "priorityclasses", object)
    };
    let cluster = "Used for system critical pods that must run in the cluster, but can be moved to another node if \
                   necessary.";
    let node = "Used for system critical pods that must not be moved from their current node.";
    vec![class("system-cluster-critical", 2_000_000_000, cluster), class("system-node-critical", 2_000_001_000, node)]
}

pub const TOKEN_TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
pub const AUTHENTICATION: &str = "extension-apiserver-authentication";

/// Whether a text is a day as the note about tokens has it.
pub fn is_day(text: &str) -> bool {
    text.len() == "2006-01-02".len() && format!("{text}T00:00:00Z").parse::<clock::Timestamp>().is_ok()
}

/// Since which day the uses of tokens in Secrets are noted: the controller that ends unused ones reads it.
pub fn token_tracking(now: &str) -> BootstrapObject {
    let day = now.split('T').next().unwrap_or_default();
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": TOKEN_TRACKING, "namespace": "kube-system"},
        "data": {"since": day},
    });
    BootstrapObject::new("", "configmaps", object)
}

/// The Service itself, its Endpoints and its EndpointSlice. The server is the only endpoint it knows.
pub fn service(cluster: &Cluster) -> Vec<BootstrapObject> {
    let Some(address) = cluster.service_ranges.first().map(first_address) else { return Vec::new() };
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": address, "clusterIPs": [address],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": [family(&address)], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": cluster.secure_port}],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    });
    let endpoints = endpoints::endpoints(&[cluster.advertise_address.to_string()], cluster.secure_port);
    let slice = endpoints::slice(&endpoints);
    vec![
        BootstrapObject::new("", "services", service).owning(&["/spec/ports"]),
        BootstrapObject::new("", "endpoints", endpoints).owning(&["/subsets"]),
        BootstrapObject::new("discovery.k8s.io", "endpointslices", slice).owning(&["/endpoints", "/ports"]),
    ]
}

/// How extension servers check clients and the front proxy.
pub fn authentication(cluster: &Cluster) -> BootstrapObject {
    let mut data = Map::from_iter([("client-ca-file".to_owned(), json!(cluster.client_authority))]);
    if let Some(authority) = &cluster.front_proxy_authority {
        let list = |names: &[String]| json!(json!(names).to_string());
        let Headers { user, uid, groups, extra_prefixes } = &cluster.front_proxy_headers;
        data.insert("requestheader-client-ca-file", json!(authority));
        data.insert("requestheader-allowed-names", list(&cluster.front_proxy_names));
        data.insert("requestheader-username-headers", list(user));
        data.insert("requestheader-uid-headers", list(uid));
        data.insert("requestheader-group-headers", list(groups));
        data.insert("requestheader-extra-headers-prefix", list(extra_prefixes));
    }
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": AUTHENTICATION, "namespace": "kube-system"},
        "data": authorities::joined(&Value::Null, &Value::Null, &Value::Object(data)),
    });
    BootstrapObject { joins: Some(Value::Null), ..BootstrapObject::new("", "configmaps", object).owning(&["/data"]) }
}

/// The ServiceCIDR of the server's flag.
pub fn service_range(ranges: &[IpNet], now: &str) -> BootstrapObject {
    let ranges: Vec<String> = ranges.iter().map(|range| range.trunc().to_string()).collect();
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "",
        "message": "Kubernetes Service CIDR is ready",
        "lastTransitionTime": now,
    });
    let object: Value = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ranges},
        "status": {"conditions": [ready]},
    });
    BootstrapObject::new("networking.k8s.io", "servicecidrs", object)
}

#[cfg(test)]
impl Cluster {
    pub fn example() -> Self {
        Cluster {
            service_ranges: vec!["10.96.0.0/16".parse().unwrap()],
            advertise_address: "192.168.0.1".parse().unwrap(),
            secure_port: 6443,
            client_authority: pki::Authority::create("clients").unwrap().certificate().to_owned(),
            front_proxy_authority: Some(pki::Authority::create("proxies").unwrap().certificate().to_owned()),
            front_proxy_names: vec!["front-proxy-client".into()],
            front_proxy_headers: Headers::default(),
            now: "2026-01-01T00:00:00Z".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_first_address() {
        let first = |range: &str| first_address(&range.parse().unwrap()).to_string();
        assert_eq!(first("10.96.0.0/16"), "10.96.0.1");
        assert_eq!(first("fd00::/112"), "fd00::1");
        let all = objects(&Cluster::example(), api::kinds::built_in());
        let service = all.iter().find(|w| w.plural == "services").unwrap();
        assert_eq!(service.object["spec"]["clusterIP"], "10.96.0.1");
        let map = all.iter().find(|w| w.plural == "configmaps").unwrap();
        assert_eq!(map.object["data"]["requestheader-allowed-names"], "[\"front-proxy-client\"]");
        let days = ["2026-01-31", "2026-13-01", "2026-1-1", "", "today", "2026-01-31 ", "2026-02-30"];
        assert_eq!(days.map(is_day), [true, false, false, false, false, false, false]);
        let headers = Headers { user: vec!["X-A".into(), "X-B".into()], uid: Vec::new(), ..Headers::default() };
        let told = authentication(&Cluster { front_proxy_headers: headers, ..Cluster::example() }).object;
        assert_eq!(told["data"]["requestheader-username-headers"], "[\"X-A\",\"X-B\"]");
        assert_eq!(told["data"]["requestheader-uid-headers"], "[]");
        assert_eq!(told["data"]["requestheader-extra-headers-prefix"], "[\"X-Remote-Extra-\"]");
    }
}
