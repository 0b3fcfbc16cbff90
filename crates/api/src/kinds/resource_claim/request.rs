//! The requests of a claim, and the devices that a class selects: requests, selectors, constraints and configuration.

use std::collections::{BTreeMap, BTreeSet};

use json::Value;
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClaim, DeviceClass, DeviceConstraint, DeviceRequest, DeviceSelector, DeviceToleration,
    OpaqueDeviceConfiguration, ResourceClaimSpec,
};

use super::parts::{self, PARAMETERS_MAX, list, set};
use super::taints::{self, TAINTS_MAX};
use crate::rules::cel::refused;
use crate::rules::device_selector::{EXPRESSION_MAX, Selector};
use crate::rules::resource_name;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::object_meta;

/// The most requests, constraints, configurations and selectors.
pub(super) const LIST_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;

/// The names of a claim's requests, with those of their alternatives.
pub(super) struct Names<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Names<'a> {
    pub fn of(claim: Option<&'a DeviceClaim>) -> Self {
        let requests = claim.and_then(|claim| claim.requests.as_ref()).into_iter().flatten();
        let alternatives = |request: &'a DeviceRequest| {
            request.first_available.iter().flatten().map(|sub| sub.name.as_str()).collect()
        };
        Names(requests.map(|request| (request.name.as_str(), alternatives(request))).collect())
    }

    /// A reference to a request, or to an alternative of one.
    pub fn check(&self, name: &str, path: &Path) -> Errors {
        let unknown = || {
            let detail = "must be the name of a request in the claim or the name of a request and a subrequest separated \
                          by '/'";
            FieldError::invalid(path, name, detail)
        };
        let segments: Vec<&str> = name.split('/').collect();
        if segments.len() > 2 {
            return vec![unknown()];
        }
        let mut errors: Errors = segments.iter().flat_map(|segment| parts::label(segment, path)).collect();
        let known = self.0.get(segments[0]).is_some_and(|subs| segments.get(1).is_none_or(|sub| subs.contains(sub)));
        if !known {
            errors.push(unknown());
        }
        errors
    }

    pub fn check_all(&self, names: Option<&Vec<String>>, path: &Path) -> Errors {
        let path = path.child("requests");
        set(names, LIST_MAX, &path, |name| Value::from(name.as_str()), |name, path| self.check(name, path))
    }
}

pub(super) fn claim_spec(spec: &ResourceClaimSpec, path: &Path) -> Errors {
    let path = path.child("devices");
    let Some(claim) = &spec.devices else { return Errors::new() };
    let names = Names::of(Some(claim));
    let mut errors = set(
        claim.requests.as_ref(),
        LIST_MAX,
        &path.child("requests"),
        |request| Value::from(request.name.as_str()),
        device_request,
    );
    errors.extend(list(claim.constraints.as_ref(), LIST_MAX, &path.child("constraints"), |constraint, path| {
        device_constraint(constraint, &names, path)
    }));
    errors.extend(list(claim.config.as_ref(), LIST_MAX, &path.child("config"), |config, path| {
        let mut errors = names.check_all(config.requests.as_ref(), path);
        errors.extend(configuration(config.opaque.as_ref(), path));
        errors
    }));
    errors
}

fn device_request(request: &DeviceRequest, path: &Path) -> Errors {
    let mut errors = parts::label(&request.name, &path.child("name"));
    let alternatives = request.first_available.as_ref().filter(|list| !list.is_empty());
    match (&request.exactly, alternatives) {
        (None, None) => {
            errors.push(FieldError::required(path, "exactly one of `exactly` or `firstAvailable` is required"));
        }
        (Some(_), Some(_)) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(path, Value::Null, detail));
        }
        (Some(exactly), None) => {
            let path = path.child("exactly");
            errors.extend(parts::class(&exactly.device_class_name, &path.child("deviceClassName")));
            errors.extend(selectors(exactly.selectors.as_ref(), &path));
            errors.extend(mode(exactly.allocation_mode.as_deref(), exactly.count, &path));
            errors.extend(tolerations(exactly.tolerations.as_ref(), &path));
            errors.extend(capacity(exactly.capacity.as_ref(), &path));
        }
        (None, Some(_)) => {
            let key = |sub: &k8s_openapi::api::resource::v1::DeviceSubRequest| Value::from(sub.name.as_str());
            let path = path.child("firstAvailable");
            errors.extend(set(alternatives, ALTERNATIVES_MAX, &path, key, |sub, path| {
                let mut errors = parts::label(&sub.name, &path.child("name"));
                errors.extend(parts::class(&sub.device_class_name, &path.child("deviceClassName")));
                errors.extend(selectors(sub.selectors.as_ref(), path));
                errors.extend(mode(sub.allocation_mode.as_deref(), sub.count, path));
                errors.extend(tolerations(sub.tolerations.as_ref(), path));
                errors.extend(capacity(sub.capacity.as_ref(), path));
                errors
            }));
        }
    }
    errors
}

