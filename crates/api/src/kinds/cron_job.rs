//! CronJob: a Job at given times.

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::kind::cell;
use crate::kind::{Generation, Kind, age, col, flag, int, name};
use crate::kinds::job;
use crate::kinds::pod::defaults;
use crate::kinds::workload::{self, Workload};
use crate::validation::field::{Errors, FieldError, Path};

pub const CRON_JOB: Kind<CronJob> = Kind {
    short: &["cj"],
    categories: &["all"],
    status: true,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    columns: &[
        name(),
        col("Schedule", "When it runs, in cron's form.", |c, _| cell::text(spec(c).map(|s| &s.schedule))),
        col("Timezone", "The time zone of the schedule.", |c, _| {
            cell::text_or(spec(c).and_then(|s| s.time_zone.as_ref()), "<none>")
        }),
        flag("Suspend", "Whether it starts no more jobs.", |c, _| {
            cell::shown_or(spec(c).and_then(|s| s.suspend).map(go_bool), "<unset>")
        }),
        int("Active", "Number of jobs that run.", |c, _| {
            Value::from(c.status.as_ref().and_then(|s| s.active.as_ref()).map_or(0, Vec::len))
        }),
        col("Last Schedule", "Time since a job was started.", |c, now| {
            let last = c.status.as_ref().and_then(|s| s.last_schedule_time.as_ref());
            Value::from(last.map_or_else(|| "<none>".to_owned(), |t| cell::age(Some(t), now)))
        }),
        age(),
        workload::containers(),
        workload::images(),
        workload::selected(),
    ],
    ..Kind::BASE
};

/// The way a flag is written in this table.
fn go_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

fn spec(job: &CronJob) -> Option<&CronJobSpec> {
    job.spec.as_ref()
}

impl Workload for CronJob {
    fn template(&self) -> Option<&PodTemplateSpec> {
        Some(&spec(self)?.job_template.spec.as_ref()?.template)
    }

    fn selector(&self) -> Option<&LabelSelector> {
        spec(self)?.job_template.spec.as_ref()?.selector.as_ref()
    }
}

fn default(job: &mut CronJob) {
    let spec = job.spec.get_or_insert_default();
    if spec.concurrency_policy.as_deref().unwrap_or_default().is_empty() {
        spec.concurrency_policy = Some("Allow".to_owned());
    }
    spec.suspend.get_or_insert(false);
    spec.successful_jobs_history_limit.get_or_insert(3);
    spec.failed_jobs_history_limit.get_or_insert(1);
    if let Some(job) = &mut spec.job_template.spec {
        defaults::template(&mut job.template);
    }
}

fn validate(cron: &CronJob) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(cron) else { return vec![FieldError::required(&path, "")] };
    let mut errors = Errors::new();
    if spec.schedule.is_empty() {
        errors.push(FieldError::required(&path.child("schedule"), ""));
    }
    let policy = spec.concurrency_policy.as_deref().unwrap_or_default();
    let policies = &["Allow", "Forbid", "Replace"];
    if !policies.contains(&policy) {
        errors.push(FieldError::not_supported(&path.child("concurrencyPolicy"), policy, policies));
    }
    if let Some(template) = &spec.job_template.spec {
        let path = path.child("jobTemplate").child("spec").child("template");
        errors.extend(job::validate_template(template, &path));
    }
    errors
}
