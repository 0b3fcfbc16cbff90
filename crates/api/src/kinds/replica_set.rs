//! ReplicaSet: a fixed number of identical Pods.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Generation, Kind, Scale, age, int, name, wide};
use crate::kinds::pod::{defaults, validate as pod};
use crate::kinds::rollout;
use crate::{selector, table};

pub const REPLICA_SET: Kind<ReplicaSet> = Kind {
    short: &["rs"],
    categories: &["all"],
    status: true,
    scale: Some(Scale { wanted: "spec.replicas", current: "status.replicas", selector: "spec.selector" }),
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    warnings: Some(|d, _| {
        rollout::template_warnings(d.spec.as_ref().and_then(|s| s.template.as_ref()).and_then(|t| t.spec.as_ref()))
    }),
    columns: &[
        name(),
        int("Desired", "Number of Pods wanted.", |r, _| Value::from(spec(r).and_then(|s| s.replicas).unwrap_or(0))),
        int("Current", "Number of Pods that exist.", |r, _| Value::from(r.status.as_ref().map_or(0, |s| s.replicas))),
        int("Ready", "Number of Pods that are ready.", |r, _| {
            Value::from(r.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0))
        }),
        age(),
        wide("Containers", table::CONTAINERS_ABOUT, |r, _| table::container_names(pod_spec(r))),
        wide("Images", table::IMAGES_ABOUT, |r, _| table::container_images(pod_spec(r))),
        wide("Selector", "The labels that its Pods have.", |r, _| {
            Value::from(selector::describe(spec(r).map(|s| &s.selector)))
        }),
    ],
    ..Kind::BASE
};

fn spec(set: &ReplicaSet) -> Option<&ReplicaSetSpec> {
    set.spec.as_ref()
}

fn pod_spec(set: &ReplicaSet) -> Option<&PodSpec> {
    spec(set)?.template.as_ref()?.spec.as_ref()
}

fn default(set: &mut ReplicaSet) {
    let spec = set.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    defaults::template(spec.template.get_or_insert_default());
}

fn validate(set: &ReplicaSet) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(set) else { return vec![FieldError::required(&path, "")] };
    let mut errors = rollout::not_negative(&path.child("replicas"), spec.replicas);
    errors.extend(rollout::not_negative(&path.child("minReadySeconds"), spec.min_ready_seconds));
    let Some(template) = &spec.template else {
        errors.push(FieldError::required(&path.child("template"), ""));
        return errors;
    };
    errors.extend(rollout::selector_selects(&spec.selector, template, &path));
    errors.extend(pod::validate_template(template, &path.child("template")));
    errors.extend(rollout::always_restarts(template, &path.child("template")));
    errors
}

fn validate_update(new: &ReplicaSet, old: &ReplicaSet) -> Errors {
    rollout::selector_is_fixed(spec(new).map(|s| &s.selector), spec(old).map(|s| &s.selector))
}
