//! Validation of Pods and templates: what is not about one container.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, PodTemplateSpec, Toleration};

use crate::field::{Errors, FieldError, Path};
use crate::kinds::pod::{container, volume};
use crate::kinds::rollout::validate_selector;
use crate::names;
use crate::object_meta::{self, invalid, invalid_at};
use crate::taint;

pub(crate) fn validate(pod: &Pod) -> Errors {
    let path = Path::new("spec");
    match &pod.spec {
        Some(spec) => validate_spec(spec, &path),
        None => vec![FieldError::required(&path.child("containers"), "")],
    }
}

/// A template anywhere; its labels and annotations too.
pub(crate) fn validate_template(template: &PodTemplateSpec, path: &Path) -> Errors {
    let place = path.child("spec");
    let metadata = path.child("metadata");
    let meta = template.metadata.as_ref();
    let mut errors = object_meta::labels(meta.and_then(|m| m.labels.as_ref()), &metadata.child("labels"));
    errors.extend(object_meta::annotations(meta.and_then(|m| m.annotations.as_ref()), &metadata.child("annotations")));
    match &template.spec {
        Some(spec) => {
            errors.extend(validate_spec(spec, &place));
            if spec.ephemeral_containers.as_ref().is_some_and(|l| !l.is_empty()) {
                let detail = "ephemeral containers not allowed in pod template";
                errors.push(FieldError::forbidden(&place.child("ephemeralContainers"), detail));
            }
        }
        None => errors.push(FieldError::required(&place.child("containers"), "")),
    }
    errors
}

fn validate_spec(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let volumes = volume::validate(spec.volumes.as_ref(), &path.child("volumes"), &mut errors);
    let around = container::Around { volumes: &volumes, host_network: spec.host_network == Some(true) };
    errors.extend(validate_containers(spec, &around, path));
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    let restart = word(&spec.restart_policy);
    errors.extend(container::one_of(&restart, &["Always", "Never", "OnFailure"], path, "restartPolicy"));
    errors.extend(validate_dns(spec, path));
    errors.extend(object_meta::labels(spec.node_selector.as_ref(), &path.child("nodeSelector")));
    for (field, name) in [
        ("serviceAccountName", &spec.service_account_name),
        ("nodeName", &spec.node_name),
        ("priorityClassName", &spec.priority_class_name),
        ("runtimeClassName", &spec.runtime_class_name),
    ] {
        if let Some(name) = name.as_deref().filter(|n| !n.is_empty()) {
            errors.extend(invalid_at(path, field, name, names::dns1123_subdomain(name)));
        }
    }
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(name) = name.as_deref().filter(|n| !n.is_empty()) {
            errors.extend(invalid_at(path, field, name, names::dns1123_label(name)));
        }
    }
    if let Some(seconds) = spec.active_deadline_seconds.filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(&path.child("activeDeadlineSeconds"), seconds, detail));
    }
    if let Some(security) = &spec.security_context {
        let ids_of = [
            ("runAsUser", security.run_as_user),
            ("runAsGroup", security.run_as_group),
            ("fsGroup", security.fs_group),
        ];
        errors.extend(ids(&ids_of, &path.child("securityContext")));
    }
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        errors.extend(validate_toleration(toleration, &path.child("tolerations").index(i)));
    }
    if let Some(resources) = &spec.resources {
        errors.extend(container::validate_resources(resources, &path.child("resources")));
    }
    errors.extend(validate_placement(spec, path));
    errors
}

/// User and group ids.
pub(crate) fn ids(list: &[(&str, Option<i64>)], path: &Path) -> Errors {
    let wrong = list.iter().filter_map(|(field, id)| id.map(|id| (field, id)));
    let wrong = wrong.filter(|(_, id)| !(0..=i64::from(i32::MAX)).contains(id));
    let detail = "must be between 0 and 2147483647, inclusive";
    wrong.map(|(field, id)| FieldError::invalid(&path.child(field), id, detail)).collect()
}

