//! Validation of one container: names, environment, ports, mounts, probes, resources.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EnvVarSource, Lifecycle, LifecycleHandler, Probe, ResourceRequirements,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::field::{Errors, FieldError, Path};
use crate::kinds::pod::volume::relative_path;
use crate::names;
use crate::object_meta::{invalid, invalid_at};
use crate::quantity::Quantity;

/// What a container may refer to.
pub(crate) struct Around<'a> {
    pub volumes: &'a BTreeSet<&'a str>,
    pub host_network: bool,
}

pub(crate) fn validate(container: &Container, around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if container.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        errors.extend(invalid_at(path, "name", &container.name, names::dns1123_label(&container.name)));
    }
    errors.extend(image(container.image.as_deref().unwrap_or_default(), &path.child("image")));
    errors.extend(policies(container, path));
    errors.extend(ports(container.ports.as_deref().unwrap_or_default(), around.host_network, &path.child("ports")));
    errors.extend(environment(container, path));
    errors.extend(mounts(container.volume_mounts.as_deref().unwrap_or_default(), around, &path.child("volumeMounts")));
    if let Some(resources) = &container.resources {
        errors.extend(validate_resources(resources, &path.child("resources")));
    }
    for (field, one, must_be_one) in [
        ("livenessProbe", &container.liveness_probe, true),
        ("readinessProbe", &container.readiness_probe, false),
        ("startupProbe", &container.startup_probe, true),
    ] {
        errors.extend(one.iter().flat_map(|p| probe(p, must_be_one, &path.child(field))));
    }
    errors.extend(container.lifecycle.iter().flat_map(|l| lifecycle(l, &path.child("lifecycle"))));
    if let Some(security) = &container.security_context {
        let path = path.child("securityContext");
        if security.privileged == Some(true) && security.allow_privilege_escalation == Some(false) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(&path, security, detail));
        }
        errors.extend(super::validate::ids(
            &[("runAsUser", security.run_as_user), ("runAsGroup", security.run_as_group)],
            &path,
        ));
    }
    errors
}

pub(crate) fn image(image: &str, path: &Path) -> Errors {
    if image.is_empty() {
        vec![FieldError::required(path, "")]
    } else if image.trim() != image {
        vec![FieldError::invalid(path, image, "must not have leading or trailing whitespace")]
    } else {
        Errors::new()
    }
}

fn policies(container: &Container, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value, known) in [
        (
            "terminationMessagePolicy",
            container.termination_message_policy.as_deref(),
            &["FallbackToLogsOnError", "File"][..],
        ),
        ("imagePullPolicy", container.image_pull_policy.as_deref(), &["Always", "IfNotPresent", "Never"][..]),
    ] {
        errors.extend(one_of(value.unwrap_or_default(), known, path, field));
    }
    if let Some(policy) = container.restart_policy.as_deref() {
        errors.extend(one_of(policy, &["Always", "Never", "OnFailure"], path, "restartPolicy"));
    }
    errors
}

/// A word that must be given and known.
pub(crate) fn one_of(value: &str, known: &[&str], path: &Path, field: &str) -> Option<FieldError> {
    match value {
        "" => Some(FieldError::required(&path.child(field), "")),
        word if known.contains(&word) => None,
        other => Some(FieldError::not_supported(&path.child(field), other, known)),
    }
}

fn ports(list: &[ContainerPort], host_network: bool, path: &Path) -> Errors {
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
        if host != 0 {
            for wrong in names::port_number(host) {
                errors.push(FieldError::invalid(&path.child("hostPort"), host, &wrong));
            }
            if host_network && host != port.container_port {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&path.child("hostPort"), host, detail));
            }
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        errors.extend(one_of(protocol, &["SCTP", "TCP", "UDP"], &path, "protocol"));
    }
    errors
}

