//! Validation of Services.

use std::collections::BTreeSet;

use json::{Value, json};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{addresses, is_headless, kind, reached_from_outside, spec};
use crate::kind::Target;
use crate::kinds::pod::probe;
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path, one_of};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::{self, invalid_at};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

pub(super) fn validate(service: &Service) -> Errors {
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
    errors.extend(addresses::validate(spec, kind(service), &path));
    for (i, ip) in spec.external_ips.iter().flatten().enumerate() {
        errors.extend(ip::endpoint_errors(ip, &path.child("externalIPs").index(i)));
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
            let detail = crate::kinds::service_cidr::BAD_CIDR;
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

/// Whether the load balancer asks nodes for the health of what it leads to, for which they have a port then.
fn is_checked(spec: &ServiceSpec, kind: &str) -> bool {
    kind == "LoadBalancer" && spec.external_traffic_policy.as_deref() == Some("Local")
}

fn traffic(spec: &ServiceSpec, kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let policies = &["Cluster", "Local"];
    let outside = reached_from_outside(spec);
    let policy = spec.external_traffic_policy.as_deref().unwrap_or_default();
    if outside {
        errors.extend(one_of(policy, policies, path, "externalTrafficPolicy"));
    } else if !policy.is_empty() {
        let detail = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(&path.child("externalTrafficPolicy"), policy, detail));
    }
    let health = path.child("healthCheckNodePort");
    match (spec.health_check_node_port.unwrap_or(0), is_checked(spec, kind)) {
        (0, true) => errors.push(FieldError::required(&health, "")),
        (0, false) => {}
        (port, true) => {
            errors.extend(names::port_number(port).into_iter().map(|wrong| FieldError::invalid(&health, port, &wrong)));
        }
        (port, false) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(FieldError::invalid(&health, port, detail));
        }
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

/// Some fields are for life, unless the service stops or starts being an alias.
pub(super) fn validate_update(new: &Service, old: &Service, target: Target) -> Errors {
    let alias = |s: &Service| kind(s) == "ExternalName";
    let mut errors = Errors::new();
    let (Some(after), Some(before)) = (spec(new), spec(old)) else { return errors };
    if target == Target::Status || alias(new) || alias(old) {
        return errors;
    }
    let path = Path::new("spec");
    errors.extend(addresses::validate_update(after, before, &path));
    let balanced = |s: &Service| kind(s) == "LoadBalancer";
    if balanced(new) && balanced(old) && after.load_balancer_class != before.load_balancer_class {
        let path = path.child("loadBalancerClass");
        errors.push(FieldError::invalid(&path, &after.load_balancer_class, "may not change once set"));
    }
    let checked = |s: &Service| spec(s).is_some_and(|spec| is_checked(spec, kind(s)));
    let port = |spec: &ServiceSpec| spec.health_check_node_port.unwrap_or(0);
    if checked(new) && checked(old) && port(after) != port(before) {
        errors.push(FieldError::forbidden(&path.child("healthCheckNodePort"), "field is immutable"));
    }
    errors
}

/// Where a load balancer listens. Which addresses those may be is up to whoever may write the status.
pub(crate) fn balancer_status(new: &Value) -> Errors {
    balancer_points(new, |_, _| None)
}

/// The status of a service: only one of type `LoadBalancer` has a load balancer.
pub(super) fn status(new: &Value) -> Errors {
    let list = new.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
    let balanced = new.pointer("/spec/type").and_then(Value::as_str) == Some("LoadBalancer");
    if !balanced && list.is_some_and(|list| !list.is_empty()) {
        let path = Path::new("status").child("loadBalancer").child("ingress");
        return vec![FieldError::forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'")];
    }
    balancer_points(new, ip_mode)
}

/// How traffic to the address of a load balancer comes in is said where there is one.
fn ip_mode(ingress: &Value, path: &Path) -> Option<FieldError> {
    let has_ip = ingress.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty());
    let (path, known) = (path.child("ipMode"), &["Proxy", "VIP"]);
    match ingress.get("ipMode").and_then(Value::as_str) {
        None if has_ip => Some(FieldError::required(&path, "must be specified when `ip` is set")),
        Some(_) if !has_ip => Some(FieldError::forbidden(&path, "may not be specified when `ip` is not set")),
        Some(mode) if !known.contains(&mode) => Some(FieldError::not_supported(&path, mode, known)),
        _ => None,
    }
}

/// The places where a load balancer listens; `more` says what else is wrong with one.
fn balancer_points(new: &Value, more: fn(&Value, &Path) -> Option<FieldError>) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let list = new.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
    for (i, ingress) in list.into_iter().flatten().enumerate() {
        let path = path.index(i);
        let text = |field: &str| ingress.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let Some(ip) = text("ip") {
            errors.extend(ip::errors(ip, &path.child("ip")));
        }
        errors.extend(more(ingress, &path));
        if let Some(host) = text("hostname") {
            errors.extend(invalid_at(&path, "hostname", host, names::dns1123_subdomain(host)));
            if ip::parse(host).is_some() {
                let detail = "must be a DNS name, not an IP address";
                errors.push(FieldError::invalid(&path.child("hostname"), host, detail));
            }
        }
    }
    errors
}

/// Warnings about fields without effect for a service of this type, and about addresses that others may read differently.
pub(super) fn warnings(service: &Service, _old: Option<&Service>) -> Vec<String> {
    let Some(spec) = spec(service) else { return Vec::new() };
    let path = Path::new("spec");
    let set = |field: &Option<String>| field.as_deref().is_some_and(|text| !text.is_empty());
    let external = spec.external_ips.as_deref().unwrap_or_default();
    let mut list = Vec::new();
    if service
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|a| a.contains_key("service.kubernetes.io/topology-aware-hints"))
    {
        let (old, new) = ("service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode");
        list.push(format!("annotation {old} is deprecated, please use {new} instead"));
    }
    if is_headless(spec) && kind(service) == "ClusterIP" {
        if set(&spec.load_balancer_ip) {
            list.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if !external.is_empty() {
            list.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if spec.session_affinity.as_deref() != Some("None") {
            list.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    for (field, all) in [("clusterIPs", spec.cluster_ips.as_deref().unwrap_or_default()), ("externalIPs", external)] {
        let place = |i| path.child(field).index(i);
        list.extend(all.iter().enumerate().filter_map(|(i, ip)| ip::warning(ip, &place(i))));
    }
    list.extend(spec.load_balancer_ip.iter().filter_map(|ip| ip::warning(ip, &path.child("loadBalancerIP"))));
    let ranges = path.child("loadBalancerSourceRanges");
    let given = spec.load_balancer_source_ranges.iter().flatten().enumerate();
    list.extend(given.flat_map(|(i, range)| ip::range_warnings(range, &ranges.index(i))));
    if kind(service) == "ExternalName" && !external.is_empty() {
        list.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind(service) != "ExternalName" && set(&spec.external_name) {
        list.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.traffic_distribution.as_deref() == Some("PreferClose") {
        list.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::super::default;
    use super::*;

    #[track_caller]
    fn check(given: Value, expected: &[&str]) {
        let mut service: Service = json::from_value(json!({"spec": given})).unwrap();
        default(&mut service);
        let errors: Vec<String> = validate(&service).iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected);
    }

    #[test]
    fn addresses_and_ranges_that_may_be_misread_are_warned_of() {
        let spec = json!({"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "externalIPs": ["010.1.0.1"],
            "loadBalancerSourceRanges": ["10.0.0.0/8", "10.0.0.0/08"]});
        let future = "will be considered invalid in a future Kubernetes release";
        let expected = [
            format!("spec.externalIPs[0]: non-standard IP address \"010.1.0.1\" {future}: use \"10.1.0.1\""),
            format!(
                "spec.loadBalancerSourceRanges[1]: non-standard CIDR value \"10.0.0.0/08\" {future}: use \"10.0.0.0/8\""
            ),
        ];
        assert_eq!(warnings(&json::from_value(json!({"spec": spec})).unwrap(), None), expected);
    }

    #[test]
    fn the_old_name_of_a_distribution_is_warned_of() {
        let said =
            |name: &str| warnings(&json::from_value(json!({"spec": {"trafficDistribution": name}})).unwrap(), None);
        let expected = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        assert_eq!(said("PreferClose"), [expected]);
        assert!(said("PreferSameZone").is_empty());
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
    fn only_balanced_services_have_a_balancer() {
        let check = |kind: &str, ingress: Value, expected: &[&str]| {
            let new = json!({"spec": {"type": kind}, "status": {"loadBalancer": {"ingress": ingress}}});
            let errors: Vec<String> = status(&new).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{new}");
        };
        let path = "status.loadBalancer.ingress";
        check("LoadBalancer", json!([{"ip": "1.1.1.1", "ipMode": "VIP"}, {"hostname": "a.b"}]), &[]);
        check("ClusterIP", json!([]), &[]);
        check("ClusterIP", Value::Null, &[]);
        let other = "Forbidden: may only be used when `spec.type` is 'LoadBalancer'";
        check("NodePort", json!([{"ip": "x"}]), &[&format!("{path}: {other}")]);
        check(
            "LoadBalancer",
            json!([{"ip": "1.1.1.1"}, {"hostname": "a.b", "ipMode": "VIP"}, {"ip": "1.1.1.1", "ipMode": "x"}]),
            &[
                &format!("{path}[0].ipMode: Required value: must be specified when `ip` is set"),
                &format!("{path}[1].ipMode: Forbidden: may not be specified when `ip` is not set"),
                &format!("{path}[2].ipMode: Unsupported value: \"x\": supported values: \"Proxy\", \"VIP\""),
            ],
        );
    }

    #[test]
    fn balancers_that_keep_client_addresses_have_a_port_for_health_checks() {
        let with = |kind: &str, policy: &str, port: i32| json!({"type": kind, "externalTrafficPolicy": policy, "healthCheckNodePort": port, "ports": [{"port": 80}]});
        let place = "spec.healthCheckNodePort";
        let only = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        check(with("LoadBalancer", "Local", 30000), &[]);
        check(with("LoadBalancer", "Cluster", 0), &[]);
        check(with("LoadBalancer", "Local", 0), &[&format!("{place}: Required value")]);
        let range = "must be between 1 and 65535, inclusive";
        check(with("LoadBalancer", "Local", 70_000), &[&format!("{place}: Invalid value: 70000: {range}")]);
        for (kind, policy) in [("LoadBalancer", "Cluster"), ("NodePort", "Local")] {
            check(with(kind, policy, 30000), &[&format!("{place}: Invalid value: 30000: {only}")]);
        }
    }

    #[test]
    fn the_port_of_health_checks_is_for_life() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            let service = |spec: Value| json::from_value::<Service>(json!({"spec": spec})).unwrap();
            let errors = validate_update(&service(new), &service(old), Target::Object);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        };
        let with = |policy: &str, port: i32| json!({"type": "LoadBalancer", "externalTrafficPolicy": policy, "healthCheckNodePort": port});
        let changed = "spec.healthCheckNodePort: Forbidden: field is immutable";
        check(with("Local", 30000), with("Local", 30000), &[]);
        check(with("Local", 30001), with("Local", 30000), &[changed]);
        check(with("Local", 0), with("Local", 30000), &[changed]);
        check(with("Local", 30001), with("Cluster", 0), &[]);
        check(with("Cluster", 0), with("Local", 30000), &[]);
    }
}