fn validate_containers(spec: &PodSpec, around: &container::Around<'_>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    if spec.containers.is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    let mut host_ports = BTreeSet::new();
    for (field, list) in [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ] {
        for (i, one) in list.iter().enumerate() {
            let path = path.child(field).index(i);
            errors.extend(container::validate(one, around, &path));
            if !one.name.is_empty() && !seen.insert(one.name.as_str()) {
                errors.push(FieldError::duplicate(&path.child("name"), &one.name));
            }
            for (i, port) in one.ports.iter().flatten().enumerate().filter(|_| field == "containers") {
                let key = (port.protocol.as_deref(), port.host_ip.as_deref(), port.host_port.unwrap_or(0));
                if key.2 != 0 && !host_ports.insert(key) {
                    let shown = format!("{}/{}/{}", key.0.unwrap_or_default(), key.1.unwrap_or_default(), key.2);
                    errors.push(FieldError::duplicate(&path.child("ports").index(i).child("hostPort"), shown));
                }
            }
            if field == "initContainers" {
                errors.extend(validate_init(one, &path));
            }
        }
    }
    for (i, one) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = path.child("ephemeralContainers").index(i);
        if one.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            errors.extend(invalid_at(&path, "name", &one.name, names::dns1123_label(&one.name)));
        }
        if !one.name.is_empty() && !seen.insert(one.name.as_str()) {
            errors.push(FieldError::duplicate(&path.child("name"), &one.name));
        }
        errors.extend(container::image(one.image.as_deref().unwrap_or_default(), &path.child("image")));
    }
    errors
}

/// Only init containers that stay on have probes and hooks.
fn validate_init(one: &k8s_openapi::api::core::v1::Container, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let sidecar = crate::pod::is_sidecar(one);
    let detail = "may not be set for init containers without restartPolicy=Always";
    for (field, given) in [
        ("lifecycle", one.lifecycle.is_some()),
        ("livenessProbe", one.liveness_probe.is_some()),
        ("readinessProbe", one.readiness_probe.is_some()),
        ("startupProbe", one.startup_probe.is_some()),
    ] {
        if given && !sidecar {
            errors.push(FieldError::forbidden(&path.child(field), detail));
        }
    }
    errors
}

fn validate_dns(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let policy = spec.dns_policy.as_deref().unwrap_or_default();
    let known = &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    errors.extend(container::one_of(policy, known, path, "dnsPolicy"));
    let config = spec.dns_config.as_ref();
    let servers = config.and_then(|c| c.nameservers.as_deref()).unwrap_or_default();
    let place = path.child("dnsConfig");
    if policy == "None" && config.is_none() {
        let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
        errors.push(FieldError::required(&place, detail));
    } else if policy == "None" && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(FieldError::required(&place.child("nameservers"), detail));
    }
    if servers.len() > 3 {
        let detail = "must not have more than 3 nameservers";
        errors.push(FieldError::invalid(&place.child("nameservers"), servers, detail));
    }
    let bad = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
    for (i, server) in servers.iter().enumerate().filter(|(_, s)| s.parse::<IpAddr>().is_err()) {
        errors.push(FieldError::invalid(&place.child("nameservers").index(i), server, bad));
    }
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(i);
        if alias.ip.parse::<IpAddr>().is_err() {
            errors.push(FieldError::invalid(&path.child("ip"), &alias.ip, bad));
        }
        for (i, name) in alias.hostnames.iter().flatten().enumerate() {
            errors.extend(invalid(&path.child("hostnames").index(i), name, names::dns1123_subdomain(name)));
        }
    }
    errors
}

fn validate_toleration(toleration: &Toleration, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    if !key.is_empty() {
        errors.extend(invalid_at(path, "key", key, names::qualified_name(key)));
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(&path.child("operator"), operator, detail));
    }
    if toleration.toleration_seconds.is_some() && effect != taint::NO_EXECUTE {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(&path.child("effect"), effect, detail));
    }
    match operator {
        "" | "Equal" => errors.extend(invalid_at(path, "operator", value, names::label_value(value))),
        "Exists" if !value.is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(&path.child("operator"), toleration, detail));
        }
        "Exists" => {}
        other => errors.push(FieldError::not_supported(&path.child("operator"), other, &["Equal", "Exists"])),
    }
    let effects = &[taint::NO_SCHEDULE, taint::PREFER_NO_SCHEDULE, taint::NO_EXECUTE];
    if !effect.is_empty() && !effects.contains(&effect) {
        errors.push(FieldError::not_supported(&path.child("effect"), effect, effects));
    }
    errors
}

