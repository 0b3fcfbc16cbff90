//! A DaemonSet on nodes that come, go and change.

use std::collections::BTreeMap;

use client::rest::DeleteOptions;
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::{Node, Pod},
};

use crate::world::{Story, World, asked_node, below, chance, converges, name, node_of, phase};

struct Daemons {
    /// A node may have two Pods during a rollout, and never more; otherwise one.
    surges: bool,
}

impl Daemons {
    fn strategy(&self) -> Value {
        let most = if chance(30) { json!("50%") } else { json!(1 + below(2)) };
        match (self.surges, chance(20)) {
            (_, true) => json!({"$patch": "replace", "type": "OnDelete"}),
            (true, _) => {
                json!({"$patch": "replace", "type": "RollingUpdate", "rollingUpdate": {"maxSurge": most, "maxUnavailable": 0}})
            }
            (false, _) => {
                json!({"$patch": "replace", "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": most}})
            }
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    phase(pod) == "Running" && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.containers[0].image.as_deref()).unwrap_or("")
}

/// The Pods by the nodes that they are on or meant for.
async fn by_node(world: &World) -> BTreeMap<String, Vec<Pod>> {
    let mut nodes: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in world.list::<Pod>().await {
        let node =
            if node_of(&pod).is_empty() { asked_node(&pod).unwrap_or_default() } else { node_of(&pod).to_owned() };
        nodes.entry(node).or_default().push(pod);
    }
    nodes
}

/// `Some(true)` where a Pod must be, `Some(false)` where none may be, `None` where one may stay.
fn wants(node: &Node, selector: &BTreeMap<String, String>) -> Option<bool> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    if selector.iter().any(|(key, value)| labels.get(key) != Some(value)) {
        return Some(false);
    }
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let effects: Vec<&str> = taints.map(|t| t.effect.as_str()).collect();
    if effects.contains(&"NoExecute") {
        return Some(false);
    }
    (!effects.contains(&"NoSchedule")).then_some(true)
}

async fn change_nodes(world: &World) {
    let nodes = world.nodes().list(&[]).await.unwrap();
    let some = nodes.get(below(nodes.len() as u64) as usize).and_then(|n| n.metadata.name.clone());
    match (below(5), some) {
        (0, Some(node)) if nodes.len() > 2 => world.nodes().delete(&node, DeleteOptions::default()).await.unwrap(),
        (1, _) => {
            let is_free = |name: &String| nodes.iter().all(|held| held.metadata.name.as_ref() != Some(name));
            // There are never more than eight.
            if let Some(fresh) = (1..9).map(|n| format!("n{n}")).find(is_free) {
                world.add_node(&fresh).await;
            }
        }
        (2, Some(node)) => {
            let zone = ["a", "b"][below(2) as usize];
            let patch = json!({"metadata": {"labels": {"zone": zone}}});
            drop(world.nodes().merge_patch(&node, "", patch).await.unwrap());
        }
        (_, Some(node)) => {
            let taints = match below(3) {
                0 => json!([{"key": "k", "effect": "NoSchedule"}]),
                1 => json!([{"key": "k", "effect": "NoExecute"}]),
                _ => Value::Null,
            };
            drop(world.nodes().merge_patch(&node, "", json!({"spec": {"taints": taints}})).await.unwrap());
        }
        _ => {}
    }
}

impl Story for Daemons {
    const CONTROLLERS: &'static [&'static str] = &["daemonset-controller", "pod-garbage-collector-controller"];

    async fn begin(world: &World) -> Self {
        let set = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
            "revisionHistoryLimit": 2, "template": {"metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "c", "image": "v0"}]}}}});
        world.create::<DaemonSet>(set).await;
        Daemons { surges: chance(50) }
    }

    async fn change(&mut self, world: &World) {
        let spec = match below(8) {
            0..=2 => return change_nodes(world).await,
            3 => return world.delete_some_pod().await,
            4 | 5 => json!({"template": {"spec": {"containers": [{"name": "c", "image": format!("v{}", below(4))}]}}}),
            6 => json!({"updateStrategy": self.strategy()}),
            _ => {
                let zone = ["a", "b"].get(below(3) as usize).map_or(Value::Null, |zone| json!({"zone": zone}));
                json!({"template": {"spec": {"nodeSelector": zone}}, "minReadySeconds": below(8)})
            }
        };
        world.api::<DaemonSet>().strategic_patch("agent", "", json!({"spec": spec})).await.unwrap();
    }

    async fn check(&self, world: &World) {
        for (node, pods) in by_node(world).await {
            let lives = |p: &&Pod| matches!(phase(p), "Pending" | "Running");
            // A surge does not wait for what is already on its way out.
            let counts = |p: &&Pod| lives(p) && !(self.surges && p.metadata.deletion_timestamp.is_some());
            let live: Vec<&str> = pods.iter().filter(counts).map(name).collect();
            assert!(live.len() <= 1 + usize::from(self.surges), "{node} has {live:?}");
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let set = world.api::<DaemonSet>().get("agent").await.unwrap();
        let (spec, status) = (set.spec.clone().unwrap(), set.status.clone().unwrap_or_default());
        let template = spec.template.spec.unwrap();
        let present = template.containers[0].image.clone().unwrap();
        let any_image = spec.update_strategy.and_then(|s| s.type_).as_deref() == Some("OnDelete");
        let mut pods = by_node(world).await;
        let mut wanted = 0;
        for node in world.nodes().list(&[]).await.unwrap() {
            let held = pods.remove(node.metadata.name.as_ref().unwrap()).unwrap_or_default();
            let wants = wants(&node, &template.node_selector.clone().unwrap_or_default());
            wanted += i32::from(wants == Some(true));
            let fits = held.iter().all(|p| is_ready(p) && (any_image || image(p) == present));
            let enough = wants.map_or(held.len() <= 1, |wants| held.len() == usize::from(wants));
            if !fits || !enough {
                let shown: Vec<_> = held.iter().map(|p| (name(p), phase(p), image(p))).collect();
                return Some(format!("{present} on {:?}, wanted {wants:?}, not {shown:?}", node.metadata.name));
            }
        }
        if let Some((node, _)) = pods.first_key_value() {
            return Some(format!("Pods on {node}, which is gone"));
        }
        let told = (status.desired_number_scheduled, status.number_ready, status.number_available.unwrap_or(0));
        if told != (wanted, wanted, wanted) || status.observed_generation != set.metadata.generation {
            return Some(format!("{wanted} wanted, and the status says {told:?}"));
        }
        let revisions = world.list::<ControllerRevision>().await.len();
        (revisions > 4 && !any_image).then(|| format!("{revisions} revisions"))
    }
}

#[test]
fn daemon_sets_converge() {
    converges::<Daemons>(0..6);
}
