//! The fields that a container may learn about its Pod: `fieldRef` and `resourceFieldRef`, for environments and
//! volumes. Pure.

use k8s_openapi::{
    api::core::v1::{Pod, ResourceFieldSelector, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use api::rules::quantity::Quantity;

/// The facts that only the node knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub node_name: String,
    pub host_ips: Vec<String>,
    pub pod_ips: Vec<String>,
    /// The node's allocatable, which stands in for a limit that is not set.
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    pub storage_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("container {0} not found")]
    Container(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("invalid divisor {0}")]
    Divisor(String),
}

/// The key in `metadata.labels['key']`.
fn subscript<'a>(path: &'a str, map: &str) -> Option<&'a str> {
    path.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']")
}

/// A map as upstream writes it into a file: sorted lines of `key="value"`.
fn map_text(map: Option<&std::collections::BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(k, v)| format!("{k}={}", json::Value::from(v.as_str())));
    lines.collect::<Vec<_>>().join("\n")
}

/// The value of a field of the Pod.
pub fn field(pod: &Pod, path: &str, facts: &Facts) -> Result<String, DownwardError> {
    let (meta, spec) = (&pod.metadata, pod.spec.as_ref());
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(meta.labels.as_ref().and_then(|l| l.get(key)).cloned().unwrap_or_default());
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(meta.annotations.as_ref().and_then(|l| l.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => map_text(meta.labels.as_ref()),
        "metadata.annotations" => map_text(meta.annotations.as_ref()),
        "spec.nodeName" => facts.node_name.clone(),
        "spec.serviceAccountName" => spec.map(|s| text(&s.service_account_name)).unwrap_or_default(),
        "spec.restartPolicy" => spec.map(|s| text(&s.restart_policy)).unwrap_or_default(),
        "status.hostIP" => facts.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => facts.host_ips.join(","),
        "status.podIP" => facts.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_ips.join(","),
        other => return Err(DownwardError::Field(other.to_owned())),
    })
}

/// The value of a container's request or limit, in units of the divisor, rounded up.
pub fn resource(
    pod: &Pod,
    selector: &ResourceFieldSelector,
    container: Option<&str>,
    facts: &Facts,
) -> Result<String, DownwardError> {
    let name = container.unwrap_or("");
    let spec = pod.spec.as_ref();
    let mut containers = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let container = containers.find(|c| c.name == name).ok_or_else(|| DownwardError::Container(name.to_owned()))?;
    let of_pod = |what: &str| quantity(spec?.resources.as_ref()?, true, what);
    let (sort, what) = selector.resource.split_once('.').unwrap_or(("", ""));
    let own = |limit: bool| quantity(container.resources.as_ref()?, limit, what);
    let milli = match (sort, what) {
        // A limit of nothing is none.
        ("limits", _) => own(true)
            .filter(|limit| *limit != 0)
            .or_else(|| of_pod(what).filter(|limit| *limit != 0))
            .or_else(|| node_stand_in(what, facts)),
        ("requests", _) => own(false).or_else(|| own(true)),
        _ => return Err(DownwardError::Resource(selector.resource.clone())),
    }
    .unwrap_or(0);
    let divisor = divisor(selector.divisor.as_ref())?;
    // Whole units are counted in thousandths throughout, which keeps CPU divisors such as 1m exact.
    let value = (milli + divisor - 1).div_euclid(divisor);
    Ok(value.to_string())
}

fn quantity(resources: &ResourceRequirements, limit: bool, what: &str) -> Option<i128> {
    let map = if limit { resources.limits.as_ref() } else { resources.requests.as_ref() };
    Some(i128::from(api::rules::quantity::parse(map?.get(what)?).milli_value()))
}

fn node_stand_in(what: &str, facts: &Facts) -> Option<i128> {
    match what {
        "cpu" => Some(i128::from(facts.cpu_millis)),
        "memory" => Some(i128::from(facts.memory_bytes) * 1000),
        "ephemeral-storage" => Some(i128::from(facts.storage_bytes) * 1000),
        _ => None,
    }
}

fn divisor(divisor: Option<&ApiQuantity>) -> Result<i128, DownwardError> {
    let text = divisor.map_or("1", |d| if d.0 == "0" { "1" } else { &d.0 });
    let milli = text.parse::<Quantity>().map(|q| i128::from(q.milli_value())).unwrap_or(0);
    if milli > 0 { Ok(milli) } else { Err(DownwardError::Divisor(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        json::from_value(json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": "say \"1\""}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}}]},
        }))
        .unwrap()
    }

    fn facts() -> Facts {
        Facts {
            node_name: "n".into(),
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            cpu_millis: 4000,
            storage_bytes: 7 << 20,
            ..Facts::default()
        }
    }

    #[test]
    fn fields() {
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.labels['b']", "2"),
            ("metadata.labels", "a=\"say \\\"1\\\"\"\nb=\"2\""),
            ("spec.nodeName", "n"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
        ] {
            assert_eq!(field(&pod(), path, &facts()).as_deref(), Ok(expected), "{path}");
        }
        assert_eq!(field(&pod(), "spec.secret", &facts()), Err(DownwardError::Field("spec.secret".into())));
    }

    #[test]
    fn resources() {
        let ask = |resource: &str, divisor: &str| {
            let selector = ResourceFieldSelector {
                container_name: None,
                divisor: Some(ApiQuantity(divisor.to_owned())),
                resource: resource.to_owned(),
            };
            super::resource(&pod(), &selector, Some("c"), &facts()).unwrap_or_else(|e| e.to_string())
        };
        assert_eq!(ask("requests.cpu", "1m"), "250");
        assert_eq!(ask("requests.cpu", "1"), "1");
        assert_eq!(ask("limits.memory", "1Mi"), "64");
        assert_eq!(ask("requests.memory", "1"), "67108864", "a limit stands in for a request");
        assert_eq!(ask("limits.cpu", "1"), "4", "the node stands in for a limit");
        assert_eq!(ask("limits.ephemeral-storage", "1Mi"), "7");
        assert_eq!(ask("limits", "1"), "unsupported container resource : limits");
    }

    #[test]
    fn a_limit_that_is_not_set_is_the_pods_or_else_the_nodes() {
        let check = |limits: json::Value, of_pod: json::Value, resource: &str, expected: &str| {
            let mut pod = json::to_value(pod()).unwrap();
            pod["spec"]["containers"][0]["resources"]["limits"] = limits.clone();
            pod["spec"]["resources"] = json::json!({ "limits": of_pod });
            let selector = ResourceFieldSelector { resource: resource.to_owned(), ..Default::default() };
            let got = super::resource(&json::from_value(pod).unwrap(), &selector, Some("c"), &facts());
            assert_eq!(got.as_deref(), Ok(expected), "{limits} {of_pod} {resource}");
        };
        let none = || json::json!({});
        check(json::json!({"cpu": "2"}), json::json!({"cpu": "3"}), "limits.cpu", "2");
        check(none(), json::json!({"cpu": "3"}), "limits.cpu", "3");
        check(none(), json::json!({"memory": "3"}), "limits.cpu", "4");
        check(json::json!({"cpu": "0"}), json::json!({"cpu": "0"}), "limits.cpu", "4");
        check(none(), json::json!({"memory": "3"}), "requests.memory", "0");
    }
}
