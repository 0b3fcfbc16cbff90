//! The protections that Pods ask for, for themselves or for others, and which of them this node can give. A protection
//! that it cannot give is refused in upstream's words, never left out: a Pod that asks for it relies on it. Pure, but
//! for the look at the kernel's modules.

use std::{collections::BTreeMap, path::Path};

use api::rules::{app_armor, sysctl::SAFE};
use k8s_cri::v1::RuntimeHandlerFeatures;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSpec, VolumeMount};

use crate::pod::{admit::Refusal, desired::DesiredPod};

/// Which of the kernel's security modules can be used here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Modules {
    pub apparmor: bool,
    pub selinux: bool,
}

impl Modules {
    pub fn of_this_kernel() -> Self {
        let armor = std::fs::read("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
        Modules { apparmor: armor.first() == Some(&b'Y'), selinux: Path::new("/sys/fs/selinux/enforce").exists() }
    }
}

/// The sort of namespace that keeps a parameter of the kernel apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Apart {
    Ipc,
    Net,
}

/// The sort of namespace by which a parameter of the kernel, or all that begin so, are a Pod's own.
fn apart(name: &str) -> Option<Apart> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p)) || name == "kernel.sem";
    ipc.then_some(Apart::Ipc).or_else(|| name.starts_with("net.").then_some(Apart::Net))
}

/// A name with its parts between dots; written with slashes, dots and slashes change places.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// The parameters of the kernel that a Pod may set: upstream's safe ones and those that the node's flag names.
#[derive(Debug, Clone)]
pub struct Sysctls {
    /// Whole names, and beginnings (those end in `*`).
    allowed: BTreeMap<String, Apart>,
}

impl Sysctls {
    /// `more` are names and patterns as of `--allowed-unsafe-sysctls`.
    pub fn new(more: &[String]) -> Result<Self, String> {
        let mut allowed = BTreeMap::new();
        for pattern in SAFE.iter().map(|s| (*s).to_owned()).chain(more.iter().cloned()) {
            let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
            let stem = pattern.strip_suffix('*').unwrap_or(&pattern);
            if stem.is_empty() || stem.len() > 253 || !stem.chars().all(known) {
                return Err(format!(
                    "\"{pattern}\" is neither the name of a sysctl nor the beginning of one with a * after it"
                ));
            }
            let name = dotted(&pattern);
            let apart = apart(name.strip_suffix('*').unwrap_or(&name));
            allowed.insert(name, apart.ok_or(format!("the sysctl \"{pattern}\" is not known to be namespaced"))?);
        }
        Ok(Sysctls { allowed })
    }

    fn allows(&self, name: &str) -> Option<Apart> {
        let whole = self.allowed.get(name).copied();
        whole.or_else(|| {
            let mut begun = self.allowed.iter().filter_map(|(n, apart)| Some((n.strip_suffix('*')?, apart)));
            begun.find(|(begin, _)| name.starts_with(begin)).map(|(_, apart)| *apart)
        })
    }

    pub fn admit(&self, spec: &PodSpec) -> Result<(), Refusal> {
        let (net, ipc) = (spec.host_network == Some(true), spec.host_ipc == Some(true));
        for sysctl in spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
            let name = dotted(&sysctl.name);
            let why = match self.allows(&name) {
                None => format!("\"{name}\" not allowlisted"),
                Some(Apart::Net) if net => format!("\"{name}\" not allowed with host Net enabled"),
                Some(Apart::Ipc) if ipc => format!("\"{name}\" not allowed with host IPC enabled"),
                Some(_) => continue,
            };
            return Err(Refusal::new("SysctlForbidden", format!("forbidden sysctl: {why}")));
        }
        Ok(())
    }
}

/// The AppArmor profile of a container: its own, its Pod's, or that of the annotation of before there were fields.
pub fn apparmor(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.clone());
    let of_pod = || pod.spec.as_ref()?.security_context.as_ref()?.app_armor_profile.clone();
    let annotated = || {
        let text = pod.metadata.annotations.as_ref()?.get(&format!("{}{}", app_armor::ANNOTATION, container.name))?;
        let usual = || AppArmorProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None };
        // An annotation that means no profile asked for one all the same.
        Some(app_armor::of_annotation(text).unwrap_or_else(usual))
    };
    own.or_else(annotated).or_else(of_pod)
}

