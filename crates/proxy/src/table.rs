//! The table of all Services together, and the changes that bring the kernel to it. Pure.
//!
//! Several Services may need the same item: chains for a number of endpoints, the hairpin of an endpoint that two select.
//! It is there as long as one of them needs it, with the value of the first by name. An address with a port that several
//! claim belongs to one of them whole: by right, then by age. Otherwise whoever may write Services in some namespace
//! could name the cluster's DNS, its API server or another's Service among `externalIPs` and have their connections.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use client::Key;
use nft::{Family, Script};

use crate::{
    endpoints::Target,
    item::{Door, Item, Right, Shared},
    ports::ServiceRules,
    script,
};

/// The wanted state, and what was touched since the last script.
#[derive(Debug, Default)]
pub struct Table {
    family: Family,
    rules: BTreeMap<Key, ServiceRules>,
    owners: HashMap<Item, BTreeSet<Key>>,
    /// The claimants of an address, the one that has it in front.
    claims: HashMap<String, BTreeSet<Claimant>>,
    /// The values that touched items had.
    before: BTreeMap<Item, Option<String>>,
    without_local: [usize; 2],
    endpoints: usize,
    /// Doors whose targets changed, with those that they may lead to now.
    flows: BTreeMap<Door, BTreeSet<Target>>,
}

/// A Service that claims an address: the best right goes first, then the older Service, then the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    right: Right,
    created: i64,
    key: Key,
}