fn environment(container: &Container, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let path = path.child("env").index(i);
        if variable.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            errors.extend(invalid_at(&path, "name", &variable.name, names::env_name(&variable.name)));
        }
        if let Some(source) = &variable.value_from {
            errors.extend(env_source(variable, source, &path.child("valueFrom")));
        }
    }
    for (i, source) in container.env_from.iter().flatten().enumerate() {
        let path = path.child("envFrom").index(i);
        if let Some(prefix) = source.prefix.as_deref().filter(|p| !p.is_empty()) {
            errors.extend(invalid_at(&path, "prefix", prefix, names::env_name(prefix)));
        }
        match (&source.config_map_ref, &source.secret_ref) {
            (None, None) => {
                let detail = "must specify one of: `configMapRef` or `secretRef`";
                errors.push(FieldError::invalid(&path, "", detail));
            }
            (Some(_), Some(_)) => {
                let detail = "may not have more than one field specified at a time";
                errors.push(FieldError::invalid(&path, "", detail));
            }
            (Some(map), None) if map.name.is_empty() => {
                errors.push(FieldError::required(&path.child("configMapRef").child("name"), ""));
            }
            (None, Some(secret)) if secret.name.is_empty() => {
                errors.push(FieldError::required(&path.child("secretRef").child("name"), ""));
            }
            _ => {}
        }
    }
    errors
}

/// The fields of its Pod that a variable can show.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn env_source(variable: &EnvVar, source: &EnvVarSource, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let given = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    match given.iter().filter(|g| **g).count() {
        0 => {
            let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            errors.push(FieldError::invalid(path, "", detail));
        }
        1 => {}
        _ => errors.push(FieldError::invalid(path, "", "may not have more than one field specified at a time")),
    }
    if variable.value.as_deref().is_some_and(|v| !v.is_empty()) {
        errors.push(FieldError::invalid(path, "", "may not be specified when `value` is not empty"));
    }
    if let Some(field) = &source.field_ref {
        let place = path.child("fieldRef").child("fieldPath");
        let name = field.field_path.as_str();
        let keyed = name.starts_with("metadata.labels['") || name.starts_with("metadata.annotations['");
        if name.is_empty() {
            errors.push(FieldError::required(&place, ""));
        } else if !keyed && !ENV_FIELDS.contains(&name) {
            errors.push(FieldError::not_supported(&place, name, ENV_FIELDS));
        }
    }
    for (field, name, key) in [
        (
            "configMapKeyRef",
            source.config_map_key_ref.as_ref().map(|r| &r.name),
            source.config_map_key_ref.as_ref().map(|r| &r.key),
        ),
        (
            "secretKeyRef",
            source.secret_key_ref.as_ref().map(|r| &r.name),
            source.secret_key_ref.as_ref().map(|r| &r.key),
        ),
    ] {
        let path = path.child(field);
        if name.is_some_and(String::is_empty) {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        match key {
            Some(key) if key.is_empty() => errors.push(FieldError::required(&path.child("key"), "")),
            Some(key) => errors.extend(invalid_at(&path, "key", key, names::config_key(key))),
            None => {}
        }
    }
    errors
}

fn mounts(list: &[VolumeMount], around: &Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, mount) in list.iter().enumerate() {
        let path = path.index(i);
        if mount.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        if mount.mount_path.is_empty() {
            errors.push(FieldError::required(&path.child("mountPath"), ""));
        }
        if !mount.name.is_empty() && !around.volumes.contains(mount.name.as_str()) {
            errors.push(FieldError::not_found(&path.child("name"), &mount.name));
        }
        if !seen.insert(mount.mount_path.as_str()) {
            errors.push(FieldError::invalid(&path.child("mountPath"), &mount.mount_path, "must be unique"));
        }
        let sub = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        let (plain, expanded) = (sub(&mount.sub_path), sub(&mount.sub_path_expr));
        if let (Some(_), Some(expanded)) = (&plain, &expanded) {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(&path.child("subPathExpr"), expanded, detail));
        }
        for (field, value) in [("subPath", plain), ("subPathExpr", expanded)] {
            errors.extend(value.iter().flat_map(|v| relative_path(v, &path.child(field))));
        }
    }
    errors
}

