//! The mistakes in an AuthorizationConfiguration, in upstream's words.
//!
//! Upstream counterpart: apiserver/pkg/apis/apiserver/validation.

use std::path;

use api::{
    kinds::metrics::duration_text,
    rules::cel::refused,
    validation::{
        field::{FieldError, Path},
        names,
    },
};
use clock::Duration;

use super::written::{Mode, Written, WrittenWebhook};
use crate::auth::webhook::{self, Version};

/// One webhook has no more conditions than this.
const CONDITIONS: usize = 64;
const LONGEST: i64 = 30_000_000_000;

pub(super) fn check(authorizers: &[Written]) -> Vec<String> {
    let mut errors = Vec::new();
    let list = Path::new("authorizers");
    if authorizers.is_empty() {
        errors.push(FieldError::required(&list, "at least one authorization mode must be defined"));
    }
    let mut names: Vec<&str> = Vec::new();
    for (at, one) in authorizers.iter().enumerate() {
        let path = list.index(at);
        let Some(mode) = mode(one, &path, &authorizers[..at], &mut errors) else { continue };
        let name = path.child("name");
        let wrong = names::dns1123_subdomain(&one.name);
        if one.name.is_empty() {
            errors.push(FieldError::required(&name, ""));
        } else if names.contains(&&*one.name) {
            errors.push(FieldError::duplicate(&name, &one.name));
        } else if !wrong.is_empty() {
            let detail = format!("authorizer name is invalid: {}", wrong.join(", "));
            errors.push(FieldError::invalid(&name, &one.name, &detail));
        }
        names.push(&one.name);
        match (mode, &one.webhook) {
            (Mode::Webhook, None) => {
                errors.push(FieldError::required(&path.child("webhook"), "required when type=Webhook"));
            }
            (Mode::Webhook, Some(webhook)) => self::webhook(webhook, &path, &mut errors),
            (_, Some(_)) => {
                let detail = "may only be specified when type=Webhook";
                errors.push(FieldError::invalid(&path.child("webhook"), "non-null", detail));
            }
            _ => {}
        }
    }
    if !errors.is_empty() {
        return errors.iter().map(ToString::to_string).collect();
    }
    let misnamed = authorizers.iter().filter(|one| one.mode != "Webhook" && one.name != one.mode.to_lowercase());
    let said = |one: &Written| {
        format!("expected name {} for authorizer {} instead of {}", one.mode.to_lowercase(), one.mode, one.name)
    };
    misnamed.map(said).collect()
}

/// The mode of an authorizer, where it can be one.
fn mode(one: &Written, path: &Path, before: &[Written], errors: &mut Vec<FieldError>) -> Option<Mode> {
    let path = path.child("type");
    if one.mode.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return None;
    }
    let Some(mode) = Mode::parse(&one.mode) else {
        let mut known = Mode::ALL.map(Mode::name);
        known.sort_unstable();
        errors.push(FieldError::not_supported(&path, &one.mode, &known));
        return None;
    };
    if mode != Mode::Webhook && before.iter().any(|other| other.mode == one.mode) {
        errors.push(FieldError::duplicate(&path, &one.mode));
        return None;
    }
    Some(mode)
}

fn time(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    format!("{sign}{}", duration_text(Duration::from_nanos(nanos.unsigned_abs())))
}

fn webhook(one: &WrittenWebhook, path: &Path, errors: &mut Vec<FieldError>) {
    match one.timeout {
        0 => errors.push(FieldError::required(&path.child("timeout"), "")),
        1..=LONGEST => {}
        other => {
            let detail = "must be > 0s and <= 30s";
            errors.push(FieldError::invalid(&path.child("timeout"), time(other), detail));
        }
    }
    for (field, kept) in [("authorizedTTL", one.authorized), ("unauthorizedTTL", one.unauthorized)] {
        if kept < 0 {
            errors.push(FieldError::invalid(&path.child(field), time(kept), "must be > 0s"));
        }
    }
    chosen(&one.version, &Version::ALL, path.child("subjectAccessReviewVersion"), errors);
    let version = path.child("matchConditionSubjectAccessReviewVersion");
    if !one.condition_version.is_empty() {
        chosen(&one.condition_version, &["v1"], version, errors);
    } else if !one.conditions.is_empty() {
        errors.push(FieldError::required(&version, "required if match conditions are specified"));
    }
    chosen(&one.failure_policy, &["NoOpinion", "Deny"], path.child("failurePolicy"), errors);
    connection(one, &path.child("connectionInfo"), errors);
    conditions(&one.conditions, &path.child("matchConditions"), errors);
}

fn chosen(text: &str, known: &[&str], path: Path, errors: &mut Vec<FieldError>) {
    if text.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else if !known.contains(&text) {
        errors.push(FieldError::not_supported(&path, text, known));
    }
}

fn connection(one: &WrittenWebhook, path: &Path, errors: &mut Vec<FieldError>) {
    let (sort, file) = (path.child("type"), path.child("kubeConfigFile"));
    let given = one.kubeconfig.as_deref();
    let wrong = |name: &str, detail: &str| FieldError::invalid(&file, name, detail);
    match (&*one.connection, given) {
        ("InClusterConfig", Some(name)) => errors.push(wrong(name, "can only be set when type=KubeConfigFile")),
        ("InClusterConfig", None) => {
            errors.push(FieldError::invalid(
                &sort,
                "InClusterConfig",
                "the API server has no way into a cluster but its own",
            ));
        }
        ("KubeConfigFile", None | Some("")) => errors.push(FieldError::required(&file, "")),
        ("KubeConfigFile", Some(name)) if !path::Path::new(name).is_absolute() => {
            errors.push(wrong(name, "must be an absolute path"));
        }
        ("KubeConfigFile", Some(name)) => match std::fs::metadata(name) {
            Err(error) => errors.push(wrong(name, &format!("error loading file: {error}"))),
            Ok(found) if !found.is_file() => errors.push(wrong(name, "must be a regular file")),
            Ok(_) => {}
        },
        (other, _) => chosen(other, &["InClusterConfig", "KubeConfigFile"], sort, errors),
    }
}

fn conditions(expressions: &[String], path: &Path, errors: &mut Vec<FieldError>) {
    if expressions.len() > CONDITIONS {
        errors.push(FieldError::too_many(path, expressions.len(), CONDITIONS));
        return;
    }
    for (at, text) in expressions.iter().enumerate() {
        let path = path.index(at).child("expression");
        if text.trim().is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if expressions[..at].contains(text) {
            errors.push(FieldError::duplicate(&path, text));
        } else if let Err(why) = webhook::compile(text) {
            errors.push(refused(&path, text, &why));
        }
    }
}
