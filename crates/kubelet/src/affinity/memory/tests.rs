//! Upstream's cases of the static policy, in our form.

use api::rules::pod::Resources;

use super::*;
use crate::affinity::{
    hints::fixture::{hint, words as in_words},
    requests::fixture::pod,
    topology::NumaNode,
};

const GIB: u64 = 1 << 30;

fn machine(nodes: &[u64]) -> Arc<Topology> {
    let node = |gib: &u64| NumaNode {
        memory: gib * GIB,
        huge_pages: [("hugepages-1Gi".to_owned(), GIB)].into(),
        ..NumaNode::default()
    };
    let nodes = nodes.iter().enumerate().map(|(number, gib)| (u32::try_from(number).unwrap(), node(gib)));
    Arc::new(Topology { nodes: nodes.collect(), ..Topology::default() })
}

fn reserved(node: u32, memory: &str) -> ReservedMemory {
    let limits: Resources = [("memory".to_owned(), memory.parse().unwrap())].into();
    ReservedMemory { node, limits }
}

/// Nodes of these numbers of GiB, of which one is in a huge page and one of the first node is reserved.
fn policy(nodes: &[u64]) -> (MemoryPolicy, MemoryState) {
    let policy = MemoryPolicy::new(machine(nodes), &[reserved(0, "1Gi")], &[("memory".to_owned(), GIB)].into());
    let (policy, mut state) = (policy.unwrap(), MemoryState::default());
    policy.start(&mut state).unwrap();
    (policy, state)
}

/// All containers of the Pod, one after the other, on the nodes of the hint: who has memory on which nodes, in GiB.
fn give(policy: &MemoryPolicy, state: &mut MemoryState, pod: &Pod, text: &str) -> Result<String, String> {
    let mut reusable = Reusable::new();
    for container in requests::containers(pod) {
        policy.allocate(state, &mut reusable, (pod, container), hint(text))?;
    }
    let block = |name: &str, block: &Block| {
        let nodes = block.numa_affinity.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let pages = if block.sort == "memory" { "" } else { "h" };
        format!("{name}={}{pages}@{nodes}", block.size / GIB)
    };
    let held = state.assigned.get(pod.metadata.uid.as_deref().unwrap()).into_iter().flatten();
    Ok(held.flat_map(|(name, blocks)| blocks.iter().map(move |b| block(name, b))).collect::<Vec<_>>().join(" "))
}

