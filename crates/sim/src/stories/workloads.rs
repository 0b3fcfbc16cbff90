//! Stories of StatefulSets, DaemonSets and Jobs, made from the seed, with everything going wrong that can.

use client::rest::{DeleteOptions, Verb};
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::Job,
};

use crate::{
    Chaos,
    chaos::{below, one_of},
    hollow::FAILS,
    stories::Course,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sort {
    StatefulSet,
    DaemonSet,
    Job,
}

pub struct Story {
    chaos: Chaos,
    /// Everything that exists, by sort and name.
    workloads: Vec<(Sort, String)>,
    /// The number of names and images so far.
    made: u64,
}

fn template(name: &str, image: &str) -> Value {
    let container = json!({"name": "c", "image": image, "resources": {"requests": {"cpu": "20m"}}});
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}})
}

impl Story {
    fn new_image(&mut self) -> String {
        self.made += 1;
        format!("image:{}", self.made)
    }

    async fn write(&self, sort: Sort, name: &str, verb: Verb) {
        match sort {
            Sort::StatefulSet => self.chaos.write::<StatefulSet>(name, verb).await,
            Sort::DaemonSet => self.chaos.write::<DaemonSet>(name, verb).await,
            Sort::Job => self.chaos.write::<Job>(name, verb).await,
        }
    }

    async fn create(&mut self) {
        let sort = one_of(&[Sort::StatefulSet, Sort::StatefulSet, Sort::DaemonSet, Sort::Job, Sort::Job, Sort::Job]);
        let image = self.new_image();
        let name = format!("w{}", self.made);
        let (version, spec) = match sort {
            Sort::StatefulSet => ("apps/v1", stateful(&name, &image)),
            Sort::DaemonSet => {
                let selector = json!({"matchLabels": {"app": name}});
                ("apps/v1", json!({"selector": selector, "template": template(&name, &image)}))
            }
            Sort::Job => ("batch/v1", job(&name, &image)),
        };
        self.chaos.cluster.tell(&format!("create the {sort:?} {name}: {spec}"));
        let meta = json!({"name": name, "namespace": "default"});
        let object = json!({"apiVersion": version, "kind": format!("{sort:?}"), "metadata": meta, "spec": spec});
        self.write(sort, "", Verb::Create(object)).await;
        self.workloads.push((sort, name));
    }

    async fn change(&mut self) {
        let (sort, name) = self.workloads[below(self.workloads.len() as u64) as usize].clone();
        let patch = match (sort, below(2)) {
            (Sort::Job, suspended) => json!({"spec": {"suspend": suspended == 0}}),
            (Sort::StatefulSet, 0) => {
                // A controller that still acts on an older count breaks the promises of a newer one, in upstream too.
                self.resume_all().await;
                self.chaos.rolled_out("before a new count").await;
                json!({"spec": {"replicas": below(6)}})
            }
            _ => {
                let image = self.new_image();
                json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
            }
        };
        self.chaos.cluster.tell(&format!("{name} gets {patch}"));
        self.write(sort, &name, Verb::StrategicPatch(patch)).await;
    }

    /// Jobs that were suspended go on.
    async fn resume_all(&self) {
        for (sort, name) in self.workloads.iter().filter(|(sort, _)| *sort == Sort::Job) {
            self.write(*sort, name, Verb::StrategicPatch(json!({"spec": {"suspend": false}}))).await;
        }
    }

    async fn delete(&mut self) {
        let (sort, name) = self.workloads.swap_remove(below(self.workloads.len() as u64) as usize);
        self.chaos.cluster.tell(&format!("delete {name}"));
        let propagation = Some("Background");
        self.write(sort, &name, Verb::Delete(DeleteOptions { propagation, ..DeleteOptions::default() })).await;
    }
}

impl Course for Story {
    const STEPS: usize = 30;

    async fn begin(chaos: Chaos) -> Self {
        Story { chaos, workloads: Vec::new(), made: 0 }
    }

    async fn step(&mut self) {
        match below(14) {
            0..4 if self.workloads.len() < 8 => self.create().await,
            0..7 if !self.workloads.is_empty() => self.change().await,
            7 if !self.workloads.is_empty() => self.delete().await,
            8 => self.chaos.restart().await,
            9 => self.chaos.node_away().await,
            10 if self.chaos.nodes < 16 => self.chaos.node_joins().await,
            11 => self.chaos.compact().await,
            12 if !self.chaos.gentle => self.chaos.cut_power().await,
            _ => self.chaos.weather(),
        }
    }

    async fn end(&mut self) {
        self.resume_all().await;
        self.chaos.clears_up().await;
        let (jobs, pods) = self.chaos.cluster.model.lock().workloads.figures();
        self.chaos.cluster.tell(&format!("{jobs} Jobs are over; {pods} Pods of Jobs ended, and were counted"));
        while !self.workloads.is_empty() {
            self.delete().await;
        }
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}

fn stateful(name: &str, image: &str) -> Value {
    json!({"replicas": below(6), "serviceName": "s", "selector": {"matchLabels": {"app": name}},
        "podManagementPolicy": one_of(&["OrderedReady", "Parallel"]), "template": template(name, image)})
}

fn job(name: &str, image: &str) -> Value {
    let completions = 1 + below(10);
    let mut template = template(name, image);
    template["spec"]["restartPolicy"] = json!("Never");
    template["metadata"]["annotations"] = json!({FAILS: one_of(&["0", "20", "60"])});
    let mut spec = json!({"completions": completions, "parallelism": 1 + below(5), "template": template,
        "backoffLimit": one_of(&[0, 2, 20]), "completionMode": one_of(&["NonIndexed", "Indexed"])});
    if spec["completionMode"] == "Indexed" && below(2) == 0 {
        spec["backoffLimitPerIndex"] = json!(below(3));
    }
    spec
}
