//! Which claims drivers have prepared, or were asked to, and for which Pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use client::Key;

use crate::claims::messages::{Claim, Device};

/// A claim that drivers were asked to prepare.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    pub uid: String,
    /// The Pods on this node that use it, by uid.
    pub pods: BTreeSet<String>,
    /// All drivers that have a part in it, each with the devices that it has named.
    pub drivers: BTreeMap<String, Vec<Device>>,
    /// All of them have prepared it, as this kubelet knows.
    pub prepared: bool,
}

/// A claim as the API server has it: who is to prepare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimToPrepare {
    pub key: Key,
    pub uid: String,
    pub drivers: BTreeSet<String>,
}

/// The claims that are to be sent to each driver.
pub type Batches = BTreeMap<String, Vec<Claim>>;

#[derive(Debug, Default)]
pub struct State {
    pub claims: BTreeMap<Key, Held>,
    /// Counts the changes that have to be written down.
    pub changes: u64,
}

fn batch(batches: &mut Batches, key: &Key, uid: &str, drivers: impl Iterator<Item = impl Into<String>>) {
    for driver in drivers {
        let claim = Claim { namespace: key.namespace.clone(), uid: uid.to_owned(), name: key.name.clone() };
        batches.entry(driver.into()).or_default().push(claim);
    }
}

impl State {
    /// Counts a Pod among the users of its claims. Returns what is to be prepared for it.
    pub fn join(&mut self, pod: &str, wanted: &[ClaimToPrepare]) -> Result<Batches, String> {
        let other = |one: &&ClaimToPrepare| self.claims.get(&one.key).is_some_and(|held| held.uid != one.uid);
        if let Some(ClaimToPrepare { key, .. }) = wanted.iter().find(other) {
            let (name, uid) = (&key.name, &self.claims[key].uid);
            return Err(format!(
                "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod force-deleted?!)"
            ));
        }
        let mut batches = Batches::new();
        for ClaimToPrepare { key, uid, drivers } in wanted {
            let held = self.claims.entry(key.clone()).or_insert_with(|| Held {
                uid: uid.clone(),
                drivers: drivers.iter().map(|driver| (driver.clone(), Vec::new())).collect(),
                ..Held::default()
            });
            self.changes += u64::from(held.pods.insert(pod.to_owned()));
            if !held.prepared {
                batch(&mut batches, key, uid, held.drivers.keys());
            }
        }
        Ok(batches)
    }

    /// Takes in what a driver has prepared of a claim.
    pub fn named(&mut self, claim: &Claim, driver: &str, devices: Vec<Device>) {
        if let Some(held) = self.claims.get_mut(&Key::new(&*claim.namespace, &*claim.name)) {
            held.drivers.insert(driver.to_owned(), devices);
            self.changes += 1;
        }
    }

