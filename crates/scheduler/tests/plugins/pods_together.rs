//! The part of other Pods in decisions: affinity between Pods, and spreading over domains.

use clock::Instant;
use json::{Value, json};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use scheduler::{
    args::Args,
    plugins::{inter_pod_affinity, pod_topology_spread},
};

use crate::text::{check, engine, next, pod, pod_with};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn selecting(key: &str, labels: Value) -> Value {
    json!({"topologyKey": key, "labelSelector": labels})
}

fn app(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

fn with(text: &str, kind: &str, terms: &[Value]) -> Pod {
    pod_with(text, json!({"affinity": {kind: {REQUIRED: terms}}}))
}

fn preferring(text: &str, kind: &str, terms: &[(i32, Value)]) -> Pod {
    let terms: Vec<_> = terms.iter().map(|(w, t)| json!({"weight": w, "podAffinityTerm": t})).collect();
    pod_with(text, json!({"affinity": {kind: {PREFERRED: terms}}}))
}

fn of_namespace(mut pod: Pod, namespace: &str) -> Pod {
    pod.metadata.namespace = Some(namespace.to_owned());
    pod
}

const NEAR: &str = "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.";
const APART: &str = "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.";
const REFUSED: &str = "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.";

#[test]
fn required_affinity_selects_pods() {
    let there = [pod("q on=a label=app:x label=tier:gold")];
    let one = ["a label=zone:x"];
    for (selector, expected) in [
        (app("x"), "a"),
        (app("y"), NEAR),
        (json!({}), "a"),
        (json!(null), NEAR),
        (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}), "a"),
        (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}), NEAR),
        (
            json!({"matchExpressions": [{"key": "tier", "operator": "Exists"},
            {"key": "none", "operator": "DoesNotExist"}]}),
            "a",
        ),
    ] {
        check(&one, &there, with("p label=app:x", "podAffinity", &[selecting("zone", selector)]), expected);
    }
    check(&one, &there, with("p", "podAffinity", &[selecting("rack", app("x"))]), NEAR);
    // All terms must be met by one and the same Pod.
    let both = [selecting("zone", app("x")), selecting("zone", json!({"matchLabels": {"tier": "tin"}}))];
    check(&one, &[there[0].clone(), pod("r on=a label=tier:tin")], with("p", "podAffinity", &both), NEAR);
    let both = [selecting("zone", app("x")), selecting("zone", json!({"matchLabels": {"tier": "gold"}}))];
    check(&one, &there, with("p", "podAffinity", &both), "a");
    // A Pod that all its terms select starts the group, but only where all keys are.
    let own = [selecting("zone", app("x")), selecting("rack", app("x"))];
    check(&one, &[], with("p label=app:x", "podAffinity", &own), NEAR);
    check(&["a label=zone:x label=rack:1"], &[], with("p label=app:x", "podAffinity", &own), "a");
    let nodes = ["a label=zone:x label=rack:1", "b label=zone:x label=rack:2"];
    check(&nodes, &[pod("q on=b label=app:x")], with("p label=app:x", "podAffinity", &own), "b");
}

#[test]
fn required_anti_affinity_works_both_ways() {
    let one = ["a label=zone:x"];
    let anti = |text: &str, name: &str| with(text, "podAntiAffinity", &[selecting("zone", app(name))]);
    check(&one, &[pod("q on=a label=app:x")], anti("p", "x"), APART);
    check(&one, &[anti("q on=a", "x")], pod("p label=app:x"), REFUSED);
    check(&one, &[anti("q on=a label=app:x", "x")], anti("p label=app:x", "x"), APART);
    check(&one, &[anti("q on=a", "y")], pod("p label=app:x"), "a");
    // A node without the key is in no domain, so nobody there is in the way.
    check(&["a"], &[pod("q on=a label=app:x")], anti("p", "x"), "a");
    check(&["a"], &[anti("q on=a", "x")], pod("p label=app:x"), "a");
    let two = [selecting("zone", app("none")), selecting("rack", app("x"))];
    let nodes = ["a label=zone:x label=rack:1", "b label=zone:x label=rack:2"];
    check(&nodes, &[pod("q on=a label=app:x")], with("p", "podAntiAffinity", &two), "b");
    let mixed = json!({"affinity": {"podAffinity": {REQUIRED: [selecting("zone", app("x"))]},
        "podAntiAffinity": {REQUIRED: [selecting("kubernetes.io/hostname", app("x"))]}}});
    check(&nodes, &[pod("q on=a label=app:x")], pod_with("p", mixed), "b");
}

