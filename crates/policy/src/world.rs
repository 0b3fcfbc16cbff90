//! Policies, namespaces and Pods of the cluster, and what follows from them for this node. Pure: no clock, no kernel.
//!
//! It is kept as they change: which Pods are in which group, and which policies select which Pod of this node. A change asks
//! only what it touches; [`World::plan`] puts together what the kernel is to hold and shares all that stayed as it was.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use client::Key;

use crate::{
    chain::{Chain, Rule},
    group::{Element, Group, GroupName, digest},
    pod::{Facts, Labels},
    rule::Policy,
    tables::{Members, Tables},
    text,
    traffic::{Direction, Family},
};

/// The text that tells Pods apart, see [`Pod::identity`](crate::pod::Pod::identity).
pub type Identity = String;

/// Stands for a policy where many are listed.
type Number = u32;

#[derive(Debug, Default)]
pub struct World {
    namespaces: BTreeMap<String, Arc<Labels>>,
    pods: BTreeMap<Identity, Arc<Facts>>,
    /// The Pods by their addresses. Two Pods may say that they do: the one that is gone, and the one that came after
    /// it.
    holders: BTreeMap<IpAddr, Identity>,
    policies: BTreeMap<Key, Stored>,
    by_number: BTreeMap<Number, Key>,
    next_number: Number,
    groups: BTreeMap<GroupName, Followed>,
    /// The Pods of this node.
    local: BTreeMap<Identity, Isolation>,
    /// The chains for policies that select a Pod together.
    together: HashMap<(Direction, Arc<[Number]>), Arc<Together>>,
}

#[derive(Debug)]
struct Stored {
    number: Number,
    policy: Policy,
    /// By direction and family, with their names.
    chains: BTreeMap<(Direction, Family), (String, Arc<Chain>)>,
}

/// A group that rules refer to.
#[derive(Debug)]
struct Followed {
    group: Group,
    /// How many policies do.
    uses: usize,
    members: BTreeMap<Family, Arc<Members>>,
}

/// The policies that select a Pod, by direction.
#[derive(Debug, Default)]
struct Isolation {
    selected: BTreeMap<Direction, BTreeSet<Number>>,
    together: BTreeMap<Direction, Arc<Together>>,
}

#[derive(Debug)]
struct Together {
    policies: Arc<[Number]>,
    chains: BTreeMap<Family, (String, Arc<Chain>)>,
}

/// A Pod at one moment, as groups see it.
struct Seen {
    facts: Arc<Facts>,
    addresses: Vec<IpAddr>,
    namespace: Arc<Labels>,
}

impl World {
    pub fn policies(&self) -> Vec<Key> {
        self.policies.keys().cloned().collect()
    }

    pub fn namespaces(&self) -> Vec<String> {
        self.namespaces.keys().cloned().collect()
    }

    pub fn pods(&self) -> Vec<Identity> {
        self.pods.keys().cloned().collect()
    }

    pub fn has_pod(&self, id: &str) -> bool {
        self.pods.contains_key(id)
    }

    /// The labels of a namespace; `None` when it is gone.
    pub fn set_namespace(&mut self, name: &str, labels: Option<&Labels>) {
        if self.namespaces.get(name).map(|l| &**l) == labels {
            return;
        }
        let inside = self.pods.iter().filter(|(_, pod)| pod.namespace == name).map(|(id, _)| id.clone()).collect();
        self.update(inside, |world| match labels {
            Some(labels) => drop(world.namespaces.insert(name.to_owned(), Arc::new(labels.clone()))),
            None => drop(world.namespaces.remove(name)),
        });
    }

    /// A Pod as it is now; `None` when it is gone.
    pub fn set_pod(&mut self, id: &str, facts: Option<Facts>) {
        if self.pods.get(id).map(|f| &**f) == facts.as_ref() {
            return;
        }
        let mut touched: BTreeSet<Identity> = [id.to_owned()].into();
        let new = facts.iter().flat_map(|f| &f.addresses);
        touched.extend(new.filter_map(|address| self.holders.get(address).cloned()));
        self.update(touched, |world| world.put_pod(id, facts));
    }

    fn put_pod(&mut self, id: &str, facts: Option<Facts>) {
        let old = match &facts {
            Some(facts) => self.pods.insert(id.to_owned(), Arc::new(facts.clone())),
            None => self.pods.remove(id),
        };
        let old = old.map(|f| f.addresses.clone()).unwrap_or_default();
        let new = facts.as_ref().map(|f| f.addresses.clone()).unwrap_or_default();
        for address in old.iter().filter(|a| !new.contains(a)) {
            if self.holders.get(address).is_some_and(|holder| holder == id) {
                self.holders.remove(address);
            }
        }
        // An address is with whoever came last, but what a Pod elsewhere says takes none from a Pod of this node.
        for address in new.into_iter().filter(|a| !old.contains(a)) {
            let is_local = |id: &str| self.pods.get(id).is_some_and(|f| f.is_local);
            if self.holders.get(&address).is_none_or(|holder| !is_local(holder) || is_local(id)) {
                self.holders.insert(address, id.to_owned());
            }
        }
    }

