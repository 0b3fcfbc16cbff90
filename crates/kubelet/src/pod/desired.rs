//! A Pod as its source wants it, and the names under which it is found again in the engine.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use api::object::Object;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, ImageVolumeSource, Pod, PodSpec, VolumeMount};
use sha2::{Digest, Sha256};

// Labels and annotations that upstream's kubelet sets; tools read them, and a restart finds its Pods by them.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// A resize that waits: the reason and message of the Pod's condition, and the generation that asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub reason: &'static str,
    /// Upstream's word for the figures.
    pub detail: &'static str,
    pub message: String,
    pub generation: Option<i64>,
}

/// One Pod that a source wants on this node.
#[derive(Debug, Clone)]
pub struct DesiredPod {
    pub pod: Arc<Pod>,
    /// From a file; the API shows it by a mirror.
    pub is_static: bool,
    /// The source no longer has it.
    pub removed: bool,
    /// Nothing but the engine knows of it: an earlier kubelet began it. Its spec is empty.
    pub runtime_only: bool,
    /// The generation of the Pod whose resize was allocated last. The spec has the resources that are allocated.
    pub resized: Option<i64>,
    /// Why the resources that the source wants are not allocated.
    pub pending: Option<Pending>,
    /// The containers that were added to look into the running Pod, in the form of the others.
    ephemeral: Arc<[Container]>,
}

/// Which container a debugging container looks into, by name.
fn target<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a str> {
    let found = spec.ephemeral_containers.iter().flatten().find(|c| c.name == name);
    found?.target_container_name.as_deref().filter(|target| !target.is_empty())
}

/// Containers of both sorts share their fields, by name and type.
fn ephemeral(spec: &PodSpec) -> Arc<[Container]> {
    let same = |c: &EphemeralContainer| Container::from_value(&c.to_value()).ok();
    spec.ephemeral_containers.iter().flatten().filter_map(same).collect()
}

impl DesiredPod {
    pub fn new(pod: Arc<Pod>, is_static: bool) -> Self {
        let ephemeral = pod.spec.as_ref().map(ephemeral).unwrap_or_default();
        DesiredPod { pod, is_static, removed: false, runtime_only: false, resized: None, pending: None, ephemeral }
    }

    pub fn ephemeral_containers(&self) -> &[Container] {
        &self.ephemeral
    }

    /// The container whose processes a debugging container sees.
    pub fn target(&self, name: &str) -> Option<&str> {
        target(self.spec(), name)
    }

    pub fn spec(&self) -> &PodSpec {
        // A Pod without a spec never passes the API server or the manifest reader.
        self.pod.spec.as_ref().expect("every Pod has a spec")
    }

    /// The Pod as upstream's messages name it.
    pub fn name_in_messages(&self) -> String {
        format!("{}_{}({})", self.name(), self.namespace(), self.uid())
    }

    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    /// It was let in here, now or by an earlier kubelet, and that was reported.
    pub fn has_begun(&self) -> bool {
        self.pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
    }

    pub fn is_ending(&self) -> bool {
        self.removed || self.pod.metadata.deletion_timestamp.is_some()
    }

    pub fn grace_seconds(&self) -> i64 {
        let asked = self.pod.metadata.deletion_grace_period_seconds;
        asked.or(self.spec().termination_grace_period_seconds).unwrap_or(30).max(1)
    }

    pub fn host_network(&self) -> bool {
        self.spec().host_network.unwrap_or(false)
    }

    pub fn init_containers(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    /// Those that the Pod was made with, and those that were added since.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers().iter().chain(&self.spec().containers).chain(&*self.ephemeral)
    }

    /// The images that a container mounts, by the names of their volumes.
    pub fn image_volumes(&self, container: &Container) -> BTreeMap<&str, &ImageVolumeSource> {
        let of = |mount: &VolumeMount| -> Option<(&str, &ImageVolumeSource)> {
            let volume = self.spec().volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
            Some((volume.name.as_str(), volume.image.as_ref()?))
        };
        container.volume_mounts.iter().flatten().filter_map(of).collect()
    }

    /// The images without which a container does not start: its own, and those that it mounts.
    pub fn images<'a>(&'a self, container: &'a Container) -> Vec<&'a str> {
        let mounted = self.image_volumes(container).into_values().map(|image| image.reference.as_deref());
        [container.image.as_deref()].into_iter().chain(mounted).map(Option::unwrap_or_default).collect()
    }

    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers().find(|c| c.name == name)
    }

    /// Whether there is something for the Pod's worker to do that was not in the object `before`. A change of the status
    /// alone is an echo of the worker's own report, or a readiness gate's.
    pub fn concerns_worker(&self, before: &DesiredPod) -> bool {
        let (now, then) = (&self.pod.metadata, &before.pod.metadata);
        let has_gates = self.spec().readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        has_gates
            || (self.resized, &self.pending) != (before.resized, &before.pending)
            || now.generation != then.generation
            || now.deletion_timestamp != then.deletion_timestamp
            || now.deletion_grace_period_seconds != then.deletion_grace_period_seconds
            || now.labels != then.labels
            || now.annotations != then.annotations
            || self.pod.spec != before.pod.spec
    }

    pub fn restart_policy(&self) -> &str {
        self.spec().restart_policy.as_deref().unwrap_or("Always")
    }
}

/// Where a container sees a volume, from its root.
pub fn mount_path(mount: &VolumeMount) -> Cow<'_, str> {
    let path = &mount.mount_path;
    if path.starts_with('/') { path.into() } else { format!("/{path}").into() }
}

/// Stands for what a container was made from: it is made anew when this changes. Upstream, too, hashes name and image only.
pub fn hash(container: &Container) -> String {
    let text = format!("{}\0{}", container.name, container.image.as_deref().unwrap_or_default());
    base16ct::lower::encode_string(&Sha256::digest(text)[..4])
}
