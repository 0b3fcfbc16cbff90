//! The checks of the baseline level: what would let a Pod out of its box in a known way.

use std::collections::BTreeSet;

use api::{
    k8s_openapi::api::core::v1::{LifecycleHandler, Probe, SELinuxOptions},
    rules::{app_armor, sysctl::SAFE},
    validation::field,
};

use super::{
    violation::Violation,
    workload::{Workload, containers, plural, quoted, setters},
};

fn violation(reason: &'static str, detail: String) -> Option<Violation> {
    Some(Violation { reason, detail })
}

pub fn app_armor(workload: &Workload) -> Option<Violation> {
    let bad = |kind: &String| !matches!(kind.as_str(), "RuntimeDefault" | "Localhost");
    let mut values = BTreeSet::new();
    let of_pod = workload.security().and_then(|c| c.app_armor_profile.as_ref()).map(|p| &p.type_).filter(|t| bad(t));
    values.extend(of_pod);
    let names = workload.named(|one| {
        let kind = one.sets(|c| &c.app_armor_profile).map(|p| &p.type_).filter(|t| bad(t));
        values.extend(kind);
        kind.is_some()
    });
    let allowed = |value: &str| value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
    let annotations =
        workload.annotations.iter().filter(|(key, value)| key.starts_with(app_armor::ANNOTATION) && !allowed(value));
    // The texts are sorted: their order is not that of the keys where one key begins with another.
    let annotations: BTreeSet<String> =
        annotations.map(|(key, value)| format!("{key}={}", field::quote(value))).collect();
    let mut who: Vec<String> =
        Some(setters(of_pod.is_some(), &names)).filter(|who| !who.is_empty()).into_iter().collect();
    if !annotations.is_empty() {
        who.push(plural(annotations.len(), "annotation", "annotations").to_owned());
    }
    if who.is_empty() {
        return None;
    }
    let values: Vec<&String> = values.into_iter().chain(&annotations).collect();
    let reason = plural(values.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles");
    violation(reason, format!("{} must not set AppArmor profile type to {}", who.join(" and "), quoted(values)))
}

const USUAL_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub fn capabilities(workload: &Workload) -> Option<Violation> {
    let mut more: BTreeSet<&String> = BTreeSet::new();
    let names = workload.named(|one| {
        let added = one.sets(|c| &c.capabilities).and_then(|c| c.add.as_ref()).into_iter().flatten();
        let bad: Vec<&String> = added.filter(|c| !USUAL_CAPABILITIES.contains(&c.as_str())).collect();
        more.extend(bad.iter().copied());
        !bad.is_empty()
    });
    if names.is_empty() {
        return None;
    }
    let (who, what) = (containers(&names), quoted(more));
    violation("non-default capabilities", format!("{who} must not include {what} in securityContext.capabilities.add"))
}

pub fn host_namespaces(workload: &Workload) -> Option<Violation> {
    let spec = &workload.spec;
    let all = [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    let shared: Vec<String> =
        all.iter().filter(|(_, on)| *on == Some(true)).map(|(name, _)| format!("{name}=true")).collect();
    if shared.is_empty() { None } else { violation("host namespaces", shared.join(", ")) }
}

pub fn host_path(workload: &Workload) -> Option<Violation> {
    let volumes = workload.spec.volumes.iter().flatten().filter(|v| v.host_path.is_some());
    let names: Vec<&String> = volumes.map(|v| &v.name).collect();
    if names.is_empty() {
        return None;
    }
    let what = plural(names.len(), "volume", "volumes");
    violation("hostPath volumes", format!("{what} {}", quoted(names)))
}

pub fn host_ports(workload: &Workload) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let names = workload.named(|one| {
        let taken: Vec<String> =
            one.ports.iter().filter_map(|p| p.host_port).filter(|p| *p != 0).map(|p| p.to_string()).collect();
        let bad = !taken.is_empty();
        ports.extend(taken);
        bad
    });
    if names.is_empty() {
        return None;
    }
    let uses = plural(names.len(), "uses", "use");
    let what = plural(ports.len(), "hostPort", "hostPorts");
    let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
    violation("hostPort", format!("{} {uses} {what} {ports}", containers(&names)))
}

/// Probes and hooks that name a host: the kubelet would call it for the Pod.
pub fn handler_hosts(workload: &Workload) -> Option<Violation> {
    fn hosts_of_probe(probe: &Probe) -> [Option<&String>; 2] {
        [probe.http_get.as_ref().and_then(|h| h.host.as_ref()), probe.tcp_socket.as_ref().and_then(|t| t.host.as_ref())]
    }
    fn hosts_of_hook(hook: &LifecycleHandler) -> [Option<&String>; 2] {
        [hook.http_get.as_ref().and_then(|h| h.host.as_ref()), hook.tcp_socket.as_ref().and_then(|t| t.host.as_ref())]
    }
    let mut hosts: BTreeSet<&String> = BTreeSet::new();
    let mut names = workload.named(|one| {
        let probes = one.probes.into_iter().flatten().flat_map(hosts_of_probe);
        let hooks = one.lifecycle.into_iter().flat_map(|l| [&l.post_start, &l.pre_stop]).flatten();
        let named = probes.chain(hooks.flat_map(hosts_of_hook)).flatten().filter(|host| !host.is_empty());
        let named: Vec<&String> = named.collect();
        hosts.extend(named.iter().copied());
        !named.is_empty()
    });
    if names.is_empty() {
        return None;
    }
    names.sort_unstable();
    let uses = plural(names.len(), "uses", "use");
    let what = plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts");
    violation("probe or lifecycle host", format!("{} {uses} {what} {}", containers(&names), quoted(hosts)))
}

pub fn privileged(workload: &Workload) -> Option<Violation> {
    let names = workload.named(|one| one.sets(|c| &c.privileged) == Some(&true));
    if names.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", containers(&names)))
}

pub fn proc_mount(workload: &Workload) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let names = workload.named(|one| {
        let kind = one.sets(|c| &c.proc_mount).filter(|kind| *kind != "Default");
        kinds.extend(kind);
        kind.is_some()
    });
    if names.is_empty() {
        return None;
    }
    let (who, what) = (containers(&names), quoted(kinds));
    violation("procMount", format!("{who} must not set securityContext.procMount to {what}"))
}

