//! DaemonSet: one Pod on every node that fits.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Generation, Kind, age, col, int, name, wide};
use crate::kinds::pod::{defaults, validate as pod};
use crate::kinds::rollout;
use crate::{selector, table};

pub const DAEMON_SET: Kind<DaemonSet> = Kind {
    short: &["ds"],
    categories: &["all"],
    status: true,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    warnings: Some(|d, _| rollout::template_warnings(d.spec.as_ref().and_then(|s| s.template.spec.as_ref()))),
    columns: &[
        name(),
        int("Desired", "Number of nodes that should run the Pod.", |d, _| count(d, |s| s.desired_number_scheduled)),
        int("Current", "Number of nodes that run the Pod and should.", |d, _| count(d, |s| s.current_number_scheduled)),
        int("Ready", "Number of nodes whose Pod is ready.", |d, _| count(d, |s| s.number_ready)),
        int("Up-to-date", "Number of nodes whose Pod has the present template.", |d, _| {
            count(d, |s| s.updated_number_scheduled.unwrap_or(0))
        }),
        int("Available", "Number of nodes whose Pod has been ready for long enough.", |d, _| {
            count(d, |s| s.number_available.unwrap_or(0))
        }),
        col("Node Selector", "The labels of the nodes that run the Pod.", |d, _| {
            let pod = spec(d).and_then(|s| s.template.spec.as_ref());
            Value::from(table::labels(pod.and_then(|p| p.node_selector.as_ref())))
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

fn spec(set: &DaemonSet) -> Option<&DaemonSetSpec> {
    set.spec.as_ref()
}

fn count(set: &DaemonSet, of: fn(&DaemonSetStatus) -> i32) -> Value {
    Value::from(set.status.as_ref().map_or(0, of))
}

fn default(set: &mut DaemonSet) {
    let spec = set.spec.get_or_insert_default();
    let strategy = spec.update_strategy.get_or_insert_default();
    if strategy.type_.as_deref().unwrap_or_default().is_empty() {
        strategy.type_ = Some("RollingUpdate".to_owned());
    }
    if strategy.type_.as_deref() == Some("RollingUpdate") {
        let rolling = strategy.rolling_update.get_or_insert_default();
        rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
        rolling.max_surge.get_or_insert(IntOrString::Int(0));
    }
    spec.revision_history_limit.get_or_insert(10);
    defaults::template(&mut spec.template);
}

fn validate(set: &DaemonSet) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(set) else { return vec![FieldError::required(&path, "")] };
    let mut errors = rollout::selector_selects(&spec.selector, &spec.template, &path);
    errors.extend(pod::validate_template(&spec.template, &path.child("template")));
    errors.extend(rollout::always_restarts(&spec.template, &path.child("template")));
    errors.extend(rollout::not_negative(&path.child("minReadySeconds"), spec.min_ready_seconds));
    errors.extend(rollout::not_negative(&path.child("revisionHistoryLimit"), spec.revision_history_limit));
    let path = path.child("updateStrategy");
    let strategy = spec.update_strategy.as_ref();
    match strategy.and_then(|s| s.type_.as_deref()).unwrap_or_default() {
        "OnDelete" => {}
        "RollingUpdate" => match strategy.and_then(|s| s.rolling_update.as_ref()) {
            None => errors.push(FieldError::required(&path.child("rollingUpdate"), "")),
            Some(rolling) => {
                let path = path.child("rollingUpdate");
                errors.extend(rollout::budget(rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref(), &path));
            }
        },
        other => {
            errors.push(FieldError::not_supported(&path.child("type"), other, &["OnDelete", "RollingUpdate"]));
        }
    }
    errors
}

fn validate_update(new: &DaemonSet, old: &DaemonSet) -> Errors {
    rollout::selector_is_fixed(spec(new).map(|s| &s.selector), spec(old).map(|s| &s.selector))
}
