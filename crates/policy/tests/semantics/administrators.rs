//! The meaning of administrators' policies, read off the tables that the kernel is to hold: the cases of the conformance tests
//! one by one, random policies against a second reading of the API, broken objects, and nodes.

use std::net::IpAddr;

use crate::cases::{
    self, NAMES, Name, PROTOCOLS, Probe, Written,
    administrators::{
        ADMIN, BASELINE, CLUSTER, CLUSTER_BASELINE, FORMS, Form, Gress, Port, ends, namespace, owners, pod,
    },
    label, network, v4, v6,
};
use crate::reading::{Kernel, Packet, check};
use json::{Value, json};
use policy::{
    admin,
    group::Selected,
    kind::Tier,
    node::NodeFacts,
    rule::{Action, Clause, Policy},
    tables::Tables,
    traffic::{Direction, Protocol},
    world::World,
};

#[test]
fn every_action_of_every_form_counts_for_each_protocol_and_direction() {
    for form in FORMS {
        let actions: &[Action] = &[Action::Allow, Action::Deny, Action::Pass];
        let actions = &actions[..if form.passes_on() { 3 } else { 2 }];
        for (direction, protocol) in Direction::ALL.into_iter().flat_map(|d| PROTOCOLS.map(|p| (d, p))) {
            for (first, then) in actions.iter().flat_map(|first| [(*first, Action::Deny), (*first, Action::Pass)]) {
                let then = if form.passes_on() { then } else { Action::Deny };
                let case = Gress { form, first, then, directions: vec![direction], protocols: vec![protocol] }.case();
                check(&mut cases::world(&case.policies), &case.name, case.only_v4, &case.passes);
            }
        }
    }
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        // A linear congruential generator; its upper bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Some Pods, as policies name them.
#[derive(Debug, Clone, Copy)]
enum Whom {
    Namespace(&'static str),
    Pod(Name),
    Everyone,
}

impl Whom {
    fn random(random: &mut Random) -> Self {
        match random.below(4) {
            0 => Whom::Everyone,
            1 => Whom::Pod(random.of(&NAMES)),
            _ => Whom::Namespace(random.of(&["x", "y", "z"])),
        }
    }

    fn written(self) -> Value {
        match self {
            Whom::Namespace(name) => namespace(name),
            Whom::Pod(name) => pod(name),
            Whom::Everyone => json!({"namespaces": {}}),
        }
    }

    fn has(self, name: Name) -> bool {
        match self {
            Whom::Namespace(namespace) => name.0 == namespace,
            Whom::Pod(pod) => name == pod,
            Whom::Everyone => true,
        }
    }
}

/// A rule: it is about these peers at this port of this protocol, or at all of them.
#[derive(Debug, Clone)]
struct Said {
    direction: Direction,
    action: Action,
    peers: Vec<Whom>,
    port: Option<(Protocol, u16)>,
}

#[derive(Debug, Clone)]
struct Spoken {
    form: Form,
    name: String,
    priority: i64,
    subject: Whom,
    rules: Vec<Said>,
}

impl Spoken {
    fn random(random: &mut Random, at: usize) -> Self {
        let form = random.of(&FORMS);
        let actions = [Action::Deny, Action::Allow, Action::Pass];
        let actions = &actions[..if form.passes_on() { 3 } else { 2 }];
        let rules = (0..1 + random.below(4)).map(|_| Said {
            direction: random.of(&Direction::ALL),
            action: random.of(actions),
            peers: (0..1 + random.below(2)).map(|_| Whom::random(random)).collect(),
            port: (random.below(2) == 0).then(|| (random.of(&PROTOCOLS), random.of(&cases::PORTS))),
        });
        let rules = rules.collect();
        Spoken { form, name: format!("p{at}"), priority: random.below(3) as i64, subject: Whom::random(random), rules }
    }

    fn written(&self) -> Written {
        let rules = self.rules.iter().map(|rule| {
            let peers: Vec<Value> = rule.peers.iter().map(|peer| peer.written()).collect();
            let ports: Vec<Port> =
                rule.port.iter().map(|(protocol, number)| Port::Number(*protocol, *number)).collect();
            (rule.direction, self.form.rule(rule.direction, rule.action, &peers, &ports))
        });
        self.form.policy(&self.name, self.priority, self.subject.written(), &rules.collect::<Vec<_>>())
    }

    fn order(&self) -> (i64, String) {
        (if self.form == BASELINE { i64::MAX } else { self.priority }, self.name.clone())
    }

    /// The first of its rules that is about a connection.
    fn says(&self, probe: &Probe, direction: Direction) -> Option<Action> {
        let (own, other) = ends(probe, direction);
        let is_about = |rule: &&Said| {
            rule.direction == direction
                && rule.peers.iter().any(|peer| peer.has(other))
                && rule.port.is_none_or(|port| port == (probe.protocol, probe.port))
        };
        self.rules.iter().filter(|_| self.subject.has(own)).find(is_about).map(|rule| rule.action)
    }
}

/// The API's order, without chains, groups or addresses: `owner` is the namespace whose Pods speak with `y` alone.
fn expected(spoken: &[Spoken], owner: Option<&str>, probe: &Probe) -> bool {
    Direction::ALL.into_iter().all(|direction| {
        let (own, other) = ends(probe, direction);
        let word = |tier: Tier| {
            let mut of_tier: Vec<&Spoken> = spoken.iter().filter(|policy| policy.form.tier == tier).collect();
            of_tier.sort_by_key(|policy| policy.order());
            of_tier.iter().find_map(|policy| policy.says(probe, direction))
        };
        match word(Tier::Admin) {
            Some(Action::Allow) => true,
            Some(Action::Deny) => false,
            _ if owner == Some(own.0) => other.0 == "y",
            _ => word(Tier::Baseline) != Some(Action::Deny),
        }
    })
}

#[test]
fn random_policies_decide_in_the_order_of_the_api_and_however_they_came_about() {
    let mut world = cases::world(&[]);
    for seed in 0..150 {
        let mut random = Random(seed);
        let spoken: Vec<Spoken> = (0..1 + random.below(6)).map(|at| Spoken::random(&mut random, at)).collect();
        let owner = (random.below(2) == 0).then_some("x");
        let mut policies: Vec<Written> = spoken.iter().map(Spoken::written).collect();
        policies.extend(owner.map(|_| owners("y")));
        check(&mut cases::world(&policies), &format!("seed {seed}: {spoken:?}"), false, |p| {
            expected(&spoken, owner, p)
        });
        for (name, spec) in &policies {
            world.set_policy(name, Some(cases::read(name, spec)));
        }
        for known in world.policies().into_iter().filter(|known| !policies.iter().any(|(name, _)| name == known)) {
            world.set_policy(&known, None);
        }
        assert_eq!(world.plan(), cases::world(&policies).plan(), "seed {seed}: change by change");
    }
}

fn egress(form: Form, action: Action, peers: &[Value], ports: &[Port]) -> (Direction, Value) {
    (Direction::Egress, form.rule(Direction::Egress, action, peers, ports))
}

fn node(address: [u8; 4], role: &str) -> NodeFacts {
    NodeFacts { labels: [("role".to_owned(), role.to_owned())].into(), addresses: vec![IpAddr::from(address)] }
}

#[test]
fn nodes_are_peers_by_the_addresses_that_they_have_now() {
    for form in FORMS {
        let (servers, any) = (json!({"nodes": label("role", "server")}), json!({"nodes": {}}));
        let (http, other) = (Port::Number(Protocol::Tcp, 80), Port::Number(Protocol::Udp, 80));
        let mut rules = vec![egress(form, Action::Allow, std::slice::from_ref(&servers), &[http])];
        rules.extend(form.passes_on().then(|| egress(form, Action::Pass, std::slice::from_ref(&servers), &[other])));
        rules.push(egress(form, Action::Deny, &[any, json!({"networks": ["192.0.2.0/24"]})], &[]));
        let mut world = cases::world(&[]);
        let (name, spec) = form.policy("nodes", 1, namespace("x"), &rules);
        assert!(!world.asks_for_nodes());
        world.set_policy(&name, Some(cases::read(&name, &spec)));
        assert!(world.asks_for_nodes());
        let passes = |world: &mut World, to: [u8; 4], protocol, port| {
            let tables = world.plan();
            let probe = Probe { from: ("x", "a"), to: ("x", "a"), protocol, port };
            let packet = Packet { probe: &probe, from: v4(probe.from), to: to.into() };
            assert_eq!(Kernel(&tables).forwards(packet), Kernel(&tables).takes(packet), "another node, or its own");
            Kernel(&tables).takes(packet)
        };
        let of = [198, 51, 100, 1];
        assert!(passes(&mut world, of, Protocol::Tcp, 81), "a node that nobody knows");
        world.set_node("n", Some(node(of, "worker")));
        assert!(!passes(&mut world, of, Protocol::Tcp, 80));
        world.set_node("n", Some(node(of, "server")));
        assert!(passes(&mut world, of, Protocol::Tcp, 80) && !passes(&mut world, of, Protocol::Tcp, 81));
        assert_eq!(passes(&mut world, of, Protocol::Udp, 80), form.passes_on());
        // Two nodes that say the same, of which one goes.
        world.set_node("m", Some(node(of, "server")));
        world.set_node("n", None);
        assert!(!passes(&mut world, of, Protocol::Tcp, 81));
        world.set_node("m", None);
        assert!(passes(&mut world, of, Protocol::Tcp, 81));
        assert!(!passes(&mut world, [192, 0, 2, 9], Protocol::Tcp, 81), "a network needs no node");
        world.set_policy(&name, None);
        assert!(!world.asks_for_nodes());
    }
}

#[test]
fn a_way_to_its_own_node_is_closed_by_administrators_alone() {
    let packet = |probe| Packet { probe, from: v4(("x", "a")), to: [10, 77, 0, 1].into() };
    let probe = Probe { from: ("x", "a"), to: ("x", "a"), protocol: Protocol::Tcp, port: 80 };
    let everyone = [json!({"networks": ["0.0.0.0/0"]})];
    let deny = |form: Form| form.policy("default", 0, namespace("x"), &[egress(form, Action::Deny, &everyone, &[])]);
    let check = |name: &str, policies: &[Written], expected: bool| {
        assert_eq!(Kernel(&cases::world(policies).plan()).takes(packet(&probe)), expected, "{name}");
    };
    check("an owner isolates", &[owners("y")], true);
    check("first", &[deny(ADMIN)], false);
    check("last", &[deny(BASELINE)], false);
    check("an owner isolates, so that the last is not asked", &[owners("y"), deny(CLUSTER_BASELINE)], true);
    check("first, whatever the owner says", &[owners("y"), deny(CLUSTER)], false);
}

#[test]
fn a_pod_that_meets_itself_through_a_service_meets_administrators_but_no_owner() {
    let probe = Probe { from: ("x", "a"), to: ("x", "a"), protocol: Protocol::Tcp, port: 80 };
    let check = |policies: &[Written], expected: bool| {
        for address in [v4, v6] {
            let (tables, own) = (cases::world(policies).plan(), address(("x", "a")));
            let packet = Packet { probe: &probe, from: own, to: own };
            assert_eq!(Kernel(&tables).forwards(packet), expected, "{policies:?}");
        }
    };
    let deny = |form: Form, direction| {
        form.policy(
            "default",
            0,
            namespace("x"),
            &[(direction, form.rule(direction, Action::Deny, &[namespace("x")], &[]))],
        )
    };
    let ingress_only = || network("x", "in", json!({"podSelector": {}}));
    check(&[owners("y")], true);
    check(&[owners("y"), deny(ADMIN, Direction::Ingress)], false);
    check(&[deny(BASELINE, Direction::Ingress)], false);
    check(&[ingress_only(), deny(BASELINE, Direction::Ingress)], true);
    check(&[ingress_only(), deny(BASELINE, Direction::Egress)], false);
}

fn read(form: Form, spec: &Value) -> Policy {
    admin::read(form.kind, spec)
}

/// A policy of one egress rule, with this peer and these ports.
fn one_rule(form: Form, action: Action, peer: &Value, ports: Option<&Value>) -> Value {
    let mut spec = form.policy("p", 1, namespace("x"), &[egress(form, action, std::slice::from_ref(peer), &[])]).1;
    let field = if form.kind == CLUSTER.kind { "protocols" } else { "ports" };
    if let Some(ports) = ports {
        spec["egress"][0][field] = ports.clone();
    }
    spec
}

#[test]
fn a_rule_that_is_not_understood_fails_closed_and_is_told() {
    let check = |form: Form, peer: Value, ports: Option<Value>, why: &str| {
        let actions = [Action::Allow, Action::Deny, Action::Pass];
        // In the last tier a rule that passes on is one that allows.
        for action in &actions[..if form.tier == Tier::Admin { 3 } else { 2 }] {
            let policy = read(form, &one_rule(form, *action, &peer, ports.as_ref()));
            let expected = if *action == Action::Allow { vec![] } else { vec![Clause::DENY_ALL] };
            assert_eq!(policy.egress, Some(expected), "{form:?} {action:?} {peer} {ports:?}");
            assert!(policy.groups.is_empty(), "nothing is followed for it");
            let [problem] = policy.problems.as_slice() else { panic!("{:?}", policy.problems) };
            assert!(problem.starts_with("egress[0]: ") && problem.contains(why), "{problem}");
        }
    };
    let everyone = || json!({"namespaces": {}});
    for form in FORMS {
        for (peer, why) in [
            (json!({}), "no field is set"),
            (json!(null), "not an object"),
            (json!({"namespaces": null}), "no field is set"),
            (json!({"services": {}}), "\"services\" is not known"),
            (json!({"namespaces": {}, "nodes": {}}), "are set together"),
            (json!({"namespaces": {"sameLabels": ["a"]}}), "\"sameLabels\" is not known"),
            (json!({"namespaces": {"matchLabels": 7}}), "to[0]"),
            (json!({"namespaces": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}), "Like"),
            (json!({"namespaces": {"matchExpressions": [{"key": "a", "operator": "In"}]}}), "do not fit In"),
            (
                json!({"namespaces": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}),
                "do not fit",
            ),
            (json!({"pods": {"namespaceSelector": {}}}), "`podSelector` is missing"),
            (json!({"networks": []}), "nothing is listed"),
            (json!({"networks": ["10.0.0.0/8", "ten"]}), "\"ten\" is not a CIDR"),
            (json!({"networks": ["10.0.0.0/33"]}), "is not a CIDR"),
            (json!({"networks": ["10.0.0.1; flush ruleset"]}), "is not a CIDR"),
            (json!({"nodes": "all"}), "not an object"),
        ] {
            check(form, peer, None, why);
        }
    }
    for ports in [
        json!([]),
        json!({}),
        json!([{}]),
        json!([{"portNumber": {"port": 0}}]),
        json!([{"portNumber": {"port": 65536}}]),
        json!([{"portNumber": {"port": "80"}}]),
        json!([{"portNumber": {"protocol": "ICMP", "port": 8}}]),
        json!([{"portNumber": {"protocol": 6, "port": 8}}]),
        json!([{"portNumber": {"port": 8, "icmp": 1}}]),
        json!([{"portRange": {"start": 9, "end": 8}}]),
        json!([{"portRange": {"start": 9}}]),
        json!([{"namedPort": ""}]),
        json!([{"portNumber": {"port": 80}}, {"gre": {}}]),
    ] {
        check(ADMIN, everyone(), Some(ports.clone()), "ports: ");
        check(BASELINE, everyone(), Some(ports), "ports: ");
    }
    for ports in [
        json!([]),
        json!([{}]),
        json!([{"gre": {}}]),
        json!([{"tcp": {"sourcePort": {"number": 1}}}]),
        json!([{"tcp": {"destinationPort": {}}}]),
        json!([{"tcp": {"destinationPort": {"number": 80, "range": {"start": 1, "end": 2}}}}]),
        json!([{"sctp": {"destinationPort": {"range": {"start": 2, "end": 1}}}}]),
        json!([{"tcp": {}, "udp": {}}]),
        json!([{"portNumber": {"port": 80}}]),
    ] {
        check(CLUSTER, everyone(), Some(ports.clone()), "protocols: ");
        check(CLUSTER_BASELINE, everyone(), Some(ports), "protocols: ");
    }
    let named = || Some(json!([{"namedPort": "web"}]));
    check(ADMIN, json!({"nodes": {}}), named(), "only Pods have ports with names");
    check(ADMIN, json!({"networks": ["10.0.0.0/8"]}), named(), "only Pods have ports with names");
}

#[test]
fn what_is_understood_beside_a_broken_rule_counts() {
    let mut spec = ADMIN
        .policy(
            "p",
            1,
            namespace("x"),
            &[
                egress(ADMIN, Action::Allow, &[json!({"domainNames": ["io"]}), namespace("y")], &[]),
                egress(ADMIN, Action::Allow, &[namespace("z")], &[]),
                egress(ADMIN, Action::Deny, &[json!({})], &[]),
                egress(ADMIN, Action::Allow, &[namespace("y")], &[]),
            ],
        )
        .1;
    let mut world = cases::world(&[]);
    let name = ADMIN.name("p");
    world.set_policy(&name, Some(read(ADMIN, &spec)));
    check(&mut world, "closed", false, |p| p.from.0 != "x" || p.to.0 == "z");
    assert_eq!(read(ADMIN, &spec).problems.len(), 2, "behind a rule that denies everything nothing is read");
    // No rule of an order that is not understood is one.
    spec["priority"] = json!("first");
    world.set_policy(&name, Some(read(ADMIN, &spec)));
    check(&mut world, "without a place", false, |p| p.from.0 != "x");
    for (field, value) in [("action", json!("Log")), ("action", json!(7)), ("to", json!([])), ("when", json!("night"))]
    {
        let mut spec = one_rule(CLUSTER, Action::Deny, &namespace("y"), None);
        spec["egress"][0][field] = value;
        let policy = read(CLUSTER, &spec);
        assert_eq!((policy.egress, policy.problems.len()), (Some(vec![Clause::DENY_ALL]), 1), "{spec}");
    }
    let mut spec = one_rule(CLUSTER, Action::Deny, &namespace("y"), None);
    spec["tier"] = json!("Developer");
    assert_eq!((read(CLUSTER, &spec).egress, read(CLUSTER, &spec).tier), (Some(vec![Clause::DENY_ALL]), Tier::Admin));
    spec["egress"] = json!({});
    assert_eq!(read(CLUSTER, &spec).egress, Some(vec![Clause::DENY_ALL]));
    spec["egress"] = json!([]);
    assert_eq!(read(CLUSTER, &spec).egress, None, "no rules, no effect");
    // A baseline passes nothing on.
    let pass = one_rule(ADMIN, Action::Pass, &namespace("y"), None);
    assert_eq!(read(BASELINE, &pass).egress, Some(vec![Clause::DENY_ALL]));
}

#[test]
fn a_subject_that_is_not_understood_selects_nobody() {
    for form in FORMS {
        for subject in [
            json!(null),
            json!({}),
            json!({"serviceAccounts": {}}),
            json!({"namespaces": {}, "pods": {}}),
            json!({"pods": {"podSelector": {"matchFields": []}}}),
            json!("everybody"),
        ] {
            let (name, spec) =
                form.policy("p", 1, subject, &[egress(form, Action::Deny, &[json!({"namespaces": {}})], &[])]);
            let policy = cases::read(&name, &spec);
            assert_eq!(policy.subject, Selected::NOBODY, "{spec}");
            assert!(policy.problems[0].starts_with("subject: "), "{:?}", policy.problems);
            let mut world = cases::world(&[(name, spec)]);
            assert_eq!(world.plan(), Tables::default());
        }
        assert_eq!(read(form, &Value::Null).subject, Selected::NOBODY, "an object without a spec");
    }
}

#[test]
fn a_policy_of_any_size_is_few_rules_of_the_kernel() {
    let lines = |policy: &Policy| {
        let mut world = cases::world(&[]);
        world.set_policy(&ADMIN.name("p"), Some(policy.clone()));
        Tables::default().changes(&world.plan()).text().lines().filter(|line| line.starts_with("add rule")).count()
    };
    // Peers times ports.
    let peers: Vec<Value> = (0..1000).map(|at| json!({"namespaces": label("n", &at.to_string())})).collect();
    let ports: Vec<Value> = (0..1000).map(|at| json!({"portNumber": {"port": 2 * at + 1}})).collect();
    let mut spec = one_rule(ADMIN, Action::Deny, &namespace("y"), Some(&Value::Array(ports)));
    spec["egress"][0]["to"] = Value::Array(peers);
    let policy = read(ADMIN, &spec);
    assert_eq!(policy.egress, Some(vec![Clause::DENY_ALL]));
    assert!(policy.problems[0].contains("more than 10000 rules"), "{:?}", policy.problems);
    // Rules. Those that allow and find no room are about nothing, so what they would open stays to the others.
    let rule =
        |action: &str| json!({"action": action, "to": [{"namespaces": {}}, {"networks": ["10.0.0.0/8", "fd00::/8"]}]});
    for (action, closes) in [("Allow", false), ("Deny", true), ("Pass", true)] {
        spec["egress"] = Value::Array(vec![rule(action); 100_000]);
        let policy = read(ADMIN, &spec);
        let clauses = policy.egress.clone().expect("rules");
        assert!(clauses.len() <= 10_001, "{}", clauses.len());
        assert_eq!(clauses.last() == Some(&Clause::DENY_ALL), closes, "{action}");
        assert!((1..=9).contains(&policy.problems.len()), "{}", policy.problems.len());
        let lines = lines(&policy);
        assert!((10_000..50_000).contains(&lines), "{action}: {lines}");
    }
}

/// The words of both versions.
const WORDS: [&str; 30] = [
    "null",
    "-1",
    "65536",
    "1.5",
    "[]",
    "{}",
    ",",
    "\"\"",
    "subject",
    "priority",
    "tier",
    "action",
    "from",
    "to",
    "ports",
    "protocols",
    "namespaces",
    "pods",
    "nodes",
    "networks",
    "domainNames",
    "matchExpressions",
    "\"In\"",
    "\"NotIn\"",
    "\"Pass\"",
    "\"Deny\"",
    "portRange",
    "namedPort",
    "\"0.0.0.0/0\"",
    "\"::/0\"",
];

#[test]
fn objects_that_are_nearly_right_close_and_say_so() {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for form in FORMS {
        let peers = [namespace("y"), pod(("y", "a")), json!({"networks": ["10.77.0.0/16"]}), json!({"nodes": {}})];
        let ports = [Port::Number(Protocol::Tcp, 80), Port::Range(Protocol::Udp, 80, 90)];
        let rules = [
            egress(form, Action::Deny, &peers, &ports),
            egress(form, Action::Allow, &peers[..2], &[Port::Named("web")]),
            (Direction::Ingress, form.rule(Direction::Ingress, Action::Deny, &peers[..1], &[])),
        ];
        seeds.push(form.policy("p", 1, namespace("x"), &rules).1.to_string().into_bytes());
    }
    let found = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found"));
    fuzz::run(&fuzz::Target { name: "administrators", seeds, words: &WORDS, found }, |input| {
        let Some(spec) = std::str::from_utf8(input).ok().and_then(|text| json::parse(text).ok()) else {
            return "no JSON".to_owned();
        };
        let mut said = String::new();
        for form in FORMS {
            let policy = read(form, &spec);
            for direction in Direction::ALL {
                let closes = |problem: &String| {
                    problem.starts_with(direction.name()) && problem.ends_with("it denies everything")
                };
                let last = policy.clauses(direction).and_then(<[Clause]>::last);
                let is_closed = last == Some(&Clause::DENY_ALL);
                assert!(is_closed || !policy.problems.iter().any(closes), "{:?}", policy.problems);
            }
            let mut world = cases::world(&[]);
            world.set_policy(&form.name("p"), Some(policy.clone()));
            for line in Tables::default().changes(&world.plan()).text().lines() {
                let is_known =
                    ["add chain ", "add rule ", "add set ", "add element "].iter().any(|c| line.starts_with(c));
                let is_one = line.starts_with("add set ") || !line.contains(';');
                assert!(is_known && is_one && !line.contains('"'), "{line}");
            }
            let problems = policy.problems.iter().map(|problem| problem.split(' ').next_back().unwrap_or_default());
            said += &problems.collect::<String>();
            said += if policy.egress.is_some() { "e" } else { "" };
        }
        said
    });
}

#[test]
fn a_policy_that_changes_is_its_own_chain_unless_it_passes_on() {
    let rules = |action, peer: &str| [egress(ADMIN, action, &[namespace(peer)], &[])];
    let policies = [
        ADMIN.policy("first", 1, namespace("x"), &rules(Action::Deny, "y")),
        ADMIN.policy("second", 2, json!({"namespaces": {}}), &rules(Action::Pass, "y")),
    ];
    let mut world = cases::world(&policies);
    let before = world.plan();
    let changed = |world: &mut World, (name, spec): Written| {
        world.set_policy(&name, Some(cases::read(&name, &spec)));
        let text = before.changes(&world.plan()).text();
        let leads_elsewhere = |line: &str| line.contains(" element ") && line.contains(" : ");
        assert!(!text.lines().any(leads_elsewhere), "{text}");
        text.lines().filter(|line| line.starts_with("flush chain")).count()
    };
    let other = ADMIN.policy("first", 1, namespace("x"), &rules(Action::Deny, "x"));
    assert_eq!(changed(&mut world, other), 2, "its chain of each family");
    world.set_policy(&policies[0].0, Some(cases::read(&policies[0].0, &policies[0].1)));
    assert!(before.changes(&world.plan()).is_empty(), "and back");
    let other = ADMIN.policy("second", 2, json!({"namespaces": {}}), &rules(Action::Pass, "x"));
    assert_eq!(changed(&mut world, other), 4, "the chains of x, and of all others");
    world.set_policy(&policies[1].0, Some(cases::read(&policies[1].0, &policies[1].1)));
    // Beside a rule that passes on, all others stand in chains of the policy's own.
    let second = |peer: &str| {
        let rules = [(Action::Deny, "z"), (Action::Pass, "y"), (Action::Deny, peer)];
        let rules = rules.map(|(action, peer)| egress(ADMIN, action, &[namespace(peer)], &[]));
        ADMIN.policy("second", 2, json!({"namespaces": {}}), &rules)
    };
    let (name, spec) = second("y");
    world.set_policy(&name, Some(cases::read(&name, &spec)));
    let before = world.plan();
    let (name, spec) = second("x");
    world.set_policy(&name, Some(cases::read(&name, &spec)));
    let text = before.changes(&world.plan()).text();
    assert_eq!(text.lines().filter(|line| line.starts_with("flush chain")).count(), 2, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("add rule")).count(), 2, "{text}");
    check(&mut world, "each in its place", false, |p| p.to.0 == "y" && p.from.0 != "x");
}

#[test]
fn policies_of_different_kinds_may_have_one_name() {
    let deny = |form: Form, peer: &str| {
        let rule = form.rule(Direction::Ingress, Action::Deny, &[namespace(peer)], &[]);
        form.policy("owners", 1, namespace("x"), &[(Direction::Ingress, rule)])
    };
    let policies = [deny(ADMIN, "y"), deny(CLUSTER, "z"), deny(BASELINE, "x")];
    check(&mut cases::world(&policies), "three", false, |p| p.to.0 != "x");
    let mut world = cases::world(&[&policies[..], &[owners("y")]].concat());
    check(&mut world, "and one of a namespace", false, |p| {
        p.from.0 != "x" && p.to.0 != "x" || (p.from.0, p.to.0) == ("x", "y")
    });
}

#[test]
fn an_owner_lifts_no_word_of_an_administrator() {
    let deny = ADMIN.policy(
        "deny",
        1,
        namespace("x"),
        &[(Direction::Ingress, ADMIN.rule(Direction::Ingress, Action::Deny, &[namespace("y")], &[]))],
    );
    let mut world = cases::world(&[deny]);
    let closed = |p: &Probe| p.to.0 != "x" || p.from.0 != "y";
    check(&mut world, "as written", false, closed);
    let open = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    let (name, spec) = network("x", "open", open);
    world.set_policy(&name, Some(cases::read(&name, &spec)));
    check(&mut world, "a policy that opens everything", false, closed);
    // Labels of a Pod are its owner's, those of its namespace are not.
    let relabelled =
        policy::pod::Facts { labels: [("ns".to_owned(), "free".to_owned())].into(), ..cases::facts(("x", "a")) };
    world.set_pod("x/a", Some(relabelled));
    check(&mut world, "a Pod with the label of another namespace", false, closed);
    world.set_namespace("x", Some(&[("ns".to_owned(), "free".to_owned())].into()));
    check(&mut world, "its administrator lets the namespace go", false, |_| true);
}
