//! The events that a kubelet records: about its node, its Pods and their containers.

use client::{Client, EventKind, EventRecorder, events::reference};
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod};

use crate::pod::{desired::DesiredPod, waiting::Wait};

pub struct Events {
    recorder: EventRecorder,
    node_name: String,
}

impl Events {
    pub fn new(client: Client, node_name: &str) -> Self {
        let recorder = EventRecorder::new(client, "kubelet", Some(node_name));
        Events { recorder, node_name: node_name.to_owned() }
    }

    /// An event about the node itself. Upstream puts the node's name in the place of a uid.
    pub fn node(&self, kind: EventKind, reason: &str, message: &str) {
        let object = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.node_name.clone()),
            uid: Some(self.node_name.clone()),
            ..Default::default()
        };
        self.recorder.event(&object, kind, reason, message);
    }

    /// An event about a Pod.
    pub fn pod(&self, desired: &DesiredPod, kind: EventKind, reason: &str, message: &str) {
        self.object(&desired.pod, kind, reason, message);
    }

    /// An event about a Pod as an object.
    pub fn object(&self, pod: &Pod, kind: EventKind, reason: &str, message: &str) {
        self.recorder.event(&reference(pod), kind, reason, message);
    }

    /// An event about any object.
    pub fn about(&self, object: &ObjectReference, kind: EventKind, reason: &str, message: &str) {
        self.recorder.event(object, kind, reason, message);
    }

    /// An event about one container of a Pod.
    pub fn container(&self, desired: &DesiredPod, name: &str, kind: EventKind, reason: &str, message: &str) {
        let is_in = |list: &[Container]| list.iter().any(|c| c.name == name);
        let list = if is_in(desired.init_containers()) {
            "initContainers"
        } else if is_in(desired.ephemeral_containers()) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        let object = ObjectReference { field_path: Some(format!("spec.{list}{{{name}}}")), ..reference(&*desired.pod) };
        self.recorder.event(&object, kind, reason, message);
    }

    /// The events of a container that begins to wait.
    pub fn waits(&self, desired: &DesiredPod, wait: &Wait) {
        for (warning, reason, message) in &wait.events {
            let kind = if *warning { EventKind::Warning } else { EventKind::Normal };
            self.container(desired, &wait.container, kind, reason, message);
        }
    }
}
