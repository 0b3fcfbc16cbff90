//! The validation of an autoscaler's spec. Upstream counterpart: pkg/apis/autoscaling/validation.

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
    HorizontalPodAutoscalerSpec, MetricIdentifier, MetricSpec, MetricTarget,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::rules::quantity::{self, Quantity};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::NameRule;

const LONGEST_PERIOD: i32 = 1800;
const LONGEST_WINDOW: i32 = 3600;
const SOURCES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// Checks the spec of either version, in the form of v2.
pub fn spec(spec: &HorizontalPodAutoscalerSpec) -> Errors {
    let path = Path::new("spec");
    let mut errors = bounds(spec, &path);
    errors.extend(reference(&spec.scale_target_ref, &path.child("scaleTargetRef")));
    for (i, one) in spec.metrics.iter().flatten().enumerate() {
        errors.extend(metric(one, &path.child("metrics").index(i)));
    }
    if let Some(HorizontalPodAutoscalerBehavior { scale_up, scale_down }) = &spec.behavior {
        let path = path.child("behavior");
        errors.extend(scale_up.iter().flat_map(|r| rules(r, &path.child("scaleUp"))));
        errors.extend(scale_down.iter().flat_map(|r| rules(r, &path.child("scaleDown"))));
    }
    errors
}

fn bounds(spec: &HorizontalPodAutoscalerSpec, path: &Path) -> Errors {
    let (min, max) = (spec.min_replicas, spec.max_replicas);
    let mut errors = Errors::new();
    if let Some(min) = min.filter(|m| *m < 1) {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(&path.child("minReplicas"), min, detail));
    }
    if max < 1 {
        errors.push(FieldError::invalid(&path.child("maxReplicas"), max, "must be greater than 0"));
    }
    if min.is_some_and(|min| max < min) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&path.child("maxReplicas"), max, detail));
    }
    errors
}

fn reference(to: &CrossVersionObjectReference, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value) in [("kind", &to.kind), ("name", &to.name)] {
        let path = path.child(field);
        if value.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else {
            let wrong = NameRule::PathSegment.check(value, false);
            errors.extend(wrong.into_iter().map(|why| FieldError::invalid(&path, value, &why)));
        }
    }
    errors
}

fn rules(rules: &HPAScalingRules, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let window = path.child("stabilizationWindowSeconds");
    match rules.stabilization_window_seconds {
        Some(seconds) if seconds < 0 => {
            errors.push(FieldError::invalid(&window, seconds, "must be greater than or equal to zero"));
        }
        Some(seconds) if seconds > LONGEST_WINDOW => {
            let detail = format!("must be less than or equal to {LONGEST_WINDOW}");
            errors.push(FieldError::invalid(&window, seconds, &detail));
        }
        _ => {}
    }
    if let Some(policy) = rules.select_policy.as_deref()
        && !["Disabled", "Max", "Min"].contains(&policy)
    {
        errors.push(FieldError::not_supported(&path.child("selectPolicy"), policy, &["Disabled", "Max", "Min"]));
    }
    let policies = rules.policies.as_deref().unwrap_or_default();
    if policies.is_empty() {
        errors.push(FieldError::required(&path.child("policies"), "must specify at least one Policy"));
    }
    for (i, one) in policies.iter().enumerate() {
        errors.extend(policy(one, &path.child("policies").index(i)));
    }
    if let Some(tolerance) = &rules.tolerance
        && quantity::parse(tolerance).is_negative()
    {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("tolerance"), &tolerance.0, detail));
    }
    errors
}

fn policy(policy: &HPAScalingPolicy, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if !matches!(policy.type_.as_str(), "Pods" | "Percent") {
        errors.push(FieldError::not_supported(&path.child("type"), &policy.type_, &["Percent", "Pods"]));
    }
    for (field, value) in [("value", policy.value), ("periodSeconds", policy.period_seconds)] {
        if value <= 0 {
            errors.push(FieldError::invalid(&path.child(field), value, "must be greater than zero"));
        }
    }
    if policy.period_seconds > LONGEST_PERIOD {
        let detail = format!("must be less than or equal to {LONGEST_PERIOD}");
        errors.push(FieldError::invalid(&path.child("periodSeconds"), policy.period_seconds, &detail));
    }
    errors
}

