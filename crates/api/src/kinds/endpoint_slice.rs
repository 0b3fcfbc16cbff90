//! EndpointSlice: some of the addresses behind a Service.

use std::collections::BTreeMap;

use json::Value;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::kind::cell;
use crate::kind::{Generation, Kind, Target, age, col, name};
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::{self, invalid, invalid_at};

const ENDPOINTS_MAX: usize = 1000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;
const TOPOLOGY_MAX: usize = 16;
/// Zones, and nodes, that an endpoint serves.
const HINTS_MAX: usize = 8;

pub const ENDPOINT_SLICE: Kind<EndpointSlice> = Kind {
    generation: Generation::Counts(|new, old| {
        let parts = ["endpoints", "ports", "addressType"];
        let labels = |o: &Value| crate::meta::labels(o).cloned();
        parts.iter().any(|p| new.get(p) != old.get(p)) || labels(new) != labels(old)
    }),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(validate_update),
    warnings: Some(warnings),
    columns: &[
        name(),
        col("AddressType", "The address family: IPv4, IPv6 or FQDN.", |s, _| Value::from(s.address_type.as_str())),
        col("Ports", "The ports of every endpoint.", |s, _| Value::from(ports(s))),
        col("Endpoints", "The addresses of the endpoints.", |s, _| {
            let all: Vec<String> = s.endpoints.iter().flat_map(|e| e.addresses.iter().cloned()).collect();
            Value::from(cell::first_three(&all, "<unset>"))
        }),
        age(),
    ],
    ..Kind::BASE
};

fn default(slice: &mut EndpointSlice) {
    for port in slice.ports.iter_mut().flatten() {
        port.name.get_or_insert_default();
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
}

fn endpoint(endpoint: &Endpoint, address_type: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("addresses");
    match endpoint.addresses.len() {
        0 => errors.push(FieldError::required(&place, "must contain at least 1 address")),
        n if n > ADDRESSES_MAX => errors.push(FieldError::too_many(&place, n, ADDRESSES_MAX)),
        _ => {}
    }
    for (i, address) in endpoint.addresses.iter().enumerate() {
        let place = place.index(i);
        match address_type {
            "IPv4" if ip::parse(address).is_none_or(|ip| ip.is_ipv6()) => {
                errors.push(FieldError::invalid(&place, address, "must be an IPv4 address"));
            }
            "IPv6" if ip::parse(address).is_none_or(|ip| ip.is_ipv4()) => {
                errors.push(FieldError::invalid(&place, address, "must be an IPv6 address"));
            }
            "IPv4" | "IPv6" => errors.extend(ip::endpoint_errors(address, &place)),
            "FQDN" => errors.extend(invalid(&place, address, names::dns1123_subdomain(address))),
            _ => {}
        }
    }
    if let Some(node) = &endpoint.node_name {
        errors.extend(invalid_at(path, "nodeName", node, names::dns1123_subdomain(node)));
    }
    let topology = endpoint.deprecated_topology.as_ref();
    if let Some(count) = topology.map(BTreeMap::len).filter(|count| *count > TOPOLOGY_MAX) {
        errors.push(FieldError::too_many(&path.child("deprecatedTopology"), count, TOPOLOGY_MAX));
    }
    errors.extend(object_meta::labels(topology, &path.child("deprecatedTopology")));
    if let Some(hostname) = &endpoint.hostname {
        errors.extend(invalid_at(path, "hostname", hostname, names::dns1123_label(hostname)));
    }
    let hints = endpoint.hints.as_ref();
    let zones = hints.into_iter().flat_map(|h| h.for_zones.iter().flatten().map(|zone| zone.name.as_str())).collect();
    errors.extend(hinted(zones, names::label_value, &path.child("hints").child("forZones")));
    let nodes = hints.into_iter().flat_map(|h| h.for_nodes.iter().flatten().map(|node| node.name.as_str())).collect();
    errors.extend(hinted(nodes, names::dns1123_subdomain, &path.child("hints").child("forNodes")));
    errors
}

/// Where an endpoint wants its traffic from: few names, each once.
fn hinted(list: Vec<&str>, rule: fn(&str) -> Vec<String>, path: &Path) -> Errors {
    if list.len() > HINTS_MAX {
        return vec![FieldError::too_many(path, list.len(), HINTS_MAX)];
    }
    let mut errors = Errors::new();
    for (i, name) in list.iter().enumerate() {
        let place = path.index(i).child("name");
        if list[..i].contains(name) {
            errors.push(FieldError::duplicate(&place, name));
        }
        errors.extend(invalid(&place, name, rule(name)));
    }
    errors
}

fn ports(slice: &EndpointSlice) -> String {
    let one = |p: &k8s_openapi::api::discovery::v1::EndpointPort| {
        p.port.map_or_else(
            || p.name.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "*".to_owned()),
            |n| n.to_string(),
        )
    };
    let list: Vec<String> = slice.ports.iter().flatten().map(one).collect();
    cell::first_three(&list, "<unset>")
}

fn validate(slice: &EndpointSlice) -> Errors {
    let mut errors = Errors::new();
    let kinds = &["FQDN", "IPv4", "IPv6"];
    match slice.address_type.as_str() {
        "" => errors.push(FieldError::required(&Path::new("addressType"), "")),
        kind if !kinds.contains(&kind) => {
            errors.push(FieldError::not_supported(&Path::new("addressType"), kind, kinds));
        }
        _ => {}
    }
    let path = Path::new("endpoints");
    if slice.endpoints.len() > ENDPOINTS_MAX {
        errors.push(FieldError::too_many(&path, slice.endpoints.len(), ENDPOINTS_MAX));
        return errors;
    }
    for (i, given) in slice.endpoints.iter().enumerate() {
        errors.extend(endpoint(given, &slice.address_type, &path.index(i)));
    }
    errors.extend(check_ports(slice));
    errors
}

fn check_ports(slice: &EndpointSlice) -> Errors {
    let mut errors = Errors::new();
    let list = slice.ports.as_deref().unwrap_or_default();
    let path = Path::new("ports");
    if list.len() > PORTS_MAX {
        errors.push(FieldError::too_many(&path, list.len(), PORTS_MAX));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (i, port) in list.iter().enumerate() {
        let name = port.name.as_deref().unwrap_or_default();
        let place = path.index(i).child("name");
        if !name.is_empty() {
            errors.extend(invalid(&place, name, names::dns1123_label(name)));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&place, name));
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            let place = path.index(i).child("protocol");
            errors.push(FieldError::not_supported(&place, protocol, &["SCTP", "TCP", "UDP"]));
        }
        if let Some(protocol) = &port.app_protocol {
            errors.extend(invalid_at(&path.index(i), "appProtocol", protocol, names::qualified_name(protocol)));
        }
    }
    errors
}

fn warnings(slice: &EndpointSlice, _old: Option<&EndpointSlice>) -> Vec<String> {
    let path = Path::new("endpoints");
    let mut list = Vec::new();
    for (i, endpoint) in slice.endpoints.iter().enumerate().filter(|_| slice.address_type != "FQDN") {
        let place = |j| path.index(i).child("addresses").index(j);
        list.extend(endpoint.addresses.iter().enumerate().filter_map(|(j, address)| ip::warning(address, &place(j))));
    }
    list
}

fn validate_update(new: &EndpointSlice, old: &EndpointSlice, _: Target) -> Errors {
    if new.address_type == old.address_type {
        return Errors::new();
    }
    vec![FieldError::invalid(&Path::new("addressType"), &new.address_type, "field is immutable")]
}
