//! Upstream's cases of the static policy, in our form.

use super::*;
use crate::affinity::{hints::fixture::words, requests::fixture::pod, topology::machines::*};

fn set(text: &str) -> CpuSet {
    CpuSet::read(text).unwrap()
}

fn policy(topology: Topology, options: CpuOptions, reserved: usize) -> CpuPolicy {
    CpuPolicy::new(Arc::new(topology), options, reserved, &CpuSet::default()).unwrap()
}

const PLAIN: CpuOptions = CpuOptions {
    full_cores: false,
    across_nodes: false,
    by_socket: false,
    across_cores: false,
    strict: false,
    by_cache: false,
};
const FULL: CpuOptions = CpuOptions { full_cores: true, ..PLAIN };

/// The shared processors, and in further words `uid/container=cpus`.
fn state(text: &str) -> CpuState {
    let mut state = CpuState::default();
    for (at, word) in text.split_whitespace().enumerate() {
        match word.split_once('=') {
            None if at == 0 => state.shared = set(word),
            None => panic!("{word}"),
            Some((whose, cpus)) => {
                let (uid, container) = whose.split_once('/').unwrap();
                state.assigned.entry(uid.to_owned()).or_default().insert(container.to_owned(), set(cpus));
            }
        }
    }
    state
}

/// All containers of the Pod, one after the other: `name=cpus`, or why one is refused.
fn give(policy: &CpuPolicy, state: &mut CpuState, pod: &Pod, nodes: Option<NodeMask>) -> String {
    let mut reusable = CpuSet::default();
    for container in requests::containers(pod) {
        if let Err(refusal) = policy.allocate(state, &mut reusable, (pod, container), nodes) {
            return format!("{}: {}", refusal.reason, refusal.message);
        }
    }
    let given = state.assigned.get("u").into_iter().flatten();
    given.map(|(name, cpus)| format!("{name}={cpus}")).collect::<Vec<_>>().join(" ")
}

fn check(policy: &CpuPolicy, before: &str, containers: &[&str], expected: &str) {
    let mut state = state(before);
    assert_eq!(give(policy, &mut state, &pod("u", containers), None), expected, "{before}: {containers:?}");
    assert!(state.exclusive().common(&state.shared).is_empty());
}

#[test]
fn what_an_earlier_kubelet_left_has_to_fit() {
    let check = |options: CpuOptions, reserved: usize, before: &str, expected: Result<&str, &str>| {
        let mut state = state(before);
        let started = policy(dual_socket_ht(), options, reserved).start(&mut state);
        let got = started.map(|()| state.shared.to_string());
        assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned), "{before}");
    };
    let strict = CpuOptions { strict: true, ..PLAIN };
    check(PLAIN, 0, "1-11 p/0=0", Ok("1-11"));
    check(PLAIN, 1, "", Ok("0-11"));
    check(PLAIN, 2, "0-1", Err("not all reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-1\""));
    check(PLAIN, 0, "2-11 p/0=0-2", Err("pod: p, container: 0 cpuset: \"0-2\" overlaps with default cpuset \"2-11\""));
    let other = "current set of available CPUs \"0-11\" doesn't match with CPUs in state";
    check(PLAIN, 0, "5-12 p/0=0-2 p/1=3-4", Err(&format!("{other} \"0-12\"")));
    check(PLAIN, 0, "5-10 p/0=0-2 p/1=3-4", Err(&format!("{other} \"0-10\"")));
    check(strict, 1, "", Ok("1-11"));
    check(strict, 2, "1-5,7-11", Ok("1-5,7-11"));
    let some = "some of strictly reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-11\"";
    check(strict, 2, "0-11", Err(some));
    let mut lost = CpuState { assigned: state("0 p/c=1").assigned, ..CpuState::default() };
    assert_eq!(policy(dual_socket_ht(), PLAIN, 0).start(&mut lost).unwrap_err(), "default cpuset cannot be empty");
}

#[test]
fn reserved_processors_are_those_that_are_named_or_the_first_ones() {
    let reserve = |topology: Topology, count, named: &str| {
        let policy = CpuPolicy::new(Arc::new(topology), PLAIN, count, &set(named));
        policy.map(|policy| policy.reserved.to_string())
    };
    assert_eq!(reserve(single_socket_ht(), 1, ""), Ok("0".into()));
    assert_eq!(reserve(single_socket_ht(), 2, ""), Ok("0,4".into()));
    assert_eq!(reserve(single_socket_ht(), 2, "0-1"), Ok("0-1".into()));
    let words = "[cpumanager] unable to reserve the required amount of CPUs";
    assert_eq!(reserve(single_socket_ht(), 1, "0-1"), Err(format!("{words} (size of 0-1 did not equal 1)")));
    assert_eq!(reserve(single_socket_ht(), 9, ""), Err(format!("{words} (size of  did not equal 9)")));
    assert!(reserve(single_socket_ht(), 2, "7-8").unwrap_err().ends_with("unknown CPU ID: 8"));
}

