//! Job: Pods that run until enough of them have succeeded.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::kind::cell;
use crate::kind::{Kind, age, col, label, name};
use crate::kinds::pod::{defaults, validate as pod};
use crate::kinds::rollout;
use crate::kinds::workload::{self, Workload};
use crate::meta::field_text_or;
use crate::rules::selector::Selector;
use crate::validation::field::{Errors, FieldError, Path, show};
use crate::validation::internal_form;

pub const JOB: Kind<Job> = Kind {
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    prepare_create: Some(choose_pods),
    columns: &[
        name(),
        col("Status", "Status of the job.", |j, _| Value::from(status(j))),
        col("Completions", "Number of Pods that succeeded, of those that should.", |j, _| Value::from(completions(j))),
        col("Duration", "Time required to complete the job.", |j, now| Value::from(duration(j, now))),
        age(),
        workload::containers(),
        workload::images(),
        workload::selected(),
    ],
    field_labels: &[label("status.successful", |o| field_text_or(o, &["status", "succeeded"], "0"))],
    unknown_label: Some("field label \"LABEL\" not supported for Job"),
    ..workload::base()
};

fn spec(job: &Job) -> Option<&JobSpec> {
    job.spec.as_ref()
}

impl Workload for Job {
    fn template(&self) -> Option<&PodTemplateSpec> {
        spec(self).map(|s| &s.template)
    }

    fn selector(&self) -> Option<&LabelSelector> {
        spec(self)?.selector.as_ref()
    }
}

fn default(job: &mut Job) {
    let spec = job.spec.get_or_insert_default();
    // Neither given: one Pod, once. With only one of them, a work queue or a fixed number.
    if spec.completions.is_none() && spec.parallelism.is_none() {
        spec.completions = Some(1);
    }
    spec.parallelism.get_or_insert(1);
    let indexed_limit = spec.backoff_limit_per_index.is_some();
    spec.backoff_limit.get_or_insert(if indexed_limit { i32::MAX } else { 6 });
    spec.completion_mode.get_or_insert_with(|| "NonIndexed".to_owned());
    spec.suspend.get_or_insert(false);
    let replacement = if spec.pod_failure_policy.is_some() { "Failed" } else { "TerminatingOrFailed" };
    spec.pod_replacement_policy.get_or_insert_with(|| replacement.to_owned());
    for rule in spec.pod_failure_policy.iter_mut().flat_map(|p| p.rules.iter_mut()) {
        for pattern in rule.on_pod_conditions.iter_mut().flatten() {
            pattern.status.get_or_insert_with(|| "True".to_owned());
        }
    }
    defaults::template(&mut spec.template);
    let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.clone());
    if job.metadata.labels.as_ref().is_none_or(|l| l.is_empty()) && labels.is_some() {
        job.metadata.labels = labels;
    }
}

/// A Job finds its Pods by labels that the server makes up from its uid, unless the client insists on its own.
fn choose_pods(object: &mut Value) {
    let (name, uid) = (crate::meta::name(object).to_owned(), crate::meta::uid(object).to_owned());
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("manualSelector").and_then(Value::as_bool) == Some(true) || uid.is_empty() {
        return;
    }
    let selects = spec.get("selector").is_some_and(|s| s.as_object().is_some_and(|m| !m.is_empty()));
    let template = spec.entry("template").or_insert_with(|| Value::Object(serde_json::Map::new()));
    if let Some(metadata) = crate::meta::metadata_mut(template) {
        let labels = metadata.entry("labels").or_insert_with(|| Value::Object(serde_json::Map::new()));
        for (key, value) in [
            ("controller-uid", &uid),
            ("job-name", &name),
            ("batch.kubernetes.io/controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
        ] {
            labels[key] = Value::from(value.as_str());
        }
    }
    if !selects {
        let selector = serde_json::json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
        spec.insert("selector".to_owned(), selector);
    }
}

fn has_condition(job: &Job, kind: &str) -> bool {
    let mut conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == kind && c.status == "True")
}

