//! The validation of a PersistentVolumeClaim and of its changes.
//! Upstream counterpart: `ValidatePersistentVolumeClaim` and its neighbours in pkg/apis/core/validation.

use json::Value;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde::Deserialize;

use super::data_source;
use crate::kinds::rollout::validate_selector;
use crate::rules::quantity::{self, Quantity};
use crate::rules::volume::{CLASS, annotation};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};

const STORAGE: &str = "storage";
const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
/// How far the growth of a volume is.
const RESIZE_STATES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

pub(super) fn claim(claim: &PersistentVolumeClaim) -> Errors {
    spec(claim.spec.as_ref().unwrap_or(&PersistentVolumeClaimSpec::default()), &Path::new("spec"))
}

/// The spec of a claim, its own or in a template.
pub(crate) fn spec(spec: &PersistentVolumeClaimSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        let detail = "at least 1 access mode is required";
        errors.push(FieldError::required(&path.child("accessModes"), detail));
    }
    errors.extend(spec.selector.iter().flat_map(|selector| validate_selector(selector, &path.child("selector"))));
    errors.extend(access_modes(modes, path));
    let place = path.child("resources").key(STORAGE);
    match storage(spec) {
        None => errors.push(FieldError::required(&place, "")),
        Some(amount) => errors.extend(positive(amount, &place)),
    }
    errors.extend(class_name(spec.storage_class_name.as_deref(), "storageClassName", path));
    errors.extend(volume_mode(spec.volume_mode.as_deref(), path));
    errors.extend(data_sources(spec, path));
    errors.extend(class_name(spec.volume_attributes_class_name.as_deref(), "volumeAttributesClassName", path));
    errors
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Option<&Text> {
    spec.resources.as_ref()?.requests.as_ref()?.get(STORAGE)
}

/// Each mode is known, and the one for a single Pod stands alone.
pub(crate) fn access_modes(modes: &[String], path: &Path) -> Errors {
    let path = path.child("accessModes");
    let known = |mode: &&String| ACCESS_MODES.contains(&mode.as_str());
    let unknown = modes.iter().filter(|mode| !known(mode));
    let mut errors: Errors = unknown.map(|mode| FieldError::not_supported(&path, mode, ACCESS_MODES)).collect();
    let single = |mode: &&String| *mode == "ReadWriteOncePod";
    if modes.iter().any(|mode| single(&mode)) && modes.iter().filter(known).any(|mode| !single(&mode)) {
        errors.push(FieldError::forbidden(&path, "may not use ReadWriteOncePod with other access modes"));
    }
    errors
}

pub(crate) fn positive(amount: &Text, path: &Path) -> Option<FieldError> {
    let parsed = quantity::parse(amount);
    (parsed.is_negative() || parsed.is_zero())
        .then(|| FieldError::invalid(path, parsed.to_string(), "must be greater than zero"))
}

/// An amount that is not negative; upstream shows it as a whole number.
pub(crate) fn not_negative(amount: Quantity, path: &Path) -> Option<FieldError> {
    amount.is_negative().then(|| FieldError::invalid(path, amount.value(), "must be a valid resource quantity"))
}

fn class_name(name: Option<&str>, field: &str, path: &Path) -> Errors {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Errors::new() };
    invalid_at(path, field, name, names::dns1123_subdomain(name))
}

pub(crate) fn volume_mode(mode: Option<&str>, path: &Path) -> Option<FieldError> {
    let mode = mode.filter(|mode| !VOLUME_MODES.contains(mode))?;
    Some(FieldError::not_supported(&path.child("volumeMode"), mode, VOLUME_MODES))
}

