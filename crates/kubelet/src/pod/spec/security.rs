//! The rights of a Pod's processes, for CRI. Pure.

use std::{collections::BTreeSet, path::PathBuf};

use k8s_cri::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption, SeLinuxOption,
    SecurityProfile, SupplementalGroupsPolicy, security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, SELinuxOptions, SeccompProfile};

use crate::{
    pod::{admit::wants_strict_groups, desired::DesiredPod, spec::hardening},
    users::{held, range::Ids},
    volumes::MountedVolumes,
};

pub fn namespaces(desired: &DesiredPod, users: Option<Ids>) -> NamespaceOption {
    let spec = desired.spec();
    let mode = |host: Option<bool>| if host == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod } as i32;
    let pid = if spec.host_pid == Some(true) {
        NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    NamespaceOption {
        network: mode(spec.host_network),
        ipc: mode(spec.host_ipc),
        pid: pid as i32,
        userns_options: Some(held::namespace(users)),
        ..Default::default()
    }
}

/// How this node bounds what containers ask of the kernel.
#[derive(Debug, Clone, Default)]
pub struct Seccomp {
    /// Where its own profiles are.
    pub folder: PathBuf,
    /// The engine's profile counts for those that name none.
    pub by_default: bool,
}

fn seccomp(profile: Option<&SeccompProfile>, node: &Seccomp) -> SecurityProfile {
    let kind = match profile.map(|p| p.type_.as_str()) {
        Some("RuntimeDefault") => ProfileType::RuntimeDefault,
        None if node.by_default => ProfileType::RuntimeDefault,
        Some("Localhost") => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    let local = profile.and_then(|p| p.localhost_profile.as_ref());
    SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: local.map(|p| node.folder.join(p).display().to_string()).unwrap_or_default(),
    }
}

fn apparmor(profile: &AppArmorProfile) -> SecurityProfile {
    let kind = match profile.type_.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    let localhost_ref = profile.localhost_profile.clone().unwrap_or_default();
    SecurityProfile { profile_type: kind as i32, localhost_ref }
}

/// The parts of a label that are given; the engine finds the others.
pub fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let (user, role, level) = (text(&options.user), text(&options.role), text(&options.level));
    SeLinuxOption { user, role, level, r#type: text(&options.type_) }
}

pub fn number(value: Option<i64>) -> Option<Int64Value> {
    value.map(|value| Int64Value { value })
}

/// The groups of a Pod's processes: its own, and those that its volumes ask for.
pub fn groups(desired: &DesiredPod, volumes: Option<&MountedVolumes>) -> Vec<i64> {
    let context = desired.spec().security_context.as_ref();
    let fs_group = context.and_then(|c| c.fs_group);
    let named = context.and_then(|c| c.supplemental_groups.clone()).unwrap_or_default();
    let of_volumes: BTreeSet<i64> = volumes.into_iter().flatten().filter_map(|(_, volume)| volume.group).collect();
    let more = of_volumes.into_iter().filter(|group| !named.contains(group));
    fs_group.into_iter().chain(more).chain(named.iter().copied()).collect()
}

/// Whether processes also have the groups that their image gives them.
pub fn groups_policy(desired: &DesiredPod) -> SupplementalGroupsPolicy {
    match wants_strict_groups(desired.spec()) {
        true => SupplementalGroupsPolicy::Strict,
        false => SupplementalGroupsPolicy::Merge,
    }
}

