//! The checkers of claims and volumes.

use std::collections::BTreeMap;

use api::rules::{
    pod::{is_terminal, volume_claims},
    volume::{is_bind_completed, volume_of, waits_for_consumer},
};
use clock::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};

use super::news::is_news;
use crate::objects::set;

/// The objects that the checkers remember of these kinds, by the key in the store: `persistentvolumeclaims/default/c`.
#[derive(Default)]
pub struct Claims {
    classes: BTreeMap<String, StorageClass>,
    claims: BTreeMap<String, PersistentVolumeClaim>,
    volumes: BTreeMap<String, PersistentVolume>,
    /// When a claim that could be used went, by its key.
    gone: BTreeMap<String, Timestamp>,
    /// How often a claim was bound.
    pub bound: usize,
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound")
}

/// The UID of the claim that a volume is for.
fn claimed_by(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref().filter(|uid| !uid.is_empty())
}

fn name(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

fn class(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()).unwrap_or_default()
}

impl Claims {
    /// The volumes that a Pod's claims are bound to.
    pub fn volumes_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a PersistentVolume> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claims = volume_claims(pod).filter_map(move |claim| self.claim_named(namespace, &claim.name));
        claims.filter_map(|claim| self.volume_named(volume_of(claim)))
    }

    pub fn volume_named(&self, name: &str) -> Option<&PersistentVolume> {
        self.volumes.get(&format!("persistentvolumes/{name}"))
    }

    fn went_just_now(&self, namespace: &str, name: &str, now: Timestamp) -> bool {
        self.gone.get(&format!("persistentvolumeclaims/{namespace}/{name}")).is_some_and(|at| is_news(*at, now))
    }

    fn claim_named(&self, namespace: &str, name: &str) -> Option<&PersistentVolumeClaim> {
        self.claims.get(&format!("persistentvolumeclaims/{namespace}/{name}"))
    }

    /// A volume goes from one claim to another only by way of nobody, and not at all while its claim is bound to it.
    pub fn volume(&mut self, key: String, new: Option<PersistentVolume>) -> Option<String> {
        let old = self.volumes.get(&key);
        let before = old.and_then(claimed_by);
        let after = new.as_ref().and_then(claimed_by);
        let holder = before.filter(|_| before != after).and_then(|uid| {
            let is_it = |c: &&PersistentVolumeClaim| c.metadata.uid.as_deref() == Some(uid) && is_bound(c);
            let volume = old?.metadata.name.as_deref()?;
            self.claims.values().find(is_it).filter(|c| volume_of(c) == volume)
        });
        let wrong = match (before, after, holder) {
            (Some(before), Some(after), _) if before != after => Some(format!("claim {before} loses it to {after}")),
            (_, _, Some(claim)) => Some(format!("the claim {} is bound to it", name(claim))),
            _ => None,
        };
        set(&mut self.volumes, key, new);
        wrong
    }

    /// A claim keeps its volume, which is for no other claim; and a claim that a Pod runs with stays. `pods` are all Pods.
    pub fn claim(
        &mut self,
        key: String,
        new: Option<PersistentVolumeClaim>,
        pods: &BTreeMap<String, Pod>,
        now: Timestamp,
    ) -> Option<String> {
        let old = self.claims.get(&key);
        if new.is_none() && old.is_some_and(is_bind_completed) {
            self.gone.insert(key.clone(), now);
        }
        let wrong = match (old, &new) {
            (Some(old), None) => {
                let user = pods.values().find(|pod| runs_with(pod, old));
                user.map(|pod| format!("the Pod {} runs with it", pod.metadata.name.as_deref().unwrap_or_default()))
            }
            (Some(old), Some(new)) if !volume_of(old).is_empty() && volume_of(old) != volume_of(new) => {
                Some(format!("it had the volume {} and has {:?}", volume_of(old), volume_of(new)))
            }
            (old, Some(new)) if is_bound(new) && !old.is_some_and(is_bound) => {
                self.bound += 1;
                let volume = self.volume_named(volume_of(new));
                let holder = volume.and_then(claimed_by);
                (holder != new.metadata.uid.as_deref()).then(|| format!("it is bound to a volume of {holder:?}"))
            }
            _ => None,
        };
        set(&mut self.claims, key, new);
        wrong
    }

    /// A Pod gets a node when all its claims are bound. A claim that no placed Pod uses goes at once, upstream too, so the
    /// scheduler may just have taken it into account.
    pub fn placed(&self, pod: &Pod, now: Timestamp) -> Option<String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        volume_claims(pod).map(|claim| claim.name).find_map(|claim| match self.claim_named(namespace, &claim) {
            None if self.went_just_now(namespace, &claim, now) => None,
            None => Some(format!("it gets a node without its claim {claim}")),
            Some(found) if !is_bind_completed(found) => {
                Some(format!("it gets a node before its claim {claim} is bound"))
            }
            Some(_) => None,
        })
    }

    pub fn class(&mut self, key: String, new: Option<StorageClass>) {
        set(&mut self.classes, key, new);
    }

    /// Whether each claim has its volume that does not wait for a Pod, and no volume is for a claim that has another.
    pub fn settled(&self, pods: &BTreeMap<String, Pod>) -> bool {
        let waits = |claim: &PersistentVolumeClaim| {
            let class = self.classes.get(&format!("storageclasses/{}", class(claim)));
            class.is_some_and(waits_for_consumer) && !pods.values().any(|pod| uses(pod, claim))
        };
        self.claims.values().all(|claim| is_bound(claim) || waits(claim)) && self.strayed().is_empty()
    }

    fn strayed(&self) -> Vec<&str> {
        let strays = self.volumes.values().filter(|volume| {
            let uid = claimed_by(volume);
            let claim = self.claims.values().find(|c| uid.is_some() && c.metadata.uid.as_deref() == uid);
            claim.is_some_and(|claim| Some(volume_of(claim)) != volume.metadata.name.as_deref())
        });
        strays.filter_map(|volume| volume.metadata.name.as_deref()).collect()
    }

    /// The names of the claims that have no volume, each with its class.
    pub fn waiting(&self) -> Vec<(String, String)> {
        let waiting = self.claims.values().filter(|claim| !is_bound(claim));
        waiting.map(|claim| (name(claim).to_owned(), class(claim).to_owned())).collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.claims.values().map(|claim| name(claim).to_owned()).collect()
    }

    /// Whether a claim is being deleted.
    pub fn some_go(&self) -> bool {
        self.claims.values().any(|claim| claim.metadata.deletion_timestamp.is_some())
    }

    /// The volumes whose claim is gone.
    pub fn released(&self) -> Vec<String> {
        let released = |v: &&PersistentVolume| v.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released");
        self.volumes.values().filter(released).filter_map(|v| v.metadata.name.clone()).collect()
    }

    pub fn volume_names(&self) -> Vec<String> {
        self.volumes.values().filter_map(|v| v.metadata.name.clone()).collect()
    }

    /// The state in one line, for a failure.
    pub fn summary(&self) -> String {
        let (waiting, strayed) = (self.waiting(), self.strayed());
        format!("{} claims, without volume {waiting:?}, volumes that strayed {strayed:?}", self.claims.len())
    }
}

fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    pod.metadata.namespace == claim.metadata.namespace
        && !is_terminal(pod)
        && volume_claims(pod).any(|used| used.name == name(claim))
}

fn runs_with(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) && uses(pod, claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    const CLAIM: &str = "persistentvolumeclaims/d/c";
    const VOLUME: &str = "persistentvolumes/v";

    fn claim(volume: &str, phase: &str) -> Option<PersistentVolumeClaim> {
        let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
        let annotations = if phase == "Bound" { bound } else { json!({}) };
        json::from_value(json!({
            "metadata": {"name": "c", "namespace": "d", "uid": "c", "annotations": annotations},
            "spec": {"volumeName": volume}, "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn volume(of: Option<&str>) -> Option<PersistentVolume> {
        let reference: Option<Value> = of.map(|uid| json!({"name": uid, "uid": uid}));
        json::from_value(json!({"metadata": {"name": "v"}, "spec": {"claimRef": reference}})).unwrap()
    }

    fn user(node: Option<&str>) -> Pod {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d"},
            "spec": {"nodeName": node, "containers": [], "volumes": volumes},
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_and_a_volume_belong_to_each_other() {
        let none = BTreeMap::new();
        let mut claims = Claims::default();
        let at = |second: i64| Timestamp::from_second(1000 + second).unwrap();
        let check = |wrong: Option<String>, expected: &str| assert_eq!(wrong.unwrap_or_default(), expected);
        check(claims.claim(CLAIM.into(), claim("", "Pending"), &none, at(0)), "");
        check(claims.volume(VOLUME.into(), volume(None)), "");
        check(claims.placed(&user(None), at(0)), "it gets a node before its claim c is bound");
        assert!(!claims.settled(&none));
        check(claims.claim(CLAIM.into(), claim("v", "Bound"), &none, at(0)), "it is bound to a volume of None");
        claims.claim(CLAIM.into(), claim("v", "Pending"), &none, at(0));
        check(claims.volume(VOLUME.into(), volume(Some("c"))), "");
        check(claims.claim(CLAIM.into(), claim("v", "Bound"), &none, at(0)), "");
        check(claims.placed(&user(None), at(0)), "");
        assert!(claims.settled(&none));
        check(claims.claim(CLAIM.into(), claim("w", "Bound"), &none, at(0)), "it had the volume v and has \"w\"");
        assert!(!claims.settled(&none), "the volume is for a claim that has another");
        claims.claim(CLAIM.into(), claim("v", "Bound"), &none, at(0));
        check(claims.volume(VOLUME.into(), None), "the claim c is bound to it");
        claims.volume(VOLUME.into(), volume(Some("c")));
        check(claims.volume(VOLUME.into(), volume(Some("other"))), "claim c loses it to other");
        let pods = BTreeMap::from([("p".to_owned(), user(Some("n")))]);
        check(claims.claim(CLAIM.into(), None, &pods, at(0)), "the Pod p runs with it");
        check(claims.placed(&user(None), at(29)), "");
        check(claims.placed(&user(None), at(30)), "it gets a node without its claim c");
    }
}