pub fn proc_mount_of_host_users(workload: &Workload) -> Option<Violation> {
    if workload.has_own_users() { None } else { proc_mount(workload) }
}

const SELINUX_TYPES: &[&str] = &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

pub fn selinux(workload: &Workload) -> Option<Violation> {
    selinux_among(workload, &SELINUX_TYPES[..4])
}

pub fn selinux_1_31(workload: &Workload) -> Option<Violation> {
    selinux_among(workload, SELINUX_TYPES)
}

fn selinux_among(workload: &Workload, types: &[&str]) -> Option<Violation> {
    let (mut bad_types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut is_bad = |options: &SELinuxOptions| {
        let set = |field: &Option<String>| field.as_ref().is_some_and(|text| !text.is_empty());
        let kind = options.type_.clone().filter(|kind| !types.contains(&kind.as_str()));
        let bad = kind.is_some() || set(&options.user) || set(&options.role);
        bad_types.extend(kind);
        user |= set(&options.user);
        role |= set(&options.role);
        bad
    };
    let of_pod = workload.security().and_then(|c| c.se_linux_options.as_ref()).is_some_and(&mut is_bad);
    let names = workload.named(|one| one.sets(|c| &c.se_linux_options).is_some_and(&mut is_bad));
    let who = setters(of_pod, &names);
    if who.is_empty() {
        return None;
    }
    let mut what = Vec::new();
    if !bad_types.is_empty() {
        what.push(format!("{} {}", plural(bad_types.len(), "type", "types"), quoted(bad_types)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    violation("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {}", what.join("; ")))
}

/// Before v1.19 seccomp profiles were annotations.
pub fn seccomp_annotations(workload: &Workload) -> Option<Violation> {
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    let allowed =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let of_containers =
        workload.containers().map(|one| format!("container.seccomp.security.alpha.kubernetes.io/{}", one.name));
    let keys = std::iter::once(POD.to_owned()).chain(of_containers);
    let set = keys.filter_map(|key| workload.annotations.get(&key).map(|value| (key, value)));
    let bad: BTreeSet<String> =
        set.filter(|(_, value)| !allowed(value)).map(|(key, value)| format!("{key}={}", field::quote(value))).collect();
    if bad.is_empty() {
        return None;
    }
    let what = plural(bad.len(), "annotation", "annotations");
    violation("seccompProfile", format!("forbidden {what} {}", bad.into_iter().collect::<Vec<_>>().join(", ")))
}

pub fn seccomp_is_bad(kind: &str) -> bool {
    !matches!(kind, "RuntimeDefault" | "Localhost")
}

pub fn seccomp(workload: &Workload) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let of_pod = workload.security().and_then(|c| c.seccomp_profile.as_ref()).map(|p| &p.type_);
    let of_pod = of_pod.filter(|kind| seccomp_is_bad(kind));
    values.extend(of_pod);
    let names = workload.named(|one| {
        let kind = one.sets(|c| &c.seccomp_profile).map(|p| &p.type_).filter(|kind| seccomp_is_bad(kind));
        values.extend(kind);
        kind.is_some()
    });
    let who = setters(of_pod.is_some(), &names);
    if who.is_empty() {
        return None;
    }
    let what = quoted(values);
    violation("seccompProfile", format!("{who} must not set securityContext.seccompProfile.type to {what}"))
}

pub fn sysctls(workload: &Workload) -> Option<Violation> {
    sysctls_among(workload, &SAFE[..5])
}

pub fn sysctls_1_27(workload: &Workload) -> Option<Violation> {
    sysctls_among(workload, &SAFE[..6])
}

pub fn sysctls_1_29(workload: &Workload) -> Option<Violation> {
    sysctls_among(workload, &SAFE[..10])
}

pub fn sysctls_1_32(workload: &Workload) -> Option<Violation> {
    sysctls_among(workload, &SAFE)
}

fn sysctls_among(workload: &Workload, allowed: &[&str]) -> Option<Violation> {
    let set = workload.security().and_then(|c| c.sysctls.as_ref()).into_iter().flatten();
    let bad: Vec<&str> = set.map(|s| s.name.as_str()).filter(|name| !allowed.contains(name)).collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

pub fn windows_host_process(workload: &Workload) -> Option<Violation> {
    let of_pod = workload.security().and_then(|c| c.windows_options.as_ref()).and_then(|w| w.host_process);
    let names = workload.named(|one| one.sets(|c| &c.windows_options).and_then(|w| w.host_process) == Some(true));
    let who = setters(of_pod == Some(true), &names);
    if who.is_empty() {
        return None;
    }
    violation("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}
