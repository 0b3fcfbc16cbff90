//! The use of extended resources by claims, beside that by Pods: where classes stand for the resources, a quota of
//! `requests.RESOURCE` counts both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::rules::{
    pod::Resources,
    quota::{
        Counter,
        extended::{beside, charged, pod_of},
        scopes,
    },
    resource_name::may_be_devices,
};
use client::{Api, Caches, Client, Key};
use clock::Timestamp;
use k8s_openapi::api::{
    core::v1::{Pod, ResourceQuota},
    resource::v1::{DeviceClass, ResourceClaim},
};

use super::Limit;

/// The resources of a quota of which claims may use something. Claims are in no scope.
pub fn names<'a>(quota: &ResourceQuota, limited: &[Limit<'a>]) -> BTreeSet<&'a str> {
    if quota.spec.as_ref().is_some_and(|spec| !scopes(spec).is_empty()) {
        return BTreeSet::new();
    }
    let of_pods = limited.iter().filter(|(_, counter, ..)| *counter == Counter::Pods).map(|(name, ..)| *name);
    of_pods.filter(|name| name.strip_prefix("requests.").is_some_and(may_be_devices)).collect()
}

/// The claims of a namespace, with the Pods and the classes that they are about.
#[derive(Default)]
pub struct Facts {
    pub claims: Vec<Arc<ResourceClaim>>,
    pub pods: BTreeMap<String, Arc<Pod>>,
    pub classes: BTreeMap<String, String>,
}

impl Facts {
    pub fn new(claims: Vec<Arc<ResourceClaim>>, pods: Vec<Arc<Pod>>, classes: &[Arc<DeviceClass>]) -> Self {
        let named = pods.into_iter().filter_map(|pod| Some((pod.metadata.name.clone()?, pod)));
        let stands = classes
            .iter()
            .filter_map(|class| Some((class.metadata.name.clone()?, class.spec.extended_resource_name.clone()?)));
        Facts { claims, pods: named.collect(), classes: stands.collect() }
    }

    pub fn cached(namespace: &str, caches: &Caches) -> Self {
        let claims = caches.of::<ResourceClaim>().list_in(namespace);
        let pods = caches.of::<Pod>();
        let owners: BTreeSet<&str> = claims.iter().filter_map(|claim| Some(pod_of(claim)?.0)).collect();
        let pods = owners.into_iter().filter_map(|name| pods.get(&Key::new(namespace, name))).collect();
        Facts::new(claims.clone(), pods, &caches.of::<DeviceClass>().list())
    }

    pub async fn live(namespace: &str, pods: Vec<Arc<Pod>>, client: &Client) -> Result<Self, client::Error> {
        let claims = Api::<ResourceClaim>::namespaced(client.clone(), namespace).list(&[]).await?;
        let classes = Api::<DeviceClass>::all(client.clone()).list(&[]).await?;
        let classes: Vec<Arc<DeviceClass>> = classes.into_iter().map(Arc::new).collect();
        Ok(Facts::new(claims.into_iter().map(Arc::new).collect(), pods, &classes))
    }

    /// Adds to the use by Pods what the claims use of these resources.
    pub fn add(&self, names: &BTreeSet<&str>, used: &mut Resources, now: Timestamp) {
        let mut of_pod: BTreeMap<&str, Vec<&ResourceClaim>> = BTreeMap::new();
        for claim in &self.claims {
            if let Some((_, uid)) = pod_of(claim) {
                of_pod.entry(uid).or_default().push(claim);
            }
        }
        for claim in &self.claims {
            let owner = pod_of(claim);
            let pod = owner.and_then(|(name, _)| self.pods.get(name)).map(|pod| &**pod);
            let others = owner.and_then(|(_, uid)| of_pod.get(uid)).into_iter().flatten().copied();
            let charged = charged(claim, pod, others, now);
            for (name, amount) in beside(claim, |class| self.classes.get(class).cloned(), &charged) {
                if names.contains(name.as_str()) {
                    *used.entry(name).or_default() += amount;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::limited;
    use json::{Value, json};

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(json::from_value(value).unwrap())
    }

    #[test]
    fn claims_count_beside_the_pods() {
        let claim = |name: &str, meta: Value, class: &str| -> Arc<ResourceClaim> {
            let mut claim = json!({"metadata": meta, "spec": {"devices": {"requests": [
                {"name": "r", "exactly": {"deviceClassName": class, "allocationMode": "ExactCount", "count": 2}}]}}});
            claim["metadata"]["name"] = json!(name);
            object(claim)
        };
        let made = json!({"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]});
        let claims = vec![claim("own", json!({}), "gpu"), claim("made", made, "gpu"), claim("other", json!({}), "nic")];
        let container = json!({"name": "c", "resources": {"requests": {"x.io/gpu": "2"}, "limits": {"x.io/gpu": "2"}}});
        let pods = vec![object(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}}))];
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "x.io/gpu"}});
        let facts = Facts::new(claims, pods, &[object(class)]);
        let check = |hard: Value, scopes: Value, before: &str, expected: &str| {
            let quota: Arc<ResourceQuota> = object(json!({"spec": {"hard": hard, "scopes": scopes}}));
            let mut used = super::super::history::tests::resources(before);
            facts.add(&names(&quota, &limited(&quota)), &mut used, Timestamp::UNIX_EPOCH);
            let words: Vec<String> = used.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
            assert_eq!(words.join(" "), expected, "{hard}");
        };
        let implicit = "requests.deviceclass.resource.kubernetes.io/gpu";
        // The Pod's two are in what was counted before.
        check(json!({"requests.x.io/gpu": "9"}), json!(null), "requests.x.io/gpu=2", "requests.x.io/gpu=4");
        check(json!({(implicit): "9"}), json!(null), &format!("{implicit}=0"), &format!("{implicit}=4"));
        check(
            json!({"requests.x.io/gpu": "9"}),
            json!(["NotTerminating"]),
            "requests.x.io/gpu=2",
            "requests.x.io/gpu=2",
        );
        check(json!({"requests.cpu": "9", "pods": "1"}), json!(null), "pods=1", "pods=1");
    }
}
