//! StatefulSets: one whose Pods start in order, one whose Pods do not, with claims that stay or go.

use std::collections::BTreeSet;

use client::rest::DeleteOptions;
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod},
};

use crate::world::{Story, World, below, chance, claims_of, converges, name, phase};

const LIMIT: i32 = 2;

/// Holds up the end of a claim until nothing else happens, as what protects claims in use does.
const HELD: &str = "skiff.test/held";

struct Sets;

fn set(name: &str, policy: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": 3, "serviceName": "peers", "revisionHistoryLimit": LIMIT,
        "selector": {"matchLabels": {"app": name}}, "podManagementPolicy": policy,
        "volumeClaimTemplates": [{"metadata": {"name": "data", "finalizers": [HELD]}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}],
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "v0"}]}}}})
}

/// A change of the spec.
fn changed() -> Value {
    match below(7) {
        0 | 1 => json!({"replicas": below(5)}),
        2 | 3 => json!({"template": {"spec": {"containers": [{"name": "c", "image": format!("v{}", below(4))}]}}}),
        4 => {
            let most = if chance(50) { json!(1 + below(3)) } else { Value::Null };
            json!({"updateStrategy": {"rollingUpdate": {"partition": below(4), "maxUnavailable": most}}})
        }
        5 => json!({"ordinals": {"start": below(3)}}),
        _ => {
            let word = || ["Retain", "Delete"][below(2) as usize];
            json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": word(), "whenScaled": word()},
                "minReadySeconds": below(8)})
        }
    }
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.containers[0].image.as_deref()).unwrap_or("")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    phase(pod) == "Running" && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Why this set is not as its spec says.
async fn lacks(world: &World, set: &StatefulSet) -> Option<String> {
    let (name_of_set, spec) = (set.metadata.name.clone().unwrap(), set.spec.clone().unwrap());
    let status = set.status.clone().unwrap_or_default();
    let start = spec.ordinals.and_then(|o| o.start).unwrap_or(0);
    let replicas = spec.replicas.unwrap();
    let partition = spec.update_strategy.and_then(|s| s.rolling_update).and_then(|r| r.partition).unwrap_or(0);
    let wanted: Vec<String> = (start..start + replicas).map(|ordinal| format!("{name_of_set}-{ordinal}")).collect();
    let pods = world.list::<Pod>().await;
    let pods: Vec<&Pod> = pods.iter().filter(|p| name(p).starts_with(&name_of_set)).collect();
    let held: Vec<&str> = pods.iter().map(|p| name(p)).collect();
    if held != wanted || !pods.iter().all(|p| is_ready(p)) {
        return Some(format!(
            "{wanted:?} ready, not {:?}",
            pods.iter().map(|p| (name(p), is_ready(p))).collect::<Vec<_>>()
        ));
    }
    let present = spec.template.spec.unwrap().containers[0].image.clone().unwrap();
    if pods.iter().skip(partition as usize).any(|p| image(p) != present) {
        return Some(format!(
            "{name_of_set}: {present} from {partition}, not {:?}",
            pods.iter().map(|p| image(p)).collect::<Vec<_>>()
        ));
    }
    let claims = world.list::<PersistentVolumeClaim>().await;
    let claimed = |pod: &Pod| {
        let wanted = format!("data-{}", name(pod));
        // One that is to be deleted stays as long as its Pod.
        claims.iter().any(|c| c.metadata.name.as_ref() == Some(&wanted))
    };
    if !pods.iter().all(|p| claimed(p)) {
        return Some(format!("{name_of_set}: claims"));
    }
    let told = (status.replicas, status.ready_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0));
    if told != (replicas, replicas, replicas) || status.observed_generation != set.metadata.generation {
        return Some(format!("{name_of_set}: {replicas} Pods, and its status says {told:?}"));
    }
    let revisions = world.list::<ControllerRevision>().await;
    let of_set = revisions.iter().filter(|r| r.metadata.name.as_ref().is_some_and(|n| n.starts_with(&name_of_set)));
    let mut live: BTreeSet<String> =
        pods.iter().filter_map(|p| p.metadata.labels.as_ref()?.get("controller-revision-hash").cloned()).collect();
    live.extend(status.current_revision);
    live.extend(status.update_revision);
    let count = of_set.count();
    (count > live.len() + LIMIT as usize).then(|| format!("{name_of_set}: {count} revisions, {} in use", live.len()))
}

/// Whether the set has no use for the Pod any more, which will not run: it has ended, or its claims went before it was
/// bound and nobody makes them anew. In a set that goes in order, several of them wait for each other until a person
/// deletes them, as upstream.
fn waits_in_vain(set: &StatefulSet, pod: &Pod) -> bool {
    let spec = set.spec.as_ref().unwrap();
    let start = spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0);
    let (of, ordinal) = name(pod).rsplit_once('-').unwrap();
    let wanted = start..start + spec.replicas.unwrap();
    let runs = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) && matches!(phase(pod), "Pending" | "Running");
    set.metadata.name.as_deref() == Some(of) && !wanted.contains(&ordinal.parse().unwrap()) && !runs
}

/// Pods go with their claims, and come back before these are gone.
async fn come_back(world: &World, name: &str) {
    let policy = json!({"whenDeleted": "Retain", "whenScaled": "Delete"});
    for replicas in [1, 3] {
        let spec = json!({"replicas": replicas, "persistentVolumeClaimRetentionPolicy": policy});
        world.api::<StatefulSet>().strategic_patch(name, "", json!({"spec": spec})).await.unwrap();
        for _ in 0..6 {
            clock::sleep(std::time::Duration::from_secs(1)).await;
            // Until some Pod is on its way.
            let pods = world.list::<Pod>().await;
            if pods.iter().any(|p| p.metadata.deletion_timestamp.is_some()) {
                break;
            }
        }
    }
}

impl Story for Sets {
    const CONTROLLERS: &'static [&'static str] = &["statefulset-controller", "garbage-collector-controller"];

    async fn begin(world: &World) -> Self {
        world.create::<StatefulSet>(set("ordered", "OrderedReady")).await;
        world.create::<StatefulSet>(set("parallel", "Parallel")).await;
        Sets
    }

    async fn change(&mut self, world: &World) {
        if chance(25) {
            return world.delete_some_pod().await;
        }
        let name = ["ordered", "parallel"][below(2) as usize];
        if chance(15) {
            return come_back(world, name).await;
        }
        world.api::<StatefulSet>().strategic_patch(name, "", json!({"spec": changed()})).await.unwrap();
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let pods = world.list::<Pod>().await;
        for claim in world.list::<PersistentVolumeClaim>().await {
            let in_use = |pod: &Pod| claims_of(pod).contains(claim.metadata.name.as_ref().unwrap());
            if claim.metadata.deletion_timestamp.is_some() && !pods.iter().any(in_use) && chance(50) {
                let patch = json!({"metadata": {"finalizers": null}});
                let _ =
                    world.api::<PersistentVolumeClaim>().merge_patch(&claim.metadata.name.unwrap(), "", patch).await;
            }
        }
        for set in world.list::<StatefulSet>().await {
            let in_vain: Vec<&Pod> = pods.iter().filter(|pod| waits_in_vain(&set, pod)).collect();
            for pod in in_vain {
                let _ = world.api::<Pod>().delete(name(pod), DeleteOptions::default()).await;
            }
            if let Some(lack) = lacks(world, &set).await {
                return Some(lack);
            }
        }
        None
    }
}

#[test]
fn stateful_sets_converge() {
    converges::<Sets>(0..6);
}
