//! Sandbox and container configurations for CRI, from a Pod. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_cri::v1::{
    CdiDevice, ContainerMetadata, DnsConfig, ImageSpec, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig,
    PodSandboxMetadata, PortMapping, Protocol, SecurityProfile, security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::Container;
use runtime::container::{ContainerConfig, Mount, signal};

use crate::{
    devices::given::Given,
    pod::{
        desired::{
            CONTAINER_HASH, CONTAINER_NAME, DesiredPod, GRACE, MESSAGE_PATH, MESSAGE_POLICY, POD_NAME, POD_NAMESPACE,
            POD_UID, RESTART_COUNT, hash,
        },
        spec::{
            env::Budget,
            names::{Dns, hostname},
            security::{Seccomp, groups_policy, namespaces, number, security, selinux},
        },
    },
    users::{held, range::Ids},
};

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
    /// The groups of its processes.
    pub groups: Vec<i64>,
    /// The amounts of its containers together, and those that it takes beside them.
    pub amounts: [LinuxContainerResources; 2],
    /// Its users, if they are none of the node's.
    pub users: Option<Ids>,
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
    let [resources, overhead] = setting.amounts.clone();
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
                namespace_options: Some(namespaces(desired, setting.users)),
                selinux_options: context.se_linux_options.as_ref().map(selinux),
                run_as_user: number(context.run_as_user),
                // Engines must refuse a group without a user, and here there is no image that could say one.
                run_as_group: number(context.run_as_group.filter(|_| context.run_as_user.is_some())),
                supplemental_groups: setting.groups.clone(),
                supplemental_groups_policy: groups_policy(desired) as i32,
                privileged,
                // The pause program needs no more than the default profile allows.
                seccomp: Some(SecurityProfile {
                    profile_type: ProfileType::RuntimeDefault as i32,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            resources: Some(resources),
            overhead: Some(overhead),
        }),
        ..Default::default()
    }
}

pub struct ContainerSetting {
    pub restarts: i32,
    pub image: String,
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    /// The part of the configuration that devices bring along.
    pub given: Given,
    pub resources: LinuxContainerResources,
    /// The container (by id) whose processes it sees.
    pub target: Option<String>,
    pub seccomp: Seccomp,
    /// Its own word about the signal that ends it counts.
    pub stop_signals: bool,
    /// The groups of its processes.
    pub groups: Vec<i64>,
    /// Its users, if they are none of the node's.
    pub users: Option<Ids>,
}

/// Where a container's log lies below the Pod's log folder.
pub fn log_path(container: &str, restarts: i32) -> String {
    format!("{container}/{restarts}.log")
}

/// On the disk are the users of the Pod as it sees them; the kernel maps them on the way.
fn mapped(mount: Mount, users: Option<Ids>) -> Mount {
    match users {
        Some(ids) => Mount { uid_mappings: held::mapping(ids), gid_mappings: held::mapping(ids), ..mount },
        None => mount,
    }
}

/// The number of the signal that ends a container; 0 where it says nothing of that.
fn stop_signal(container: &Container) -> Result<i32, String> {
    let Some(name) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref()) else {
        return Ok(0);
    };
    signal(name).ok_or_else(|| format!("unknown stop signal \"{name}\""))
}

