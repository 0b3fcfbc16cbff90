//! The selectors of Services, and of the controllers that own Pods: Pods without spreading constraints of their own are
//! spread together with those that these select.
//! Upstream counterpart: pkg/scheduler/framework/plugins/helper (DefaultSelector).

use std::collections::{BTreeMap, HashMap};

use api::rules::selector::Selector;

use crate::{
    class::{Class, Owner, OwnerKind},
    topology::Labels,
};

/// The selectors of one namespace.
#[derive(Debug, Default)]
struct Namespace {
    services: BTreeMap<String, Labels>,
    owners: HashMap<(OwnerKind, String), Selector>,
    /// Another with every change.
    version: u64,
}

/// All selectors, by namespace, so that a change concerns the classes of one namespace only.
#[derive(Debug, Default)]
pub struct Selectors {
    namespaces: HashMap<String, Namespace>,
    versions: u64,
}

impl Selectors {
    /// Says whether that is news.
    pub fn set_service(&mut self, namespace: &str, name: &str, selector: Option<Labels>) -> bool {
        // A Service without a selector selects nothing, which is as if it were not there.
        let held = self.namespaces.get(namespace).and_then(|held| held.services.get(name));
        let changed = held != selector.as_ref();
        if changed {
            let services = &mut self.changing(namespace).services;
            match selector {
                Some(selector) => _ = services.insert(name.to_owned(), selector),
                None => _ = services.remove(name),
            }
            self.tidy(namespace);
        }
        changed
    }

    fn changing(&mut self, namespace: &str) -> &mut Namespace {
        self.versions += 1;
        let held = self.namespaces.entry(namespace.to_owned()).or_default();
        held.version = self.versions;
        held
    }

    fn tidy(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(|held| held.services.is_empty() && held.owners.is_empty()) {
            self.namespaces.remove(namespace);
        }
    }

    /// Says whether that is news.
    pub fn set_owner(&mut self, namespace: &str, owner: (OwnerKind, String), selector: Option<Selector>) -> bool {
        let held = self.namespaces.get(namespace).and_then(|held| held.owners.get(&owner));
        let changed = held != selector.as_ref();
        if changed {
            let owners = &mut self.changing(namespace).owners;
            match selector {
                Some(selector) => _ = owners.insert(owner, selector),
                None => _ = owners.remove(&owner),
            }
            self.tidy(namespace);
        }
        changed
    }

    /// A number that changes with the selectors of a namespace.
    pub fn version(&self, namespace: &str) -> u64 {
        self.namespaces.get(namespace).map_or(0, |held| held.version)
    }

    pub fn services(&self) -> impl Iterator<Item = (&str, &str)> {
        self.namespaces
            .iter()
            .flat_map(|(namespace, held)| held.services.keys().map(move |name| (&**namespace, &**name)))
    }

    pub fn owners(&self, kind: OwnerKind) -> impl Iterator<Item = (&str, &str)> {
        let named =
            self.namespaces.iter().flat_map(|(namespace, held)| held.owners.keys().map(move |key| (&**namespace, key)));
        named.filter(move |(_, (of, _))| *of == kind).map(|(namespace, (_, name))| (namespace, &**name))
    }

    /// The selector of the Pods that those of a class belong together with; `None` when there is none.
    pub fn of(&self, class: &Class, owner: &Owner) -> Option<Selector> {
        let held = self.namespaces.get(&class.namespace)?;
        let selects = |labels: &&Labels| labels.iter().all(|(key, value)| class.labels.get(key) == Some(value));
        // They all match the same Pod, so they do not contradict each other.
        let labels: Labels =
            held.services.values().filter(selects).flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut selector = Selector::of_labels(&labels);
        let own = owner.0.as_ref().and_then(|owner| held.owners.get(owner));
        selector.requirements.extend(own.into_iter().flat_map(|own| own.requirements.iter().cloned()));
        (!selector.requirements.is_empty()).then_some(selector)
    }
}
