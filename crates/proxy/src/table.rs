//! The table of all Services together, and the changes that bring the kernel to it. Pure.
//!
//! Several Services may need the same item: chains for a number of endpoints, the hairpin of an endpoint that two select,
//! an external address that two claim. It is there as long as one of them needs it, with the value of the first by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use client::Key;
use nft::{Family, Script};

use crate::{
    endpoints::Target,
    item::{Door, Item, Shared},
    ports::ServiceRules,
    script,
};

/// The wanted state, and what was touched since the last script.
#[derive(Debug, Default)]
pub struct Table {
    family: Family,
    rules: BTreeMap<Key, ServiceRules>,
    owners: HashMap<Item, BTreeSet<Key>>,
    /// The values that touched items had.
    before: BTreeMap<Item, Option<String>>,
    without_local: [usize; 2],
    /// Doors whose targets changed, with those that they may lead to now.
    flows: BTreeMap<Door, BTreeSet<Target>>,
}

/// An item that is, or was, in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub item: Item,
    pub before: Option<String>,
    pub now: Option<String>,
}

/// Whether a Service has its addresses to itself.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    Free,
    /// Another Service has one of its addresses already.
    Contested,
}

impl Table {
    pub fn new(family: Family) -> Self {
        Table { family, ..Table::default() }
    }

    pub fn keys(&self) -> BTreeSet<Key> {
        self.rules.keys().cloned().collect()
    }

    fn value(&self, item: &Item) -> Option<&String> {
        let owner = self.owners.get(item)?.first()?;
        self.rules.get(owner)?.items.get(item)
    }

    /// Replaces what a Service needs; without any it is removed.
    pub fn set(&mut self, key: &Key, new: ServiceRules) -> Claim {
        let old = self.rules.remove(key).unwrap_or_default();
        let touched: Vec<Item> = old
            .items
            .keys()
            .chain(new.items.keys())
            .filter(|item| old.items.get(*item) != new.items.get(*item))
            .cloned()
            .collect();
        self.remember_flows(&old, &new);
        for (count, (before, now)) in
            self.without_local.iter_mut().zip(old.without_local.into_iter().zip(new.without_local))
        {
            *count = *count + now - before;
        }
        // The values of before, while the old rules still count.
        self.rules.insert(key.clone(), old);
        for item in &touched {
            if !self.before.contains_key(item) {
                let value = self.value(item).cloned();
                self.before.insert(item.clone(), value);
            }
        }
        for item in touched {
            if new.items.contains_key(&item) {
                self.owners.entry(item).or_default().insert(key.clone());
            } else if let Some(owners) = self.owners.get_mut(&item) {
                owners.remove(key);
                if owners.is_empty() {
                    self.owners.remove(&item);
                }
            }
        }
        if new == ServiceRules::default() {
            self.rules.remove(key);
            return Claim::Free;
        }
        self.rules.insert(key.clone(), new);
        let contested = self.rules[key].items.iter().any(|(item, value)| self.value(item) != Some(value));
        if contested { Claim::Contested } else { Claim::Free }
    }

    fn remember_flows(&mut self, old: &ServiceRules, new: &ServiceRules) {
        for door in old.flows.keys().chain(new.flows.keys()) {
            if old.flows.get(door) != new.flows.get(door) {
                self.flows.insert(*door, new.flows.get(door).cloned().unwrap_or_default());
            }
        }
    }

    /// The changes since the last call.
    pub fn changed(&mut self) -> Vec<Change> {
        let touched = std::mem::take(&mut self.before).into_iter();
        let change = |(item, before)| Change { now: self.value(&item).cloned(), before, item };
        touched.map(change).filter(|change| change.before != change.now).collect()
    }

    /// Everything, for a kernel that has nothing yet.
    pub fn all(&mut self) -> Vec<Change> {
        self.before.clear();
        let items: BTreeSet<&Item> = self.owners.keys().collect();
        let change = |item: &Item| Change { now: self.value(item).cloned(), before: None, item: item.clone() };
        items.into_iter().map(change).collect()
    }

    /// All lines of a chain that Services share, in order.
    pub fn lines(&self, shared: Shared) -> Vec<String> {
        let items: BTreeSet<&Item> =
            self.owners.keys().filter(|i| matches!(i, Item::Line(s, _) if *s == shared)).collect();
        items.into_iter().filter_map(|item| self.value(item).cloned()).collect()
    }

    /// The changes since the last call, as one transaction of nft.
    pub fn changes(&mut self) -> Script {
        let changes = self.changed();
        self.script(&changes)
    }

