//! ReplicaSets and ReplicationControllers.

use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Pod, ReplicationController},
};

use crate::world::{Story, World, below, converges, phase};

/// One of each kind, which know nothing of each other.
struct Two {
    wanted: [u64; 2],
}

fn owner(app: &str, selector: Value, replicas: u64) -> Value {
    json!({"metadata": {"name": app}, "spec": {"replicas": replicas, "selector": selector,
        "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn owned<'a>(pods: &'a [Pod], kind: &'a str) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |p| p.metadata.owner_references.iter().flatten().any(|o| o.kind == kind))
}

fn is_active(pod: &Pod) -> bool {
    matches!(phase(pod), "Pending" | "Running") && pod.metadata.deletion_timestamp.is_none()
}

impl Story for Two {
    const CONTROLLERS: &'static [&'static str] = &["replicaset-controller", "replicationcontroller-controller"];

    async fn begin(world: &World) -> Self {
        world.create::<ReplicaSet>(owner("set", json!({"matchLabels": {"app": "set"}}), 3)).await;
        world.create::<ReplicationController>(owner("rc", json!({"app": "rc"}), 3)).await;
        Two { wanted: [3, 3] }
    }

    async fn change(&mut self, world: &World) {
        match below(5) {
            0 | 1 => {
                let (which, replicas) = (below(2) as usize, below(6));
                self.wanted[which] = replicas;
                let patch = json!({"spec": {"replicas": replicas}});
                match which {
                    0 => drop(world.api::<ReplicaSet>().merge_patch("set", "", patch).await.unwrap()),
                    _ => drop(world.api::<ReplicationController>().merge_patch("rc", "", patch).await.unwrap()),
                }
            }
            2 => world.delete_some_pod().await,
            // A Pod changes sides, or belongs to nobody.
            3 => {
                let pods = world.list::<Pod>().await;
                let Some(pod) = pods.get(below(pods.len().max(1) as u64) as usize) else { return };
                let app = ["set", "rc", "none"][below(3) as usize];
                let patch = json!({"metadata": {"labels": {"app": app}}});
                let _ = world.api::<Pod>().merge_patch(crate::world::name(pod), "", patch).await;
            }
            // A Pod that somebody else made.
            _ => {
                let app = ["set", "rc"][below(2) as usize];
                let pod = json!({"metadata": {"generateName": "free-", "labels": {"app": app}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]}});
                world.create::<Pod>(pod).await;
            }
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let pods = world.list::<Pod>().await;
        let set = world.api::<ReplicaSet>().get("set").await.unwrap().status.unwrap_or_default();
        let rc = world.api::<ReplicationController>().get("rc").await.unwrap().status.unwrap_or_default();
        let said = [(set.replicas, set.ready_replicas), (rc.replicas, rc.ready_replicas)];
        for (which, kind) in ["ReplicaSet", "ReplicationController"].into_iter().enumerate() {
            let wanted = self.wanted[which];
            let active = owned(&pods, kind).filter(|p| is_active(p)).count();
            let told = (said[which].0, said[which].1.unwrap_or(0));
            if (active as u64, told) != (wanted, (wanted as i32, wanted as i32)) {
                return Some(format!("{kind}: {active} of {wanted}, and says {told:?}"));
            }
        }
        None
    }
}

#[test]
fn replicas_converge() {
    converges::<Two>(0..6);
}
