//! Job: Pods that run until enough of them have succeeded.

mod policies;
mod status;
#[cfg(test)]
mod tests;
mod update;
mod validate;

use json::Value;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::cell;
use crate::kind::{Kind, age, col, label, name};
use crate::kinds::pod::{defaults, gated};
use crate::kinds::workload::{self, Workload};
use crate::meta::field_text_or;
use crate::validation::field::Path;

pub(crate) use validate::{validate_spec, warnings};

pub const JOB: Kind<Job> = Kind {
    gated: gated::OF_TEMPLATE,
    gated_texts: gated::TEXTS_OF_TEMPLATE,
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "template"])),
    validate: Some(validate::validate),
    validate_create: Some(validate::validate_create),
    validate_update: Some(|new, old, _| update::validate_update(new, old)),
    validate_status: Some(status::validate_status),
    warnings: Some(|new, old| job_warnings(new, old.is_none())),
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
    default_in_template(spec);
    let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.clone());
    if job.metadata.labels.as_ref().is_none_or(|l| l.is_empty()) && labels.is_some() {
        job.metadata.labels = labels;
    }
}

/// The defaults that the Job template of a CronJob has too.
pub(crate) fn default_in_template(spec: &mut JobSpec) {
    for rule in spec.pod_failure_policy.iter_mut().flat_map(|p| p.rules.iter_mut()) {
        for pattern in rule.on_pod_conditions.iter_mut().flatten() {
            defaults::fill(&mut pattern.status, "True");
        }
    }
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// The labels that say which Job a Pod belongs to, under their old names and the present ones.
fn own_labels<'a>(name: &'a str, uid: &'a str) -> [(&'static str, &'a str); 4] {
    [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ]
}

/// A Job finds its Pods by labels that the server makes up from its uid, unless the client insists on its own.
fn choose_pods(object: &mut Value) {
    let (name, uid) = (crate::meta::name(object).to_owned(), crate::meta::uid(object).to_owned());
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("manualSelector").and_then(Value::as_bool) == Some(true) || uid.is_empty() {
        return;
    }
    let selects = spec.get("selector").is_some_and(|s| s.as_object().is_some_and(|m| !m.is_empty()));
    let template = spec.entry("template").or_insert_with(|| Value::Object(json::Map::new()));
    if let Some(metadata) = crate::meta::metadata_mut(template) {
        let labels = metadata.entry("labels").or_insert_with(|| Value::Object(json::Map::new()));
        for (key, value) in own_labels(&name, &uid) {
            labels[key] = Value::from(value);
        }
    }
    if !selects {
        let selector = json::json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
        spec.insert("selector", selector);
    }
}

fn job_warnings(job: &Job, new: bool) -> Vec<String> {
    let of_name = new.then(|| workload::name_warning(&job.metadata)).flatten();
    let of_spec = spec(job).map(|spec| warnings(spec, &Path::new("spec"))).unwrap_or_default();
    of_name.into_iter().chain(of_spec).collect()
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