fn data_sources(spec: &PersistentVolumeClaimSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let source = spec.data_source.as_ref().map(|source| TypedObjectReference {
        api_group: source.api_group.clone(),
        kind: source.kind.clone(),
        name: source.name.clone(),
        namespace: None,
    });
    let reference = spec.data_source_ref.as_ref();
    for (field, source) in [("dataSource", source.as_ref()), ("dataSourceRef", reference)] {
        errors.extend(source.iter().flat_map(|source| data_source_of(source, &path.child(field))));
    }
    let (Some(source), Some(reference)) = (&source, reference) else { return errors };
    // Upstream shows the path of the field as the value, which has nothing that JSON shows.
    let wrong = |detail: &str| FieldError::invalid_shown(path, "{}", detail);
    if reference.namespace.as_deref().is_some_and(|namespace| !namespace.is_empty()) {
        errors.push(wrong("may not be specified when dataSourceRef.namespace is specified"));
    } else if (&source.api_group, &source.kind, &source.name)
        != (&reference.api_group, &reference.kind, &reference.name)
    {
        errors.push(wrong("must match dataSourceRef"));
    }
    errors
}

fn data_source_of(source: &TypedObjectReference, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value) in [("name", &source.name), ("kind", &source.kind)] {
        if value.is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        }
    }
    let group = source.api_group.as_deref().unwrap_or_default();
    if group.is_empty() && source.kind != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(path, &source.kind, detail));
    }
    if !group.is_empty() {
        errors.extend(invalid_at(path, "apiGroup", group, names::dns1123_subdomain(group)));
    }
    if let Some(namespace) = source.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        errors.extend(invalid_at(path, "namespace", namespace, names::dns1123_label(namespace)));
    }
    errors
}

/// A bound claim can ask for more room and for another class of attributes; everything else is fixed but the volume and
/// the class, which are chosen once.
pub(super) fn update(new: &PersistentVolumeClaim, old: &PersistentVolumeClaim) -> Errors {
    let none = PersistentVolumeClaimSpec::default();
    let (after, before) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
    // A mistake of before, by older rules, may stay.
    let known = claim(old);
    let mut errors: Errors = claim(new).into_iter().filter(|error| !known.contains(error)).collect();
    let before = &with_data_sources(before);
    let mut munged = after.clone();
    if before.volume_name.as_deref().unwrap_or_default().is_empty() {
        munged.volume_name.clone_from(&before.volume_name);
    }
    errors.extend(class_update(new, old, &mut munged));
    if new.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") {
        let requests = munged.resources.as_mut().and_then(|resources| resources.requests.as_mut());
        if let (Some(requests), Some(size)) = (requests, storage(before)) {
            requests.insert(STORAGE.to_owned(), size.clone());
        }
        munged.volume_attributes_class_name.clone_from(&before.volume_attributes_class_name);
    }
    if munged != *before {
        let diff = internal_form::diff("PersistentVolumeClaimSpec", before, &munged);
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{diff}"
        );
        errors.push(FieldError::forbidden(&Path::new("spec"), &detail));
    }
    let size = |spec| storage(spec).map(quantity::parse).unwrap_or_default();
    let there = old.status.as_ref().and_then(|status| status.capacity.as_ref()).and_then(|c| c.get(STORAGE));
    if size(after) < size(before) && size(after) <= there.map(quantity::parse).unwrap_or_default() {
        let path = Path::new("spec").child("resources").child("requests").child(STORAGE);
        errors.push(FieldError::forbidden(&path, "field can not be less than status.capacity"));
    }
    if after.volume_mode != before.volume_mode {
        errors.push(FieldError::invalid(&Path::new("volumeMode"), &after.volume_mode, "field is immutable"));
    }
    errors.extend(attributes_update(after, before, old.status.as_ref()));
    errors
}

/// The spec as it reads today: claims of older servers can have one of the two data sources only.
fn with_data_sources(spec: &PersistentVolumeClaimSpec) -> PersistentVolumeClaimSpec {
    if spec.data_source.is_some() == spec.data_source_ref.is_some() {
        return spec.clone();
    }
    let Ok(Value::Object(mut fields)) = json::to_value(spec) else { return spec.clone() };
    data_source::fill_in(&mut fields);
    json::from_value(Value::Object(fields)).unwrap_or_else(|_| spec.clone())
}

