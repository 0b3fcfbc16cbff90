//! The graph of owners as the watches tell it: objects by UID, and for each owner the objects that name it.
//!
//! Pure: changes go in, UIDs to look at come out.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use client::rest::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

/// Circles are looked for among this many objects; a larger one stays until somebody edits an object in it.
const CIRCLE: usize = 1000;

pub type Uid = Arc<str>;

#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    pub resource: Arc<Resource>,
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub owners: Vec<OwnerReference>,
    pub deleting: bool,
    /// Its deletion waits for its dependents.
    pub foreground: bool,
    /// Its deletion waits until its dependents are made ownerless.
    pub orphan: bool,
}

impl Object {
    pub fn of(resource: &Arc<Resource>, meta: &ObjectMeta) -> Self {
        let deleting = meta.deletion_timestamp.is_some();
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        Object {
            resource: resource.clone(),
            namespace: meta.namespace.as_deref().unwrap_or("").into(),
            name: meta.name.as_deref().unwrap_or("").into(),
            owners: meta.owner_references.clone().unwrap_or_default(),
            deleting,
            foreground: deleting && has(FOREGROUND),
            orphan: deleting && has(ORPHAN),
        }
    }

    /// Whether this is the owner that an object of `namespace` names: a UID alone says nothing when the rest differs.
    pub fn is_meant_by(&self, reference: &OwnerReference, namespace: &str) -> bool {
        (self.namespace.is_empty() || *self.namespace == *namespace)
            && *self.name == *reference.name
            && self.resource.kind == reference.kind
    }

    pub fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
    }
}

/// One attempt that is due after a change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    /// May have to be deleted, or has to go on with its deletion.
    Delete(Uid),
    /// Its dependents must be made ownerless.
    Orphan(Uid),
}

