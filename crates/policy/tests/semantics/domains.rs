//! Domains as peers: the addresses that DNS gave them, for as long as it said, and within bounds.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use crate::cases::{
    self, Probe,
    administrators::{ADMIN, BASELINE, CLUSTER, CLUSTER_BASELINE, Form, Port, namespace},
    v4,
};
use crate::reading::{Kernel, Packet};
use json::{Value, json};
use policy::{
    admin,
    rule::{Action, Clause, Policy},
    tables::Tables,
    traffic::{Direction, Protocol},
    world::World,
};

const FORMS: [Form; 3] = [ADMIN, CLUSTER, CLUSTER_BASELINE];

fn rule(form: Form, action: Action, peer: &Value, ports: &[Port]) -> (Direction, Value) {
    (Direction::Egress, form.rule(Direction::Egress, action, std::slice::from_ref(peer), ports))
}

/// A policy that closes all but two domains, which are open at one port.
fn world(form: Form) -> World {
    let names = json!({"domainNames": ["Kubernetes.io.", "*.example.org"]});
    let rules = [
        rule(form, Action::Allow, &names, &[Port::Number(Protocol::Tcp, 443)]),
        rule(form, Action::Deny, &json!({"networks": ["0.0.0.0/0"]}), &[]),
    ];
    cases::world(&[form.policy("names", 1, namespace("x"), &rules)])
}

fn is_open(tables: &Tables, to: [u8; 4], port: u16) -> bool {
    let probe = Probe { from: ("x", "a"), to: ("x", "a"), protocol: Protocol::Tcp, port };
    Kernel(tables).forwards(Packet { probe: &probe, from: v4(probe.from), to: to.into() })
}

#[test]
fn a_domain_is_the_addresses_that_it_had_last() {
    for form in FORMS {
        let (mut world, now) = (world(form), clock::Instant::now());
        let (first, second) = ([198, 51, 100, 1], [198, 51, 100, 2]);
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        assert_eq!(world.domains().len(), 2);
        assert!(!is_open(&world.plan(), first, 443));
        assert!(world.learn("kubernetes.io", &[(first.into(), at(30))], now));
        assert!(!world.learn("kubernetes.io", &[(first.into(), at(20))], now), "the kernel knows it");
        assert!(!world.learn("www.kubernetes.io", &[(second.into(), at(30))], now), "another name");
        assert!(world.learn("a.b.example.org", &[(second.into(), at(60))], now));
        let plan = world.plan();
        assert!(is_open(&plan, first, 443) && is_open(&plan, second, 443) && !is_open(&plan, first, 80));
        assert_eq!(world.next_end(), Some(at(30)));
        world.end(at(30));
        let later = world.plan();
        assert!(!is_open(&later, first, 443) && is_open(&later, second, 443));
        let text = plan.changes(&later).text();
        assert_eq!(text.lines().count(), 1, "one element goes: {text}");
        assert!(text.starts_with("delete element") && text.contains("{ 198.51.100.1 }"), "{text}");
        world.end(at(60));
        assert_eq!((world.next_end(), is_open(&world.plan(), second, 443)), (None, false));
    }
}

#[test]
fn the_addresses_of_a_domain_are_bounded() {
    let (mut world, now) = (world(ADMIN), clock::Instant::now());
    let address = |n: u32| IpAddr::from(Ipv4Addr::from(0xc633_0000 + n));
    // Upstream wants a hundred for each name to be known, and a name may have thousands.
    for n in 0..5000u32 {
        world.learn("a.example.org", &[(address(n), now + Duration::from_secs(60 + u64::from(n)))], now);
    }
    let plan = world.plan();
    let known: Vec<usize> = plan.groups.values().map(|members| members.elements.len()).filter(|n| *n > 0).collect();
    assert_eq!(known, [4096]);
    let open = |n: u32| is_open(&plan, Ipv4Addr::from(0xc633_0000 + n).octets(), 443);
    assert!(open(4999) && open(5000 - 4096) && !open(5000 - 4097), "those that end first went");
}

#[test]
fn domains_are_for_rules_that_allow_and_for_nodes_that_learn_them() {
    let names = json!({"domainNames": ["kubernetes.io"]});
    let read = |form: Form, (_, rule): (Direction, Value), learns: bool| -> Policy {
        let (name, mut spec) = form.policy("names", 1, namespace("x"), &[]);
        spec["egress"] = json!([rule]);
        admin::read_as(name.kind, &spec, learns)
    };
    let check = |policy: Policy, why: &str| {
        let [problem] = policy.problems.as_slice() else { panic!("{:?}", policy.problems) };
        assert!(problem.contains(why), "{problem}");
        policy.egress.expect("it says something")
    };
    for form in FORMS {
        let allow = |peer: &Value, ports: &[Port]| rule(form, Action::Allow, peer, ports);
        assert!(read(form, allow(&names, &[]), true).problems.is_empty());
        assert_eq!(check(read(form, allow(&names, &[]), false), "without cluster DNS"), []);
        let deny = rule(form, Action::Deny, &names, &[]);
        assert_eq!(check(read(form, deny, true), "only rules that allow"), [Clause::DENY_ALL]);
        check(read(form, allow(&names, &[Port::Named("web")]), true), "only Pods have ports with names");
        for wrong in [json!(["io"]), json!(["a.*.io"]), json!([7]), json!([]), json!("a.io")] {
            assert_eq!(check(read(form, allow(&json!({"domainNames": wrong}), &[]), true), "to[0]"), []);
        }
    }
    check(read(BASELINE, rule(BASELINE, Action::Allow, &names, &[]), true), "\"domainNames\" is not known");
}
