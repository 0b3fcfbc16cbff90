//! Sandbox and container configurations for CRI, from a Pod. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use k8s_cri::v1::{
    Capability, ContainerConfig, ContainerMetadata, DnsConfig, ImageSpec, Int64Value, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol, SeLinuxOption,
    SecurityProfile, security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, SELinuxOptions, SeccompProfile};

use crate::pod::{
    desired::{
        CONTAINER_HASH, CONTAINER_NAME, DesiredPod, GRACE, MESSAGE_PATH, MESSAGE_POLICY, POD_NAME, POD_NAMESPACE,
        POD_UID, RESTART_COUNT, hash,
    },
    spec::{env::Budget, hardening},
};

/// Where to resolve names: servers, searches, options.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// Reads the parts of a `resolv.conf`.
pub fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
            Some("search") => dns.searches = words.map(str::to_owned).collect(),
            Some("options") => dns.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    dns
}

/// The resolver of a Pod: its policy over the cluster's and the host's settings, then its own additions.
pub fn dns(desired: &DesiredPod, cluster: &[String], domain: &str, host: &Dns) -> Dns {
    let spec = desired.spec();
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster_first = policy == "ClusterFirstWithHostNet" || policy == "ClusterFirst" && !desired.host_network();
    let mut dns = match policy {
        "None" => Dns::default(),
        _ if cluster_first && !cluster.is_empty() => {
            let mut searches =
                vec![format!("{}.svc.{domain}", desired.namespace()), format!("svc.{domain}"), domain.to_owned()];
            searches.extend(host.searches.clone());
            Dns { servers: cluster.to_vec(), searches, options: vec!["ndots:5".to_owned()] }
        }
        _ => host.clone(),
    };
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            dns.options.retain(|o| o.split(':').next() != Some(&name));
            dns.options.push(option.value.as_ref().map_or(name.clone(), |v| format!("{name}:{v}")));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    dns.searches.retain(|s| seen.insert(s.clone()));
    dns.servers.truncate(3);
    dns
}

/// The name that a Pod calls itself, and its full one if it has a subdomain.
pub fn hostname(desired: &DesiredPod, domain: &str) -> (String, Option<String>) {
    let spec = desired.spec();
    let mut name = spec.hostname.clone().unwrap_or_else(|| desired.name().to_owned());
    name.truncate(63);
    let name = name.trim_end_matches(['-', '.']).to_owned();
    let full = spec.subdomain.as_ref().map(|sub| format!("{name}.{sub}.{}.svc.{domain}", desired.namespace()));
    (name, full)
}

/// The `/etc/hosts` that a Pod sees.
pub fn hosts(desired: &DesiredPod, domain: &str, ips: &[String], of_node: &str) -> String {
    let mut text = if desired.host_network() {
        format!("# Kubernetes-managed hosts file (host network).\n{of_node}")
    } else {
        let (short, full) = hostname(desired, domain);
        let names = full.map_or(short.clone(), |full| format!("{full}\t{short}"));
        let own: String = ips.iter().map(|ip| format!("{ip}\t{names}\n")).collect();
        format!(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n{own}"
        )
    };
    let aliases = desired.spec().host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
            text.push_str(&format!("{}\t{names}\n", alias.ip));
        }
    }
    text
}

fn namespaces(desired: &DesiredPod) -> NamespaceOption {
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
        ..Default::default()
    }
}

