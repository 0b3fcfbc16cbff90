//! ReplicaSet: a fixed number of identical Pods.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::{Generation, Kind, Scale, age, name};
use crate::kinds::pod::{defaults, validate as pod};
use crate::kinds::rollout;
use crate::kinds::workload::{self, Counted, Counts, Workload};
use crate::validation::field::{Errors, FieldError, Path};

pub const REPLICA_SET: Kind<ReplicaSet> = Kind {
    short: &["rs"],
    categories: &["all"],
    status: true,
    scale: Some(Scale { wanted: "spec.replicas", current: "status.replicas", selector: Some("spec.selector") }),
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(workload::selector_is_fixed),
    warnings: Some(workload::warnings),
    columns: &[
        name(),
        workload::desired(),
        workload::current(),
        workload::ready(),
        age(),
        workload::containers(),
        workload::images(),
        workload::selected(),
    ],
    ..Kind::BASE
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

impl Counted for ReplicaSet {
    fn counts(&self) -> Counts {
        Counts {
            wanted: spec(self).and_then(|s| s.replicas).unwrap_or(0),
            current: self.status.as_ref().map_or(0, |s| s.replicas),
            ready: self.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0),
        }
    }
}

fn default(set: &mut ReplicaSet) {
    let spec = set.spec.get_or_insert_default();
    spec.replicas.get_or_insert(1);
    defaults::template(spec.template.get_or_insert_default());
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
