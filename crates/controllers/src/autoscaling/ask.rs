//! The answers of the server that an autoscaler needs: the scale of its target, and the present values of its metrics.
//! Upstream counterpart: pkg/controller/podautoscaler/metrics.

use api::{
    kinds::metrics::PodMetrics,
    rules::{cron, quantity, selector::Selector},
};
use client::{
    Client,
    rest::{self, Form, Resource},
};
use clock::Timestamp;
use json::Value;
use k8s_openapi::{
    api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier, MetricSpec},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, Time},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    propose::Measured,
    replicas::{Reading, Readings},
};
use crate::{
    discovery::{self, of_kind, segment},
    selector_text::selector_text,
};

/// A value of `custom.metrics.k8s.io` that does not say so was measured over this time.
const USUAL_WINDOW_SECONDS: i64 = 60;

/// The resource that is scaled.
#[derive(Debug, Clone)]
pub struct Target {
    pub resource: Resource,
    /// The Scale object.
    pub scale: Value,
}

impl Target {
    fn number(&self, pointer: &str) -> i32 {
        self.scale.pointer(pointer).and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok()).unwrap_or(0)
    }

    /// The number of Pods that is asked for.
    pub fn current(&self) -> i32 {
        self.number("/spec/replicas")
    }

    /// The number of Pods that there are.
    pub fn present(&self) -> i32 {
        self.number("/status/replicas")
    }

    pub fn selector(&self) -> &str {
        self.scale.pointer("/status/selector").and_then(Value::as_str).unwrap_or("")
    }
}

fn group_of(api_version: &str) -> Result<&str, String> {
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [_] => Ok(""),
        [group, _] => Ok(group),
        _ => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

async fn resource_of(client: &Client, of: &CrossVersionObjectReference) -> Result<Resource, String> {
    of_kind(client, group_of(of.api_version.as_deref().unwrap_or(""))?, &of.kind).await
}

/// Finds the target and its scale.
pub async fn target(client: &Client, namespace: &str, of: &CrossVersionObjectReference) -> Result<Target, String> {
    let resource = resource_of(client, of).await?;
    let scale = read(client, &resource.path(namespace, segment(&of.name)?, "scale")).await?;
    Ok(Target { resource, scale })
}

async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, String> {
    let text = rest::read(client, path, Form::Whole).await.map_err(|error| rest::message(&error))?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

/// An item of `custom.metrics.k8s.io` or `external.metrics.k8s.io`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: Described,
    timestamp: Option<Time>,
    /// Version v1beta1 calls it by the shorter name.
    #[serde(alias = "window")]
    window_seconds: Option<i64>,
    value: k8s_openapi::apimachinery::pkg::api::resource::Quantity,
}

#[derive(Deserialize, Default)]
struct Described {
    #[serde(default)]
    name: String,
}

impl MetricValue {
    fn milli(&self) -> i64 {
        quantity::parse(&self.value).milli_value()
    }
}

/// The present value of a metric for the Pods that `selector` takes.
pub async fn measure(
    client: &Client,
    namespace: &str,
    metric: &MetricSpec,
    selector: &str,
) -> Result<Measured, String> {
    if let Some(source) = &metric.resource {
        return pods(client, namespace, selector, &source.name, None).await;
    }
    if let Some(source) = &metric.container_resource {
        return pods(client, namespace, selector, &source.name, Some(&source.container)).await;
    }
    if let Some(source) = &metric.pods {
        let failed = |why| format!("unable to get metric {}: {why}", source.metric.name);
        return custom_of_pods(client, namespace, selector, &source.metric).await.map_err(failed);
    }
    if let Some(source) = &metric.object {
        let (of, name) = (&source.described_object, &source.metric.name);
        let failed = |why| format!("unable to get metric {name} on {} {namespace}/{}: {why}", of.kind, of.name);
        return custom_of_object(client, namespace, of, &source.metric).await.map_err(failed);
    }
    if let Some(source) = &metric.external {
        let shown = selector_text(source.metric.selector.as_ref());
        let failed = |why| format!("unable to get external metric {namespace}/{}/{shown}: {why}", source.metric.name);
        return external(client, namespace, &source.metric).await.map_err(failed);
    }
    Err("the metric has no source".to_owned())
}

async fn pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Measured, String> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let path = rest::with_query(path, &[("labelSelector", selector)]);
    let failed = |why| format!("unable to fetch metrics from resource metrics API: {why}");
    let list: List<PodMetrics> = read(client, &path).await.map_err(failed)?;
    if list.items.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    used(&list.items, resource, container).map(Measured::Pods)
}

