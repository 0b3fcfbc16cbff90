//! The messages of events about resizes: the resources of a Pod's containers in JSON. Pure.
//! Upstream counterpart: pkg/kubelet/events/resize.go.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::Serialize;

#[derive(Serialize)]
struct OfContainer<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

#[derive(Serialize)]
struct Summary<'a> {
    #[serde(rename = "initContainers", skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<OfContainer<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<OfContainer<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// `what` is `started`, `completed`, `error`, or why the resize waits.
pub fn message(what: &str, pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    fn of(container: &Container) -> OfContainer<'_> {
        OfContainer { name: &container.name, resources: container.resources.clone().unwrap_or_default() }
    }
    let spec = pod.spec.as_ref();
    let summary = Summary {
        init_containers: spec.into_iter().flat_map(|s| s.init_containers.iter().flatten()).map(of).collect(),
        containers: spec.into_iter().flat_map(|s| &s.containers).map(of).collect(),
        generation: generation.unwrap_or_default(),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(text) => format!("Pod resize {what}: {text}"),
        Err(_) => format!("Pod resize {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    #[test]
    fn messages_are_upstreams() {
        let desired = pod(r#"{"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "128Mi"},
            "requests": {"cpu": "1", "memory": "128Mi"}}}], "initContainers": [{"name": "i"}]}"#);
        let amounts = r#"{"cpu":"1","memory":"128Mi"}"#;
        let resources = format!(
            r#""initContainers":[{{"name":"i","resources":{{}}}}],"containers":[{{"name":"c","resources":{{"limits":{amounts},"requests":{amounts}}}}}]"#
        );
        let started = format!(r#"Pod resize started: {{{resources},"generation":5}}"#);
        assert_eq!(message("started", &desired.pod, Some(5), None), started);
        let deferred = format!(r#"Pod resize Deferred: {{{resources},"generation":5,"error":"why"}}"#);
        assert_eq!(message("Deferred", &desired.pod, Some(5), Some("why")), deferred);
    }
}