fn validate_placement(spec: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, spread) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = path.child("topologySpreadConstraints").index(i);
        if spread.max_skew <= 0 {
            errors.push(FieldError::invalid(&path.child("maxSkew"), spread.max_skew, "must be greater than zero"));
        }
        if spread.topology_key.is_empty() {
            errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
        }
        let known = &["DoNotSchedule", "ScheduleAnyway"];
        if !known.contains(&spread.when_unsatisfiable.as_str()) {
            let place = path.child("whenUnsatisfiable");
            errors.push(FieldError::not_supported(&place, &spread.when_unsatisfiable, known));
        }
    }
    let Some(affinity) = &spec.affinity else { return errors };
    let path = path.child("affinity");
    let node = affinity.node_affinity.as_ref();
    if let Some(required) = node.and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref()) {
        let path = path.child("nodeAffinity").child("requiredDuringSchedulingIgnoredDuringExecution");
        let path = path.child("nodeSelectorTerms");
        if required.node_selector_terms.is_empty() {
            errors.push(FieldError::required(&path, "must have at least one node selector term"));
        }
    }
    let pods = affinity.pod_affinity.as_ref().map(|a| {
        (
            "podAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let anti = affinity.pod_anti_affinity.as_ref().map(|a| {
        (
            "podAntiAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    for (field, required, preferred) in [pods, anti].into_iter().flatten() {
        let path = path.child(field);
        let place = path.child("requiredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in required.iter().flatten().enumerate() {
            errors.extend(affinity_term(term, &place.index(i)));
        }
        let place = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, weighted) in preferred.iter().flatten().enumerate() {
            let place = place.index(i);
            if !(1..=100).contains(&weighted.weight) {
                errors.push(FieldError::invalid(&place.child("weight"), weighted.weight, "must be in the range 1-100"));
            }
            errors.extend(affinity_term(&weighted.pod_affinity_term, &place.child("podAffinityTerm")));
        }
    }
    errors
}

fn affinity_term(term: &PodAffinityTerm, path: &Path) -> Errors {
    let mut errors = Errors::new();
    errors.extend(term.label_selector.iter().flat_map(|s| validate_selector(s, &path.child("labelSelector"))));
    let place = path.child("topologyKey");
    if term.topology_key.is_empty() {
        errors.push(FieldError::required(&place, "can not be empty"));
    } else {
        errors.extend(invalid(&place, &term.topology_key, names::qualified_name(&term.topology_key)));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::defaults;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(spec: Value, expected: &[&str]) {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        defaults::pod(&mut pod);
        let errors: Vec<String> = validate(&pod).iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), expected.len(), "{errors:#?}");
        for (error, start) in errors.iter().zip(expected) {
            assert!(error.starts_with(start), "{error:?} does not start with {start:?}");
        }
    }

    #[test]
    fn specs() {
        let one = |fields: Value| {
            let mut container = json!({"name": "c", "image": "i"});
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"containers": [container]})
        };
        check(one(json!({})), &[]);
        check(json!({"containers": []}), &["spec.containers: Required value"]);
        check(
            one(json!({"name": "A"})),
            &["spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label"],
        );
        check(one(json!({"image": ""})), &["spec.containers[0].image: Required value"]);
        check(
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            &["spec.containers[1].name: Duplicate value: \"c\""],
        );
        check(
            one(json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}]})),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""],
        );
        check(
            one(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            &[
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        );
        check(
            one(json!({"resources": {"limits": {"gpu": "1"}}})),
            &[
                "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
                "spec.containers[0].resources.requests[gpu]: Invalid value",
            ],
        );
        check(
            one(json!({"imagePullPolicy": "x"})),
            &[
                "spec.containers[0].imagePullPolicy: Unsupported value: \"x\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        );
        check(
            one(json!({"ports": [{"containerPort": 0}]})),
            &["spec.containers[0].ports[0].containerPort: Required value"],
        );
        check(
            one(json!({"livenessProbe": {}})),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        );
        let mut odd = one(json!({}));
        odd["restartPolicy"] = json!("Sometimes");
        odd["tolerations"] = json!([{"key": "a", "operator": "Exists", "value": "b"}]);
        check(
            odd,
            &["spec.restartPolicy: Unsupported value: \"Sometimes\"", "spec.tolerations[0].operator: Invalid value"],
        );
    }
}
