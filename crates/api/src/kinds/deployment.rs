//! Deployment: a changing set of identical Pods, realised through ReplicaSets.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Generation, Kind, Scale, age, col, name, wide};
use crate::kinds::pod::{defaults, validate as pod};
use crate::kinds::rollout;
use crate::{selector, table};

pub const DEPLOYMENT: Kind<Deployment> = Kind {
    short: &["deploy"],
    categories: &["all"],
    status: true,
    scale: Some(Scale { wanted: "spec.replicas", current: "status.replicas", selector: "spec.selector" }),
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    warnings: Some(|d, _| rollout::template_warnings(d.spec.as_ref().and_then(|s| s.template.spec.as_ref()))),
    columns: &[
        name(),
        col("Ready", "Number of the pod with ready state", |d, _| {
            let ready = d.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
            Value::from(format!("{ready}/{}", spec(d).and_then(|s| s.replicas).unwrap_or(0)))
        }),
        col("Up-to-date", "Number of Pods that have the present template.", |d, _| {
            Value::from(d.status.as_ref().and_then(|s| s.updated_replicas).unwrap_or(0).to_string())
        }),
        col("Available", "Number of Pods that have been ready for long enough.", |d, _| {
            Value::from(d.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0).to_string())
        }),
        age(),
        wide("Containers", table::CONTAINERS_ABOUT, |d, _| {
            table::container_names(spec(d).and_then(|s| s.template.spec.as_ref()))
        }),
        wide("Images", table::IMAGES_ABOUT, |d, _| {
            table::container_images(spec(d).and_then(|s| s.template.spec.as_ref()))
        }),
        wide("Selector", "The labels that its Pods have.", |d, _| {
            Value::from(selector::describe(spec(d).map(|s| &s.selector)))
        }),
    ],
    ..Kind::BASE
};

fn spec(deployment: &Deployment) -> Option<&DeploymentSpec> {
    deployment.spec.as_ref()
}

fn default(deployment: &mut Deployment) {
    let spec = deployment.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    let strategy = spec.strategy.get_or_insert_default();
    if strategy.type_.as_deref().unwrap_or_default().is_empty() {
        strategy.type_ = Some("RollingUpdate".to_owned());
    }
    if strategy.type_.as_deref() == Some("RollingUpdate") {
        let rolling = strategy.rolling_update.get_or_insert_default();
        rolling.max_unavailable.get_or_insert_with(|| IntOrString::String("25%".to_owned()));
        rolling.max_surge.get_or_insert_with(|| IntOrString::String("25%".to_owned()));
    }
    spec.revision_history_limit.get_or_insert(10);
    spec.progress_deadline_seconds.get_or_insert(600);
    defaults::template(&mut spec.template);
}

fn validate(deployment: &Deployment) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(deployment) else { return vec![FieldError::required(&path, "")] };
    let mut errors = rollout::not_negative(&path.child("replicas"), spec.replicas);
    errors.extend(rollout::selector_selects(&spec.selector, &spec.template, &path));
    errors.extend(pod::validate_template(&spec.template, &path.child("template")));
    errors.extend(rollout::always_restarts(&spec.template, &path.child("template")));
    errors.extend(validate_strategy(spec, &path.child("strategy")));
    errors.extend(rollout::not_negative(&path.child("minReadySeconds"), spec.min_ready_seconds));
    errors.extend(rollout::not_negative(&path.child("revisionHistoryLimit"), spec.revision_history_limit));
    if let Some(deadline) = spec.progress_deadline_seconds {
        let path = path.child("progressDeadlineSeconds");
        errors.extend(rollout::not_negative(&path, Some(deadline)));
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
        other => vec![FieldError::not_supported(path, other, &["Recreate", "RollingUpdate"])],
    }
}

fn validate_update(new: &Deployment, old: &Deployment) -> Errors {
    rollout::selector_is_fixed(spec(new).map(|s| &s.selector), spec(old).map(|s| &s.selector))
}
