//! CronJob: a Job at given times.

use json::Value;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::cell;
use crate::kind::{Generation, Kind, age, col, flag, int, name};
use crate::kinds::pod::{defaults, gated};
use crate::kinds::workload::{self, Workload};
use crate::kinds::{job, rollout};
use crate::rules::cron::{Schedule, time_zone};
use crate::validation::field::{Errors, FieldError, Path, one_of};
use crate::validation::internal_form;

pub const CRON_JOB: Kind<CronJob> = Kind {
    gated: gated::OF_CRON_JOB,
    gated_texts: gated::TEXTS_OF_CRON_JOB,
    short: &["cj"],
    categories: &["all"],
    status: true,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "jobTemplate", "spec", "template"])),
    validate: Some(validate),
    validate_create: Some(validate_create),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    warnings: Some(warnings),
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
        job::default_in_template(job);
    }
}

/// Names of Jobs end in a dash and ten digits, and may have 63 characters.
const NAME_MAX: usize = 52;

fn validate(cron: &CronJob) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(cron) else { return vec![FieldError::required(&path, "")] };
    let mut errors = Errors::new();
    errors.extend(rollout::not_negative(&path, "startingDeadlineSeconds", spec.starting_deadline_seconds));
    let policy = spec.concurrency_policy.as_deref().unwrap_or_default();
    errors.extend(one_of(policy, &["Allow", "Forbid", "Replace"], &path, "concurrencyPolicy"));
    errors.extend(job_template(&spec.job_template, &path.child("jobTemplate").child("spec")));
    errors.extend(rollout::not_negative(&path, "successfulJobsHistoryLimit", spec.successful_jobs_history_limit));
    errors.extend(rollout::not_negative(&path, "failedJobsHistoryLimit", spec.failed_jobs_history_limit));
    errors
}

/// The server chooses the selector of each Job.
fn job_template(template: &JobTemplateSpec, path: &Path) -> Errors {
    let none = JobSpec::default();
    let job = template.spec.as_ref().unwrap_or(&none);
    let mut errors = job::validate_spec(job, path);
    if let Some(selector) = &job.selector {
        let shown = internal_form::compact("LabelSelector", selector);
        let detail = "`selector` will be auto-generated";
        errors.push(FieldError::invalid_shown(&path.child("selector"), &shown, detail));
    }
    if job.manual_selector == Some(true) {
        errors.push(FieldError::not_supported(&path.child("manualSelector"), true, &["nil", "false"]));
    }
    errors
}

fn validate_create(cron: &CronJob) -> Errors {
    let Some(spec) = spec(cron) else { return Errors::new() };
    let path = Path::new("spec");
    let mut errors = schedule(spec, false, &path.child("schedule"));
    errors.extend(zone(spec.time_zone.as_deref(), &path.child("timeZone")));
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    if name.len() > NAME_MAX {
        let detail = format!("must be no more than {NAME_MAX} characters");
        errors.push(FieldError::invalid(&Path::new("metadata").child("name"), name, &detail));
    }
    errors
}

/// A zone in the schedule itself and a zone that became unknown are no error where they were there before.
fn validate_update(new: &CronJob, old: &CronJob) -> Errors {
    let (Some(new), Some(old)) = (spec(new), spec(old)) else { return Errors::new() };
    let path = Path::new("spec");
    let mut errors = schedule(new, old.schedule.contains("TZ"), &path.child("schedule"));
    if new.time_zone != old.time_zone {
        errors.extend(zone(new.time_zone.as_deref(), &path.child("timeZone")));
    }
    errors
}

fn schedule(spec: &CronJobSpec, may_name_zone: bool, path: &Path) -> Errors {
    if spec.schedule.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let read = Schedule::parse(&spec.schedule, jiff::tz::TimeZone::UTC).err();
    let detail = match spec.schedule.contains("TZ") {
        true if !may_name_zone => Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
        true if spec.time_zone.is_some() => Some("cannot use both timeZone field and TZ or CRON_TZ in schedule"),
        _ => None,
    };
    let details = read.iter().map(String::as_str).chain(detail);
    details.map(|detail| FieldError::invalid(path, &spec.schedule, detail)).collect()
}

fn zone(name: Option<&str>, path: &Path) -> Errors {
    let Some(name) = name else { return Errors::new() };
    let invalid = |detail: &str| FieldError::invalid(path, name, detail);
    if name.is_empty() {
        return vec![invalid("timeZone must be nil or non-empty string")];
    }
    let unknown = format!("unknown time zone {name}");
    if !name.split('/').all(is_zone_part) {
        return vec![invalid(&unknown)];
    }
    if name.eq_ignore_ascii_case("Local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return vec![invalid(detail)];
    }
    time_zone(name).is_none().then(|| invalid(&unknown)).into_iter().collect()
}

