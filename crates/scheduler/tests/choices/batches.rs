//! One search serves several Pods of a class; the outcome is that of a search for each.

use std::collections::BTreeMap;

use crate::text::{engine, next, node, pod};
use clock::Instant;

/// How many Pods each node gets.
fn placed(engine: &mut scheduler::Engine, pods: usize) -> BTreeMap<String, usize> {
    let mut placed = BTreeMap::new();
    for i in 0..pods {
        engine.set_pod(&pod(&format!("p{i} cpu=1")), Instant::now());
        *placed.entry(next(engine)).or_default() += 1;
    }
    placed
}

#[test]
fn pods_of_a_class_fill_the_nodes_evenly() {
    let placed = placed(&mut engine(&["a", "b", "c", "d cpu=2"], &[]), 14);
    let full = "0/4 nodes are available: 4 Insufficient cpu.";
    let expected = [("a", 4), ("b", 4), ("c", 4), ("d", 2)];
    assert_eq!(placed, expected.map(|(name, pods)| (name.to_owned(), pods)).into(), "{full}");
}

#[test]
fn what_changes_between_two_pods_counts() {
    let now = Instant::now();
    let mut engine = engine(&["a cpu=9", "b cpu=4"], &[]);
    let try_one = |engine: &mut scheduler::Engine, name: &str, expected: &str| {
        engine.set_pod(&pod(&format!("{name} cpu=1")), now);
        assert_eq!(next(engine), expected, "{name}");
    };
    try_one(&mut engine, "p0", "a");
    engine.set_pod(&pod("big cpu=7 on=a"), now);
    try_one(&mut engine, "p1", "b");
    engine.remove_pod(&client::Key::new("default", "big"), now);
    try_one(&mut engine, "p2", "a");
    engine.set_node(&node("a cpu=9 cordoned"), now);
    try_one(&mut engine, "p3", "b");
    engine.set_node(&node("c cpu=90"), now);
    try_one(&mut engine, "p4", "c");
    engine.remove_node("c", now);
    try_one(&mut engine, "p5", "b");
    engine.set_node(&node("a cpu=9 taint=t:PreferNoSchedule"), now);
    try_one(&mut engine, "p6", "b");
    try_one(&mut engine, "p7", "a");
    // The failure of a Pod of greater priority, and its nomination, stand between two Pods.
    engine.set_pod(&pod("p8 cpu=9 priority=9"), now);
    let said = next(&mut engine);
    assert!(said.ends_with("must leave a"), "{said}");
    engine.set_pod(&pod("p9 cpu=1"), now);
    let full = "0/2 nodes are available: 2 Insufficient cpu.";
    assert_eq!(next(&mut engine), full, "the room on a is kept");
}

#[test]
fn a_large_cluster_is_used_in_all_its_parts() {
    let names: Vec<String> = (0..400).map(|i| format!("n{i} pods=3")).collect();
    let mut engine = engine(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let placed = placed(&mut engine, 1200);
    assert!(placed.values().all(|pods| *pods == 3) && placed.len() == 400, "{placed:?}");
}
