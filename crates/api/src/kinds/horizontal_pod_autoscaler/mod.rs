//! HorizontalPodAutoscaler: sets the number of Pods by measurements; v1 shows of v2 what it can, the rest in annotations.

use json::{Map, Value, json};
use k8s_openapi::api::autoscaling::v1::{HorizontalPodAutoscaler as Old, Scale};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscaler, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ResourceMetricSource,
};

use crate::kind::cell;
use crate::kind::{Column, Kind, age, col, int, name};
use crate::kinds::rollout;
use crate::validation::field::Errors;

mod validation;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The share of the requested processor time that is aimed at when no metric is given, in percent.
const DEFAULT_CPU: i32 = 80;

pub const HORIZONTAL_POD_AUTOSCALER: Kind<HorizontalPodAutoscaler> = Kind {
    short: &["hpa"],
    categories: &["all"],
    status: true,
    default: Some(default),
    validate: Some(validate),
    validate_status: Some(|new, _| validate_status(new)),
    columns: COLUMNS,
    ..Kind::BASE
};

pub const HORIZONTAL_POD_AUTOSCALER_V1: Kind<Old> = Kind {
    short: &["hpa"],
    categories: &["all"],
    status: true,
    storage: Some(("autoscaling", "v2")),
    default: Some(|object| {
        object.spec.get_or_insert_default().min_replicas.get_or_insert(1);
    }),
    validate: Some(|old| validate(&as_new(old))),
    validate_status: Some(|new, _| validate_status(new)),
    columns: OLD_COLUMNS,
    to_storage: Some(to_v2),
    from_storage: Some(to_v1),
    ..Kind::BASE
};

/// The body of the `scale` subresource.
pub const SCALE: Kind<Scale> = Kind {
    verbs: &[],
    columns: &[
        name(),
        int("Desired", "replicas is the desired number of instances for the scaled object.", |scale, _| {
            Value::from(scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0))
        }),
        int("Available", "replicas is the actual number of observed instances of the scaled object.", |scale, _| {
            Value::from(scale.status.as_ref().map_or(0, |s| s.replicas))
        }),
        age(),
    ],
    ..Kind::BASE
};

const COLUMNS: &[Column<HorizontalPodAutoscaler>] = &[
    name(),
    col("Reference", REFERENCE, |a, _| {
        let target = a.spec.as_ref().map(|s| &s.scale_target_ref);
        cell::shown_or(target.map(|t| format!("{}/{}", t.kind, t.name)), "")
    }),
    col("Targets", TARGETS, |a, _| Value::from(targets(a))),
    col("MinPods", MIN, |a, _| cell::shown_or(a.spec.as_ref().and_then(|s| s.min_replicas), "<unset>")),
    col("MaxPods", MAX, |a, _| cell::shown_or(a.spec.as_ref().map(|s| s.max_replicas), "")),
    col("Replicas", REPLICAS, |a, _| {
        cell::shown_or(Some(a.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0)), "")
    }),
    age(),
];

const REFERENCE: &str = "What is scaled.";
const TARGETS: &str = "Each measurement, as it is and as it should be.";
const MIN: &str = "The smallest number of Pods.";
const MAX: &str = "The largest number of Pods.";
const REPLICAS: &str = "The number of Pods that exist.";

const OLD_COLUMNS: &[Column<Old>] = &[
    name(),
    col("Reference", REFERENCE, |a, now| cell(a, 1, now)),
    col("Targets", TARGETS, |a, now| cell(a, 2, now)),
    col("MinPods", MIN, |a, now| cell(a, 3, now)),
    col("MaxPods", MAX, |a, now| cell(a, 4, now)),
    col("Replicas", REPLICAS, |a, now| cell(a, 5, now)),
    age(),
];

fn as_new(old: &Old) -> HorizontalPodAutoscaler {
    let mut object = json::to_value(old).unwrap_or_default();
    to_v2(&mut object);
    json::from_value(object).unwrap_or_default()
}

fn cell(old: &Old, column: usize, now: jiff::Timestamp) -> Value {
    (COLUMNS[column].cell)(&as_new(old), now)
}

fn validate(autoscaler: &HorizontalPodAutoscaler) -> Errors {
    autoscaler.spec.as_ref().map(validation::spec).unwrap_or_default()
}

/// The numbers are the same fields in both versions.
fn validate_status(new: &Value) -> Errors {
    rollout::status_counts(new, &["currentReplicas", "desiredReplicas"], &[])
}