/// Refuses a Pod whose wishes the kernel and the engine cannot carry out. `labels` says that the engine gives processes
/// SELinux labels.
pub fn admit_modules(desired: &DesiredPod, modules: Modules, labels: bool) -> Result<(), Refusal> {
    let confined = |c: &Container| apparmor(&desired.pod, c).is_some_and(|p| p.type_ != "Unconfined");
    if !modules.apparmor && desired.containers().any(confined) {
        return Err(Refusal::new("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"));
    }
    if modules.selinux && !labels && wants_labels(desired) {
        let message =
            "Cannot apply seLinuxOptions: the node's own container engine gives SELinux labels only with --selinux";
        return Err(Refusal::new("SELinux", message));
    }
    Ok(())
}

/// Whether seLinuxOptions are set anywhere.
pub fn wants_labels(desired: &DesiredPod) -> bool {
    let of_pod = desired.spec().security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
    let labelled = |c: &Container| c.security_context.as_ref().is_some_and(|s| s.se_linux_options.is_some());
    of_pod.is_some() || desired.containers().any(labelled)
}

/// A Pod that asks for users of its own does not run as the node's: the handler has to be able to do it.
pub fn own_users(handler: &str, features: Option<&RuntimeHandlerFeatures>) -> Result<(), String> {
    if features.is_some_and(|features| features.user_namespaces) {
        return Ok(());
    }
    let asked = match handler {
        "" => "runtime".to_owned(),
        name => format!("RuntimeClass handler \"{name}\""),
    };
    let why = if features.is_some() { String::new() } else { format!(": the handler \"{handler}\" is not known") };
    Err(format!("can't set `spec.hostUsers: false`, {asked} does not support user namespaces{why}"))
}

/// Whether a mount is read-only with all that is mounted below it.
pub fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let (name, mode) = (&mount.name, mount.recursive_read_only.as_deref().unwrap_or("Disabled"));
    if mode == "Disabled" {
        return Ok(false);
    }
    let asked = format!("volume \"{name}\" requested recursive read-only mode, but it is");
    if mount.read_only != Some(true) {
        return Err(format!("{asked} not read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return Err(format!("{asked} not compatible with propagation \"{propagation}\""));
    }
    match (mode, supported) {
        ("IfPossible", _) | ("Enabled", true) => Ok(supported),
        ("Enabled", false) => Err(format!("{asked} not supported by the runtime")),
        (other, _) => Err(format!("unknown recursive read-only mode \"{other}\"")),
    }
}

const CAPABILITIES: &str = "ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN \
    DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE \
    MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN \
    SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG \
    WAKE_ALARM";

