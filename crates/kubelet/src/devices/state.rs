//! Which devices there are and who has them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use clock::{Duration, Instant};

use crate::{affinity::hints::NodeMask, devices::messages::ContainerAllocateResponse};

/// A plugin that has gone may come back within this time. Then its resource is no longer counted.
const GRACE: Duration = Duration::from_secs(300);
/// Plugins may offer this many resources in all.
const RESOURCES: usize = 256;

/// The devices of one resource by their ids, and whether each is healthy.
#[derive(Debug, Default)]
pub struct Resource {
    pub devices: BTreeMap<String, bool>,
    /// The NUMA nodes of those whose plugin has named some.
    pub nodes: BTreeMap<String, Vec<i64>>,
    /// Since when no plugin stands behind it.
    pub gone_since: Option<Instant>,
}

impl Resource {
    pub fn healthy(&self) -> impl Iterator<Item = &String> {
        self.devices.iter().filter(|(_, healthy)| **healthy).map(|(id, _)| id)
    }

    /// Whether a device is near one of these NUMA nodes.
    pub fn is_near(&self, id: &str, mask: NodeMask) -> bool {
        let nodes = self.nodes.get(id).into_iter().flatten();
        nodes.into_iter().any(|node| u32::try_from(*node).is_ok_and(|node| mask.contains(node)))
    }

    fn is_anywhere(&self, id: &str) -> bool {
        self.nodes.get(id).is_none_or(Vec::is_empty)
    }
}

impl Resource {
    /// Devices near the nodes that were chosen come before others: if there are more of them than are needed, the plugin may
    /// prefer some of them, and otherwise all of them are taken.
    fn near_first(&self, wish: &Wish<'_>, choice: Choice) -> Choice {
        let Some(mask) = wish.nodes.filter(|_| !self.nodes.is_empty()) else { return choice };
        let Choice { reused, available, missing } = choice;
        let (near, rest): (BTreeSet<String>, _) = available.into_iter().partition(|id| self.is_near(id, mask));
        match missing.checked_sub(near.len()) {
            Some(missing) => Choice { reused: &reused | &near, available: rest, missing },
            None => Choice { reused, available: near, missing },
        }
    }
}

/// The devices of one resource that a container has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Allocation {
    pub devices: BTreeSet<String>,
    /// The plugin's answer about them; `None` as long as it has not given one.
    pub answer: Option<ContainerAllocateResponse>,
}

/// The allocations of a container by resource, of a Pod by container, and of all Pods by uid.
pub type OfContainer = BTreeMap<String, Allocation>;
pub type OfPod = BTreeMap<String, OfContainer>;
pub type Allocations = BTreeMap<String, OfPod>;

/// A container's wish for one resource.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    pub uid: &'a str,
    pub container: &'a str,
    pub resource: &'a str,
    pub count: usize,
    /// Devices that init containers of this Pod had.
    pub reusable: &'a BTreeSet<String>,
    /// The NUMA nodes that were chosen for the container.
    pub nodes: Option<NodeMask>,
}

/// The devices to choose from.
#[derive(Debug, PartialEq)]
pub struct Choice {
    pub reused: BTreeSet<String>,
    pub available: BTreeSet<String>,
    /// How many of those that are available are needed.
    pub missing: usize,
}

/// A device as others are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub resource: String,
    pub id: String,
    /// The NUMA nodes that it is near to, as far as its plugin has named them.
    pub nodes: Vec<i64>,
    /// Whether its plugin says that it is healthy; `None` while none says anything.
    pub healthy: Option<bool>,
}

#[derive(Debug, Default)]
pub struct State {
    pub resources: BTreeMap<String, Resource>,
    pub allocations: Allocations,
    /// Counts the changes that have to be written down.
    pub changes: u64,
}

impl State {
    /// Whether there is room for this resource.
    pub fn admits(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.resources.len() < RESOURCES
    }

    /// Whether plugins offer this resource, or did.
    pub fn knows(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
    }

