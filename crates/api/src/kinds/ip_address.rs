//! IPAddress and ServiceCIDR: which service addresses are taken, and where they come from.

use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use serde_json::Value;

use crate::kind::{Kind, age, col, name};
use crate::validation::names::NameRule;

pub const IP_ADDRESS: Kind<IPAddress> = Kind {
    without_effect: Some("addresses of Services are booked elsewhere"),
    short: &["ip"],
    name: NameRule::Own,
    validate: Some(validate),
    columns: &[name(), col("ParentRef", "The object that has the address.", |a, _| Value::from(parent(a)))],
    ..Kind::BASE
};

/// The name is the address, in its canonical form.
fn validate(address: &IPAddress) -> crate::validation::field::Errors {
    let name = address.metadata.name.as_deref().unwrap_or_default();
    let path = crate::validation::field::Path::new("metadata").child("name");
    let detail = match name.parse::<std::net::IpAddr>() {
        Err(_) => crate::rules::ip::BAD_IP.to_owned(),
        Ok(ip) if ip.to_string() != name => format!("must be in canonical form (\"{ip}\")"),
        Ok(_) => return Vec::new(),
    };
    vec![crate::validation::field::FieldError::invalid(&path, name, &detail)]
}

fn parent(address: &IPAddress) -> String {
    let Some(parent) = address.spec.as_ref().map(|s| &s.parent_ref) else { return "<none>".to_owned() };
    let mut text = parent.resource.clone();
    if let Some(group) = parent.group.as_deref().filter(|g| !g.is_empty()) {
        text.push_str(&format!(".{group}"));
    }
    match parent.namespace.as_deref().filter(|n| !n.is_empty()) {
        Some(namespace) => format!("{text}/{namespace}/{}", parent.name),
        None => format!("{text}/{}", parent.name),
    }
}

pub const SERVICE_CIDR: Kind<ServiceCIDR> = Kind {
    without_effect: Some("Services take their addresses from --service-cluster-ip-range alone"),
    status: true,
    columns: &[
        name(),
        col("CIDRs", "The address ranges.", |c, _| {
            Value::from(c.spec.as_ref().and_then(|s| s.cidrs.as_ref()).map(|c| c.join(",")).unwrap_or_default())
        }),
        age(),
    ],
    ..Kind::BASE
};
