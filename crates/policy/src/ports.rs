//! The ports that a rule is about, gathered by protocol. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use crate::{
    group::{Group, GroupName, Groups},
    traffic::Protocol,
};

/// The ports that a connection may be opened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    Any,
    /// Every port of a protocol.
    Protocol(Protocol),
    /// Ranges that do not touch, in order.
    Numbers(Protocol, Vec<RangeInclusive<u16>>),
    /// The port that the called Pod has under a name.
    Named(Protocol, GroupName),
}

/// The ports that a rule lists, of which one is enough.
#[derive(Debug, Default)]
pub struct Listed(BTreeMap<Protocol, OfProtocol>);

#[derive(Debug, Default)]
struct OfProtocol {
    /// All ports.
    is_whole: bool,
    ranges: Vec<RangeInclusive<u16>>,
    names: BTreeSet<String>,
}

impl Listed {
    fn of(&mut self, protocol: Protocol) -> &mut OfProtocol {
        self.0.entry(protocol).or_default()
    }

    pub fn protocol(&mut self, protocol: Protocol) {
        self.of(protocol).is_whole = true;
    }

    pub fn range(&mut self, protocol: Protocol, range: RangeInclusive<u16>) {
        self.of(protocol).ranges.push(range);
    }

    pub fn name(&mut self, protocol: Protocol, name: &str) {
        self.of(protocol).names.insert(name.to_owned());
    }

    pub fn has_names(&self) -> bool {
        self.0.values().any(|of| !of.names.is_empty())
    }

    /// The same ports in as few parts as possible.
    pub fn gathered(self, groups: &mut Groups) -> Vec<Ports> {
        let mut found = Vec::new();
        for (protocol, of) in self.0 {
            if of.is_whole {
                found.push(Ports::Protocol(protocol));
                continue;
            }
            if !of.ranges.is_empty() {
                found.push(Ports::Numbers(protocol, merged(of.ranges)));
            }
            for name in of.names {
                found.push(Ports::Named(protocol, groups.named(Group::Port { protocol, name })));
            }
        }
        found
    }
}

/// The same numbers in as few ranges as possible: the kernel takes no ranges that overlap.
fn merged(mut ranges: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    ranges.sort_by_key(|r| *r.start());
    let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}