#[test]
fn whole_processors_are_given_to_one_container() {
    for options in [PLAIN, FULL] {
        let single = policy(single_socket_ht(), options, 1);
        let dual = policy(dual_socket_ht(), options, 1);
        let plain = policy(dual_socket(), options, 1);
        check(&single, "0,1,4,5 o/c=2,3,6,7", &["a 2"], "a=1,5");
        check(&dual, "0,1,3-11 o/c=2", &["a 6"], "a=1,3,5,7,9,11");
        check(&dual, "0,2-4,6-11 o/c=1,5", &["a 6"], "a=2-4,8-10");
        check(&plain, "0,1,3-7", &["a 4"], "a=4-7");
        check(&plain, "0,1,3,6,7 o/c=4,5", &["a 4"], "a=1,3,6-7");
        check(&dual, "0,1,3-11 o/c=2", &["a 8"], "a=1,3-5,7,9-11");
        check(&single, "0-7", &["a 977m"], "");
    }
    let unexpected = |wanted: usize, there: usize| {
        let why = format!("not enough cpus available to satisfy request: requested={wanted}, available={there}");
        format!("UnexpectedAdmissionError: Allocate failed due to {why}, which is unexpected")
    };
    let single = policy(single_socket_ht(), PLAIN, 1);
    check(&single, "0-7", &["a 1"], "a=4");
    check(&single, "0-7", &["a 8"], &unexpected(8, 7));
    check(&single, "0,1,4,5 u/a=2,3,6,7", &["a 4"], "a=2-3,6-7");
    check(&single, "0,7 o/c=1-6", &["a 2"], &unexpected(2, 1));
    check(&policy(dual_socket_ht(), PLAIN, 1), "0,4-11 o/c=1-3", &["a 10"], &unexpected(10, 8));
    let named = CpuPolicy::new(Arc::new(single_socket_ht()), PLAIN, 2, &set("0-1")).unwrap();
    check(&named, "0-7", &["a 1"], "a=4");
    check(&named, "0,1", &["a 1"], &unexpected(1, 0));
    check(&named, "0,1,4-7 o/c=2,3", &["a 2"], "a=4-5");
}

#[test]
fn whole_cores_alone_are_given_where_that_is_asked_for() {
    let single = policy(single_socket_ht(), FULL, 1);
    let words = "SMTAlignmentError: SMT Alignment Error:";
    let odd = format!("{words} requested 1 cpus not multiple cpus per core = 2");
    check(&single, "0-7", &["a 1"], &odd);
    check(&single, "0-7", &["a 2"], "a=1,5");
    // A reserved thread spoils its core.
    let named = CpuPolicy::new(Arc::new(single_socket_ht()), FULL, 2, &set("0-1")).unwrap();
    let amounts = "available physical CPUs = 4, requested CPUs = 6, CPUs per core = 2";
    check(&named, "0-7", &["a 6"], &format!("{words} not enough free physical CPUs: {amounts}"));
    check(&named, "0-7", &["a 4"], "a=2-3,6-7");
}

#[test]
fn init_containers_hand_on_what_they_had() {
    let single = policy(single_socket_ht(), PLAIN, 1);
    check(&single, "0-7", &["init i 2", "a 2"], "a=1,5 i=1,5");
    check(&single, "0-7", &["init i 4", "a 2"], "a=1,5 i=1-2,5-6");
    check(&single, "0-7", &["init i 2", "a 4"], "a=1-2,5-6 i=1,5");
    check(&single, "0-7", &["init i 4", "a 2", "b 2"], "a=1,5 b=2,6 i=1-2,5-6");
    check(&single, "0-7", &["init i 2", "init j 4", "a 4"], "a=1-2,5-6 i=1,5 j=1-2,5-6");
    // A sidecar keeps what it has.
    check(&single, "0-7", &["sidecar s 2", "init i 2", "a 2"], "a=2,6 i=2,6 s=1,5");
    check(&single, "0-7", &["init i 2", "sidecar s 2", "a 2"], "a=2,6 i=1,5 s=1,5");
}

