//! The volume claims of a StatefulSet's Pods: which there must be, and who owns them, which says when they are deleted.

use std::collections::BTreeMap;

use controller::owner_reference;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use super::name_of;

/// The names of the volumes and claims of an ordinal, in the order of the set's templates.
pub fn names(set: &StatefulSet, ordinal: i32) -> Vec<(String, String)> {
    let name = |claim: &PersistentVolumeClaim| {
        let volume = claim.metadata.name.clone().unwrap_or_default();
        let claim = format!("{volume}-{}-{ordinal}", name_of(set));
        (volume, claim)
    };
    templates(set).map(name).collect()
}

fn templates(set: &StatefulSet) -> impl Iterator<Item = &PersistentVolumeClaim> {
    set.spec.iter().flat_map(|s| s.volume_claim_templates.iter().flatten())
}

/// Whether a claim with this name could be one of the set's.
pub fn is_named_like(set: &StatefulSet, claim: &str) -> bool {
    let Some((rest, digits)) = claim.rsplit_once('-') else { return false };
    let volume = rest.strip_suffix(name_of(set)).and_then(|rest| rest.strip_suffix('-'));
    digits.parse::<i32>().is_ok()
        && volume.is_some_and(|volume| templates(set).any(|t| t.metadata.name.as_deref() == Some(volume)))
}

/// The claims of an ordinal as they are created. Those that go with the set are owned by it from the start.
pub fn wanted(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let selected: BTreeMap<String, String> = set
        .spec
        .iter()
        .flat_map(|s| s.selector.match_labels.iter().flatten())
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let owners = Retention::of(set).when_deleted.then(|| vec![owner_reference(set)]);
    let claims = templates(set).zip(names(set, ordinal)).map(|(template, (_, name))| {
        let mut claim = PersistentVolumeClaim { status: None, ..template.clone() };
        claim.metadata.name = Some(name);
        claim.metadata.namespace = set.metadata.namespace.clone();
        claim.metadata.labels.get_or_insert_default().extend(selected.clone());
        claim.metadata.owner_references = owners.clone();
        claim
    });
    claims.collect()
}

/// When claims are deleted; otherwise they are retained.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Retention {
    when_deleted: bool,
    when_scaled: bool,
}

impl Retention {
    fn of(set: &StatefulSet) -> Self {
        let policy = set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
        let deletes = |word: Option<&String>| word.is_some_and(|word| word == "Delete");
        Retention {
            when_deleted: deletes(policy.and_then(|p| p.when_deleted.as_ref())),
            when_scaled: deletes(policy.and_then(|p| p.when_scaled.as_ref())),
        }
    }

    fn retains_all(self) -> bool {
        !self.when_deleted && !self.when_scaled
    }
}

/// The Pod that a claim is for. It has no UID before it was made.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub name: &'a str,
    pub uid: Option<&'a str>,
    /// Its ordinal is one that the set is to have.
    pub stays: bool,
}

impl<'a> Member<'a> {
    pub fn of(pod: &'a Pod, stays: bool) -> Self {
        Member { name: pod.metadata.name.as_deref().unwrap_or(""), uid: pod.metadata.uid.as_deref(), stays }
    }

    fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: self.name.to_owned(),
            uid: self.uid.unwrap_or_default().to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    fn is_named_by(&self, owner: &OwnerReference) -> bool {
        owner.api_version == "v1" && owner.kind == "Pod" && owner.name == self.name
    }
}

fn names_set(owner: &OwnerReference, set: &StatefulSet) -> bool {
    owner.api_version == "apps/v1" && owner.kind == "StatefulSet" && owner.name == name_of(set)
}

/// One claim with what decides about its owners.
pub struct Ownership<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub set: &'a StatefulSet,
    pub member: Member<'a>,
}