impl Claimant {
    fn new(key: &Key, rules: &ServiceRules, address: &str) -> Option<Self> {
        let right = *rules.addresses.get(address)?;
        Some(Claimant { right, created: rules.created, key: key.clone() })
    }
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
        let claimants = item.address().and_then(|address| self.claims.get(address));
        let owner = match claimants {
            Some(claimants) => &claimants.first()?.key,
            None => self.owners.get(item)?.first()?,
        };
        self.rules.get(owner)?.items.get(item)
    }

    /// The addresses that a Service claims anew, otherwise than before, or no more, with all that its claimants have there.
    fn contested(&self, key: &Key, old: &ServiceRules, new: &ServiceRules) -> (Vec<String>, Vec<Item>) {
        let all: BTreeSet<&String> = old.addresses.keys().chain(new.addresses.keys()).collect();
        let differ = |a: &&&String| Claimant::new(key, old, a) != Claimant::new(key, new, a);
        let moved: Vec<String> = all.iter().filter(differ).map(|address| (*address).clone()).collect();
        let mut items = Vec::new();
        for address in &moved {
            let others = self.claims.get(address).into_iter().flatten().filter_map(|one| self.rules.get(&one.key));
            for rules in others.chain([old, new]) {
                items.extend(rules.items.keys().filter(|item| item.address() == Some(address.as_str())).cloned());
            }
        }
        (moved, items)
    }

    /// Takes back what the old rules claimed at these addresses, and claims what the new ones do.
    fn claim(&mut self, key: &Key, addresses: Vec<String>, old: &ServiceRules, new: &ServiceRules) {
        for address in addresses {
            let (before, now) = (Claimant::new(key, old, &address), Claimant::new(key, new, &address));
            let claimants = self.claims.entry(address.clone()).or_default();
            if let Some(before) = before {
                claimants.remove(&before);
            }
            claimants.extend(now);
            if claimants.is_empty() {
                self.claims.remove(&address);
            }
        }
    }

    /// Replaces what a Service needs; without any it is removed.
    pub fn set(&mut self, key: &Key, new: ServiceRules) -> Claim {
        let old = self.rules.remove(key).unwrap_or_default();
        let (moved, at_moved) = self.contested(key, &old, &new);
        let differing: Vec<Item> = old
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
        self.endpoints = self.endpoints + new.endpoints - old.endpoints;
        // The values of before, while the old rules still count.
        self.rules.insert(key.clone(), old);
        for item in differing.iter().chain(&at_moved) {
            if !self.before.contains_key(item) {
                let value = self.value(item).cloned();
                self.before.insert(item.clone(), value);
            }
        }
        let old = self.rules.remove(key).unwrap_or_default();
        self.claim(key, moved, &old, &new);
        for item in differing {
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
        items.into_iter().map(change).filter(|change| change.now.is_some()).collect()
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

    /// How many endpoints all Services have, at each of their ports.
    pub fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// The doors of UDP flows whose targets changed since the last call, with those that are right now: those of whoever has the
    /// address, whichever Service changed.
    pub fn changed_flows(&mut self) -> BTreeMap<Door, BTreeSet<Target>> {
        let flows = std::mem::take(&mut self.flows).into_iter();
        let now = |(door, targets)| {
            let theirs = self.holder(door).map(|rules| rules.flows.get(&door).cloned().unwrap_or_default());
            (door, theirs.unwrap_or(targets))
        };
        flows.map(now).collect()
    }

    /// The rules of the Service that has the address of a UDP door.
    fn holder(&self, door: Door) -> Option<&ServiceRules> {
        let Door::Address(ip, port) = door else { return None };
        let claimants = self.claims.get(&format!("{ip} . udp . {port}"))?;
        self.rules.get(&claimants.first()?.key)
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

    const DNS: &str = "10.96.0.10 . tcp . 53";

    /// Rules of a Service that is so old and claims cluster DNS' address by that right, with items there.
    fn claiming(right: Right, created: i64, items: &[(Item, &str)]) -> ServiceRules {
        let items = items.iter().map(|(item, value)| (item.clone(), (*value).to_owned())).collect();
        ServiceRules { items, addresses: [(DNS.to_owned(), right)].into(), created, ..ServiceRules::default() }
    }

    fn leading(to: &str) -> Vec<(Item, &str)> {
        let key = |rest: &str| format!("{DNS}{rest}");
        vec![(Item::Element(Map::ServiceIps, key("")), "goto pick-1"), (Item::Element(Map::Endpoints, key(" . 0")), to)]
    }

    /// The kernel has this for the address, according to all that it was told.
    fn told(table: &mut Table, kernel: &mut BTreeMap<Item, String>, expected: &[&str]) {
        for Change { item, before, now } in table.changed() {
            assert_eq!(kernel.get(&item), before.as_ref(), "{item:?}");
            match now {
                Some(now) => drop(kernel.insert(item, now)),
                None => drop(kernel.remove(&item)),
            }
        }
        let values: Vec<&str> = kernel.values().map(String::as_str).collect();
        assert_eq!(values, expected);
        let all: BTreeMap<Item, String> = table.all().into_iter().filter_map(|c| Some((c.item, c.now?))).collect();
        assert_eq!(&all, kernel);
    }

    #[test]
    fn nobody_takes_an_address_from_who_has_a_better_right_to_it() {
        use Right::{Balancer, Cluster, External};
        let (mut table, mut kernel) = (Table::default(), BTreeMap::new());
        let (dns, thief) = (Key::new("kube-system", "kube-dns"), Key::new("aaa", "thief"));
        let refusing = [(Item::Element(Map::RefusedIps, DNS.to_owned()), "goto refuse")];
        assert_eq!(table.set(&thief, claiming(External, 1, &leading("thief"))), Claim::Free);
        told(&mut table, &mut kernel, &["goto pick-1", "thief"]);
        assert_eq!(table.set(&dns, claiming(Cluster, 2, &leading("dns"))), Claim::Free);
        told(&mut table, &mut kernel, &["goto pick-1", "dns"]);
        assert_eq!(table.set(&thief, claiming(External, 1, &leading("thief again"))), Claim::Contested);
        told(&mut table, &mut kernel, &["goto pick-1", "dns"]);
        // Not while nobody is behind it either.
        table.set(&dns, claiming(Cluster, 2, &refusing));
        told(&mut table, &mut kernel, &["goto refuse"]);
        table.set(&dns, claiming(Cluster, 2, &leading("dns")));
        told(&mut table, &mut kernel, &["goto pick-1", "dns"]);
        table.set(&dns, ServiceRules::default());
        told(&mut table, &mut kernel, &["goto pick-1", "thief again"]);
        table.set(&dns, claiming(Balancer, 2, &leading("balancer")));
        told(&mut table, &mut kernel, &["goto pick-1", "balancer"]);
        // Of equal rights the older.
        table.set(&dns, claiming(External, 2, &leading("younger")));
        told(&mut table, &mut kernel, &["goto pick-1", "thief again"]);
        table.set(&dns, claiming(External, 0, &leading("older")));
        told(&mut table, &mut kernel, &["goto pick-1", "older"]);
        table.set(&thief, ServiceRules::default());
        table.set(&dns, ServiceRules::default());
        told(&mut table, &mut kernel, &[]);
        assert!(table.claims.is_empty() && table.owners.is_empty() && table.rules.is_empty());
    }

    #[test]
    fn items_are_about_the_addresses_that_services_claim() {
        let address = |item: Item| item.address().map(str::to_owned);
        let element = |map: Map, key: &str| address(Item::Element(map, key.to_owned()));
        let line = |shared: Shared, key: &str| address(Item::Line(shared, key.to_owned()));
        let dns = Some(DNS.to_owned());
        for map in [Map::ServiceIps, Map::RefusedIps, Map::Firewall] {
            assert_eq!(element(map, DNS), dns);
        }
        assert_eq!(element(Map::Endpoints, &format!("{DNS} . 7")), dns);
        for shared in [Shared::Services, Shared::Refused, Shared::RefusedOutside, Shared::Firewall] {
            assert_eq!(line(shared, DNS), dns);
            assert_eq!(line(shared, "tcp . 30000"), None);
        }
        for map in [Map::NodePorts, Map::NodePortEndpoints, Map::RefusedNodePorts, Map::ClusterIps, Map::Hairpins] {
            assert_eq!(element(map, "tcp . 30000 . 0"), None);
        }
        assert_eq!(address(Item::Chain(DNS.to_owned())), None);
    }

    #[test]
    fn of_what_nobody_claims_the_first_by_name_counts() {
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
        // Somebody who only claims the address says nothing about where its flows lead.
        let claiming = |right: Right, ip: &str| ServiceRules {
            addresses: [("10.96.0.10 . udp . 53".to_owned(), right)].into(),
            ..with(&[Target { ip: ip.parse().unwrap(), port: 53 }])
        };
        table.set(&key("b"), claiming(Right::Cluster, "10.0.0.1"));
        table.changed_flows();
        table.set(&key("a"), claiming(Right::External, "10.0.0.9"));
        assert_eq!(table.changed_flows(), [(door, [target].into())].into());
    }
}
