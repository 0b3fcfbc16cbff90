//! Validation of containers of all sorts: names, ports, mounts, devices, resources.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerResizePolicy, EphemeralContainer, PodSpec, Volume, VolumeDevice, VolumeMount,
};

use crate::kinds::pod::probe::{self, Which};
use crate::kinds::pod::{environment, resources, security};
use crate::rules::declared_feature::RESTART_ALL_ACTION;
use crate::validation::field::{Errors, FieldError, Path, one_of};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;
use crate::validation::relative_path::{no_backsteps, relative_path};

/// The things that containers may refer to, and the settings of their Pod for all of them.
pub(crate) struct Around<'a> {
    /// The volumes that are valid themselves.
    pub volumes: BTreeMap<&'a str, &'a Volume>,
    /// The names of the Pod's resource claims.
    pub claims: BTreeSet<&'a str>,
    pub spec: &'a PodSpec,
}

impl Around<'_> {
    fn grace(&self) -> Option<i64> {
        self.spec.termination_grace_period_seconds
    }

    fn os(&self) -> Option<&str> {
        self.spec.os.as_ref().map(|os| os.name.as_str())
    }
}

pub(crate) fn validate_main(list: &[Container], around: &Around<'_>, path: &Path) -> Errors {
    if list.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, one) in list.iter().enumerate() {
        let path = path.index(i);
        errors.extend(validate(one, around, &path));
        if !seen.insert(one.name.as_str()) {
            errors.push(FieldError::duplicate(&path.child("name"), &one.name));
        }
        errors.extend(hooks_and_probes(one, around, &path));
        errors.extend(restart_policy(one, &path));
    }
    errors.extend(host_ports(list, path));
    errors
}

pub(crate) fn validate_init(list: &[Container], around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen: BTreeSet<&str> = around.spec.containers.iter().map(|c| c.name.as_str()).collect();
    for (i, one) in list.iter().enumerate() {
        let place = path.index(i);
        errors.extend(validate(one, around, &place));
        let sidecar = crate::rules::pod::is_sidecar(one);
        if one.restart_policy.is_some() {
            errors.extend(restart_policy(one, &place));
        }
        if seen.contains(one.name.as_str()) {
            errors.push(FieldError::duplicate(&place.child("name"), &one.name));
        } else if !one.name.is_empty() {
            seen.insert(&one.name);
        }
        errors.extend(host_ports(std::slice::from_ref(one), path));
        if sidecar {
            errors.extend(hooks_and_probes(one, around, &place));
            continue;
        }
        for (field, given) in [
            ("lifecycle", one.lifecycle.is_some()),
            ("livenessProbe", one.liveness_probe.is_some()),
            ("readinessProbe", one.readiness_probe.is_some()),
            ("startupProbe", one.startup_probe.is_some()),
        ] {
            if given {
                let detail = "may not be set for init containers without restartPolicy=Always";
                errors.push(FieldError::forbidden(&place.child(field), detail));
            }
        }
    }
    errors
}

fn hooks_and_probes(one: &Container, around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(lifecycle) = &one.lifecycle {
        errors.extend(probe::lifecycle(lifecycle, around.grace(), around.os(), &path.child("lifecycle")));
    }
    for (field, probe, which) in [
        ("livenessProbe", &one.liveness_probe, Which::Liveness),
        ("readinessProbe", &one.readiness_probe, Which::Readiness),
        ("startupProbe", &one.startup_probe, Which::Startup),
    ] {
        errors.extend(probe.iter().flat_map(|p| probe::validate(p, which, &path.child(field))));
    }
    errors
}