/// One metric has the one source that its type names.
fn metric(metric: &MetricSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if metric.type_.is_empty() {
        errors.push(FieldError::required(&path.child("type"), "must specify a metric source type"));
    }
    if !SOURCES.contains(&metric.type_.as_str()) {
        errors.push(FieldError::not_supported(&path.child("type"), &metric.type_, &SOURCES));
    }
    let present = [
        ("object", metric.object.as_ref().map(|_| object as Check)),
        ("external", metric.external.as_ref().map(|_| external as Check)),
        ("pods", metric.pods.as_ref().map(|_| pods as Check)),
        ("resource", metric.resource.as_ref().map(|_| resource as Check)),
        ("containerResource", metric.container_resource.as_ref().map(|_| container_resource as Check)),
    ];
    let present: Vec<(&str, Check)> = present.into_iter().filter_map(|(name, check)| Some((name, check?))).collect();
    if let Some((name, check)) = present.first() {
        errors.extend(check(metric, &path.child(name)));
    }
    let expected = match metric.type_.as_str() {
        "ContainerResource" => "containerResource".to_owned(),
        other => other.to_lowercase(),
    };
    if SOURCES.contains(&metric.type_.as_str()) && !present.iter().any(|(name, _)| *name == expected) {
        let detail = "must populate information for the given metric source";
        errors.push(FieldError::required(&path.child(&expected), detail));
    }
    if present.len() != 1 {
        let others = present.iter().filter(|(name, _)| *name != expected);
        let detail = "must populate the given metric source only";
        errors.extend(others.map(|(name, _)| FieldError::forbidden(&path.child(name), detail)));
    }
    errors
}

type Check = fn(&MetricSpec, &Path) -> Errors;

fn object(metric: &MetricSpec, path: &Path) -> Errors {
    let Some(source) = &metric.object else { return Errors::new() };
    let mut errors = reference(&source.described_object, &path.child("describedObject"));
    errors.extend(identifier(&source.metric, &path.child("metric")));
    errors.extend(target(&source.target, &path.child("target")));
    if source.target.value.is_none() && source.target.average_value.is_none() {
        let path = path.child("target").child("averageValue");
        errors.push(FieldError::required(&path, "must set either a target value or averageValue"));
    }
    errors
}

fn external(metric: &MetricSpec, path: &Path) -> Errors {
    let Some(source) = &metric.external else { return Errors::new() };
    let mut errors = identifier(&source.metric, &path.child("metric"));
    let at = path.child("target");
    errors.extend(target(&source.target, &at));
    match (&source.target.value, &source.target.average_value) {
        (None, None) => {
            let detail = "must set either a target value for metric or a per-pod target";
            errors.push(FieldError::required(&at.child("averageValue"), detail));
        }
        (Some(_), Some(_)) => {
            let detail = "may not set both a target value for metric and a per-pod target";
            errors.push(FieldError::forbidden(&at.child("value"), detail));
        }
        _ => {}
    }
    errors
}

fn pods(metric: &MetricSpec, path: &Path) -> Errors {
    let Some(source) = &metric.pods else { return Errors::new() };
    let mut errors = identifier(&source.metric, &path.child("metric"));
    errors.extend(target(&source.target, &path.child("target")));
    if !source.target.average_value.as_ref().is_some_and(is_positive) {
        let path = path.child("target").child("averageValue");
        errors.push(FieldError::required(&path, "must specify a positive target averageValue"));
    }
    errors
}

fn resource(metric: &MetricSpec, path: &Path) -> Errors {
    let Some(source) = &metric.resource else { return Errors::new() };
    resource_target(&source.name, &source.target, path)
}

fn container_resource(metric: &MetricSpec, path: &Path) -> Errors {
    let Some(source) = &metric.container_resource else { return Errors::new() };
    let mut errors = resource_target(&source.name, &source.target, path);
    if source.container.is_empty() {
        errors.push(FieldError::required(&path.child("container"), "must specify a container"));
    }
    errors
}

fn resource_target(name: &str, to: &MetricTarget, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let at = path.child("target");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "must specify a resource name"));
    }
    errors.extend(target(to, &at));
    match (to.average_utilization, &to.average_value) {
        (None, None) => {
            let detail = "must set either a target raw value or a target utilization";
            errors.push(FieldError::required(&at.child("averageUtilization"), detail));
        }
        (Some(_), Some(_)) => {
            let detail = "may not set both a target raw value and a target utilization";
            errors.push(FieldError::forbidden(&at.child("averageValue"), detail));
        }
        _ => {}
    }
    errors
}

fn is_positive(text: &Text) -> bool {
    quantity::parse(text) > Quantity::ZERO
}

fn target(target: &MetricTarget, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if target.type_.is_empty() {
        errors.push(FieldError::required(&path.child("type"), "must specify a metric target type"));
    }
    if !matches!(target.type_.as_str(), "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&path.child("type"), &target.type_, detail));
    }
    for (field, value) in [("value", &target.value), ("averageValue", &target.average_value)] {
        if let Some(value) = value.as_ref().filter(|v| !is_positive(v)) {
            errors.push(FieldError::invalid(&path.child(field), &value.0, "must be positive"));
        }
    }
    if let Some(share) = target.average_utilization.filter(|share| *share < 1) {
        errors.push(FieldError::invalid(&path.child("averageUtilization"), share, "must be greater than 0"));
    }
    errors
}