    /// A policy as it is now; `None` when it is gone.
    pub fn set_policy(&mut self, key: &Key, policy: Option<Policy>) {
        if self.policies.get(key).map(|s| &s.policy) == policy.as_ref() {
            return;
        }
        let new_groups = policy.as_ref().map(|p| p.groups.clone()).unwrap_or_default();
        for group in new_groups {
            self.follow(group);
        }
        let old = self.policies.remove(key);
        let number = match &old {
            Some(stored) => stored.number,
            None => {
                self.next_number += 1;
                self.next_number
            }
        };
        if let Some(policy) = policy {
            self.by_number.insert(number, key.clone());
            self.policies.insert(key.clone(), Stored { number, chains: chains(key, &policy), policy });
        } else {
            self.by_number.remove(&number);
        }
        for group in old.iter().flat_map(|stored| &stored.policy.groups) {
            self.forget(&group.name());
        }
        let inside = |id: &&Identity| self.pods.get(*id).is_some_and(|f| f.namespace == key.namespace);
        let inside: Vec<Identity> = self.local.keys().filter(inside).cloned().collect();
        for id in inside {
            self.select(&id, [(number, key.clone())]);
        }
    }

    fn follow(&mut self, group: Group) {
        let name = group.name();
        if let Some(followed) = self.groups.get_mut(&name) {
            followed.uses += 1;
            return;
        }
        let empty = Arc::new(Members { has_ports: group.has_ports(), elements: BTreeSet::new() });
        let members = Family::ALL.map(|family| (family, empty.clone())).into();
        let mut followed = Followed { group, uses: 1, members };
        for id in self.pods.keys() {
            if let Some(seen) = self.seen(id) {
                followed.change(&[], &followed.elements(Some(&seen)));
            }
        }
        self.groups.insert(name, followed);
    }

    fn forget(&mut self, name: &GroupName) {
        if let Some(followed) = self.groups.get_mut(name) {
            followed.uses -= 1;
            if followed.uses == 0 {
                self.groups.remove(name);
            }
        }
    }

    fn seen(&self, id: &str) -> Option<Seen> {
        let facts = self.pods.get(id)?.clone();
        let held = |address: &&IpAddr| self.holders.get(*address).is_some_and(|holder| holder == id);
        let addresses = facts.addresses.iter().filter(held).copied().collect();
        let namespace = self.namespaces.get(&facts.namespace).cloned().unwrap_or_default();
        Some(Seen { facts, addresses, namespace })
    }

    /// Makes a change, and takes over what it means for these Pods.
    fn update(&mut self, touched: BTreeSet<Identity>, change: impl FnOnce(&mut Self)) {
        let before: Vec<Option<Seen>> = touched.iter().map(|id| self.seen(id)).collect();
        change(self);
        let after: Vec<Option<Seen>> = touched.iter().map(|id| self.seen(id)).collect();
        for followed in self.groups.values_mut() {
            let elements = |seen: &[Option<Seen>]| -> BTreeSet<Element> {
                seen.iter().flat_map(|seen| followed.elements(seen.as_ref())).collect()
            };
            let (old, new) = (elements(&before), elements(&after));
            let gone: Vec<Element> = old.difference(&new).copied().collect();
            let come: Vec<Element> = new.difference(&old).copied().collect();
            followed.change(&gone, &come);
        }
        for (id, seen) in touched.iter().zip(after) {
            self.local.remove(id);
            if let Some(seen) = seen.filter(|seen| seen.facts.is_local) {
                self.local.insert(id.clone(), Isolation::default());
                let first = Key::new(seen.facts.namespace.clone(), "");
                let all = self.policies.range(first..).take_while(|(key, _)| key.namespace == seen.facts.namespace);
                let all: Vec<(Number, Key)> = all.map(|(key, stored)| (stored.number, key.clone())).collect();
                self.select(id, all);
            }
        }
    }

