//! The holdings that a write of a Service takes and gives back, as commits in the transaction that writes the Service.
//!
//! So an address is never taken for a Service that was not written, never free while a stored Service has it, and never
//! two Services': whatever dies between two steps of a write, and however many servers there are over one store. Until the
//! transaction nothing is taken at all, which is why a dry run and a write that is refused have nothing to give back.

use std::{ops::RangeInclusive, sync::Arc};

use api::Value;
use bytes::Bytes;
use store::{Change, Commit, Entry, Expect, Revision};

use super::{addresses, port_map, port_map::PortMap};
use crate::storage::{commit::Companions, object};

/// An address that goes with the write.
pub enum Address {
    /// It becomes the Service's.
    Take { key: Arc<str>, object: Bytes },
    /// It was the Service's; `seen` is the state of its IPAddress that says so.
    Give { key: Arc<str>, seen: Revision },
    /// It was the Service's, and somebody else holds the IPAddress by a finalizer: it is marked as being deleted.
    Mark { key: Arc<str>, seen: Revision, object: Bytes },
}

/// The node ports that go with the write.
pub struct Ports {
    pub range: RangeInclusive<u16>,
    /// The stored map, as it was seen last.
    pub map: PortMap,
    pub seen: Option<Revision>,
    pub take: Vec<u16>,
    pub give: Vec<u16>,
    /// Whoever changes the map waits here for the others of this server.
    pub turn: Arc<tokio::sync::Mutex<()>>,
}

pub struct Reservation {
    /// `namespace/name`.
    pub service: String,
    pub addresses: Vec<Address>,
    pub ports: Option<Ports>,
}

fn expect(seen: Option<Revision>) -> Expect {
    seen.map_or(Expect::Absent, Expect::Modified)
}

fn put(value: &Bytes) -> Change {
    Change::Put { value: value.clone(), ttl_seconds: None }
}

impl Address {
    fn commit(&self) -> Commit {
        match self {
            Address::Take { key, object } => Commit { key: key.clone(), expect: Expect::Absent, change: put(object) },
            Address::Give { key, seen } => {
                Commit { key: key.clone(), expect: Expect::Modified(*seen), change: Change::Delete }
            }
            Address::Mark { key, seen, object } => {
                Commit { key: key.clone(), expect: Expect::Modified(*seen), change: put(object) }
            }
        }
    }

    /// How to give an address back whose IPAddress is in this state; `None` when it is not this Service's.
    pub fn give(key: Arc<str>, service: &str, current: &Entry) -> Option<Self> {
        let holding = addresses::holding(current);
        if holding.service.as_deref() != Some(service) {
            return None;
        }
        let seen = current.modified;
        if !holding.has_finalizers {
            return Some(Address::Give { key, seen });
        }
        let mut object = object::value(&current.value, current.modified);
        if api::meta::deletion_timestamp(&object).is_some() {
            return None;
        }
        let metadata = api::meta::metadata_mut(&mut object)?;
        metadata.insert("deletionTimestamp", Value::from(clock::now_seconds().to_string()));
        metadata.insert("deletionGracePeriodSeconds", Value::from(0));
        // As it was stored: kind and apiVersion are in it.
        let bytes = object::encode_as("IPAddress", "networking.k8s.io", "v1", &object);
        Some(Address::Mark { key, seen, object: bytes.into() })
    }
}

impl Ports {
    fn commit(&self) -> Commit {
        let mut map = self.map.clone();
        self.give.iter().for_each(|port| map.free(*port));
        self.take.iter().for_each(|port| map.take(*port));
        Commit { key: port_map::KEY.into(), expect: expect(self.seen), change: put(&map.encode()) }
    }

    /// False when another Service has one of the ports by now.
    fn learn(&mut self, current: Option<&Entry>) -> bool {
        let map = match current {
            None => Ok(PortMap::new(&self.range)),
            Some(entry) => PortMap::decode(&entry.value, &self.range),
        };
        let Ok(map) = map else { return false };
        if self.take.iter().any(|port| map.has(*port)) {
            return false;
        }
        self.map = map;
        self.seen = current.map(|entry| entry.modified);
        true
    }
}

impl Companions for Reservation {
    fn commits(&self) -> Vec<Commit> {
        let addresses = self.addresses.iter().map(Address::commit);
        addresses.chain(self.ports.iter().map(Ports::commit)).collect()
    }

    fn learn(&mut self, at: usize, current: Option<&Entry>) -> bool {
        let Some(address) = self.addresses.get(at) else {
            return self.ports.as_mut().is_some_and(|ports| ports.learn(current));
        };
        match address {
            Address::Take { .. } => false,
            // An address that is another's, or nobody's, needs no giving back.
            Address::Give { key, .. } | Address::Mark { key, .. } => {
                match current.and_then(|current| Address::give(key.clone(), &self.service, current)) {
                    Some(step) => self.addresses[at] = step,
                    None => drop(self.addresses.remove(at)),
                }
                true
            }
        }
    }

    fn turn(&self) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.ports.as_ref().map(|ports| ports.turn.clone())
    }
}
