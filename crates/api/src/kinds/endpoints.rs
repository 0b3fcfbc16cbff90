//! Endpoints: the addresses behind a Service, all in one object (the older form of EndpointSlice).

use json::Value;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};

use crate::kind::cell;
use crate::kind::{Kind, age, col, name};
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

pub const ENDPOINTS: Kind<Endpoints> = Kind {
    create_on_update: true,
    short: &["ep"],
    storage_prefix: Some("services/endpoints"),
    default: Some(default),
    validate: Some(validate),
    warnings: Some(warnings),
    deprecated: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    columns: &[name(), col("Endpoints", "Ready addresses with their ports.", |e, _| Value::from(addresses(e))), age()],
    ..Kind::BASE
};

fn default(endpoints: &mut Endpoints) {
    let subsets = endpoints.subsets.iter_mut().flatten();
    for port in subsets.flat_map(|s| s.ports.iter_mut().flatten()) {
        if port.protocol.as_deref().unwrap_or_default().is_empty() {
            port.protocol = Some("TCP".to_owned());
        }
    }
}

fn warnings(endpoints: &Endpoints, _old: Option<&Endpoints>) -> Vec<String> {
    let mut list = Vec::new();
    for (i, subset) in endpoints.subsets.iter().flatten().enumerate() {
        let path = Path::new("subsets").index(i);
        for (field, all) in [("addresses", &subset.addresses), ("notReadyAddresses", &subset.not_ready_addresses)] {
            let place = |i| path.child(field).index(i).child("ip");
            let all = all.iter().flatten().enumerate();
            list.extend(all.filter_map(|(i, address)| ip::warning(&address.ip, &place(i))));
        }
    }
    list
}

fn addresses(endpoints: &Endpoints) -> String {
    // Every address with every port: only those that are shown are made.
    let (mut first, mut count) = (Vec::new(), 0);
    for subset in endpoints.subsets.iter().flatten() {
        let ips = subset.addresses.as_deref().unwrap_or_default();
        let ports = subset.ports.as_deref().unwrap_or_default();
        count += ips.len() * ports.len().max(1);
        let alone = ips.iter().filter(|_| ports.is_empty()).map(|a| a.ip.clone());
        let all = alone.chain(ports.iter().flat_map(|p| ips.iter().map(move |a| ip::with_port(&a.ip, p.port))));
        first.extend(all.take(cell::SHOWN - first.len()));
    }
    cell::first(&first, count, "<none>")
}

fn validate(endpoints: &Endpoints) -> Errors {
    let mut errors = Errors::new();
    for (i, subset) in endpoints.subsets.iter().flatten().enumerate() {
        let path = Path::new("subsets").index(i);
        let ready = subset.addresses.as_deref().unwrap_or_default();
        let waiting = subset.not_ready_addresses.as_deref().unwrap_or_default();
        if ready.is_empty() && waiting.is_empty() {
            errors.push(FieldError::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for (field, list) in [("addresses", ready), ("notReadyAddresses", waiting)] {
            for (i, address) in list.iter().enumerate() {
                errors.extend(validate_address(address, &path.child(field).index(i)));
            }
        }
        let ports = subset.ports.as_deref().unwrap_or_default();
        for (i, port) in ports.iter().enumerate() {
            let path = path.child("ports").index(i);
            let name = port.name.as_deref().unwrap_or_default();
            if name.is_empty() && ports.len() > 1 {
                errors.push(FieldError::required(&path.child("name"), ""));
            } else if !name.is_empty() {
                errors.extend(invalid(&path.child("name"), name, names::dns1123_label(name)));
            }
            for wrong in names::port_number(port.port) {
                errors.push(FieldError::invalid(&path.child("port"), port.port, &wrong));
            }
            let protocol = port.protocol.as_deref().unwrap_or_default();
            if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
                errors.push(FieldError::not_supported(&path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]));
            }
        }
    }
    errors
}