impl Ownership<'_> {
    fn owners(&self) -> &[OwnerReference] {
        self.claim.metadata.owner_references.as_deref().unwrap_or_default()
    }

    fn set_uid(&self) -> &str {
        self.set.metadata.uid.as_deref().unwrap_or("")
    }

    fn has(&self, uid: &str) -> bool {
        self.owners().iter().any(|o| o.uid == uid)
    }

    /// It belonged to an earlier Pod of this name, and goes with that one: no new Pod may have it.
    pub fn is_stale(&self) -> bool {
        Retention::of(self.set).when_scaled && self.names_earlier_pod()
    }

    fn names_earlier_pod(&self) -> bool {
        let named = self.owners().iter().find(|o| self.member.is_named_by(o));
        named.is_some_and(|o| Some(o.uid.as_str()) != self.member.uid)
    }

    fn names_earlier_set(&self) -> bool {
        self.owners().iter().find(|o| names_set(o, self.set)).is_some_and(|o| o.uid != self.set_uid())
    }

    /// Somebody else controls the claim, so that the policy cannot be applied.
    pub fn is_contested(&self) -> bool {
        let strange = |owner: &OwnerReference| {
            if names_set(owner, self.set) {
                return owner.uid != self.set_uid();
            }
            if self.member.is_named_by(owner) {
                return Some(owner.uid.as_str()) != self.member.uid;
            }
            owner.controller == Some(true)
        };
        !Retention::of(self.set).retains_all() && self.owners().iter().any(strange)
    }

    /// Whether set and Pod are to own the claim. Of a Pod that goes, the claim goes with the Pod or stays; otherwise it goes
    /// with the set or stays.
    fn wanted(&self) -> (bool, bool) {
        let Retention { when_deleted, when_scaled } = Retention::of(self.set);
        let by_pod = when_scaled && !self.member.stays;
        (when_deleted && !by_pod, by_pod)
    }

    /// Whether the owners are those that the policy asks for. Claims of an earlier set or Pod are left alone.
    pub fn is_right(&self) -> bool {
        if self.names_earlier_set() || self.names_earlier_pod() {
            return true;
        }
        let held = (self.has(self.set_uid()), self.member.uid.is_some_and(|uid| self.has(uid)));
        if self.is_contested() {
            return held == (false, false);
        }
        let ours = |o: &&OwnerReference| o.uid == self.set_uid() || Some(o.uid.as_str()) == self.member.uid;
        let controls = self.owners().iter().filter(ours).all(|o| o.controller == Some(true));
        controls && held == self.wanted()
    }

    /// The claim with the owners that the policy asks for; a contested one loses those of ours.
    pub fn corrected(&self) -> PersistentVolumeClaim {
        let mut claim = self.claim.clone();
        let owners = claim.metadata.owner_references.get_or_insert_default();
        owners.retain(|o| !names_set(o, self.set) && !self.member.is_named_by(o));
        if !self.is_contested() {
            let (by_set, by_pod) = self.wanted();
            let named = |uid: &str, owners: &[OwnerReference]| owners.iter().any(|o| o.uid == uid);
            if by_set && !named(self.set_uid(), owners) {
                owners.push(owner_reference(self.set));
            }
            if by_pod && !named(self.member.uid.unwrap_or(""), owners) {
                owners.push(self.member.reference());
            }
        }
        claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn set(deleted: &str, scaled: &str) -> StatefulSet {
        json::from_value(json!({"metadata": {"name": "web", "namespace": "d", "uid": "s"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "serviceName": "", "template": {},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled},
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"tier": "db"}}, "status": {"phase": "Pending"}}]}}))
        .unwrap()
    }

    /// Owners: set, pod, oldset, oldpod, other (which does not control), boss (which does), weakset (which does not).
    fn claim(owners: &str) -> PersistentVolumeClaim {
        let owner = |word: &str| {
            let (kind, version, name, uid, controls) = match word {
                "set" => ("StatefulSet", "apps/v1", "web", "s", true),
                "weakset" => ("StatefulSet", "apps/v1", "web", "s", false),
                "oldset" => ("StatefulSet", "apps/v1", "web", "s0", true),
                "pod" => ("Pod", "v1", "web-0", "p", true),
                "oldpod" => ("Pod", "v1", "web-0", "p0", true),
                "boss" => ("Boss", "v1", "boss", "b", true),
                _ => ("Other", "v1", "other", "o", false),
            };
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controls})
        };
        let owners: Vec<_> = owners.split_whitespace().map(owner).collect();
        json::from_value(json!({"metadata": {"name": "data-web-0", "ownerReferences": owners}})).unwrap()
    }

    /// The owners after the policy was applied, or `right` when they are as they should be.
    fn check(policy: (&str, &str), stays: bool, owners: &str, expected: &str) {
        let (set, claim) = (set(policy.0, policy.1), claim(owners));
        let member = Member { name: "web-0", uid: Some("p"), stays };
        let ownership = Ownership { claim: &claim, set: &set, member };
        let said = if ownership.is_right() {
            "right".to_owned()
        } else {
            let corrected = ownership.corrected();
            let again = Ownership { claim: &corrected, set: &set, member };
            assert!(again.is_right(), "{policy:?} {stays} {owners}: not right at once");
            let owners = corrected.metadata.owner_references.unwrap();
            owners.iter().map(|o| o.uid.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(said, expected, "{policy:?} stays={stays} {owners}");
    }

    #[test]
    fn owners_follow_the_policy() {
        let (keep, gone) = ("Retain", "Delete");
        for stays in [true, false] {
            check((keep, keep), stays, "", "right");
            check((keep, keep), stays, "set other", "o");
            check((keep, keep), stays, "pod", "");
            check((keep, keep), stays, "boss", "right");
            check((gone, keep), stays, "set", "right");
            check((gone, keep), stays, "other", "o s");
            check((gone, keep), stays, "set pod", "s");
        }
        check((keep, gone), true, "", "right");
        check((keep, gone), true, "pod", "");
        check((keep, gone), true, "set", "");
        check((keep, gone), false, "pod", "right");
        check((keep, gone), false, "other", "o p");
        check((gone, gone), true, "set", "right");
        check((gone, gone), true, "pod", "s");
        check((gone, gone), false, "set", "p");
        check((gone, gone), false, "pod", "right");
        check((gone, gone), false, "", "p");
    }

    #[test]
    fn what_others_control_is_left_to_them() {
        let policy = ("Delete", "Delete");
        check(policy, true, "boss", "right");
        check(policy, true, "boss set", "b");
        check(policy, false, "boss pod", "b");
        check(policy, true, "oldset", "right");
        check(policy, false, "oldpod set", "right");
        check(policy, true, "weakset", "s");
    }

    #[test]
    fn a_claim_of_an_earlier_pod_is_stale_where_it_goes_with_the_pod() {
        let stale = |scaled: &str, owners: &str, uid: Option<&str>| {
            let (set, claim) = (set("Retain", scaled), claim(owners));
            Ownership { claim: &claim, set: &set, member: Member { name: "web-0", uid, stays: true } }.is_stale()
        };
        assert!(stale("Delete", "oldpod", None));
        assert!(stale("Delete", "pod", None), "the Pod that is to be made is another one");
        assert!(!stale("Delete", "pod", Some("p")));
        assert!(!stale("Retain", "oldpod", None));
        assert!(!stale("Delete", "set", None));
    }

    #[test]
    fn claims_are_made_from_templates() {
        let made = json::to_value(&wanted(&set("Retain", "Delete"), 3)[0]).unwrap();
        let expected = json!({"name": "data-web-3", "namespace": "d", "labels": {"tier": "db", "app": "web"}});
        assert_eq!((&made["metadata"], &made["status"]), (&expected, &json::Value::Null));
        let owned = &wanted(&set("Delete", "Retain"), 0)[0];
        assert_eq!(owned.metadata.owner_references.as_ref().unwrap()[0].uid, "s");
        for (name, expected) in [
            ("data-web-0", true),
            ("data-web-x", false),
            ("log-web-0", false),
            ("data-other-0", false),
            ("data", false),
        ] {
            assert_eq!(is_named_like(&set("Retain", "Retain"), name), expected, "{name}");
        }
    }
}
