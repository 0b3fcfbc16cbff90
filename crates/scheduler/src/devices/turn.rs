//! The claims of the Pods whose turn it is, looked up once for all nodes, and what they need for extended resources.

use std::{collections::HashMap, sync::Arc};

use client::Key;
use k8s_openapi::api::resource::v1::DeviceClaim;
use parking_lot::Mutex;

use super::{Devices, verdicts::SpecId};
use crate::{
    asks::{self, Asks, Resources},
    claims::Named,
    class::Class,
    resources::{ResourceId, ResourceNames},
};

/// The claims of Pods that name the same ones, and ask for the same.
pub struct Turn {
    namespace: String,
    named: Vec<Named>,
    asks: Vec<Asks>,
    /// How much had changed about devices.
    version: u64,
    /// The claims that have no devices yet, each once, in the Pods' order.
    pub without: Vec<Key>,
    /// The claims that have some.
    pub with: Vec<Key>,
    /// The requests of the claims that have no devices yet.
    pub(super) specs: Vec<SpecId>,
    /// By the resources that nodes have as devices.
    unnamed: Mutex<HashMap<Vec<ResourceId>, Arc<Unnamed>>>,
}

/// The claim that Pods get for extended resources, on nodes that have these as devices.
pub struct Unnamed {
    pub resources: Resources,
    pub claim: DeviceClaim,
    /// The requests of the claim to be made, behind the Pods' other claims.
    pub(super) specs: Vec<SpecId>,
}

impl Turn {
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Devices {
    /// The claims of the Pods of a class.
    pub fn turn(&self, class: &Class) -> Arc<Turn> {
        let mut held = self.turn.lock();
        if let Some(turn) = held.as_ref()
            && turn.version == self.version
            && turn.namespace == class.namespace
            && turn.named == class.devices
            && turn.asks == class.asks
        {
            return turn.clone();
        }
        let turn = Arc::new(self.look_up(class));
        *held = Some(turn.clone());
        turn
    }

    fn look_up(&self, class: &Class) -> Turn {
        let (mut without, mut with, mut specs) = (Vec::new(), Vec::new(), Vec::new());
        for name in class.devices.iter().filter_map(|named| named.name.as_deref()) {
            let key = Key::new(&*class.namespace, name);
            let Some(claim) = self.claims.get(&key) else { continue };
            let list = if claim.allocation.is_some() { &mut with } else { &mut without };
            if !list.contains(&key) {
                if claim.allocation.is_none() {
                    specs.push(self.spec_ids.get(&key).copied().unwrap_or_default());
                }
                list.push(key);
            }
        }
        Turn {
            namespace: class.namespace.clone(),
            named: class.devices.clone(),
            asks: class.asks.clone(),
            version: self.version,
            without,
            with,
            specs,
            unnamed: Mutex::default(),
        }
    }

    /// The claim for these resources of the Pods; `None` when they need none of them.
    pub fn unnamed(&self, turn: &Turn, names: &ResourceNames, ids: &[ResourceId]) -> Option<Arc<Unnamed>> {
        if ids.is_empty() {
            return None;
        }
        let mut known = turn.unnamed.lock();
        let unnamed = match known.get(ids) {
            Some(unnamed) => unnamed.clone(),
            None => {
                let class =
                    |id: &ResourceId| Some((names.name(*id).to_owned(), self.class_for(names.name(*id))?.to_owned()));
                let resources: Resources = ids.iter().filter_map(class).collect();
                let requests = asks::requests(&turn.asks, &resources).0;
                let claim = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
                let own = self.unnamed_specs.lock().enter(&claim);
                let specs = turn.specs.iter().copied().chain([own]).collect();
                let unnamed = Arc::new(Unnamed { resources, claim, specs });
                known.insert(ids.to_vec(), unnamed.clone());
                unnamed
            }
        };
        unnamed.claim.requests.as_ref().is_some_and(|requests| !requests.is_empty()).then_some(unnamed)
    }
}
