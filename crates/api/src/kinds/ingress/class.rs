//! IngressClass: which controller realises an Ingress.

use json::Value;
use k8s_openapi::api::networking::v1::{IngressClass, IngressClassParametersReference, IngressClassSpec};

use super::validate::reference;
use crate::kind::{Generation, Kind, age, cell, col, name};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;

pub const INGRESS_CLASS: Kind<IngressClass> = Kind {
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|class| {
        if let Some(parameters) = class.spec.as_mut().and_then(|s| s.parameters.as_mut()) {
            parameters.scope.get_or_insert_with(|| "Cluster".to_owned());
        }
    }),
    columns: &[
        name(),
        col("Controller", "Controller that is responsible for handling this class", |c, _| {
            cell::text(c.spec.as_ref().and_then(|s| s.controller.as_ref()))
        }),
        col("Parameters", "A reference to a resource with additional parameters", |c, _| Value::from(parameters(c))),
        age(),
    ],
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    ..Kind::BASE
};

fn parameters(class: &IngressClass) -> String {
    let Some(parameters) = class.spec.as_ref().and_then(|s| s.parameters.as_ref()) else { return "<none>".to_owned() };
    match parameters.api_group.as_deref().filter(|g| !g.is_empty()) {
        Some(group) => format!("{}.{group}/{}", parameters.kind, parameters.name),
        None => format!("{}/{}", parameters.kind, parameters.name),
    }
}

/// The longest name of a controller.
const CONTROLLER_MAX: usize = 250;

fn validate(class: &IngressClass) -> Errors {
    let path = Path::new("spec");
    let none = IngressClassSpec::default();
    let spec = class.spec.as_ref().unwrap_or(&none);
    let controller = spec.controller.as_deref().unwrap_or_default();
    let place = path.child("controller");
    let mut errors = Errors::new();
    if controller.len() > CONTROLLER_MAX {
        errors.push(FieldError::too_long(&place, CONTROLLER_MAX));
    }
    errors.extend(names::domain_prefixed_path(controller, &place));
    if let Some(given) = &spec.parameters {
        errors.extend(validate_parameters(given, &path.child("parameters")));
    }
    errors
}

fn validate_parameters(given: &IngressClassParametersReference, path: &Path) -> Errors {
    let mut errors = reference(given.api_group.as_deref(), &given.kind, &given.name, path);
    let place = path.child("namespace");
    match (given.scope.as_deref(), &given.namespace) {
        (None, _) => errors.push(FieldError::required(&path.child("scope"), "")),
        (Some("Namespace"), None) => {
            errors.push(FieldError::required(&place, "`parameters.scope` is set to 'Namespace'"));
        }
        (Some("Namespace"), Some(namespace)) => {
            errors.extend(invalid_at(path, "namespace", namespace, names::dns1123_label(namespace)));
        }
        (Some("Cluster"), Some(_)) => {
            errors.push(FieldError::forbidden(&place, "`parameters.scope` is set to 'Cluster'"));
        }
        (Some("Cluster"), None) => {}
        (Some(other), _) => {
            errors.push(FieldError::not_supported(&path.child("scope"), other, &["Cluster", "Namespace"]));
        }
    }
    errors
}

/// The controller of a class is for life.
fn validate_update(new: &IngressClass, old: &IngressClass) -> Errors {
    let controller = |class: &IngressClass| class.spec.as_ref().and_then(|s| s.controller.clone()).unwrap_or_default();
    let (new, old) = (controller(new), controller(old));
    let place = Path::new("spec").child("controller");
    if new == old { Errors::new() } else { vec![FieldError::invalid(&place, new, "field is immutable")] }
}
