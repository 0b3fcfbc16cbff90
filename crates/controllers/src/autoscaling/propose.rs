//! From an autoscaler's metrics to the number of Pods that they ask for together, with the words about those that could
//! not be had. Pure. Upstream counterpart: computeReplicasForMetrics in pkg/controller/podautoscaler/horizontal.go.

use api::rules::quantity::{self, Format, Quantity};
use k8s_openapi::{
    api::autoscaling::v2::{
        ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscalerSpec, MetricIdentifier, MetricSpec,
        MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
    },
    apimachinery::pkg::api::resource::Quantity as Text,
};

use super::replicas::{Readings, Resource, Scene, Tolerance};
use crate::selector_text::selector_text;

/// The present value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Measured {
    Pods(Readings),
    /// Of an object, or of something outside of the cluster, in thousandths.
    Value(i64),
}

/// Why no number of Pods follows: reason and message of the condition `ScalingActive` and of an event, and the whole error.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    pub reason: &'static str,
    pub message: String,
    pub event: (&'static str, String),
    pub error: String,
}

/// The number of Pods that all metrics together ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposed {
    /// The number of Pods, and the metric that asks for it.
    pub outcome: Result<(i32, String), Refused>,
    /// The first of the metrics that could not be had each has its event.
    pub events: Vec<(&'static str, String)>,
    pub statuses: Vec<MetricStatus>,
}

/// Without a selector nothing is measured.
pub fn refused(reason: &'static str, event: &'static str, message: &str, error: &str) -> Proposed {
    let refused =
        Refused { reason, message: message.to_owned(), event: (event, error.to_owned()), error: error.to_owned() };
    Proposed { events: vec![refused.event.clone()], outcome: Err(refused), statuses: Vec::new() }
}

/// The tolerance that the autoscaler sets, or the usual one.
pub fn tolerance(spec: &HorizontalPodAutoscalerSpec, usual: f64) -> Tolerance {
    let of = |rules: Option<&k8s_openapi::api::autoscaling::v2::HPAScalingRules>| {
        rules.and_then(|r| r.tolerance.as_ref()).map_or(usual, |t| quantity::parse(t).as_f64())
    };
    let behavior = spec.behavior.as_ref();
    Tolerance {
        down: of(behavior.and_then(|b| b.scale_down.as_ref())),
        up: of(behavior.and_then(|b| b.scale_up.as_ref())),
    }
}

/// The largest number that a metric asks for. Metrics that cannot be had do not stop Pods from being added, but from being
/// removed.
pub fn propose(metrics: &[MetricSpec], measured: &[Result<Measured, String>], scene: &Scene<'_>) -> Proposed {
    let mut statuses = vec![MetricStatus::default(); metrics.len()];
    let (mut largest, mut failed) = (None::<(i32, String)>, Vec::new());
    for ((metric, measured), status) in metrics.iter().zip(measured).zip(&mut statuses) {
        match one(metric, measured.clone(), scene) {
            Ok((replicas, name, shown)) => {
                *status = shown;
                if largest.as_ref().is_none_or(|(most, _)| replicas > *most) {
                    largest = Some((replicas, name));
                }
            }
            Err(refused) => failed.push(refused),
        }
    }
    let events = failed.iter().map(|refused| refused.event.clone()).collect();
    let outcome = match (largest, failed.first()) {
        (Some((replicas, name)), first) if first.is_none() || replicas >= scene.current => Ok((replicas, name)),
        (_, Some(first)) => {
            let counted =
                format!("invalid metrics ({} invalid out of {}), first error is: ", failed.len(), metrics.len());
            Err(Refused { error: counted + &first.error, ..first.clone() })
        }
        // Defaults put in a metric, so that only a stored object of old can have none.
        (_, None) => Err(refuse("InvalidMetricSourceType", "no metrics are given", "")),
    };
    Proposed { outcome, events, statuses }
}

fn refuse(reason: &'static str, why: &str, before: &str) -> Refused {
    Refused {
        reason,
        message: format!("the HPA was unable to compute the replica count: {why}"),
        event: (reason, why.to_owned()),
        error: format!("{before}{why}"),
    }
}

type One = Result<(i32, String, MetricStatus), Refused>;

