//! The meaning of policies, read off the tables that the kernel is to hold: upstream's truth tables, and changes on the
//! way.

mod administrators;
#[path = "../cases/mod.rs"]
mod cases;
mod domains;
mod reading;

use cases::{Name, Probe, Written, name, network};
use json::json;
use policy::{pod::Facts, tables::Tables};
use reading::check;

#[test]
fn every_case_lets_through_what_upstream_does() {
    for case in cases::cases() {
        check(&mut cases::world(&case.policies), &case.name, case.only_v4, &case.passes);
    }
}

#[test]
fn a_way_through_all_cases_ends_where_each_begins() {
    let all = cases::cases();
    let mut world = cases::world(&[]);
    for (at, case) in all.iter().enumerate() {
        for (name, spec) in &case.policies {
            world.set_policy(name, Some(cases::read(name, spec)));
        }
        // Policies of the case before stay only where this one has them too.
        for known in world.policies() {
            if !case.policies.iter().any(|(name, _)| known == *name) {
                world.set_policy(&known, None);
            }
        }
        assert_eq!(world.plan(), cases::world(&case.policies).plan(), "case {at}: {}", case.name);
    }
    for known in world.policies() {
        world.set_policy(&known, None);
    }
    assert_eq!(world.plan(), Tables::default(), "nothing is left");
}

fn only_from_y() -> Vec<Written> {
    let spec = json!({"podSelector": {"matchLabels": {"pod": "a"}},
        "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"ns": "y"}}, "podSelector": {"matchLabels": {"pod": "b"}}}]}]});
    vec![network("x", "only", spec)]
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

    let mut spec = only_from_y().remove(0).1;
    spec["ingress"][0]["ports"] = json!([{"port": 80}]);
    let only = name("x", "only");
    world.set_policy(&only, Some(cases::read(&only, &spec)));
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
