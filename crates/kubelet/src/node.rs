//! What all Pod workers of one kubelet share.

use std::{collections::BTreeMap, sync::Arc};

use client::{Cache, Caches, EventKind, EventRecorder, events::reference, rest};
use k8s_openapi::api::core::v1::{ObjectReference, Secret, Service};
use kube::Api;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    backoff::Wait, cgroup::Cgroups, config::Config, downward::Facts, machine::Machine, volumes::ApiSources,
    wanted::Wanted,
};

pub struct Node {
    pub config: Config,
    pub machine: Machine,
    pub cgroups: Cgroups,
    pub events: EventRecorder,
    pub services: Arc<Cache<Service>>,
    /// What volumes and environments are made from.
    pub sources: ApiSources,
    /// The Pods that have a worker, by uid.
    pub pods: Mutex<BTreeMap<String, Wanted>>,
    /// What wakes a Pod's worker, by uid.
    pub looks: Mutex<BTreeMap<String, Arc<Notify>>>,
}

impl Node {
    pub fn new(config: Config, caches: &Caches) -> Arc<Self> {
        let events = EventRecorder::new(config.client.clone(), "kubelet", Some(&config.node_name));
        Arc::new(Node {
            machine: Machine::read(),
            cgroups: Cgroups::new(std::path::Path::new("/sys/fs/cgroup"), &config.cgroup_root),
            events,
            services: caches.of::<Service>(),
            sources: ApiSources::new(config.client.clone()),
            pods: Mutex::default(),
            looks: Mutex::default(),
            config,
        })
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, String> {
        let api: Api<Secret> = Api::namespaced(self.config.client.clone(), namespace);
        api.get_opt(name).await.map_err(|e| rest::message(&e))
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

    /// An event about a Pod, or about one of its containers.
    pub fn pod_event(&self, wanted: &Wanted, container: Option<&str>, kind: EventKind, reason: &str, message: &str) {
        let init = |name: &str| wanted.init_containers().iter().any(|c| c.name == name);
        let field = |name: &str| {
            let list = if init(name) { "initContainers" } else { "containers" };
            format!("spec.{list}{{{name}}}")
        };
        let object = ObjectReference { field_path: container.map(field), ..reference(&*wanted.pod) };
        self.events.event(&object, kind, reason, message);
    }
}
