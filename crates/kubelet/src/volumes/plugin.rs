//! A volume plugin: it mounts the volumes of one sort, and unmounts them again.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Volume};
use serde::{Deserialize, Serialize};

use crate::{
    counted::Figures,
    csi::{Csi, Tell},
    local::LocalVolumes,
    pod::spec::{downward::Facts, selinux::Labels},
    volumes::{
        directory, error::VolumeError, folder::PodFolder, mounter::Mounter, plugins::exclusive::Exclusive,
        remote::Remote, sources::Sources,
    },
};

/// The means of all plugins, whichever volume it is.
#[derive(Clone)]
pub struct Means {
    /// The facts that only the node knows and a Pod may ask for.
    pub facts: Facts,
    pub node_labels: BTreeMap<String, String>,
    pub sources: Arc<dyn Sources>,
    pub mounter: Arc<dyn Mounter>,
    pub csi: Arc<Csi>,
    pub local: LocalVolumes,
    pub labels: Labels,
    pub remote: Arc<Remote>,
    pub exclusive: Arc<Exclusive>,
    /// Records an event about an object.
    pub tell: Arc<Tell>,
    pub figures: Arc<Figures>,
}

/// One volume of a Pod that is to be mounted.
pub struct Request<'a> {
    pub pod: &'a Pod,
    pub volume: &'a Volume,
    pub folder: &'a PodFolder,
    pub means: &'a Means,
    /// It is mounted so, and is to be brought up to date.
    pub held: Option<Mounted>,
    /// The PersistentVolume behind it, once its plugin has found that.
    pub persistent: OnceLock<Persistent>,
}

/// A PersistentVolume, for whoever tells of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persistent {
    pub name: String,
    /// Upstream's name of its plugin.
    pub plugin: String,
}

impl<'a> Request<'a> {
    /// For a volume that is not mounted.
    pub fn new(pod: &'a Pod, volume: &'a Volume, folder: &'a PodFolder, means: &'a Means) -> Self {
        Request { pod, volume, folder, means, held: None, persistent: OnceLock::new() }
    }

    pub fn pod_uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The group that owns the Pod's volumes.
    pub fn fs_group(&self) -> Option<u32> {
        let context = self.pod.spec.as_ref()?.security_context.as_ref()?;
        context.fs_group.and_then(|g| u32::try_from(g).ok())
    }
}

/// A volume as it was mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// Where it is on the node.
    pub path: PathBuf,
    /// Containers only read it, whatever their mounts say.
    pub read_only: bool,
    /// It is a block device, which containers have among their devices.
    #[serde(default)]
    pub is_device: bool,
    /// Its files are the Pod's: where SELinux is at work the engine gives them the label of the Pod's processes.
    #[serde(default)]
    pub relabel: bool,
    /// The group that processes need for it, beside those of their Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<i64>,
    /// The PersistentVolume, if no other Pod may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<String>,
}

/// A volume that is to be unmounted.
pub struct Unmount<'a> {
    pub folder: &'a PodFolder,
    /// The volume's name in its Pod.
    pub volume: &'a str,
    /// `None` when the kubelet ended before mounting was over: then anything from nothing to all of it may be there.
    pub mounted: Option<&'a Mounted>,
    pub mounter: &'a Arc<dyn Mounter>,
    pub remote: &'a Remote,
}

/// An object whose changes a volume shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    ConfigMap(String),
    Secret(String),
    TrustBundle(String),
    /// All bundles of a signer.
    TrustBundlesOf(String),
    /// The requests for certificates of the Pod.
    Certificates,
}

/// One sort of volume. A new one is a file in `plugins` and a line in [`PLUGINS`](crate::volumes::plugins::PLUGINS).
pub trait Plugin: Sync {
    /// Upstream's name of it, after `kubernetes.io/`. Its volumes are in a folder of that name, and the node's record of
    /// what is mounted names it: it never changes.
    fn name(&self) -> &'static str;

    /// Whether a volume is of this sort.
    fn takes(&self, volume: &Volume) -> bool;

    /// Whether a volume that is mounted stays as it is for now, whatever becomes of the objects that it came from.
    fn stays(&self, _: &Request<'_>) -> bool {
        false
    }

    /// Mounts a volume, or brings one that is mounted up to date and touches nothing else.
    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>>;

    /// Undoes all that `mount` did, however far it came. Succeeds when nothing is left.
    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(directory::remove(what.folder.volume(self.name(), what.volume), what.mounter.clone()))
    }

    /// The objects whose changes a volume shows.
    fn follows(&self, _: &Volume) -> Vec<Followed> {
        Vec::new()
    }
}
