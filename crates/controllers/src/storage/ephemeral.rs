//! Ephemeral volumes: makes the claim of each, owned by its Pod, with which it goes.
//! Reads: Pod, PersistentVolumeClaim. Writes: PersistentVolumeClaim (create).
//! Upstream counterpart: pkg/controller/volume/ephemeral.
//!
//! A claim's name follows from the Pod's and the volume's, so however often this is interrupted, there is one.

use std::sync::Arc;

use api::rules::pod::{VolumeClaim, is_deleted, volume_claims};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write, owner_reference};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::claim_protection::{BY_CLAIM, by_claim};

pub struct EphemeralVolumes;

/// The claims that are to be made for a Pod alone.
fn own_claims(pod: &Pod) -> impl Iterator<Item = VolumeClaim> {
    volume_claims(pod).filter(|claim| claim.is_own)
}

impl Controller for EphemeralVolumes {
    const NAME: &'static str = "ephemeral-volume-controller";
    type Object = Pod;
    /// The claims of the Pod's ephemeral volumes, as far as there are any of their names, in the volumes' order.
    type Observed = Vec<Option<Arc<PersistentVolumeClaim>>>;

    fn concerns(change: &Change<Pod>) -> bool {
        change.new.as_ref().is_some_and(|pod| own_claims(pod).next().is_some())
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        watches.caches().of::<Pod>().add_index(BY_CLAIM, by_claim);
        watches.changed::<PersistentVolumeClaim>(|change, caches| {
            // A claim that is there needs nothing, and one that is another's may only be waited for to go.
            let replaced = matches!((&change.old, &change.new), (Some(a), Some(b)) if a.metadata.uid != b.metadata.uid);
            if change.new.is_some() && !replaced {
                return Vec::new();
            }
            let pods = caches.of::<Pod>().by_index(BY_CLAIM, &change.key.to_string());
            pods.iter().map(|pod| Key::of(&**pod)).collect()
        });
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Self::Observed {
        let claims = listers.caches.of::<PersistentVolumeClaim>();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        own_claims(pod).map(|claim| claims.get(&Key::new(namespace, claim.name))).collect()
    }

    fn plan(&self, pod: &Pod, held: &Self::Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if is_deleted(pod) {
            return plan;
        }
        for (wanted, held) in own_claims(pod).zip(held) {
            let failed =
                |why: &str| Note::warning("FailedBinding", format!("ephemeral volume {}: {why}", wanted.volume));
            match held {
                None => {
                    let why = format!("create PVC {}: {{error}}", wanted.name);
                    plan.step(Write::create(&claim(pod, &wanted)).on_failure(failed(&why)));
                }
                Some(held) if !wanted.is(held, pod) => {
                    let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or(""), &wanted.name);
                    let owner = pod.metadata.name.as_deref().unwrap_or("");
                    plan.tell(failed(&format!(
                        "PVC {namespace}/{name} was not created for pod {namespace}/{owner} (pod is not owner)"
                    )));
                    // The volumes after it wait, as the Pod does anyhow.
                    return plan;
                }
                Some(_) => {}
            }
        }
        plan
    }
}

fn claim(pod: &Pod, wanted: &VolumeClaim) -> PersistentVolumeClaim {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.into_iter().find(|volume| volume.name == wanted.volume);
    let template = volume.and_then(|v| v.ephemeral.as_ref()?.volume_claim_template.clone()).unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            namespace: pod.metadata.namespace.clone(),
            annotations: meta.annotations,
            labels: meta.labels,
            owner_references: Some(vec![owner_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller::Step;
    use json::json;

    fn pod(words: &str) -> Pod {
        let template =
            json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["f"]}, "spec": {"storageClassName": "c"}});
        let deleted = words.contains("leaving").then_some("2026-01-01T00:00:00Z");
        let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "pod", "deletionTimestamp": deleted},
            "spec": {"containers": [], "volumes": [{"name": "tmp", "emptyDir": {}},
                {"name": "x", "ephemeral": {"volumeClaimTemplate": template}},
                {"name": "y", "ephemeral": {"volumeClaimTemplate": template}},
                {"name": "z", "persistentVolumeClaim": {"claimName": "other"}}]}});
        json::from_value(pod).unwrap()
    }

    fn held(owner: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
        Some(Arc::new(json::from_value(json!({"metadata": {"name": "p-x", "ownerReferences": owner}})).unwrap()))
    }

    #[test]
    fn each_ephemeral_volume_gets_its_claim() {
        let check = |words: &str, claims: [Option<Arc<PersistentVolumeClaim>>; 2], expected: &str| {
            let plan = EphemeralVolumes.plan(&pod(words), &claims.to_vec(), Timestamp::UNIX_EPOCH);
            let told = plan.steps.iter().filter_map(|step| match step {
                Step::Tell(note) => Some(format!("{}: {}", note.reason, note.message)),
                _ => None,
            });
            let said: Vec<String> = plan.writes().map(ToString::to_string).chain(told).collect();
            assert_eq!(said.join(", ").replace(" persistentvolumeclaims", ""), expected, "{words}");
        };
        check("", [None, None], "create p-x, create p-y");
        check("", [held("pod"), None], "create p-y");
        check("", [held("pod"), held("pod")], "");
        let foreign = "FailedBinding: ephemeral volume x: PVC d/p-x was not created for pod d/p (pod is not owner)";
        check("", [held("another"), None], foreign);
        check("leaving", [None, None], "");
    }

    #[test]
    fn a_claim_is_as_its_template_says_and_the_pods() {
        let plan = EphemeralVolumes.plan(&pod(""), &vec![None, None], Timestamp::UNIX_EPOCH);
        let body = plan.writes().next().unwrap().body().clone();
        assert_eq!((&body["spec"]["storageClassName"], &body["metadata"]["labels"]["a"]), (&json!("c"), &json!("b")));
        assert_eq!(body["metadata"]["finalizers"], json!(null), "a template names labels and annotations only");
        let owner = &body["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&json!("pod"), &json!(true)));
    }
}