/// The regular memory that is free on each node, in GiB, and with whom it gives.
fn free(state: &MemoryState) -> String {
    let one = |node: &tables::NodeState| format!("{}{:?}", node.memory_map["memory"].free / GIB, node.cells);
    state.nodes.values().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_reserved_has_to_be_on_nodes_that_are_there_and_to_come_to_the_whole() {
    let make = |given: &[ReservedMemory], in_all: u64| {
        let made = MemoryPolicy::new(machine(&[4, 4]), given, &[("memory".to_owned(), in_all)].into());
        made.err().unwrap_or_default()
    };
    assert_eq!(make(&[reserved(0, "1Gi"), reserved(1, "1Gi")], 2 * GIB), "");
    let sum = "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"2Gi\" determined by Node Allocatable feature";
    assert_eq!(make(&[reserved(0, "1Gi")], 2 * GIB), sum);
    let there = "the reserved memory configuration references a NUMA node 2 that does not exist on this machine";
    assert_eq!(make(&[reserved(2, "1Gi")], GIB), there);
    assert_eq!(make(&[], 0), "[memorymanager] you should specify the system reserved memory");
}

#[test]
fn memory_is_given_by_as_few_nodes_as_have_it() {
    let (policy, mut state) = policy(&[6, 6]);
    assert_eq!(free(&state), "4[0] 5[1]");
    assert_eq!(give(&policy, &mut state, &pod("a", &["c 1 3Gi 1Gi"]), "any").unwrap(), "c=1h@0 c=3@0");
    assert_eq!(free(&state), "1[0] 5[1]");
    assert_eq!(give(&policy, &mut state, &pod("b", &["c 1 2Gi"]), "any").unwrap(), "c=2@1");
    // Both nodes give alone, so none gives with the other.
    let none = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
    assert_eq!(give(&policy, &mut state, &pod("d", &["c 1 4Gi"]), "any").unwrap_err(), words(none));
    assert!(MemoryPolicy::release(&mut state, "a") && MemoryPolicy::release(&mut state, "b"));
    assert_eq!(free(&state), "4[0] 5[1]");
    assert_eq!(give(&policy, &mut state, &pod("e", &["c 1 7Gi"]), "any").unwrap(), "c=7@0,1");
    assert_eq!(free(&state), "0[0, 1] 2[0, 1]");
    // A node that gives with another does not give alone; the same two give again.
    assert_eq!(give(&policy, &mut state, &pod("f", &["c 1 1Gi"]), "-any").unwrap(), "c=1@0,1");
    assert_eq!(
        give(&policy, &mut state, &pod("g", &["c 1 1Gi"]), "any").unwrap_err(),
        words("failed to find the default preferred hint")
    );
    MemoryPolicy::release(&mut state, "e");
    assert!(!MemoryPolicy::release(&mut state, "e"));
    assert_eq!(free(&state), "4[0, 1] 4[0, 1]");
    assert_eq!(give(&policy, &mut state, &pod("burst", &["c 500m 1Gi", "d"]), "any").unwrap(), "");
}

#[test]
fn a_hint_is_kept_to_or_widened() {
    let (policy, mut state) = policy(&[6, 6]);
    assert_eq!(give(&policy, &mut state, &pod("a", &["c 1 2Gi"]), "1").unwrap(), "c=2@1");
    let wide = words("failed to find NUMA nodes to extend the current topology hint");
    assert_eq!(give(&policy, &mut state, &pod("b", &["c 1 6Gi"]), "0").unwrap_err(), wide);
    MemoryPolicy::release(&mut state, "a");
    assert_eq!(give(&policy, &mut state, &pod("b", &["c 1 6Gi"]), "0").unwrap(), "c=6@0,1");
    MemoryPolicy::release(&mut state, "b");
    give(&policy, &mut state, &pod("d", &["c 1 2Gi"]), "1").unwrap();
    let mixed = words("preferred hint violates NUMA node allocation");
    assert_eq!(give(&policy, &mut state, &pod("f", &["c 1 1Gi"]), "0,1").unwrap_err(), mixed);
}

#[test]
fn init_containers_hand_on_what_they_had() {
    let (policy, mut state) = policy(&[10]);
    assert_eq!(give(&policy, &mut state, &pod("a", &["init i 1 4Gi", "b 1 3Gi"]), "0").unwrap(), "b=3@0 i=1@0");
    assert_eq!(free(&state), "4[0]");
    MemoryPolicy::release(&mut state, "a");
    assert_eq!(free(&state), "8[0]");
    let two = pod("b", &["init i 1 4Gi", "init j 1 2Gi", "c 1 1Gi", "d 1 2Gi"]);
    give(&policy, &mut state, &two, "0").unwrap();
    assert_eq!(free(&state), "4[0]");
    MemoryPolicy::release(&mut state, "b");
    let sidecar = pod("c", &["sidecar s 1 2Gi", "init i 1 2Gi", "c 1 2Gi"]);
    assert_eq!(give(&policy, &mut state, &sidecar, "0").unwrap(), "c=2@0 i=0@0 s=2@0");
    assert_eq!(free(&state), "4[0]");
}

#[test]
fn hints_are_the_same_for_all_sorts() {
    let (policy, mut state) = policy(&[6, 6]);
    let of = |state: &MemoryState, container: &str| {
        let pod = pod("u", &[container]);
        let container = requests::containers(&pod).next().unwrap();
        let hints = policy.hints(state, &Reusable::new(), (&pod, container));
        let all: Vec<String> = hints.values().map(|list| in_words(list.as_deref().unwrap())).collect();
        assert!(all.iter().all(|one| *one == all[0]));
        all.into_iter().next().unwrap_or_default()
    };
    assert_eq!(of(&state, "c 1 2Gi 1Gi"), "0 1 -0,1");
    assert_eq!(of(&state, "c 1 5Gi"), "1 -0,1");
    assert_eq!(of(&state, "c 1 1Gi 2Gi"), "0,1");
    assert_eq!(of(&state, "c 1 10Gi"), "");
    give(&policy, &mut state, &pod("u", &["c 1 2Gi"]), "1").unwrap();
    assert_eq!(of(&state, "c 1 2Gi"), "1");
    assert_eq!(of(&state, "c 1 1Gi"), "", "it has something else");
    let whole = |containers: &[&str]| {
        let hints = policy.hints_of_pod(&state, &pod("v", containers));
        hints.get("memory").and_then(|list| list.as_deref().map(in_words)).unwrap_or_default()
    };
    assert_eq!(whole(&["init i 1 4Gi", "a 1 1Gi", "b 1 1Gi"]), "0");
    assert_eq!(whole(&["a 1 1Gi", "b 1 2Gi"]), "0 1");
}

#[test]
fn what_an_earlier_kubelet_left_has_to_fit() {
    let (policy, fresh) = policy(&[6, 6]);
    let mut state = fresh.clone();
    give(&policy, &mut state, &pod("a", &["c 1 7Gi"]), "any").unwrap();
    let check = |change: &dyn Fn(&mut MemoryState), expected: Result<(), &str>| {
        let mut state = state.clone();
        change(&mut state);
        assert_eq!(policy.start(&mut state), expected.map_err(words));
    };
    check(&|_| (), Ok(()));
    // Which of the two gave what may differ.
    let shift = |state: &mut MemoryState| {
        for (number, by) in [(0, 1_i64), (1, -1)] {
            let table = state.nodes.get_mut(&number).unwrap().memory_map.get_mut("memory").unwrap();
            table.free = table.free.wrapping_add_signed(by << 30);
            table.reserved = table.reserved.wrapping_add_signed(-by << 30);
        }
    };
    check(&shift, Ok(()));
    check(&|state| state.nodes.clear(), Err("machine state can not be empty when it has memory assignments"));
    let other = Err("the expected machine state is different from the real one");
    check(&|state| state.assigned.clear(), other);
    check(&|state| drop(state.nodes.remove(&1)), other);
    check(&|state| state.nodes.get_mut(&0).unwrap().number_of_assignments = 7, other);
    let without_pages = |state: &mut MemoryState| {
        state.nodes.get_mut(&0).unwrap().memory_map.remove("hugepages-1Gi");
    };
    check(&without_pages, other);
    check(&|state| state.nodes.get_mut(&0).unwrap().memory_map.get_mut("memory").unwrap().system_reserved = 1, other);
    let block = |state: &mut MemoryState, change: &dyn Fn(&mut Block)| {
        change(&mut state.assigned.get_mut("a").unwrap().get_mut("c").unwrap()[0]);
    };
    let whose = "(pod: a, container: c) the memory assignment uses";
    check(&|s| block(s, &|b| b.numa_affinity = vec![2]), Err(&format!("{whose} the NUMA that does not exist")));
    check(&|s| block(s, &|b| b.sort = "x".into()), Err(&format!("{whose} memory resource that does not exist")));
    assert_eq!(MemoryPolicy::allocatable(&fresh).len(), 4);
}
