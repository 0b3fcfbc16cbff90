//! Validation of what a Pod and its containers may do on the machine: users, groups, profiles, sysctls, the operating system.

pub(super) mod annotations;
pub(super) mod app_armor;
mod windows;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::relative_path::relative_path;

/// User and group ids.
fn ids(list: &[(&str, Option<i64>)], path: &Path) -> Errors {
    let given = list.iter().filter_map(|(field, id)| id.map(|id| (field, id)));
    given.filter_map(|(field, id)| bad_id(id, || path.child(field))).collect()
}

pub(super) fn bad_id(id: i64, path: impl Fn() -> Path) -> Option<FieldError> {
    let detail = "must be between 0 and 2147483647, inclusive";
    (!(0..=i64::from(i32::MAX)).contains(&id)).then(|| FieldError::invalid(&path(), id, detail))
}

/// `own_users`: the Pod has users of its own, which are nobody on the host.
pub(crate) fn of_container(context: &SecurityContext, own_users: bool, path: &Path) -> Errors {
    let mut errors = ids(&[("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)], path);
    if let Some(kind) = context.proc_mount.as_deref() {
        let path = path.child("procMount");
        if !matches!(kind, "Default" | "Unmasked") {
            errors.push(FieldError::not_supported(&path, kind, &["Default", "Unmasked"]));
        }
        if kind == "Unmasked" && !own_users {
            errors.push(FieldError::invalid(&path, kind, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    errors.extend(context.seccomp_profile.iter().flat_map(|p| seccomp(p, &path.child("seccompProfile"))));
    if context.allow_privilege_escalation == Some(false) {
        let mut clash = |with: &str| {
            let detail = format!("cannot set `allowPrivilegeEscalation` to false and {with}");
            let shown = internal_form::compact("SecurityContext", context);
            errors.push(FieldError::invalid_shown(path, &shown, &detail));
        };
        if context.privileged == Some(true) {
            clash("`privileged` to true");
        }
        let added = context.capabilities.iter().flat_map(|c| c.add.iter().flatten());
        added.filter(|c| *c == "CAP_SYS_ADMIN").for_each(|_| clash("`capabilities.Add` CAP_SYS_ADMIN"));
    }
    errors.extend(context.app_armor_profile.iter().flat_map(|p| app_armor(p, &path.child("appArmorProfile"))));
    errors.extend(context.windows_options.iter().flat_map(|o| windows::options(o, &path.child("windowsOptions"))));
    errors
}

pub(crate) fn of_pod(context: &PodSecurityContext, spec: &PodSpec, path: &Path) -> Errors {
    let of_pod =
        [("fsGroup", context.fs_group), ("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)];
    let mut errors = ids(&of_pod, path);
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        errors.extend(bad_id(*group, || path.child("supplementalGroups").index(i)));
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&path.child("shareProcessNamespace"), true, detail));
    }
    errors.extend(sysctls(context, spec, path));
    let word = |field: &str, value: Option<&String>, known: &[&str]| {
        let value = value.filter(|value| !known.contains(&value.as_str()))?;
        Some(FieldError::not_supported(&path.child(field), value, known))
    };
    errors.extend(word("fsGroupChangePolicy", context.fs_group_change_policy.as_ref(), &["Always", "OnRootMismatch"]));
    errors.extend(context.seccomp_profile.iter().flat_map(|p| seccomp(p, &path.child("seccompProfile"))));
    errors.extend(context.app_armor_profile.iter().flat_map(|p| app_armor(p, &path.child("appArmorProfile"))));
    errors.extend(context.windows_options.iter().flat_map(|o| windows::options(o, &path.child("windowsOptions"))));
    errors.extend(word("supplementalGroupsPolicy", context.supplemental_groups_policy.as_ref(), &["Merge", "Strict"]));
    errors.extend(word("seLinuxChangePolicy", context.se_linux_change_policy.as_ref(), &["MountOption", "Recursive"]));
    errors
}

const SYSCTL_MAX: usize = 253;
const SYSCTL_REGEX: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

fn is_sysctl(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let part = |p: &str| edge(p.chars().next()) && edge(p.chars().next_back()) && p.chars().all(inner);
    name.len() <= SYSCTL_MAX && name.split(['.', '/']).all(part)
}

fn sysctls(context: &PodSecurityContext, spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, one) in context.sysctls.iter().flatten().enumerate() {
        let path = path.child("sysctls").index(i).child("name");
        let name = one.name.replace('/', ".");
        if one.name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !is_sysctl(&one.name) {
            let detail = format!("must have at most {SYSCTL_MAX} characters and match regex {SYSCTL_REGEX}");
            errors.push(FieldError::invalid(&path, &one.name, &detail));
        } else if !seen.insert(&one.name) {
            errors.push(FieldError::duplicate(&path, &one.name));
        }
        let ipc =
            ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p)) || name == "kernel.sem";
        for (field, shared, touches) in
            [("hostNetwork", spec.host_network, name.starts_with("net.")), ("hostIPC", spec.host_ipc, ipc)]
        {
            if shared == Some(true) && touches {
                let detail = format!("may not be specified when '{field}' is true");
                errors.push(FieldError::invalid(&path, &one.name, &detail));
            }
        }
    }
    errors
}

fn seccomp(profile: &SeccompProfile, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let known = &["Localhost", "RuntimeDefault", "Unconfined"];
    match profile.type_.as_str() {
        "" => {
            let detail = "type is required when seccompProfile is set";
            errors.push(FieldError::required(&path.child("type"), detail));
        }
        kind if !known.contains(&kind) => errors.push(FieldError::not_supported(&path.child("type"), kind, known)),
        _ => {}
    }
    let place = path.child("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None) => {
            errors.push(FieldError::required(&place, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", Some(file)) => errors.extend(relative_path(file, &place)),
        (_, Some(_)) => {
            let shown = internal_form::compact("SeccompProfile", profile);
            let detail = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid_shown(&place, &shown, detail));
        }
        (_, None) => {}
    }
    errors
}

/// The longest name of a profile file.
const PROFILE_MAX: usize = 4095;

fn app_armor(profile: &AppArmorProfile, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("localhostProfile");
    let file = profile.localhost_profile.as_deref();
    let needed = "must be set when AppArmor type is Localhost";
    match (profile.type_.as_str(), file) {
        ("Localhost", None) => errors.push(FieldError::required(&place, needed)),
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                errors.push(FieldError::invalid(&place, file, "must not be padded with whitespace"));
            } else if file.is_empty() {
                errors.push(FieldError::required(&place, needed));
            }
            if file.len() > PROFILE_MAX {
                errors.push(FieldError::too_long(&place, PROFILE_MAX));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            errors.push(FieldError::invalid(&place, file, "can only be set when AppArmor type is Localhost"));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            let detail = "type is required when appArmorProfile is set";
            errors.push(FieldError::required(&path.child("type"), detail));
        }
        (other, _) => {
            let known = &["Localhost", "RuntimeDefault", "Unconfined"];
            errors.push(FieldError::not_supported(&path.child("type"), other, known));
        }
    }
    errors
}

/// A Pod with users of its own shares no namespace that would undo that.
pub(crate) fn own_users(spec: &PodSpec, path: &Path) -> Errors {
    if spec.host_users != Some(false) {
        return Errors::new();
    }
    let detail = "when `hostUsers` is false";
    let shared = [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)];
    let shared = shared.into_iter().filter(|(_, shared)| *shared == Some(true));
    let mut errors: Errors = shared.map(|(field, _)| FieldError::forbidden(&path.child(field), detail)).collect();
    for (container, path) in all_containers(spec, path) {
        if container.volume_devices.as_ref().is_some_and(|d| !d.is_empty()) {
            errors.push(FieldError::forbidden(&path.child("volumeDevices"), detail));
        }
    }
    errors
}

/// Init containers, then the others, each with its path.
fn all_containers<'a>(spec: &'a PodSpec, path: &'a Path) -> impl Iterator<Item = (&'a Container, Path)> {
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(move |(i, c)| (c, path.child("initContainers").index(i)));
    init.chain(spec.containers.iter().enumerate().map(move |(i, c)| (c, path.child("containers").index(i))))
}

pub(crate) fn host_process(spec: &PodSpec, path: &Path) -> Errors {
    windows::host_process(spec, all_containers(spec, path), path)
}

/// The operating system that a Pod names, and what another one's Pods may not set.
pub(crate) fn os(spec: &PodSpec, path: &Path) -> Errors {
    let Some(os) = &spec.os else { return Errors::new() };
    match os.name.as_str() {
        "" => vec![FieldError::required(&path.child("os").child("name"), "")],
        "linux" => linux(spec, path),
        "windows" => windows(spec, path),
        other => vec![FieldError::not_supported(&path.child("os"), other, &["linux", "windows"])],
    }
}

fn linux(spec: &PodSpec, path: &Path) -> Errors {
    let detail = "windows options cannot be set for a linux pod";
    let mut errors = Errors::new();
    if spec.security_context.as_ref().is_some_and(|s| s.windows_options.is_some()) {
        errors.push(FieldError::forbidden(&path.child("securityContext").child("windowsOptions"), detail));
    }
    for (container, path) in all_containers(spec, path) {
        if container.security_context.as_ref().is_some_and(|s| s.windows_options.is_some()) {
            errors.push(FieldError::forbidden(&path.child("securityContext").child("windowsOptions"), detail));
        }
    }
    errors
}

fn windows(spec: &PodSpec, path: &Path) -> Errors {
    let forbid = |path: &Path, list: &[(&str, bool)]| -> Errors {
        let set = list.iter().filter(|(_, set)| *set);
        set.map(|(field, _)| FieldError::forbidden(&path.child(field), "cannot be set for a windows pod")).collect()
    };
    let mut errors = Errors::new();
    if let Some(s) = &spec.security_context {
        let place = path.child("securityContext");
        errors.extend(forbid(
            &place,
            &[("appArmorProfile", s.app_armor_profile.is_some()), ("seLinuxOptions", s.se_linux_options.is_some())],
        ));
        errors.extend(forbid(
            path,
            &[
                ("hostUsers", spec.host_users.is_some()),
                ("hostPID", spec.host_pid == Some(true)),
                ("hostIPC", spec.host_ipc == Some(true)),
            ],
        ));
        errors.extend(forbid(
            &place,
            &[
                ("seccompProfile", s.seccomp_profile.is_some()),
                ("fsGroup", s.fs_group.is_some()),
                ("fsGroupChangePolicy", s.fs_group_change_policy.is_some()),
                ("sysctls", s.sysctls.as_ref().is_some_and(|l| !l.is_empty())),
            ],
        ));
        errors.extend(forbid(path, &[("shareProcessNamespace", spec.share_process_namespace.is_some())]));
        errors.extend(forbid(
            &place,
            &[
                ("runAsUser", s.run_as_user.is_some()),
                ("runAsGroup", s.run_as_group.is_some()),
                ("supplementalGroups", s.supplemental_groups.is_some()),
                ("supplementalGroupsPolicy", s.supplemental_groups_policy.is_some()),
                ("seLinuxChangePolicy", s.se_linux_change_policy.is_some()),
            ],
        ));
    }
    for (container, path) in all_containers(spec, path) {
        let Some(s) = &container.security_context else { continue };
        let set = [
            ("appArmorProfile", s.app_armor_profile.is_some()),
            ("seLinuxOptions", s.se_linux_options.is_some()),
            ("seccompProfile", s.seccomp_profile.is_some()),
            ("capabilities", s.capabilities.is_some()),
            ("readOnlyRootFilesystem", s.read_only_root_filesystem.is_some()),
            ("privileged", s.privileged.is_some()),
            ("allowPrivilegeEscalation", s.allow_privilege_escalation.is_some()),
            ("procMount", s.proc_mount.is_some()),
            ("runAsUser", s.run_as_user.is_some()),
            ("runAsGroup", s.run_as_group.is_some()),
        ];
        errors.extend(forbid(&path.child("securityContext"), &set));
    }
    errors
}