/// The readings of each Pod or of one container in it. A Pod of which one container does not tell is left out.
fn used(pods: &[PodMetrics], resource: &str, container: Option<&str>) -> Result<Readings, String> {
    let mut readings = Readings::new();
    for pod in pods {
        let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref().unwrap_or(""));
        let chosen: Vec<_> =
            pod.containers.iter().filter(|c| container.is_none_or(|wanted| c.name == wanted)).collect();
        if let (Some(wanted), true) = (container, chosen.is_empty()) {
            let namespace = namespace.unwrap_or("");
            return Err(format!("container {wanted} not present in metrics for pod {namespace}/{name}"));
        }
        let mut amounts =
            chosen.iter().map(|c| c.usage.get(resource).map(|amount| quantity::parse(amount).milli_value()));
        let sum = |sum: i64, amount: Option<i64>| Some(sum.saturating_add(amount?));
        let Some(milli) = amounts.try_fold(0, sum) else { continue };
        let reading = Reading {
            milli,
            time: pod.timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            window_seconds: cron::seconds(&pod.window).unwrap_or(0),
        };
        readings.insert(name.to_owned(), reading);
    }
    Ok(readings)
}

fn text_of(selector: Option<&LabelSelector>) -> Result<String, String> {
    let Some(selector) = selector else { return Ok(String::new()) };
    Selector::of_object(Some(selector)).map(|s| s.to_string()).map_err(|error| error.to_string())
}

/// The versions of `custom.metrics.k8s.io` whose values can be read.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// Where values of custom metrics are served: the version that its server prefers, of those that can be read.
async fn custom_base(client: &Client) -> Result<String, String> {
    let failed = |why: &str| format!("unable to fetch metrics from custom metrics API: {why}");
    let groups = discovery::groups(client).await.map_err(|error| failed(&rest::message(&error)))?;
    let group = groups.into_iter().find(|group| group.name == "custom.metrics.k8s.io");
    let group = group.ok_or_else(|| failed("no custom metrics API (custom.metrics.k8s.io) registered"))?;
    let mut offered = group.preferred_version.into_iter().chain(group.versions);
    let version = offered.find(|version| CUSTOM_VERSIONS.contains(&&*version.version));
    let version = version.ok_or_else(|| failed("no known available metric versions found"))?;
    Ok(format!("/apis/{}", version.group_version))
}

async fn custom(client: &Client, path: String, query: &[(&str, &str)]) -> Result<Vec<MetricValue>, String> {
    let query: Vec<_> = query.iter().copied().filter(|(_, value)| !value.is_empty()).collect();
    let failed = |why| format!("unable to fetch metrics from custom metrics API: {why}");
    let list: List<MetricValue> = read(client, &rest::with_query(path, &query)).await.map_err(failed)?;
    if list.items.is_empty() { Err("no metrics returned from custom metrics API".to_owned()) } else { Ok(list.items) }
}

