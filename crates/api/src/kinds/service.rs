//! Service: one address and name for a changing set of Pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Kind, Subresource, Target, age, col, label, name, wide};
use crate::meta::field_text;
use crate::names::{self, NameRule};
use crate::object_meta::{self, invalid_at};
use crate::table;

const PROXY: Subresource = Subresource {
    name: "proxy",
    object: ("", "v1", "ServiceProxyOptions"),
    verbs: &["create", "delete", "get", "patch", "update"],
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
    validate: Some(validate),
    validate_update: Some(validate_update),
    prepare_create: Some(prepare_create),
    prepare_update: Some(prepare_update),
    columns: &[
        name(),
        col("Type", "How the service is exposed.", |s, _| Value::from(kind(s))),
        col("Cluster-IP", "The address of the service inside the cluster.", |s, _| {
            table::text_or(spec(s).and_then(|s| s.cluster_ip.as_ref()), "<none>")
        }),
        col("External-IP", "Addresses outside the cluster that lead to the service.", |s, _| Value::from(external(s))),
        col("Port(s)", "The ports that the service has.", |s, _| Value::from(ports(s))),
        age(),
        wide("Selector", "The labels of the Pods that stand behind the service.", |s, _| {
            Value::from(table::labels(spec(s).and_then(|s| s.selector.as_ref())))
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
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") && spec.external_traffic_policy.is_none() {
        spec.external_traffic_policy = Some("Cluster".to_owned());
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") && spec.internal_traffic_policy.is_none() {
        spec.internal_traffic_policy = Some("Cluster".to_owned());
    }
    if kind == "LoadBalancer" {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
    }
}

fn prepare_create(object: &mut Value) {
    object["status"] = json!({"loadBalancer": {}});
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        list_cluster_ip(spec, None);
    }
}

/// `clusterIPs` begins with `clusterIP`: a client that knows only the single field speaks for both.
fn list_cluster_ip(spec: &mut Map<String, Value>, old: Option<&Value>) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let ip = text(spec.get("clusterIP"));
    if ip.is_empty() || ip == text(old.and_then(|o| o.get("clusterIP"))) {
        return;
    }
    let list = spec.get("clusterIPs").filter(|l| l.as_array().is_some_and(|l| !l.is_empty()));
    if list.is_none() || list == old.and_then(|o| o.get("clusterIPs")) {
        spec.insert("clusterIPs".to_owned(), json!([ip]));
    }
}

/// Addresses and node ports that a client left out of an update stay as they are.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    if target != Target::Object {
        return;
    }
    let kind = |o: &Value| field_text(o, &["spec", "type"]);
    let (new_kind, old_kind) = (kind(new), kind(old));
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if new_kind != "ExternalName" && old_kind != "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let absent = spec.get(field).is_none_or(|v| v.is_null() || v.as_str() == Some(""));
            if let (true, Some(value)) = (absent, old.get("spec").and_then(|s| s.get(field))) {
                spec.insert(field.to_owned(), value.clone());
            }
        }
    }
    list_cluster_ip(spec, old.get("spec"));
    if new_kind == "ExternalName" && old_kind != "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.remove(field);
        }
    }
    let has_node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if has_node_ports(&new_kind) && has_node_ports(&old_kind) {
        keep_node_ports(spec.get_mut("ports"), old.get("spec").and_then(|s| s.get("ports")));
    }
}

fn keep_node_ports(new: Option<&mut Value>, old: Option<&Value>) {
    let old: Vec<&Value> = old.and_then(Value::as_array).into_iter().flatten().collect();
    let ports = new.and_then(Value::as_array_mut);
    let mut list: Vec<&mut Value> = ports.into_iter().flatten().collect();
    let used: BTreeSet<i64> = list.iter().filter_map(|p| p["nodePort"].as_i64()).collect();
    for port in &mut list {
        if port["nodePort"].as_i64().unwrap_or(0) != 0 {
            continue;
        }
        let same = old.iter().find(|o| o["protocol"] == port["protocol"] && o["port"] == port["port"]);
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

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

fn validate(service: &Service) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(service) else {
        return vec![FieldError::required(&path, "")];
    };
    let mut errors = Errors::new();
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let list = spec.ports.as_deref().unwrap_or_default();
    if list.is_empty() && !headless && kind(service) != "ExternalName" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    match kind(service) {
        "LoadBalancer" | "NodePort" if headless => {
            let detail = format!("may not be set to 'None' for {} services", kind(service));
            errors.push(FieldError::invalid(&path.child("clusterIPs").index(0), "None", &detail));
        }
        "ExternalName" => {
            let external = spec.external_name.as_deref().unwrap_or_default();
            if external.is_empty() {
                errors.push(FieldError::required(&path.child("externalName"), ""));
            } else {
                let wrong = names::dns1123_subdomain(external.trim_end_matches('.'));
                errors.extend(invalid_at(&path, "externalName", external, wrong));
            }
            if spec.cluster_ip.as_deref().is_some_and(|ip| !ip.is_empty()) {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(&path.child("clusterIPs"), detail));
            }
        }
        kind if !TYPES.contains(&kind) => errors.push(FieldError::not_supported(&path.child("type"), kind, TYPES)),
        _ => {}
    }
    errors.extend(validate_ports(list, kind(service), &path.child("ports")));
    errors.extend(object_meta::labels(spec.selector.as_ref(), &path.child("selector")));
    let affinity = spec.session_affinity.as_deref().unwrap_or_default();
    match affinity {
        "" => errors.push(FieldError::required(&path.child("sessionAffinity"), "")),
        "ClientIP" | "None" => {}
        other => errors.push(FieldError::not_supported(&path.child("sessionAffinity"), other, &["ClientIP", "None"])),
    }
    errors.extend(validate_addresses(spec, &path));
    errors
}