#[test]
fn what_a_pod_had_is_shared_again_and_nothing_else() {
    let single = policy(single_socket_ht(), PLAIN, 1);
    let mut state = state("0-7");
    give(&single, &mut state, &pod("o", &["x 1"]), None);
    give(&single, &mut state, &pod("u", &["init i 4", "a 2", "b 2"]), None);
    assert_eq!(state.shared, set("0,3,7"));
    assert!(state.release("u") && !state.release("u"));
    assert_eq!((state.shared.to_string().as_str(), state.assigned.len()), ("0-3,5-7", 1));
}

#[test]
fn the_nodes_of_a_hint_are_used_first() {
    let dual = policy(dual_socket_ht(), PLAIN, 1);
    let on = |policy: &CpuPolicy, nodes: &[u32], before: &str, container: &str| {
        give(policy, &mut state(before), &pod("u", &[container]), Some(nodes.iter().copied().collect()))
    };
    assert_eq!(on(&dual, &[1], "0-11", "a 2"), "a=1,7");
    assert_eq!(on(&dual, &[0], "0-11", "a 2"), "a=2,8");
    assert_eq!(on(&dual, &[0], "0,2,3,9", "a 2"), "a=2-3");
    let by_socket = policy(multi_node_ht(), CpuOptions { by_socket: true, ..PLAIN }, 0);
    assert_eq!(on(&by_socket, &[0], "0-79", "a 40"), "a=0-19,40-59");
    // The processors that a socket has left lie on its other node.
    assert_eq!(on(&by_socket, &[0], "5,15,20-39", "a 2"), "a=5,15");
    assert_eq!(on(&policy(multi_node_ht(), PLAIN, 0), &[0], "5,20-39,15", "a 2"), "a=5,15");
}

#[test]
fn hints_name_all_nodes_that_have_enough() {
    let dual = policy(dual_socket_ht(), PLAIN, 1);
    let of = |policy: &CpuPolicy, before: &str, reusable: &str, container: &str| {
        let pod = pod("u", &[container]);
        let container = requests::containers(&pod).next().unwrap();
        let hints = policy.hints(&state(before), &set(reusable), (&pod, container));
        hints.map_or("none".to_owned(), |hints| words(&hints))
    };
    assert_eq!(of(&dual, "0-11", "", "a 2"), "0 1 -0,1");
    assert_eq!(of(&dual, "0-11", "", "a 6"), "1 -0,1");
    assert_eq!(of(&dual, "0-11", "", "a 11"), "0,1");
    assert_eq!(of(&dual, "0-11", "", "a 12"), "");
    assert_eq!(of(&dual, "0-11", "", "a 1500m"), "none");
    assert_eq!(of(&dual, "0,2,3,5", "", "a 4"), "");
    assert_eq!(of(&dual, "0,2,3,5", "", "a 3"), "-0,1");
    assert_eq!(of(&dual, "0,3,5", "2,8", "a 2"), "0 -0,1");
    // A container that has its processors is asked about those alone.
    assert_eq!(of(&dual, "0-6,8-11 u/a=7", "", "a 1"), "1 -0,1");
    assert_eq!(of(&dual, "0-6,8-11 u/a=7", "", "a 2"), "");
    let many = policy(multi_node_ht(), CpuOptions { by_socket: true, ..PLAIN }, 0);
    let hints = of(&many, "0-79", "", "a 4");
    assert!(hints.starts_with("0 1 2 3 0,1 -0,2 -1,2 -0,3 -1,3 2,3 -0,1,2"), "{hints}");
}

#[test]
fn hints_of_a_pod_count_what_runs_at_once() {
    let dual = policy(dual_socket_ht(), PLAIN, 1);
    let of = |before: &str, containers: &[&str]| {
        let hints = dual.hints_of_pod(&state(before), &pod("u", containers));
        hints.map_or("none".to_owned(), |hints| words(&hints))
    };
    assert_eq!(of("0-11", &["a 2", "b 4"]), "1 -0,1");
    assert_eq!(of("0-11", &["init i 6", "b 2"]), "1 -0,1");
    assert_eq!(of("0-11", &["a 500m"]), "none");
    assert_eq!(of("0,2-6,8-11 u/a=1,7", &["a 2", "b 2"]), "1 -0,1");
    assert_eq!(of("0,2,4-6,8,10-11 u/a=1,7 u/b=3,9", &["a 2", "b 2"]), "1 -0,1");
    assert_eq!(of("0,2-6,8-11 u/a=1,7", &["a 4", "b 2"]), "");
}
