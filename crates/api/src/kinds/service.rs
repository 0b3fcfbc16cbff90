//! Service: one address and name for a changing set of Pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use crate::field::{Errors, FieldError, Path};
use crate::internal_form;
use crate::kind::{Kind, Subresource, Target, age, col, label, name, wide};
use crate::kinds::endpoints::address_errors;
use crate::kinds::pod::container::one_of;
use crate::kinds::pod::probe;
use crate::meta::field_text;
use crate::names::{self, NameRule};
use crate::object_meta::{self, BAD_IP, invalid_at};
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
    if let Some(old) = old.get("spec").and_then(Value::as_object) {
        drop_of_old_type(spec, old);
    }
    let has_node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if has_node_ports(&new_kind) && has_node_ports(&old_kind) {
        keep_node_ports(spec.get_mut("ports"), old.get("spec").and_then(|s| s.get("ports")));
    }
}

/// A field of a service of one type goes when the service becomes one of another type, unless the client set it anew.
fn drop_of_old_type(new: &mut Map<String, Value>, old: &Map<String, Value>) {
    let kind = |s: &Map<String, Value>| s.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (now, before) = (kind(new), kind(old));
    let balanced = |kind: &str| kind == "LoadBalancer";
    let outside = |s: &Map<String, Value>, kind: &str| {
        matches!(kind, "LoadBalancer" | "NodePort")
            || kind == "ClusterIP" && s.get("externalIPs").and_then(Value::as_array).is_some_and(|l| !l.is_empty())
    };
    let has_ports = |s: &Map<String, Value>, kind: &str| {
        kind == "NodePort" || balanced(kind) && s.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false))
    };
    let checked = |s: &Map<String, Value>, kind: &str| {
        balanced(kind) && s.get("externalTrafficPolicy").and_then(Value::as_str) == Some("Local")
    };
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
        let numbers = |s: &Map<String, Value>| -> BTreeSet<i64> {
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
    let none = ServiceSpec::default();
    let spec = spec(service).unwrap_or(&none);
    let list = spec.ports.as_deref().unwrap_or_default();
    let mut errors = Errors::new();
    if list.is_empty() && !is_headless(spec) && kind(service) != "ExternalName" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    errors.extend(for_type(spec, kind(service), &path));
    errors.extend(validate_ports(list, &path.child("ports")));
    errors.extend(object_meta::labels(spec.selector.as_ref(), &path.child("selector")));
    errors.extend(affinity(spec, &path));
    errors.extend(cluster_ips(spec, kind(service), &path));
    for (i, ip) in spec.external_ips.iter().flatten().enumerate() {
        errors.extend(address_errors(ip, &path.child("externalIPs").index(i)));
    }
    match kind(service) {
        "" => errors.push(FieldError::required(&path.child("type"), "")),
        kind if !TYPES.contains(&kind) => errors.push(FieldError::not_supported(&path.child("type"), kind, TYPES)),
        _ => {}
    }
    errors.extend(taken_twice(list, kind(service), &path.child("ports")));
    errors.extend(load_balancer(spec, kind(service), &path));
    errors.extend(traffic(spec, kind(service), &path));
    errors
}

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ips.as_deref().is_some_and(|ips| ips == ["None"])
}

/// The port at which kubelets listen, which no load balancer may open.
const KUBELET_PORT: i32 = 10_250;