fn validate_ports(list: &[ServicePort], kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen_names = BTreeSet::new();
    let mut seen_ports = BTreeSet::new();
    let mut seen_node_ports = BTreeSet::new();
    for (i, port) in list.iter().enumerate() {
        let path = path.index(i);
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let name = port.name.as_deref().unwrap_or_default();
        if name.is_empty() && list.len() > 1 {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !name.is_empty() {
            errors.extend(invalid_at(&path, "name", name, names::dns1123_label(name)));
            if !seen_names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        for wrong in names::port_number(port.port) {
            errors.push(FieldError::invalid(&path.child("port"), port.port, &wrong));
        }
        match protocol {
            "" => errors.push(FieldError::required(&path.child("protocol"), "")),
            "TCP" | "UDP" | "SCTP" => {}
            other => {
                errors.push(FieldError::not_supported(&path.child("protocol"), other, &["SCTP", "TCP", "UDP"]));
            }
        }
        match &port.target_port {
            Some(IntOrString::Int(number)) => {
                for wrong in names::port_number(*number) {
                    errors.push(FieldError::invalid(&path.child("targetPort"), number, &wrong));
                }
            }
            Some(IntOrString::String(name)) => {
                errors.extend(invalid_at(&path, "targetPort", name, names::port_name(name)));
            }
            None => {}
        }
        if !seen_ports.insert((protocol, port.port)) {
            let key = json!({"protocol": protocol, "port": port.port});
            errors.push(FieldError::duplicate(&path, key));
        }
        let node_port = port.node_port.unwrap_or(0);
        if node_port != 0 {
            if kind == "ClusterIP" {
                let detail = "may not be used when `type` is 'ClusterIP'";
                errors.push(FieldError::forbidden(&path.child("nodePort"), detail));
            } else if !seen_node_ports.insert((protocol, node_port)) {
                errors.push(FieldError::duplicate(&path.child("nodePort"), node_port));
            }
        }
    }
    errors
}

fn validate_addresses(spec: &ServiceSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let bad = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
    for (i, ip) in spec.cluster_ips.iter().flatten().enumerate() {
        if ip != "None" && ip.parse::<IpAddr>().is_err() {
            errors.push(FieldError::invalid(&path.child("clusterIPs").index(i), ip, bad));
        }
    }
    let first = spec.cluster_ips.as_ref().and_then(|l| l.first());
    match (spec.cluster_ip.as_ref().filter(|ip| !ip.is_empty()), first) {
        (Some(ip), None) if ip != "None" && ip.parse::<IpAddr>().is_err() => {
            errors.push(FieldError::invalid(&path.child("clusterIPs").index(0), ip, bad));
        }
        (Some(ip), Some(first)) if ip != first => {
            let detail = "first value must match `clusterIP`";
            errors.push(FieldError::invalid(&path.child("clusterIPs"), &spec.cluster_ips, detail));
        }
        _ => {}
    }
    for (i, ip) in spec.external_ips.iter().flatten().enumerate() {
        let path = path.child("externalIPs").index(i);
        match ip.parse::<IpAddr>() {
            Err(_) => errors.push(FieldError::invalid(&path, ip, bad)),
            Ok(ip) if ip.is_unspecified() => {
                errors.push(FieldError::invalid(&path, ip, "may not be unspecified (0.0.0.0 or ::)"));
            }
            Ok(ip) if ip.is_loopback() => {
                errors.push(FieldError::invalid(&path, ip, "may not be in the loopback range (127.0.0.0/8, ::1/128)"));
            }
            Ok(_) => {}
        }
    }
    for (field, value) in [
        ("externalTrafficPolicy", &spec.external_traffic_policy),
        ("internalTrafficPolicy", &spec.internal_traffic_policy),
    ] {
        if let Some(value) = value.as_deref().filter(|v| !matches!(*v, "Cluster" | "Local")) {
            errors.push(FieldError::not_supported(&path.child(field), value, &["Cluster", "Local"]));
        }
    }
    errors
}

/// A cluster IP is for life, unless the service stops or starts being an alias.
fn validate_update(new: &Service, old: &Service, target: Target) -> Errors {
    let alias = |s: &Service| kind(s) == "ExternalName";
    if target == Target::Status || alias(new) || alias(old) {
        return Errors::new();
    }
    let ip = |s: &Service| spec(s).and_then(|s| s.cluster_ip.clone()).unwrap_or_default();
    let (given, held) = (ip(new), ip(old));
    if held.is_empty() || given == held {
        return Errors::new();
    }
    let path = Path::new("spec").child("clusterIPs").index(0);
    let given = spec(new).and_then(|s| s.cluster_ips.clone()).unwrap_or_else(|| vec![given]);
    vec![FieldError::invalid(&path, given, "may not change once set")]
}
