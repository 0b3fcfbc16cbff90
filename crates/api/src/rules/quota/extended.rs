//! Claims on devices where classes stand for extended resources: a claim uses of those resources what it asks for of the
//! devices, unless the claim was made for a Pod's extended resources. Then the Pod has been charged for them.
//! Upstream counterpart: pkg/quota/v1/evaluator/core (resource_claims).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::{Resources, Usage, claims};
use crate::rules::resource_name::{EXTENDED_CLAIM, OF_DEVICE_CLASS};

/// A claim with what it uses of extended resources.
pub struct ExtendedClaim {
    claim: ResourceClaim,
    beside: Resources,
}

impl ExtendedClaim {
    /// `resource_of` says for which resource a class stands, `charged` what was charged for the claim's Pod already.
    pub fn new(claim: ResourceClaim, resource_of: impl Fn(&str) -> Option<String>, charged: &Resources) -> Self {
        let beside = beside(&claim, resource_of, charged);
        ExtendedClaim { claim, beside }
    }
}

impl Usage for ExtendedClaim {
    fn used(&self, now: Timestamp) -> Resources {
        let mut used = self.claim.used(now);
        used.extend(self.beside.clone());
        used
    }
}

/// The use of extended resources by a claim, by the names that quotas have for the requests of Pods: for each class that
/// stands for a resource the resource's name, and the name that is made from the class'.
pub fn beside(claim: &ResourceClaim, resource_of: impl Fn(&str) -> Option<String>, charged: &Resources) -> Resources {
    let mut used = Resources::new();
    for (class, devices) in claims::by_class(claim) {
        let Some(resource) = resource_of(class) else { continue };
        for name in [format!("requests.{resource}"), format!("requests.{OF_DEVICE_CLASS}{class}")] {
            *used.entry(name).or_default() += devices;
        }
    }
    for (name, amount) in &mut used {
        *amount -= charged.get(name).copied().unwrap_or_default();
    }
    used.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
    used
}

/// The classes that a claim names.
pub fn classes(claim: &ResourceClaim) -> impl Iterator<Item = &str> {
    claims::by_class(claim).into_keys()
}

/// Name and UID of the Pod for whose extended resources a claim was made.
pub fn pod_of(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let annotations = claim.metadata.annotations.as_ref()?;
    annotations.get(EXTENDED_CLAIM).filter(|value| *value == "true")?;
    let owner = claim.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    (owner.kind == "Pod" && owner.api_version == "v1").then_some((owner.name.as_str(), owner.uid.as_str()))
}

