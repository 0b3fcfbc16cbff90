//! Three namespaces with three Pods each, policies for them, and which connections these let through, as upstream's
//! test/e2e/network/netpol has them. The expected connections are written down by hand for each case.

pub mod administrators;

use std::net::IpAddr;

use client::Key;
use json::{Value, json};
use policy::{
    admin,
    kind::{PolicyKind, PolicyName},
    pod::{Facts, NamedPort},
    rule::Policy,
    traffic::Protocol,
    world::World,
};

pub const NAMES: [(&str, &str); 9] =
    [("x", "a"), ("x", "b"), ("x", "c"), ("y", "a"), ("y", "b"), ("y", "c"), ("z", "a"), ("z", "b"), ("z", "c")];
pub const PORTS: [u16; 2] = [80, 81];
pub const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

pub type Name = (&'static str, &'static str);

/// One connection that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    pub from: Name,
    pub to: Name,
    pub protocol: Protocol,
    pub port: u16,
}

impl Probe {
    pub fn goes_to(&self, to: Name) -> bool {
        self.to == to
    }

    pub fn is(&self, protocol: Protocol, port: u16) -> bool {
        (self.protocol, self.port) == (protocol, port)
    }
}

/// Every connection between different Pods; a Pod reaches itself without anybody.
pub fn probes() -> Vec<Probe> {
    let mut all = Vec::new();
    for from in NAMES {
        for to in NAMES.into_iter().filter(|to| *to != from) {
            for protocol in PROTOCOLS {
                all.extend(PORTS.map(|port| Probe { from, to, protocol, port }));
            }
        }
    }
    all
}

/// The last two numbers of a Pod's addresses.
pub fn numbers((namespace, pod): Name) -> (u8, u8) {
    let at = |list: &str, name: &str| list.find(name).map_or(0, |at| at as u8 + 1);
    (at("xyz", namespace), at("abc", pod))
}

pub fn v4(name: Name) -> IpAddr {
    let (namespace, pod) = numbers(name);
    IpAddr::from([10, 77, namespace, pod])
}

pub fn v6(name: Name) -> IpAddr {
    let (namespace, pod) = numbers(name);
    IpAddr::from([0xfd77, 0, 0, 0, 0, 0, namespace.into(), pod.into()])
}

/// A Pod of this node. `web` is port 80, but 81 in each `c`.
pub fn facts(name: Name) -> Facts {
    let port = |name: &str, protocol, number| NamedPort { name: name.to_owned(), protocol, number };
    let web = if name.1 == "c" { 81 } else { 80 };
    Facts {
        namespace: name.0.to_owned(),
        labels: [("pod".to_owned(), name.1.to_owned())].into(),
        addresses: vec![v4(name), v6(name)],
        ports: vec![port("web", Protocol::Tcp, web), port("dns", Protocol::Udp, 81)],
        is_local: true,
    }
}

pub fn id(name: Name) -> String {
    format!("{}/{}", name.0, name.1)
}

/// The name of a NetworkPolicy.
pub fn name(namespace: &str, name: &str) -> PolicyName {
    PolicyName::new(PolicyKind::Network, Key::new(namespace, name))
}

pub fn read(name: &PolicyName, spec: &Value) -> Policy {
    if name.kind != PolicyKind::Network {
        return admin::read(name.kind, spec);
    }
    let object = json!({"metadata": {"namespace": name.key.namespace, "name": name.key.name}, "spec": spec});
    Policy::of(&json::from_value(object).expect("a policy"))
}

pub fn world(policies: &[Written]) -> World {
    let mut world = World::default();
    for namespace in ["x", "y", "z"] {
        world.set_namespace(namespace, Some(&[("ns".to_owned(), namespace.to_owned())].into()));
    }
    for name in NAMES {
        world.set_pod(&id(name), Some(facts(name)));
    }
    for (name, spec) in policies {
        world.set_policy(name, Some(read(name, spec)));
    }
    world
}

/// A policy's name and spec.
pub type Written = (PolicyName, Value);

pub struct Case {
    pub name: String,
    pub policies: Vec<Written>,
    pub passes: Box<dyn Fn(&Probe) -> bool>,
    /// About addresses of IPv4, so that over IPv6 something else is expected.
    pub only_v4: bool,
}

fn case(name: &str, policies: Vec<Written>, passes: impl Fn(&Probe) -> bool + 'static) -> Case {
    Case { name: name.to_owned(), policies, passes: Box::new(passes), only_v4: false }
}

fn v4_case(name: &str, policies: Vec<Written>, passes: impl Fn(&Probe) -> bool + 'static) -> Case {
    Case { only_v4: true, ..case(name, policies, passes) }
}

const XA: Name = ("x", "a");