    /// Finds out anew whether these policies, of which some may be gone, select a Pod of this node.
    fn select(&mut self, id: &str, policies: impl IntoIterator<Item = (Number, Key)>) {
        let Some(facts) = self.pods.get(id).cloned() else { return };
        let Some(mut isolation) = self.local.remove(id) else { return };
        let mut changed = BTreeSet::new();
        for (number, key) in policies {
            let policy = self.policies.get(&key).map(|s| &s.policy).filter(|p| p.subject.matches(&facts.labels));
            for direction in Direction::ALL {
                let selected = isolation.selected.entry(direction).or_default();
                let selects = policy.is_some_and(|p| p.allows(direction).is_some());
                if if selects { selected.insert(number) } else { selected.remove(&number) } {
                    changed.insert(direction);
                }
            }
        }
        for direction in changed {
            match self.together(direction, &isolation.selected[&direction]) {
                Some(together) => drop(isolation.together.insert(direction, together)),
                None => drop(isolation.together.remove(&direction)),
            }
        }
        self.local.insert(id.to_owned(), isolation);
    }

    fn together(&mut self, direction: Direction, policies: &BTreeSet<Number>) -> Option<Arc<Together>> {
        if policies.is_empty() {
            return None;
        }
        let policies: Arc<[Number]> = policies.iter().copied().collect();
        let at = (direction, policies.clone());
        if let Some(known) = self.together.get(&at) {
            return Some(known.clone());
        }
        let keys: BTreeSet<&Key> = policies.iter().filter_map(|number| self.by_number.get(number)).collect();
        let chains = Family::ALL.map(|family| {
            let of_policy = |key: &&Key| self.policies.get(*key)?.chains.get(&(direction, family));
            let names: Vec<&str> = keys.iter().filter_map(of_policy).map(|(name, _)| name.as_str()).collect();
            let about = format!("{}-policies", names.len());
            let name = text::chain_name(direction, family, &digest(&names.join("\n")), &about);
            let ask = names.iter().map(|name| Rule::Ask((*name).to_owned()));
            let rules = ask.chain([Rule::Drop]).collect();
            (family, (name, Arc::new(Chain { direction, family, rules })))
        });
        let together = Arc::new(Together { policies, chains: chains.into() });
        self.together.insert(at, together.clone());
        Some(together)
    }

    /// The tables that the kernel is to hold: all that is needed for the Pods of this node, and nothing else.
    pub fn plan(&mut self) -> Tables {
        self.together.retain(|_, together| Arc::strong_count(together) > 1);
        let mut tables = Tables::default();
        for (id, isolation) in &self.local {
            let addresses = self.seen(id).map(|seen| seen.addresses).unwrap_or_default();
            for (direction, together) in &isolation.together {
                for address in &addresses {
                    let family = Family::of(*address);
                    let (name, chain) = &together.chains[&family];
                    tables.isolated.insert((*direction, *address), name.clone());
                    if tables.chains.insert(name.clone(), chain.clone()).is_none() {
                        self.need(&mut tables, *direction, family, &together.policies);
                    }
                }
            }
        }
        tables
    }

    /// Adds the chains of policies, with the groups that they name.
    fn need(&self, tables: &mut Tables, direction: Direction, family: Family, policies: &[Number]) {
        let stored = policies.iter().filter_map(|number| self.policies.get(self.by_number.get(number)?));
        for stored in stored {
            let Some((name, chain)) = stored.chains.get(&(direction, family)) else { continue };
            tables.chains.insert(name.clone(), chain.clone());
            for name in chain.rules.iter().flat_map(Rule::groups) {
                if let Some(followed) = self.groups.get(name) {
                    tables.groups.insert((name.clone(), family), followed.members[&family].clone());
                }
            }
        }
    }
}

impl Followed {
    fn elements(&self, seen: Option<&Seen>) -> Vec<Element> {
        seen.map(|seen| self.group.elements(&seen.facts, &seen.addresses, &seen.namespace)).unwrap_or_default()
    }

    fn change(&mut self, gone: &[Element], come: &[Element]) {
        for (family, members) in &mut self.members {
            let of_family = |elements: &[Element]| -> Vec<Element> {
                elements.iter().filter(|e| Family::of(e.address) == *family).copied().collect()
            };
            let (gone, come) = (of_family(gone), of_family(come));
            if gone.is_empty() && come.is_empty() {
                continue;
            }
            let members = Arc::make_mut(members);
            for element in &gone {
                members.elements.remove(element);
            }
            members.elements.extend(come);
        }
    }
}

fn chains(key: &Key, policy: &Policy) -> BTreeMap<(Direction, Family), (String, Arc<Chain>)> {
    let mut chains = BTreeMap::new();
    let about = key.to_string();
    let digest = digest(&about);
    for direction in Direction::ALL {
        let Some(allows) = policy.allows(direction) else { continue };
        for family in Family::ALL {
            let rules = allows.iter().cloned().map(Rule::Allow).collect();
            let name = text::chain_name(direction, family, &digest, &about);
            chains.insert((direction, family), (name, Arc::new(Chain { direction, family, rules })));
        }
    }
    chains
}
