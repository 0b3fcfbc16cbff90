//! PVC protection: a claim that a Pod uses outlives its deletion.
//! Reads: PersistentVolumeClaim, Pod. Writes: PersistentVolumeClaim (finalizer).
//! Upstream counterpart: pkg/controller/volume/pvcprotection.

use api::rules::pod;
use client::{Api, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

use super::{is_leaving, protect};

const FINALIZER: &str = "kubernetes.io/pvc-protection";

/// The name of the index of Pods by the claims that they name.
pub(super) const BY_CLAIM: &str = "claim";

pub struct ClaimProtection;

/// The keys of the claims that a Pod names, and of those that are made for its ephemeral volumes.
fn keys(pod: &Pod) -> Vec<Key> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    pod::volume_claims(pod).map(|claim| Key::new(namespace, claim.name)).collect()
}

pub(super) fn by_claim(pod: &Pod) -> Vec<String> {
    keys(pod).iter().map(ToString::to_string).collect()
}

/// Only a Pod that has a node uses a claim: no kubelet starts a Pod whose claim is being deleted. One that has ended uses it
/// until the Pod is gone, since the volume may still be mounted. A claim that has the name of an ephemeral volume's and does
/// not belong to the Pod is not used by it.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let bound = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    bound && pod::volume_claims(pod).any(|named| named.name == name && named.is(claim, pod))
}

impl Controller for ClaimProtection {
    const NAME: &'static str = "persistentvolumeclaim-protection-controller";
    type Object = PersistentVolumeClaim;
    /// Whether a Pod uses the claim.
    type Observed = bool;

    fn watches(&self, watches: &mut Watches<PersistentVolumeClaim>) {
        watches.caches().of::<Pod>().add_index(BY_CLAIM, by_claim);
        watches.changed::<Pod>(|change, _| {
            // Another Pod that uses a claim frees none.
            let replaced = matches!((&change.old, &change.new), (Some(a), Some(b)) if a.metadata.uid != b.metadata.uid);
            let counts = replaced || change.new.is_none();
            change.old.iter().chain(&change.new).filter(|_| counts).flat_map(|pod| keys(pod)).collect()
        });
    }

    fn observe(&self, claim: &PersistentVolumeClaim, listers: &Listers) -> bool {
        let pods = || listers.caches.of::<Pod>().by_index(BY_CLAIM, &Key::of(claim).to_string());
        is_leaving(claim, FINALIZER) && pods().iter().any(|pod| uses(pod, claim))
    }

    /// A Pod that the cache does not have yet may use the claim, and its data would be gone.
    async fn ask(&self, claim: &PersistentVolumeClaim, used: &mut bool, client: &Client) -> Result<(), client::Error> {
        if is_leaving(claim, FINALIZER) && !*used {
            let pods: Api<Pod> = Api::namespaced(client.clone(), claim.metadata.namespace.as_deref().unwrap_or(""));
            *used = pods.list(&[]).await?.iter().any(|pod| uses(pod, claim));
        }
        Ok(())
    }

    fn plan(&self, claim: &PersistentVolumeClaim, used: &bool, _: Timestamp) -> Plan {
        protect(claim, FINALIZER, *used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn claim(words: &str) -> PersistentVolumeClaim {
        let deleted = words.contains("deleting").then_some("2026-01-01T00:00:00Z");
        let owner = words
            .contains("owned")
            .then(|| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod", "controller": true}]));
        let finalizers = if words.contains("protected") { json!([FINALIZER]) } else { json!([]) };
        let claim = json!({"metadata": {"name": "p-data", "namespace": "d", "finalizers": finalizers,
            "deletionTimestamp": deleted, "ownerReferences": owner}});
        json::from_value(claim).unwrap()
    }

    #[test]
    fn a_claim_goes_when_no_pod_uses_it() {
        let check = |words: &str, used: bool, expected: Option<&[&str]>| {
            let plan = ClaimProtection.plan(&claim(words), &used, Timestamp::UNIX_EPOCH);
            let written = plan.writes().next().map(|write| write.body()["metadata"]["finalizers"].clone());
            assert_eq!(written, expected.map(|list| json!(list)), "{words} {used}");
        };
        check("", false, Some(&[FINALIZER]));
        check("protected", false, None);
        check("protected deleting", true, None);
        check("protected deleting", false, Some(&[]));
        check("deleting", false, None);
    }

    #[test]
    fn pods_that_run_use_their_claims() {
        let check = |words: &str, owned: &str, expected: bool| {
            let has = |word: &str| words.split(' ').any(|w| w == word);
            let volume = match () {
                () if has("ephemeral") => json!({"name": "data", "ephemeral": {}}),
                () if has("other") => json!({"name": "data", "persistentVolumeClaim": {"claimName": "other"}}),
                () => json!({"name": "data", "persistentVolumeClaim": {"claimName": "p-data"}}),
            };
            let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "pod"},
                "spec": {"containers": [], "nodeName": has("bound").then_some("n"), "volumes": [{"name": "tmp"}, volume]},
                "status": {"phase": if has("ended") { "Failed" } else { "Running" }}});
            let pod: Pod = json::from_value(pod).unwrap();
            assert_eq!(uses(&pod, &claim(owned)), expected, "{words} {owned}");
            assert_eq!(keys(&pod).contains(&Key::new("d", "p-data")), !has("other"));
        };
        check("bound", "", true);
        check("", "", false);
        check("bound ended", "", true);
        check("bound other", "", false);
        check("bound ephemeral", "owned", true);
        check("bound ephemeral", "", false);
    }
}