/// Requests and limits of a container or a whole Pod.
pub(crate) fn validate_resources(resources: &ResourceRequirements, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let parse = |text: &Text| text.0.parse::<Quantity>().ok();
    let empty = BTreeMap::new();
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    for (side, amounts) in [("limits", limits), ("requests", requests)] {
        for (name, text) in amounts {
            let path = path.child(side).key(name);
            errors.extend(resource_name(name, &path));
            match parse(text) {
                Some(amount) if amount.is_negative() => {
                    errors.push(FieldError::invalid(&path, &text.0, "must be greater than or equal to 0"));
                }
                Some(amount) if !amount.is_integer() && must_be_whole(name) => {
                    errors.push(FieldError::invalid(&path, &text.0, "must be an integer"));
                }
                _ => {}
            }
        }
    }
    for (name, text) in requests {
        if let (Some(request), Some(limit)) = (parse(text), limits.get(name).and_then(parse)) {
            if request > limit {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(&path.child("requests"), &text.0, &detail));
            } else if request != limit && !overcommits(name) {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(&path.child("requests"), &text.0, &detail));
            }
        } else if !overcommits(name) {
            let detail = "Limit must be set for non overcommitable resources";
            errors.push(FieldError::required(&path.child("limits").key(name), detail));
        }
    }
    errors
}

fn standard(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// More of it can be promised than there is.
fn overcommits(name: &str) -> bool {
    !name.contains('/') && !name.starts_with("hugepages-")
}

fn must_be_whole(name: &str) -> bool {
    name.contains('/')
}

fn resource_name(name: &str, path: &Path) -> Errors {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        return invalid(path, name, wrong).collect();
    }
    if name.contains('/') || standard(name) {
        return Errors::new();
    }
    vec![FieldError::invalid(path, name, "must be a standard resource for containers")]
}

fn probe(probe: &Probe, must_be_one: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let given: Vec<&str> = [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("grpc", probe.grpc.is_some()),
    ]
    .into_iter()
    .filter_map(|(field, is)| is.then_some(field))
    .collect();
    errors.extend(one_handler(&given, path));
    if probe.exec.as_ref().is_some_and(|e| e.command.as_ref().is_none_or(Vec::is_empty)) {
        errors.push(FieldError::required(&path.child("exec").child("command"), ""));
    }
    if let Some(get) = &probe.http_get {
        errors.extend(port(&get.port, &path.child("httpGet").child("port")));
        let scheme = get.scheme.as_deref().unwrap_or_default();
        errors.extend(one_of(scheme, &["HTTP", "HTTPS"], &path.child("httpGet"), "scheme"));
        if get.path.as_deref().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&path.child("httpGet").child("path"), ""));
        }
    }
    if let Some(socket) = &probe.tcp_socket {
        errors.extend(port(&socket.port, &path.child("tcpSocket").child("port")));
    }
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        errors.extend(crate::kinds::rollout::not_negative(&path.child(field), value));
    }
    if let Some(threshold) = probe.success_threshold.filter(|t| must_be_one && *t != 1) {
        errors.push(FieldError::invalid(&path.child("successThreshold"), threshold, "must be 1"));
    }
    errors
}

fn one_handler(given: &[&str], path: &Path) -> Errors {
    match given {
        [] => vec![FieldError::required(path, "must specify a handler type")],
        [_] => Errors::new(),
        [_, more @ ..] => {
            let detail = "may not specify more than 1 handler type";
            more.iter().map(|field| FieldError::forbidden(&path.child(field), detail)).collect()
        }
    }
}

fn port(port: &IntOrString, path: &Path) -> Errors {
    match port {
        IntOrString::Int(n) => names::port_number(*n).iter().map(|w| FieldError::invalid(path, n, w)).collect(),
        IntOrString::String(name) => invalid(path, name, names::port_name(name)).collect(),
    }
}

fn lifecycle(lifecycle: &Lifecycle, path: &Path) -> Errors {
    let check = |handler: &LifecycleHandler, path: &Path| {
        let given: Vec<&str> = [
            ("exec", handler.exec.is_some()),
            ("httpGet", handler.http_get.is_some()),
            ("tcpSocket", handler.tcp_socket.is_some()),
            ("sleep", handler.sleep.is_some()),
        ]
        .into_iter()
        .filter_map(|(field, is)| is.then_some(field))
        .collect();
        one_handler(&given, path)
    };
    let mut errors = Errors::new();
    errors.extend(lifecycle.post_start.iter().flat_map(|h| check(h, &path.child("postStart"))));
    errors.extend(lifecycle.pre_stop.iter().flat_map(|h| check(h, &path.child("preStop"))));
    errors
}
