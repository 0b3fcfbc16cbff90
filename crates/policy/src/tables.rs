//! The tables that the kernel is to hold: chains, groups, and which chain decides about which address; and the way from
//! one such state to another. Pure.
//!
//! A Pod's address leads, in each tier, to a chain for the very policies that select it, which all Pods that the same policies
//! select share; that chain asks each policy's own chain. So a Pod that policies select anew is one element, and a policy that
//! changes is its own chain. The rules of administrators that pass connections on stand in the shared chain itself, because
//! only there the way out leads past the policies behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use nft::Script;

use crate::{
    chain::{Chain, ChainName},
    group::{Element, GroupName},
    kind::Tier,
    text,
    traffic::{Direction, Family},
};

/// The elements of a group in one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    pub has_ports: bool,
    pub elements: BTreeSet<Element>,
}

/// All that policies need on this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    pub chains: BTreeMap<ChainName, Arc<Chain>>,
    pub groups: BTreeMap<(GroupName, Family), Arc<Members>>,
    /// The chain that a tier has for an address of a Pod of this node; others are free.
    pub asked: BTreeMap<(Tier, Direction, IpAddr), ChainName>,
}

impl Tables {
    /// The addresses that NetworkPolicies isolate in any direction.
    fn isolated(&self) -> BTreeSet<IpAddr> {
        let of_namespace = self.asked.keys().filter(|(tier, ..)| *tier == Tier::Namespace);
        of_namespace.map(|(.., address)| *address).collect()
    }

    /// The script that leads from this state to another one.
    pub fn changes(&self, to: &Tables) -> Script {
        let mut script = Script::new(text::TABLE);
        for name in union(&self.chains, &to.chains) {
            let (old, new) = (self.chains.get(name), to.chains.get(name));
            if !same(old, new) {
                let text = |chain: Option<&Arc<Chain>>| chain.map(|c| text::chain(c));
                script.chain(name, text(old).as_deref(), text(new).as_deref());
            }
        }
        for key in union(&self.groups, &to.groups) {
            let (old, new) = (self.groups.get(key), to.groups.get(key));
            if !same(old, new) {
                group(&mut script, key, old.map(|m| &**m), new.map(|m| &**m));
            }
        }
        for key in union(&self.asked, &to.asked) {
            let (old, new) = (self.asked.get(key), to.asked.get(key));
            if old == new {
                continue;
            }
            let (tier, direction, address) = *key;
            let verdict = |chain: Option<&ChainName>| chain.map(|chain| text::verdict(tier, chain));
            let (old, new) = (verdict(old), verdict(new));
            let map = text::asked(tier, direction, Family::of(address));
            script.element(&map, &address.to_string(), old.as_deref(), new.as_deref());
        }
        let (old, new) = (self.isolated(), to.isolated());
        for address in old.symmetric_difference(&new) {
            let value = |addresses: &BTreeSet<IpAddr>| addresses.contains(address).then_some("");
            let pair = format!("{address} . {address}");
            script.element(&text::own(Family::of(*address)), &pair, value(&old), value(&new));
        }
        script
    }
}

fn union<'a, K: Ord, V>(a: &'a BTreeMap<K, V>, b: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)))
}

/// Equal; what is the very same is not even looked at.
fn same<T: Eq>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    }
}

fn group(script: &mut Script, key: &(GroupName, Family), old: Option<&Members>, new: Option<&Members>) {
    let name = text::group(&key.0, key.1);
    let declaration = |members: &Members| text::declaration(members.has_ports, key.1);
    let (before, now) = (old.map(declaration), new.map(declaration));
    script.set(&name, before.as_deref(), now.as_deref());
    let Some(new) = new else { return };
    let nothing = BTreeSet::new();
    let old = old.map_or(&nothing, |members| &members.elements);
    for element in old.symmetric_difference(&new.elements) {
        let value = |elements: &BTreeSet<Element>| elements.contains(element).then_some("");
        script.element(&name, &text::element(element), value(old), value(&new.elements));
    }
}
