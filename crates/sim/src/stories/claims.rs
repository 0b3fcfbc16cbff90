//! Claims, volumes, and what runs with them.

use client::rest::{DeleteOptions, Verb};
use json::{Value, json};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use crate::{
    Chaos,
    attacher::DRIVER,
    chaos::{below, minutes, one_of},
    stories::Course,
};

/// Classes and when their claims are bound: volumes of the first at once, those of the second where the Pod goes.
const LOCAL: [(&str, &str); 2] = [("manual", "Immediate"), ("late", "WaitForFirstConsumer")];

/// Volumes that have to be attached: of the first to one node, of the second to several.
pub const ATTACHED: [(&str, &str); 2] = [("attached", "Immediate"), (SHARED, "Immediate")];

const SHARED: &str = "shared";

pub struct Story {
    pub chaos: Chaos,
    classes: &'static [(&'static str, &'static str)],
    /// Whatever runs with claims: StatefulSets (true) and Deployments, by name.
    pub users: Vec<(bool, String)>,
    /// The number of names so far.
    made: u64,
}

fn container() -> Value {
    json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "20m"}}}])
}

fn access_mode(class: &str) -> &'static str {
    if class == SHARED { "ReadWriteMany" } else { "ReadWriteOnce" }
}

fn claim_spec(class: &str) -> Value {
    json!({"accessModes": [access_mode(class)], "storageClassName": class,
        "resources": {"requests": {"storage": format!("{}Gi", 1 + below(4))}}})
}

impl Story {
    pub async fn with(chaos: Chaos, classes: &'static [(&'static str, &'static str)]) -> Self {
        for (class, mode) in classes {
            let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
                "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode});
            chaos.write_in::<StorageClass>("", "", Verb::Create(class)).await;
        }
        Story { chaos, classes, users: Vec::new(), made: 0 }
    }

    pub fn any_class(&self) -> &'static str {
        one_of(self.classes).0
    }

    fn name(&mut self, prefix: &str) -> String {
        self.made += 1;
        format!("{prefix}{}", self.made)
    }

    /// A volume, in some zone if it may be far from its Pod.
    pub async fn make_volume(&mut self, class: &str, gigabytes: u64, anywhere: bool) {
        let name = self.name("v");
        let mut spec = json!({"capacity": {"storage": format!("{gigabytes}Gi")}, "accessModes": [access_mode(class)],
            "storageClassName": class, "persistentVolumeReclaimPolicy": "Retain"});
        if LOCAL.iter().any(|(local, _)| *local == class) {
            spec["hostPath"] = json!({"path": "/v"});
        } else {
            spec["csi"] = json!({"driver": DRIVER, "volumeHandle": name});
        }
        if !anywhere {
            let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "In",
                "values": [format!("zone-{}", below(3))]});
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}});
        }
        self.chaos.cluster.tell(&format!("volume {name} of {gigabytes} in {class}, anywhere {anywhere}"));
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec});
        self.chaos.write_in::<PersistentVolume>("", "", Verb::Create(volume)).await;
    }

    pub async fn make_user(&mut self) {
        let (stateful, class) = (below(2) == 0, self.any_class());
        let name = self.name("u");
        let (labels, replicas) = (json!({"app": name}), below(4));
        let mut pod = json!({"containers": container()});
        let meta = json!({"name": name, "namespace": "default"});
        self.chaos.cluster.tell(&format!("{name} with {replicas}, stateful {stateful}"));
        if stateful {
            let retention =
                json!({"whenDeleted": one_of(&["Retain", "Delete"]), "whenScaled": one_of(&["Retain", "Delete"])});
            let claim = json!({"metadata": {"name": "data"}, "spec": claim_spec(class)});
            let spec = json!({"replicas": replicas, "serviceName": "s", "selector": {"matchLabels": labels},
                "podManagementPolicy": one_of(&["OrderedReady", "Parallel"]), "volumeClaimTemplates": [claim],
                "persistentVolumeClaimRetentionPolicy": retention,
                "template": {"metadata": {"labels": labels}, "spec": pod}});
            let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec});
            self.chaos.write::<StatefulSet>("", Verb::Create(set)).await;
        } else {
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim_spec(class)});
            self.chaos.write::<PersistentVolumeClaim>("", Verb::Create(claim)).await;
            pod["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
            // Where all share the volume there may be several.
            let replicas = if class == SHARED { replicas } else { 1 };
            let spec = json!({"replicas": replicas, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod}});
            let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec});
            self.chaos.write::<Deployment>("", Verb::Create(deployment)).await;
        }
        self.users.push((stateful, name));
    }

    pub async fn scale(&mut self) {
        let sets: Vec<String> = self.users.iter().filter(|(set, _)| *set).map(|(_, name)| name.clone()).collect();
        if sets.is_empty() {
            return;
        }
        // A controller that still acts on an older count breaks the promises of a newer one, in upstream too.
        self.supplied().await;
        self.chaos.rolled_out("before a new count").await;
        let (name, replicas) = (&sets[below(sets.len() as u64) as usize], below(4));
        self.chaos.cluster.tell(&format!("{name} scales to {replicas}"));
        let patch = Verb::MergePatch(json!({"spec": {"replicas": replicas}}));
        self.chaos.write::<StatefulSet>(name, patch).await;
    }

    pub async fn delete_user(&mut self) {
        let (stateful, name) = self.users.swap_remove(below(self.users.len() as u64) as usize);
        self.chaos.cluster.tell(&format!("delete {name}"));
        let propagation = Some("Background");
        let delete = || Verb::Delete(DeleteOptions { propagation, ..DeleteOptions::default() });
        if stateful {
            self.chaos.write::<StatefulSet>(&name, delete()).await;
        } else {
            // The claim first: it goes when no Pod runs with it any more.
            self.chaos.write::<PersistentVolumeClaim>(&name, delete()).await;
            self.chaos.write::<Deployment>(&name, delete()).await;
        }
    }

    /// An administrator gives volumes whose claim is gone to others, or takes them away when they are attached nowhere.
    pub async fn clear_released(&self) {
        let released = self.chaos.cluster.model.lock().claims.released();
        for name in released {
            let is_attached = self.chaos.cluster.model.lock().attachments.holds(&name);
            let verb = match below(2) {
                _ if is_attached => continue,
                0 => Verb::MergePatch(json!({"spec": {"claimRef": null}})),
                _ => Verb::Delete(DeleteOptions::default()),
            };
            self.chaos.cluster.tell(&format!("{name} is cleared"));
            self.chaos.write_in::<PersistentVolume>("", &name, verb).await;
        }
    }

    /// There is a volume for each claim, near every node.
    async fn supply(&mut self) {
        let waiting = self.chaos.cluster.model.lock().claims.waiting();
        for (_, class) in waiting {
            self.make_volume(&class, 8, true).await;
        }
    }

    /// Claims may come late: those of a StatefulSet's next member are made when the one before runs.
    pub async fn supplied(&mut self) {
        self.chaos.cluster.tell("volumes for all");
        for _ in 0..60 {
            // A write of a moment ago by the story counts: a set that has just been scaled is not rolled out yet.
            self.chaos.cluster.until("all that was written is seen", minutes(10), |_| true).await;
            if self.chaos.cluster.model.lock().rolled_out() {
                break;
            }
            self.supply().await;
            clock::sleep(minutes(1)).await;
        }
    }
}

