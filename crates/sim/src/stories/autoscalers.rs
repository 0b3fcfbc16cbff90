//! Autoscalers of Deployments whose load changes.

use client::rest::{DeleteOptions, Verb};
use json::{Value, json};
use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler};

use crate::{
    Chaos,
    chaos::{below, minutes, one_of},
    stories::Course,
};

pub struct Story {
    chaos: Chaos,
    /// The Deployments, each with an autoscaler of its name.
    targets: Vec<String>,
    made: u64,
}

fn bounds() -> Value {
    let least = 1 + below(4);
    json!({"minReplicas": least, "maxReplicas": least + below(8)})
}

impl Story {
    fn any(&self) -> String {
        self.targets[below(self.targets.len() as u64) as usize].clone()
    }

    async fn make(&mut self) {
        self.made += 1;
        let name = format!("a{}", self.made);
        let meta = json!({"name": name, "namespace": "default"});
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}});
        let spec = json!({"replicas": below(6), "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec});
        self.chaos.cluster.tell(&format!("{name}: {}", deployment["spec"]["replicas"]));
        self.chaos.write::<Deployment>("", Verb::Create(deployment)).await;
        let mut spec = bounds();
        spec["scaleTargetRef"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
        let aim = format!("{}m", 50 + below(100));
        let metric = json!({"name": "cpu", "target": {"type": "AverageValue", "averageValue": aim}});
        spec["metrics"] = json!([{"type": "Resource", "resource": metric}]);
        spec["behavior"] = json!({"scaleDown": {"stabilizationWindowSeconds": one_of(&[0, 60, 300])}});
        self.chaos.cluster.tell(&format!("autoscaler {spec}"));
        let autoscaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta,
            "spec": spec});
        self.chaos.write::<HorizontalPodAutoscaler>("", Verb::Create(autoscaler)).await;
        self.targets.push(name);
    }

    fn load(&self) {
        let (name, milli) = (self.any(), below(1200) as i64);
        self.chaos.cluster.tell(&format!("the load of {name} is {milli}"));
        self.chaos.cluster.weather.usage.set(&name, milli);
    }

    async fn rebound(&self) {
        let (name, bounds) = (self.any(), bounds());
        self.chaos.cluster.tell(&format!("{name} gets {bounds}"));
        self.chaos.write::<HorizontalPodAutoscaler>(&name, Verb::MergePatch(json!({"spec": bounds}))).await;
    }

    /// A user who does not know of the autoscaler. With 0 it would rest for ever.
    async fn scale(&self) {
        let (name, replicas) = (self.any(), 1 + below(12) as i32);
        self.chaos.cluster.tell(&format!("somebody scales {name} to {replicas}"));
        self.chaos.cluster.model.lock().autoscalers.asked(&name, replicas);
        self.chaos.write::<Deployment>(&name, Verb::MergePatch(json!({"spec": {"replicas": replicas}}))).await;
    }

    async fn delete(&mut self) {
        let name = self.targets.swap_remove(below(self.targets.len() as u64) as usize);
        self.chaos.cluster.tell(&format!("delete {name}"));
        self.chaos.write::<HorizontalPodAutoscaler>(&name, Verb::Delete(DeleteOptions::default())).await;
        self.chaos.write::<Deployment>(&name, Verb::Delete(DeleteOptions::default())).await;
    }
}

impl Course for Story {
    const STEPS: usize = 40;

    async fn begin(chaos: Chaos) -> Self {
        Story { chaos, targets: Vec::new(), made: 0 }
    }

    async fn step(&mut self) {
        match below(14) {
            0..3 if self.targets.len() < 4 => self.make().await,
            0..6 if !self.targets.is_empty() => self.load(),
            6 if !self.targets.is_empty() => self.rebound().await,
            7 if !self.targets.is_empty() => self.scale().await,
            8 if !self.targets.is_empty() => self.delete().await,
            9 => self.chaos.cluster.pass(minutes(1 + below(8))).await,
            _ => self.chaos.mishap().await,
        }
    }

    async fn end(&mut self) {
        for name in &self.targets {
            self.chaos.cluster.model.lock().autoscalers.asked(name, 1);
            self.chaos.write::<Deployment>(name, Verb::MergePatch(json!({"spec": {"replicas": 1}}))).await;
        }
        self.chaos.good_weather();
        let usage = self.chaos.cluster.weather.usage.clone();
        let settled = |m: &crate::check::Model| m.autoscalers.settled(m.deployments.all(), |name| usage.load(name));
        self.chaos.cluster.until("each load has its Pods", minutes(60), settled).await;
        self.chaos.clears_up().await;
        self.chaos.cluster.until("each load still has its Pods", minutes(1), settled).await;
        while !self.targets.is_empty() {
            self.delete().await;
        }
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}