/// When a container starts again on its own terms.
fn restart_policy(one: &Container, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let rules = one.restart_policy_rules.as_deref().unwrap_or_default();
    let known = &["Always", "Never", "OnFailure"];
    match one.restart_policy.as_deref() {
        None if rules.is_empty() => return errors,
        None => {
            let detail = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(&path.child("restartPolicy"), detail));
        }
        Some(policy) if !known.contains(&policy) => {
            errors.push(FieldError::not_supported(&path.child("restartPolicy"), policy, known));
        }
        Some(_) => {}
    }
    if rules.len() > 20 {
        errors.push(FieldError::too_long(&path.child("restartPolicyRules"), 20));
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("restartPolicyRules").index(i);
        if !matches!(rule.action.as_str(), "Restart" | RESTART_ALL_ACTION) {
            errors.push(FieldError::not_supported(&path.child("action"), &rule.action, &["Restart"]));
        }
        let place = path.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.push(FieldError::required(&place, "must be specified"));
            continue;
        };
        if !matches!(codes.operator.as_str(), "In" | "NotIn") {
            errors.push(FieldError::not_supported(&place.child("operator"), &codes.operator, &["In", "NotIn"]));
        }
        if codes.values.as_ref().is_some_and(|v| v.len() > 255) {
            errors.push(FieldError::too_long(&place.child("values"), 255));
        }
    }
    errors
}

/// The rules for every container: main, init or ephemeral.
fn validate(one: &Container, around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if one.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        errors.extend(invalid_at(path, "name", &one.name, names::dns1123_label(&one.name)));
    }
    if one.image.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    }
    let policy = one.termination_message_policy.as_deref().unwrap_or_default();
    errors.extend(one_of(policy, &["File", "FallbackToLogsOnError"], path, "terminationMessagePolicy"));
    errors.extend(ports(one.ports.as_deref().unwrap_or_default(), &path.child("ports")));
    errors.extend(environment::variables(one.env.as_deref().unwrap_or_default(), &path.child("env")));
    errors.extend(environment::sources(one.env_from.as_deref().unwrap_or_default(), &path.child("envFrom")));
    errors.extend(mounts(one, around, &path.child("volumeMounts")));
    errors.extend(devices(one, around, &path.child("volumeDevices")));
    let policy = one.image_pull_policy.as_deref().unwrap_or_default();
    errors.extend(one_of(policy, &["Always", "IfNotPresent", "Never"], path, "imagePullPolicy"));
    if let Some(needs) = &one.resources {
        errors.extend(resources::of_container(needs, &around.claims, &path.child("resources")));
    }
    let policies = one.resize_policy.as_deref().unwrap_or_default();
    errors.extend(resize_policies(policies, around, &path.child("resizePolicy")));
    if let Some(context) = &one.security_context {
        let own_users = around.spec.host_users == Some(false);
        errors.extend(security::of_container(context, own_users, &path.child("securityContext")));
    }
    errors
}

/// An image without spaces around it, which templates may have.
pub(crate) fn trimmed_images(list: &[Container], path: &Path) -> Errors {
    list.iter().enumerate().filter_map(|(i, c)| trimmed_image(c.image.as_deref(), &path.index(i))).collect()
}

fn trimmed_image(image: Option<&str>, path: &Path) -> Option<FieldError> {
    let image = image.filter(|image| image.trim() != *image)?;
    Some(FieldError::invalid(&path.child("image"), image, "must not have leading or trailing whitespace"))
}

fn ports(list: &[ContainerPort], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, port) in list.iter().enumerate() {
        let path = path.index(i);
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let wrong = names::port_name(name);
            if wrong.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
            errors.extend(invalid_at(&path, "name", name, wrong));
        }
        if port.container_port == 0 {
            errors.push(FieldError::required(&path.child("containerPort"), ""));
        } else {
            for wrong in names::port_number(port.container_port) {
                errors.push(FieldError::invalid(&path.child("containerPort"), port.container_port, &wrong));
            }
        }
        let host = port.host_port.unwrap_or(0);
        for wrong in names::port_number(host).iter().filter(|_| host != 0) {
            errors.push(FieldError::invalid(&path.child("hostPort"), host, wrong));
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        errors.extend(one_of(protocol, &["SCTP", "TCP", "UDP"], &path, "protocol"));
    }
    errors
}

/// No two ports of these containers take the same port of the host.
fn host_ports(list: &[Container], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut taken = BTreeSet::new();
    for (i, container) in list.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let key = (port.protocol.as_deref(), port.host_ip.as_deref(), port.host_port.unwrap_or(0));
            if key.2 != 0 && !taken.insert(key) {
                let shown = format!("{}/{}/{}", key.0.unwrap_or_default(), key.1.unwrap_or_default(), key.2);
                let place = path.index(i).child("ports").index(j).child("hostPort");
                errors.push(FieldError::duplicate(&place, shown));
            }
        }
    }
    errors
}