impl Course for Story {
    const STEPS: usize = 30;

    async fn begin(chaos: Chaos) -> Self {
        Story::with(chaos, &LOCAL).await
    }

    async fn step(&mut self) {
        match below(12) {
            0..2 if self.users.len() < 6 => self.make_user().await,
            0..4 => self.make_volume(self.any_class(), 1 + below(6), below(3) > 0).await,
            4 => self.scale().await,
            5 if !self.users.is_empty() => self.delete_user().await,
            6 => self.clear_released().await,
            _ => self.chaos.mishap().await,
        }
    }

    async fn end(&mut self) {
        self.chaos.cluster.weather.set(crate::Faults::NONE);
        self.supplied().await;
        self.chaos.clears_up().await;
        while !self.users.is_empty() {
            self.delete_user().await;
        }
        self.chaos.nothing_is_left().await;
        let all_detached = |m: &crate::check::Model| m.attachments.is_empty();
        self.chaos.cluster.until("everything is detached", minutes(10), all_detached).await;
        // Claims that go already go without us.
        self.chaos.cluster.until("no claim is going", minutes(10), |m| !m.claims.some_go()).await;
        let claims = self.chaos.cluster.model.lock().claims.names();
        for name in claims {
            self.chaos.write::<PersistentVolumeClaim>(&name, Verb::Delete(DeleteOptions::default())).await;
        }
        let none_left = |m: &crate::check::Model| m.claims.names().is_empty();
        self.chaos.cluster.until("no claim is left", minutes(10), none_left).await;
        let volumes = self.chaos.cluster.model.lock().claims.volume_names();
        for name in volumes {
            self.chaos.write_in::<PersistentVolume>("", &name, Verb::Delete(DeleteOptions::default())).await;
        }
        let none_left = |m: &crate::check::Model| m.claims.volume_names().is_empty();
        self.chaos.cluster.until("no volume is left", minutes(10), none_left).await;
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}
