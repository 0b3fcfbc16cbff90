//! ReplicaSet: a fixed number of identical Pods.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::Kind;
use crate::kinds::pod::{defaults, gated, validate as pod};
use crate::kinds::rollout;
use crate::kinds::workload::{self, Counted, Workload};
use crate::validation::field::{Errors, FieldError, Path};

pub const REPLICA_SET: Kind<ReplicaSet> = Kind {
    gated: gated::OF_TEMPLATE,
    gated_texts: gated::TEXTS_OF_TEMPLATE,
    short: &["rs"],
    scale: Some(workload::SCALE),
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "template"])),
    default_within_spec: true,
    validate: Some(validate),
    columns: ReplicaSet::COLUMNS,
    warnings: Some(workload::named_warnings),
    ..workload::base()
};

fn spec(set: &ReplicaSet) -> Option<&ReplicaSetSpec> {
    set.spec.as_ref()
}

impl Workload for ReplicaSet {
    fn template(&self) -> Option<&PodTemplateSpec> {
        spec(self)?.template.as_ref()
    }

    fn selector(&self) -> Option<&LabelSelector> {
        spec(self).map(|s| &s.selector)
    }
}

fn default(set: &mut ReplicaSet) {
    let spec = set.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    spec.template.get_or_insert_default();
}

fn validate(set: &ReplicaSet) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(set) else { return vec![FieldError::required(&path, "")] };
    let mut errors: Errors = rollout::not_negative(&path, "replicas", spec.replicas).into_iter().collect();
    errors.extend(rollout::not_negative(&path, "minReadySeconds", spec.min_ready_seconds));
    let Some(template) = &spec.template else {
        errors.push(FieldError::required(&path.child("template"), ""));
        return errors;
    };
    errors.extend(rollout::selector_selects(&spec.selector, template, "deployment", &path));
    errors.extend(pod::validate_template(template, &path.child("template")));
    errors.extend(rollout::always_restarts(template, "ReplicaSet", &path.child("template")));
    errors
}