fn mounts(one: &Container, around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    let devices = || one.volume_devices.iter().flatten();
    let device_names: BTreeSet<&str> = devices().map(|d| d.name.as_str()).collect();
    let device_paths: BTreeSet<&str> = devices().map(|d| d.device_path.as_str()).collect();
    for (i, mount) in one.volume_mounts.iter().flatten().enumerate() {
        let place = path.index(i);
        if mount.name.is_empty() {
            errors.push(FieldError::required(&place.child("name"), ""));
        }
        if !around.volumes.contains_key(mount.name.as_str()) {
            errors.push(FieldError::not_found(&place.child("name"), &mount.name));
        }
        if mount.mount_path.is_empty() {
            errors.push(FieldError::required(&place.child("mountPath"), ""));
        }
        if !seen.insert(mount.mount_path.as_str()) {
            errors.push(FieldError::invalid(&place.child("mountPath"), &mount.mount_path, "must be unique"));
        }
        if device_names.contains(mount.name.as_str()) {
            let detail = "must not already exist in volumeDevices";
            errors.push(FieldError::invalid(&place.child("name"), &mount.name, detail));
        }
        if device_paths.contains(mount.mount_path.as_str()) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(&place.child("mountPath"), &mount.mount_path, detail));
        }
        let given = |text: &'_ Option<String>| text.clone().filter(|t| !t.is_empty());
        let (plain, expanded) = (given(&mount.sub_path), given(&mount.sub_path_expr));
        errors.extend(plain.iter().flat_map(|v| relative_path(v, &path.child("subPath"))));
        if let (Some(_), Some(expanded)) = (&plain, &expanded) {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(&place.child("subPathExpr"), expanded, detail));
        }
        errors.extend(expanded.iter().flat_map(|v| relative_path(v, &path.child("subPathExpr"))));
        errors.extend(propagation(mount, one, &path.child("mountPropagation")));
        errors.extend(recursive_read_only(mount, &path.child("recursiveReadOnly")));
    }
    errors
}

fn propagation(mount: &VolumeMount, container: &Container, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let Some(mode) = mount.mount_propagation.as_deref() else { return errors };
    let known = &["Bidirectional", "HostToContainer", "None"];
    if !known.contains(&mode) {
        errors.push(FieldError::not_supported(path, mode, known));
    }
    let privileged = container.security_context.as_ref().and_then(|s| s.privileged) == Some(true);
    if mode == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(path, detail));
    }
    errors
}

fn recursive_read_only(mount: &VolumeMount, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.push(FieldError::forbidden(path, "may only be specified when readOnly is true"));
            }
            if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(path, detail));
            }
        }
        Some(other) => {
            errors.push(FieldError::not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]));
        }
    }
    errors
}

fn devices(one: &Container, around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (mut seen_names, mut seen_paths) = (BTreeSet::new(), BTreeSet::new());
    if one.volume_devices.as_ref().is_none_or(Vec::is_empty) {
        return errors;
    }
    let mounts = || one.volume_mounts.iter().flatten();
    let mount_names: BTreeSet<&String> = mounts().map(|m| &m.name).collect();
    let mount_paths: BTreeSet<&String> = mounts().map(|m| &m.mount_path).collect();
    for (i, VolumeDevice { name, device_path }) in one.volume_devices.iter().flatten().enumerate() {
        let path = path.index(i);
        let volume = around.volumes.get(name.as_str());
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        if seen_names.contains(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, "must be unique"));
        }
        match volume {
            Some(v) if v.persistent_volume_claim.is_none() && v.ephemeral.is_none() => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(&path.child("name"), name, detail));
            }
            Some(_) => {}
            None => errors.push(FieldError::not_found(&path.child("name"), name)),
        }
        if device_path.is_empty() {
            errors.push(FieldError::required(&path.child("devicePath"), ""));
        }
        if seen_paths.contains(device_path) {
            errors.push(FieldError::invalid(&path.child("devicePath"), device_path, "must be unique"));
        }
        if !device_path.is_empty() && no_backsteps(device_path, &path).is_some() {
            let detail = "can not contain backsteps ('..')";
            errors.push(FieldError::invalid(&path.child("devicePath"), device_path, detail));
        } else {
            seen_paths.insert(device_path);
        }
        if mount_names.contains(name) {
            let detail = "must not already exist in volumeMounts";
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
        if mount_paths.contains(device_path) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(&path.child("devicePath"), device_path, detail));
        }
        if !name.is_empty() {
            seen_names.insert(name);
        }
    }
    errors
}