/// A container's own context over its Pod's, without its groups, or the words of the CreateContainerConfigError.
pub fn security(
    desired: &DesiredPod,
    container: &Container,
    target: Option<String>,
    node: &Seccomp,
    users: Option<Ids>,
) -> Result<LinuxContainerSecurityContext, String> {
    let mut namespaces = namespaces(desired, users);
    if let Some(target) = target {
        (namespaces.pid, namespaces.target_id) = (NamespaceMode::Target as i32, target);
    }
    let pod = desired.spec().security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let capabilities = own.capabilities.unwrap_or_default();
    let masked = [
        "/proc/asound",
        "/proc/acpi",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
    ];
    let readonly = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
    let open = own.privileged == Some(true) || own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| if open { Vec::new() } else { list.iter().map(|p| (*p).to_owned()).collect() };
    let capability =
        |list: Option<Vec<String>>| list.iter().flatten().map(|c| hardening::capability(c)).collect::<Result<_, _>>();
    let armor = hardening::apparmor(&desired.pod, container);
    Ok(LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: capability(capabilities.add)?,
            drop_capabilities: capability(capabilities.drop)?,
            ..Default::default()
        }),
        privileged: own.privileged.unwrap_or(false),
        namespace_options: Some(namespaces),
        run_as_user: number(own.run_as_user.or(pod.run_as_user)),
        run_as_group: number(own.run_as_group.or(pod.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups_policy: groups_policy(desired) as i32,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&masked),
        readonly_paths: paths(&readonly),
        seccomp: Some(seccomp(own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()), node)),
        apparmor: armor.as_ref().map(apparmor),
        selinux_options: own.se_linux_options.as_ref().or(pod.se_linux_options.as_ref()).map(selinux),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pod::fixture::pod, volumes::plugin::Mounted};

    fn security_of(pod: &str, container: &str) -> LinuxContainerSecurityContext {
        let spec =
            format!(r#"{{"securityContext": {pod}, "containers": [{{"name": "c", "securityContext": {container}}}]}}"#);
        let desired = self::pod(&spec);
        security(
            &desired,
            &desired.spec().containers[0],
            None,
            &Seccomp { folder: "/k/seccomp".into(), by_default: false },
            None,
        )
        .unwrap()
    }

    #[test]
    fn the_container_overrules_its_pod() {
        let user = |s: &LinuxContainerSecurityContext| {
            (s.run_as_user.as_ref().map(|v| v.value), s.run_as_group.as_ref().map(|v| v.value))
        };
        let pod = r#"{"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "supplementalGroups": [8, 9]}"#;
        let got = security_of(pod, "{}");
        assert_eq!(got.supplemental_groups_policy(), SupplementalGroupsPolicy::Merge);
        assert_eq!(user(&got), (Some(5), Some(6)));
        let strict = security_of(r#"{"supplementalGroupsPolicy": "Strict"}"#, "{}");
        assert_eq!(strict.supplemental_groups_policy(), SupplementalGroupsPolicy::Strict);
        assert_eq!(user(&security_of(pod, r#"{"runAsUser": 0}"#)), (Some(0), Some(6)));
        assert_eq!(user(&security_of("{}", "{}")), (None, None));
        let profile = |pod: &str, container: &str| {
            let seccomp = security_of(pod, container).seccomp.unwrap();
            (seccomp.profile_type(), seccomp.localhost_ref)
        };
        let default = r#"{"seccompProfile": {"type": "RuntimeDefault"}}"#;
        let local = r#"{"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}}"#;
        assert_eq!(profile("{}", "{}"), (ProfileType::Unconfined, String::new()));
        assert_eq!(profile(default, "{}"), (ProfileType::RuntimeDefault, String::new()));
        assert_eq!(profile(default, local), (ProfileType::Localhost, "/k/seccomp/a/b.json".to_owned()));
        let node = Seccomp { by_default: true, ..Seccomp::default() };
        let asks = |kind: &str| SeccompProfile { type_: kind.to_owned(), ..SeccompProfile::default() };
        assert_eq!(seccomp(None, &node).profile_type(), ProfileType::RuntimeDefault);
        assert_eq!(seccomp(Some(&asks("Unconfined")), &node).profile_type(), ProfileType::Unconfined);
        let armor = security_of(r#"{"appArmorProfile": {"type": "RuntimeDefault"}}"#, "{}").apparmor.unwrap();
        assert_eq!(armor.profile_type(), ProfileType::RuntimeDefault);
        let label = security_of("{}", r#"{"seLinuxOptions": {"level": "s0:c1"}}"#).selinux_options.unwrap();
        assert_eq!(label.level, "s0:c1");
    }

    #[test]
    fn groups_are_the_pods_and_its_volumes() {
        let with = |group| Mounted { group, ..Mounted::default() };
        let volumes = [("a", Some(9)), ("b", Some(20)), ("c", None), ("d", Some(20)), ("e", Some(10))];
        let volumes = volumes.map(|(name, group)| (name.to_owned(), with(group))).into();
        let desired = pod(r#"{"securityContext": {"fsGroup": 7, "supplementalGroups": [8, 9]}, "containers": []}"#);
        assert_eq!(groups(&desired, None), [7, 8, 9]);
        assert_eq!(groups(&desired, Some(&volumes)), [7, 10, 20, 8, 9]);
        assert_eq!(groups(&pod(r#"{"containers": []}"#), Some(&volumes)), [9, 10, 20]);
    }

    #[test]
    fn what_a_container_may_do() {
        let got = security_of(
            "{}",
            r#"{"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false}"#,
        );
        let capabilities = got.capabilities.unwrap();
        assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
        assert_eq!(capabilities.drop_capabilities, ["ALL"]);
        assert_eq!((got.readonly_rootfs, got.no_new_privs, got.privileged), (true, true, false));
        assert!(got.masked_paths.contains(&"/proc/kcore".to_owned()));
        let open = security_of("{}", r#"{"privileged": true}"#);
        assert_eq!(
            (open.privileged, open.no_new_privs, open.masked_paths.len(), open.readonly_paths.len()),
            (true, false, 0, 0)
        );
    }

    #[test]
    fn namespaces_are_the_pods_or_the_nodes_or_anothers() {
        use NamespaceMode::{Container, Node, Pod, Target};
        let own = |spec: &str| {
            let options = namespaces(&pod(spec), None);
            (options.network(), options.ipc(), options.pid())
        };
        assert_eq!(own(r#"{"containers": []}"#), (Pod, Pod, Container));
        assert_eq!(
            own(r#"{"containers": [], "hostNetwork": true, "hostIPC": true, "hostPID": true}"#),
            (Node, Node, Node)
        );
        assert_eq!(own(r#"{"containers": [], "shareProcessNamespace": true}"#), (Pod, Pod, Pod));
        let desired = pod(r#"{"containers": [{"name": "c"}]}"#);
        let looking = security(&desired, &desired.spec().containers[0], Some("id".into()), &Seccomp::default(), None);
        let options = looking.unwrap().namespace_options.unwrap();
        assert_eq!((options.pid(), options.target_id.as_str()), (Target, "id"));
    }
}
