//! StatefulSet: numbered Pods with a name and storage of their own.

use std::collections::BTreeSet;

use json::Value;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume};

use crate::kind::{Kind, age, col, name};
use crate::kinds::persistent_volume_claim;
use crate::kinds::pod::{defaults, gated, validate as pod};
use crate::kinds::rollout;
use crate::kinds::workload;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names::{self, NameRule};
use crate::validation::object_meta::invalid_at;

pub const STATEFUL_SET: Kind<StatefulSet> = Kind {
    gated: gated::OF_TEMPLATE,
    gated_texts: gated::TEXTS_OF_TEMPLATE,
    short: &["sts"],
    scale: Some(workload::SCALE),
    name: NameRule::Label,
    // A claim template is a claim whatever it says of itself.
    fit: Some(|set| {
        let list = set.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
        for template in list.into_iter().flatten().filter_map(Value::as_object_mut) {
            template.insert("apiVersion", Value::from("v1"));
            template.insert("kind", Value::from("PersistentVolumeClaim"));
        }
    }),
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "template"])),
    default_within_spec: true,
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    validate_status: Some(validate_status),
    columns: &[
        name(),
        col("Ready", workload::READY_ABOUT, |s, _| {
            workload::ready_of(s.status.as_ref().and_then(|s| s.ready_replicas), spec(s).and_then(|s| s.replicas))
        }),
        age(),
        workload::containers(),
        workload::images(),
    ],
    warnings: Some(warnings),
    ..workload::base()
};

fn warnings(set: &StatefulSet, old: Option<&StatefulSet>) -> Vec<String> {
    let mut list = workload::warnings(set, old);
    let Some(spec) = spec(set) else { return list };
    if old.is_none() {
        let templates = spec.volume_claim_templates.iter().flatten().enumerate();
        let templates = templates.filter_map(|(at, claim)| Some((at, claim.spec.as_ref()?)));
        let path = Path::new("spec").child("volumeClaimTemplates");
        list.extend(templates.flat_map(|(at, spec)| persistent_volume_claim::spec_warnings(spec, &path.index(at))));
    }
    if spec.revision_history_limit.is_some_and(|limit| limit < 0) {
        list.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
    list
}

fn spec(set: &StatefulSet) -> Option<&StatefulSetSpec> {
    set.spec.as_ref()
}

fn default(set: &mut StatefulSet) {
    let spec = set.spec.get_or_insert_default();
    spec.pod_management_policy.get_or_insert_with(|| "OrderedReady".to_owned());
    let strategy = spec.update_strategy.get_or_insert_default();
    if defaults::unset(&strategy.type_) {
        defaults::fill(&mut strategy.type_, "RollingUpdate");
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
    spec.volume_claim_templates.iter_mut().flatten().for_each(persistent_volume_claim::default);
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
    errors.extend(validate_strategy(spec, &path.child("updateStrategy")));
    let retention = spec.persistent_volume_claim_retention_policy.iter();
    for (field, policy) in retention.flat_map(|r| [("whenDeleted", &r.when_deleted), ("whenScaled", &r.when_scaled)]) {
        let policy = policy.as_deref().unwrap_or_default();
        let known = &["Retain", "Delete"];
        if !known.contains(&policy) {
            let path = path.child("persistentVolumeClaimRetentionPolicy").child(field);
            errors.push(FieldError::not_supported(&path, policy, known));
        }
    }
    errors.extend(rollout::not_negative(&path, "replicas", spec.replicas));
    errors.extend(rollout::not_negative(&path, "minReadySeconds", spec.min_ready_seconds));
    errors.extend(rollout::not_negative(&path, "ordinals.start", spec.ordinals.as_ref().and_then(|o| o.start)));
    if let Some(name) = spec.service_name.as_deref().filter(|n| !n.is_empty()) {
        errors.extend(invalid_at(&path, "serviceName", name, names::dns1123_label(name)));
    }
    errors.extend(rollout::selector_selects(&spec.selector, &spec.template, "statefulset", &path));
    errors.extend(pod::validate_template(&with_claims(spec), &path.child("template")));
    errors.extend(rollout::always_restarts(&spec.template, "StatefulSet", &path.child("template")));
    errors
}

/// The template with the volumes that its Pods get from claims of their own.
fn with_claims(spec: &StatefulSetSpec) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    let names: Vec<&String> =
        spec.volume_claim_templates.iter().flatten().filter_map(|c| c.metadata.name.as_ref()).collect();
    if names.is_empty() {
        return template;
    }
    let volumes = template.spec.get_or_insert_default().volumes.get_or_insert_default();
    let claimed: BTreeSet<&String> = names.iter().copied().collect();
    volumes.retain(|v| !claimed.contains(&v.name));
    volumes.extend(names.into_iter().map(|name| Volume {
        name: name.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name: name.clone(), read_only: None }),
        ..Volume::default()
    }));
    template
}

fn validate_strategy(spec: &StatefulSetSpec, path: &Path) -> Errors {
    let Some(strategy) = &spec.update_strategy else { return vec![FieldError::required(path, "")] };
    let mut errors = Errors::new();
    let place = path.child("rollingUpdate");
    match (strategy.type_.as_deref().unwrap_or_default(), &strategy.rolling_update) {
        ("", _) => errors.push(FieldError::required(path, "")),
        ("OnDelete", Some(rolling)) => {
            let shown = internal_form::compact("RollingUpdateStatefulSetStrategy", rolling);
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid_shown(&place, &shown, detail));
        }
        ("RollingUpdate", Some(rolling)) => {
            errors.extend(rollout::not_negative(&place, "partition", rolling.partition));
            if let Some(most) = &rolling.max_unavailable {
                let place = place.child("maxUnavailable");
                errors.extend(rollout::count_or_percent(Some(most), &place));
                if rollout::is_zero(Some(most)) {
                    errors.push(FieldError::invalid(&place, most, "cannot be 0"));
                }
                errors.extend(rollout::at_most_all(Some(most), &place));
            }
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        _ => {
            let shown = internal_form::compact("StatefulSetUpdateStrategy", strategy);
            errors.push(FieldError::invalid_shown(path, &shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
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

fn validate_status(new: &Value, old: &Value) -> Errors {
    let counts = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    let of_all = |part| (part, "replicas", rollout::MORE_THAN_ALL);
    let parts = [
        of_all("readyReplicas"),
        of_all("currentReplicas"),
        of_all("updatedReplicas"),
        of_all("availableReplicas"),
        ("availableReplicas", "readyReplicas", "cannot be greater than status.readyReplicas"),
    ];
    rollout::revision_counts(new, old, &counts, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_status_counts_parts_of_its_replicas() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            rollout::check_status(STATEFUL_SET.validate_status, &new, &old, expected);
        };
        let full = json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "currentReplicas": 1,
            "updatedReplicas": 2, "availableReplicas": 2, "collisionCount": 0});
        check(full, Value::Null, &[]);
        check(
            json!({"replicas": -1, "readyReplicas": 1, "currentReplicas": 2, "updatedReplicas": 3,
                "availableReplicas": 4, "collisionCount": 1}),
            json!({"collisionCount": 2}),
            &[
                "status.replicas: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 1: cannot be greater than status.replicas",
                "status.currentReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.updatedReplicas: Invalid value: 3: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 4: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 4: cannot be greater than status.readyReplicas",
                "status.collisionCount: Invalid value: 1: cannot be decremented",
            ],
        );
    }
}
