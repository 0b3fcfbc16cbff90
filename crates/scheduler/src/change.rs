//! The changes in the cluster that can make a Pod fit that did not before. Plugins name those that matter to them.

/// One sort of change, as a bit of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Change {
    NodeAdded = 1,
    NodeAllocatable = 1 << 1,
    NodeLabels = 1 << 2,
    NodeTaints = 1 << 3,
    NodeSchedulable = 1 << 4,
    PodAdded = 1 << 5,
    PodDeleted = 1 << 6,
    PodLabels = 1 << 7,
    NamespaceLabels = 1 << 8,
    /// PersistentVolumeClaims, and what they need.
    Claims = 1 << 9,
    Volumes = 1 << 10,
    StorageClasses = 1 << 11,
    /// ResourceClaims, and what they ask for.
    Devices = 1 << 12,
    /// How many volumes a node can hold, or how many are attached there.
    VolumeLimits = 1 << 13,
    /// The room for new volumes, as drivers tell it.
    StorageCapacity = 1 << 14,
    /// The features that nodes declare.
    NodeFeatures = 1 << 15,
}

impl Change {
    /// The first of these changes, in upstream's words.
    pub fn label(changes: u16) -> &'static str {
        let labels = [
            (Change::NodeAdded, "NodeAdd"),
            (Change::NodeAllocatable, "NodeUpdateNodeAllocatable"),
            (Change::NodeLabels, "NodeUpdateNodeLabel"),
            (Change::NodeTaints, "NodeUpdateNodeTaint"),
            (Change::NodeSchedulable, "NodeUpdateNodeTaint"),
            (Change::PodLabels, "AssignedPodUpdatePodLabel"),
            (Change::PodAdded, "AssignedPodAdd"),
            (Change::PodDeleted, "AssignedPodDelete"),
            (Change::NamespaceLabels, "NamespaceUpdate"),
            (Change::Claims, "PersistentVolumeClaimUpdate"),
            (Change::Volumes, "PersistentVolumeUpdate"),
            (Change::StorageClasses, "StorageClassUpdate"),
            (Change::Devices, "ResourceClaimUpdate"),
            (Change::VolumeLimits, "CSINodeUpdate"),
            (Change::StorageCapacity, "CSIStorageCapacityUpdate"),
            (Change::NodeFeatures, "NodeUpdateNodeDeclaredFeature"),
        ];
        labels.iter().find(|(change, _)| *change as u16 & changes != 0).map_or("Unknown", |(_, label)| label)
    }
}
