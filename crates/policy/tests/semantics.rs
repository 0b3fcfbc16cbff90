//! The meaning of policies, read off the tables that the kernel is to hold: upstream's truth tables, and changes on the
//! way.

mod cases;

use std::net::IpAddr;

use cases::{Name, Probe, v4, v6};
use client::Key;
use json::json;
use policy::{
    chain::Rule,
    group::{Element, GroupName},
    pod::Facts,
    rule::{Allow, Peer, Ports},
    tables::Tables,
    traffic::{Direction, Family},
    world::World,
};

/// Whether the tables let a first packet through.
struct Kernel<'a>(&'a Tables);

impl Kernel<'_> {
    fn passes(&self, probe: &Probe, address: fn(Name) -> IpAddr) -> bool {
        let (from, to) = (address(probe.from), address(probe.to));
        from == to
            || Direction::ALL.into_iter().all(|direction| {
                let (own, other) = if direction == Direction::Ingress { (to, from) } else { (from, to) };
                match self.0.isolated.get(&(direction, own)) {
                    None => true,
                    Some(chain) => self.decide(chain, probe, other, to).expect("the last rule decides"),
                }
            })
    }

    fn decide(&self, chain: &str, probe: &Probe, other: IpAddr, to: IpAddr) -> Option<bool> {
        self.0.chains[chain].rules.iter().find_map(|rule| match rule {
            Rule::Allow(allow) => self.matches(allow, probe, other, to).then_some(true),
            Rule::Ask(name) => self.decide(name, probe, other, to),
            Rule::Drop => Some(false),
        })
    }

    fn holds(&self, group: &GroupName, element: Element) -> bool {
        self.0.groups[&(group.clone(), Family::of(element.address))].elements.contains(&element)
    }

    fn matches(&self, allow: &Allow, probe: &Probe, other: IpAddr, to: IpAddr) -> bool {
        let peer = match &allow.peer {
            Peer::Anyone => true,
            Peer::Pods(group) => self.holds(group, Element { address: other, port: None }),
            Peer::Block { within, except } => within.contains(&other) && !except.iter().any(|e| e.contains(&other)),
        };
        let port = match &allow.ports {
            Ports::Any => true,
            Ports::Protocol(protocol) => *protocol == probe.protocol,
            Ports::Numbers(protocol, ranges) => {
                *protocol == probe.protocol && ranges.iter().any(|r| r.contains(&probe.port))
            }
            Ports::Named(protocol, group) => {
                *protocol == probe.protocol && self.holds(group, Element { address: to, port: Some(probe.port) })
            }
        };
        peer && port
    }
}

fn check(world: &mut World, name: &str, only_v4: bool, expected: impl Fn(&Probe) -> bool) {
    let tables = world.plan();
    let families: &[fn(Name) -> IpAddr] = if only_v4 { &[v4] } else { &[v4, v6] };
    for address in families {
        let wrong: Vec<Probe> =
            cases::probes().into_iter().filter(|p| Kernel(&tables).passes(p, *address) != expected(p)).collect();
        assert!(wrong.is_empty(), "{name}: wrong for {} connections, such as {:?}", wrong.len(), wrong[0]);
    }
}

#[test]
fn every_case_lets_through_what_upstream_does() {
    for case in cases::cases() {
        check(&mut cases::world(&case.policies), case.name, case.only_v4, case.passes);
    }
}

#[test]
fn a_way_through_all_cases_ends_where_each_begins() {
    let all = cases::cases();
    let mut world = cases::world(&[]);
    for (at, case) in all.iter().enumerate() {
        for (namespace, name, spec) in &case.policies {
            world.set_policy(&Key::new(*namespace, *name), Some(cases::read(namespace, name, spec)));
        }
        // Policies of the case before stay only where this one has them too.
        for key in world.policies() {
            if !case.policies.iter().any(|(namespace, name, _)| key == Key::new(*namespace, *name)) {
                world.set_policy(&key, None);
            }
        }
        assert_eq!(world.plan(), cases::world(&case.policies).plan(), "case {at}: {}", case.name);
    }
    for key in world.policies() {
        world.set_policy(&key, None);
    }
    assert_eq!(world.plan(), Tables::default(), "nothing is left");
}

