//! The NUMA nodes that devices could come from, for those who choose nodes for all resources of a container. Pure.
//! Upstream counterpart: topology_hints.go of pkg/kubelet/cm/devicemanager.

use std::collections::BTreeSet;

use crate::{
    affinity::hints::{self, Hint, NodeMask},
    devices::state::{Resource, State, Wish},
};

/// The nodes that a container could get its devices from; `None` when no device of the resource is near any.
pub fn hints(state: &State, wish: &Wish<'_>, nodes: &[u32]) -> Option<Vec<Hint>> {
    let known = state.resources.get(wish.resource).filter(|known| !known.nodes.is_empty())?;
    let held = state.of(wish.uid, wish.container).and_then(|all| all.get(wish.resource));
    if let Some(held) = held.map(|held| &held.devices).filter(|held| !held.is_empty()) {
        return Some(of_held(known, held, wish.count, nodes));
    }
    let used = state.in_use(wish);
    let available: BTreeSet<&String> = known.healthy().filter(|id| !used.contains(id)).collect();
    Some(of_available(known, &available, wish.reusable, (wish.count, nodes)))
}

/// The nodes that a Pod could get its devices of a resource from, whichever container has them.
pub fn hints_of_pod(state: &State, uid: &str, (resource, count): (&str, usize), nodes: &[u32]) -> Option<Vec<Hint>> {
    let known = state.resources.get(resource).filter(|known| !known.nodes.is_empty())?;
    let of_pod = state.allocations.get(uid).into_iter().flatten();
    let held = of_pod.filter_map(|(_, all)| all.get(resource)).flat_map(|held| held.devices.iter().cloned());
    let (held, none): (BTreeSet<String>, _) = (held.collect(), BTreeSet::new());
    if !held.is_empty() {
        return Some(of_held(known, &held, count, nodes));
    }
    let wish = Wish { uid, container: "", resource, count, reusable: &none, nodes: None };
    let used = state.in_use(&wish);
    let available: BTreeSet<&String> = known.healthy().filter(|id| !used.contains(id)).collect();
    Some(of_available(known, &available, &none, (count, nodes)))
}

/// Devices that are held in another number than is wished for please nobody.
fn of_held(known: &Resource, held: &BTreeSet<String>, count: usize, nodes: &[u32]) -> Vec<Hint> {
    let held: BTreeSet<&String> = held.iter().collect();
    if held.len() == count { near(known, &held, &BTreeSet::new(), (count, nodes)) } else { Vec::new() }
}

fn of_available(
    known: &Resource,
    available: &BTreeSet<&String>,
    reusable: &BTreeSet<String>,
    (count, nodes): (usize, &[u32]),
) -> Vec<Hint> {
    let there = available.len() + reusable.iter().filter(|id| !available.contains(id)).count();
    if there < count { Vec::new() } else { near(known, available, reusable, (count, nodes)) }
}

fn near(
    known: &Resource,
    available: &BTreeSet<&String>,
    reusable: &BTreeSet<String>,
    (count, nodes): (usize, &[u32]),
) -> Vec<Hint> {
    let could = |mask| known.devices.keys().filter(|id| known.is_near(id, mask)).count() >= count;
    let placed: Vec<&String> = reusable.iter().filter(|id| known.nodes.contains_key(*id)).collect();
    let has = |mask: NodeMask| {
        let near = available.iter().filter(|id| known.is_near(id, mask)).count();
        placed.iter().all(|id| known.is_near(id, mask)) && placed.len() + near >= count
    };
    let (masks, least) = hints::judged(nodes, could, has);
    masks.into_iter().map(|mask| Hint { nodes: Some(mask), preferred: mask.count() == least }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{affinity::hints::fixture::words, devices::state::Allocation};

    /// Devices such as `a@0` or `b@0,1`, or `-c@1` when it is not healthy; those with `!` are another Pod's, those with `*` this one's.
    fn state(text: &str) -> State {
        let (mut state, mut known) = (State::default(), Resource::default());
        for word in text.split_whitespace() {
            let (id, nodes) = word.split_once('@').unwrap_or((word, ""));
            let name = id.trim_start_matches(['-', '!', '*']).to_owned();
            for (sign, uid) in [("!", "o"), ("*", "u")] {
                if id.starts_with(sign) {
                    let of_pod = state.allocations.entry(uid.to_owned()).or_default();
                    let of_container = of_pod.entry("c".to_owned()).or_default();
                    let held = of_container.entry("x".to_owned()).or_insert_with(Allocation::default);
                    held.devices.insert(name.clone());
                }
            }
            known.devices.insert(name.clone(), !id.starts_with('-'));
            if !nodes.is_empty() {
                known.nodes.insert(name, nodes.split(',').map(|node| node.parse().unwrap()).collect());
            }
        }
        state.resources.insert("x".to_owned(), known);
        state
    }

    fn check(text: &str, count: usize, reusable: &str, expected: &str) {
        let (state, reusable) = (state(text), reusable.split_whitespace().map(str::to_owned).collect());
        let wish = Wish { uid: "u", container: "c", resource: "x", count, reusable: &reusable, nodes: None };
        let got = hints(&state, &wish, &[0, 1]).map_or("none".to_owned(), |hints| words(&hints));
        assert_eq!(got, expected, "{count} of {text}");
        if reusable.is_empty() {
            let of_pod = hints_of_pod(&state, "u", ("x", count), &[0, 1]).map_or("none".to_owned(), |h| words(&h));
            assert_eq!(of_pod, expected, "{count} of {text}");
        }
    }

    #[test]
    fn nodes_with_enough_devices_are_named() {
        check("a b", 1, "", "none");
        check("a@0 b@1", 1, "", "0 1 -0,1");
        check("a@0 b@1", 2, "", "0,1");
        check("a@0 b@1 c@1", 2, "", "1 -0,1");
        check("a@0 !b@1 c@1", 1, "", "0 1 -0,1");
        check("a@0 !b@1 c@1", 2, "", "-0,1");
        check("a@0 b@1 -c@1", 2, "", "-0,1");
        check("a@0,1 b@1", 2, "", "1 -0,1");
        check("a@0 b", 2, "", "");
        check("a@0 b@1", 3, "", "");
        check("*a@0 b@1", 1, "", "0 -0,1");
        check("*a@0 b@1", 2, "", "");
        check("!a@0 b@1 c@0", 2, "a", "0 -0,1");
        check("!a b@1 c@0", 2, "a", "0,1");
    }
}
