//! Endpoints: the addresses behind a Service, all in one object (the older form of EndpointSlice).

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Kind, age, col, name};
use crate::names;
use crate::object_meta::{BAD_IP, invalid};
use crate::table;

pub const ENDPOINTS: Kind<Endpoints> = Kind {
    create_on_update: true,
    short: &["ep"],
    storage_prefix: Some("services/endpoints"),
    default: Some(default),
    validate: Some(validate),
    warnings: Some(|_, _| {
        vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()]
    }),
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

fn addresses(endpoints: &Endpoints) -> String {
    let mut list = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ips: Vec<&str> = subset.addresses.iter().flatten().map(|a| a.ip.as_str()).collect();
        let ports = subset.ports.as_deref().unwrap_or_default();
        if ports.is_empty() {
            list.extend(ips.iter().map(|ip| (*ip).to_owned()));
        }
        for port in ports {
            list.extend(ips.iter().map(|ip| match ip.parse() {
                Ok(IpAddr::V6(v6)) => format!("[{v6}]:{}", port.port),
                _ => format!("{ip}:{}", port.port),
            }));
        }
    }
    table::first_three(&list, "<none>")
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
    let mut errors = address_errors(&address.ip, &path.child("ip"));
    if let Some(host) = address.hostname.as_deref().filter(|h| !h.is_empty()) {
        errors.extend(invalid(&path.child("hostname"), host, names::dns1123_label(host)));
    }
    if let Some(node) = address.node_name.as_deref() {
        let wrong = names::dns1123_subdomain(node);
        errors.extend(invalid(&path.child("nodeName"), node, wrong));
    }
    errors
}

/// An address that traffic can be sent to: not the machine itself, not its own link.
pub(crate) fn address_errors(text: &str, path: &Path) -> Errors {
    let unspecified = format!("may not be unspecified ({text})");
    let detail = match text.parse::<IpAddr>() {
        Err(_) => BAD_IP,
        Ok(ip) if ip.is_unspecified() => &unspecified,
        Ok(ip) if ip.is_loopback() => "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        Ok(ip) if is_link_local(ip) => "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        Ok(ip) if is_link_local_group(ip) => "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        Ok(_) => return Errors::new(),
    };
    vec![FieldError::invalid(path, text, detail)]
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn is_link_local_group(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}