fn mode(mode: Option<&str>, count: Option<i64>, path: &Path) -> Errors {
    let count = count.unwrap_or(0);
    let place = path.child("count");
    match mode.unwrap_or_default() {
        "All" if count != 0 => {
            vec![FieldError::invalid(&place, count, "must not be specified when allocationMode is 'All'")]
        }
        "ExactCount" if count <= 0 => vec![FieldError::invalid(&place, count, "must be greater than zero")],
        "All" | "ExactCount" => Errors::new(),
        other => vec![FieldError::not_supported(&path.child("allocationMode"), other, &["All", "ExactCount"])],
    }
}

fn tolerations(tolerations: Option<&Vec<DeviceToleration>>, path: &Path) -> Errors {
    list(tolerations, TAINTS_MAX, &path.child("tolerations"), taints::toleration)
}

fn capacity(capacity: Option<&CapacityRequirements>, path: &Path) -> Errors {
    let path = path.child("capacity").child("requests");
    let names = capacity.and_then(|capacity| capacity.requests.as_ref()).into_iter().flatten().map(|(name, _)| name);
    names.flat_map(|name| parts::qualified(name, &path.key(name))).collect()
}

fn selectors(selectors: Option<&Vec<DeviceSelector>>, path: &Path) -> Errors {
    list(selectors, LIST_MAX, &path.child("selectors"), |selector, path| {
        let path = path.child("cel");
        let Some(cel) = &selector.cel else { return vec![FieldError::required(&path, "")] };
        let path = path.child("expression");
        if cel.expression.len() > EXPRESSION_MAX {
            return vec![FieldError::too_long(&path, EXPRESSION_MAX)];
        }
        match Selector::compile(&cel.expression) {
            Ok(selector) if selector.is_cheap() => Errors::new(),
            Ok(_) => vec![FieldError::forbidden(&path, "too complex, exceeds cost limit")],
            Err(why) => vec![refused(&path, &cel.expression, &why)],
        }
    })
}

fn device_constraint(constraint: &DeviceConstraint, names: &Names, path: &Path) -> Errors {
    let mut errors = names.check_all(constraint.requests.as_ref(), path);
    let place = path.child("matchAttribute");
    errors.extend(match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(attribute), _) => parts::fully_qualified(attribute, &place),
        (None, Some(attribute)) => parts::fully_qualified(attribute, &path.child("distinctAttribute")),
        (None, None) => vec![FieldError::required(&place, "")],
    });
    errors
}

pub(super) fn configuration(opaque: Option<&OpaqueDeviceConfiguration>, path: &Path) -> Errors {
    let path = path.child("opaque");
    let Some(opaque) = opaque else { return vec![FieldError::required(&path, "")] };
    let mut errors = parts::driver(&opaque.driver, &path.child("driver"));
    errors.extend(parts::json_object(&(&opaque.parameters.0).into(), PARAMETERS_MAX, &path.child("parameters")));
    errors
}

pub(super) fn device_class(class: &DeviceClass) -> Errors {
    let path = Path::new("spec");
    let mut errors = selectors(class.spec.selectors.as_ref(), &path);
    errors.extend(list(class.spec.config.as_ref(), LIST_MAX, &path.child("config"), |config, path| {
        configuration(config.opaque.as_ref(), path)
    }));
    if let Some(name) = class.spec.extended_resource_name.as_deref().filter(|name| !resource_name::is_extended(name)) {
        let place = path.child("extendedResourceName");
        errors.push(FieldError::invalid(&place, name, "must be a valid extended resource name"));
    }
    errors
}

/// The metadata that claims get from a template.
pub(super) fn template_metadata(
    meta: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
    path: &Path,
) -> Errors {
    let path = path.child("metadata");
    let mut errors =
        object_meta::annotations(meta.and_then(|meta| meta.annotations.as_ref()), &path.child("annotations"));
    errors.extend(object_meta::labels(meta.and_then(|meta| meta.labels.as_ref()), &path.child("labels")));
    errors
}
