//! Service: one address and name for a changing set of Pods.

mod addresses;
pub(crate) mod validate;

use std::collections::{BTreeSet, HashMap};

use json::{Map, Value, json};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

use crate::kind::cell;
use crate::kind::{Kind, Subresource, Target, Way, age, col, label, name, wide};
use crate::meta::field_text;
use crate::validation::field::{Errors, Path};
use crate::validation::names::NameRule;

const PROXY: Subresource = Subresource {
    name: "proxy",
    object: ("", "v1", "ServiceProxyOptions"),
    verbs: &["create", "delete", "get", "patch", "update"],
    way: Way::Proxy,
};

pub const SERVICE: Kind<Service> = Kind {
    create_on_update: true,
    short: &["svc"],
    categories: &["all"],
    status: true,
    subresources: &[PROXY],
    storage_prefix: Some("services/specs"),
    name: NameRule::Label1035,
    default: Some(default),
    validate: Some(validate::validate),
    validate_update: Some(validate::validate_update),
    validate_status: Some(|new, _| validate::status(new)),
    prepare_create: Some(prepare_create),
    prepare_update: Some(prepare_update),
    warnings: Some(validate::warnings),
    columns: &[
        name(),
        col("Type", "How the service is exposed.", |s, _| Value::from(kind(s))),
        col("Cluster-IP", "The address of the service inside the cluster.", |s, _| {
            cell::text_or(spec(s).and_then(|s| s.cluster_ip.as_ref()), "<none>")
        }),
        col("External-IP", "Addresses outside the cluster that lead to the service.", |s, _| Value::from(external(s))),
        col("Port(s)", "The ports that the service has.", |s, _| Value::from(ports(s))),
        age(),
        wide("Selector", "The labels of the Pods that stand behind the service.", |s, _| {
            Value::from(cell::labels(spec(s).and_then(|s| s.selector.as_ref())))
        }),
    ],
    field_labels: &[
        label("spec.clusterIP", |o| field_text(o, &["spec", "clusterIP"])),
        label("spec.type", |o| field_text(o, &["spec", "type"])),
    ],
    ..Kind::BASE
};

fn spec(service: &Service) -> Option<&ServiceSpec> {
    service.spec.as_ref()
}

fn kind(service: &Service) -> &str {
    spec(service).and_then(|s| s.type_.as_deref()).unwrap_or_default()
}

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ips.as_deref().is_some_and(|ips| ips == ["None"])
}

/// Whether traffic from outside the cluster may come in, for which there is a policy then.
fn reached_from_outside(spec: &ServiceSpec) -> bool {
    match spec.type_.as_deref().unwrap_or_default() {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()),
        _ => false,
    }
}

fn default(service: &mut Service) {
    let spec = service.spec.get_or_insert_default();
    if spec.session_affinity.as_deref().unwrap_or_default().is_empty() {
        spec.session_affinity = Some("None".to_owned());
    }
    match spec.session_affinity.as_deref() {
        Some("None") => spec.session_affinity_config = None,
        Some("ClientIP") => {
            let client = spec.session_affinity_config.get_or_insert_default().client_ip.get_or_insert_default();
            client.timeout_seconds.get_or_insert(10_800);
        }
        _ => {}
    }
    if spec.type_.as_deref().unwrap_or_default().is_empty() {
        spec.type_ = Some("ClusterIP".to_owned());
    }
    for port in spec.ports.iter_mut().flatten() {
        if port.protocol.as_deref().unwrap_or_default().is_empty() {
            port.protocol = Some("TCP".to_owned());
        }
        let unset = match &port.target_port {
            None | Some(IntOrString::Int(0)) => true,
            Some(IntOrString::String(name)) => name.is_empty(),
            Some(IntOrString::Int(_)) => false,
        };
        if unset {
            port.target_port = Some(IntOrString::Int(port.port));
        }
    }
    let kind = spec.type_.clone().unwrap_or_default();
    if reached_from_outside(spec) && spec.external_traffic_policy.as_deref().unwrap_or_default().is_empty() {
        spec.external_traffic_policy = Some("Cluster".to_owned());
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") && spec.internal_traffic_policy.is_none() {
        spec.internal_traffic_policy = Some("Cluster".to_owned());
    }
    if kind == "LoadBalancer" {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
        let balancer = service.status.as_mut().and_then(|status| status.load_balancer.as_mut());
        let list = balancer.and_then(|balancer| balancer.ingress.as_mut()).into_iter().flatten();
        for ingress in list.filter(|ingress| ingress.ip.as_deref().is_some_and(|ip| !ip.is_empty())) {
            ingress.ip_mode.get_or_insert_with(|| "VIP".to_owned());
        }
    }
}

fn prepare_create(object: &mut Value) {
    object["status"] = json!({"loadBalancer": {}});
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        list_cluster_ip(spec, None);
        drop_of_alias(spec);
    }
}

/// An alias has no traffic of its own. Upstream stores a policy for it all the same, and shows it to nobody.
fn drop_of_alias(spec: &mut Map) {
    let text = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or_default();
    // Another policy is refused.
    if text("type") == "ExternalName" && matches!(text("internalTrafficPolicy"), "Cluster" | "Local") {
        spec.remove("internalTrafficPolicy");
    }
}

