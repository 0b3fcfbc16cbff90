//! A group that rules refer to, with the elements that it has now. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use clock::Instant;

use crate::{
    domain::Domain,
    group::{Element, Group},
    node::NodeFacts,
    pod::{Facts, Labels},
    tables::Members,
    traffic::Family,
};

/// How many addresses of one domain are known at once. A name may lead to others whenever it is asked for, so that a Pod could fill the
/// kernel with those of a domain; the ones that end first go. Upstream wants a hundred for each name.
pub const ADDRESSES_MAX: usize = 4096;

/// A Pod at one moment, as groups see it.
pub struct Seen {
    pub facts: Arc<Facts>,
    /// The addresses that nobody else has.
    pub addresses: Vec<IpAddr>,
    pub namespace: Arc<Labels>,
}

#[derive(Debug)]
pub struct Followed {
    group: Group,
    /// How many policies refer to it.
    uses: usize,
    members: [(Family, Arc<Members>); 2],
    /// The addresses that DNS has given, and until when each is good.
    learned: BTreeMap<IpAddr, Instant>,
}

impl Followed {
    pub fn new(group: Group) -> Self {
        let empty = Arc::new(Members { has_ports: group.has_ports(), elements: BTreeSet::new() });
        let members = Family::ALL.map(|family| (family, empty.clone()));
        Followed { group, uses: 1, members, learned: BTreeMap::new() }
    }

    pub fn used(&mut self) {
        self.uses += 1;
    }

    /// Whether nobody refers to it any more.
    pub fn unused(&mut self) -> bool {
        self.uses -= 1;
        self.uses == 0
    }

    pub fn is_of_nodes(&self) -> bool {
        matches!(self.group, Group::Nodes(_))
    }

    /// The domain whose addresses these are.
    pub fn domain(&self) -> Option<&Domain> {
        if let Group::Domain(domain) = &self.group { Some(domain) } else { None }
    }

    /// The moment at which the first of its addresses is not good any more.
    pub fn next_end(&self) -> Option<Instant> {
        self.learned.values().min().copied()
    }

    /// Takes in addresses that DNS has given, and drops those that are not good any more. Returns whether its elements changed.
    pub fn learn(&mut self, addresses: &[(IpAddr, Instant)], now: Instant) -> bool {
        let element = |address: &IpAddr| Element { address: *address, port: None };
        let (mut gone, mut come) = (BTreeSet::new(), BTreeSet::new());
        for (address, until) in addresses {
            let end = self.learned.entry(*address).or_insert_with(|| {
                come.insert(element(address));
                *until
            });
            *end = (*end).max(*until);
        }
        gone.extend(self.learned.extract_if(.., |_, until| *until <= now).map(|(address, _)| element(&address)));
        while self.learned.len() > ADDRESSES_MAX {
            let first = self.learned.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address);
            let first = first.filter(|address| self.learned.remove(address).is_some());
            gone.extend(first.as_ref().map(element));
        }
        self.change(&gone, &come);
        gone != come
    }

    pub fn members(&self, family: Family) -> &Arc<Members> {
        let found = self.members.iter().find(|(of, _)| *of == family);
        &found.expect("both families are there").1
    }

    /// The elements that these Pods bring in.
    pub fn elements(&self, pods: &[Option<Seen>]) -> BTreeSet<Element> {
        let seen = pods.iter().flatten();
        seen.flat_map(|seen| self.group.elements(&seen.facts, &seen.addresses, &seen.namespace)).collect()
    }

    pub fn change(&mut self, old: &BTreeSet<Element>, new: &BTreeSet<Element>) {
        for (family, members) in &mut self.members {
            let differ = |a: &BTreeSet<Element>, b: &BTreeSet<Element>| -> Vec<Element> {
                a.difference(b).filter(|e| Family::of(e.address) == *family).copied().collect()
            };
            let (gone, come) = (differ(old, new), differ(new, old));
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

    /// Takes over all nodes. Nodes may share an address, so no element goes with one of them.
    pub fn set_nodes<'a>(&mut self, nodes: impl Iterator<Item = &'a NodeFacts>) {
        let new: BTreeSet<Element> = nodes.flat_map(|node| self.group.elements_of_node(node)).collect();
        let old = self.members.iter().flat_map(|(_, members)| members.elements.iter().copied()).collect();
        self.change(&old, &new);
    }
}
