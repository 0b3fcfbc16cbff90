//! The checks that the restricted level adds: a Pod gives up what it does not need.

use std::collections::BTreeSet;

use api::k8s_openapi::api::core::v1::Volume;

use super::{
    baseline::{self, seccomp_is_bad},
    violation::Violation,
    workload::{Workload, containers, plural, quoted, setters},
};

pub fn privilege_escalation(workload: &Workload) -> Option<Violation> {
    let names = workload.named(|one| one.sets(|c| &c.allow_privilege_escalation) != Some(&false));
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names));
    Some(Violation { reason: "allowPrivilegeEscalation != false", detail })
}

/// On Windows there is nothing to set, and kubelets on Linux refuse such Pods.
pub fn privilege_escalation_1_25(workload: &Workload) -> Option<Violation> {
    if workload.is_windows() { None } else { privilege_escalation(workload) }
}

pub fn capabilities(workload: &Workload) -> Option<Violation> {
    let mut added: BTreeSet<&String> = BTreeSet::new();
    let keeping = workload.named(|one| {
        let dropped = one.sets(|c| &c.capabilities).and_then(|c| c.drop.as_ref());
        !dropped.is_some_and(|list| list.iter().any(|c| c == "ALL"))
    });
    let adding = workload.named(|one| {
        let list = one.sets(|c| &c.capabilities).and_then(|c| c.add.as_ref()).into_iter().flatten();
        let bad: Vec<&String> = list.filter(|c| *c != "NET_BIND_SERVICE").collect();
        added.extend(bad.iter().copied());
        !bad.is_empty()
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeping)));
    }
    if !adding.is_empty() {
        let (who, what) = (containers(&adding), quoted(added));
        details.push(format!("{who} must not include {what} in securityContext.capabilities.add"));
    }
    if details.is_empty() {
        return None;
    }
    Some(Violation { reason: "unrestricted capabilities", detail: details.join("; ") })
}

pub fn capabilities_1_25(workload: &Workload) -> Option<Violation> {
    if workload.is_windows() { None } else { capabilities(workload) }
}

/// The source of a volume when it is not one of those that a restricted Pod may have.
fn restricted_source(volume: &Volume) -> Option<&'static str> {
    let allowed = volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.image.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some();
    if allowed {
        return None;
    }
    let sources = [
        ("hostPath", volume.host_path.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("fc", volume.fc.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
    ];
    Some(sources.iter().find(|(_, set)| *set).map_or("unknown", |(name, _)| name))
}

pub fn volumes(workload: &Workload) -> Option<Violation> {
    let volumes = workload.spec.volumes.iter().flatten();
    let bad: Vec<(&str, &str)> = volumes.filter_map(|v| Some((v.name.as_str(), restricted_source(v)?))).collect();
    if bad.is_empty() {
        return None;
    }
    let sources: BTreeSet<&str> = bad.iter().map(|(_, source)| *source).collect();
    let (what, uses) = (plural(bad.len(), "volume", "volumes"), plural(bad.len(), "uses", "use"));
    let kinds = plural(sources.len(), "restricted volume type", "restricted volume types");
    let names = quoted(bad.iter().map(|(name, _)| name));
    let detail = format!("{what} {names} {uses} {kinds} {}", quoted(sources));
    Some(Violation { reason: "restricted volume types", detail })
}

pub fn run_as_non_root(workload: &Workload) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let of_pod = workload.security().and_then(|c| c.run_as_non_root);
    let as_root = workload.named(|one| one.sets(|c| &c.run_as_non_root) == Some(&false));
    let who = setters(of_pod == Some(false), &as_root);
    if !who.is_empty() {
        let detail = format!("{who} must not set securityContext.runAsNonRoot=false");
        return Some(Violation { reason: REASON, detail });
    }
    let silent = workload.named(|one| of_pod != Some(true) && one.sets(|c| &c.run_as_non_root).is_none());
    if silent.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&silent));
    Some(Violation { reason: REASON, detail })
}

pub fn run_as_non_root_1_35(workload: &Workload) -> Option<Violation> {
    if workload.has_own_users() { None } else { run_as_non_root(workload) }
}

pub fn run_as_user(workload: &Workload) -> Option<Violation> {
    let of_pod = workload.security().and_then(|c| c.run_as_user);
    let names = workload.named(|one| one.sets(|c| &c.run_as_user) == Some(&0));
    let who = setters(of_pod == Some(0), &names);
    if who.is_empty() {
        return None;
    }
    Some(Violation { reason: "runAsUser=0", detail: format!("{who} must not set runAsUser=0") })
}

pub fn run_as_user_1_35(workload: &Workload) -> Option<Violation> {
    if workload.has_own_users() { None } else { run_as_user(workload) }
}

pub fn seccomp(workload: &Workload) -> Option<Violation> {
    let bad = baseline::seccomp(workload);
    if bad.is_some() {
        return bad;
    }
    let of_pod = workload.security().and_then(|c| c.seccomp_profile.as_ref());
    let covered = of_pod.is_some_and(|profile| !seccomp_is_bad(&profile.type_));
    let silent = workload.named(|one| !covered && one.sets(|c| &c.seccomp_profile).is_none());
    if silent.is_empty() {
        return None;
    }
    let who = containers(&silent);
    let detail =
        format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"");
    Some(Violation { reason: "seccompProfile", detail })
}

pub fn seccomp_1_25(workload: &Workload) -> Option<Violation> {
    if workload.is_windows() { None } else { seccomp(workload) }
}
