//! The groups of the API in the order of discovery.

/// A group of the API: its place in discovery and its versions, the preferred one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    pub name: &'static str,
    /// `groupPriorityMinimum` of its APIServices: higher comes first.
    pub priority: i32,
    /// Each version with the `versionPriority` of its APIService.
    pub versions: &'static [(&'static str, i32)],
}

const fn group(name: &'static str, priority: i32, versions: &'static [(&'static str, i32)]) -> Group {
    Group { name, priority, versions }
}

/// All groups in the order of discovery, with the versions that can be switched on among them.
pub const GROUPS: &[Group] = &[
    group("", 18_000, &[("v1", 1)]),
    group("apiregistration.k8s.io", 18_000, &[("v1", 18)]),
    group("apps", 17_800, &[("v1", 15)]),
    group("events.k8s.io", 17_750, &[("v1", 15)]),
    group("authentication.k8s.io", 17_700, &[("v1", 15)]),
    group("authorization.k8s.io", 17_600, &[("v1", 15)]),
    group("autoscaling", 17_500, &[("v2", 30), ("v1", 15)]),
    group("batch", 17_400, &[("v1", 15)]),
    group("certificates.k8s.io", 17_300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    group("networking.k8s.io", 17_200, &[("v1", 15), ("v1beta1", 9)]),
    group("policy", 17_100, &[("v1", 15)]),
    group("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    group("storage.k8s.io", 16_800, &[("v1", 15), ("v1beta1", 9)]),
    group("admissionregistration.k8s.io", 16_700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    group("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    group("scheduling.k8s.io", 16_600, &[("v1", 15), ("v1alpha1", 9)]),
    group("coordination.k8s.io", 16_500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12)]),
    group("node.k8s.io", 16_300, &[("v1", 15)]),
    group("discovery.k8s.io", 16_200, &[("v1", 15)]),
    group("resource.k8s.io", 16_200, &[("v1", 20), ("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    group("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21)]),
    group("internal.apiserver.k8s.io", 16_000, &[("v1alpha1", 9)]),
    group("storagemigration.k8s.io", 15_800, &[("v1beta1", 9)]),
    group("metrics.k8s.io", 100, &[("v1beta1", 100)]),
];