#[test]
fn terms_are_about_namespaces() {
    let term = |more: Value| {
        let mut term = selecting("zone", app("x"));
        more.as_object().unwrap().iter().for_each(|(key, value)| term[key] = value.clone());
        term
    };
    let goes = |terms: Value, there: &str, expected: &str| {
        let mut engine = engine(&["a label=zone:x"], &[of_namespace(pod("q on=a label=app:x"), there)]);
        for (name, team) in [("default", "own"), ("one", "red"), ("two", "blue")] {
            let namespace: Namespace =
                json::from_value(json!({"metadata": {"name": name, "labels": {"team": team}}})).unwrap();
            engine.set_namespace(&namespace, Instant::now());
        }
        engine.set_pod(&with("p", "podAffinity", &[term(terms.clone())]), Instant::now());
        assert_eq!(next(&mut engine), expected, "{terms} {there}");
    };
    goes(json!({}), "default", "a");
    goes(json!({}), "one", NEAR);
    goes(json!({"namespaces": ["one"]}), "one", "a");
    goes(json!({"namespaces": ["one"]}), "default", NEAR);
    goes(json!({"namespaceSelector": {}}), "two", "a");
    let red = json!({"matchLabels": {"team": "red"}});
    goes(json!({"namespaceSelector": red}), "one", "a");
    goes(json!({"namespaceSelector": red}), "two", NEAR);
    goes(json!({"namespaceSelector": red}), "default", NEAR);
    goes(json!({"namespaces": ["two"], "namespaceSelector": red}), "two", "a");
    // An existing Pod's term looks at the namespace of the one that comes.
    let refusing = with("q on=a", "podAntiAffinity", &[term(json!({"namespaceSelector": red}))]);
    for (team, expected) in [("red", REFUSED), ("blue", "a")] {
        let mut engine = engine(&["a label=zone:x"], std::slice::from_ref(&refusing));
        let namespace = json!({"metadata": {"name": "mine", "labels": {"team": team}}});
        engine.set_namespace(&json::from_value(namespace).unwrap(), Instant::now());
        engine.set_pod(&of_namespace(pod("p label=app:x"), "mine"), Instant::now());
        assert_eq!(next(&mut engine), expected);
    }
}

#[test]
fn preferences_of_both_sides_are_scored() {
    let zones = ["a label=zone:x", "b label=zone:x", "c label=zone:y", "d"];
    let scored = |args: &Args, placed: &[Pod], waiting: Pod, expected: [i64; 4]| {
        let mut engine = engine(&zones, placed);
        let found = crate::scores(&inter_pod_affinity::PLUGIN, args, &mut engine, &waiting);
        assert_eq!(found, expected, "{placed:?} {waiting:?}");
    };
    let (plain, zone) = (Args::default(), |name: &str| selecting("zone", app(name)));
    let near = |text: &str, terms: &[(i32, Value)]| preferring(text, "podAffinity", terms);
    let apart = |text: &str, terms: &[(i32, Value)]| preferring(text, "podAntiAffinity", terms);
    let x = [pod("q on=a label=app:x")];
    scored(&plain, &x, pod("p"), [0; 4]);
    scored(&plain, &x, near("p", &[(5, zone("x"))]), [100, 100, 0, 0]);
    scored(&plain, &x, near("p", &[(5, zone("y"))]), [0; 4]);
    scored(&plain, &x, apart("p", &[(5, zone("x"))]), [0, 0, 100, 100]);
    let more = [pod("q on=a label=app:x"), pod("r on=b label=app:x"), pod("s on=c label=app:x")];
    scored(&plain, &more, near("p", &[(8, zone("x"))]), [100, 100, 50, 0]);
    scored(
        &plain,
        &more,
        near("p", &[(8, zone("x")), (2, selecting("kubernetes.io/hostname", app("x")))]),
        [100, 100, 55, 0],
    );
    // Those of the Pods that are there count as much, and required ones by the weight in the profile.
    scored(&plain, &[near("q on=c", &[(3, zone("x"))])], pod("p label=app:x"), [0, 0, 100, 0]);
    scored(&plain, &[apart("q on=c", &[(3, zone("x"))])], pod("p label=app:x"), [100, 100, 0, 100]);
    let hard = [with("q on=a", "podAffinity", &[zone("x")]), with("r on=c", "podAffinity", &[zone("z")])];
    scored(&plain, &hard, pod("p label=app:x"), [100, 100, 0, 0]);
    scored(&Args { hard_affinity_weight: 0, ..Args::default() }, &hard, pod("p label=app:x"), [0; 4]);
    let ignoring = Args { ignore_preferred_of_existing: true, ..Args::default() };
    scored(&ignoring, &[near("q on=c", &[(3, zone("x"))])], pod("p label=app:x"), [0; 4]);
}

