//! Counters: what the partitions of a device take from what they share. A partition can be had while its share is left.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/structured (checkAvailableCounters).

use std::collections::BTreeMap;

use api::rules::quantity::{Quantity, parse};
use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};

/// Amounts by the name of a set of counters and the name of a counter in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counters(BTreeMap<String, BTreeMap<String, Quantity>>);

fn amounts(counters: &BTreeMap<String, Counter>) -> BTreeMap<String, Quantity> {
    counters.iter().map(|(name, counter)| (name.clone(), parse(&counter.value))).collect()
}

impl Counters {
    /// The counters that a device takes.
    pub fn taken_by(consumption: Option<&Vec<DeviceCounterConsumption>>) -> Self {
        let sets = consumption.into_iter().flatten();
        Counters(sets.map(|set| (set.counter_set.clone(), amounts(&set.counters))).collect())
    }

    /// The sets that a slice offers; `None` when it names one twice.
    pub fn offered(sets: &[CounterSet]) -> Option<Self> {
        let offered: BTreeMap<_, _> = sets.iter().map(|set| (set.name.clone(), amounts(&set.counters))).collect();
        (offered.len() == sets.len()).then_some(Counters(offered))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes in the sets of another slice of the pool. False when both have one of the same name.
    pub fn join(&mut self, other: &Counters) -> bool {
        other.0.iter().all(|(name, set)| self.0.insert(name.clone(), set.clone()).is_none())
    }

    /// Whether all these counters are here.
    pub fn know(&self, taken: &Counters) -> bool {
        let known = |(set, counters): (&String, &BTreeMap<String, Quantity>)| {
            self.0.get(set).is_some_and(|offered| counters.keys().all(|name| offered.contains_key(name)))
        };
        taken.0.iter().all(known)
    }

    /// Whether these amounts are left of all of them.
    pub fn cover(&self, taken: &Counters) -> bool {
        taken.all(|set, name, amount| self.0.get(set).and_then(|set| set.get(name)).is_some_and(|left| *left >= amount))
    }

    fn all(&self, check: impl Fn(&str, &str, Quantity) -> bool) -> bool {
        self.0.iter().all(|(set, counters)| counters.iter().all(|(name, amount)| check(set, name, *amount)))
    }

    pub fn take(&mut self, taken: &Counters) {
        self.change(taken, |left, amount| *left -= amount);
    }

    pub fn give_back(&mut self, taken: &Counters) {
        self.change(taken, |left, amount| *left += amount);
    }

    fn change(&mut self, by: &Counters, change: impl Fn(&mut Quantity, Quantity)) {
        for (set, counters) in &by.0 {
            let Some(held) = self.0.get_mut(set) else { continue };
            for (name, amount) in counters {
                if let Some(left) = held.get_mut(name) {
                    change(left, *amount);
                }
            }
        }
    }
}