/// A capability by the name that the engine knows. runc passes over names that it does not know, so a slip of the pen in
/// `drop` would leave the container what it was to lose.
pub fn capability(name: &str) -> Result<String, String> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let known = CAPABILITIES.split(' ').any(|known| known == bare);
    if known { Ok(bare.to_owned()) } else { Err(format!("unknown capability \"{name}\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{pod, pod_of};
    use json::json;

    #[test]
    fn only_safe_sysctls_and_those_that_the_node_allows() {
        let more = ["net.core.somaxconn", "kernel.msg*", "net/ipv6/*"].map(str::to_owned);
        let (plain, wide) = (Sysctls::new(&[]).unwrap(), Sysctls::new(&more).unwrap());
        let check = |list: &Sysctls, name: &str, more: &str, expected: &str| {
            let desired = pod(&format!(
                r#"{{"containers": [], {more} "securityContext": {{"sysctls": [{{"name": "{name}", "value": "1"}}]}}}}"#
            ));
            let got =
                list.admit(desired.spec()).map_or_else(|r| format!("{}: {}", r.reason, r.message), |()| String::new());
            let expected = if expected.is_empty() {
                String::new()
            } else {
                format!("SysctlForbidden: forbidden sysctl: {expected}")
            };
            assert_eq!(got, expected, "{name} {more}");
        };
        let (net, ipc) = (r#""hostNetwork": true,"#, r#""hostIPC": true,"#);
        check(&plain, "net.ipv4.tcp_syncookies", "", "");
        check(&plain, "net/ipv4/tcp_syncookies", "", "");
        check(&plain, "net.core.somaxconn", "", "\"net.core.somaxconn\" not allowlisted");
        check(&plain, "net/core/somaxconn", "", "\"net.core.somaxconn\" not allowlisted");
        check(&plain, "vm.swappiness", "", "\"vm.swappiness\" not allowlisted");
        check(&plain, "net.ipv4.tcp_syncookies", net, "\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled");
        check(&plain, "kernel.shm_rmid_forced", ipc, "\"kernel.shm_rmid_forced\" not allowed with host IPC enabled");
        check(&plain, "kernel.shm_rmid_forced", net, "");
        check(&wide, "net.core.somaxconn", "", "");
        check(&wide, "kernel.msgmax", "", "");
        check(&wide, "kernel.msgmax", ipc, "\"kernel.msgmax\" not allowed with host IPC enabled");
        check(&wide, "net.ipv6.conf.eth0/1.x", "", "");
        check(&wide, "net.core.somaxconnx", "", "\"net.core.somaxconnx\" not allowlisted");
        for (bad, said) in [
            ("vm.swappiness", "not known to be namespaced"),
            ("*", "neither"),
            ("net.*x", "neither"),
            ("kernel.*", "namespaced"),
        ] {
            let error = Sysctls::new(&[bad.to_owned()]).unwrap_err();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }

    #[test]
    fn a_profile_that_nothing_enforces_is_refused() {
        let check = |object: json::Value, modules: Modules, labels: bool, expected: &str| {
            let desired = pod_of(object.clone());
            let got = admit_modules(&desired, modules, labels);
            assert_eq!(got.map_or_else(|r| r.reason, |()| String::new()), expected, "{object}");
        };
        let (none, all) = (Modules::default(), Modules { apparmor: true, selinux: true });
        let on_pod =
            |context: json::Value| json!({"spec": {"securityContext": context, "containers": [{"name": "c"}]}});
        let on_container =
            |context: json::Value| json!({"spec": {"containers": [{"name": "c", "securityContext": context}]}});
        let armor = |kind: &str| json!({"appArmorProfile": {"type": kind}});
        for kind in ["RuntimeDefault", "Localhost"] {
            check(on_pod(armor(kind)), none, false, "AppArmor");
            check(on_container(armor(kind)), none, false, "AppArmor");
            check(on_container(armor(kind)), all, false, "");
        }
        check(on_pod(armor("Unconfined")), none, false, "");
        let mut overruled = on_container(armor("Unconfined"));
        overruled["spec"]["securityContext"] = armor("RuntimeDefault");
        check(overruled, none, false, "");
        let annotated = |value: &str| {
            let mut object = on_container(json!({}));
            object["metadata"]["annotations"] = json!({"container.apparmor.security.beta.kubernetes.io/c": value});
            object
        };
        check(annotated("runtime/default"), none, false, "AppArmor");
        check(annotated("localhost/x"), none, false, "AppArmor");
        check(annotated("unconfined"), none, false, "");
        let label = json!({"seLinuxOptions": {"level": "s0:c1"}});
        for object in [on_pod(label.clone()), on_container(label)] {
            check(object.clone(), all, false, "SELinux");
            check(object.clone(), all, true, "");
            // Where the kernel has no SELinux there is nothing to rely on; the Pod is told by an event.
            check(object, none, false, "");
        }
    }

    #[test]
    fn capabilities_are_known_by_either_name_or_refused() {
        for (name, expected) in [
            ("NET_RAW", Ok("NET_RAW")),
            ("CAP_NET_RAW", Ok("NET_RAW")),
            ("cap_net_raw", Ok("NET_RAW")),
            ("all", Ok("ALL")),
            ("NET_RAWW", Err("unknown capability \"NET_RAWW\"")),
            ("", Err("unknown capability \"\"")),
        ] {
            assert_eq!(capability(name), expected.map(str::to_owned).map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn read_only_all_the_way_down_is_done_or_refused() {
        let check = |mount: json::Value, supported: bool, expected: Result<bool, &str>| {
            let mut mount = mount;
            (mount["name"], mount["mountPath"]) = (json!("v"), json!("/v"));
            let got = recursive_read_only(&json::from_value(mount.clone()).unwrap(), supported);
            let words = |why: &str| format!("volume \"v\" requested recursive read-only mode, but it is {why}");
            assert_eq!(got, expected.map_err(words), "{mount}");
        };
        check(json!({"readOnly": true}), true, Ok(false));
        check(json!({"readOnly": true, "recursiveReadOnly": "Disabled"}), true, Ok(false));
        check(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), true, Ok(true));
        check(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), false, Ok(false));
        check(json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), true, Ok(true));
        check(json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), false, Err("not supported by the runtime"));
        check(json!({"recursiveReadOnly": "Enabled"}), true, Err("not read-only"));
        let spread = json!({"readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"});
        check(spread, true, Err("not compatible with propagation \"HostToContainer\""));
    }

    #[test]
    fn users_of_its_own_are_not_the_nodes() {
        let features = |user_namespaces| RuntimeHandlerFeatures { user_namespaces, ..Default::default() };
        assert_eq!(own_users("", Some(&features(true))), Ok(()));
        let words = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        assert_eq!(own_users("", Some(&features(false))), Err(words.to_owned()));
        assert_eq!(own_users("", None), Err(format!("{words}: the handler \"\" is not known")));
        let words = "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces";
        assert_eq!(own_users("kata", Some(&features(false))), Err(words.to_owned()));
    }
}