fn constraint(key: &str, skew: i32, when: &str, more: Value) -> Value {
    let mut constraint = json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": app("x")});
    for (field, value) in more.as_object().into_iter().flatten() {
        constraint[field] = value.clone();
    }
    constraint
}

fn hard(key: &str, skew: i32, more: Value) -> Value {
    constraint(key, skew, "DoNotSchedule", more)
}

/// Pods in the given numbers on the given nodes.
fn counted(on: &[(&str, usize)]) -> Vec<Pod> {
    let of = |(node, count): &(&str, usize)| -> Vec<Pod> {
        (0..*count).map(|i| pod(&format!("{node}{i} on={node} label=app:x"))).collect()
    };
    on.iter().flat_map(of).collect()
}

fn spread(constraints: &[Value], more: Value) -> Pod {
    let mut spec = json!({"topologySpreadConstraints": constraints});
    more.as_object().into_iter().flatten().for_each(|(field, value)| spec[field] = value.clone());
    pod_with("p label=app:x", spec)
}

const NODES: [&str; 4] = ["a label=zone:1", "b label=zone:1", "x label=zone:2", "y label=zone:2"];
const SKEWED: &str = "node(s) didn't match pod topology spread constraints";
const MISSING: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

#[test]
fn hard_constraints_bound_the_skew() {
    let host = "kubernetes.io/hostname";
    let only = |open: &str, placed: &[Pod], waiting: Pod| check(&NODES, placed, waiting, open);
    only("y", &counted(&[("a", 1), ("b", 1), ("x", 1)]), spread(&[hard(host, 1, json!(null))], json!(null)));
    let fewer = counted(&[("a", 2), ("b", 1), ("x", 1)]);
    only("y", &fewer, spread(&[hard("zone", 1, json!(null)), hard(host, 1, json!(null))], json!(null)));
    // Each constraint leaves nodes, but no node is left by both.
    let opposed = counted(&[("a", 1), ("x", 1), ("y", 1)]);
    let both = spread(&[hard("zone", 1, json!(null)), hard(host, 1, json!(null))], json!(null));
    only("b", &opposed, both.clone());
    let opposed = counted(&[("a", 2), ("b", 1), ("x", 3)]);
    only("y", &opposed, spread(&[hard(host, 1, json!(null))], json!(null)));
    only(&format!("0/4 nodes are available: 4 {SKEWED}."), &counted(&[("a", 1), ("b", 1), ("y", 4)]), both);
    // Pods of other namespaces and other labels do not count.
    let mut other = counted(&[("a", 3)]);
    other.iter_mut().for_each(|pod| pod.metadata.namespace = Some("other".to_owned()));
    other.extend([pod("z on=a label=app:z")]);
    other.extend(counted(&[("x", 1)]));
    check(&[NODES[0], NODES[2]], &other, spread(&[hard("zone", 1, json!(null))], json!(null)), "a");
    let nothing_here = ["a", "x label=zone:2"];
    let full = format!("0/2 nodes are available: 1 {MISSING}, 1 node(s) were unschedulable.");
    check(&nothing_here, &[], spread(&[hard("zone", 1, json!(null))], json!(null)), "x");
    check(&["a", "x label=zone:2 cordoned"], &[], spread(&[hard("zone", 1, json!(null))], json!(null)), &full);
}