/// The database's names are paths of such parts.
fn is_zone_part(part: &str) -> bool {
    let known = |c: u8| c.is_ascii_alphanumeric() || b".-_+".contains(&c);
    (1..=14).contains(&part.len()) && part.bytes().all(known) && !part.starts_with('-') && !matches!(part, "." | "..")
}

fn warnings(cron: &CronJob, old: Option<&CronJob>) -> Vec<String> {
    let Some(spec) = spec(cron) else { return Vec::new() };
    let path = Path::new("spec");
    let mut warnings = Vec::new();
    if old.is_none() {
        warnings.extend(workload::name_warning(&cron.metadata));
    }
    if let Some(template) = &spec.job_template.spec {
        warnings.extend(job::warnings(template, &path.child("jobTemplate").child("spec")));
    }
    if spec.schedule.contains("TZ") {
        warnings.push(format!(
            "CRON_TZ or TZ used in {} is not officially supported, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
            path.child("schedule")
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use crate::kind::Target;
    use crate::kinds::built_in;

    fn cron(name: &str, changes: &Value) -> Value {
        let template = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let mut cron = json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name, "namespace": "d"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": template}}}},
        });
        for (field, value) in changes.as_object().into_iter().flatten() {
            match field.strip_prefix("job.") {
                Some(field) => cron["spec"]["jobTemplate"]["spec"][field] = value.clone(),
                None => cron["spec"][field] = value.clone(),
            }
        }
        built_in().find("batch", "v1", "cronjobs").expect("served").strategy.default(&mut cron);
        cron
    }

    #[test]
    fn schedules_zones_names_and_templates() {
        let strategy = &built_in().find("batch", "v1", "cronjobs").expect("served").strategy;
        let check = |name: &str, changes: Value, expected: &str| {
            let errors = strategy.validate(&cron(name, &changes));
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said.join("\n"), expected, "{changes}");
        };
        check("tick", json!({}), "");
        check("tick", json!({"timeZone": "Europe/Berlin"}), "");
        check("tick", json!({"schedule": ""}), "spec.schedule: Required value");
        check(
            "tick",
            json!({"schedule": "* * * *"}),
            "spec.schedule: Invalid value: \"* * * *\": expected exactly 5 fields, found 4: [* * * *]",
        );
        check(
            "tick",
            json!({"schedule": "TZ=UTC * * * * *"}),
            "spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field \
             instead",
        );
        let zone = |name: &str, detail: &str| {
            let expected = format!("spec.timeZone: Invalid value: \"{name}\": {detail}");
            check("tick", json!({"timeZone": name}), &expected);
        };
        zone("", "timeZone must be nil or non-empty string");
        zone("Europe/Nowhere", "unknown time zone Europe/Nowhere");
        zone("../etc/passwd", "unknown time zone ../etc/passwd");
        zone("local", "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
        let long = "a".repeat(53);
        let expected = format!("metadata.name: Invalid value: \"{long}\": must be no more than 52 characters");
        check(&long, json!({}), &expected);
        check(
            "tick",
            json!({"concurrencyPolicy": "Maybe", "failedJobsHistoryLimit": -1}),
            "spec.concurrencyPolicy: Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\", \"Replace\"\n\
             spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
        );
        check(
            "tick",
            json!({"job.selector": {"matchLabels": {"a": "b"}}, "job.manualSelector": true, "job.parallelism": -1}),
            "spec.jobTemplate.spec.parallelism: Invalid value: -1: must be greater than or equal to 0\n\
             spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` will be \
             auto-generated\n\
             spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
        );
    }

    #[test]
    fn what_was_there_before_may_stay() {
        let strategy = &built_in().find("batch", "v1", "cronjobs").expect("served").strategy;
        let check = |old: Value, new: Value, expected: &str| {
            let errors = strategy.validate_update(&cron("tick", &new), &cron("tick", &old), Target::Object);
            let said: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
            assert_eq!(said.join(" "), expected, "{old} to {new}");
        };
        let zoned = || json!({"schedule": "TZ=UTC * * * * *"});
        check(zoned(), zoned(), "");
        check(zoned(), json!({"schedule": "TZ=UTC * * * * *", "timeZone": "UTC"}), "spec.schedule");
        check(json!({}), zoned(), "spec.schedule");
        check(json!({"timeZone": "Old/Zone"}), json!({"timeZone": "Old/Zone"}), "");
        check(json!({"timeZone": "Old/Zone"}), json!({"timeZone": "New/Zone"}), "spec.timeZone");
    }
}