fn validate_address(address: &EndpointAddress, path: &Path) -> Errors {
    let mut errors = ip::endpoint_errors(&address.ip, &path.child("ip"));
    if let Some(host) = address.hostname.as_deref().filter(|h| !h.is_empty()) {
        errors.extend(invalid(&path.child("hostname"), host, names::dns1123_label(host)));
    }
    if let Some(node) = address.node_name.as_deref() {
        let wrong = names::dns1123_subdomain(node);
        errors.extend(invalid(&path.child("nodeName"), node, wrong));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::kind::Target;
    use crate::kinds::built_in;

    /// Every field that names where traffic goes reads the address behind its form.
    #[test]
    fn no_form_hides_the_machine_or_its_link() {
        let refused = |group: &str, plural: &str, object: Value| {
            let errors = built_in().find(group, "v1", plural).expect("served").strategy.validate(&object);
            let about =
                |detail: &str| detail.contains("may not be in the l") || detail.contains("may not be unspecified");
            errors.iter().filter(|e| about(&e.detail)).count()
        };
        let meta = json!({"name": "a", "namespace": "b"});
        for address in ["169.254.169.254", "127.0.0.1", "0.0.0.0", "224.0.0.1"] {
            let padded = format!("0{address}");
            let mapped = format!("::ffff:{address}");
            for form in [address, &padded, &mapped] {
                let endpoints = json!({"metadata": meta, "subsets": [{"addresses": [{"ip": form}], "notReadyAddresses": [{"ip": form}]}]});
                assert_eq!(refused("", "endpoints", endpoints), 2, "{form}");
                let slice = json!({"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": [form]}]});
                assert_eq!(refused("discovery.k8s.io", "endpointslices", slice), 1, "{form}");
                let service = json!({"metadata": meta, "spec": {"type": "ClusterIP", "externalIPs": [form], "ports": [{"port": 1}]}});
                assert_eq!(refused("", "services", service), 1, "{form}");
            }
            let slice = json!({"metadata": meta, "addressType": "IPv6", "endpoints": [{"addresses": [mapped]}]});
            let errors =
                built_in().find("discovery.k8s.io", "v1", "endpointslices").expect("served").strategy.validate(&slice);
            assert_eq!(errors[0].detail, format!("Invalid value: {mapped:?}: must be an IPv6 address"));
        }
    }

    #[test]
    fn a_readable_form_of_a_good_address_is_only_warned_of() {
        let endpoints =
            json!({"metadata": {"name": "a", "namespace": "b"}, "subsets": [{"addresses": [{"ip": "010.1.2.3"}]}]});
        let strategy = &built_in().find("", "v1", "endpoints").expect("served").strategy;
        let warnings = strategy.check(&endpoints).expect("valid").warnings;
        let expected = "subsets[0].addresses[0].ip: non-standard IP address \"010.1.2.3\" will be considered invalid in a \
                        future Kubernetes release: use \"10.1.2.3\"";
        assert_eq!(warnings, [expected]);
    }

    #[test]
    fn reported_addresses_are_addresses() {
        let check = |plural: &str, status: Value, expected: &[&str]| {
            let spec = json!({"containers": [], "type": "LoadBalancer"});
            let old = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec});
            let mut object = old.clone();
            object["status"] = status.clone();
            let strategy = &built_in().find("", "v1", plural).expect("served").strategy;
            let errors = strategy.check_update(&object, &old, Target::Status).err().unwrap_or_default();
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{status}");
        };
        check("pods", json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}), &[]);
        let bad = "Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        check("pods", json!({"podIPs": [{"ip": "x"}]}), &[&format!("status.podIPs[0]: {bad}")]);
        // A single address stands in the list as well, and is told of there.
        check("pods", json!({"podIP": "x", "podIPs": [{"ip": "x"}]}), &[&format!("status.podIPs[0]: {bad}")]);
        let twice = json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "::ffff:10.0.0.2"}]});
        let detail = "may specify no more than one IP for each IP family";
        check(
            "pods",
            twice,
            &[&format!(
                "status.hostIPs: Invalid value: [{{\"IP\":\"10.0.0.1\"}},{{\"IP\":\"::ffff:10.0.0.2\"}}]: {detail}"
            )],
        );
        let ingress = |ip: &str, hostname: &str| {
            let mode = (!ip.is_empty()).then_some("VIP");
            json!({"loadBalancer": {"ingress": [{"ip": ip, "ipMode": mode, "hostname": hostname}]}})
        };
        check("services", ingress("10.0.0.1", ""), &[]);
        check("services", ingress("x", ""), &[&format!("status.loadBalancer.ingress[0].ip: {bad}")]);
        let named = "Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address";
        check("services", ingress("", "10.0.0.1"), &[&format!("status.loadBalancer.ingress[0].hostname: {named}")]);
    }
}
