//! The names that `--controllers` takes besides those of the controllers that run: upstream's older words for them, and
//! upstream's controllers that do not run here.
//! Upstream counterpart: cmd/kube-controller-manager/names and the descriptors in cmd/kube-controller-manager/app.

/// Upstream's controllers that do not run here, each with its reason.
const ABSENT: &[(&str, &str)] =
    &[("cloud-node-lifecycle-controller", CLOUD), ("node-route-controller", CLOUD), ("service-lb-controller", CLOUD)];

/// The controllers that run only where they are named: `*` is not about them.
const NAMED: &[&str] = &["selinux-warning-controller"];

const CLOUD: &str = "controllers of a cloud run in the cloud's own controller manager";

/// Upstream's older word for each name.
const ALIASES: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("route", "node-route-controller"),
    ("service", "service-lb-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("statefulset", "statefulset-controller"),
    ("storage-version-gc", "storageversion-garbage-collector-controller"),
    ("svm", "storage-version-migrator-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
];

/// The name that the controller has today.
pub fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// Whether a controller runs where nobody has said anything of it.
pub fn runs_by_default(name: &str) -> bool {
    !NAMED.contains(&name)
}

/// Why a controller of upstream's does not run here; `None` for one that does.
pub fn why_absent(name: &str) -> Option<&'static str> {
    ABSENT.iter().find(|(absent, _)| *absent == name).map(|(_, reason)| *reason)
}

/// The names of upstream's controllers that do not run here.
#[cfg(test)]
pub fn absent() -> impl Iterator<Item = &'static str> {
    ABSENT.iter().map(|(name, _)| *name)
}

#[cfg(test)]
pub fn aliased() -> impl Iterator<Item = &'static str> {
    ALIASES.iter().map(|(_, name)| *name)
}
