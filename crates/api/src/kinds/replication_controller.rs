//! ReplicationController: the older form of ReplicaSet.

use k8s_openapi::api::core::v1::{ReplicationController, ReplicationControllerSpec};
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Generation, Kind, Scale, age, int, label, name, wide};
use crate::kinds::pod::{defaults, validate as pods};
use crate::kinds::rollout;
use crate::meta::field_text;
use crate::selector::Selector;
use crate::table;

pub const REPLICATION_CONTROLLER: Kind<ReplicationController> = Kind {
    short: &["rc"],
    categories: &["all"],
    status: true,
    scale: Some(Scale { wanted: "spec.replicas", current: "status.replicas", selector: "spec.selector" }),
    storage_prefix: Some("controllers"),
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    warnings: Some(|c, _| rollout::template_warnings(pod(c))),
    columns: &[
        name(),
        int("Desired", "Number of Pods wanted.", |c, _| Value::from(spec(c).and_then(|s| s.replicas).unwrap_or(0))),
        int("Current", "Number of Pods that exist.", |c, _| Value::from(c.status.as_ref().map_or(0, |s| s.replicas))),
        int("Ready", "Number of Pods that are ready.", |c, _| {
            Value::from(c.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0))
        }),
        age(),
        wide("Containers", table::CONTAINERS_ABOUT, |c, _| table::container_names(pod(c))),
        wide("Images", table::IMAGES_ABOUT, |c, _| table::container_images(pod(c))),
        wide("Selector", "The labels that its Pods have.", |c, _| {
            Value::from(table::labels(spec(c).and_then(|s| s.selector.as_ref())))
        }),
    ],
    field_labels: &[label("status.replicas", |o| field_text(o, &["status", "replicas"]))],
    ..Kind::BASE
};

fn spec(controller: &ReplicationController) -> Option<&ReplicationControllerSpec> {
    controller.spec.as_ref()
}

fn pod(controller: &ReplicationController) -> Option<&k8s_openapi::api::core::v1::PodSpec> {
    spec(controller)?.template.as_ref()?.spec.as_ref()
}

fn default(controller: &mut ReplicationController) {
    let spec = controller.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    if let Some(template) = &mut spec.template {
        defaults::template(template);
        let labels = template.metadata.as_ref().and_then(|m| m.labels.clone());
        if let Some(labels) = labels {
            if spec.selector.as_ref().is_none_or(|s| s.is_empty()) {
                spec.selector = Some(labels.clone());
            }
            if controller.metadata.labels.as_ref().is_none_or(|l| l.is_empty()) {
                controller.metadata.labels = Some(labels);
            }
        }
    }
}

fn validate(controller: &ReplicationController) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(controller) else { return vec![FieldError::required(&path, "")] };
    let mut errors = rollout::not_negative(&path.child("replicas"), spec.replicas);
    errors.extend(rollout::not_negative(&path.child("minReadySeconds"), spec.min_ready_seconds));
    if spec.selector.as_ref().is_none_or(|s| s.is_empty()) {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    let place = path.child("template");
    let Some(template) = &spec.template else {
        errors.push(FieldError::required(&place, ""));
        return errors;
    };
    let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
    if !spec.selector.as_ref().is_some_and(|s| Selector::of_labels(s).matches(&labels)) {
        let none = std::collections::BTreeMap::new();
        let detail = "`selector` does not match template `labels`";
        let path = place.child("metadata").child("labels");
        errors.push(FieldError::invalid(&path, labels.unwrap_or(&none), detail));
    }
    errors.extend(pods::validate_template(template, &place));
    errors.extend(rollout::always_restarts(template, &place));
    errors
}