fn for_type(spec: &ServiceSpec, kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if kind == "LoadBalancer" {
        let ports = spec.ports.iter().flatten().enumerate();
        for (i, port) in ports.filter(|(_, p)| p.port == KUBELET_PORT) {
            let detail = format!("may not expose port {KUBELET_PORT} externally since it is used by kubelet");
            errors.push(FieldError::invalid(&path.child("ports").index(i), port.port, &detail));
        }
    }
    if matches!(kind, "LoadBalancer" | "NodePort") && is_headless(spec) {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.push(FieldError::invalid(&path.child("clusterIPs").index(0), "None", &detail));
    }
    if kind == "ExternalName" {
        for (field, given) in [
            ("clusterIPs", spec.cluster_ips.as_ref().is_some_and(|l| !l.is_empty())),
            ("ipFamilies", spec.ip_families.as_ref().is_some_and(|l| !l.is_empty())),
            ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
        ] {
            if given {
                errors.push(FieldError::forbidden(&path.child(field), "may not be set for ExternalName services"));
            }
        }
        let external = spec.external_name.as_deref().unwrap_or_default();
        match external.strip_suffix('.').unwrap_or(external) {
            "" => errors.push(FieldError::required(&path.child("externalName"), "")),
            name => errors.extend(invalid_at(path, "externalName", name, names::dns1123_subdomain(name))),
        }
    }
    errors
}

