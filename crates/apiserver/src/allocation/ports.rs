//! A Service's node ports: which it needs, which it has.

use std::collections::{HashMap, HashSet};

use api::Value;
use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use json::json;

/// One place in a Service that wants a node port.
#[derive(Debug, Clone)]
pub struct Want {
    pub pointer: String,
    pub path: Path,
    /// The number that the client names, which may be none that a port can have.
    pub given: Option<i64>,
    /// The service port and its protocol, for sharing among protocols; 0 for the health check.
    port: i64,
    protocol: String,
}

impl Want {
    pub fn is_health_check(&self) -> bool {
        self.port == 0
    }

    /// The error about a number that the Service cannot have. Upstream takes that of the health check for a fault of its own.
    pub fn refused(&self, service: &str, number: i64, why: &str) -> StatusError {
        if self.is_health_check() {
            return StatusError::internal(format!("failed to allocate requested HealthCheck NodePort {number}: {why}"));
        }
        StatusError::invalid("", "Service", service, &[FieldError::invalid(&self.path, number, why)])
    }
}

/// The node ports that the client names and that need not be taken again.
pub struct Named<'a> {
    /// Those of the old Service, where there is one.
    before: Option<&'a [u16]>,
    /// The first number that is named for each service port.
    firsts: HashMap<i64, u16>,
    /// The numbers that are named, each with its protocol.
    seen: HashSet<(String, i64)>,
    noted: HashSet<u16>,
}

impl<'a> Named<'a> {
    pub fn new(before: Option<&'a [u16]>) -> Self {
        Named { before, firsts: HashMap::new(), seen: HashSet::new(), noted: HashSet::new() }
    }

    /// The port of the number, when the Service has it already. A new Service may name one number for several protocols of one service
    /// port alone; one that changes may do so for any, if the protocols differ. A health check shares with nobody.
    pub fn find(&mut self, want: &Want, number: i64) -> Result<Option<u16>, StatusError> {
        if want.is_health_check() {
            return Ok(None);
        }
        let port = some(number);
        let Some(before) = self.before else {
            return Ok(port.filter(|port| self.firsts.get(&want.port) == Some(port)));
        };
        let has = port.filter(|port| before.contains(port) || self.noted.contains(port));
        if !self.seen.insert((want.protocol.clone(), number)) && has.is_some() {
            let why = format!("duplicate nodePort: {{{} {number}}}", want.protocol);
            return Err(StatusError::new(500, "", why));
        }
        Ok(has)
    }

    /// Notes what was taken for a place.
    pub fn note(&mut self, want: &Want, port: u16) {
        self.firsts.entry(want.port).or_insert(port);
        self.noted.insert(port);
    }
}

/// The node ports that protocols of the same service port share: of each port two protocols, which is one that another
/// protocol can share with.
pub struct Shares(HashMap<i64, Vec<(String, u16)>>);

impl Shares {
    pub fn of(service: &Value) -> Self {
        let mut shares = Shares(HashMap::new());
        for port in list(service) {
            if let Some(node_port) = some(number(port, "nodePort")) {
                shares.add(number(port, "port"), &protocol(port), node_port);
            }
        }
        shares
    }

    fn add(&mut self, port: i64, protocol: &str, node_port: u16) {
        let known = self.0.entry(port).or_default();
        if known.len() < 2 && known.iter().all(|(p, _)| p != protocol) {
            known.push((protocol.to_owned(), node_port));
        }
    }

    /// The node port that another protocol of the same service port has.
    pub fn find(&self, want: &Want) -> Option<u16> {
        let known = self.0.get(&want.port).filter(|_| want.port != 0)?;
        known.iter().find(|(protocol, _)| *protocol != want.protocol).map(|(_, node_port)| *node_port)
    }

    /// Notes what a place got.
    pub fn note(&mut self, want: &Want, node_port: u16) {
        self.add(want.port, &want.protocol, node_port);
    }
}

fn protocol(port: &Value) -> String {
    port.get("protocol").and_then(Value::as_str).unwrap_or("TCP").to_owned()
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

/// The number that a client wrote; 0 names none.
fn named(number: i64) -> Option<i64> {
    Some(number).filter(|n| *n != 0)
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

/// Everything in the Service that wants a node port. The one for health checks is for life: a Service that has one wants no other, and
/// validation refuses a change.
pub fn wanted(service: &Value, old: Option<&Value>) -> Vec<Want> {
    let mut all = Vec::new();
    let optional = service.pointer("/spec/allocateLoadBalancerNodePorts").and_then(Value::as_bool) == Some(false)
        && kind(service) == "LoadBalancer";
    if needs_ports(service) {
        for (at, port) in list(service).enumerate() {
            let given = named(number(port, "nodePort"));
            if given.is_none() && optional {
                continue;
            }
            all.push(Want {
                pointer: format!("/spec/ports/{at}"),
                path: Path::new("spec").child("ports").index(at).child("nodePort"),
                given,
                port: number(port, "port"),
                protocol: protocol(port),
            });
        }
    }
    let health = |s: &Value| s.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).and_then(named);
    let kept = old.filter(|old| needs_health_check(old)).and_then(health);
    if needs_health_check(service) && kept.is_none() {
        all.push(Want {
            pointer: "/spec/healthCheckNodePort".to_owned(),
            path: Path::new("spec").child("healthCheckNodePort"),
            given: health(service),
            port: 0,
            protocol: String::new(),
        });
    }
    // Ports that are named come first, so that a drawn one is never somebody's in the same Service.
    all.sort_by_key(|want| want.given.is_none());
    all
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
    let name = |port: &Value| (number(port, "port"), protocol(port));
    let (had, has) = (needs_ports(old), needs_ports(new));
    // The first of each port and protocol.
    let mut old_ports = HashMap::new();
    for port in list(old) {
        old_ports.entry(name(port)).or_insert(number(port, "nodePort"));
    }
    let still_used: HashSet<u16> = list(new).filter_map(|p| some(number(p, "nodePort"))).collect();
    let ports = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        let before = old_ports.get(&name(port)).copied().and_then(some);
        let now = named(number(port, "nodePort"));
        let Some(port) = port.as_object_mut() else { continue };
        match (has, had, now, before) {
            // Not when another port of the Service has been given the number.
            (true, true, None, Some(before)) if !still_used.contains(&before) => {
                port.insert("nodePort", json!(before));
            }
            (false, true, Some(now), Some(before)) if now == i64::from(before) => {
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
