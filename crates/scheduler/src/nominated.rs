//! Nominations: room that was made for waiting Pods, which other Pods leave to them unless they are more important.

use std::collections::BTreeMap;

use client::Key;

use crate::{class::ClassId, node_id::NodeId, queue::Waiting};

/// Room that was made for a waiting Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nominated {
    pub node: NodeId,
    pub class: ClassId,
    pub priority: i32,
    /// The Pod's status in the API names the node. Until it does, a status without it says nothing.
    pub shown: bool,
}

/// All nominations, by Pod and by node.
#[derive(Debug, Default)]
pub(crate) struct Nominations {
    of: BTreeMap<Key, Nominated>,
    on: Vec<Vec<Key>>,
}

impl Nominations {
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub fn get(&self, key: &Key) -> Option<&Nominated> {
        self.of.get(key)
    }

    pub fn insert(&mut self, key: Key, nominated: Nominated) {
        self.remove(&key);
        if self.on.len() <= nominated.node.index() {
            self.on.resize_with(nominated.node.index() + 1, Vec::new);
        }
        self.on[nominated.node.index()].push(key.clone());
        self.of.insert(key, nominated);
    }

    pub fn remove(&mut self, key: &Key) -> Option<Nominated> {
        let nominated = self.of.remove(key)?;
        self.on[nominated.node.index()].retain(|held| held != key);
        Some(nominated)
    }

    pub fn on(&self, node: NodeId) -> impl Iterator<Item = (&Key, &Nominated)> {
        self.on.get(node.index()).into_iter().flatten().filter_map(|key| self.of.get_key_value(key))
    }

    /// The nominations on a node that this Pod respects.
    pub fn before<'a>(&'a self, node: NodeId, pod: &'a Waiting) -> impl Iterator<Item = &'a Nominated> {
        self.on(node).filter(|(key, n)| **key != pod.key && n.priority >= pod.priority).map(|(_, n)| n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_nominated_for_one_node() {
        let (mut nominations, key) = (Nominations::default(), Key::new("d", "p"));
        let to = |node| Nominated { node: NodeId(node), class: ClassId(0), priority: 1, shown: false };
        nominations.insert(key.clone(), to(3));
        nominations.insert(key.clone(), to(1));
        let on = |nominations: &Nominations, node| nominations.on(NodeId(node)).count();
        assert_eq!((on(&nominations, 3), on(&nominations, 1), on(&nominations, 9)), (0, 1, 0));
        assert_eq!(nominations.remove(&key), Some(to(1)));
        assert_eq!((on(&nominations, 1), nominations.remove(&key)), (0, None));
    }
}