    /// How many devices of each resource there are, and how many of them are healthy.
    pub fn capacity(&self, now: Instant) -> BTreeMap<String, (usize, usize)> {
        let count = |resource: &Resource| match resource.gone_since {
            Some(since) if now.duration_since(since) >= GRACE => (0, 0),
            _ => (resource.devices.len(), resource.healthy().count()),
        };
        self.resources.iter().map(|(name, resource)| (name.clone(), count(resource))).collect()
    }

    pub fn of(&self, uid: &str, container: &str) -> Option<&OfContainer> {
        self.allocations.get(uid)?.get(container)
    }

    fn seen<'a>(&self, resource: &str, ids: impl Iterator<Item = &'a String>) -> Vec<Seen> {
        let known = self.resources.get(resource);
        let of = |id: &String| Seen {
            resource: resource.to_owned(),
            id: id.clone(),
            nodes: known.and_then(|known| known.nodes.get(id)).cloned().unwrap_or_default(),
            healthy: known.and_then(|known| known.devices.get(id)).copied(),
        };
        ids.map(of).collect()
    }

    /// The devices that a container has.
    pub fn seen_of(&self, uid: &str, container: &str) -> Vec<Seen> {
        let held = self.of(uid, container).into_iter().flatten().filter(|(_, held)| held.answer.is_some());
        held.flat_map(|(resource, held)| self.seen(resource, held.devices.iter())).collect()
    }

    /// All devices that are healthy, whoever has them.
    pub fn all_healthy(&self) -> Vec<Seen> {
        self.resources.iter().flat_map(|(name, known)| self.seen(name, known.healthy())).collect()
    }

    /// The devices of a resource that anybody has but this container. A device that was reserved for it and not answered
    /// is chosen anew.
    pub fn in_use(&self, wish: &Wish<'_>) -> BTreeSet<&String> {
        let containers = self.allocations.iter().flat_map(|(uid, of_pod)| of_pod.iter().map(move |of| (uid, of)));
        let others = containers.filter(|(uid, (name, _))| *uid != wish.uid || *name != wish.container);
        let held = others.filter_map(|(_, (_, all))| all.get(wish.resource));
        held.flat_map(|allocation| &allocation.devices).collect()
    }

    /// The devices that a wish is chosen from; `None` when the container has those that it wishes for, and may use them. The
    /// words are upstream's.
    pub fn choice(&self, wish: &Wish<'_>) -> Result<Option<Choice>, String> {
        let Wish { uid, container, resource, count, reusable, .. } = *wish;
        let held = self.of(uid, container).and_then(|all| all.get(resource));
        let held = held.filter(|held| held.answer.is_some()).map(|held| &held.devices);
        if let Some(has) = held.map(BTreeSet::len).filter(|has| *has != count) {
            return Err(format!(
                "pod {uid:?} container {container:?} changed request for resource {resource:?} from {has} to {count}"
            ));
        }
        if count == 0 {
            return Ok(None);
        }
        let Some(known) = self.resources.get(resource) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        let healthy: BTreeSet<&String> = known.healthy().collect();
        if healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
        }
        if let Some(held) = held {
            return if held.iter().all(|id| healthy.contains(id)) {
                Ok(None)
            } else {
                let words = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices";
                Err(format!("{words} {resource}"))
            };
        }
        let reused: BTreeSet<String> = reusable.iter().filter(|id| healthy.contains(id)).take(count).cloned().collect();
        let missing = count - reused.len();
        let used = self.in_use(wish);
        let available: BTreeSet<String> = healthy.difference(&used).map(|id| (*id).clone()).collect();
        if available.len() < missing {
            let there = available.len();
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {missing}, Available: {there}"
            ));
        }
        Ok(Some(known.near_first(wish, Choice { reused, available, missing })))
    }

    /// Gives the container devices: those that the plugin prefers come first, as far as they are to be had. Returns them.
    pub fn reserve(&mut self, wish: &Wish<'_>, choice: Choice, preferred: &[String]) -> BTreeSet<String> {
        let Choice { reused: mut devices, available, missing } = choice;
        let wanted = devices.len() + missing;
        let known = self.resources.get(wish.resource).filter(|_| wish.nodes.is_some());
        let mut rest: Vec<&String> = available.iter().collect();
        // Where nodes matter, those that are nowhere come last.
        rest.sort_by_key(|id| known.is_some_and(|known| known.is_anywhere(id)));
        for id in preferred.iter().filter(|id| available.contains(*id)).chain(rest) {
            if devices.len() == wanted {
                break;
            }
            devices.insert(id.clone());
        }
        let of_container = self.allocations.entry(wish.uid.to_owned()).or_default();
        let of_container = of_container.entry(wish.container.to_owned()).or_default();
        of_container.insert(wish.resource.to_owned(), Allocation { devices: devices.clone(), answer: None });
        devices
    }

    /// Writes down what the devices need. A Pod that has given them back meanwhile does not get them again.
    pub fn answered(&mut self, wish: &Wish<'_>, answer: ContainerAllocateResponse) {
        let of_pod = self.allocations.get_mut(wish.uid).and_then(|of_pod| of_pod.get_mut(wish.container));
        if let Some(allocation) = of_pod.and_then(|all| all.get_mut(wish.resource)) {
            allocation.answer = Some(answer);
            self.changes += 1;
        }
    }

    /// Takes back what was reserved for a container, unless the plugin has answered.
    pub fn give_up(&mut self, wish: &Wish<'_>) {
        let Some(of_pod) = self.allocations.get_mut(wish.uid) else { return };
        if let Some(all) = of_pod.get_mut(wish.container) {
            all.retain(|resource, held| resource != wish.resource || held.answer.is_some());
        }
        of_pod.retain(|_, all| !all.is_empty());
        if of_pod.is_empty() {
            self.allocations.remove(wish.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Devices of `a.io/x`, with a `-` in front of those that are not healthy. Pod `other` has `d1`; container `c` of Pod `u`
    /// has, or was about to get, these.
    fn state(devices: &str, held: &str, answered: bool) -> State {
        let mut state = State::default();
        let listed = devices.split_whitespace().map(|id| (id.trim_start_matches('-').to_owned(), !id.starts_with('-')));
        state.resources.insert("a.io/x".to_owned(), Resource { devices: listed.collect(), ..Resource::default() });
        let answer = ContainerAllocateResponse::default();
        for (uid, held, answer) in [("other", "d1", Some(answer.clone())), ("u", held, answered.then_some(answer))] {
            let allocation = Allocation { devices: set(held), answer };
            if !held.is_empty() {
                let of_container = [("a.io/x".to_owned(), allocation)].into();
                state.allocations.insert(uid.to_owned(), [("c".to_owned(), of_container)].into());
            }
        }
        state
    }

    /// The devices that a container gets that wishes for this number of a resource, or why it gets none.
    fn check(state: &mut State, (resource, count): (&str, usize), reusable: &str, preferred: &str, expected: &str) {
        let reusable = set(reusable);
        let wish = Wish { uid: "u", container: "c", resource, count, reusable: &reusable, nodes: None };
        let preferred: Vec<String> = preferred.split_whitespace().map(str::to_owned).collect();
        let got = match state.choice(&wish) {
            Ok(Some(choice)) => state.reserve(&wish, choice, &preferred).into_iter().collect::<Vec<_>>().join(" "),
            Ok(None) => "as before".to_owned(),
            Err(why) => why,
        };
        assert_eq!(got, expected);
    }

    #[test]
    fn devices_are_chosen_among_those_that_are_healthy_and_free() {
        let fresh = || state("d1 d2 -d3 d4 d5", "", false);
        check(&mut fresh(), ("a.io/x", 2), "", "", "d2 d4");
        check(&mut fresh(), ("a.io/x", 2), "", "d5 d5 d1 d3 none d4", "d4 d5");
        check(&mut fresh(), ("a.io/x", 2), "d5 d3", "d4", "d4 d5");
        check(&mut fresh(), ("a.io/x", 0), "", "", "as before");
        let short = "requested number of devices unavailable for a.io/x. Requested: 4, Available: 3";
        check(&mut fresh(), ("a.io/x", 4), "", "", short);
        check(&mut fresh(), ("a.io/x", usize::MAX), "", "", &short.replace(": 4", &format!(": {}", usize::MAX)));
        check(&mut fresh(), ("b.io/x", 1), "", "", "cannot allocate unregistered device b.io/x");
        let ill = "no healthy devices present; cannot allocate unhealthy devices a.io/x";
        check(&mut state("-d1 -d2", "", false), ("a.io/x", 1), "", "", ill);
        // A container keeps its devices, unless they are no longer healthy; an allocation that was begun begins anew.
        check(&mut state("d1 d2 d4", "d2", true), ("a.io/x", 1), "", "", "as before");
        let words = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices a.io/x";
        check(&mut state("d1 -d2 d4", "d2", true), ("a.io/x", 1), "", "", words);
        check(&mut state("d1 d4", "d2", true), ("a.io/x", 1), "", "", words);
        check(&mut state("-d1 -d2", "d2", true), ("a.io/x", 1), "", "", ill);
        let other = "pod \"u\" container \"c\" changed request for resource \"a.io/x\" from 1 to 2";
        check(&mut state("d1 -d2 d4", "d2", true), ("a.io/x", 2), "", "", other);
        check(&mut state("d1 d2", "d2", false), ("a.io/x", 1), "", "", "d2");
    }

    #[test]
    fn devices_near_the_chosen_nodes_come_first() {
        let check = |count: usize, nodes: &[u32], preferred: &str, expected: &str| {
            // Of those that are free d2 and d4 are near node 1, d3 is near both, d5 is nowhere and d0 near node 0.
            let mut state = state("d0 d1 d2 d3 d4 d5", "", false);
            let near = [("d0", vec![0]), ("d2", vec![1]), ("d3", vec![0, 1]), ("d4", vec![1]), ("d5", vec![])];
            let near = near.into_iter().map(|(id, nodes)| (id.to_owned(), nodes));
            state.resources.get_mut("a.io/x").unwrap().nodes = near.collect();
            let (none, mask) = (BTreeSet::new(), Some(nodes.iter().copied().collect()).filter(|_| !nodes.is_empty()));
            let wish = Wish { uid: "u", container: "c", resource: "a.io/x", count, reusable: &none, nodes: mask };
            let choice = state.choice(&wish).unwrap().unwrap();
            let preferred: Vec<String> = preferred.split_whitespace().map(str::to_owned).collect();
            let got: Vec<String> = state.reserve(&wish, choice, &preferred).into_iter().collect();
            assert_eq!(got.join(" "), expected, "{count} near {nodes:?}");
        };
        check(1, &[1], "", "d2");
        check(1, &[1], "d0 d4", "d4");
        check(3, &[1], "d0", "d2 d3 d4");
        check(4, &[1], "", "d0 d2 d3 d4");
        check(4, &[1], "d5", "d2 d3 d4 d5");
        check(2, &[0], "", "d0 d3");
        check(3, &[0], "", "d0 d2 d3");
        check(2, &[], "d5", "d0 d5");
    }

    #[test]
    fn what_was_reserved_is_given_up_and_what_was_answered_is_not() {
        let none = BTreeSet::new();
        let wish = Wish { uid: "u", container: "c", resource: "a.io/x", count: 1, reusable: &none, nodes: None };
        for (answered, left) in [(true, 2), (false, 1)] {
            let mut state = state("d1 d2", "d2", answered);
            state.give_up(&wish);
            assert_eq!(state.allocations.len(), left);
        }
    }
}