#[test]
fn constraints_have_policies() {
    let two = ["a label=zone:1", "x label=zone:2"];
    let one = counted(&[("a", 1), ("x", 1)]);
    let skewed = |count: usize| format!("0/2 nodes are available: {count} {SKEWED}.");
    let domains = |least: i32| spread(&[hard("zone", 1, json!({"minDomains": least}))], json!(null));
    check(&two, &one, domains(3), &skewed(2));
    check(&two, &counted(&[("a", 1)]), domains(3), "x");
    check(&two, &counted(&[("a", 1)]), domains(2), "x");
    let mut engine = engine(&two, &one);
    engine.set_pod(&domains(2), Instant::now());
    assert!(["a", "x"].contains(&&*next(&mut engine)), "there are two domains");
    // Nodes that the Pod cannot run on count only if the policy says so.
    let chosen = json!({"nodeSelector": {"zone": "1"}});
    let affinity = |policy: &str| hard("zone", 1, json!({"nodeAffinityPolicy": policy}));
    let unselected = "1 node(s) didn't match Pod's node affinity/selector";
    check(&two, &counted(&[("a", 1)]), spread(&[affinity("Honor")], chosen.clone()), "a");
    let told = format!("0/2 nodes are available: {unselected}, 1 {SKEWED}.");
    check(&two, &counted(&[("a", 1)]), spread(&[affinity("Ignore")], chosen), &told);
    let tainted = ["a label=zone:1", "x label=zone:2 taint=k:NoSchedule"];
    let taints = |policy: &str| spread(&[hard("zone", 1, json!({"nodeTaintsPolicy": policy}))], json!(null));
    check(&tainted, &counted(&[("a", 1)]), taints("Honor"), "a");
    let told = format!("0/2 nodes are available: 1 {SKEWED}, 1 node(s) had untolerated taint(s).");
    check(&tainted, &counted(&[("a", 1)]), taints("Ignore"), &told);
    // The Pod's own values of label keys narrow what is counted.
    let mut versioned = spread(&[hard("zone", 1, json!({"matchLabelKeys": ["version", "absent"]}))], json!(null));
    versioned.metadata.labels.get_or_insert_default().insert("version".to_owned(), "2".to_owned());
    let there = [pod("o on=a label=app:x label=version:1"), pod("n on=x label=app:x label=version:2")];
    check(&two, &there, versioned, "a");
}

#[test]
fn soft_constraints_are_scored() {
    let soft = |key: &str, skew: i32| constraint(key, skew, "ScheduleAnyway", json!(null));
    let scored = |nodes: &[&str], placed: &[Pod], constraints: &[Value], expected: &[i64]| {
        let mut engine = engine(nodes, placed);
        let waiting = spread(constraints, json!(null));
        let found = crate::scores(&pod_topology_spread::PLUGIN, &Args::default(), &mut engine, &waiting);
        assert_eq!(found, expected, "{nodes:?} {constraints:?}");
    };
    let host = "kubernetes.io/hostname";
    scored(&NODES, &[], &[soft(host, 1)], &[100; 4]);
    let uneven = counted(&[("a", 2), ("b", 1), ("y", 3)]);
    scored(&NODES, &uneven, &[soft(host, 1)], &[20, 60, 100, 0]);
    scored(&NODES[..2], &counted(&[("a", 2), ("b", 1)]), &[soft(host, 1)], &[33, 100]);
    // A greater skew tells nodes apart less.
    scored(&NODES, &uneven, &[soft(host, 2)], &[33, 66, 100, 16]);
    scored(&NODES, &counted(&[("a", 1), ("x", 1), ("y", 1)]), &[soft("zone", 1)], &[100, 100, 33, 33]);
    scored(&["a label=zone:1", "b"], &[], &[soft("zone", 1)], &[100, 0]);
    let both = [soft("zone", 1), soft(host, 1)];
    scored(&NODES, &counted(&[("a", 1), ("x", 1), ("y", 1)]), &both, &[60, 100, 20, 20]);
}