fn seccomp(profile: Option<&SeccompProfile>, folder: &Path) -> SecurityProfile {
    let kind = match profile.map(|p| p.type_.as_str()) {
        Some("RuntimeDefault") => ProfileType::RuntimeDefault,
        Some("Localhost") => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    let local = profile.and_then(|p| p.localhost_profile.as_ref());
    SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: local.map(|p| folder.join(p).display().to_string()).unwrap_or_default(),
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

fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    let (user, role, level) = (text(&options.user), text(&options.role), text(&options.level));
    SeLinuxOption { user, role, level, r#type: text(&options.type_) }
}

fn number(value: Option<i64>) -> Option<Int64Value> {
    value.map(|value| Int64Value { value })
}

fn groups(desired: &DesiredPod) -> Vec<i64> {
    let context = desired.spec().security_context.as_ref();
    let fs_group = context.and_then(|c| c.fs_group);
    fs_group.into_iter().chain(context.and_then(|c| c.supplemental_groups.clone()).unwrap_or_default()).collect()
}

fn labels(desired: &DesiredPod) -> HashMap<String, String> {
    HashMap::from([
        (POD_NAME.to_owned(), desired.name().to_owned()),
        (POD_NAMESPACE.to_owned(), desired.namespace().to_owned()),
        (POD_UID.to_owned(), desired.uid().to_owned()),
    ])
}

pub struct SandboxSetting {
    pub attempt: u32,
    pub cgroup: String,
    pub log_dir: String,
    pub dns: Dns,
    pub cluster_domain: String,
}

pub fn sandbox(desired: &DesiredPod, setting: &SandboxSetting) -> PodSandboxConfig {
    let spec = desired.spec();
    let context = spec.security_context.clone().unwrap_or_default();
    let privileged =
        desired.containers().any(|c| c.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false));
    let mut all_labels = labels(desired);
    all_labels.extend(desired.pod.metadata.labels.clone().unwrap_or_default());
    let ports = spec.containers.iter().flat_map(|c| c.ports.iter().flatten());
    let dns = setting.dns.clone();
    let (short, full) = hostname(desired, &setting.cluster_domain);
    // On the host's network there is no UTS namespace of the Pod's own whose name could be set.
    let full = full.filter(|_| spec.set_hostname_as_fqdn == Some(true));
    let hostname = if desired.host_network() { String::new() } else { full.unwrap_or(short) };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: desired.name().to_owned(),
            uid: desired.uid().to_owned(),
            namespace: desired.namespace().to_owned(),
            attempt: setting.attempt,
        }),
        hostname,
        log_directory: setting.log_dir.clone(),
        dns_config: Some(DnsConfig { servers: dns.servers, searches: dns.searches, options: dns.options }),
        port_mappings: ports
            .filter(|p| p.host_port.is_some_and(|h| h > 0) && !desired.host_network())
            .map(|p| PortMapping {
                protocol: match p.protocol.as_deref() {
                    Some("UDP") => Protocol::Udp,
                    Some("SCTP") => Protocol::Sctp,
                    _ => Protocol::Tcp,
                } as i32,
                container_port: p.container_port,
                host_port: p.host_port.unwrap_or(0),
                host_ip: p.host_ip.clone().unwrap_or_default(),
            })
            .collect(),
        labels: all_labels,
        annotations: desired.pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: setting.cgroup.clone(),
            sysctls: context.sysctls.unwrap_or_default().into_iter().map(|s| (s.name, s.value)).collect(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(desired)),
                supplemental_groups: groups(desired),
                privileged,
                // The pause program needs no more than the default profile allows.
                seccomp: Some(SecurityProfile {
                    profile_type: ProfileType::RuntimeDefault as i32,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub struct ContainerSetting {
    pub restarts: i32,
    pub image: String,
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub resources: LinuxContainerResources,
    /// The container (by id) whose processes it sees.
    pub target: Option<String>,
    /// Where the seccomp profiles of this node are.
    pub seccomp_dir: PathBuf,
}

/// Where a container's log lies below the Pod's log folder.
pub fn log_path(container: &str, restarts: i32) -> String {
    format!("{container}/{restarts}.log")
}

/// The container for the engine, or the words of the CreateContainerConfigError.
pub fn container(
    desired: &DesiredPod,
    container: &Container,
    setting: ContainerSetting,
) -> Result<ContainerConfig, String> {
    let known: BTreeMap<String, String> = setting.env.iter().cloned().collect();
    let mut budget = Budget::beside(&setting.env);
    let mut expanded = |list: &Option<Vec<String>>| budget.words(list.as_deref().unwrap_or_default(), &known);
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let security = security(desired, container, setting.target, &setting.seccomp_dir)?;
    let mut all_labels = labels(desired);
    all_labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    let text = |v: &Option<String>, default: &str| v.clone().unwrap_or_else(|| default.to_owned());
    let annotations = HashMap::from([
        (CONTAINER_HASH.to_owned(), hash(container)),
        (RESTART_COUNT.to_owned(), setting.restarts.to_string()),
        (MESSAGE_PATH.to_owned(), text(&container.termination_message_path, "/dev/termination-log")),
        (MESSAGE_POLICY.to_owned(), text(&container.termination_message_policy, "File")),
        (GRACE.to_owned(), desired.spec().termination_grace_period_seconds.unwrap_or(30).to_string()),
    ]);
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: setting.restarts.cast_unsigned() }),
        image: Some(ImageSpec { image: setting.image, ..Default::default() }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: setting.env.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        mounts: setting.mounts,
        labels: all_labels,
        annotations,
        log_path: log_path(&container.name, setting.restarts),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig { resources: Some(setting.resources), security_context: Some(security) }),
        ..Default::default()
    })
}

