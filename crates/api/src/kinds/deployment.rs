//! Deployment: a changing set of identical Pods, realised through ReplicaSets.

use json::{Map, Value};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Generation, Kind, StatusMetadata, age, col, name};
use crate::kinds::pod::{defaults, gated, validate as pod};
use crate::kinds::rollout;
use crate::kinds::workload;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;

pub const DEPLOYMENT: Kind<Deployment> = Kind {
    gated: gated::OF_TEMPLATE,
    gated_texts: gated::TEXTS_OF_TEMPLATE,
    short: &["deploy"],
    status_metadata: StatusMetadata::KeepsLabels,
    scale: Some(workload::SCALE),
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "template"])),
    default_within_spec: true,
    generation: Generation::Counts(|new, old| {
        new.get("spec") != old.get("spec") || annotations(new) != annotations(old)
    }),
    validate: Some(validate),
    validate_status: Some(validate_status),
    columns: &[
        name(),
        col("Ready", workload::READY_ABOUT, |d, _| {
            workload::ready_of(d.status.as_ref().and_then(|s| s.ready_replicas), spec(d).and_then(|s| s.replicas))
        }),
        col("Up-to-date", "Number of Pods that have the present template.", |d, _| {
            Value::from(d.status.as_ref().and_then(|s| s.updated_replicas).unwrap_or(0).to_string())
        }),
        col("Available", "Number of Pods that have been ready for long enough.", |d, _| {
            Value::from(d.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0).to_string())
        }),
        age(),
        workload::containers(),
        workload::images(),
        workload::selected(),
    ],
    warnings: Some(workload::named_warnings),
    ..workload::base()
};

/// They count in the generation, since ReplicaSets have them too.
fn annotations(deployment: &Value) -> Option<&Map> {
    let annotations = deployment.pointer("/metadata/annotations").and_then(Value::as_object);
    annotations.filter(|annotations| !annotations.is_empty())
}

fn spec(deployment: &Deployment) -> Option<&DeploymentSpec> {
    deployment.spec.as_ref()
}

fn default(deployment: &mut Deployment) {
    let spec = deployment.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    let strategy = spec.strategy.get_or_insert_default();
    defaults::fill(&mut strategy.type_, "RollingUpdate");
    if strategy.type_.as_deref() == Some("RollingUpdate") {
        let rolling = strategy.rolling_update.get_or_insert_default();
        rolling.max_unavailable.get_or_insert_with(|| IntOrString::String("25%".to_owned()));
        rolling.max_surge.get_or_insert_with(|| IntOrString::String("25%".to_owned()));
    }
    spec.revision_history_limit.get_or_insert(10);
    spec.progress_deadline_seconds.get_or_insert(600);
}

fn validate(deployment: &Deployment) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(deployment) else { return vec![FieldError::required(&path, "")] };
    let mut errors: Errors = rollout::not_negative(&path, "replicas", spec.replicas).into_iter().collect();
    errors.extend(rollout::selector_selects(&spec.selector, &spec.template, "deployment", &path));
    errors.extend(pod::validate_template(&spec.template, &path.child("template")));
    errors.extend(rollout::always_restarts(&spec.template, "ReplicaSet", &path.child("template")));
    errors.extend(validate_strategy(spec, &path.child("strategy")));
    errors.extend(rollout::not_negative(&path, "minReadySeconds", spec.min_ready_seconds));
    errors.extend(rollout::not_negative(&path, "revisionHistoryLimit", spec.revision_history_limit));
    if let Some(deadline) = spec.progress_deadline_seconds {
        errors.extend(rollout::not_negative(&path, "progressDeadlineSeconds", Some(deadline)));
        let path = path.child("progressDeadlineSeconds");
        if deadline <= spec.min_ready_seconds.unwrap_or(0) {
            errors.push(FieldError::invalid(&path, deadline, "must be greater than minReadySeconds"));
        }
    }
    errors
}

fn validate_strategy(spec: &DeploymentSpec, path: &Path) -> Errors {
    let Some(strategy) = &spec.strategy else { return Errors::new() };
    let rolling = strategy.rolling_update.as_ref();
    match strategy.type_.as_deref().unwrap_or_default() {
        "Recreate" if rolling.is_some() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            vec![FieldError::forbidden(&path.child("rollingUpdate"), detail)]
        }
        "Recreate" => Errors::new(),
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            let Some(rolling) = rolling else {
                return vec![FieldError::required(&path, "this should be defaulted and never be nil")];
            };
            rollout::budget(rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref(), &path)
        }
        _ => {
            let shown = internal_form::compact("DeploymentStrategy", strategy);
            vec![FieldError::not_supported_shown(path, &shown, &["Recreate", "RollingUpdate"])]
        }
    }
}

fn validate_status(new: &Value, old: &Value) -> Errors {
    let counts = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    let [ready, available, available_of_ready] = rollout::READY_PARTS;
    let updated = ("updatedReplicas", "replicas", rollout::MORE_THAN_ALL);
    rollout::revision_counts(new, old, &counts, &[updated, ready, available, available_of_ready])
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_status_counts_parts_of_its_replicas() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            rollout::check_status(DEPLOYMENT.validate_status, &new, &old, expected);
        };
        let full = json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 2,
            "availableReplicas": 2, "unavailableReplicas": 1, "terminatingReplicas": 4, "collisionCount": 1});
        check(full, json!({"collisionCount": 1}), &[]);
        check(json!({}), Value::Null, &[]);
        let least = "must be greater than or equal to 0";
        check(
            json!({"observedGeneration": -1, "terminatingReplicas": -2, "updatedReplicas": 1, "readyReplicas": 2,
                "availableReplicas": 3}),
            json!({"collisionCount": 2}),
            &[
                &format!("status.observedGeneration: Invalid value: -1: {least}"),
                &format!("status.terminatingReplicas: Invalid value: -2: {least}"),
                "status.updatedReplicas: Invalid value: 1: cannot be greater than status.replicas",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 3: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ],
        );
    }
}
