//! The peers that the encrypted interface is to have, and what has to change in the kernel for it. Pure.
//!
//! A public key stands for whoever holds its private key. A node that names the key of another one gains nothing by it: its own Pods'
//! addresses become that other one's, who alone can read what is sent there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use ipnet::IpNet;

use super::super::{key::PublicKey, peers::Peer};

/// A peer, as far as this node decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where it is reached. Nodes that name one key are in several places, of which at most one is its owner's: the kernel keeps the
    /// place from which it heard the owner last.
    pub endpoint: Option<SocketAddr>,
    /// The addresses that are sent to it and taken from it, and no others.
    pub ranges: BTreeSet<IpNet>,
}

pub type Places = BTreeMap<PublicKey, Place>;

/// The peers that these nodes come to. One that has told no key yet is not reached: nothing leaves in the open.
pub fn places(peers: &BTreeMap<IpNet, Peer>, own: PublicKey, port: u16) -> Places {
    let mut places = Places::new();
    for peer in peers.values() {
        // The kernel takes no peer with the interface's own key.
        let Some(key) = peer.key.filter(|key| *key != own) else { continue };
        let endpoint = SocketAddr::new(peer.address, port);
        let place = places.entry(key).or_insert_with(|| Place { endpoint: Some(endpoint), ranges: BTreeSet::new() });
        place.endpoint = place.endpoint.filter(|known| *known == endpoint);
        // The kernel keeps no more of a range than its prefix.
        place.ranges.insert(peer.range.trunc());
    }
    places
}

/// One change in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Set(PublicKey, Place),
    Remove(PublicKey),
}

/// From one state to another: a node that changed costs its own peer alone. A range that goes to another peer is taken from the old
/// one by the kernel, in one moment; so those that go come last.
pub fn steps(have: &Places, want: &Places) -> Vec<Step> {
    let is_there = |key: &PublicKey, place: &Place| {
        have.get(key).is_some_and(|held| {
            held.ranges == place.ranges && (place.endpoint.is_none() || held.endpoint == place.endpoint)
        })
    };
    let set =
        want.iter().filter(|(key, place)| !is_there(key, place)).map(|(key, place)| Step::Set(*key, place.clone()));
    let gone = have.keys().filter(|key| !want.contains_key(key)).map(|key| Step::Remove(*key));
    set.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u8 = 9;

    /// `address range key`, where `-` is no key.
    fn of(nodes: &[&str]) -> Places {
        let peers = nodes.iter().map(|text| {
            let words: Vec<&str> = text.split(' ').collect();
            let key = words[2].parse().ok().map(|number: u8| PublicKey([number; 32]));
            let range = words[1].parse().unwrap();
            (range, Peer { address: words[0].parse().unwrap(), range, key })
        });
        places(&peers.collect(), PublicKey([OWN; 32]), 51820)
    }

    fn shown(places: &Places) -> Vec<String> {
        let text = |(key, place): (&PublicKey, &Place)| {
            let endpoint = place.endpoint.map_or("nowhere".to_owned(), |endpoint| endpoint.to_string());
            format!("{} at {endpoint}: {:?}", key.0[0], place.ranges)
        };
        places.iter().map(text).collect()
    }

    #[test]
    fn a_node_has_its_own_range_and_nobody_elses() {
        let check = |nodes: &[&str], expected: &[&str]| assert_eq!(shown(&of(nodes)), expected);
        check(
            &["192.0.2.2 10.244.1.0/24 1", "192.0.2.3 10.244.2.0/24 2"],
            &["1 at 192.0.2.2:51820: {10.244.1.0/24}", "2 at 192.0.2.3:51820: {10.244.2.0/24}"],
        );
        check(&["2001:db8::2 fd00:244:0:1::/64 1"], &["1 at [2001:db8::2]:51820: {fd00:244:0:1::/64}"]);
        // A node without a key, and one that says it were this one.
        check(&["192.0.2.2 10.244.1.0/24 -", "192.0.2.3 10.244.2.0/24 9"], &[]);
    }

    #[test]
    fn a_node_that_names_anothers_key_gets_none_of_its_traffic() {
        let honest = of(&["192.0.2.2 10.244.1.0/24 1"]);
        for liar in ["192.0.2.3 10.244.0.0/24 1", "192.0.2.3 10.244.2.0/24 1"] {
            let both = of(&["192.0.2.2 10.244.1.0/24 1", liar]);
            // All that is sent is for the key's owner, at the place where it was heard; the liar's place is not taken over.
            assert!(shown(&both)[0].starts_with("1 at nowhere: "), "{both:?}");
            let [Step::Set(key, place)] = &steps(&honest, &both)[..] else { panic!("{both:?}") };
            assert_eq!((key.0[0], place.endpoint), (1, None));
            assert!(place.ranges.contains(&"10.244.1.0/24".parse::<IpNet>().unwrap()));
            // With the lie the place is known again.
            assert_eq!(steps(&both, &honest), [Step::Set(*key, honest[key].clone())]);
        }
    }

    #[test]
    fn a_change_costs_its_own_peer_alone() {
        let before = of(&["192.0.2.2 10.244.1.0/24 1", "192.0.2.3 10.244.2.0/24 2"]);
        let check = |nodes: &[&str], expected: &[&str]| {
            let want = of(nodes);
            let text = |step: &Step| match step {
                Step::Set(key, place) => format!("set {}", shown(&Places::from([(*key, place.clone())]))[0]),
                Step::Remove(key) => format!("remove {}", key.0[0]),
            };
            assert_eq!(steps(&before, &want).iter().map(text).collect::<Vec<_>>(), expected);
        };
        check(&["192.0.2.2 10.244.1.0/24 1", "192.0.2.3 10.244.2.0/24 2"], &[]);
        check(&["192.0.2.2 10.244.1.0/24 1"], &["remove 2"]);
        let moved = "set 2 at 192.0.2.4:51820: {10.244.2.0/24}";
        check(&["192.0.2.2 10.244.1.0/24 1", "192.0.2.4 10.244.2.0/24 2"], &[moved]);
        // A new key, as after a new data folder.
        let renewed = "set 3 at 192.0.2.3:51820: {10.244.2.0/24}";
        check(&["192.0.2.2 10.244.1.0/24 1", "192.0.2.3 10.244.2.0/24 3"], &[renewed, "remove 2"]);
        let joined = "set 4 at 192.0.2.5:51820: {10.244.3.0/24}";
        check(&["192.0.2.2 10.244.1.0/24 1", "192.0.2.3 10.244.2.0/24 2", "192.0.2.5 10.244.3.0/24 4"], &[joined]);
    }
}
