//! What all Pod workers of one kubelet share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use client::{Cache, Caches, EventKind, EventRecorder, Key, events::reference, rest};
use k8s_openapi::api::{
    core::v1::{Container, Node as NodeObject, ObjectReference, Pod, PodStatus, Secret, Service},
    node::v1::RuntimeClass,
};
use kube::Api;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    config::Config,
    engine::image_gc::Seen,
    eviction::pressure::Pressures,
    node::{cgroup::Cgroups, machine::Machine, register},
    pod::{
        admit::{self, Offer, Refusal},
        backoff::Wait,
        downward::Facts,
        hardening::{self, Modules},
        resources,
        wanted::Wanted,
    },
    volumes::ApiSources,
};

pub struct Node {
    pub config: Config,
    pub machine: Machine,
    pub modules: Modules,
    pub cgroups: Cgroups,
    pub events: EventRecorder,
    pub services: Arc<Cache<Service>>,
    /// The Node object of this node.
    pub itself: Arc<Cache<NodeObject>>,
    /// What volumes and environments are made from.
    pub sources: ApiSources,
    /// The Pods that have a worker, by uid.
    pub pods: Mutex<BTreeMap<String, Wanted>>,
    /// What the workers have found, by uid: as reported, or about to be.
    pub statuses: Mutex<BTreeMap<String, PodStatus>>,
    /// Which pressures the node is under.
    pub pressures: Mutex<Pressures>,
    /// The node's status has to be looked at again.
    pub changed: Notify,
    /// Pods that have to go, by uid, with the message that says why.
    pub evictions: Mutex<BTreeMap<String, String>>,
    pub images: Mutex<Seen>,
    /// What wakes a Pod's worker, by uid.
    pub looks: Mutex<BTreeMap<String, Arc<Notify>>>,
}

impl Node {
    pub fn new(config: Config, caches: &Caches) -> Arc<Self> {
        let events = EventRecorder::new(config.client.clone(), "kubelet", Some(&config.node_name));
        Arc::new(Node {
            machine: Machine::read(),
            modules: Modules::of_this_kernel(),
            cgroups: Cgroups::new(std::path::Path::new("/sys/fs/cgroup"), &config.cgroup_root),
            events,
            services: caches.of::<Service>(),
            itself: caches.selected::<NodeObject>(&format!("metadata.name={}", config.node_name)),
            sources: ApiSources::new(config.client.clone()),
            pods: Mutex::default(),
            statuses: Mutex::default(),
            pressures: Mutex::default(),
            changed: Notify::new(),
            evictions: Mutex::default(),
            images: Mutex::default(),
            looks: Mutex::default(),
            config,
        })
    }

    /// The Node object as the API server has it now.
    pub async fn ask_itself(&self) -> Option<NodeObject> {
        let api: Api<NodeObject> = Api::all(self.config.client.clone());
        api.get_opt(&self.config.node_name).await.ok().flatten()
    }

    /// Whether a new Pod is let in beside those that are here, of which the `refused` take nothing. Without a Node object
    /// at hand (`fresh`, or the one that is followed) only what this node knows of itself counts.
    pub fn admit(
        &self,
        wanted: &Wanted,
        fresh: Option<&NodeObject>,
        refused: &BTreeSet<String>,
    ) -> Result<(), Refusal> {
        self.pressures.lock().admit(&wanted.pod, wanted.is_static)?;
        self.config.sysctls.admit(wanted.spec())?;
        hardening::admit_modules(wanted, self.modules, self.config.selinux_labels)?;
        let held = self.itself.get(&Key::new("", &self.config.node_name));
        let object = fresh.or(held.as_deref());
        let labels = object.and_then(|n| n.metadata.labels.clone()).unwrap_or_else(|| register::labels(self));
        let taints = object.and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
        let offered = register::allocatable(self);
        let allocatable = offered.iter().map(|(name, amount)| (name.clone(), api::rules::quantity::parse(amount)));
        let pods = self.pods.lock();
        let takes = |w: &&Wanted| {
            !(w.removed || api::rules::pod::is_terminal(&w.pod) || refused.contains(w.uid()) || w.uid() == wanted.uid())
        };
        let others: Vec<&Pod> = pods.values().filter(takes).map(|w| &*w.pod).collect();
        let offer = Offer {
            name: &self.config.node_name,
            labels: &labels,
            taints: &taints,
            allocatable: &allocatable.collect(),
            others: &others,
        };
        admit::admit(&wanted.pod, wanted.is_static, &offer)
    }

