//! Deployments with budgets, whose Pods several administrators evict at the same time.

use std::sync::Arc;

use client::{
    Client,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::{Duration, Timestamp};
use json::json;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod, policy::v1::PodDisruptionBudget};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    Chaos,
    chaos::{below, one_of},
    check::Model,
    stories::Course,
};

const ADMINISTRATORS: usize = 4;

/// How long the administrators evict, all at the same time, and how often, in seconds.
const SHIFT: i64 = 60;
const EVERY: i64 = 240;

/// The rest of the time in which nobody evicts, if it is such a time.
fn rest(now: Timestamp) -> Option<Duration> {
    let into = now.as_second().rem_euclid(EVERY);
    (into >= SHIFT).then(|| Duration::from_secs((EVERY - into).unsigned_abs()))
}

pub struct Story {
    chaos: Chaos,
    administrators: JoinSet<()>,
    deployments: Vec<String>,
}

/// Evicts Pods for ever, but for rests. An eviction that is refused is tried no second time.
async fn administrator(client: Client, model: Arc<Mutex<Model>>) {
    let pods = Resource::of::<Pod>();
    loop {
        if let Some(rest) = rest(clock::now()) {
            clock::sleep(rest).await;
        }
        clock::sleep(Duration::from_millis(one_of(&[10, 500, 2_000, 10_000]))).await;
        let names: Vec<String> = model.lock().pods().filter_map(|pod| pod.metadata.name.clone()).collect();
        if names.is_empty() {
            clock::sleep(Duration::from_secs(1)).await;
            continue;
        }
        let name = &names[below(names.len() as u64) as usize];
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"}});
        let _ = rest::write(&client, &pods, "default", name, "eviction", &Verb::Create(eviction)).await;
    }
}

impl Story {
    async fn make(&mut self, name: String) {
        let replicas = 1 + below(8);
        let least = below(replicas + 1);
        self.chaos.cluster.tell(&format!("{name}: {replicas}, of which {least} stay"));
        let meta = json!({"name": name, "namespace": "default"});
        let selector = json!({"matchLabels": {"app": name}});
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta,
            "spec": {"minAvailable": least, "selector": selector}});
        self.chaos.write::<PodDisruptionBudget>("", Verb::Create(budget)).await;
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "20m"}}});
        let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
            "spec": {"replicas": replicas, "selector": selector, "template": template}});
        self.chaos.write::<Deployment>("", Verb::Create(deployment)).await;
        self.deployments.push(name);
    }
}

impl Course for Story {
    const STEPS: usize = 20;

    async fn begin(chaos: Chaos) -> Self {
        let mut story = Story { chaos, administrators: JoinSet::new(), deployments: Vec::new() };
        for number in 0..1 + below(3) {
            story.make(format!("g{number}")).await;
        }
        story.chaos.rolled_out("before anything is evicted").await;
        for _ in 0..ADMINISTRATORS {
            let (client, model) = (story.chaos.cluster.client_in_weather(), story.chaos.cluster.model.clone());
            story.administrators.spawn(administrator(client, model));
        }
        story
    }

    async fn step(&mut self) {
        match below(3) {
            0 => self.chaos.cluster.pass(Duration::from_secs(below(60))).await,
            _ => self.chaos.mishap().await,
        }
    }

    async fn end(&mut self) {
        self.administrators.shutdown().await;
        self.chaos.cluster.tell("nobody evicts any more");
        self.chaos.clears_up().await;
        for name in &self.deployments {
            self.chaos.write::<Deployment>(name, Verb::Delete(DeleteOptions::default())).await;
            self.chaos.write::<PodDisruptionBudget>(name, Verb::Delete(DeleteOptions::default())).await;
        }
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}
