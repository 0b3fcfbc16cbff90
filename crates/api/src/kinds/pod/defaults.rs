//! Defaults of Pods and of the templates that Pods are made from.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EphemeralContainer, HTTPGetAction, Lifecycle, Pod, PodSpec, PodTemplateSpec, Probe, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::kinds::pod::volume;
use crate::rules::image::pull_policy;
use crate::rules::pod::{Resources, requests};

pub(crate) fn unset(text: &Option<String>) -> bool {
    text.as_deref().unwrap_or_default().is_empty()
}

pub(crate) fn fill(text: &mut Option<String>, value: &str) {
    if unset(text) {
        *text = Some(value.to_owned());
    }
}

/// A Pod itself gets a little more than a template: requests that follow from limits, host ports.
pub fn pod(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        requests_from_limits(container);
    }
    pod_level_requests(spec);
    spec.enable_service_links.get_or_insert(true);
    if spec.host_network == Some(true) {
        let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
        for port in containers.flat_map(|c| c.ports.iter_mut().flatten()) {
            if port.host_port.unwrap_or(0) == 0 {
                port.host_port = Some(port.container_port);
            }
        }
    }
    pod_spec(spec);
}

/// Fills in a template, in whichever kind it stands.
pub fn template(template: &mut PodTemplateSpec) {
    template.metadata.get_or_insert_default();
    pod_spec(template.spec.get_or_insert_default());
}

fn requests_from_limits(container: &mut Container) {
    let Some(resources) = &mut container.resources else { return };
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// With limits for the whole Pod, its requests follow from its containers, or else from those limits.
fn pod_level_requests(spec: &mut PodSpec) {
    let Some(limits) = spec.resources.as_ref().and_then(|r| r.limits.clone()).filter(|l| !l.is_empty()) else { return };
    let known = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    let asked: Resources = requests(&PodSpec { overhead: None, resources: None, ..spec.clone() });
    let all: &mut BTreeMap<String, Quantity> = spec.resources.get_or_insert_default().requests.get_or_insert_default();
    for (name, amount) in asked.into_iter().filter(|(n, _)| known(n)) {
        all.entry(name).or_insert_with(|| amount.into());
    }
    for (name, limit) in limits.into_iter().filter(|(n, _)| known(n)) {
        all.entry(name).or_insert(limit);
    }
    if all.is_empty() {
        spec.resources = Some(ResourceRequirements { requests: None, ..spec.resources.take().unwrap_or_default() });
    }
}

fn pod_spec(spec: &mut PodSpec) {
    if unset(&spec.service_account_name) {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.volumes.iter_mut().flatten().for_each(volume::default);
    spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(container);
    spec.ephemeral_containers.iter_mut().flatten().for_each(ephemeral);
}

fn container(container: &mut Container) {
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    if unset(&container.image_pull_policy) {
        container.image_pull_policy = Some(pull_policy(container.image.as_deref().unwrap_or_default()).to_owned());
    }
    whole_milli(container.resources.get_or_insert_default());
    for port in container.ports.iter_mut().flatten() {
        fill(&mut port.protocol, "TCP");
    }
    for variable in container.env.iter_mut().flatten() {
        if let Some(field) = variable.value_from.as_mut().and_then(|v| v.field_ref.as_mut()) {
            fill(&mut field.api_version, "v1");
        }
    }
    let probes = [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    probes.into_iter().flatten().for_each(probe);
    container.lifecycle.iter_mut().for_each(lifecycle);
}

/// Amounts finer than a thousandth are rounded up.
fn whole_milli(resources: &mut ResourceRequirements) {
    let amounts = resources.requests.iter_mut().chain(resources.limits.iter_mut());
    for text in amounts.flat_map(|map| map.values_mut()).filter(|t| t.0.ends_with(['u', 'n'])) {
        *text = crate::rules::quantity::parse(text).rounded_to_milli().into();
    }
}

/// Fills in a debugging container, which has fewer fields.
fn ephemeral(container: &mut EphemeralContainer) {
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    if unset(&container.image_pull_policy) {
        container.image_pull_policy = Some(pull_policy(container.image.as_deref().unwrap_or_default()).to_owned());
    }
    container.resources.get_or_insert_default();
    for variable in container.env.iter_mut().flatten() {
        if let Some(field) = variable.value_from.as_mut().and_then(|v| v.field_ref.as_mut()) {
            fill(&mut field.api_version, "v1");
        }
    }
}

fn probe(probe: &mut Probe) {
    for (field, value) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or(0) == 0 {
            *field = Some(value);
        }
    }
    probe.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn lifecycle(lifecycle: &mut Lifecycle) {
    for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
        hook.http_get.iter_mut().for_each(http_get);
    }
}

fn http_get(get: &mut HTTPGetAction) {
    fill(&mut get.path, "/");
    fill(&mut get.scheme, "HTTP");
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_small_pod_becomes_whole() {
        let given = json!({"metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}, "livenessProbe": {"httpGet": {"port": 80}}}]}});
        let mut object: Pod = json::from_value(given).unwrap();
        pod(&mut object);
        let expected = json!({"containers": [{"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
            "livenessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30});
        assert_eq!(json::to_value(&object.spec).unwrap(), expected);
        let once = object.clone();
        pod(&mut object);
        assert_eq!(object, once, "defaults settle");
    }
}
