//! The claims of the Pods whose turn it is, looked up once for all nodes.

use std::sync::Arc;

use client::Key;

use super::{Devices, verdicts::SpecId};
use crate::claims::Named;

/// The claims of Pods that name the same ones.
pub struct Turn {
    namespace: String,
    named: Vec<Named>,
    /// How much had changed about devices.
    version: u64,
    /// The claims that have no devices yet, each once, in the Pods' order.
    pub without: Vec<Key>,
    /// The claims that have some.
    pub with: Vec<Key>,
    /// What those without devices ask for.
    pub(super) specs: Vec<SpecId>,
}

impl Devices {
    /// The claims that are named like this.
    pub fn turn(&self, namespace: &str, named: &[Named]) -> Arc<Turn> {
        let mut held = self.turn.lock();
        if let Some(turn) = held.as_ref()
            && turn.version == self.version
            && turn.namespace == namespace
            && turn.named == named
        {
            return turn.clone();
        }
        let turn = Arc::new(self.look_up(namespace, named));
        *held = Some(turn.clone());
        turn
    }

    fn look_up(&self, namespace: &str, named: &[Named]) -> Turn {
        let (mut without, mut with, mut specs) = (Vec::new(), Vec::new(), Vec::new());
        for name in named.iter().filter_map(|named| named.name.as_deref()) {
            let key = Key::new(namespace, name);
            let Some(claim) = self.claims.get(&key) else { continue };
            let list = if claim.allocation.is_some() { &mut with } else { &mut without };
            if !list.contains(&key) {
                if claim.allocation.is_none() {
                    specs.push(self.spec_ids.get(&key).copied().unwrap_or_default());
                }
                list.push(key);
            }
        }
        Turn { namespace: namespace.to_owned(), named: named.to_vec(), version: self.version, without, with, specs }
    }
}