fn one(metric: &MetricSpec, measured: Result<Measured, String>, scene: &Scene<'_>) -> One {
    let kind = metric.type_.as_str();
    match kind {
        "Object" => object(metric, measured, scene)
            .map_err(|why| refuse("FailedGetObjectMetric", &why, "failed to get object metric value: ")),
        "Pods" => pods(metric, measured, scene)
            .map_err(|why| refuse("FailedGetPodsMetric", &why, "failed to get pods metric value: ")),
        "Resource" => resource(metric, measured, scene).map_err(|why| {
            let name = metric.resource.as_ref().map_or("", |r| &r.name);
            refuse("FailedGetResourceMetric", &why, &format!("failed to get {name} resource metric value: "))
        }),
        "ContainerResource" => container_resource(metric, measured, scene).map_err(|why| {
            let name = metric.container_resource.as_ref().map_or("", |r| &r.container);
            refuse("FailedGetContainerResourceMetric", &why, &format!("failed to get {name} container metric value: "))
        }),
        "External" => external(metric, measured, scene).map_err(|(short, long)| {
            let name = metric.external.as_ref().map_or("", |e| &e.metric.name);
            let refused = refuse("FailedGetExternalMetric", &short, "");
            Refused { error: format!("failed to get {name} external metric value: {long}"), ..refused }
        }),
        other => Err(refuse("InvalidMetricSourceType", &format!("unknown metric source type {other:?}"), "")),
    }
}

fn readings(measured: Result<Measured, String>) -> Result<Readings, String> {
    match measured? {
        Measured::Pods(readings) => Ok(readings),
        Measured::Value(_) => Err("the metric is not about Pods".to_owned()),
    }
}

fn value(measured: Result<Measured, String>) -> Result<i64, String> {
    match measured? {
        Measured::Value(value) => Ok(value),
        Measured::Pods(_) => Err("the metric is about Pods".to_owned()),
    }
}

/// An amount in thousandths, bytes in binary units.
fn amount(resource: &str, milli: i64) -> Text {
    let format = if resource == "memory" && milli % 1000 == 0 { Format::BinarySi } else { Format::DecimalSi };
    let quantity = if milli % 1000 == 0 { Quantity::new(milli / 1000, format) } else { Quantity::from_milli(milli) };
    quantity.into()
}

fn milli(text: &Text) -> i64 {
    quantity::parse(text).milli_value()
}

fn average_value(value: Text) -> MetricValueStatus {
    MetricValueStatus { average_value: Some(value), ..Default::default() }
}

fn of_target(
    scene: &Scene<'_>,
    what: Resource<'_>,
    target: &MetricTarget,
    measured: Result<Measured, String>,
) -> Result<(i32, String, MetricValueStatus), String> {
    let name = what.name;
    let measured = measured.map_err(|why| format!("unable to get metrics for resource {name}: {why}"));
    if let Some(wanted) = &target.average_value {
        let found = readings(measured).and_then(|readings| scene.by_average(readings, name, milli(wanted)));
        let (replicas, average) = found.map_err(|why| format!("failed to get {name} usage: {why}"))?;
        return Ok((replicas, format!("{name} resource"), average_value(amount(name, average))));
    }
    let Some(wanted) = target.average_utilization else {
        let why = "invalid resource metric source: neither an average utilization target nor an average value (usage) \
                   target was set";
        return Err(why.to_owned());
    };
    let found = readings(measured).and_then(|readings| scene.by_utilization(readings, what, wanted));
    let (replicas, percent, average) = found.map_err(|why| format!("failed to get {name} utilization: {why}"))?;
    let of = if what.container.is_some() { "container resource" } else { "resource" };
    let shown = MetricValueStatus { average_utilization: Some(percent), ..average_value(amount(name, average)) };
    Ok((replicas, format!("{name} {of} utilization (percentage of request)"), shown))
}

fn resource(
    metric: &MetricSpec,
    measured: Result<Measured, String>,
    scene: &Scene<'_>,
) -> Result<(i32, String, MetricStatus), String> {
    let source = metric.resource.as_ref().ok_or("no resource is named")?;
    let what = Resource { name: &source.name, container: None };
    let (replicas, name, current) = of_target(scene, what, &source.target, measured)?;
    let resource = Some(ResourceMetricStatus { name: source.name.clone(), current });
    Ok((replicas, name, MetricStatus { type_: metric.type_.clone(), resource, ..Default::default() }))
}