async fn custom_of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    metric: &MetricIdentifier,
) -> Result<Measured, String> {
    let metric_selector = text_of(metric.selector.as_ref())?;
    let path = format!("{}/namespaces/{namespace}/pods/*/{}", custom_base(client).await?, segment(&metric.name)?);
    let query = [("labelSelector", selector), ("metricLabelSelector", &metric_selector)];
    let values = custom(client, path, &query).await?;
    let reading = |value: &MetricValue| {
        let reading = Reading {
            milli: value.milli(),
            time: value.timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            window_seconds: value.window_seconds.unwrap_or(USUAL_WINDOW_SECONDS),
        };
        (value.described_object.name.clone(), reading)
    };
    Ok(Measured::Pods(values.iter().map(reading).collect()))
}

async fn custom_of_object(
    client: &Client,
    namespace: &str,
    of: &CrossVersionObjectReference,
    metric: &MetricIdentifier,
) -> Result<Measured, String> {
    let selector = text_of(metric.selector.as_ref())?;
    let base = custom_base(client).await?;
    let (name, metric) = (segment(&of.name)?, segment(&metric.name)?);
    let path = if of.kind == "Namespace" {
        format!("{base}/namespaces/{name}/metrics/{metric}")
    } else {
        let Resource { group, plural, .. } = resource_of(client, of).await?;
        let resource = if group.is_empty() { plural } else { format!("{plural}.{group}") };
        format!("{base}/namespaces/{namespace}/{resource}/{name}/{metric}")
    };
    let values = custom(client, path, &[("metricLabelSelector", &selector)]).await?;
    Ok(Measured::Value(values.first().map_or(0, MetricValue::milli)))
}