fn resize_policies(list: &[ContainerResizePolicy], around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, policy) in list.iter().enumerate() {
        if !seen.insert(&policy.resource_name) {
            errors.push(FieldError::duplicate(&path.index(i), &policy.resource_name));
        }
        for (word, known) in [
            (&policy.resource_name, &["cpu", "memory"]),
            (&policy.restart_policy, &["NotRequired", "RestartContainer"]),
        ] {
            match word.as_str() {
                "" => errors.push(FieldError::required(path, "")),
                word if !known.contains(&word) => errors.push(FieldError::not_supported(path, word, known)),
                _ => {}
            }
        }
        if around.spec.restart_policy.as_deref() == Some("Never") && policy.restart_policy != "NotRequired" {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(path, &policy.restart_policy, detail));
        }
    }
    errors
}

/// Debugging containers: like the others, with fewer fields.
pub(crate) fn validate_ephemeral(list: &[EphemeralContainer], around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let spec = around.spec;
    let others = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let others: BTreeSet<&str> = others.map(|c| c.name.as_str()).collect();
    let mut seen = others.clone();
    for (i, one) in list.iter().enumerate() {
        let path = path.index(i);
        errors.extend(validate(&as_container(one), around, &path));
        errors.extend(trimmed_image(one.image.as_deref(), &path));
        if !seen.insert(&one.name) {
            errors.push(FieldError::duplicate(&path.child("name"), &one.name));
        }
        let target = one.target_container_name.as_deref().unwrap_or_default();
        if !target.is_empty() && !others.contains(target) {
            errors.push(FieldError::not_found(&path.child("targetContainerName"), target));
        }
        errors.extend(not_for_ephemeral(one, &path));
    }
    errors
}

/// The part of a debugging container that it has in common with the others.
fn as_container(one: &EphemeralContainer) -> Container {
    Container {
        name: one.name.clone(),
        image: one.image.clone(),
        termination_message_policy: one.termination_message_policy.clone(),
        ports: one.ports.clone(),
        env: one.env.clone(),
        env_from: one.env_from.clone(),
        volume_mounts: one.volume_mounts.clone(),
        volume_devices: one.volume_devices.clone(),
        image_pull_policy: one.image_pull_policy.clone(),
        resources: one.resources.clone(),
        resize_policy: one.resize_policy.clone(),
        security_context: one.security_context.clone(),
        ..Container::default()
    }
}

fn not_for_ephemeral(one: &EphemeralContainer, path: &Path) -> Errors {
    let detail = "cannot be set for an Ephemeral Container";
    let needs = one.resources.as_ref();
    let given = [
        ("ports", one.ports.as_ref().is_some_and(|l| !l.is_empty())),
        ("resources", needs.is_some_and(|r| r.limits.is_some() || r.requests.is_some() || r.claims.is_some())),
        ("resizePolicy", one.resize_policy.as_ref().is_some_and(|l| !l.is_empty())),
        ("restartPolicy", one.restart_policy.is_some()),
        ("restartPolicyRules", one.restart_policy_rules.as_ref().is_some_and(|l| !l.is_empty())),
        ("livenessProbe", one.liveness_probe.is_some()),
        ("readinessProbe", one.readiness_probe.is_some()),
        ("startupProbe", one.startup_probe.is_some()),
        ("lifecycle", one.lifecycle.is_some()),
    ];
    let given = given.into_iter().filter(|(_, given)| *given);
    let mut errors: Errors = given.map(|(field, _)| FieldError::forbidden(&path.child(field), detail)).collect();
    for (i, mount) in one.volume_mounts.iter().flatten().enumerate() {
        for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if value.as_deref().is_some_and(|v| !v.is_empty()) {
                errors.push(FieldError::forbidden(&path.child("volumeMounts").index(i).child(field), detail));
            }
        }
    }
    errors
}
