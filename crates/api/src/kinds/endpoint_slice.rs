//! EndpointSlice: some of the addresses behind a Service.

use json::Value;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::kind::cell;
use crate::kind::{Generation, Kind, Target, age, col, name};
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

const ENDPOINTS_MAX: usize = 1000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;

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
    for (i, endpoint) in slice.endpoints.iter().enumerate() {
        let path = path.index(i).child("addresses");
        match endpoint.addresses.len() {
            0 => errors.push(FieldError::required(&path, "must contain at least 1 address")),
            n if n > ADDRESSES_MAX => errors.push(FieldError::too_many(&path, n, ADDRESSES_MAX)),
            _ => {}
        }
        for (i, address) in endpoint.addresses.iter().enumerate() {
            let path = path.index(i);
            match slice.address_type.as_str() {
                "IPv4" if ip::parse(address).is_none_or(|ip| ip.is_ipv6()) => {
                    errors.push(FieldError::invalid(&path, address, "must be an IPv4 address"));
                }
                "IPv6" if ip::parse(address).is_none_or(|ip| ip.is_ipv4()) => {
                    errors.push(FieldError::invalid(&path, address, "must be an IPv6 address"));
                }
                "IPv4" | "IPv6" => errors.extend(ip::endpoint_errors(address, &path)),
                "FQDN" => errors.extend(invalid(&path, address, names::dns1123_subdomain(address))),
                _ => {}
            }
        }
    }
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
