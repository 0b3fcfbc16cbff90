//! ReplicationController: the older form of ReplicaSet.

use k8s_openapi::api::core::v1::{PodTemplateSpec, ReplicationController, ReplicationControllerSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::cell;
use crate::kind::{Kind, label};
use crate::kinds::pod::{defaults, gated, validate as pods};
use crate::kinds::rollout;
use crate::kinds::workload::{self, Counted, Workload};
use crate::meta::field_text;
use crate::rules::selector::Selector;
use crate::validation::field::{Errors, FieldError, Path};

pub const REPLICATION_CONTROLLER: Kind<ReplicationController> = Kind {
    gated: gated::OF_TEMPLATE,
    gated_texts: gated::TEXTS_OF_TEMPLATE,
    short: &["rc"],
    scale: Some(workload::SCALE),
    storage_prefix: Some("controllers"),
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "template"])),
    validate: Some(validate),
    validate_status: Some(|new, _| rollout::replica_counts(new)),
    columns: ReplicationController::COLUMNS,
    field_labels: &[label("status.replicas", |o| field_text(o, &["status", "replicas"]))],
    warnings: Some(workload::named_warnings),
    ..workload::base()
};

fn spec(controller: &ReplicationController) -> Option<&ReplicationControllerSpec> {
    controller.spec.as_ref()
}

impl Workload for ReplicationController {
    fn template(&self) -> Option<&PodTemplateSpec> {
        spec(self)?.template.as_ref()
    }

    /// Its selector is a plain map of labels.
    fn selector(&self) -> Option<&LabelSelector> {
        None
    }

    fn selector_text(&self) -> String {
        cell::labels(spec(self).and_then(|s| s.selector.as_ref()))
    }
}

fn default(controller: &mut ReplicationController) {
    let spec = controller.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    if let Some(template) = &mut spec.template {
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
    let mut errors: Errors = rollout::not_negative(&path, "replicas", spec.replicas).into_iter().collect();
    errors.extend(rollout::not_negative(&path, "minReadySeconds", spec.min_ready_seconds));
    if spec.selector.as_ref().is_none_or(|s| s.is_empty()) {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    let place = path.child("template");
    let Some(template) = &spec.template else {
        errors.push(FieldError::required(&place, ""));
        return errors;
    };
    let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
    if let Some(selector) = spec.selector.as_ref().filter(|s| !s.is_empty()) {
        let matches = Selector::of_labels(selector).matches(&labels);
        errors.extend(rollout::template_matches(matches, labels, &place));
    }
    errors.extend(pods::validate_template(template, &place));
    errors.extend(rollout::always_restarts(template, "ReplicationController", &place));
    errors
}