fn default(autoscaler: &mut HorizontalPodAutoscaler) {
    let spec = autoscaler.spec.get_or_insert_default();
    spec.min_replicas.get_or_insert(1);
    if spec.metrics.as_ref().is_none_or(Vec::is_empty) {
        let target = MetricTarget {
            type_: "Utilization".to_owned(),
            average_utilization: Some(DEFAULT_CPU),
            ..Default::default()
        };
        let resource = Some(ResourceMetricSource { name: "cpu".to_owned(), target });
        spec.metrics = Some(vec![MetricSpec { type_: "Resource".to_owned(), resource, ..Default::default() }]);
    }
    if let Some(behavior) = &mut spec.behavior {
        let up = behavior.scale_up.get_or_insert_default();
        up.stabilization_window_seconds.get_or_insert(0);
        default_rules(up, &[("Pods", 4), ("Percent", 100)]);
        default_rules(behavior.scale_down.get_or_insert_default(), &[("Percent", 100)]);
    }
}

fn default_rules(rules: &mut HPAScalingRules, policies: &[(&str, i32)]) {
    rules.select_policy.get_or_insert_with(|| "Max".to_owned());
    rules.policies.get_or_insert_with(|| {
        let policy = |(kind, value): &(&str, i32)| HPAScalingPolicy {
            type_: (*kind).to_owned(),
            value: *value,
            period_seconds: 15,
        };
        policies.iter().map(policy).collect()
    });
}

fn targets(autoscaler: &HorizontalPodAutoscaler) -> String {
    let metrics = autoscaler.spec.as_ref().and_then(|s| s.metrics.as_deref()).unwrap_or_default();
    let current = autoscaler.status.as_ref().and_then(|s| s.current_metrics.as_deref()).unwrap_or_default();
    let one = |(i, metric): (usize, &MetricSpec)| target(metric, current.get(i));
    let list: Vec<String> = metrics.iter().enumerate().map(one).collect();
    match list.len() {
        0 => "<none>".to_owned(),
        1 | 2 => list.join(", "),
        n => format!("{} + {} more...", list[..2].join(", "), n - 2),
    }
}

fn target(metric: &MetricSpec, current: Option<&MetricStatus>) -> String {
    let resource = |name: &str, target: &MetricTarget, now: Option<&MetricValueStatus>| match &target.average_value {
        Some(value) => format!("{name}: {}/{}", quantity(now), value.0),
        None => {
            let now = now.and_then(|n| n.average_utilization).map_or("<unknown>".to_owned(), |u| format!("{u}%"));
            let wanted = target.average_utilization.map_or("<auto>".to_owned(), |u| format!("{u}%"));
            format!("{name}: {now}/{wanted}")
        }
    };
    let plain = |target: &MetricTarget, now: Option<&MetricValueStatus>| match (&target.average_value, &target.value) {
        (Some(value), _) => format!("{}/{} (avg)", quantity(now), value.0),
        (None, value) => {
            let now = now.and_then(|n| n.value.as_ref()).map_or("<unknown>", |q| q.0.as_str());
            format!("{now}/{}", value.as_ref().map_or("<auto>", |q| q.0.as_str()))
        }
    };
    if let Some(source) = &metric.resource {
        return resource(&source.name, &source.target, current.and_then(|c| c.resource.as_ref()).map(|r| &r.current));
    }
    if let Some(source) = &metric.container_resource {
        let now = current.and_then(|c| c.container_resource.as_ref()).map(|r| &r.current);
        return resource(&source.name, &source.target, now);
    }
    if let Some(source) = &metric.pods {
        let now = current.and_then(|c| c.pods.as_ref()).map(|r| &r.current);
        return format!("{}/{}", quantity(now), source.target.average_value.as_ref().map_or("", |q| q.0.as_str()));
    }
    if let Some(source) = &metric.external {
        return plain(&source.target, current.and_then(|c| c.external.as_ref()).map(|r| &r.current));
    }
    match &metric.object {
        Some(source) => plain(&source.target, current.and_then(|c| c.object.as_ref()).map(|r| &r.current)),
        None => "<unknown type>".to_owned(),
    }
}

fn quantity(now: Option<&MetricValueStatus>) -> &str {
    now.and_then(|n| n.average_value.as_ref()).map_or("<unknown>", |q| q.0.as_str())
}

/// A measurement of the processor as a share of what was asked for: the one thing that v1 has a field for.
fn is_cpu(metric: &Value) -> bool {
    metric["resource"]["name"] == "cpu" && !metric["resource"]["target"]["averageUtilization"].is_null()
}

fn field(object: &mut Value, part: &str) -> Map {
    object.get_mut(part).and_then(Value::as_object_mut).map(std::mem::take).unwrap_or_default()
}

fn annotations(object: &mut Value) -> Option<&mut Map> {
    crate::meta::metadata_mut(object)?.entry("annotations").or_insert_with(|| json!({})).as_object_mut()
}