    /// Everything, for a table of nft that is empty.
    pub fn everything(&mut self) -> Script {
        let all = self.all();
        self.script(&all)
    }

    fn script(&self, changes: &[Change]) -> Script {
        let mut script = Script::new(script::table(self.family));
        for Change { item, before, now } in changes {
            script::change(&mut script, item, before.as_deref(), now.as_deref());
        }
        script
    }

    /// Ports with a policy `Local`, internal and external, that nobody on this node is behind.
    pub fn without_local(&self) -> [usize; 2] {
        self.without_local
    }

    /// The doors of UDP flows whose targets changed since the last call, with those that are right now.
    pub fn changed_flows(&mut self) -> BTreeMap<Door, BTreeSet<Target>> {
        std::mem::take(&mut self.flows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Map;

    fn rules(items: &[(&str, &str)]) -> ServiceRules {
        let item = |name: &str| match name.split_once(':') {
            Some(("chain", name)) => Item::Chain(name.to_owned()),
            Some(("set", name)) => Item::Set(name.to_owned()),
            _ => Item::Element(Map::ServiceIps, name.to_owned()),
        };
        ServiceRules {
            items: items.iter().map(|(n, v)| (item(n), (*v).to_owned())).collect(),
            ..ServiceRules::default()
        }
    }

    fn key(name: &str) -> Key {
        Key::new("d", name)
    }

    #[test]
    fn an_item_stays_while_one_service_needs_it() {
        let mut table = Table::default();
        table.set(&key("a"), rules(&[("chain:pick-1", "rule"), ("x", "goto pick-1")]));
        assert!(table.changes().text().contains("add chain"));
        table.set(&key("b"), rules(&[("chain:pick-1", "rule"), ("y", "goto pick-1")]));
        let text = table.changes().text();
        assert!(text.contains("{ y : goto pick-1 }") && !text.contains("chain"), "{text}");
        table.set(&key("a"), ServiceRules::default());
        let text = table.changes().text();
        assert!(text.contains("delete element") && !text.contains("chain"), "{text}");
        table.set(&key("b"), ServiceRules::default());
        assert!(table.changes().text().contains("delete chain"));
        assert!(table.owners.is_empty() && table.rules.is_empty());
    }

    #[test]
    fn the_first_by_name_has_an_address_that_two_claim() {
        let mut table = Table::default();
        assert_eq!(table.set(&key("b"), rules(&[("x", "goto b")])), Claim::Free);
        table.changes();
        assert_eq!(table.set(&key("c"), rules(&[("x", "goto c")])), Claim::Contested);
        assert!(table.changes().is_empty());
        assert_eq!(table.set(&key("a"), rules(&[("x", "goto a")])), Claim::Free);
        let text = table.changes().text();
        assert!(text.contains("delete element") && text.contains("{ x : goto a }"), "{text}");
        table.set(&key("a"), ServiceRules::default());
        table.set(&key("b"), ServiceRules::default());
        assert!(table.changes().text().contains("{ x : goto c }"));
        assert!(table.everything().text().contains("{ x : goto c }"));
    }

    #[test]
    fn a_burst_costs_the_difference_of_its_ends() {
        let mut table = Table::default();
        table.set(&key("a"), rules(&[("x", "goto a")]));
        table.set(&key("a"), ServiceRules::default());
        assert!(table.changes().is_empty());
        table.set(&key("a"), rules(&[("x", "goto a")]));
        table.changes();
        table.set(&key("a"), rules(&[("x", "goto other")]));
        table.set(&key("a"), rules(&[("x", "goto a")]));
        assert!(table.changes().is_empty());
    }

    #[test]
    fn doors_of_udp_flows_are_told_when_their_targets_change() {
        let target = Target { ip: "10.0.0.1".parse().unwrap(), port: 53 };
        let door = Door::Address("10.96.0.10".parse().unwrap(), 53);
        let with = |targets: &[Target]| ServiceRules {
            flows: [(door, targets.iter().copied().collect())].into(),
            ..rules(&[("x", "goto a")])
        };
        let mut table = Table::default();
        table.set(&key("a"), with(&[target]));
        assert_eq!(table.changed_flows(), [(door, [target].into())].into());
        table.set(&key("a"), with(&[target]));
        assert!(table.changed_flows().is_empty());
        table.set(&key("a"), ServiceRules::default());
        assert_eq!(table.changed_flows(), [(door, BTreeSet::new())].into());
    }
}