fn status(job: &Job) -> &'static str {
    if has_condition(job, "Complete") {
        "Complete"
    } else if has_condition(job, "Failed") {
        "Failed"
    } else if job.metadata.deletion_timestamp.is_some() {
        "Terminating"
    } else if has_condition(job, "Suspended") {
        "Suspended"
    } else if has_condition(job, "FailureTarget") {
        "FailureTarget"
    } else if has_condition(job, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Job) -> String {
    let succeeded = job.status.as_ref().and_then(|s| s.succeeded).unwrap_or(0);
    let (wanted, parallel) = spec(job).map_or((None, 1), |s| (s.completions, s.parallelism.unwrap_or(0)));
    match wanted {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        None => format!("{succeeded}/1"),
    }
}

fn duration(job: &Job, now: jiff::Timestamp) -> String {
    let status = job.status.as_ref();
    let Some(start) = status.and_then(|s| s.start_time.as_ref()) else { return String::new() };
    let end = status.and_then(|s| s.completion_time.as_ref()).map_or(now, |t| t.0);
    cell::human_duration(end.as_second() - start.0.as_second())
}

fn validate(job: &Job) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(job) else { return vec![FieldError::required(&path, "")] };
    let mut errors = Errors::new();
    for (field, value) in [
        ("parallelism", spec.parallelism),
        ("completions", spec.completions),
        ("backoffLimit", spec.backoff_limit),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished),
    ] {
        errors.extend(rollout::not_negative(&path, field, value));
    }
    if spec.active_deadline_seconds.is_some_and(|s| s < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("activeDeadlineSeconds"), spec.active_deadline_seconds, detail));
    }
    match spec.completion_mode.as_deref() {
        None | Some("NonIndexed") => {}
        Some("Indexed") if spec.completions.is_none() => {
            let detail = "when completion mode is Indexed";
            errors.push(FieldError::required(&path.child("completions"), detail));
        }
        Some("Indexed") => {}
        Some(other) => {
            errors.push(FieldError::not_supported(&path.child("completionMode"), other, &["Indexed", "NonIndexed"]));
        }
    }
    errors.extend(validate_template(spec, &path.child("template")));
    match &spec.selector {
        None => errors.push(FieldError::required(&path.child("selector"), "")),
        Some(selector) => {
            errors.extend(rollout::validate_selector(selector, &path.child("selector")));
            if let Ok(rule) = Selector::of_object(Some(selector)) {
                let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.as_ref());
                errors.extend(rollout::template_matches(rule.matches(&labels), labels, &path.child("template")));
            }
        }
    }
    errors
}

pub(crate) fn validate_template(spec: &JobSpec, path: &Path) -> Errors {
    let mut errors = pod::validate_template(&spec.template, path);
    let policy = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or_default();
    let place = path.child("spec").child("restartPolicy");
    match policy {
        // Always is what a template gets that says nothing.
        "" | "Always" => errors.push(FieldError::required(&place, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" | "Never" => {}
        other => errors.push(FieldError::not_supported(&place, other, &["OnFailure", "Never"])),
    }
    errors
}

fn validate_update(new: &Job, old: &Job) -> Errors {
    let (Some(new), Some(old)) = (spec(new), spec(old)) else { return Errors::new() };
    let path = Path::new("spec");
    let mut errors = Errors::new();
    let mut fixed = |field: &str, same: bool, shown: &dyn Fn() -> String| {
        if !same {
            errors.push(FieldError::invalid_shown(&path.child(field), &shown(), "field is immutable"));
        }
    };
    let indexed = new.completion_mode.as_deref() == Some("Indexed");
    // An Indexed job may grow or shrink, together with its parallelism.
    let resized = indexed && new.completions == new.parallelism;
    fixed("completions", new.completions == old.completions || resized, &|| show(new.completions));
    fixed("selector", new.selector == old.selector, &|| internal_form::compact("LabelSelector", &new.selector));
    fixed("completionMode", new.completion_mode == old.completion_mode, &|| show(&new.completion_mode));
    fixed("podFailurePolicy", new.pod_failure_policy == old.pod_failure_policy, &|| show(&new.pod_failure_policy));
    fixed("template", new.template == old.template || old.suspend == Some(true), &|| {
        internal_form::compact("PodTemplateSpec", internal_form::pod_template(&new.template))
    });
    fixed("backoffLimitPerIndex", new.backoff_limit_per_index == old.backoff_limit_per_index, &|| {
        show(new.backoff_limit_per_index)
    });
    fixed("managedBy", new.managed_by == old.managed_by, &|| show(&new.managed_by));
    fixed("successPolicy", new.success_policy == old.success_policy, &|| show(&new.success_policy));
    errors
}
