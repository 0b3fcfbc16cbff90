//! Policies of administrators in each of their forms, and which connections these let through, as the conformance tests of
//! kubernetes-sigs/network-policy-api have them: `x` is the subject, `y` what all rules of a kind are about, `z` what some
//! ports of are.

use client::Key;
use json::{Value, json};
use policy::{
    kind::{PolicyKind, PolicyName, Tier},
    rule::Action,
    traffic::{Direction, Protocol},
};

use super::{Case, Name, PROTOCOLS, Probe, Written, XA, case, expression, label, network, v4_case};

/// A kind of policy, in one of its tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    pub kind: PolicyKind,
    pub tier: Tier,
}

pub const ADMIN: Form = Form { kind: PolicyKind::Admin, tier: Tier::Admin };
pub const BASELINE: Form = Form { kind: PolicyKind::BaselineAdmin, tier: Tier::Baseline };
pub const CLUSTER: Form = Form { kind: PolicyKind::Cluster, tier: Tier::Admin };
pub const CLUSTER_BASELINE: Form = Form { kind: PolicyKind::Cluster, tier: Tier::Baseline };
pub const FORMS: [Form; 4] = [ADMIN, BASELINE, CLUSTER, CLUSTER_BASELINE];

#[derive(Debug, Clone, Copy)]
pub enum Port {
    Number(Protocol, u16),
    Range(Protocol, u16, u16),
    Named(&'static str),
}

impl Form {
    /// Whether its rules can pass connections on.
    pub fn passes_on(self) -> bool {
        self != BASELINE
    }

    fn is_cluster(self) -> bool {
        self.kind == PolicyKind::Cluster
    }

    fn port(self, port: &Port) -> Value {
        let name = |protocol: &Protocol| format!("{protocol:?}");
        match port {
            Port::Number(protocol, number) if self.is_cluster() => {
                json!({name(protocol).to_lowercase(): {"destinationPort": {"number": number}}})
            }
            Port::Number(protocol, number) => {
                json!({"portNumber": {"protocol": name(protocol).to_uppercase(), "port": number}})
            }
            Port::Range(protocol, start, end) if self.is_cluster() => {
                json!({name(protocol).to_lowercase(): {"destinationPort": {"range": {"start": start, "end": end}}}})
            }
            Port::Range(protocol, start, end) => {
                json!({"portRange": {"protocol": name(protocol).to_uppercase(), "start": start, "end": end}})
            }
            Port::Named(name) if self.is_cluster() => json!({ "destinationNamedPort": name }),
            Port::Named(name) => json!({ "namedPort": name }),
        }
    }

    pub fn rule(self, direction: Direction, action: Action, peers: &[Value], ports: &[Port]) -> Value {
        let action = match action {
            Action::Allow if self.is_cluster() => "Accept",
            Action::Allow => "Allow",
            Action::Deny => "Deny",
            Action::Pass => "Pass",
        };
        let other_end = if direction == Direction::Ingress { "from" } else { "to" };
        let mut rule = json!({"name": "a rule", "action": action, other_end: peers});
        if !ports.is_empty() {
            let field = if self.is_cluster() { "protocols" } else { "ports" };
            rule[field] = ports.iter().map(|port| self.port(port)).collect();
        }
        rule
    }

    pub fn name(self, name: &str) -> PolicyName {
        PolicyName::new(self.kind, Key::new("", name))
    }

