//! PriorityClass: how important a Pod is.

use json::Value;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use crate::kind::cell;
use crate::kind::{Generation, Kind, age, col, flag, int, name};
use crate::validation::field::{Errors, FieldError, Path};

/// Above this are the classes of the system.
pub const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;
const SYSTEM: &[(&str, i32)] = &[("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

pub const PRIORITY_CLASS: Kind<PriorityClass> = Kind {
    short: &["pc"],
    // Upstream counts none of its changes.
    generation: Generation::Counts(|_, _| false),
    default: Some(|class| {
        class.preemption_policy.get_or_insert_with(|| "PreemptLowerPriority".to_owned());
    }),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    columns: &[
        name(),
        int("Value", "The number that Pods get.", |c, _| Value::from(c.value)),
        flag("Global-Default", "Whether Pods that name no class get it.", |c, _| {
            Value::from(c.global_default.unwrap_or(false))
        }),
        age(),
        col("PreemptionPolicy", "Whether its Pods may push others away.", |c, _| {
            cell::text(c.preemption_policy.as_ref())
        }),
    ],
    ..Kind::BASE
};

fn validate(class: &PriorityClass) -> Errors {
    let mut errors = Errors::new();
    let name = class.metadata.name.as_deref().unwrap_or_default();
    if name.starts_with("system-") {
        let fits = SYSTEM.iter().any(|(n, v)| *n == name && *v == class.value) && class.global_default != Some(true);
        if !fits {
            let detail = "priority class names with 'system-' prefix are reserved for system use only. error: unknown system \
                          priority class";
            errors.push(FieldError::forbidden(&Path::new("metadata").child("name"), detail));
        }
    } else if class.value > HIGHEST_USER_PRIORITY {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.push(FieldError::forbidden(&Path::new("value"), &detail));
    }
    match class.preemption_policy.as_deref().unwrap_or_default() {
        "PreemptLowerPriority" | "Never" => {}
        "" => errors.push(FieldError::required(&Path::new("preemptionPolicy"), "")),
        other => {
            let known = &["Never", "PreemptLowerPriority"];
            errors.push(FieldError::not_supported(&Path::new("preemptionPolicy"), other, known));
        }
    }
    errors
}

fn validate_update(new: &PriorityClass, old: &PriorityClass) -> Errors {
    let mut errors = Errors::new();
    if new.value != old.value {
        errors.push(FieldError::forbidden(&Path::new("value"), "may not be changed in an update."));
    }
    if new.preemption_policy != old.preemption_policy {
        let path = Path::new("preemptionPolicy");
        errors.push(FieldError::invalid(&path, &new.preemption_policy, "field is immutable"));
    }
    errors
}