fn to_v1(object: &mut Value) {
    let (mut spec, mut status) = (field(object, "spec"), field(object, "status"));
    let mut notes = Vec::new();
    if let Some(Value::Array(mut metrics)) = spec.remove("metrics") {
        if let Some(at) = metrics.iter().position(is_cpu) {
            let utilization = metrics.remove(at)["resource"]["target"]["averageUtilization"].clone();
            spec.insert("targetCPUUtilizationPercentage", utilization);
        }
        notes.push((METRICS, (!metrics.is_empty()).then_some(Value::Array(metrics))));
    }
    notes.push((BEHAVIOR, spec.remove("behavior")));
    if let Some(Value::Array(current)) = status.remove("currentMetrics") {
        if let Some(cpu) = current.iter().find(|m| m["resource"]["name"] == "cpu") {
            let utilization = cpu["resource"]["current"]["averageUtilization"].clone();
            if !utilization.is_null() {
                status.insert("currentCPUUtilizationPercentage", utilization);
            }
        }
        notes.push((CURRENT, (!current.is_empty()).then_some(Value::Array(current))));
    }
    notes.push((CONDITIONS, status.remove("conditions")));
    for needed in ["currentReplicas", "desiredReplicas"] {
        status.entry(needed).or_insert_with(|| json!(0));
    }
    write_back(object, "autoscaling/v1", spec, status);
    let notes: Vec<_> = notes.into_iter().filter_map(|(key, value)| value.map(|v| (key, v))).collect();
    if let Some(map) = (!notes.is_empty()).then(|| annotations(object)).flatten() {
        for (key, value) in notes {
            map.insert(key.to_owned(), Value::from(value.to_string()));
        }
    }
}

fn to_v2(object: &mut Value) {
    let (mut spec, mut status) = (field(object, "spec"), field(object, "status"));
    let mut note = |key: &str| {
        let map = object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()?;
        let value = serde_json::from_str(map.remove(key)?.as_str()?).ok()?;
        if map.is_empty() {
            object.get_mut("metadata")?.as_object_mut()?.remove("annotations");
        }
        Some(value)
    };
    let mut metrics = match note(METRICS) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    if let Some(utilization) = spec.remove("targetCPUUtilizationPercentage").filter(|u| !u.is_null()) {
        let target = json!({"type": "Utilization", "averageUtilization": utilization});
        metrics.insert(0, json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    // Whether v1 says nothing of metrics is known only now, with those in the annotations.
    if metrics.is_empty() {
        let target = json!({"type": "Utilization", "averageUtilization": DEFAULT_CPU});
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    spec.insert("metrics", Value::Array(metrics));
    spec.extend(note(BEHAVIOR).map(|b| ("behavior".to_owned(), b)));
    status.remove("currentCPUUtilizationPercentage");
    status.extend(note(CURRENT).map(|c| ("currentMetrics".to_owned(), c)));
    status.extend(note(CONDITIONS).map(|c| ("conditions".to_owned(), c)));
    write_back(object, "autoscaling/v2", spec, status);
}

fn write_back(object: &mut Value, version: &str, spec: Map, status: Map) {
    object["apiVersion"] = Value::from(version);
    object["spec"] = Value::Object(spec);
    object["status"] = Value::Object(status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_of_a_status_is_negative() {
        for check in [HORIZONTAL_POD_AUTOSCALER.validate_status, HORIZONTAL_POD_AUTOSCALER_V1.validate_status] {
            rollout::check_status(check, &json!({"currentReplicas": 0, "desiredReplicas": 1}), &Value::Null, &[]);
            let expected = [
                "status.currentReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.desiredReplicas: Invalid value: -2: must be greater than or equal to 0",
            ];
            let negative = json!({"currentReplicas": -1, "desiredReplicas": -2});
            rollout::check_status(check, &negative, &Value::Null, &expected);
        }
    }

    #[test]
    fn v1_and_v2_are_the_same_object() {
        let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
            "spec": {"maxReplicas": 3, "minReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
                "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 50}}},
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}]},
            "status": {"currentReplicas": 1, "desiredReplicas": 2, "conditions": []}});
        let mut object = v2.clone();
        to_v1(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 50);
        assert!(json::from_value::<Old>(object.clone()).is_ok());
        to_v2(&mut object);
        assert_eq!(object, v2);
        let shown: HorizontalPodAutoscaler = json::from_value(v2).unwrap();
        assert_eq!(targets(&shown), "cpu: <unknown>/50%, memory: <unknown>/1Gi");
    }

    #[test]
    fn an_old_object_without_metrics_aims_at_the_default() {
        let old = Old { spec: Some(Default::default()), ..Default::default() };
        assert_eq!(targets(&as_new(&old)), "cpu: <unknown>/80%");
    }
}