    pub fn policy(self, name: &str, priority: i64, subject: Value, rules: &[(Direction, Value)]) -> Written {
        let mut spec = json!({"subject": subject});
        if self.kind != PolicyKind::BaselineAdmin {
            spec["priority"] = priority.into();
        }
        if self.is_cluster() {
            spec["tier"] = format!("{:?}", self.tier).into();
        }
        for direction in Direction::ALL {
            let of_direction = rules.iter().filter(|(of, _)| *of == direction);
            spec[direction.name()] = of_direction.map(|(_, rule)| rule.clone()).collect();
        }
        (self.name(name), spec)
    }
}

/// A namespace as a peer or a subject.
pub fn namespace(name: &str) -> Value {
    json!({"namespaces": label("ns", name)})
}

/// One Pod as a peer or a subject.
pub fn pod((namespace, pod): Name) -> Value {
    json!({"pods": {"namespaceSelector": label("ns", namespace), "podSelector": label("pod", pod)}})
}

/// The ends of a connection, its subject's first.
pub fn ends(probe: &Probe, direction: Direction) -> (Name, Name) {
    match direction {
        Direction::Ingress => (probe.to, probe.from),
        Direction::Egress => (probe.from, probe.to),
    }
}

/// The rules of the conformance tests that come first say `first` about `y`, and `then` about the first ports of a Pod of `z`.
#[derive(Debug, Clone)]
pub struct Gress {
    pub form: Form,
    pub first: Action,
    pub then: Action,
    pub directions: Vec<Direction>,
    pub protocols: Vec<Protocol>,
}

impl Gress {
    fn rules(&self, direction: Direction) -> Vec<(Direction, Value)> {
        let ports = |number: u16| -> Vec<Port> { self.protocols.iter().map(|p| Port::Number(*p, number)).collect() };
        let (some, closed, open) = (ports(80), pod(("z", "a")), pod(("z", "b")));
        let all = [Action::Allow, Action::Deny, Action::Pass];
        let first = [self.first].into_iter().chain(all.into_iter().filter(|action| *action != self.first));
        let first = first.map(|action| (action, namespace("y"), Vec::new()));
        let then = [self.then].into_iter().chain([Action::Deny, Action::Pass].into_iter().filter(|a| *a != self.then));
        let then = then.map(|action| (action, closed.clone(), some.clone()));
        let last = [(Action::Allow, open.clone(), ports(81)), (Action::Deny, open, Vec::new())];
        let rules =
            first.chain(then).chain(last).filter(|(action, ..)| *action != Action::Pass || self.form.passes_on());
        rules.map(|(action, peer, ports)| (direction, self.form.rule(direction, action, &[peer], &ports))).collect()
    }

    pub fn case(self) -> Case {
        let name = format!("{self:?}");
        let rules: Vec<_> = self.directions.iter().flat_map(|direction| self.rules(*direction)).collect();
        let policies = vec![self.form.policy("gress", 10, namespace("x"), &rules)];
        case(&name, policies, move |probe| self.directions.iter().all(|direction| self.passes(probe, *direction)))
    }

    fn passes(&self, probe: &Probe, direction: Direction) -> bool {
        let (own, other) = ends(probe, direction);
        let is_among = |number: u16| self.protocols.contains(&probe.protocol) && probe.port == number;
        match other {
            _ if own.0 != "x" => true,
            ("y", _) => self.first != Action::Deny,
            ("z", "a") => self.then != Action::Deny || !is_among(80),
            ("z", "b") => is_among(81),
            _ => true,
        }
    }
}

pub fn cases() -> Vec<Case> {
    let both = Direction::ALL.to_vec();
    let all =
        |form, first, then| Gress { form, first, then, directions: both.clone(), protocols: PROTOCOLS.to_vec() }.case();
    let mut cases: Vec<Case> = FORMS.map(|form| all(form, Action::Deny, Action::Deny)).into();
    cases.extend(FORMS.map(|form| all(form, Action::Allow, Action::Deny)));
    let passing = FORMS.into_iter().filter(|form| form.passes_on());
    cases.extend(passing.map(|form| all(form, Action::Pass, Action::Pass)));
    cases.extend(tiers());
    cases.extend(priorities());
    cases.extend(FORMS.into_iter().flat_map(|form| [networks(form), names(form), ranges(form)]));
    cases
}

/// `x` and `y`, in both directions.
fn about_y(form: Form, name: &str, priority: i64, action: Action) -> Written {
    let rules = Direction::ALL.map(|d| (d, form.rule(d, action, &[namespace("y")], &[])));
    form.policy(name, priority, namespace("x"), &rules)
}

fn between(probe: &Probe, a: &str, b: &str) -> bool {
    (probe.from.0, probe.to.0) == (a, b) || (probe.from.0, probe.to.0) == (b, a)
}

/// The owner of `x` lets in and out what comes from and goes to a namespace, and so nothing else.
pub fn owners(other: &str) -> Written {
    let peer = json!([{"namespaceSelector": label("ns", other)}]);
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peer}], "egress": [{"to": peer}]});
    network("x", "owners", spec)
}