fn security(
    desired: &DesiredPod,
    container: &Container,
    target: Option<String>,
    seccomp_dir: &Path,
) -> Result<LinuxContainerSecurityContext, String> {
    let mut namespaces = namespaces(desired);
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
        supplemental_groups: groups(desired),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&masked),
        readonly_paths: paths(&readonly),
        seccomp: Some(seccomp(own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()), seccomp_dir)),
        apparmor: armor.as_ref().map(apparmor),
        selinux_options: own.se_linux_options.as_ref().or(pod.se_linux_options.as_ref()).map(selinux),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{pod, pod_of};
    use serde_json::json;

    fn rendered(spec: &str) -> ContainerConfig {
        let desired = pod(spec);
        let setting = ContainerSetting {
            restarts: 3,
            image: "sha256:1".into(),
            env: vec![("A".into(), "x".into()), ("B".into(), "y".into())],
            mounts: Vec::new(),
            resources: LinuxContainerResources::default(),
            target: None,
            seccomp_dir: "/k/seccomp".into(),
        };
        container(&desired, &desired.spec().containers[0], setting).unwrap()
    }

    #[test]
    fn commands_are_expanded_and_the_rest_is_passed_on() {
        let got = rendered(
            r#"{"terminationGracePeriodSeconds": 7, "containers": [{"name": "c", "image": "i", "workingDir": "/w", "stdin": true,
                "tty": true, "command": ["$(A)", "$$(A)"], "args": ["--b=$(B)", "$(C)"]}]}"#,
        );
        assert_eq!((got.command, got.args), (vec!["x".into(), "$(A)".into()], vec!["--b=y".into(), "$(C)".into()]));
        assert_eq!((got.working_dir.as_str(), got.stdin, got.stdin_once, got.tty), ("/w", true, false, true));
        assert_eq!(got.log_path, "c/3.log");
        assert_eq!((got.metadata.unwrap().attempt, got.image.unwrap().image), (3, "sha256:1".to_owned()));
        for (name, expected) in [(RESTART_COUNT, "3"), (GRACE, "7"), (MESSAGE_POLICY, "File")] {
            assert_eq!(got.annotations[name], expected, "{name}");
        }
        assert_eq!((got.labels[POD_UID].as_str(), got.labels[CONTAINER_NAME].as_str()), ("u", "c"));
        assert_eq!(got.envs.len(), 2);
    }

    fn security_of(pod: &str, container: &str) -> LinuxContainerSecurityContext {
        let spec =
            format!(r#"{{"securityContext": {pod}, "containers": [{{"name": "c", "securityContext": {container}}}]}}"#);
        rendered(&spec).linux.unwrap().security_context.unwrap()
    }

    #[test]
    fn the_container_overrules_its_pod() {
        let user = |s: &LinuxContainerSecurityContext| {
            (s.run_as_user.as_ref().map(|v| v.value), s.run_as_group.as_ref().map(|v| v.value))
        };
        let pod = r#"{"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "supplementalGroups": [8, 9]}"#;
        let got = security_of(pod, "{}");
        assert_eq!((user(&got), got.supplemental_groups), ((Some(5), Some(6)), vec![7, 8, 9]));
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
        let armor = security_of(r#"{"appArmorProfile": {"type": "RuntimeDefault"}}"#, "{}").apparmor.unwrap();
        assert_eq!(armor.profile_type(), ProfileType::RuntimeDefault);
        let label = security_of("{}", r#"{"seLinuxOptions": {"level": "s0:c1"}}"#).selinux_options.unwrap();
        assert_eq!(label.level, "s0:c1");
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
            let options = namespaces(&pod(spec));
            (options.network(), options.ipc(), options.pid())
        };
        assert_eq!(own(r#"{"containers": []}"#), (Pod, Pod, Container));
        assert_eq!(
            own(r#"{"containers": [], "hostNetwork": true, "hostIPC": true, "hostPID": true}"#),
            (Node, Node, Node)
        );
        assert_eq!(own(r#"{"containers": [], "shareProcessNamespace": true}"#), (Pod, Pod, Pod));
        let desired = pod(r#"{"containers": [{"name": "c"}]}"#);
        let looking = security(&desired, &desired.spec().containers[0], Some("id".into()), Path::new("/"));
        let options = looking.unwrap().namespace_options.unwrap();
        assert_eq!((options.pid(), options.target_id.as_str()), (Target, "id"));
    }

    #[test]
    fn a_sandbox_has_names_ports_and_what_its_containers_need() {
        let setting = |domain: &str| SandboxSetting {
            attempt: 2,
            cgroup: "/kubepods/podu".into(),
            log_dir: "/logs".into(),
            dns: Dns::default(),
            cluster_domain: domain.into(),
        };
        let desired = pod_of(json!({"metadata": {"labels": {"app": "a"}, "annotations": {"n": "v"}}, "spec": {
            "subdomain": "sub", "setHostnameAsFQDN": true, "securityContext": {"sysctls": [{"name": "s", "value": "1"}]},
            "containers": [{"name": "c", "securityContext": {"privileged": true}, "ports": [
                {"containerPort": 80}, {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "10.0.0.1"}]}]}}));
        let got = sandbox(&desired, &setting("cluster.local"));
        assert_eq!(got.hostname, "p.sub.d.svc.cluster.local");
        assert_eq!(
            (got.labels["app"].as_str(), got.labels[POD_NAME].as_str(), got.annotations["n"].as_str()),
            ("a", "p", "v")
        );
        assert_eq!(got.port_mappings.len(), 1);
        let port = &got.port_mappings[0];
        assert_eq!(
            (port.protocol(), port.container_port, port.host_port, port.host_ip.as_str()),
            (Protocol::Udp, 53, 5353, "10.0.0.1")
        );
        let linux = got.linux.unwrap();
        assert_eq!((linux.cgroup_parent.as_str(), linux.sysctls["s"].as_str()), ("/kubepods/podu", "1"));
        assert!(linux.security_context.unwrap().privileged);
        let host = sandbox(
            &pod(
                r#"{"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}"#,
            ),
            &setting(""),
        );
        assert_eq!((host.hostname.as_str(), host.port_mappings.len()), ("", 0));
    }

    #[test]
    fn resolvers_follow_the_policy() {
        let host =
            Dns { servers: vec!["9.9.9.9".into()], searches: vec!["corp".into()], options: vec!["rotate".into()] };
        let check = |spec: &str, expected: (&[&str], &[&str], &[&str])| {
            let desired = pod(spec);
            let got = dns(&desired, &["10.96.0.10".to_owned()], "c.l", &host);
            let list = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            assert_eq!(
                (got.servers, got.searches, got.options),
                (list(expected.0), list(expected.1), list(expected.2)),
                "{spec}"
            );
        };
        let cluster: (&[&str], &[&str], &[&str]) =
            (&["10.96.0.10"], &["d.svc.c.l", "svc.c.l", "c.l", "corp"], &["ndots:5"]);
        let of_host: (&[&str], &[&str], &[&str]) = (&["9.9.9.9"], &["corp"], &["rotate"]);
        check(r#"{"containers": []}"#, cluster);
        check(r#"{"containers": [], "hostNetwork": true}"#, of_host);
        check(r#"{"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}"#, cluster);
        check(r#"{"containers": [], "dnsPolicy": "Default"}"#, of_host);
        let own = r#""dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}, {"name": "debug"}]}"#;
        check(
            &format!(r#"{{"containers": [], "dnsPolicy": "None", {own}}}"#),
            (&["1.1.1.1"], &["x"], &["ndots:2", "debug"]),
        );
        check(
            &format!(r#"{{"containers": [], {own}}}"#),
            (&["10.96.0.10", "1.1.1.1"], &["d.svc.c.l", "svc.c.l", "c.l", "corp", "x"], &["ndots:2", "debug"]),
        );
    }
}