fn identifier(metric: &MetricIdentifier, path: &Path) -> Errors {
    let path = path.child("name");
    if metric.name.is_empty() {
        return vec![FieldError::required(&path, "must specify a metric name")];
    }
    let wrong = NameRule::PathSegment.check(&metric.name, false);
    wrong.into_iter().map(|why| FieldError::invalid(&path, &metric.name, &why)).collect()
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn check(change: Value, expected: &[&str]) {
        let mut object =
            json!({"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 3});
        for (field, value) in change.as_object().unwrap() {
            object[field] = value.clone();
        }
        let typed: HorizontalPodAutoscalerSpec = json::from_value(object).unwrap();
        let found: Vec<String> = spec(&typed).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{change}");
    }

    #[test]
    fn bounds_and_references() {
        check(json!({}), &[]);
        check(
            json!({"minReplicas": 0, "maxReplicas": 0}),
            &[
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
                "spec.maxReplicas: Invalid value: 0: must be greater than 0",
            ],
        );
        check(
            json!({"minReplicas": 4}),
            &["spec.maxReplicas: Invalid value: 3: must be greater than or equal to `minReplicas`"],
        );
        check(
            json!({"scaleTargetRef": {"kind": "", "name": "a/b"}}),
            &[
                "spec.scaleTargetRef.kind: Required value",
                "spec.scaleTargetRef.name: Invalid value: \"a/b\": may not contain '/'",
            ],
        );
    }

    #[test]
    fn metrics_have_the_source_and_target_that_they_name() {
        let one = |metric: Value, expected: &[&str]| check(json!({"metrics": [metric]}), expected);
        let resource = |target: Value| json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        one(resource(json!({"type": "Utilization", "averageUtilization": 50})), &[]);
        one(
            resource(json!({"type": "Utilization", "averageUtilization": 0})),
            &["spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0"],
        );
        one(
            resource(json!({"type": "AverageValue", "averageUtilization": 1, "averageValue": "0"})),
            &[
                "spec.metrics[0].resource.target.averageValue: Invalid value: \"0\": must be positive",
                "spec.metrics[0].resource.target.averageValue: Forbidden: may not set both a target raw value and a target utilization",
            ],
        );
        one(
            resource(json!({"type": "Value"})),
            &[
                "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
            ],
        );
        one(
            json!({"type": "Pods", "pods": {"metric": {"name": ""}, "target": {"type": "AverageValue"}}}),
            &[
                "spec.metrics[0].pods.metric.name: Required value: must specify a metric name",
                "spec.metrics[0].pods.target.averageValue: Required value: must specify a positive target averageValue",
            ],
        );
        one(
            json!({"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1", "averageValue": "1"}}}),
            &[
                "spec.metrics[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
            ],
        );
        one(
            json!({"type": "ContainerResource"}),
            &[
                "spec.metrics[0].containerResource: Required value: must populate information for the given metric source",
            ],
        );
        let mut both = resource(json!({"type": "Utilization", "averageUtilization": 50}));
        both["pods"] = json!({"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}});
        one(both, &["spec.metrics[0].pods: Forbidden: must populate the given metric source only"]);
        one(
            json!({"type": "Sum"}),
            &[
                "spec.metrics[0].type: Unsupported value: \"Sum\": supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"",
            ],
        );
    }

    #[test]
    fn behaviour_is_bounded() {
        let rule = |rule: Value, expected: &[&str]| check(json!({"behavior": {"scaleUp": rule}}), expected);
        let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 15}]);
        rule(json!({"policies": policies, "tolerance": "5m", "stabilizationWindowSeconds": 3600}), &[]);
        rule(
            json!({"policies": [], "stabilizationWindowSeconds": 3601, "selectPolicy": "Sum", "tolerance": "-1"}),
            &[
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600",
                "spec.behavior.scaleUp.selectPolicy: Unsupported value: \"Sum\": supported values: \"Disabled\", \"Max\", \"Min\"",
                "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
                "spec.behavior.scaleUp.tolerance: Invalid value: \"-1\": must be greater than or equal to 0",
            ],
        );
        rule(
            json!({"policies": [{"type": "Nodes", "value": 0, "periodSeconds": 1801}]}),
            &[
                "spec.behavior.scaleUp.policies[0].type: Unsupported value: \"Nodes\": supported values: \"Percent\", \"Pods\"",
                "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
            ],
        );
    }
}