/// A selector of one label.
pub fn label(key: &str, value: &str) -> Value {
    json!({"matchLabels": {key: value}})
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

/// One policy in `x` about the Pod `a`.
fn about_a(name: &str, mut spec: Value) -> Vec<Written> {
    spec["podSelector"] = label("pod", "a");
    vec![network("x", name, spec)]
}

/// A NetworkPolicy.
pub fn network(namespace: &str, name: &str, spec: Value) -> Written {
    (self::name(namespace, name), spec)
}

fn from_a(name: &str, egress: Value) -> Vec<Written> {
    about_a(name, json!({"policyTypes": ["Egress"], "egress": egress}))
}

pub fn cases() -> Vec<Case> {
    let mut all = whom_and_from_where();
    all.extend(ports());
    all.extend(egress());
    all.extend(blocks());
    all.extend(administrators::cases());
    all
}

fn whom_and_from_where() -> Vec<Case> {
    let not_x = || expression("ns", "NotIn", &["x"]);
    vec![
        case("no policy", vec![], |_| true),
        case("deny all ingress", vec![network("x", "deny", json!({"podSelector": {}}))], |p| p.to.0 != "x"),
        case(
            "deny all",
            vec![network("x", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))],
            |p| p.to.0 != "x" && p.from.0 != "x",
        ),
        case(
            "allow all beside deny all",
            vec![
                network("x", "deny", json!({"podSelector": {}})),
                network("x", "allow", json!({"podSelector": {}, "ingress": [{}]})),
            ],
            |_| true,
        ),
        case(
            "from a Pod of the same namespace",
            about_a("b", json!({"ingress": [{"from": [{"podSelector": label("pod", "b")}]}]})),
            |p| !p.goes_to(XA) || p.from == ("x", "b"),
        ),
        case(
            "from a Pod by an expression",
            about_a("b", json!({"ingress": [{"from": [{"podSelector": expression("pod", "In", &["b"])}]}]})),
            |p| !p.goes_to(XA) || p.from == ("x", "b"),
        ),
        case(
            "from all Pods of the same namespace",
            about_a("own", json!({"ingress": [{"from": [{"podSelector": {}}]}]})),
            |p| !p.goes_to(XA) || p.from.0 == "x",
        ),
        case(
            "one Pod is open among closed ones",
            [
                vec![network("x", "deny", json!({"podSelector": {}}))],
                about_a("allow", json!({"ingress": [{"from": [{"podSelector": {}, "namespaceSelector": {}}]}]})),
            ]
            .concat(),
            |p| p.to.0 != "x" || p.to == XA,
        ),
        case(
            "from all namespaces",
            about_a("all", json!({"ingress": [{"from": [{"namespaceSelector": {}}]}]})),
            |_| true,
        ),
        case(
            "from one namespace",
            about_a("y", json!({"ingress": [{"from": [{"namespaceSelector": label("ns", "y")}]}]})),
            |p| !p.goes_to(XA) || p.from.0 == "y",
        ),
        case(
            "from other namespaces or one Pod",
            about_a(
                "or",
                json!({"ingress": [{"from": [{"namespaceSelector": not_x()}, {"podSelector": label("pod", "b")}]}]}),
            ),
            |p| !p.goes_to(XA) || p.from.0 != "x" || p.from.1 == "b",
        ),
        case(
            "from one Pod of other namespaces",
            about_a(
                "and",
                json!({"ingress": [{"from": [{"namespaceSelector": not_x(), "podSelector": label("pod", "b")}]}]}),
            ),
            |p| !p.goes_to(XA) || (p.from.0 != "x" && p.from.1 == "b"),
        ),
        case(
            "several policies add up",
            [
                about_a("one", json!({"ingress": [{"from": [{"podSelector": label("pod", "b")}]}]})),
                about_a("two", json!({"ingress": [{"from": [{"namespaceSelector": label("ns", "z")}]}]})),
            ]
            .concat(),
            |p| !p.goes_to(XA) || p.from == ("x", "b") || p.from.0 == "z",
        ),
        case("a rule for nobody", about_a("none", json!({"ingress": []})), |p| !p.goes_to(XA)),
    ]
}