fn tiers() -> Vec<Case> {
    let is_of_x = |p: &Probe| p.from.0 == "x" || p.to.0 == "x";
    let mut all = Vec::new();
    for (first, last) in [(ADMIN, BASELINE), (CLUSTER, CLUSTER_BASELINE), (ADMIN, CLUSTER_BASELINE)] {
        let denied = || about_y(last, "default", 10, Action::Deny);
        let of = |action| about_y(first, "pass-example", 10, action);
        all.extend([
            case("denied before the owner is asked", vec![of(Action::Deny), owners("y"), denied()], move |p| {
                !is_of_x(p)
            }),
            case("passed on to the owner, who decides", vec![of(Action::Pass), owners("y"), denied()], move |p| {
                !is_of_x(p) || between(p, "x", "y")
            }),
            case("passed on, without an owner's word, to the last", vec![of(Action::Pass), denied()], |p| {
                !between(p, "x", "y")
            }),
            case("allowed whatever the owner says", vec![of(Action::Allow), owners("z")], move |p| {
                !is_of_x(p) || between(p, "x", "y") || between(p, "x", "z")
            }),
            case("the last is asked of those alone that no owner isolates", vec![owners("y"), denied()], move |p| {
                !is_of_x(p) || between(p, "x", "y")
            }),
            case("an owner isolates in one direction", one_direction(denied()), |p| {
                let is_open = p.to.0 != "x" || p.from.0 == "y";
                is_open && (p.from.0, p.to.0) != ("x", "y")
            }),
        ]);
    }
    all
}

/// The owner of `x` says who comes in.
fn one_direction(last: Written) -> Vec<Written> {
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": label("ns", "y")}]}]});
    vec![network("x", "in", spec), last]
}

fn priorities() -> Vec<Case> {
    let mut all = Vec::new();
    for form in [ADMIN, CLUSTER] {
        let two = |priority| {
            let last = about_y(BASELINE, "default", 10, Action::Allow);
            vec![about_y(form, "priority-50", 50, Action::Deny), about_y(form, "moved", priority, Action::Pass), last]
        };
        all.push(case("the lower number is asked first", two(60), |p| !between(p, "x", "y")));
        all.push(case("and passes on", two(40), |_| true));
        let alike = vec![about_y(form, "b", 50, Action::Allow), about_y(form, "a", 50, Action::Deny)];
        all.push(case("among equals the name decides", alike, |p| !between(p, "x", "y")));
    }
    let across = vec![about_y(ADMIN, "a", 7, Action::Deny), about_y(CLUSTER, "b", 6, Action::Allow)];
    all.push(case("kinds of one tier share its order", across, |_| true));
    let baselines =
        vec![about_y(BASELINE, "default", 0, Action::Deny), about_y(CLUSTER_BASELINE, "b", 1000, Action::Allow)];
    all.push(case("without a priority it is the last", baselines, |_| true));
    all
}

fn networks(form: Form) -> Case {
    let to = |action, peers: &[Value]| (Direction::Egress, form.rule(Direction::Egress, action, peers, &[]));
    let rules = [
        to(Action::Allow, &[json!({"networks": ["10.77.2.1/32", "10.77.2.2/32"]})]),
        to(Action::Allow, &[json!({"pods": {"namespaceSelector": expression("ns", "In", &["z"]), "podSelector": {}}})]),
        to(Action::Deny, &[json!({"networks": ["0.0.0.0/0", "::/0"]})]),
    ];
    v4_case(&format!("networks, {form:?}"), vec![form.policy("cidr", 85, pod(XA), &rules)], |p| {
        p.from != XA || p.to.0 == "z" || matches!(p.to, ("y", "a" | "b"))
    })
}

fn names(form: Form) -> Case {
    let rules = Direction::ALL.map(|d| {
        let all = [json!({"namespaces": {}})];
        [
            (d, form.rule(d, Action::Allow, &all, &[Port::Named("web"), Port::Named("dns")])),
            (d, form.rule(d, Action::Deny, &all, &[])),
        ]
    });
    case(&format!("named ports, {form:?}"), vec![form.policy("web", 1, pod(XA), &rules.concat())], |p| {
        let web = if p.to.1 == "c" { 81 } else { 80 };
        (p.from != XA && p.to != XA) || p.is(Protocol::Tcp, web) || p.is(Protocol::Udp, 81)
    })
}

fn ranges(form: Form) -> Case {
    let deny = |ports: &[Port]| {
        (Direction::Ingress, form.rule(Direction::Ingress, Action::Deny, &[namespace("x"), namespace("z")], ports))
    };
    let rules = [deny(&[Port::Range(Protocol::Udp, 1, 80), Port::Range(Protocol::Tcp, 81, 90)])];
    case(&format!("ranges, {form:?}"), vec![form.policy("range", 1, json!({"namespaces": {}}), &rules)], |p| {
        p.from.0 == "y" || !(p.is(Protocol::Udp, 80) || p.is(Protocol::Tcp, 81))
    })
}
