//! Volumes that are attached to nodes: what runs with them moves about, and nodes die.

use client::rest::{self, DeleteOptions, Resource, Verb};
use clock::Duration;
use json::json;
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::{
    Chaos, Component,
    chaos::{below, minutes},
    check::Model,
    hollow::Profile,
    stories::{
        Course,
        claims::{self, ATTACHED},
    },
};

pub struct Story {
    claims: claims::Story,
}

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn is_ready(model: &Model, name: &str) -> bool {
    let node = model.nodes().find(|node| node.metadata.name.as_deref() == Some(name));
    let conditions = node.and_then(|node| node.status.as_ref()).and_then(|s| s.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The node's taints, without the one that says that it is off, and its version.
fn other_taints(model: &Model, name: &str) -> Option<(json::Value, String)> {
    let node = model.nodes().find(|node| node.metadata.name.as_deref() == Some(name))?;
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    let others: Vec<_> = taints.iter().filter(|taint| taint.key != OUT_OF_SERVICE).collect();
    Some((json!(others), node.metadata.resource_version.clone().unwrap_or_default()))
}

impl Story {
    /// Somebody deletes a Pod, which is made again where there is room.
    async fn move_pod(&self, grace_seconds: Option<i64>, of: impl Fn(&Pod) -> bool) {
        let cluster = &self.claims.chaos.cluster;
        let pods: Vec<String> = {
            let model = cluster.model.lock();
            model.pods().filter(|pod| of(pod)).filter_map(|pod| pod.metadata.name.clone()).collect()
        };
        let Some(name) = pods.get(below(pods.len().max(1) as u64) as usize) else { return };
        cluster.tell(&format!("somebody deletes the Pod {name}"));
        let verb = Verb::Delete(DeleteOptions { grace_seconds, ..DeleteOptions::default() });
        // It may have gone meanwhile.
        let _ = rest::write(&cluster.client(), &Resource::of::<Pod>(), "default", name, "", &verb).await;
    }

    /// Says that a node is off, or no longer, whoever else changes its taints.
    async fn say_off(&self, name: &str, off: bool) {
        let cluster = &self.claims.chaos.cluster;
        for _ in 0..20 {
            let Some((mut taints, version)) = other_taints(&cluster.model.lock(), name) else { return };
            if let (true, Some(taints)) = (off, taints.as_array_mut()) {
                taints.push(json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}));
            }
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
            let (nodes, verb) = (Resource::of::<Node>(), Verb::MergePatch(patch));
            if rest::write(&cluster.client(), &nodes, "", name, "", &verb).await.is_ok() {
                return;
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
        cluster.fail("the test's own write of taints failed");
    }

    /// A node is gone for good, as far as anybody knows, and what was attached to it is free in the end.
    async fn node_dies(&mut self) {
        let with_volumes: Vec<usize> = {
            let model = self.claims.chaos.cluster.model.lock();
            let all = 0..self.claims.chaos.nodes;
            all.filter(|number| model.attachments.node_has_some(&Profile::new(*number).name)).collect()
        };
        let Some(number) = with_volumes.get(below(with_volumes.len().max(1) as u64) as usize).copied() else { return };
        let name = Profile::new(number).name;
        self.claims.chaos.kills += 1;
        self.claims.chaos.cluster.kill(Component::Node(number));
        let cluster = &self.claims.chaos.cluster;
        let is_free = |m: &Model| !m.attachments.node_has_some(&name);
        let how = below(3);
        match how {
            0 => {
                cluster.tell(&format!("{name} dies, and is said to be off"));
                cluster.until("the node is lost", minutes(20), |m| !is_ready(m, &name)).await;
                self.say_off(&name, true).await;
                cluster.until("its volumes are free", minutes(20), is_free).await;
            }
            1 => {
                cluster.tell(&format!("{name} dies, and is removed"));
                self.claims.chaos.write_in::<Node>("", &name, Verb::Delete(DeleteOptions::default())).await;
                // Its volumes wait out six minutes, which begin anew with each leader, in upstream too: where no leader lasts
                // as long they wait for ever.
                self.claims.chaos.good_weather();
                cluster.until("its volumes are free", minutes(30), is_free).await;
            }
            _ => {
                cluster.tell(&format!("{name} dies, and some of its Pods are deleted by force"));
                cluster.pass(minutes(6)).await;
                for _ in 0..3 {
                    // Two members of a StatefulSet with one name would be somebody's fault.
                    let may_go = |pod: &Pod| {
                        let is_there = pod.spec.as_ref().is_some_and(|s| s.node_name.as_ref() == Some(&name));
                        let owners = pod.metadata.owner_references.iter().flatten();
                        is_there && owners.into_iter().all(|owner| owner.kind == "ReplicaSet")
                    };
                    self.move_pod(Some(0), may_go).await;
                }
                cluster.pass(minutes(below(12))).await;
            }
        }
        self.claims.chaos.cluster.run(Component::Node(number));
        let cluster = &self.claims.chaos.cluster;
        cluster.until("the node is back", minutes(20), |m| is_ready(m, &name)).await;
        if how == 0 {
            self.say_off(&name, false).await;
        }
    }

    fn restart_attacher(&mut self) {
        self.claims.chaos.cluster.tell("the attacher restarts");
        self.claims.chaos.kills += 1;
        self.claims.chaos.cluster.run(Component::Attacher);
    }
}

impl Course for Story {
    const STEPS: usize = 40;

    async fn begin(mut chaos: Chaos) -> Self {
        // Pods are deleted on purpose.
        chaos.cluster.model.lock().service_may_drop = true;
        chaos.cluster.run(Component::Attacher);
        Story { claims: claims::Story::with(chaos, &ATTACHED).await }
    }

    async fn step(&mut self) {
        let class = self.claims.any_class();
        match below(14) {
            0..3 if self.claims.users.len() < 6 => self.claims.make_user().await,
            0..5 => self.claims.make_volume(class, 1 + below(6), true).await,
            5 => self.claims.scale().await,
            6 if !self.claims.users.is_empty() => self.claims.delete_user().await,
            7 => self.claims.clear_released().await,
            8..10 => self.move_pod(None, |pod| pod.spec.as_ref().is_some_and(|s| s.node_name.is_some())).await,
            10..12 if !self.claims.chaos.gentle => self.node_dies().await,
            12 => self.restart_attacher(),
            _ => self.claims.chaos.mishap().await,
        }
    }

    async fn end(&mut self) {
        self.claims.end().await;
    }

    fn chaos(&self) -> &Chaos {
        &self.claims.chaos
    }
}