/// The container for the engine, or the words of the CreateContainerConfigError.
pub fn container(
    desired: &DesiredPod,
    container: &Container,
    setting: ContainerSetting,
) -> Result<ContainerConfig, String> {
    let Given { envs, mounts, devices, annotations: noted, cdi } = setting.given;
    // The container's own word comes last: it counts.
    let env: Vec<(String, String)> = envs.into_iter().chain(setting.env).collect();
    let known: BTreeMap<String, String> = env.iter().cloned().collect();
    let mut budget = Budget::beside(&env);
    let mut expanded = |list: &Option<Vec<String>>| budget.words(list.as_deref().unwrap_or_default(), &known);
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let rights = security(desired, container, setting.target, &setting.seccomp, setting.users)?;
    let security = LinuxContainerSecurityContext { supplemental_groups: setting.groups, ..rights };
    let mut all_labels = labels(desired);
    all_labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    let text = |v: &Option<String>, default: &str| v.clone().unwrap_or_else(|| default.to_owned());
    let own = [
        (CONTAINER_HASH.to_owned(), hash(container)),
        (RESTART_COUNT.to_owned(), setting.restarts.to_string()),
        (MESSAGE_PATH.to_owned(), text(&container.termination_message_path, "/dev/termination-log")),
        (MESSAGE_POLICY.to_owned(), text(&container.termination_message_policy, "File")),
        (GRACE.to_owned(), desired.spec().termination_grace_period_seconds.unwrap_or(30).to_string()),
    ];
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: setting.restarts.cast_unsigned() }),
        image: Some(ImageSpec {
            image: setting.image,
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: env.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        mounts: mounts.into_iter().chain(setting.mounts).map(|mount| mapped(mount, setting.users)).collect(),
        devices,
        cdi_devices: cdi.into_iter().map(|name| CdiDevice { name }).collect(),
        labels: all_labels,
        annotations: noted.into_iter().chain(own).collect(),
        log_path: log_path(&container.name, setting.restarts),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig { resources: Some(setting.resources), security_context: Some(security) }),
        stop_signal: if setting.stop_signals { stop_signal(container)? } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{pod, pod_of};
    use json::json;
    use k8s_cri::v1::{Device, NamespaceMode, SupplementalGroupsPolicy};

    fn rendered(spec: &str) -> ContainerConfig {
        let desired = pod(spec);
        let setting = ContainerSetting {
            restarts: 3,
            image: "sha256:1".into(),
            env: vec![("A".into(), "x".into()), ("B".into(), "y".into())],
            mounts: Vec::new(),
            given: Given::default(),
            resources: LinuxContainerResources::default(),
            target: None,
            seccomp: Seccomp::default(),
            stop_signals: true,
            groups: vec![7],
            users: None,
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
        let (image, user_specified_image) = ("sha256:1".to_owned(), "i".to_owned());
        let image = ImageSpec { image, user_specified_image, ..Default::default() };
        assert_eq!((got.metadata.unwrap().attempt, got.image), (3, Some(image)));
        assert_eq!(got.stop_signal, 0);
        let signal = |signal: &str| {
            let spec = format!(r#"{{"containers": [{{"name": "c", "lifecycle": {{"stopSignal": "{signal}"}}}}]}}"#);
            rendered(&spec).stop_signal
        };
        assert_eq!((signal("SIGUSR1"), signal("SIGRTMIN+1")), (29, 36));
        for (name, expected) in [(RESTART_COUNT, "3"), (GRACE, "7"), (MESSAGE_POLICY, "File")] {
            assert_eq!(got.annotations[name], expected, "{name}");
        }
        assert_eq!((got.labels[POD_UID].as_str(), got.labels[CONTAINER_NAME].as_str()), ("u", "c"));
        assert_eq!(got.envs.len(), 2);
    }

    #[test]
    fn what_devices_bring_comes_before_the_containers_own() {
        let desired = pod(r#"{"containers": [{"name": "c", "args": ["$(A) $(D)"]}]}"#);
        let mount = |path: &str| Mount { container_path: path.into(), ..Default::default() };
        let pairs = |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let given = Given {
            envs: pairs(&[("A", "device"), ("D", "d")]),
            mounts: vec![mount("/d")],
            devices: vec![Device { host_path: "/dev/d".into(), ..Default::default() }],
            annotations: pairs(&[("note", "d"), (RESTART_COUNT, "7")]),
            cdi: ["v/c=d".to_owned()].into(),
        };
        let setting = ContainerSetting {
            restarts: 0,
            image: String::new(),
            env: vec![("A".into(), "own".into())],
            mounts: vec![mount("/own")],
            given,
            resources: LinuxContainerResources::default(),
            target: None,
            seccomp: Seccomp::default(),
            stop_signals: true,
            groups: vec![7],
            users: None,
        };
        let got = container(&desired, &desired.spec().containers[0], setting).unwrap();
        let envs: Vec<_> = got.envs.iter().map(|env| format!("{}={}", env.key, env.value)).collect();
        assert_eq!((envs, got.args), (vec!["A=device".into(), "D=d".into(), "A=own".into()], vec!["own d".into()]));
        assert_eq!(got.mounts, [mount("/d"), mount("/own")]);
        assert_eq!(got.linux.unwrap().security_context.unwrap().supplemental_groups, [7]);
        assert_eq!((got.annotations["note"].as_str(), got.annotations[RESTART_COUNT].as_str()), ("d", "0"));
        assert_eq!((got.devices[0].host_path.as_str(), got.cdi_devices[0].name.as_str()), ("/dev/d", "v/c=d"));
    }

    #[test]
    fn users_of_its_own_are_told_of_the_sandbox_the_container_and_each_mount() {
        let desired = pod(r#"{"hostUsers": false, "containers": [{"name": "c"}]}"#);
        let ids = Ids { first: 131_072, length: 65536 };
        let given = Given { mounts: vec![Mount::default()], ..Given::default() };
        let setting = ContainerSetting {
            restarts: 0,
            image: String::new(),
            env: Vec::new(),
            mounts: vec![Mount::default()],
            given,
            resources: LinuxContainerResources::default(),
            target: None,
            seccomp: Seccomp::default(),
            stop_signals: true,
            groups: vec![7],
            users: Some(ids),
        };
        let got = container(&desired, &desired.spec().containers[0], setting).unwrap();
        for mount in &got.mounts {
            assert_eq!((&mount.uid_mappings, &mount.gid_mappings), (&held::mapping(ids), &held::mapping(ids)));
        }
        assert_eq!(got.mounts.len(), 2);
        let options = got.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!(options.userns_options, Some(held::namespace(Some(ids))));
        let setting = SandboxSetting {
            attempt: 0,
            cgroup: String::new(),
            log_dir: String::new(),
            dns: Dns::default(),
            cluster_domain: String::new(),
            groups: Vec::new(),
            amounts: Default::default(),
            users: Some(ids),
        };
        let options = sandbox(&desired, &setting).linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!(options.userns_options, Some(held::namespace(Some(ids))));
        assert_eq!(namespaces(&desired, None).userns_options.unwrap().mode(), NamespaceMode::Node);
    }

    #[test]
    fn a_sandbox_runs_as_its_pod() {
        let check = |context: &str, expected: (Option<i64>, Option<i64>, SupplementalGroupsPolicy)| {
            let setting = SandboxSetting {
                attempt: 0,
                cgroup: String::new(),
                log_dir: String::new(),
                dns: Dns::default(),
                cluster_domain: String::new(),
                groups: Vec::new(),
                amounts: Default::default(),
                users: None,
            };
            let spec = format!(r#"{{"securityContext": {context}, "containers": [{{"name": "c"}}]}}"#);
            let got = sandbox(&pod(&spec), &setting).linux.unwrap().security_context.unwrap();
            let value = |number: &Option<k8s_cri::v1::Int64Value>| number.as_ref().map(|n| n.value);
            let policy = got.supplemental_groups_policy();
            assert_eq!((value(&got.run_as_user), value(&got.run_as_group), policy), expected, "{context}");
        };
        use SupplementalGroupsPolicy::{Merge, Strict};
        check("{}", (None, None, Merge));
        check(r#"{"runAsUser": 0}"#, (Some(0), None, Merge));
        let both = r#"{"runAsUser": 5, "runAsGroup": 6, "supplementalGroupsPolicy": "Strict"}"#;
        check(both, (Some(5), Some(6), Strict));
        check(r#"{"runAsGroup": 6}"#, (None, None, Merge));
    }

    #[test]
    fn a_sandbox_has_names_ports_and_what_its_containers_need() {
        let setting = |domain: &str| SandboxSetting {
            attempt: 2,
            cgroup: "/kubepods/podu".into(),
            log_dir: "/logs".into(),
            dns: Dns::default(),
            cluster_domain: domain.into(),
            groups: vec![7, 8],
            amounts: [2, 3].map(|cpu_shares| LinuxContainerResources { cpu_shares, ..Default::default() }),
            users: None,
        };
        let desired = pod_of(json!({"metadata": {"labels": {"app": "a"}, "annotations": {"n": "v"}}, "spec": {
            "subdomain": "sub", "setHostnameAsFQDN": true,
            "securityContext": {"sysctls": [{"name": "s", "value": "1"}], "seLinuxOptions": {"level": "s0:c1"}},
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
        let context = linux.security_context.unwrap();
        assert_eq!((context.privileged, context.selinux_options.unwrap().level.as_str()), (true, "s0:c1"));
        assert_eq!(
            (context.supplemental_groups, context.seccomp.unwrap().profile_type()),
            (vec![7, 8], ProfileType::RuntimeDefault)
        );
        assert_eq!((linux.resources.unwrap().cpu_shares, linux.overhead.unwrap().cpu_shares), (2, 3));
        let host = sandbox(
            &pod(
                r#"{"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}"#,
            ),
            &setting(""),
        );
        assert_eq!((host.hostname.as_str(), host.port_mappings.len()), ("", 0));
    }
}
