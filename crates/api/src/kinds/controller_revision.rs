//! ControllerRevision: a remembered state of a DaemonSet or StatefulSet.

use json::Value;
use k8s_openapi::api::apps::v1::ControllerRevision;

use crate::kind::{Kind, age, col, name};
use crate::validation::field::{Errors, FieldError, Path};

pub const CONTROLLER_REVISION: Kind<ControllerRevision> = Kind {
    validate: Some(validate),
    validate_update: Some(|new, old, _| {
        let fixed = FieldError::invalid(&Path::new("data"), &new.data, "field is immutable");
        if new.data == old.data { Errors::new() } else { vec![fixed] }
    }),
    columns: &[
        name(),
        col("Controller", "Controller of the object", |r, _| Value::from(controller(r))),
        col("Revision", "The number of the state.", |r, _| Value::from(r.revision.to_string())),
        age(),
    ],
    ..Kind::BASE
};

/// `statefulset.apps/web`.
fn controller(revision: &ControllerRevision) -> String {
    let owners = revision.metadata.owner_references.as_deref().unwrap_or_default();
    let Some(owner) = owners.iter().find(|o| o.controller == Some(true)) else { return "<none>".to_owned() };
    let kind = owner.kind.to_lowercase();
    match owner.api_version.split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.name),
        None => format!("{kind}/{}", owner.name),
    }
}

fn validate(revision: &ControllerRevision) -> Errors {
    let mut errors = Errors::new();
    if revision.data.is_none() {
        errors.push(FieldError::required(&Path::new("data"), "data is mandatory"));
    }
    if revision.revision < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&Path::new("revision"), revision.revision, detail));
    }
    errors
}
