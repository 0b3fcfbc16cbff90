//! The validation of a ResourceSlice, which a driver publishes.

use std::collections::BTreeMap;

use json::Value;
use k8s_openapi::api::resource::v1::{
    Counter, CounterSet, Device, DeviceAttribute, DeviceCounterConsumption, ResourceSlice, ResourceSliceSpec,
};

use super::capacity;
use super::parts::{self, list, set};
use super::taints::{self, TAINTS_MAX};
use crate::kinds::pod::placement;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::object_meta::invalid;
use crate::validation::{internal_form, names};

const DEVICES_MAX: usize = 128;
/// Where devices have taints or share counters.
const MARKED_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
/// The sets that one device takes of.
const CONSUMPTIONS_MAX: usize = 2;
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
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        errors.push(FieldError::invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let marked = |device: &Device| {
        device.taints.iter().flatten().count() > 0 || device.consumes_counters.iter().flatten().count() > 0
    };
    let most = if spec.devices.iter().flatten().any(marked) { MARKED_DEVICES_MAX } else { DEVICES_MAX };
    let each = spec.per_device_node_selection == Some(true);
    errors.extend(set(
        spec.devices.as_ref(),
        most,
        &path.child("devices"),
        |device| Value::from(device.name.as_str()),
        |one, path| {
            let mut errors = device(one, path);
            errors.extend(nodes_of_device(one, each, path));
            errors
        },
    ));
    errors.extend(set(
        spec.shared_counters.as_ref(),
        COUNTER_SETS_MAX,
        &path.child("sharedCounters"),
        |set| Value::from(set.name.as_str()),
        |set: &CounterSet, path| {
            let mut errors = counter_name(&set.name, &path.child("name"));
            errors.extend(counters(&set.counters, path));
            errors
        },
    ));
    errors
}

fn counter_name(name: &str, path: &Path) -> Errors {
    if name.is_empty() { vec![FieldError::required(path, "")] } else { parts::label(name, path) }
}

fn counters(counters: &BTreeMap<String, Counter>, path: &Path) -> Errors {
    let path = path.child("counters");
    match counters.len() {
        0 => vec![FieldError::required(&path, "")],
        count if count > COUNTERS_MAX => vec![FieldError::too_many(&path, count, COUNTERS_MAX)],
        _ => counters.keys().flat_map(|name| parts::label(name, &path.key(name))).collect(),
    }
}

fn consumption(consumption: &DeviceCounterConsumption, path: &Path) -> Errors {
    let mut errors = counter_name(&consumption.counter_set, &path.child("counterSet"));
    errors.extend(counters(&consumption.counters, path));
    errors
}

/// Where a device is, if it is for each device to say.
fn nodes_of_device(device: &Device, each: bool, path: &Path) -> Errors {
    if !each {
        let given = device.node_name.is_some() || device.node_selector.is_some() || device.all_nodes.is_some();
        let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true \
                      in the ResourceSlice spec";
        return given.then(|| FieldError::invalid(path, Value::Null, detail)).into_iter().collect();
    }
    let (mut errors, mut given) = (Errors::new(), Vec::new());
    let place = path.child("nodeName");
    match device.node_name.as_deref() {
        None => {}
        Some("") => errors.push(FieldError::invalid(&place, "", "must not be empty")),
        Some(name) => {
            given.push("`nodeName`");
            errors.extend(invalid(&place, name, names::dns1123_subdomain(name)));
        }
    }
    if let Some(nodes) = &device.node_selector {
        given.push("`nodeSelector`");
        errors.extend(placement::node_selector(nodes, &path.child("nodeSelector")));
    }
    match device.all_nodes {
        None => {}
        Some(true) => given.push("`allNodes`"),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.push(FieldError::invalid(&path.child("allNodes"), false, detail));
        }
    }
    let one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to \
               true in the ResourceSlice spec";
    match given.len() {
        0 => errors.push(FieldError::required(path, one)),
        1 => {}
        _ => errors.push(FieldError::invalid(path, format!("{{{}}}", given.join(", ")), one)),
    }
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
    match spec.per_device_node_selection {
        None => {}
        Some(true) => given.push("`perDeviceNodeSelection`"),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.push(FieldError::invalid(&path.child("perDeviceNodeSelection"), false, detail));
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
        let (policy, path) = (value.request_policy.as_ref(), place.child("requestPolicy"));
        match policy {
            Some(policy) if device.allow_multiple_allocations == Some(true) => {
                errors.extend(capacity::policy(policy, &value.value, &path));
            }
            Some(_) => errors.push(FieldError::forbidden(&path, "allowMultipleAllocations must be true")),
            None => {}
        }
    }
    errors.extend(parts::binding(device.binding_conditions.as_ref(), device.binding_failure_conditions.as_ref(), path));
    errors.extend(list(device.taints.as_ref(), TAINTS_MAX, &path.child("taints"), taints::taint));
    errors.extend(set(
        device.consumes_counters.as_ref(),
        CONSUMPTIONS_MAX,
        &path.child("consumesCounters"),
        |consumption| Value::from(consumption.counter_set.as_str()),
        consumption,
    ));
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
