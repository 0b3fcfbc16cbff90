//! StatefulSet: numbered Pods with a name and storage of their own.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Generation, Kind, Scale, age, col, name, wide};
use crate::kinds::persistent_volume::default_claim;
use crate::kinds::pod::{defaults, validate as pod};
use crate::kinds::rollout;
use crate::names::NameRule;
use crate::table;

pub const STATEFUL_SET: Kind<StatefulSet> = Kind {
    short: &["sts"],
    categories: &["all"],
    status: true,
    scale: Some(Scale { wanted: "spec.replicas", current: "status.replicas", selector: "spec.selector" }),
    name: NameRule::Label,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    warnings: Some(|d, _| rollout::template_warnings(d.spec.as_ref().and_then(|s| s.template.spec.as_ref()))),
    columns: &[
        name(),
        col("Ready", "Number of the pod with ready state", |s, _| {
            let ready = s.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
            Value::from(format!("{ready}/{}", spec(s).and_then(|s| s.replicas).unwrap_or(0)))
        }),
        age(),
        wide("Containers", table::CONTAINERS_ABOUT, |s, _| {
            table::container_names(spec(s).and_then(|s| s.template.spec.as_ref()))
        }),
        wide("Images", table::IMAGES_ABOUT, |s, _| {
            table::container_images(spec(s).and_then(|s| s.template.spec.as_ref()))
        }),
    ],
    ..Kind::BASE
};

fn spec(set: &StatefulSet) -> Option<&StatefulSetSpec> {
    set.spec.as_ref()
}

fn default(set: &mut StatefulSet) {
    let spec = set.spec.get_or_insert_default();
    spec.pod_management_policy.get_or_insert_with(|| "OrderedReady".to_owned());
    let strategy = spec.update_strategy.get_or_insert_default();
    if strategy.type_.as_deref().unwrap_or_default().is_empty() {
        strategy.type_ = Some("RollingUpdate".to_owned());
        // Only a strategy that was chosen for the client gets its parts filled in.
        strategy.rolling_update.get_or_insert_default();
    }
    if let Some(rolling) = strategy.rolling_update.as_mut() {
        rolling.partition.get_or_insert(0);
    }
    let retention = spec.persistent_volume_claim_retention_policy.get_or_insert_default();
    retention.when_deleted.get_or_insert_with(|| "Retain".to_owned());
    retention.when_scaled.get_or_insert_with(|| "Retain".to_owned());
    spec.replicas.get_or_insert(1);
    spec.revision_history_limit.get_or_insert(10);
    spec.volume_claim_templates.iter_mut().flatten().for_each(default_claim);
    defaults::template(&mut spec.template);
}

fn validate(set: &StatefulSet) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(set) else { return vec![FieldError::required(&path, "")] };
    let mut errors = Errors::new();
    match spec.pod_management_policy.as_deref().unwrap_or_default() {
        "" => errors.push(FieldError::required(&path.child("podManagementPolicy"), "")),
        "OrderedReady" | "Parallel" => {}
        other => {
            let detail = "must be 'OrderedReady' or 'Parallel'";
            errors.push(FieldError::invalid(&path.child("podManagementPolicy"), other, detail));
        }
    }
    let strategy = spec.update_strategy.as_ref();
    let kind = strategy.and_then(|s| s.type_.as_deref()).unwrap_or_default();
    let place = path.child("updateStrategy");
    match kind {
        "" => errors.push(FieldError::required(&place, "")),
        "OnDelete" if strategy.is_some_and(|s| s.rolling_update.is_some()) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid(&place.child("rollingUpdate"), "", detail));
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            let partition = strategy.and_then(|s| s.rolling_update.as_ref()).and_then(|r| r.partition);
            errors.extend(rollout::not_negative(&place.child("rollingUpdate").child("partition"), partition));
        }
        other => errors.push(FieldError::invalid(&place, other, "must be 'RollingUpdate' or 'OnDelete'")),
    }
    errors.extend(rollout::not_negative(&path.child("replicas"), spec.replicas));
    errors.extend(rollout::not_negative(&path.child("minReadySeconds"), spec.min_ready_seconds));
    errors.extend(rollout::selector_selects(&spec.selector, &spec.template, &path));
    errors.extend(pod::validate_template(&spec.template, &path.child("template")));
    errors.extend(rollout::always_restarts(&spec.template, &path.child("template")));
    errors
}

fn validate_update(new: &StatefulSet, old: &StatefulSet) -> Errors {
    let (Some(new), Some(old)) = (spec(new), spec(old)) else { return Errors::new() };
    // The old one with everything that may change taken from the new one.
    let allowed = StatefulSetSpec {
        replicas: new.replicas,
        ordinals: new.ordinals.clone(),
        template: new.template.clone(),
        update_strategy: new.update_strategy.clone(),
        revision_history_limit: new.revision_history_limit,
        persistent_volume_claim_retention_policy: new.persistent_volume_claim_retention_policy.clone(),
        min_ready_seconds: new.min_ready_seconds,
        ..old.clone()
    };
    if allowed == *new {
        return Errors::new();
    }
    let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
                  'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    vec![FieldError::forbidden(&Path::new("spec"), detail)]
}