async fn external(client: &Client, namespace: &str, metric: &MetricIdentifier) -> Result<Measured, String> {
    let selector = text_of(metric.selector.as_ref())?;
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}", segment(&metric.name)?);
    let failed = |why| format!("unable to fetch metrics from external metrics API: {why}");
    let path = if selector.is_empty() { path } else { rest::with_query(path, &[("labelSelector", &selector)]) };
    let list: List<MetricValue> = read(client, &path).await.map_err(failed)?;
    if list.items.is_empty() {
        return Err("no metrics returned from external metrics API".to_owned());
    }
    Ok(Measured::Value(list.items.iter().fold(0, |sum, value| sum.saturating_add(value.milli()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn pods_are_told_whole_or_by_one_container() {
        let pods = json!([
            {"metadata": {"name": "p", "namespace": "n"}, "timestamp": "2026-01-01T00:00:00Z", "window": "15.2s", "containers": [
                {"name": "a", "usage": {"cpu": "1500u", "memory": "1Ki"}}, {"name": "b", "usage": {"cpu": "1m"}}]},
        ]);
        let pods: Vec<PodMetrics> = json::from_value(pods).unwrap();
        let milli = |resource, container| {
            used(&pods, resource, container).map(|found| found.get("p").map(|r| (r.milli, r.window_seconds)))
        };
        assert_eq!(milli("cpu", None), Ok(Some((3, 15))));
        assert_eq!(milli("cpu", Some("b")), Ok(Some((1, 15))));
        assert_eq!(milli("memory", Some("a")), Ok(Some((1_024_000, 15))));
        assert_eq!(milli("memory", None), Ok(None), "one container does not tell");
        let missing = "container c not present in metrics for pod n/p".to_owned();
        assert_eq!(milli("cpu", Some("c")), Err(missing));
    }

    /// Answers each path with a document; of all else there is none.
    fn server(pages: &'static [(&'static str, &'static str)]) -> Client {
        client::in_process(tower::service_fn(move |request: http::Request<client::Body>| {
            let asked = request.uri().to_string().replace("?&", "?");
            let found = pages.iter().find(|(path, _)| *path == asked).map(|(_, page)| *page);
            let code = if found.is_some() { 200 } else { 404 };
            let text = found.map_or_else(|| format!("nothing at {asked}"), str::to_owned);
            let response = http::Response::builder().status(code).header("content-type", "application/json");
            let response = response.body(http_body_util::Full::new(bytes::Bytes::from(text))).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        }))
    }

    fn metric(text: &str) -> MetricSpec {
        serde_json::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn custom_metrics_are_read_in_the_version_that_is_known() {
        let client = server(&[
            (
                "/apis",
                r#"{"groups": [{"name": "custom.metrics.k8s.io", "preferredVersion": {"groupVersion": "custom.metrics.k8s.io/v9", "version": "v9"},
                "versions": [{"groupVersion": "custom.metrics.k8s.io/v9", "version": "v9"}, {"groupVersion": "custom.metrics.k8s.io/v1beta1", "version": "v1beta1"}]}]}"#,
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta1/namespaces/n/pods/*/hits?labelSelector=app%3Da",
                r#"{"items": [
                {"describedObject": {"name": "p"}, "timestamp": "2026-01-01T00:00:00Z", "window": 30, "value": "1500m"},
                {"describedObject": {"name": "q"}, "timestamp": "2026-01-01T00:00:00Z", "value": "2"}]}"#,
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta1/namespaces/n/metrics/hits?metricLabelSelector=verb%3DGET",
                r#"{"items": [{"describedObject": {"name": "n"}, "timestamp": null, "value": "7"}]}"#,
            ),
        ]);
        let hits =
            metric(r#"{"type": "Pods", "pods": {"metric": {"name": "hits"}, "target": {"type": "AverageValue"}}}"#);
        let Ok(Measured::Pods(found)) = measure(&client, "n", &hits, "app=a").await else { panic!("no readings") };
        let shown: Vec<_> = found.iter().map(|(name, r)| (name.as_str(), r.milli, r.window_seconds)).collect();
        assert_eq!(shown, [("p", 1500, 30), ("q", 2000, 60)]);
        let of_namespace = metric(
            r#"{"type": "Object", "object": {"describedObject": {"apiVersion": "v1", "kind": "Namespace", "name": "n"},
                "metric": {"name": "hits", "selector": {"matchLabels": {"verb": "GET"}}}, "target": {"type": "Value"}}}"#,
        );
        assert_eq!(measure(&client, "n", &of_namespace, "app=a").await, Ok(Measured::Value(7000)));
    }

    #[tokio::test]
    async fn external_metrics_are_summed_and_what_is_missing_is_said() {
        let client = server(&[
            ("/apis", r#"{"groups": []}"#),
            (
                "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue?labelSelector=name%3Dq",
                r#"{"items": [{"value": "3"}, {"value": "4500m"}]}"#,
            ),
            ("/apis/external.metrics.k8s.io/v1beta1/namespaces/n/none", r#"{"items": []}"#),
        ]);
        let external = |name: &str, selector: &str| {
            metric(&format!(
                r#"{{"type": "External", "external": {{"metric": {{"name": "{name}"{selector}}}, "target": {{"type": "Value"}}}}}}"#
            ))
        };
        let queue = external("queue", r#", "selector": {"matchLabels": {"name": "q"}}"#);
        assert_eq!(measure(&client, "n", &queue, "").await, Ok(Measured::Value(7500)));
        let found = measure(&client, "n", &external("none", ""), "").await.unwrap_err();
        assert_eq!(found, "unable to get external metric n/none/nil: no metrics returned from external metrics API");
        let hits =
            metric(r#"{"type": "Pods", "pods": {"metric": {"name": "hits"}, "target": {"type": "AverageValue"}}}"#);
        let found = measure(&client, "n", &hits, "app=a").await.unwrap_err();
        assert!(found.ends_with("no custom metrics API (custom.metrics.k8s.io) registered"), "{found}");
    }

    #[test]
    fn groups() {
        assert_eq!((group_of("v1"), group_of("apps/v1"), group_of("")), (Ok(""), Ok("apps"), Ok("")));
        assert_eq!(group_of("a/b/c"), Err("unexpected GroupVersion string: a/b/c".to_owned()));
    }
}