#[derive(Default)]
pub struct Graph {
    objects: HashMap<Uid, Object>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid)
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// The objects that name this owner, in UID order.
    pub fn dependents_of(&self, owner: &str) -> Vec<(Uid, Object)> {
        let uids = self.dependents.get(owner).into_iter().flatten();
        uids.filter_map(|uid| Some((uid.clone(), self.objects.get(uid)?.clone()))).collect()
    }

    /// Whether an owner that the object names is not known, or waits for the object.
    fn is_in_doubt(&self, object: &Object) -> bool {
        let stays = |o: &OwnerReference| {
            self.get(&o.uid).is_some_and(|owner| !owner.foreground && owner.is_meant_by(o, &object.namespace))
        };
        !object.owners.iter().all(stays)
    }

    pub fn has_dependents(&self, owner: &str) -> bool {
        self.dependents.get(owner).is_some_and(|set| !set.is_empty())
    }

    fn waiting_dependents<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = (&'a Uid, &'a Object)> {
        let uids = self.dependents.get(owner).into_iter().flatten();
        uids.filter_map(|uid| Some((uid, self.objects.get(uid)?))).filter(|(_, object)| object.foreground)
    }

    /// Whether a dependent is being deleted in the foreground: upstream takes that for a circle.
    pub fn has_waiting_dependents(&self, owner: &str) -> bool {
        self.waiting_dependents(owner).next().is_some()
    }

    /// Whether the object, whose deletion waits for its dependents, waits for itself by way of others that wait.
    pub fn waits_for_itself(&self, uid: &str) -> bool {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open = vec![uid];
        while let Some(owner) = open.pop() {
            for (dependent, _) in self.waiting_dependents(owner).filter(|(_, object)| object.blocks(owner)) {
                if **dependent == *uid {
                    return true;
                }
                if seen.len() < CIRCLE && seen.insert(dependent) {
                    open.push(dependent);
                }
            }
        }
        false
    }

    /// An object was made or changed.
    pub fn apply(&mut self, uid: &str, object: Object) -> Vec<Attempt> {
        let uid: Uid = uid.into();
        let old = self.objects.insert(uid.clone(), object.clone());
        let mut attempts = Vec::new();
        let before: BTreeSet<&str> = old.iter().flat_map(|o| &o.owners).map(|o| o.uid.as_str()).collect();
        let after: BTreeSet<&str> = object.owners.iter().map(|o| o.uid.as_str()).collect();
        for owner in before.difference(&after) {
            self.unlink(owner, &uid);
        }
        for owner in &after {
            self.dependents.entry((*owner).into()).or_default().insert(uid.clone());
        }
        // An owner whose deletion waits for this object may be able to go on: the object may not block it any more.
        for owner in before.union(&after) {
            let stopped_blocking = old.as_ref().is_some_and(|o| o.blocks(owner)) && !object.blocks(owner);
            if stopped_blocking && self.get(owner).is_some_and(|o| o.foreground) {
                attempts.push(Attempt::Delete((*owner).into()));
            }
        }
        let was = |of: fn(&Object) -> bool| old.as_ref().is_some_and(of);
        if object.orphan && !was(|o| o.orphan) {
            attempts.push(Attempt::Orphan(uid.clone()));
        }
        if object.foreground && !was(|o| o.foreground) {
            attempts.push(Attempt::Delete(uid.clone()));
            attempts.extend(self.dependents.get(&uid).into_iter().flatten().cloned().map(Attempt::Delete));
        }
        if self.is_in_doubt(&object) && old.as_ref().is_none_or(|old| old.owners != object.owners) {
            attempts.push(Attempt::Delete(uid));
        }
        attempts.sort();
        attempts.dedup();
        attempts
    }

    /// An object is gone.
    pub fn remove(&mut self, uid: &str) -> Vec<Attempt> {
        let Some(object) = self.objects.remove(uid) else { return Vec::new() };
        let mut attempts: Vec<Attempt> =
            self.dependents.get(uid).into_iter().flatten().cloned().map(Attempt::Delete).collect();
        for owner in &object.owners {
            self.unlink(&owner.uid, uid);
            if self.get(&owner.uid).is_some_and(|o| o.foreground) {
                attempts.push(Attempt::Delete(owner.uid.as_str().into()));
            }
        }
        attempts
    }

    /// All of one resource was listed anew: whatever of it is not in the list is gone.
    pub fn replace(&mut self, resource: &Resource, listed: Vec<(String, Object)>) -> Vec<Attempt> {
        let fresh: BTreeSet<&str> = listed.iter().map(|(uid, _)| uid.as_str()).collect();
        let gone: BTreeSet<Uid> = self
            .objects
            .iter()
            .filter(|(uid, o)| *o.resource == *resource && !fresh.contains(&***uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        let mut attempts: Vec<Attempt> = gone.iter().flat_map(|uid| self.remove(uid)).collect();
        for (uid, object) in listed {
            attempts.extend(self.apply(&uid, object));
        }
        attempts
    }

    /// Objects that name an owner that is unknown or waits for them: what to look at once everything was listed.
    pub fn doubtful(&self) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        for (uid, object) in &self.objects {
            if object.foreground || self.is_in_doubt(object) {
                attempts.push(Attempt::Delete(uid.clone()));
            }
            if object.orphan {
                attempts.push(Attempt::Orphan(uid.clone()));
            }
        }
        attempts.sort();
        attempts
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(set) = self.dependents.get_mut(owner) {
            set.remove(dependent);
            if set.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn object(name: &str, owners: &[&str], finalizer: Option<&str>) -> Object {
        let owners: Vec<_> = owners
            .iter()
            .map(|o| json!({"apiVersion": "v1", "kind": "X", "name": o, "uid": o, "blockOwnerDeletion": true}))
            .collect();
        let meta: ObjectMeta = json::from_value(json!({
            "name": name, "ownerReferences": owners, "finalizers": finalizer.map(|f| [f]),
            "deletionTimestamp": finalizer.map(|_| "2026-01-01T00:00:00Z"),
        }))
        .unwrap();
        let resource = Resource { group: "".into(), version: "v1".into(), kind: "X".into(), plural: "xs".into() };
        Object::of(&Arc::new(resource), &meta)
    }

    fn delete(uids: &[&str]) -> Vec<Attempt> {
        uids.iter().map(|u| Attempt::Delete((*u).into())).collect()
    }

    #[test]
    fn changes_lead_to_those_whose_fate_they_decide() {
        let mut graph = Graph::default();
        assert_eq!(graph.apply("pod", object("pod", &["set"], None)), delete(&["pod"]), "its owner is unknown");
        assert_eq!(graph.apply("set", object("set", &[], None)), []);
        assert_eq!(graph.apply("pod2", object("pod2", &["set"], None)), [], "its owner is there");
        let stranger = Object { namespace: "other".into(), ..object("pod3", &["set"], None) };
        assert_eq!(graph.apply("pod3", stranger.clone()), [], "owners of the whole cluster are there for all");
        let at_home = Object { namespace: "home".into(), ..object("set", &[], None) };
        graph.apply("set", at_home);
        graph.remove("pod3");
        assert_eq!(graph.apply("pod3", stranger), delete(&["pod3"]), "its owner is in another namespace");
        graph.remove("pod3");
        graph.apply("set", object("set", &[], None));
        // Foreground: the owner and everything under it.
        let waiting = object("set", &[], Some(FOREGROUND));
        assert_eq!(graph.apply("set", waiting), delete(&["pod", "pod2", "set"]));
        assert_eq!(graph.remove("pod"), delete(&["set"]), "its owner may go on");
        assert_eq!(graph.apply("pod2", object("pod2", &[], None)), delete(&["set"]));
        assert!(!graph.has_dependents("set"));
        // Orphan, and the end of an owner.
        assert_eq!(graph.apply("o", object("o", &[], Some(ORPHAN))), [Attempt::Orphan("o".into())]);
        graph.apply("child", object("child", &["o"], None));
        assert_eq!(graph.remove("o"), delete(&["child"]));
        assert_eq!(graph.doubtful(), delete(&["child", "set"]));
    }

    #[test]
    fn objects_that_wait_for_each_other_are_found() {
        let check = |objects: &[(&str, &[&str], bool)], expected: &[&str]| {
            let mut graph = Graph::default();
            for (name, owners, foreground) in objects {
                graph.apply(name, object(name, owners, foreground.then_some(FOREGROUND)));
            }
            let waits = objects.iter().map(|(name, ..)| *name).filter(|name| graph.waits_for_itself(name));
            assert_eq!(waits.collect::<Vec<_>>(), expected, "{objects:?}");
        };
        check(&[("a", &["a"], true)], &["a"]);
        check(&[("a", &["b"], true), ("b", &["a"], true)], &["a", "b"]);
        check(&[("a", &["b"], true), ("b", &["a"], false)], &[]);
        check(&[("a", &["c"], true), ("b", &["a"], true), ("c", &["b"], true), ("d", &["a"], true)], &["a", "b", "c"]);
        check(&[("a", &[], true), ("b", &["a"], true)], &[]);
    }
}
