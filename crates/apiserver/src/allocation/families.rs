//! A Service's IP families: which it gets, from its policy, its addresses and what the cluster has.

use std::net::IpAddr;

use api::Value;
use api::validation::field::{FieldError, Path};
use json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    fn other(self) -> Self {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

fn text<'a>(service: &'a Value, field: &str) -> &'a str {
    service.get("spec").and_then(|s| s.get(field)).and_then(Value::as_str).unwrap_or("")
}

fn external(service: &Value) -> bool {
    text(service, "type") == "ExternalName"
}

fn headless(service: &Value) -> bool {
    text(service, "clusterIP") == "None"
}

/// Whether the Service has addresses of its own.
pub fn needs_address(service: &Value) -> bool {
    !external(service) && !headless(service)
}

fn strings<'a>(service: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    let list = service.get("spec").and_then(|s| s.get(field)).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// The addresses in `clusterIPs`.
pub fn addresses(service: &Value) -> Vec<IpAddr> {
    strings(service, "clusterIPs").filter_map(api::rules::ip::parse).collect()
}

/// Whether all texts in `clusterIPs` are addresses; a Service with others is left as it is for validation to refuse.
pub fn readable(service: &Value) -> bool {
    strings(service, "clusterIPs").all(|text| text == "None" || api::rules::ip::parse(text).is_some())
}

/// `ipFamilies`.
pub fn listed(service: &Value) -> Vec<Family> {
    strings(service, "ipFamilies")
        .filter_map(|name| match name {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })
        .collect()
}

fn remove(service: &mut Value, fields: &[&str]) {
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        for field in fields {
            spec.remove(field);
        }
    }
}

/// Brings `clusterIP` and `clusterIPs` in line, and keeps the old addresses where an update leaves them out.
pub fn carry_over(old: Option<&Value>, new: &mut Value) {
    if external(new) {
        // A Service that becomes a mere name loses its addresses when the client just left them in.
        let kept = old.is_some_and(|o| !external(o) && text(o, "clusterIP") == text(new, "clusterIP"));
        if kept {
            remove(new, &["clusterIP", "clusterIPs"]);
        }
        remove(new, &["ipFamilies", "ipFamilyPolicy"]);
        return;
    }
    let list = |service: &Value| service.get("spec").and_then(|s| s.get("clusterIPs")).cloned();
    if let Some(old) = old.filter(|o| !external(o)) {
        if text(new, "clusterIP").is_empty() && list(new).is_none_or(|l| l.is_null()) {
            if let (Some(ip), Some(ips)) = (old.pointer("/spec/clusterIP"), list(old)) {
                new["spec"]["clusterIP"] = ip.clone();
                new["spec"]["clusterIPs"] = ips;
            }
        } else if text(new, "clusterIP") != text(old, "clusterIP") && list(new) == list(old) {
            // Only the singular field was edited: it counts.
            remove(new, &["clusterIPs"]);
        }
    }
    let single = text(new, "clusterIP").to_owned();
    let first = strings(new, "clusterIPs").next().map(str::to_owned);
    match (single.is_empty(), first) {
        (false, None) => new["spec"]["clusterIPs"] = json!([single]),
        (true, Some(first)) => new["spec"]["clusterIP"] = json!(first),
        _ => {}
    }
}

/// Settles `ipFamilyPolicy` and `ipFamilies`, and drops a second address that the policy no longer wants.
pub fn settle(new: &mut Value, old: Option<&Value>, cluster: &[Family]) -> Result<(), FieldError> {
    let Some(main) = cluster.first().copied().filter(|_| !external(new)) else { return Ok(()) };
    let spec = Path::new("spec");
    let mut wanted = listed(new);
    let given = addresses(new);
    let selectorless = new.pointer("/spec/selector").and_then(Value::as_object).is_none_or(|s| s.is_empty());
    let free_choice = headless(new) && selectorless;
    let policy = match (text(new, "ipFamilyPolicy"), free_choice) {
        ("", true) => "RequireDualStack".to_owned(),
        ("", false) if wanted.len() > 1 || given.len() > 1 => {
            let why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
            return Err(FieldError::invalid(&spec.child("ipFamilyPolicy"), "", why));
        }
        ("", false) => "SingleStack".to_owned(),
        (policy, _) => policy.to_owned(),
    };
    if policy == "SingleStack" && old.is_some_and(|o| listed(o).len() > 1) && wanted.len() > 1 {
        // From two families to one: the second goes.
        wanted.truncate(1);
        new["spec"]["clusterIPs"] = json!(strings(new, "clusterIPs").take(1).collect::<Vec<_>>());
    }
    if !free_choice {
        if policy == "RequireDualStack" && cluster.len() < 2 {
            let why = "this cluster is not configured for dual-stack services";
            return Err(FieldError::invalid(&spec.child("ipFamilyPolicy"), policy, why));
        }
        if let Some(at) = wanted.iter().position(|f| !cluster.contains(f)) {
            let path = spec.child("ipFamilies").index(at);
            return Err(FieldError::invalid(&path, wanted[at].name(), "not configured on this cluster"));
        }
    }
    for address in addresses(new) {
        if !wanted.contains(&Family::of(&address)) && wanted.len() < addresses(new).len() {
            wanted.push(Family::of(&address));
        }
    }
    if wanted.is_empty() {
        wanted.push(main);
    }
    let second = wanted[0].other();
    if wanted.len() == 1 && policy != "SingleStack" && (free_choice || cluster.contains(&second)) {
        wanted.push(second);
    }
    new["spec"]["ipFamilyPolicy"] = json!(policy);
    new["spec"]["ipFamilies"] = json!(wanted.iter().map(|f| f.name()).collect::<Vec<_>>());
    Ok(())
}