/// The charge for a claim so far: its Pod's usage, if the claim is the one for the Pod's extended resources. As long as the
/// Pod does not say which one that is, it is the oldest of `others` with such an owner and the claim itself.
pub fn charged<'a>(
    claim: &ResourceClaim,
    pod: Option<&Pod>,
    others: impl IntoIterator<Item = &'a ResourceClaim>,
    now: Timestamp,
) -> Resources {
    let name = claim.metadata.name.as_deref();
    let Some(((_, uid), pod)) =
        pod_of(claim).zip(pod).filter(|((_, uid), pod)| pod.metadata.uid.as_deref() == Some(uid))
    else {
        return Resources::new();
    };
    let told = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    // A claim that is just being made is the newest.
    let age = |claim: &ResourceClaim| claim.metadata.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0);
    let is_before = |other: &ResourceClaim| {
        pod_of(other).is_some_and(|(_, of)| of == uid)
            && (age(other), other.metadata.name.as_deref()) < (age(claim), name)
    };
    let is_it = match told {
        Some(told) => Some(told.resource_claim_name.as_str()) == name,
        None => !others.into_iter().any(is_before),
    };
    if is_it { pod.used(now) } else { Resources::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn claim(name: &str, created: i64, requests: Value) -> ResourceClaim {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        let time = Timestamp::from_second(created).unwrap().to_string();
        let meta = json!({"name": name, "creationTimestamp": time, "annotations": {EXTENDED_CLAIM: "true"},
            "ownerReferences": [owner]});
        json::from_value(json!({"metadata": meta, "spec": {"devices": {"requests": requests}}})).unwrap()
    }

    fn of(count: i64) -> Value {
        json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}])
    }

    fn words(used: &Resources) -> String {
        used.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    fn stands(class: &str) -> Option<String> {
        (class == "gpu").then(|| "x.io/gpu".to_owned())
    }

    const IMPLICIT: &str = "requests.deviceclass.resource.kubernetes.io/gpu";

    #[test]
    fn a_claim_uses_the_resources_for_which_its_classes_stand() {
        let check = |requests: Value, charged: &[(&str, &str)], expected: &str| {
            let charged = charged.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect();
            assert_eq!(words(&beside(&claim("c", 1, requests.clone()), stands, &charged)), expected, "{requests}");
        };
        check(of(2), &[], &format!("{IMPLICIT}=2 requests.x.io/gpu=2"));
        check(of(2), &[("requests.x.io/gpu", "2")], &format!("{IMPLICIT}=2"));
        check(of(3), &[(IMPLICIT, "2")], &format!("{IMPLICIT}=1 requests.x.io/gpu=3"));
        check(of(1), &[("requests.x.io/gpu", "5"), (IMPLICIT, "5")], "");
        check(json!([{"name": "r", "exactly": {"deviceClassName": "nic", "count": 1}}]), &[], "");
        let either = json!([{"name": "r", "firstAvailable": [
            {"name": "a", "deviceClassName": "gpu", "count": 3}, {"name": "b", "deviceClassName": "gpu", "count": 1}]}]);
        check(either, &[], &format!("{IMPLICIT}=3 requests.x.io/gpu=3"));
        let whole = ExtendedClaim::new(claim("c", 1, of(2)), stands, &Resources::new());
        let all = format!(
            "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=2 {IMPLICIT}=2 \
                           requests.x.io/gpu=2"
        );
        assert_eq!(words(&whole.used(Timestamp::UNIX_EPOCH)), all);
    }

    #[test]
    fn what_the_pod_was_charged_for_is_not_charged_again() {
        let pod = |uid: &str, told: Option<&str>| -> Pod {
            let container =
                json!({"name": "c", "resources": {"requests": {"x.io/gpu": "2"}, "limits": {"x.io/gpu": "2"}}});
            let told = told.map(|claim| json!({"resourceClaimName": claim, "requestMappings": []}));
            json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": {"containers": [container]},
                "status": {"extendedResourceClaimStatus": told}}))
            .unwrap()
        };
        let check = |claim: &ResourceClaim, pod: Option<Pod>, others: &[ResourceClaim], expected: bool| {
            let charged = charged(claim, pod.as_ref(), others, Timestamp::UNIX_EPOCH);
            assert_eq!(charged.contains_key("requests.x.io/gpu"), expected, "{:?} {pod:?}", claim.metadata);
        };
        let one = claim("c", 2, of(2));
        check(&one, Some(pod("u", Some("c"))), &[], true);
        check(&one, Some(pod("u", Some("other"))), &[], false);
        check(&one, Some(pod("v", Some("c"))), &[], false);
        check(&one, None, &[], false);
        check(&one, Some(pod("u", None)), &[one.clone(), claim("d", 2, of(2)), claim("a", 3, of(2))], true);
        check(&one, Some(pod("u", None)), &[claim("b", 2, of(2))], false);
        check(&one, Some(pod("u", None)), &[claim("z", 1, of(2))], false);
        let mut elsewhere = claim("z", 1, of(2));
        elsewhere.metadata.owner_references.as_mut().unwrap()[0].uid = "w".into();
        check(&one, Some(pod("u", None)), &[elsewhere], true);
        let mut made = claim("z", 1, of(2));
        made.metadata.creation_timestamp = None;
        check(&made, Some(pod("u", None)), std::slice::from_ref(&one), false);
        let mut plain = one.clone();
        plain.metadata.annotations = None;
        check(&plain, Some(pod("u", Some("c"))), &[], false);
    }
}
