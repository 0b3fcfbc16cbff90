//! Stories made from the seed: Deployments of all sizes come, change and go on a cluster of any size, while its nodes come
//! and go, the network breaks, the server is overloaded, history is cut off, parts restart and power fails.

use client::rest::{DeleteOptions, Verb};
use json::json;
use k8s_openapi::api::apps::v1::Deployment;

use crate::{Chaos, chaos::below, stories::Course};

pub struct Story {
    chaos: Chaos,
    /// The Deployments that exist, by name.
    deployments: Vec<String>,
    /// The number of names and images so far.
    made: u64,
}

impl Story {
    fn new_image(&mut self) -> String {
        self.made += 1;
        format!("image:{}", self.made)
    }

    async fn create(&mut self) {
        let image = self.new_image();
        let name = format!("d{}", self.made);
        let replicas = below(12);
        self.chaos.cluster.tell(&format!("create {name} with {replicas} of {image}"));
        let cpu = format!("{}m", 50 + below(250));
        let container = json!({"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}});
        let rolling = match below(3) {
            0 => json!({"maxSurge": below(3), "maxUnavailable": 1}),
            1 => json!({"maxSurge": format!("{}%", 1 + below(100)), "maxUnavailable": 0}),
            _ => json!({}),
        };
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "strategy": {"rollingUpdate": rolling},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}},
        });
        self.chaos.write::<Deployment>("", Verb::Create(deployment)).await;
        self.deployments.push(name);
    }

    async fn change(&mut self) {
        let name = self.deployments[below(self.deployments.len() as u64) as usize].clone();
        let patch = if below(2) == 0 {
            let image = self.new_image();
            self.chaos.cluster.tell(&format!("{name} gets {image}"));
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
        } else {
            // A controller that still acts on an older count breaks the promises of a newer one, in upstream too.
            self.chaos.rolled_out("before a new count").await;
            let replicas = below(12);
            self.chaos.cluster.tell(&format!("{name} scales to {replicas}"));
            json!({"spec": {"replicas": replicas}})
        };
        self.chaos.write::<Deployment>(&name, Verb::StrategicPatch(patch)).await;
    }

    async fn delete(&mut self) {
        let name = self.deployments.swap_remove(below(self.deployments.len() as u64) as usize);
        self.chaos.cluster.tell(&format!("delete {name}"));
        self.chaos.write::<Deployment>(&name, Verb::Delete(DeleteOptions::default())).await;
    }
}

impl Course for Story {
    const STEPS: usize = 30;

    async fn begin(chaos: Chaos) -> Self {
        Story { chaos, deployments: Vec::new(), made: 0 }
    }

    async fn step(&mut self) {
        match below(12) {
            0..3 if self.deployments.len() < 5 => self.create().await,
            0..5 if !self.deployments.is_empty() => self.change().await,
            5 if !self.deployments.is_empty() => self.delete().await,
            6 => self.chaos.restart().await,
            7 => self.chaos.node_away().await,
            8 if self.chaos.nodes < 20 => self.chaos.node_joins().await,
            9 => self.chaos.compact().await,
            10 if !self.chaos.gentle => self.chaos.cut_power().await,
            _ => self.chaos.weather(),
        }
    }

    async fn end(&mut self) {
        self.chaos.clears_up().await;
        while !self.deployments.is_empty() {
            self.delete().await;
        }
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}
