//! Which DNS records a Service has. Pure. Names are relative to the cluster domain, reverse names are absolute.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointSlice},
};

use crate::reverse_name;

/// A record's content. `Target` names are relative to the cluster domain, `Alias` names are absolute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    Address(IpAddr),
    Service { port: u16, target: String },
    Pointer(String),
    Alias(String),
}

/// A name, and whether it is relative to the cluster domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    Relative(String),
    Reverse(String),
}

pub type Record = (Name, Data);

/// All records of one Service.
pub fn of(service: &Service, slices: &[Arc<EndpointSlice>]) -> Vec<Record> {
    let meta = &service.metadata;
    let (Some(name), Some(namespace), Some(spec)) = (&meta.name, &meta.namespace, &service.spec) else {
        return Vec::new();
    };
    let base = format!("{name}.{namespace}.svc");
    if spec.type_.as_deref() == Some("ExternalName") {
        return spec.external_name.iter().map(|n| (Name::Relative(base.clone()), Data::Alias(n.clone()))).collect();
    }
    let ips: Vec<IpAddr> =
        spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip).filter_map(|ip| api::rules::ip::parse(ip)).collect();
    let mut records = if ips.is_empty() { headless(&base, slices) } else { with_address(&base, &ips, service) };
    records.sort();
    records.dedup();
    records
}

fn with_address(base: &str, ips: &[IpAddr], service: &Service) -> Vec<Record> {
    let mut records = Vec::new();
    for ip in ips {
        records.push((Name::Relative(base.to_owned()), Data::Address(*ip)));
        records.push((Name::Reverse(reverse_name(*ip)), Data::Pointer(base.to_owned())));
    }
    for port in service.spec.iter().flat_map(|s| s.ports.iter().flatten()) {
        if let (Some(name), Ok(number)) = (&port.name, u16::try_from(port.port)) {
            records.push(srv(base, name, port.protocol.as_deref(), number, base.to_owned()));
        }
    }
    records
}

fn srv(base: &str, port: &str, protocol: Option<&str>, number: u16, target: String) -> Record {
    let protocol = protocol.unwrap_or("TCP").to_ascii_lowercase();
    (Name::Relative(format!("_{port}._{protocol}.{base}")), Data::Service { port: number, target })
}

/// A headless Service answers with its ready endpoints, each of which has a name of its own too.
fn headless(base: &str, slices: &[Arc<EndpointSlice>]) -> Vec<Record> {
    let mut records = Vec::new();
    for slice in slices {
        for endpoint in slice.endpoints.iter().filter(|e| is_ready(e)) {
            for address in endpoint.addresses.iter().filter_map(|a| api::rules::ip::parse(a)) {
                let label = endpoint.hostname.clone().unwrap_or_else(|| address.to_string().replace(['.', ':'], "-"));
                let own = format!("{label}.{base}");
                records.push((Name::Relative(base.to_owned()), Data::Address(address)));
                records.push((Name::Relative(own.clone()), Data::Address(address)));
                records.push((Name::Reverse(reverse_name(address)), Data::Pointer(own.clone())));
                for port in slice.ports.iter().flatten() {
                    let named = port.name.as_ref().filter(|n| !n.is_empty());
                    if let (Some(name), Some(Ok(number))) = (named, port.port.map(u16::try_from)) {
                        records.push(srv(base, name, port.protocol.as_deref(), number, own.clone()));
                    }
                }
            }
        }
    }
    records
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
}
