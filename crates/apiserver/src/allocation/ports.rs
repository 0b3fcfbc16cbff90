//! A Service's node ports: which it needs, which it has.

use api::Value;
use api::field::Path;
use serde_json::json;

/// One place in a Service that wants a node port.
#[derive(Debug, Clone)]
pub struct Want {
    pub pointer: String,
    pub path: Path,
    pub given: Option<u16>,
    /// The service port, for sharing among protocols; 0 for the health check.
    port: i64,
}

fn kind(service: &Value) -> &str {
    service.pointer("/spec/type").and_then(Value::as_str).unwrap_or("ClusterIP")
}

fn needs_ports(service: &Value) -> bool {
    match kind(service) {
        "NodePort" => true,
        "LoadBalancer" => {
            service.pointer("/spec/allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true)
                || list(service).any(|p| number(p, "nodePort") != 0)
        }
        _ => false,
    }
}

/// A load balancer that keeps client addresses asks the nodes which of them have endpoints.
fn needs_health_check(service: &Value) -> bool {
    kind(service) == "LoadBalancer"
        && service.pointer("/spec/externalTrafficPolicy").and_then(Value::as_str) == Some("Local")
}

fn list(service: &Value) -> impl Iterator<Item = &Value> {
    service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten()
}

fn number(port: &Value, field: &str) -> i64 {
    port.get(field).and_then(Value::as_i64).unwrap_or(0)
}

fn some(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|n| *n != 0)
}

/// The node ports that the Service holds.
pub fn held(service: &Value) -> Vec<u16> {
    let mut all: Vec<u16> = needs_ports(service)
        .then(|| list(service).filter_map(|p| some(number(p, "nodePort"))))
        .into_iter()
        .flatten()
        .collect();
    if needs_health_check(service) {
        let health = service.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64);
        all.extend(health.and_then(some));
    }
    all
}

/// Everything in the Service that wants a node port.
pub fn wanted(service: &Value) -> Vec<Want> {
    let mut all = Vec::new();
    let optional = service.pointer("/spec/allocateLoadBalancerNodePorts").and_then(Value::as_bool) == Some(false)
        && kind(service) == "LoadBalancer";
    if needs_ports(service) {
        for (at, port) in list(service).enumerate() {
            let given = some(number(port, "nodePort"));
            if given.is_none() && optional {
                continue;
            }
            all.push(Want {
                pointer: format!("/spec/ports/{at}"),
                path: Path::new("spec").child("ports").index(at).child("nodePort"),
                given,
                port: number(port, "port"),
            });
        }
    }
    if needs_health_check(service) {
        all.push(Want {
            pointer: "/spec/healthCheckNodePort".to_owned(),
            path: Path::new("spec").child("healthCheckNodePort"),
            given: service.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).and_then(some),
            port: 0,
        });
    }
    // Ports that are named come first, so that a drawn one is never somebody's in the same Service.
    all.sort_by_key(|want| want.given.is_none());
    all
}

/// The node port that another protocol of the same service port has.
pub fn shared(service: &Value, want: &Want) -> Option<u16> {
    let at = service.pointer(&want.pointer)?;
    let protocol = |p: &Value| p.get("protocol").and_then(Value::as_str).unwrap_or("TCP").to_owned();
    let other = |p: &&Value| {
        want.port != 0 && number(p, "port") == want.port && protocol(p) != protocol(at) && number(p, "nodePort") != 0
    };
    list(service).find(other).and_then(|p| some(number(p, "nodePort")))
}

pub fn set(service: &mut Value, want: &Want, port: u16) {
    if want.port == 0 {
        service["spec"]["healthCheckNodePort"] = json!(port);
    } else if let Some(at) = service.pointer_mut(&want.pointer) {
        at["nodePort"] = json!(port);
    }
}

/// Keeps node ports where an update leaves them out, and drops them where the new type has none.
pub fn carry_over(old: Option<&Value>, new: &mut Value) {
    let Some(old) = old else { return };
    let same = |a: &Value, b: &Value| {
        let protocol = |p: &Value| p.get("protocol").and_then(Value::as_str).unwrap_or("TCP").to_owned();
        number(a, "port") == number(b, "port") && protocol(a) == protocol(b)
    };
    let (had, has) = (needs_ports(old), needs_ports(new));
    let old_ports: Vec<Value> = list(old).cloned().collect();
    let still_used: Vec<u16> = list(new).filter_map(|p| some(number(p, "nodePort"))).collect();
    let ports = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        let this = Value::Object(port.clone());
        let before = old_ports.iter().find(|o| same(o, &this)).and_then(|o| some(number(o, "nodePort")));
        let now = some(number(&this, "nodePort"));
        match (has, had, now, before) {
            // Not when another port of the Service has been given the number.
            (true, true, None, Some(before)) if !still_used.contains(&before) => {
                port.insert("nodePort".to_owned(), json!(before));
            }
            (false, true, Some(now), Some(before)) if now == before => {
                port.remove("nodePort");
            }
            _ => {}
        }
    }
    let health = |s: &Value| s.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0);
    match (needs_health_check(new), needs_health_check(old)) {
        (true, true) if health(new) == 0 && health(old) != 0 => {
            new["spec"]["healthCheckNodePort"] = json!(health(old));
        }
        (false, true) if health(new) == health(old) => {
            if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("healthCheckNodePort");
            }
        }
        _ => {}
    }
}