fn container_resource(
    metric: &MetricSpec,
    measured: Result<Measured, String>,
    scene: &Scene<'_>,
) -> Result<(i32, String, MetricStatus), String> {
    let source = metric.container_resource.as_ref().ok_or("no resource is named")?;
    let what = Resource { name: &source.name, container: Some(&source.container) };
    let (replicas, name, current) = of_target(scene, what, &source.target, measured)?;
    let (name_of, container) = (source.name.clone(), source.container.clone());
    let status = Some(ContainerResourceMetricStatus { name: name_of, container, current });
    Ok((replicas, name, MetricStatus { type_: metric.type_.clone(), container_resource: status, ..Default::default() }))
}

fn identity(metric: &MetricIdentifier) -> MetricIdentifier {
    MetricIdentifier { name: metric.name.clone(), selector: metric.selector.clone() }
}

fn pods(
    metric: &MetricSpec,
    measured: Result<Measured, String>,
    scene: &Scene<'_>,
) -> Result<(i32, String, MetricStatus), String> {
    let source = metric.pods.as_ref().ok_or("no metric is named")?;
    let target = source.target.average_value.as_ref().map_or(0, milli);
    let name = &source.metric.name;
    let readings = readings(measured)?;
    let (replicas, average) = scene.by_average(readings, "", target)?;
    let status = PodsMetricStatus { metric: identity(&source.metric), current: average_value(amount("", average)) };
    let status = MetricStatus { type_: metric.type_.clone(), pods: Some(status), ..Default::default() };
    Ok((replicas, format!("pods metric {name}"), status))
}

fn object(
    metric: &MetricSpec,
    measured: Result<Measured, String>,
    scene: &Scene<'_>,
) -> Result<(i32, String, MetricStatus), String> {
    let source = metric.object.as_ref().ok_or("no object is named")?;
    let (of, name) = (&source.described_object, &source.metric.name);
    let used = || value(measured);
    let target = &source.target;
    let (replicas, words, current) = match (target.type_.as_str(), &target.value, &target.average_value) {
        ("Value", Some(wanted), _) => {
            let used = used()?;
            let current = MetricValueStatus { value: Some(amount("", used)), ..Default::default() };
            (scene.by_value(used, milli(wanted))?, format!("{} metric {name}", of.kind), current)
        }
        ("AverageValue", _, Some(wanted)) => {
            let used = used().map_err(|why| format!("failed to get {name} object metric: {why}"))?;
            let (replicas, part) = scene.by_part(used, milli(wanted));
            (replicas, external_name(&source.metric), average_value(amount("", part)))
        }
        _ => {
            let why = "invalid object metric source: neither a value target nor an average value target was set";
            return Err(why.to_owned());
        }
    };
    let status = ObjectMetricStatus { described_object: of.clone(), metric: identity(&source.metric), current };
    Ok((replicas, words, MetricStatus { type_: metric.type_.clone(), object: Some(status), ..Default::default() }))
}

/// The error is given as the condition and as the whole error have it.
fn external(
    metric: &MetricSpec,
    measured: Result<Measured, String>,
    scene: &Scene<'_>,
) -> Result<(i32, String, MetricStatus), (String, String)> {
    let both = |why: &str| (why.to_owned(), why.to_owned());
    let source = metric.external.as_ref().ok_or_else(|| both("no metric is named"))?;
    let (name, target) = (&source.metric.name, &source.target);
    let failed = |before: String| move |why: String| (why.clone(), format!("{before}: {why}"));
    let (replicas, current) = if let Some(wanted) = &target.average_value {
        let used = value(measured).map_err(failed(format!("failed to get {name} external metric")))?;
        let (replicas, part) = scene.by_part(used, milli(wanted));
        (replicas, average_value(amount("", part)))
    } else if let Some(wanted) = &target.value {
        let failed = || failed(format!("failed to get external metric {name}"));
        let used = value(measured).map_err(failed())?;
        let replicas = scene.by_value(used, milli(wanted)).map_err(failed())?;
        (replicas, MetricValueStatus { value: Some(amount("", used)), ..Default::default() })
    } else {
        return Err(both("invalid external metric source: neither a value target nor an average value target was set"));
    };
    let status = ExternalMetricStatus { metric: identity(&source.metric), current };
    let status = MetricStatus { type_: metric.type_.clone(), external: Some(status), ..Default::default() };
    Ok((replicas, external_name(&source.metric), status))
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, selector_text(metric.selector.as_ref()))
}