fn validate_ports(list: &[ServicePort], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, port) in list.iter().enumerate() {
        let path = path.index(i);
        let name = port.name.as_deref().unwrap_or_default();
        if name.is_empty() && list.len() > 1 {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !name.is_empty() {
            errors.extend(invalid_at(&path, "name", name, names::dns1123_label(name)));
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        for wrong in names::port_number(port.port) {
            errors.push(FieldError::invalid(&path.child("port"), port.port, &wrong));
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        errors.extend(one_of(protocol, &["SCTP", "TCP", "UDP"], &path, "protocol"));
        errors.extend(port.target_port.iter().flat_map(|target| probe::port(target, &path.child("targetPort"))));
        if let Some(protocol) = &port.app_protocol {
            errors.extend(invalid_at(&path, "appProtocol", protocol, names::qualified_name(protocol)));
        }
    }
    errors
}

/// Ports and node ports that two entries want.
fn taken_twice(list: &[ServicePort], kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let node_port = |p: &ServicePort| p.node_port.unwrap_or(0);
    if kind == "ClusterIP" {
        for (i, _) in list.iter().enumerate().filter(|(_, p)| node_port(p) != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&path.index(i).child("nodePort"), detail));
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in list.iter().enumerate().filter(|(_, p)| node_port(p) != 0) {
        if !seen.insert((&port.protocol, node_port(port))) {
            errors.push(FieldError::duplicate(&path.index(i).child("nodePort"), node_port(port)));
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in list.iter().enumerate() {
        if !seen.insert((&port.protocol, port.port)) {
            let key = json!({"protocol": port.protocol, "port": port.port});
            errors.push(FieldError::duplicate_shown(&path.index(i), &internal_form::compact("ServicePort", key)));
        }
    }
    errors
}

/// The longest session affinity: a day.
const AFFINITY_MAX: i32 = 86_400;

fn affinity(spec: &ServiceSpec, path: &Path) -> Errors {
    let kind = spec.session_affinity.as_deref().unwrap_or_default();
    let mut errors: Errors = one_of(kind, &["ClientIP", "None"], path, "sessionAffinity").into_iter().collect();
    let place = path.child("sessionAffinityConfig");
    let needed = "when session affinity type is ClientIP";
    match (kind, &spec.session_affinity_config) {
        ("ClientIP", None) => errors.push(FieldError::required(&place, needed)),
        ("ClientIP", Some(config)) => match config.client_ip.as_ref().map(|c| c.timeout_seconds) {
            None => errors.push(FieldError::required(&place.child("clientIP"), needed)),
            Some(None) => {
                errors.push(FieldError::required(&place.child("clientIP").child("timeoutSeconds"), needed));
            }
            Some(Some(seconds)) if !(1..=AFFINITY_MAX).contains(&seconds) => {
                let detail = format!("must be greater than 0 and less than {AFFINITY_MAX}");
                let place = place.child("clientIP").child("timeoutSeconds");
                errors.push(FieldError::invalid(&place, seconds, &detail));
            }
            Some(Some(_)) => {}
        },
        ("None", Some(_)) => {
            errors.push(FieldError::forbidden(&place, "must not be set when session affinity is None"));
        }
        _ => {}
    }
    errors
}

fn cluster_ips(spec: &ServiceSpec, kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if kind == "ExternalName" {
        return errors;
    }
    let place = path.child("clusterIPs");
    let all = spec.cluster_ips.as_deref().unwrap_or_default();
    match (spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty()), all.first()) {
        (Some(_), None) => errors.push(FieldError::required(&place, "")),
        (Some(ip), Some(first)) if ip != first => {
            errors.push(FieldError::invalid(&place, all, "first value must match `clusterIP`"));
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(&place, all, "must be empty when `clusterIP` is not specified"));
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (i, family) in spec.ip_families.iter().flatten().enumerate() {
        let path = path.child("ipFamilies").index(i);
        if !matches!(family.as_str(), "IPv4" | "IPv6") {
            errors.push(FieldError::not_supported(&path, family, &["IPv4", "IPv6"]));
        }
        if !seen.insert(family) {
            errors.push(FieldError::duplicate(&path, family));
        }
    }
    let policies = &["PreferDualStack", "RequireDualStack", "SingleStack"];
    if let Some(policy) = spec.ip_family_policy.as_deref().filter(|p| !policies.contains(p)) {
        errors.push(FieldError::not_supported(&path.child("ipFamilyPolicy"), policy, policies));
    }
    let valid = errors.len();
    for (i, ip) in all.iter().enumerate() {
        if i == 0 && ip == "None" {
            if all.len() > 1 {
                errors.push(FieldError::invalid(&place, all, "'None' must be the first and only value"));
            }
        } else if ip.parse::<IpAddr>().is_err() {
            errors.push(FieldError::invalid(&place.index(i), ip, BAD_IP));
        }
    }
    let parsed: Vec<IpAddr> = all.iter().filter_map(|ip| ip.parse().ok()).collect();
    if all.len() > 2 {
        errors.push(FieldError::invalid(&place, all, "may only hold up to 2 values"));
    }
    if errors.len() > valid {
        return errors;
    }
    if let [first, second] = parsed.as_slice()
        && first.is_ipv4() == second.is_ipv4()
    {
        errors.push(FieldError::invalid(&place, all, "may specify no more than one IP for each IP family"));
    }
    for (i, (ip, family)) in parsed.iter().zip(spec.ip_families.iter().flatten()).enumerate() {
        if (family == "IPv4" && ip.is_ipv6()) || (family == "IPv6" && ip.is_ipv4()) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            errors.push(FieldError::invalid(&place.index(i), &all[i], &detail));
        }
    }
    errors
}

fn load_balancer(spec: &ServiceSpec, kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let only = "may only be used when `type` is 'LoadBalancer'";
    let is_one = kind == "LoadBalancer";
    let ranges = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    let place = path.child("LoadBalancerSourceRanges");
    if !ranges.is_empty() && !is_one {
        errors.push(FieldError::forbidden(&place, only));
    }
    for (i, range) in ranges.iter().map(|r| r.trim()).enumerate() {
        if range.parse::<ipnet::IpNet>().is_err() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.push(FieldError::invalid(&place.index(i), range, detail));
        }
    }
    if spec.allocate_load_balancer_node_ports.is_some() && !is_one {
        errors.push(FieldError::forbidden(&path.child("allocateLoadBalancerNodePorts"), only));
    }
    match &spec.load_balancer_class {
        Some(_) if !is_one => errors.push(FieldError::forbidden(&path.child("loadBalancerClass"), only)),
        Some(class) => errors.extend(invalid_at(path, "loadBalancerClass", class, names::qualified_name(class))),
        None => {}
    }
    errors
}

fn traffic(spec: &ServiceSpec, kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let policies = &["Cluster", "Local"];
    let outside = matches!(kind, "LoadBalancer" | "NodePort")
        || kind == "ClusterIP" && spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    let policy = spec.external_traffic_policy.as_deref().unwrap_or_default();
    if outside {
        errors.extend(one_of(policy, policies, path, "externalTrafficPolicy"));
    } else if !policy.is_empty() {
        let detail = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(&path.child("externalTrafficPolicy"), policy, detail));
    }
    let checked = kind == "LoadBalancer" && policy == "Local";
    if let Some(port) = spec.health_check_node_port.filter(|port| *port != 0 && !checked) {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(FieldError::invalid(&path.child("healthCheckNodePort"), port, detail));
    }
    match spec.internal_traffic_policy.as_deref() {
        None if matches!(kind, "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.push(FieldError::required(&path.child("internalTrafficPolicy"), ""));
        }
        Some(policy) if !policies.contains(&policy) => {
            errors.push(FieldError::not_supported(&path.child("internalTrafficPolicy"), policy, policies));
        }
        _ => {}
    }
    let known = &["PreferClose", "PreferSameZone", "PreferSameNode"];
    if let Some(wish) = spec.traffic_distribution.as_deref().filter(|wish| !known.contains(wish)) {
        errors.push(FieldError::not_supported(&path.child("trafficDistribution"), wish, known));
    }
    errors
}

/// Cluster IPs are for life, unless the service stops or starts being an alias; a second one may come and go.
fn validate_update(new: &Service, old: &Service, target: Target) -> Errors {
    let alias = |s: &Service| kind(s) == "ExternalName";
    let mut errors = Errors::new();
    let (Some(after), Some(before)) = (spec(new), spec(old)) else { return errors };
    if target == Target::Status || alias(new) || alias(old) {
        return errors;
    }
    let path = Path::new("spec");
    if !(is_headless(after) && is_headless(before)) {
        errors.extend(kept(&after.cluster_ips, &before.cluster_ips, after, "clusterIP", &path));
    }
    if !is_headless(after) && !is_headless(before) {
        errors.extend(kept(&after.ip_families, &before.ip_families, after, "ipFamily", &path));
    }
    let balanced = |s: &Service| kind(s) == "LoadBalancer";
    if balanced(new) && balanced(old) && after.load_balancer_class != before.load_balancer_class {
        let path = path.child("loadBalancerClass");
        errors.push(FieldError::invalid(&path, &after.load_balancer_class, "may not change once set"));
    }
    errors
}

type List = Option<Vec<String>>;

/// The first of two values stays; the second may be given up by a service that says so.
fn kept(new: &List, old: &List, spec: &ServiceSpec, what: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (now, before) = (new.as_deref().unwrap_or_default(), old.as_deref().unwrap_or_default());
    let field = if what == "clusterIP" { "clusterIPs" } else { "ipFamilies" };
    let mut wrong = |i: usize, detail: &str| {
        errors.push(FieldError::invalid(&path.child(field).index(i), now, detail));
    };
    let changed = "may not change once set";
    if now.len() == before.len() {
        let different = now.iter().zip(before).enumerate().filter(|(_, (a, b))| a != b);
        different.for_each(|(i, _)| wrong(if what == "clusterIP" { i } else { 0 }, changed));
        return errors;
    }
    match (now.first(), before.first()) {
        (None, Some(_)) => wrong(0, &format!("primary {what} can not be unset")),
        (Some(a), Some(b)) if a != b => wrong(0, changed),
        _ => {}
    }
    if now.len() == 1 && before.len() > 1 && spec.ip_family_policy.as_deref() != Some("SingleStack") {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.push(FieldError::invalid(&path.child("ipFamilyPolicy"), &spec.ip_family_policy, &detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: Value, expected: &[&str]) {
        let mut service: Service = serde_json::from_value(json!({"spec": given})).unwrap();
        default(&mut service);
        let errors: Vec<String> = validate(&service).iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected);
    }

    #[test]
    fn specs() {
        check(json!({"ports": [{"port": 80}]}), &[]);
        check(json!({}), &["spec.ports: Required value"]);
        check(
            json!({"type": "Foo", "ports": [{"name": "a", "port": 80}, {"name": "a", "port": 80, "protocol": "X"}]}),
            &[
                "spec.ports[1].name: Duplicate value: \"a\"",
                "spec.ports[1].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                "spec.type: Unsupported value: \"Foo\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \
                 \"NodePort\"",
            ],
        );
        check(
            json!({"ports": [{"name": "a", "port": 80, "nodePort": 30000}, {"name": "b", "port": 80}]}),
            &[
                "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
                "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\
                 \"TargetPort\":0,\"NodePort\":0}",
            ],
        );
        check(
            json!({"type": "ExternalName", "externalName": "A", "clusterIPs": ["1.1.1.1"]}),
            &[
                "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
                "spec.externalName: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                 characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        );
        check(
            json!({"clusterIP": "1.1.1.1", "clusterIPs": ["1.1.1.2"], "ports": [{"port": 80}], "externalIPs": ["127.0.0.1"],
                "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90000}}}),
            &[
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 90000: must be greater than 0 and less than 86400",
                "spec.clusterIPs: Invalid value: [\"1.1.1.2\"]: first value must match `clusterIP`",
                "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            ],
        );
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
            let service: Service = serde_json::from_value(new.clone()).unwrap();
            let mut errors = validate(&service);
            errors.extend(validate_update(
                &service,
                &serde_json::from_value(balancer.clone()).unwrap(),
                Target::Object,
            ));
            (new["spec"].clone(), errors.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (spec, errors) = change(json!({"type": "ClusterIP"}));
        assert_eq!(errors, [""; 0]);
        assert_eq!((&spec["ports"][0].get("nodePort"), &spec["clusterIP"]), (&None, &json!("1.1.1.1")));
        for field in ["externalTrafficPolicy", "healthCheckNodePort", "allocateLoadBalancerNodePorts"] {
            assert_eq!(spec.get(field), None, "{field}");
        }
        let (spec, errors) = change(json!({"type": "ExternalName", "externalName": "a.b"}));
        assert_eq!((errors, spec.get("clusterIPs")), (Vec::new(), None));
        let (spec, errors) = change(json!({"type": "NodePort"}));
        assert_eq!((errors, &spec["ports"][0]["nodePort"]), (Vec::new(), &json!(30000)));
        assert_eq!(spec["externalTrafficPolicy"], "Local");
        let (_, errors) =
            change(json!({"type": "ExternalName", "externalName": "a.b", "clusterIP": "None", "clusterIPs": ["None"]}));
        assert_eq!(errors, ["spec.clusterIPs: Forbidden: may not be set for ExternalName services"]);
    }

    #[test]
    fn addresses_are_for_life() {
        let service = |spec: Value| serde_json::from_value::<Service>(json!({"spec": spec})).unwrap();
        let with = |ips: &[&str]| service(json!({"type": "ClusterIP", "clusterIP": ips.first(), "clusterIPs": ips}));
        let check = |new: &Service, old: &Service, expected: &str| {
            let errors: Vec<String> =
                validate_update(new, old, Target::Object).iter().map(ToString::to_string).collect();
            assert_eq!(errors.join("; "), expected);
        };
        check(&with(&["1.1.1.1"]), &with(&["1.1.1.1"]), "");
        check(
            &with(&["1.1.1.2"]),
            &with(&["1.1.1.1"]),
            "spec.clusterIPs[0]: Invalid value: [\"1.1.1.2\"]: may not change once set",
        );
        check(
            &with(&[]),
            &with(&["1.1.1.1"]),
            "spec.clusterIPs[0]: Invalid value: []: primary clusterIP can not be unset",
        );
        check(
            &with(&["1.1.1.1"]),
            &with(&["1.1.1.1", "fd00::1"]),
            "spec.ipFamilyPolicy: Invalid value: null: must be set to 'SingleStack' when releasing the secondary clusterIP",
        );
    }
}
