//! The addresses of domains, as DNS gives them and for as long as it says. Pure: moments come from outside.

use std::net::IpAddr;

use clock::Instant;

use super::{World, followed::Followed};
use crate::domain::Domain;

impl World {
    /// The domains that rules are about.
    pub fn domains(&self) -> Vec<Domain> {
        self.groups.values().filter_map(Followed::domain).cloned().collect()
    }

    /// Takes in the addresses of a name, each good until a moment. Returns whether anything is new for the kernel.
    pub fn learn(&mut self, name: &str, addresses: &[(IpAddr, Instant)], now: Instant) -> bool {
        let meant =
            self.groups.values_mut().filter(|followed| followed.domain().is_some_and(|domain| domain.has(name)));
        meant.fold(false, |is_new, followed| followed.learn(addresses, now) | is_new)
    }

    /// The moment at which an address is not good any more.
    pub fn next_end(&self) -> Option<Instant> {
        self.groups.values().filter_map(Followed::next_end).min()
    }

    /// Drops the addresses that are not good any more.
    pub fn end(&mut self, now: Instant) {
        for followed in self.groups.values_mut().filter(|followed| followed.domain().is_some()) {
            followed.learn(&[], now);
        }
    }
}
