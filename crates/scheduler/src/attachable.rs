//! Volumes that CSI drivers attach to nodes: which those are, how many of them a node can hold, and which are attached there.
//! Upstream counterpart: pkg/scheduler/framework/plugins/nodevolumelimits, staging/src/k8s.io/csi-translation-lib.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, Pod, Volume},
    storage::v1::{CSINode, StorageClass, VolumeAttachment},
};
use serde::Serialize;

/// The plugins that were part of Kubernetes once, with the drivers that do their work now.
const MIGRATED: &[(&str, &str)] = &[
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];
/// Set on a CSINode: the plugins whose work drivers do on that node, with commas between.
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// A volume as its driver knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Attachable {
    pub driver: String,
    pub handle: String,
    /// The old plugin that it was made for. It is a driver's only on nodes where that plugin's work was handed over.
    plugin: Option<&'static str>,
}

impl Attachable {
    fn migrated(plugin: &str, handle: &str) -> Option<Self> {
        let (plugin, driver) = MIGRATED.iter().find(|(old, _)| *old == plugin)?;
        Some(Attachable { driver: (*driver).to_owned(), handle: handle.to_owned(), plugin: Some(plugin) })
    }

    pub fn of_volume(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        if let Some(csi) = &spec.csi {
            let (driver, handle) = (csi.driver.clone(), csi.volume_handle.clone());
            return (!driver.is_empty() && !handle.is_empty()).then_some(Attachable { driver, handle, plugin: None });
        }
        let old = [
            (spec.aws_elastic_block_store.as_ref().map(|v| &v.volume_id), "kubernetes.io/aws-ebs"),
            (spec.azure_disk.as_ref().map(|v| &v.disk_uri), "kubernetes.io/azure-disk"),
            (spec.cinder.as_ref().map(|v| &v.volume_id), "kubernetes.io/cinder"),
            (spec.gce_persistent_disk.as_ref().map(|v| &v.pd_name), "kubernetes.io/gce-pd"),
            (spec.portworx_volume.as_ref().map(|v| &v.volume_id), "kubernetes.io/portworx-volume"),
        ];
        old.into_iter().find_map(|(handle, plugin)| Attachable::migrated(plugin, handle?))
    }

    fn of_inline(volume: &Volume) -> Option<Self> {
        let old = [
            (volume.aws_elastic_block_store.as_ref().map(|v| &v.volume_id), "kubernetes.io/aws-ebs"),
            (volume.azure_disk.as_ref().map(|v| &v.disk_uri), "kubernetes.io/azure-disk"),
            (volume.cinder.as_ref().map(|v| &v.volume_id), "kubernetes.io/cinder"),
            (volume.gce_persistent_disk.as_ref().map(|v| &v.pd_name), "kubernetes.io/gce-pd"),
            (volume.portworx_volume.as_ref().map(|v| &v.volume_id), "kubernetes.io/portworx-volume"),
        ];
        old.into_iter().find_map(|(handle, plugin)| Attachable::migrated(plugin, handle?))
    }
}

/// The volumes that a Pod names without a claim.
pub fn inline(pod: &Pod) -> Vec<Attachable> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().filter_map(Attachable::of_inline).collect()
}

/// The limits of the drivers on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// How many volumes of each driver the node can hold.
    counts: BTreeMap<String, i64>,
    migrated: BTreeSet<String>,
}

impl Limits {
    pub fn of(node: &CSINode) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        let migrated = annotations.and_then(|map| map.get(MIGRATED_PLUGINS)).map_or("", String::as_str);
        let counts = node.spec.drivers.iter().filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((driver.name.clone(), i64::from(count)))
        });
        Limits {
            counts: counts.collect(),
            migrated: migrated.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The number of volumes that fit however they are shared out between drivers.
    pub fn least(&self) -> i64 {
        self.counts.values().copied().min().unwrap_or(i64::MAX)
    }

    pub fn of_driver(&self, driver: &str) -> Option<i64> {
        self.counts.get(driver).copied()
    }

    /// Whether a driver on the node takes care of the volume.
    pub fn concerns(&self, volume: &Attachable) -> bool {
        volume.plugin.is_none_or(|plugin| self.migrated.contains(plugin))
    }
}

/// A volume that is attached, by the name of its PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub node: String,
    volume: String,
}

impl Attachment {
    /// `None` for one without a PersistentVolume, which no limit counts.
    pub fn of(attachment: &VolumeAttachment) -> Option<Self> {
        let volume = attachment.spec.source.persistent_volume_name.clone()?;
        Some(Attachment { node: attachment.spec.node_name.clone(), volume })
    }
}

/// All that is known of volumes that are attached.
#[derive(Debug, Default)]
pub struct Attachables {
    /// By the name of the PersistentVolume.
    pub volumes: HashMap<String, Attachable>,
    /// The provisioner of each StorageClass.
    pub provisioners: HashMap<String, String>,
    /// By node.
    pub limits: HashMap<String, Limits>,
    attachments: HashMap<String, Attachment>,
    /// The VolumeAttachments of each node.
    on: HashMap<String, BTreeSet<String>>,
}

impl Attachables {
    /// A VolumeAttachment as it is now. If that is news, answers with the node that has one less, or else one more.
    pub fn set_attachment(&mut self, name: &str, attachment: Option<Attachment>) -> Option<String> {
        if self.attachments.get(name) == attachment.as_ref() {
            return None;
        }
        let node = attachment.as_ref().map(|attachment| attachment.node.clone());
        let left = self.attachments.remove(name).map(|held| held.node);
        if let Some((node, there)) = left.as_ref().and_then(|node| Some((node, self.on.get_mut(node)?))) {
            there.remove(name);
            if there.is_empty() {
                self.on.remove(node);
            }
        }
        if let Some(attachment) = attachment {
            self.on.entry(attachment.node.clone()).or_default().insert(name.to_owned());
            self.attachments.insert(name.to_owned(), attachment);
        }
        left.or(node)
    }

    pub fn attachments(&self) -> impl Iterator<Item = &String> {
        self.attachments.keys()
    }

    /// How many VolumeAttachments a node has.
    pub fn attached(&self, node: &str) -> usize {
        self.on.get(node).map_or(0, BTreeSet::len)
    }

    /// The volumes that are attached to a node.
    pub fn attached_to(&self, node: &str) -> impl Iterator<Item = &Attachable> {
        let names = self.on.get(node).into_iter().flatten();
        let volumes = names.filter_map(|name| self.volumes.get(&self.attachments.get(name)?.volume));
        // Upstream looks at drivers' own volumes here, not at those that drivers took over.
        volumes.filter(|volume| volume.plugin.is_none())
    }

    /// The volume of a claim: the one that it has, or the one that its class will make.
    pub fn of_claim(&self, namespace: &str, name: &str, volume: &str, class: &str) -> Option<Attachable> {
        if !volume.is_empty()
            && let Some(volume) = self.volumes.get(volume)
        {
            return Some(volume.clone());
        }
        let provisioner = self.provisioners.get(class)?;
        // No volume has a handle like this, so every claim that waits for its volume counts as one.
        let handle = format!("claim {namespace}/{name}");
        let migrated = Attachable::migrated(provisioner, &handle);
        Some(migrated.unwrap_or_else(|| Attachable { driver: provisioner.clone(), handle, plugin: None }))
    }
}

/// The provisioner of a StorageClass.
pub fn provisioner(class: &StorageClass) -> String {
    class.provisioner.clone()
}