/// `clusterIPs` begins with `clusterIP`: a client that knows only the single field speaks for both.
fn list_cluster_ip(spec: &mut Map, old: Option<&Value>) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let ip = text(spec.get("clusterIP"));
    if ip.is_empty() || ip == text(old.and_then(|o| o.get("clusterIP"))) {
        return;
    }
    let list = spec.get("clusterIPs").filter(|l| l.as_array().is_some_and(|l| !l.is_empty()));
    if list.is_none() || list == old.and_then(|o| o.get("clusterIPs")) {
        spec.insert("clusterIPs", json!([ip]));
    }
}

/// The faults of the fields that say which addresses a service has. They are asked about before it is given addresses, which
/// changes these fields, and again with all else.
pub fn address_errors(service: &Value) -> Errors {
    // A service that has no such form is refused with all else.
    let Ok(service) = Service::deserialize(service) else { return Errors::new() };
    spec(&service).map(|spec| addresses::validate(spec, kind(&service), &Path::new("spec"))).unwrap_or_default()
}

/// Addresses and node ports that a client left out of an update stay as they are. The families are settled anew, from the addresses
/// and the policy, by whoever gives addresses.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    if target != Target::Object {
        return;
    }
    let kind = |o: &Value| field_text(o, &["spec", "type"]);
    let (new_kind, old_kind) = (kind(new), kind(old));
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if new_kind != "ExternalName" && old_kind != "ExternalName" {
        for field in ["clusterIP", "clusterIPs"] {
            let none = |v: &Value| v.is_null() || v.as_str() == Some("") || v.as_array().is_some_and(Vec::is_empty);
            let absent = spec.get(field).is_none_or(none);
            if let (true, Some(value)) = (absent, old.get("spec").and_then(|s| s.get(field))) {
                spec.insert(field.to_owned(), value.clone());
            }
        }
    }
    list_cluster_ip(spec, old.get("spec"));
    if let Some(old) = old.get("spec").and_then(Value::as_object) {
        drop_of_old_type(spec, old);
    }
    drop_of_alias(spec);
    let has_node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if has_node_ports(&new_kind) && has_node_ports(&old_kind) {
        keep_node_ports(spec.get_mut("ports"), old.get("spec").and_then(|s| s.get("ports")));
    }
}

/// A field of a service of one type goes when the service becomes one of another type, unless the client set it anew.
fn drop_of_old_type(new: &mut Map, old: &Map) {
    let kind = |s: &Map| s.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (now, before) = (kind(new), kind(old));
    let balanced = |kind: &str| kind == "LoadBalancer";
    let outside = |s: &Map, kind: &str| {
        matches!(kind, "LoadBalancer" | "NodePort")
            || kind == "ClusterIP" && s.get("externalIPs").and_then(Value::as_array).is_some_and(|l| !l.is_empty())
    };
    let has_ports = |s: &Map, kind: &str| {
        kind == "NodePort" || balanced(kind) && s.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false))
    };
    let checked =
        |s: &Map, kind: &str| balanced(kind) && s.get("externalTrafficPolicy").and_then(Value::as_str) == Some("Local");
    let alias = |kind: &str| kind == "ExternalName";
    let mut gone: Vec<&str> = Vec::new();
    if alias(&now) && !alias(&before) {
        gone.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
    }
    if checked(old, &before) && !checked(new, &now) {
        gone.push("healthCheckNodePort");
    }
    if balanced(&before) && !balanced(&now) {
        gone.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if outside(old, &before) && !outside(new, &now) {
        gone.push("externalTrafficPolicy");
    }
    if has_ports(old, &before) && !has_ports(new, &now) {
        let numbers = |s: &Map| -> BTreeSet<i64> {
            let ports = s.get("ports").and_then(Value::as_array).into_iter().flatten();
            ports.filter_map(|p| p["nodePort"].as_i64()).filter(|n| *n != 0).collect()
        };
        if numbers(new) == numbers(old) {
            let ports = new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
            ports.filter_map(Value::as_object_mut).for_each(|port| drop(port.remove("nodePort")));
        }
    }
    for field in gone {
        if new.get(field) == old.get(field) {
            new.remove(field);
        }
    }
}

fn keep_node_ports(new: Option<&mut Value>, old: Option<&Value>) {
    let numbers = |port: &Value| (port["protocol"].clone(), port["port"].clone());
    // The first of each protocol and number.
    let old: HashMap<_, _> =
        old.and_then(Value::as_array).into_iter().flatten().rev().map(|port| (numbers(port), port)).collect();
    let ports = new.and_then(Value::as_array_mut);
    let mut list: Vec<&mut Value> = ports.into_iter().flatten().collect();
    let used: BTreeSet<i64> = list.iter().filter_map(|p| p["nodePort"].as_i64()).collect();
    for port in &mut list {
        if port["nodePort"].as_i64().unwrap_or(0) != 0 {
            continue;
        }
        let same = old.get(&numbers(port));
        if let Some(number) = same.and_then(|o| o["nodePort"].as_i64()).filter(|n| *n != 0 && !used.contains(n)) {
            port["nodePort"] = Value::from(number);
        }
    }
}