/// The class is chosen once: by the field, or, as in claims of old, by an annotation that the field may take over.
fn class_update(
    new: &PersistentVolumeClaim,
    old: &PersistentVolumeClaim,
    munged: &mut PersistentVolumeClaimSpec,
) -> Option<FieldError> {
    let (after, before) = (annotation(&new.metadata, CLASS), annotation(&old.metadata, CLASS));
    let unset = old.spec.as_ref().is_none_or(|spec| spec.storage_class_name.is_none());
    let name = munged.storage_class_name.clone();
    if unset && name.is_some() && (before.is_none() || before == name.as_deref()) {
        munged.storage_class_name = None;
    }
    let taken_over = unset && before.is_some() && name.as_deref() == before && (after.is_none() || after == before);
    if taken_over || after.unwrap_or_default() == before.unwrap_or_default() {
        return None;
    }
    let path = Path::new("metadata").child("annotations").child(CLASS);
    Some(FieldError::invalid(&path, after.unwrap_or_default(), "field is immutable"))
}

/// A class of attributes that a volume once had cannot be taken away again.
fn attributes_update(
    after: &PersistentVolumeClaimSpec,
    before: &PersistentVolumeClaimSpec,
    status: Option<&PersistentVolumeClaimStatus>,
) -> Option<FieldError> {
    let name = after.volume_attributes_class_name.as_deref();
    status?.current_volume_attributes_class_name.as_ref()?;
    let to = match name {
        _ if name == before.volume_attributes_class_name.as_deref() => return None,
        None => "nil",
        Some("") => "empty string",
        Some(_) => return None,
    };
    let detail = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
    Some(FieldError::forbidden(&Path::new("spec").child("volumeAttributesClassName"), &detail))
}

/// The statements of a driver about a claim's volume and its growth.
pub(super) fn status(claim: &Value) -> Errors {
    let status = claim.get("status").map(PersistentVolumeClaimStatus::deserialize);
    let Some(Ok(status)) = status else { return Errors::new() };
    let mut errors = Errors::new();
    let path = Path::new("status");
    for (resource, amount) in status.capacity.iter().flatten() {
        errors.extend(not_negative(quantity::parse(amount), &path.child("capacity").key(resource)));
    }
    let place = path.child("allocatedResourceStatuses");
    for (resource, state) in status.allocated_resource_statuses.iter().flatten() {
        errors.extend(resource_key(resource, &place));
        if !RESIZE_STATES.contains(&state.as_str()) {
            errors.push(FieldError::not_supported(&place, resource, RESIZE_STATES));
        }
    }
    let place = path.child("allocatedResources");
    for (resource, amount) in status.allocated_resources.iter().flatten() {
        let wrong = resource_key(resource, &place);
        if wrong.is_empty() {
            errors.extend(not_negative(quantity::parse(amount), &place.key(resource)));
        }
        errors.extend(wrong);
    }
    errors
}

/// Of Kubernetes' own resources a claim has its room only.
fn resource_key(name: &str, path: &Path) -> Errors {
    let errors: Errors = invalid(path, name, names::qualified_name(name)).collect();
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if errors.is_empty() && native && name != STORAGE {
        return vec![FieldError::not_supported(path, name, &[STORAGE])];
    }
    errors
}

pub(super) fn warnings(claim: &PersistentVolumeClaim) -> Vec<String> {
    let mut list = Vec::new();
    if annotation(&claim.metadata, CLASS).is_some() {
        let place = Path::new("metadata").child("annotations").key(CLASS);
        list.push(format!("{place}: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    list.extend(claim.spec.iter().flat_map(|spec| spec_warnings(spec, &Path::new("spec"))));
    list
}

/// Warnings about a claim, or the template of one, at this place.
pub(crate) fn spec_warnings(spec: &PersistentVolumeClaimSpec, path: &Path) -> Vec<String> {
    let mut list = Vec::new();
    let resources = spec.resources.as_ref();
    for (field, amounts) in [
        ("requests", resources.and_then(|r| r.requests.as_ref())),
        ("limits", resources.and_then(|r| r.limits.as_ref())),
    ] {
        let amount = amounts.and_then(|amounts| amounts.get(STORAGE)).map(quantity::parse).unwrap_or_default();
        if amount.milli_value() % 1000 != 0 {
            let place = path.child("resources").child(field).key(STORAGE);
            let shown = amount.to_string();
            list.push(format!("{place}: fractional byte value {shown:?} is invalid, must be an integer"));
        }
    }
    list
}

#[cfg(test)]
mod tests;