    /// Gives the processes of each class of Pods the weight that their requests add up to.
    pub fn weigh(&self) -> std::io::Result<()> {
        let weights = {
            let (pods, statuses) = (self.pods.lock(), self.statuses.lock());
            let phase = |w: &Wanted| statuses.get(w.uid()).and_then(|s| s.phase.clone());
            let active = pods.values().filter(|w| !matches!(phase(w).as_deref(), Some("Succeeded" | "Failed")));
            resources::weights(active.map(|w| &*w.pod), self.machine.cpus)
        };
        weights.into_iter().try_for_each(|(class, limits)| self.cgroups.create(&self.cgroups.class(class), limits))
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, String> {
        let api: Api<Secret> = Api::namespaced(self.config.client.clone(), namespace);
        api.get_opt(name).await.map_err(|e| rest::message(&e))
    }

    /// The engine's handler for a Pod: its class says which.
    pub async fn handler(&self, wanted: &Wanted) -> Result<String, String> {
        let Some(name) = wanted.spec().runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(String::new());
        };
        let api: Api<RuntimeClass> = Api::all(self.config.client.clone());
        let class = api.get_opt(name).await.map_err(|e| rest::message(&e))?;
        class.map(|class| class.handler).ok_or_else(|| format!("RuntimeClass.node.k8s.io \"{name}\" not found"))
    }

    /// Whether the engine can make a mount of this Pod read-only with all that is mounted below it.
    pub async fn makes_recursive(&self, wanted: &Wanted) -> Result<bool, String> {
        let handler = self.handler(wanted).await?;
        let status = self.config.runtime.status().await.map_err(|e| e.to_string())?;
        let features = status.runtime_handlers.into_iter().find(|h| h.name == handler).and_then(|h| h.features);
        Ok(features.is_some_and(|f| f.recursive_read_only_mounts))
    }

    /// What only this node knows and a Pod may ask.
    pub fn facts(&self, pod_ips: Vec<String>) -> Facts {
        Facts {
            node_name: self.config.node_name.clone(),
            host_ips: vec![self.config.node_ip.to_string()],
            pod_ips,
            cpu_millis: self.machine.cpus * 1000,
            memory_bytes: self.machine.memory,
        }
    }

    /// The events of a container that begins to wait.
    pub fn tell_wait(&self, wanted: &Wanted, wait: &Wait) {
        for (warning, reason, message) in &wait.events {
            let kind = if *warning { EventKind::Warning } else { EventKind::Normal };
            self.pod_event(wanted, Some(&wait.container), kind, reason, message);
        }
    }

    /// An event about the node itself, which upstream names by its name in place of a uid.
    pub fn event(&self, kind: EventKind, reason: &str, message: &str) {
        let object = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.config.node_name.clone()),
            uid: Some(self.config.node_name.clone()),
            ..Default::default()
        };
        self.events.event(&object, kind, reason, message);
    }

    /// An event about a Pod, or about one of its containers.
    pub fn pod_event(&self, wanted: &Wanted, container: Option<&str>, kind: EventKind, reason: &str, message: &str) {
        let is_one = |list: &[Container], name: &str| list.iter().any(|c| c.name == name);
        let field = |name: &str| {
            let list = if is_one(wanted.init_containers(), name) {
                "initContainers"
            } else if is_one(wanted.ephemeral_containers(), name) {
                "ephemeralContainers"
            } else {
                "containers"
            };
            format!("spec.{list}{{{name}}}")
        };
        let object = ObjectReference { field_path: container.map(field), ..reference(&*wanted.pod) };
        self.events.event(&object, kind, reason, message);
    }
}
