//! The names of resources: which are Kubernetes' own, which are counted by somebody else, which may be in a quota.

use crate::validation::names;

/// Kubernetes' own: without a domain, or in its domain.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// A device or the like that somebody else counts.
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Before the name of a DeviceClass, whose devices can be asked for like an extended resource.
pub const OF_DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// On a claim that the scheduler made for the extended resources of a Pod, with the value `true`.
pub const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// Whether a DeviceClass may stand for the name: an extended resource, or the class itself by its implicit name.
pub fn may_be_devices(name: &str) -> bool {
    is_extended(name) || name.starts_with(OF_DEVICE_CLASS)
}

/// A name without a domain that a quota may limit.
pub fn is_standard_in_quota(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-") || IN_QUOTA.contains(&name)
}

const IN_QUOTA: &[&str] = &[
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// Names that stand alone in requests, limits and quotas.
pub(crate) fn is_standard(name: &str) -> bool {
    name == "storage" || is_huge(name) || IN_QUOTA.contains(&name)
}

/// Counted in whole numbers.
pub fn is_whole(name: &str) -> bool {
    let objects =
        IN_QUOTA.contains(&name) && !name.contains("cpu") && !name.contains("memory") && !name.contains("storage");
    objects || is_extended(name)
}