fn external(service: &Service) -> String {
    let Some(spec) = spec(service) else { return "<none>".to_owned() };
    let mut list: Vec<String> = Vec::new();
    match kind(service) {
        "ExternalName" => return spec.external_name.clone().unwrap_or_default(),
        "LoadBalancer" => {
            let balancer = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
            for ingress in balancer.iter().flat_map(|b| b.ingress.iter().flatten()) {
                list.extend(ingress.ip.clone().filter(|i| !i.is_empty()).or(ingress.hostname.clone()));
            }
            list.extend(spec.external_ips.iter().flatten().cloned());
            if list.is_empty() {
                return "<pending>".to_owned();
            }
        }
        _ => list.extend(spec.external_ips.iter().flatten().cloned()),
    }
    if list.is_empty() { "<none>".to_owned() } else { list.join(",") }
}

fn ports(service: &Service) -> String {
    let list = spec(service).and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let one = |p: &ServicePort| {
        let protocol = p.protocol.as_deref().unwrap_or_default();
        match p.node_port.filter(|n| *n > 0) {
            Some(node) => format!("{}:{node}/{protocol}", p.port),
            None => format!("{}/{protocol}", p.port),
        }
    };
    if list.is_empty() { "<none>".to_owned() } else { list.iter().map(one).collect::<Vec<_>>().join(",") }
}

#[cfg(test)]
mod tests {
    use super::validate::{validate, validate_update};
    use super::*;

    #[test]
    fn balancers_answer_at_addresses_of_their_own() {
        let check = |kind: &str, ingress: Value, mode: Option<&str>| {
            let status = json!({"loadBalancer": {"ingress": [ingress]}});
            let mut service: Service = json::from_value(json!({"spec": {"type": kind}, "status": status})).unwrap();
            default(&mut service);
            let ingress = service.status.unwrap().load_balancer.unwrap().ingress.unwrap();
            assert_eq!(ingress[0].ip_mode.as_deref(), mode, "{kind}");
        };
        check("LoadBalancer", json!({"ip": "1.1.1.1"}), Some("VIP"));
        check("LoadBalancer", json!({"ip": "1.1.1.1", "ipMode": "Proxy"}), Some("Proxy"));
        check("LoadBalancer", json!({"hostname": "a.b"}), None);
        check("ClusterIP", json!({"ip": "1.1.1.1"}), None);
    }

    #[test]
    fn an_alias_has_no_traffic_of_its_own() {
        let check = |kind: &str, policy: &str, kept: bool| {
            let mut new = json!({"spec": {"type": kind, "externalName": "a.b", "internalTrafficPolicy": policy}});
            prepare_create(&mut new);
            assert_eq!(new["spec"].get("internalTrafficPolicy").is_some(), kept, "{kind} {policy}");
        };
        check("ExternalName", "Cluster", false);
        check("ExternalName", "Local", false);
        check("ExternalName", "Nowhere", true);
        check("ClusterIP", "Local", true);
    }

    #[test]
    fn another_type_sheds_what_belonged_to_the_old_one() {
        let balancer = json!({"spec": {"type": "LoadBalancer", "clusterIP": "1.1.1.1", "clusterIPs": ["1.1.1.1"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 30001, "allocateLoadBalancerNodePorts": true,
            "sessionAffinity": "None", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30000}]}});
        let change = |patch: Value| {
            let mut new = balancer.clone();
            let spec = new["spec"].as_object_mut().unwrap();
            spec.extend(patch.as_object().unwrap().clone());
            prepare_update(&mut new, &balancer, Target::Object);
            let service: Service = json::from_value(new.clone()).unwrap();
            let mut errors = validate(&service);
            errors.extend(validate_update(&service, &json::from_value(balancer.clone()).unwrap(), Target::Object));
            (new["spec"].clone(), errors.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (spec, errors) = change(json!({"type": "ClusterIP"}));
        assert_eq!(errors, [""; 0]);
        assert_eq!((&spec["ports"][0].get("nodePort"), &spec["clusterIP"]), (&None, &json!("1.1.1.1")));
        for field in ["externalTrafficPolicy", "healthCheckNodePort", "allocateLoadBalancerNodePorts"] {
            assert_eq!(spec.get(field), None, "{field}");
        }
        let (spec, errors) = change(json!({"type": "ExternalName", "externalName": "a.b"}));
        assert_eq!((errors, spec.get("clusterIPs"), spec.get("internalTrafficPolicy")), (Vec::new(), None, None));
        let (spec, errors) = change(json!({"type": "NodePort"}));
        assert_eq!((errors, &spec["ports"][0]["nodePort"]), (Vec::new(), &json!(30000)));
        assert_eq!(spec["externalTrafficPolicy"], "Local");
        let (_, errors) =
            change(json!({"type": "ExternalName", "externalName": "a.b", "clusterIP": "None", "clusterIPs": ["None"]}));
        assert_eq!(errors, ["spec.clusterIPs: Forbidden: may not be set for ExternalName services"]);
    }
}
