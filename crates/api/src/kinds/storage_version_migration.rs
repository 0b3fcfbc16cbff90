//! StorageVersionMigration: a wish that all objects of a resource be written anew, so that they are stored as they would be today.
//! Upstream counterpart: pkg/apis/storagemigration/validation, pkg/registry/storagemigration.

use json::Value;
use k8s_openapi::api::storagemigration::v1beta1::{StorageVersionMigration, StorageVersionMigrationStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, GroupResource};

use crate::features::Feature;
use crate::kind::{Kind, StatusMetadata, col};
use crate::object::decode;
use crate::validation::conditions;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;

pub const STORAGE_VERSION_MIGRATION: Kind<StorageVersionMigration> = Kind {
    gate: Some(Feature::StorageVersionMigrator),
    status: true,
    status_metadata: StatusMetadata::Stays,
    validate: Some(validate),
    validate_update: Some(|new, old, _| match new.spec == old.spec {
        true => Errors::new(),
        false => vec![FieldError::invalid(&Path::new("spec"), &new.spec, "field is immutable")],
    }),
    validate_status: Some(validate_status),
    columns: &[
        col("Name", "The name of the migration.", |m, _| Value::from(m.metadata.name.clone().unwrap_or_default())),
        col("Resource", "The resource whose objects are written anew.", |m, _| Value::from(resource_text(m))),
        col("Status", "How far the migration has come.", |m, _| Value::from(state(m))),
    ],
    ..Kind::BASE
};

/// The conditions that say what became of a migration.
pub const RUNNING: &str = "Running";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

/// Whether a condition holds.
pub fn holds(migration: &StorageVersionMigration, condition: &str) -> bool {
    conditions_of(migration.status.as_ref()).iter().any(|c| c.type_ == condition && c.status == "True")
}

fn conditions_of(status: Option<&StorageVersionMigrationStatus>) -> &[Condition] {
    status.and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

/// The resource that a migration is about.
pub fn resource(migration: &StorageVersionMigration) -> GroupResource {
    migration.spec.as_ref().map(|spec| spec.resource.clone()).unwrap_or_default()
}

fn resource_text(migration: &StorageVersionMigration) -> String {
    let GroupResource { group, resource } = resource(migration);
    if group.is_empty() { resource } else { format!("{resource}.{group}") }
}

fn state(migration: &StorageVersionMigration) -> &'static str {
    let known = [SUCCEEDED, FAILED, RUNNING];
    known.into_iter().find(|condition| holds(migration, condition)).unwrap_or("Pending")
}

fn validate(migration: &StorageVersionMigration) -> Errors {
    let (path, mut errors) = (Path::new("spec").child("resource"), Errors::new());
    let GroupResource { group, resource } = resource(migration);
    let mut check = |field: &str, text: &str, wrong: Vec<String>| {
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(&path.child(field), text, &wrong.join(",")));
        }
    };
    if !resource.is_empty() {
        check("resource", &resource, names::dns1035_label(&resource));
    }
    if !group.is_empty() {
        check("group", &group, names::dns1123_subdomain(&group));
    }
    if resource.is_empty() {
        errors.insert(0, FieldError::required(&path.child("resource"), "resource is required to be set"));
    }
    errors
}

