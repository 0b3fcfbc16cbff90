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
    validate_status: Some(|new, _| rollout::replica_counts(new)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::replication_controller::REPLICATION_CONTROLLER;
    use json::{Value, json};

    #[test]
    fn a_status_counts_parts_of_its_replicas() {
        let check = |new: Value, expected: &[&str]| {
            for check in [REPLICA_SET.validate_status, REPLICATION_CONTROLLER.validate_status] {
                rollout::check_status(check, &new, &Value::Null, expected);
            }
        };
        check(
            json!({"observedGeneration": 1, "replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 2,
                "availableReplicas": 2, "terminatingReplicas": 4}),
            &[],
        );
        check(
            json!({"observedGeneration": -1, "replicas": 1, "fullyLabeledReplicas": 2, "readyReplicas": 2,
                "availableReplicas": 3}),
            &[
                "status.observedGeneration: Invalid value: -1: must be greater than or equal to 0",
                "status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 3: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas",
            ],
        );
    }
}
