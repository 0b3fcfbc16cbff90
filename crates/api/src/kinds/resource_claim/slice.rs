//! What a driver may publish in a ResourceSlice.

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec};
use serde_json::Value;

use super::parts::{self, set};
use crate::kinds::pod::placement;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::object_meta::invalid;
use crate::validation::{internal_form, names};

const DEVICES_MAX: usize = 128;
/// Attributes and capacities of one device.
const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_VALUE_MAX: usize = 64;

pub(super) fn validate(slice: &ResourceSlice) -> Errors {
    let (spec, path) = (&slice.spec, Path::new("spec"));
    let mut errors = parts::driver(&spec.driver, &path.child("driver"));
    let place = path.child("pool");
    errors.extend(parts::pool(&spec.pool.name, &place.child("name")));
    if spec.pool.resource_slice_count <= 0 {
        let place = place.child("resourceSliceCount");
        errors.push(FieldError::invalid(&place, spec.pool.resource_slice_count, "must be greater than zero"));
    }
    if spec.pool.generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(&place.child("generation"), spec.pool.generation, detail));
    }
    errors.extend(nodes(spec, &path));
    errors.extend(set(
        spec.devices.as_ref(),
        DEVICES_MAX,
        &path.child("devices"),
        |device| Value::from(device.name.as_str()),
        device,
    ));
    errors
}

pub(super) fn validate_update(new: &ResourceSlice, old: &ResourceSlice) -> Errors {
    let path = Path::new("spec");
    let fixed = |path: Path, value: Value| FieldError::invalid(&path, value, "field is immutable");
    let (new, old) = (&new.spec, &old.spec);
    let mut errors = Errors::new();
    if new.pool.name != old.pool.name {
        errors.push(fixed(path.child("pool").child("name"), Value::from(new.pool.name.as_str())));
    }
    if new.driver != old.driver {
        errors.push(fixed(path.child("driver"), Value::from(new.driver.as_str())));
    }
    if new.node_name != old.node_name {
        errors.push(fixed(path.child("nodeName"), Value::from(new.node_name.clone())));
    }
    errors
}

/// The nodes that can use the devices.
fn nodes(spec: &ResourceSliceSpec, path: &Path) -> Errors {
    let (mut errors, mut given) = (Errors::new(), Vec::new());
    let place = path.child("nodeName");
    match spec.node_name.as_deref() {
        None => {}
        Some("") => {
            errors.push(FieldError::invalid(&place, "", "must be either unset or set to a non-empty string"));
        }
        Some(name) => {
            given.push("`nodeName`");
            errors.extend(invalid(&place, name, names::dns1123_subdomain(name)));
        }
    }
    if let Some(nodes) = &spec.node_selector {
        given.push("`nodeSelector`");
        let place = path.child("nodeSelector");
        errors.extend(placement::node_selector(nodes, &place));
        // With one term each, the selectors of several slices can be joined.
        if nodes.node_selector_terms.len() != 1 {
            let shown: Vec<String> =
                nodes.node_selector_terms.iter().map(|term| internal_form::compact("NodeSelectorTerm", term)).collect();
            let detail = "must have exactly one node selector term";
            let place = place.child("nodeSelectorTerms");
            errors.push(FieldError::invalid_shown(&place, &format!("[{}]", shown.join(",")), detail));
        }
    }
    match spec.all_nodes {
        None => {}
        Some(true) => given.push("`allNodes`"),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.push(FieldError::invalid(&path.child("allNodes"), false, detail));
        }
    }
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match given.len() {
        0 => errors.push(FieldError::required(path, one)),
        1 => {}
        _ => {
            let detail = format!("{one}, but multiple fields are set");
            errors.push(FieldError::invalid(path, format!("{{{}}}", given.join(", ")), &detail));
        }
    }
    errors
}

fn device(device: &Device, path: &Path) -> Errors {
    let mut errors = parts::label(&device.name, &path.child("name"));
    let (attributes, capacity) = (device.attributes.iter().flatten(), device.capacity.iter().flatten());
    let count = attributes.clone().count() + capacity.clone().count();
    if count > ATTRIBUTES_MAX {
        let detail = format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}");
        errors.push(FieldError::invalid(path, count, &detail));
        return errors;
    }
    for (name, value) in attributes {
        let place = path.child("attributes").key(name);
        errors.extend(parts::qualified(name, &place));
        errors.extend(attribute(value, &place));
    }
    for (name, value) in capacity {
        let place = path.child("capacity").key(name);
        errors.extend(parts::qualified(name, &place));
        if value.request_policy.is_some() {
            let detail = "allowMultipleAllocations must be true";
            errors.push(FieldError::forbidden(&place.child("requestPolicy"), detail));
        }
    }
    errors
}

fn attribute(value: &DeviceAttribute, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let too_long = |text: &str, field: &str| {
        let wrong = || FieldError::too_long(&path.child(field), ATTRIBUTE_VALUE_MAX);
        (text.len() > ATTRIBUTE_VALUE_MAX).then(wrong)
    };
    if let Some(text) = &value.string {
        errors.extend(too_long(text, "string"));
    }
    if let Some(version) = &value.version {
        if !is_version(version) {
            let detail = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(FieldError::invalid(&path.child("version"), version, detail));
        }
        errors.extend(too_long(version, "version"));
    }
    let given = [value.bool.is_some(), value.int.is_some(), value.string.is_some(), value.version.is_some()];
    let detail = "exactly one value must be specified";
    match given.iter().filter(|given| **given).count() {
        1 => {}
        0 => errors.push(FieldError::invalid(path, "", detail)),
        _ => {
            let shown = internal_form::compact("DeviceAttribute", value);
            errors.push(FieldError::invalid_shown(path, &shown, detail));
        }
    }
    errors
}

/// Whether this is a version as semver.org has it, in its shortest form.
fn is_version(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, before) = text.split_once('-').map_or((text, None), |(core, before)| (core, Some(before)));
    let is_number = |part: &str| {
        !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
    let is_identifier = |part: &str| is_number(part) || (is_word(part) && part.bytes().any(|c| !c.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && before.is_none_or(|before| before.split('.').all(is_identifier))
        && build.is_none_or(|build| build.split('.').all(is_word))
}