    /// All drivers of these claims have prepared them.
    pub fn prepared<'a>(&mut self, keys: impl Iterator<Item = &'a Key>) {
        for key in keys {
            if let Some(held) = self.claims.get_mut(key) {
                held.prepared = true;
            }
        }
    }

    /// The claims that a Pod uses.
    pub fn of(&self, pod: &str) -> Vec<Key> {
        self.claims.iter().filter(|(_, held)| held.pods.contains(pod)).map(|(key, _)| key.clone()).collect()
    }

    /// The claims that are no longer to be prepared when this Pod has gone, as batches for their drivers and by their
    /// keys.
    pub fn last(&self, pod: &str) -> (Batches, Vec<Key>) {
        let (mut batches, mut last) = (Batches::new(), Vec::new());
        for (key, held) in &self.claims {
            if held.pods.iter().eq([pod]) {
                batch(&mut batches, key, &held.uid, held.drivers.keys());
                last.push(key.clone());
            }
        }
        (batches, last)
    }

    /// The drivers have taken back what they prepared for this Pod alone; others may still use the rest.
    pub fn leave(&mut self, pod: &str) {
        for held in self.claims.values_mut() {
            self.changes += u64::from(held.pods.remove(pod));
        }
        self.claims.retain(|_, held| !held.pods.is_empty());
    }

    /// A claim was not prepared although it is to be: it is prepared again before anybody begins with it.
    pub fn doubt(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(held) = self.claims.get_mut(key) {
                held.prepared = false;
            }
        }
    }

    /// The names of the devices of a claim's request, or of all of them where the request has no name.
    pub fn ids(&self, key: &Key, request: &str) -> Result<impl Iterator<Item = &String>, String> {
        let held = self.claims.get(key).ok_or_else(|| {
            let Key { namespace, name } = key;
            format!("internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}")
        })?;
        let is_for =
            move |names: &[String]| request.is_empty() || names.is_empty() || names.iter().any(|n| n == request);
        let devices = held.drivers.values().flatten().filter(move |device| is_for(&device.request_names));
        Ok(devices.flat_map(|device| &device.cdi_device_ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, uid: &str, drivers: &[&str]) -> ClaimToPrepare {
        let drivers = drivers.iter().map(|driver| (*driver).to_owned()).collect();
        ClaimToPrepare { key: Key::new("d", name), uid: uid.to_owned(), drivers }
    }

    fn words(batches: &Batches) -> Vec<String> {
        let of = |(driver, claims): (&String, &Vec<Claim>)| {
            let names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
            format!("{driver}: {}", names.join(" "))
        };
        batches.iter().map(of).collect()
    }

    #[test]
    fn a_claim_is_prepared_for_its_first_pod_and_taken_back_after_its_last() {
        let mut state = State::default();
        let (a, b) = (wanted("a", "1", &["x", "y"]), wanted("b", "2", &["y"]));
        let batches = state.join("p", &[a.clone(), b.clone()]).unwrap();
        assert_eq!(words(&batches), ["x: a", "y: a b"]);
        // A driver has failed, or the kubelet has: it is asked again.
        assert_eq!(words(&state.join("p", &[a.clone(), b.clone()]).unwrap()), ["x: a", "y: a b"]);
        state.prepared([&a.key, &b.key].into_iter());
        assert_eq!(words(&state.join("q", std::slice::from_ref(&a)).unwrap()), [""; 0]);
        assert_eq!((state.of("p").len(), state.of("q").len()), (2, 1));
        let (batches, last) = state.last("p");
        assert_eq!((words(&batches), last), (vec!["y: b".to_owned()], vec![b.key.clone()]));
        state.leave("p");
        assert_eq!(words(&state.last("q").0), ["x: a", "y: a"]);
        let again = wanted("a", "3", &["x"]);
        let why = state.join("r", &[b.clone(), again]).unwrap_err();
        let old = "old ResourceClaim with same name a and different UID 1 still exists (previous pod force-deleted?!)";
        assert_eq!(why, old);
        assert_eq!(state.of("r"), [], "none of its claims is its own before all of them are");
        state.leave("q");
        assert!(state.claims.is_empty());
    }

    #[test]
    fn a_container_gets_the_devices_of_its_requests() {
        let mut state = State::default();
        let claim = wanted("a", "1", &["x", "y"]);
        let batches = state.join("p", std::slice::from_ref(&claim)).unwrap();
        let device = |requests: &[&str], id: &str| Device {
            request_names: requests.iter().map(|name| (*name).to_owned()).collect(),
            cdi_device_ids: vec![id.to_owned()],
            ..Device::default()
        };
        state.named(&batches["x"][0], "x", vec![device(&["r"], "v/c=1"), device(&["s"], "v/c=2")]);
        state.named(&batches["y"][0], "y", vec![device(&[], "v/c=3")]);
        let check = |request: &str, expected: &[&str]| {
            let ids: Vec<&str> = state.ids(&claim.key, request).unwrap().map(String::as_str).collect();
            assert_eq!(ids, expected, "{request}");
        };
        check("", &["v/c=1", "v/c=2", "v/c=3"]);
        check("r", &["v/c=1", "v/c=3"]);
        check("t", &["v/c=3"]);
        let why = state.ids(&Key::new("d", "b"), "").map(Iterator::count).unwrap_err();
        assert_eq!(why, "internal error: unable to get claim info for ResourceClaim b in namespace d");
    }
}