fn only_from_y() -> Vec<(&'static str, &'static str, json::Value)> {
    let spec = json!({"podSelector": {"matchLabels": {"pod": "a"}},
        "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"ns": "y"}}, "podSelector": {"matchLabels": {"pod": "b"}}}]}]});
    vec![("x", "only", spec)]
}

#[test]
fn labels_of_pods_and_namespaces_count_as_they_are_now() {
    let mut world = cases::world(&only_from_y());
    let to_a = |p: &Probe| p.to == ("x", "a");
    check(&mut world, "as written", false, |p| !to_a(p) || p.from == ("y", "b"));
    let relabelled =
        |name: Name, label: &str| Facts { labels: [("pod".to_owned(), label.to_owned())].into(), ..cases::facts(name) };
    world.set_pod("y/c", Some(relabelled(("y", "c"), "b")));
    check(&mut world, "a Pod joins", false, |p| !to_a(p) || p.from == ("y", "b") || p.from == ("y", "c"));
    world.set_namespace("y", Some(&[("ns".to_owned(), "other".to_owned())].into()));
    check(&mut world, "a namespace leaves", false, |p| !to_a(p));
    world.set_namespace("z", Some(&[("ns".to_owned(), "y".to_owned())].into()));
    check(&mut world, "another one joins", false, |p| !to_a(p) || p.from == ("z", "b"));
    world.set_pod("x/b", Some(relabelled(("x", "b"), "a")));
    let isolated = |p: &Probe| p.to == ("x", "a") || p.to == ("x", "b");
    check(&mut world, "a Pod is selected", false, |p| !isolated(p) || p.from == ("z", "b"));
    world.set_pod("x/a", Some(relabelled(("x", "a"), "z")));
    check(&mut world, "a Pod is selected no more", false, |p| p.to != ("x", "b") || p.from == ("z", "b"));
}

#[test]
fn changes_are_the_elements_that_differ() {
    let mut world = cases::world(&only_from_y());
    let before = world.plan();
    let labels = [("pod".to_owned(), "b".to_owned())].into();
    world.set_pod("y/c", Some(Facts { labels, ..cases::facts(("y", "c")) }));
    let after = world.plan();
    let text = before.changes(&after).text();
    assert_eq!(text.lines().count(), 2, "one element for each family: {text}");
    assert!(text.lines().all(|line| line.starts_with("add element inet skiff-policy pods-")), "{text}");
    assert!(text.contains("{ 10.77.2.3 }") && text.contains("{ fd77::2:3 }"), "{text}");
    assert!(after.changes(&after).is_empty());

    let mut spec = only_from_y().remove(0).2;
    spec["ingress"][0]["ports"] = json!([{"port": 80}]);
    world.set_policy(&Key::new("x", "only"), Some(cases::read("x", "only", &spec)));
    let text = after.changes(&world.plan()).text();
    assert_eq!(text.lines().filter(|l| l.starts_with("flush chain")).count(), 2, "{text}");
    assert!(!text.contains("element") && !text.contains("set"), "the policy's own chains alone: {text}");
}

#[test]
fn what_selects_no_pod_of_this_node_is_not_in_the_kernel() {
    let mut world = cases::world(&only_from_y());
    world.set_pod("x/a", Some(Facts { is_local: false, ..cases::facts(("x", "a")) }));
    assert_eq!(world.plan(), Tables::default());
}

#[test]
fn an_address_belongs_to_who_has_it_now() {
    let mut world = cases::world(&only_from_y());
    // The Pod that had y/b's address is still shown with it.
    let gone = Facts { labels: Default::default(), ..cases::facts(("y", "b")) };
    world.set_pod("y/b", None);
    world.set_pod("old", Some(gone.clone()));
    world.set_pod("y/b", Some(cases::facts(("y", "b"))));
    let only_b = |p: &Probe| p.to != ("x", "a") || p.from == ("y", "b");
    check(&mut world, "the new one", false, only_b);
    world.set_pod("old", Some(Facts { ports: Vec::new(), ..gone }));
    check(&mut world, "news of the old one", false, only_b);
    world.set_pod("old", None);
    check(&mut world, "the old one goes", false, only_b);
    // A Pod of another node cannot say that it has the address of one of ours.
    world.set_pod("liar", Some(Facts { is_local: false, namespace: "y".into(), ..cases::facts(("x", "a")) }));
    check(&mut world, "a lie", false, only_b);
}

/// nft reads all elements of all sets before it changes one: thousands of rules with sets of their own made that slow.
#[test]
fn no_rule_holds_a_set_of_its_own() {
    for case in cases::cases() {
        let text = Tables::default().changes(&cases::world(&case.policies).plan()).text();
        let with_set = text.lines().filter(|l| l.starts_with("add rule")).find(|l| l.contains('{'));
        assert_eq!(with_set, None, "{}", case.name);
    }
}