fn ports() -> Vec<Case> {
    let numbered = |port: Value| about_a("port", json!({"ingress": [{"ports": [port]}]}));
    vec![
        case("a port", numbered(json!({"port": 81})), |p| !p.goes_to(XA) || p.is(Protocol::Tcp, 81)),
        case("a port of UDP, and so none of TCP", numbered(json!({"port": 81, "protocol": "UDP"})), |p| {
            !p.goes_to(XA) || p.is(Protocol::Udp, 81)
        }),
        case("a port of SCTP", numbered(json!({"port": 80, "protocol": "SCTP"})), |p| {
            !p.goes_to(XA) || p.is(Protocol::Sctp, 80)
        }),
        case("a protocol", numbered(json!({"protocol": "UDP"})), |p| !p.goes_to(XA) || p.protocol == Protocol::Udp),
        case("a range of ports", numbered(json!({"port": 81, "endPort": 85})), |p| {
            !p.goes_to(XA) || p.is(Protocol::Tcp, 81)
        }),
        case(
            "ranges that overlap",
            about_a(
                "port",
                json!({"ingress": [{"ports": [{"port": 70, "endPort": 80}, {"port": 75, "endPort": 90}]}]}),
            ),
            |p| !p.goes_to(XA) || p.protocol == Protocol::Tcp,
        ),
        case(
            "a port from one namespace, another from another one",
            vec![
                network(
                    "x",
                    "one",
                    json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": label("ns", "y")}], "ports": [{"port": 80}]}]}),
                ),
                network(
                    "x",
                    "two",
                    json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": label("ns", "z")}], "ports": [{"port": 81}]}]}),
                ),
            ],
            |p| {
                p.to.0 != "x"
                    || (p.from.0 == "y" && p.is(Protocol::Tcp, 80))
                    || (p.from.0 == "z" && p.is(Protocol::Tcp, 81))
            },
        ),
        case(
            "a named port is each Pod's own",
            vec![network("x", "web", json!({"podSelector": {}, "ingress": [{"ports": [{"port": "web"}]}]}))],
            |p| p.to.0 != "x" || p.is(Protocol::Tcp, if p.to.1 == "c" { 81 } else { 80 }),
        ),
        case(
            "a named port has its protocol",
            vec![network(
                "x",
                "dns",
                json!({"podSelector": {}, "ingress": [{"ports": [{"port": "dns", "protocol": "UDP"}, {"port": "dns"}]}]}),
            )],
            |p| p.to.0 != "x" || p.is(Protocol::Udp, 81),
        ),
    ]
}

fn egress() -> Vec<Case> {
    vec![
        case("no egress", from_a("deny", json!([])), |p| p.from != XA),
        case(
            "rules of the other direction isolate nobody",
            about_a("egress", json!({"policyTypes": ["Egress"], "ingress": [], "egress": [{}]})),
            |_| true,
        ),
        case(
            "egress to one Pod of other namespaces",
            from_a("to", json!([{"to": [{"namespaceSelector": label("ns", "y"), "podSelector": label("pod", "b")}]}])),
            |p| p.from != XA || p.to == ("y", "b"),
        ),
        case("egress to a port", from_a("port", json!([{"ports": [{"port": 80, "protocol": "UDP"}]}])), |p| {
            p.from != XA || p.is(Protocol::Udp, 80)
        }),
        case(
            "egress to a named port, which is the called Pod's",
            from_a("web", json!([{"to": [{"namespaceSelector": label("ns", "z")}], "ports": [{"port": "web"}]}])),
            |p| p.from != XA || (p.to.0 == "z" && p.is(Protocol::Tcp, if p.to.1 == "c" { 81 } else { 80 })),
        ),
        case(
            "a connection needs both ends",
            [
                from_a("out", json!([{"to": [{"namespaceSelector": label("ns", "y")}]}])),
                vec![network(
                    "y",
                    "in",
                    json!({"podSelector": label("pod", "a"), "ingress": [{"from": [{"podSelector": {}}]}]}),
                )],
            ]
            .concat(),
            |p| {
                let out = p.from != XA || p.to.0 == "y";
                let into = p.to != ("y", "a") || p.from.0 == "y";
                out && into
            },
        ),
    ]
}

fn blocks() -> Vec<Case> {
    vec![
        v4_case("egress to a block", from_a("block", json!([{"to": [{"ipBlock": {"cidr": "10.77.2.0/24"}}]}])), |p| {
            p.from != XA || p.to.0 == "y"
        }),
        v4_case(
            "egress to a block with exceptions",
            from_a(
                "block",
                json!([{"to": [{"ipBlock": {"cidr": "10.77.0.0/16", "except": ["10.77.2.0/24", "10.77.2.1/32"]}}]}]),
            ),
            |p| p.from != XA || p.to.0 != "y",
        ),
        v4_case(
            "an exception of one policy is open by another",
            [
                from_a("except", json!([{"to": [{"ipBlock": {"cidr": "10.77.2.0/24", "except": ["10.77.2.1/32"]}}]}])),
                from_a("allow", json!([{"to": [{"ipBlock": {"cidr": "10.77.2.1/32"}}]}])),
            ]
            .concat(),
            |p| p.from != XA || p.to.0 == "y",
        ),
        v4_case(
            "ingress from everywhere but some",
            about_a(
                "all",
                json!({"ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.77.3.2/31"]}}]}]}),
            ),
            |p| !p.goes_to(XA) || !matches!(p.from, ("z", "b" | "c")),
        ),
        case(
            "a block of the other family allows nobody of this one",
            about_a(
                "v6",
                json!({"ingress": [{"from": [{"ipBlock": {"cidr": "fd77::3:0/112"}}, {"ipBlock": {"cidr": "10.77.3.0/24", "except": ["10.77.3.9/32"]}}]}]}),
            ),
            |p| !p.goes_to(XA) || p.from.0 == "z",
        ),
    ]
}
