//! The Pods of a Service as endpoints: shared by EndpointSlices and the older Endpoints.

use std::sync::Arc;

use api::rules::{pod, selector::Selector};
use client::{Caches, Change, Key};
use k8s_openapi::{
    api::core::v1::{ContainerPort, ObjectReference, Pod, Service, ServicePort},
    apimachinery::pkg::util::intstr::IntOrString,
};

/// The label that marks objects about headless Services.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// When the last change that led to the current endpoints happened.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub fn has_selector(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let selector = spec.and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| !s.is_empty()) && spec.and_then(|s| s.type_.as_deref()) != Some("ExternalName")
}

pub fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None")
}

pub fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses) == Some(true)
}

/// The Pods that a Service selects and that may be endpoints: they have an address and have not ended.
pub fn pods_of(service: &Service, caches: &Caches) -> Vec<Arc<Pod>> {
    if !has_selector(service) {
        return Vec::new();
    }
    let labels = service.spec.as_ref().and_then(|s| s.selector.clone()).unwrap_or_default();
    let selector = Selector::of_labels(&labels);
    let mut pods = caches.of::<Pod>().list_in(service.metadata.namespace.as_deref().unwrap_or(""));
    pods.retain(|p| selector.matches(&p.metadata.labels) && !pod::is_terminal(p));
    pods.retain(|p| !addresses(p).is_empty());
    pods
}

/// The Pod's addresses, the primary first.
pub fn addresses(pod: &Pod) -> Vec<&str> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).filter(|ip| !ip.is_empty()).collect();
    if all.is_empty() { status.pod_ip.as_deref().filter(|ip| !ip.is_empty()).into_iter().collect() } else { all }
}

/// The Pod's own host name, when it is known under the Service's domain.
pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let same = spec.subdomain.is_some() && spec.subdomain == service.metadata.name;
    spec.hostname.clone().filter(|name| same && !name.is_empty())
}

/// Says which Pod an endpoint stands for.
pub fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..Default::default()
    }
}

/// The number that a Service's port has on this Pod. `None` when the Pod has no port of that name.
pub fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let protocol = |p: &ContainerPort| p.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let wanted = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let sidecars = spec.init_containers.iter().flatten().filter(|c| pod::is_sidecar(c));
            let mut ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
            ports.find(|p| p.name.as_ref() == Some(name) && protocol(p) == wanted).map(|p| p.container_port)
        }
    }
}

/// The Services whose endpoints a change of a Pod may touch.
pub fn services_of_change(change: &Change<Pod>, caches: &Caches) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && !matters(old, new)
    {
        return Vec::new();
    }
    let states: Vec<&Pod> = change.old.iter().chain(&change.new).map(Arc::as_ref).collect();
    services_of(&change.key.namespace, &states, caches)
}

/// The Services that select one of these Pods of a namespace.
pub fn services_of(namespace: &str, pods: &[&Pod], caches: &Caches) -> Vec<Key> {
    let services = caches.of::<Service>().list_in(namespace);
    let selected = |service: &Service| {
        let labels = service.spec.as_ref().and_then(|s| s.selector.as_ref());
        labels.is_some_and(|labels| {
            let selector = Selector::of_labels(labels);
            pods.iter().filter_map(|p| p.metadata.labels.as_ref()).any(|l| selector.matches(l))
        })
    };
    services.iter().filter(|s| has_selector(s) && selected(s)).map(|s| Key::of(&**s)).collect()
}

/// Whether what endpoints show of the Pod changed.
fn matters(old: &Pod, new: &Pod) -> bool {
    let shown = |p: &Pod| {
        let spec = p.spec.as_ref();
        (
            pod::is_ready(p),
            pod::is_terminal(p),
            p.metadata.deletion_timestamp.is_some(),
            addresses(p).iter().map(ToString::to_string).collect::<Vec<_>>(),
            p.metadata.labels.clone(),
            spec.and_then(|s| s.node_name.clone()),
            spec.and_then(|s| s.hostname.clone()),
            spec.and_then(|s| s.subdomain.clone()),
        )
    };
    shown(old) != shown(new)
}

/// The latest of the moments that the endpoints follow from: the Pods' readiness, and the Service's creation.
pub fn trigger_time(service: &Service, pods: &[Arc<Pod>]) -> Option<String> {
    let ready = pods.iter().filter_map(|p| pod::condition(p, "Ready")?.last_transition_time.as_ref().map(|t| t.0));
    let created = service.metadata.creation_timestamp.as_ref().map(|t| t.0);
    ready.chain(created).max().map(|t| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
