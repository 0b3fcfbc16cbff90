//! The kinds of dynamic resource allocation: devices, who offers them and who asks for them.
//! Upstream counterpart: pkg/apis/resource/validation, pkg/registry/resource.

mod capacity;
mod gated;
mod older;
mod parts;
mod request;
mod slice;
mod status;
mod taint_rule;
mod taints;

pub use older::{CLAIM_V1BETA1, SLICE_V1BETA1, TEMPLATE_V1BETA1, V1BETA1, V1BETA2};
#[cfg(test)]
mod tests;

use json::Value;
use k8s_openapi::api::resource::v1::{
    DeviceClass, DeviceRequest, DeviceToleration, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;

use crate::features::Feature;
use crate::kind::cell;
use crate::kind::{Generation, Kind, StatusMetadata, age, col, label, name};
use crate::meta::field_text;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;

pub const DEVICE_CLASS: Kind<DeviceClass> = Kind {
    generation: Generation::CountsChangesOf("spec"),
    validate: Some(request::device_class),
    gated: gated::OF_CLASS,
    columns: &[name(), age()],
    ..Kind::BASE
};

pub const RESOURCE_CLAIM: Kind<ResourceClaim> = Kind {
    status: true,
    status_metadata: StatusMetadata::Stays,
    default: Some(|claim| default_requests(claim.spec.devices.as_mut().and_then(|d| d.requests.as_mut()))),
    validate_create: Some(|claim| request::claim_spec(&claim.spec, &Path::new("spec"))),
    validate_update: Some(|new, old, _| fixed(new.spec == old.spec, "ResourceClaimSpec", &new.spec)),
    validate_status: Some(status::validate),
    gated: gated::OF_CLAIM,
    columns: &[
        name(),
        col("State", "A summary of the current state (allocated, pending, reserved, etc.).", |c, _| {
            Value::from(state(c))
        }),
        age(),
    ],
    ..Kind::BASE
};

pub const RESOURCE_CLAIM_TEMPLATE: Kind<ResourceClaimTemplate> = Kind {
    validate_create: Some(|template| {
        let path = Path::new("spec");
        let mut errors = request::template_metadata(template.spec.metadata.as_ref(), &path);
        errors.extend(request::claim_spec(&template.spec.spec, &path.child("spec")));
        errors
    }),
    validate_update: Some(|new, old, _| fixed(new.spec == old.spec, "ResourceClaimTemplateSpec", &new.spec)),
    gated: gated::OF_TEMPLATE,
    default: Some(|t| default_requests(t.spec.spec.devices.as_mut().and_then(|d| d.requests.as_mut()))),
    columns: &[name(), age()],
    ..Kind::BASE
};

pub const RESOURCE_SLICE: Kind<ResourceSlice> = Kind {
    generation: Generation::CountsChangesOf("spec"),
    stamped: &["spec.devices[].taints[].timeAdded"],
    validate: Some(slice::validate),
    validate_update: Some(|new, old, _| slice::validate_update(new, old)),
    gated: gated::OF_SLICE,
    columns: &[
        name(),
        col("Node", "The node that has the devices.", |s, _| cell::text_or(s.spec.node_name.as_ref(), "<unset>")),
        col("Driver", "The driver that offers the devices.", |s, _| Value::from(s.spec.driver.as_str())),
        col("Pool", "The pool that the devices belong to.", |s, _| Value::from(s.spec.pool.name.as_str())),
        age(),
    ],
    field_labels: &[
        label("spec.nodeName", |o| field_text(o, &["spec", "nodeName"])),
        label("spec.driver", |o| field_text(o, &["spec", "driver"])),
    ],
    unknown_label: Some("field label not supported for GVK: LABEL"),
    ..Kind::BASE
};

/// The time of a taint is set by the server, where a client has not said it.
pub const DEVICE_TAINT_RULE: Kind<DeviceTaintRule> = Kind {
    gate: Some(Feature::DRADeviceTaintRules),
    status: true,
    status_metadata: StatusMetadata::Stays,
    generation: Generation::CountsChangesOf("spec"),
    stamped: &["spec.taint.timeAdded"],
    validate: Some(taint_rule::validate),
    validate_create: Some(|rule| taint_rule::validate_effect(rule, None)),
    validate_update: Some(|new, old, _| taint_rule::validate_effect(new, Some(old))),
    validate_status: Some(taint_rule::validate_status),
    columns: &[
        name(),
        col("Key", "The key of the taint.", |r, _| Value::from(r.spec.taint.key.as_str())),
        col("Value", "The value of the taint.", |r, _| cell::text(r.spec.taint.value.as_ref())),
        col("Effect", "What the taint does.", |r, _| Value::from(r.spec.taint.effect.as_str())),
        col("TimeAdded", "How long the taint has been there.", |r, now| {
            Value::from(cell::age(r.spec.taint.time_added.as_ref(), now))
        }),
        age(),
    ],
    ..Kind::BASE
};

/// The spec of a claim does not change: a user makes another one.
fn fixed(same: bool, ty: &str, spec: &impl serde::Serialize) -> Errors {
    let shown = || internal_form::compact(ty, spec);
    if same {
        Errors::new()
    } else {
        vec![FieldError::invalid_shown(&Path::new("spec"), &shown(), "field is immutable")]
    }
}

fn state(claim: &ResourceClaim) -> String {
    let mut states = Vec::new();
    if claim.metadata.deletion_timestamp.is_some() {
        states.push("deleted");
    }
    match claim.status.as_ref().filter(|s| s.allocation.is_some()) {
        None if states.is_empty() => states.push("pending"),
        None => {}
        Some(status) => {
            states.push("allocated");
            if status.reserved_for.as_ref().is_some_and(|r| !r.is_empty()) {
                states.push("reserved");
            }
        }
    }
    states.join(",")
}

fn default_requests(requests: Option<&mut Vec<DeviceRequest>>) {
    for request in requests.into_iter().flatten() {
        if let Some(exactly) = &mut request.exactly {
            let mode = exactly.allocation_mode.get_or_insert_with(|| "ExactCount".to_owned());
            if mode == "ExactCount" {
                exactly.count.get_or_insert(1);
            }
            default_tolerations(exactly.tolerations.as_mut());
        }
        for choice in request.first_available.iter_mut().flatten() {
            let mode = choice.allocation_mode.get_or_insert_with(|| "ExactCount".to_owned());
            if mode == "ExactCount" {
                choice.count.get_or_insert(1);
            }
            default_tolerations(choice.tolerations.as_mut());
        }
    }
}

fn default_tolerations(tolerations: Option<&mut Vec<DeviceToleration>>) {
    for toleration in tolerations.into_iter().flatten() {
        toleration.operator.get_or_insert_with(|| "Equal".to_owned());
    }
}