/// A migration ends once, and in one way.
fn validate_status(new: &Value, old: &Value) -> Errors {
    let path = Path::new("status");
    let status = |object: &Value| object.get("status").map(decode::<StorageVersionMigrationStatus>).transpose();
    let (new, old) = match (status(new), status(old)) {
        (Ok(new), Ok(old)) => (new.unwrap_or_default(), old.unwrap_or_default()),
        (Err(why), _) | (_, Err(why)) => return vec![FieldError::invalid(&path, "", &why.to_string())],
    };
    let place = path.child("resourceVersion");
    let revision = |status: &StorageVersionMigrationStatus| status.resource_version.clone().unwrap_or_default();
    let (now, before) = (revision(&new), revision(&old));
    let mut errors = Errors::new();
    let is_number = |text: &str| text == "0" || text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if !now.is_empty() && !is_number(&now) {
        errors.push(FieldError::invalid(&place, &now, &format!("resource version is not well formed: {now}")));
    }
    let list = conditions_of(Some(&new));
    let place_of_conditions = path.child("conditions");
    errors.extend(conditions::validate(list, &place_of_conditions));
    if !before.is_empty() && now != before {
        errors.push(FieldError::invalid(&place, &now, "field is immutable"));
    }
    let has = |status: &StorageVersionMigrationStatus, condition: &str| {
        conditions_of(Some(status)).iter().any(|c| c.type_ == condition && c.status == "True")
    };
    let (succeeded, failed, running) = (has(&new, SUCCEEDED), has(&new, FAILED), has(&new, RUNNING));
    for (wrong, detail) in [
        (succeeded && failed, "Both success and failed conditions cannot be true at the same time"),
        (succeeded && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (has(&old, SUCCEEDED) && !succeeded, "Success condition cannot be set to false once it is true"),
        (has(&old, FAILED) && !failed, "Failed condition cannot be set to false once it is true"),
    ] {
        if wrong {
            errors.push(FieldError::invalid(&place_of_conditions, list, detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn said(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn migration(group: &str, resource: &str) -> StorageVersionMigration {
        let spec = json!({"resource": {"group": group, "resource": resource}});
        json::from_value(json!({"metadata": {"name": "m"}, "spec": spec})).expect("a migration")
    }

    #[test]
    fn a_migration_names_a_resource() {
        let check = |group: &str, resource: &str, expected: &[&str]| {
            let errors = said(validate(&migration(group, resource)));
            assert_eq!(errors.len(), expected.len(), "{errors:?}");
            assert!(errors.iter().zip(expected).all(|(e, s)| e.starts_with(s)), "{errors:?}");
        };
        check("", "secrets", &[]);
        check("apps", "deployments", &[]);
        check("apps", "", &["spec.resource.resource: Required value: resource is required to be set"]);
        check(
            "Apps",
            "1x",
            &["spec.resource.resource: Invalid value: \"1x\"", "spec.resource.group: Invalid value: \"Apps\""],
        );
    }

    #[test]
    fn a_migration_ends_once() {
        let status = |revision: &str, conditions: &[&str]| {
            let one = |c: &&str| json!({"type": c, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"});
            json!({"status": {"resourceVersion": revision, "conditions": conditions.iter().map(one).collect::<Vec<_>>()}})
        };
        let check = |old: (&str, &[&str]), new: (&str, &[&str]), expected: &str| {
            let errors = said(validate_status(&status(new.0, new.1), &status(old.0, old.1)));
            assert_eq!(errors.is_empty(), expected.is_empty(), "{errors:?}");
            assert!(errors.iter().all(|e| e.contains(expected)), "{errors:?}");
        };
        check(("", &[]), ("7", &[RUNNING]), "");
        check(("7", &[RUNNING]), ("7", &[SUCCEEDED]), "");
        check(("7", &[RUNNING]), ("7", &[FAILED]), "");
        check(("7", &[]), ("8", &[]), "status.resourceVersion: Invalid value: \"8\": field is immutable");
        check(("", &[]), ("x", &[]), "resource version is not well formed: x");
        check(("", &[]), ("", &[SUCCEEDED, FAILED]), "Both success and failed");
        check(("", &[]), ("", &[SUCCEEDED, RUNNING]), "cannot be true when success");
        check(("", &[]), ("", &[FAILED, RUNNING]), "cannot be true when failed");
        check(("", &[SUCCEEDED]), ("", &[]), "Success condition cannot be set to false");
        check(("", &[FAILED]), ("", &[]), "Failed condition cannot be set to false");
        check(("", &[]), ("", &[RUNNING, RUNNING]), "Duplicate value");
    }

    #[test]
    fn the_table_says_how_far_it_is() {
        let mut one = migration("apps", "deployments");
        assert_eq!((resource_text(&one).as_str(), state(&one)), ("deployments.apps", "Pending"));
        one.status = json::from_value(json!({"conditions": [
            {"type": RUNNING, "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"},
            {"type": FAILED, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"},
        ]}))
        .expect("a status");
        assert_eq!(state(&one), FAILED);
        assert_eq!(resource_text(&migration("", "pods")), "pods");
    }
}
