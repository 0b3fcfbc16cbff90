//! Fields of features that are off by default: a write does not keep them, as upstream's server drops them.

use serde_json::Value;

fn each<'a>(object: &'a mut Value, path: &str) -> impl Iterator<Item = &'a mut Value> {
    object.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten()
}

fn drop(object: &mut Value, fields: &[&str]) {
    if let Some(map) = object.as_object_mut() {
        fields.iter().for_each(|field| _ = map.remove(*field));
    }
}

/// Tolerations of taints, and shares of a device's capacity. `at` is the place of the claim's spec.
pub(super) fn of_claim(object: &mut Value, at: &str) {
    const OF_REQUEST: &[&str] = &["tolerations", "capacity"];
    for request in each(object, &format!("{at}/devices/requests")) {
        if let Some(exactly) = request.get_mut("exactly") {
            drop(exactly, OF_REQUEST);
        }
        each(request, "/firstAvailable").for_each(|alternative| drop(alternative, OF_REQUEST));
    }
    each(object, &format!("{at}/devices/constraints")).for_each(|constraint| drop(constraint, &["distinctAttribute"]));
}

/// What a new allocation may not say: shares, and conditions that the binding of a Pod waits for.
pub(super) fn of_status(object: &mut Value) {
    if let Some(allocation) = object.pointer_mut("/status/allocation") {
        drop(allocation, &["allocationTimestamp"]);
    }
    for result in each(object, "/status/allocation/devices/results") {
        drop(result, &["bindingConditions", "bindingFailureConditions", "shareID", "consumedCapacity"]);
    }
    each(object, "/status/devices").for_each(|device| drop(device, &["shareID"]));
}

/// Taints, partitions, shared devices and binding conditions.
pub(super) fn of_slice(object: &mut Value) {
    if let Some(spec) = object.get_mut("spec") {
        drop(spec, &["sharedCounters", "perDeviceNodeSelection"]);
    }
    for device in each(object, "/spec/devices") {
        drop(
            device,
            &[
                "taints",
                "consumesCounters",
                "nodeName",
                "nodeSelector",
                "allNodes",
                "bindsToNode",
                "bindingConditions",
                "bindingFailureConditions",
                "allowMultipleAllocations",
            ],
        );
        if let Some(capacity) = device.get_mut("capacity").and_then(Value::as_object_mut) {
            capacity.values_mut().for_each(|value| drop(value, &["requestPolicy"]));
        }
    }
}

/// The extended resource that devices of the class stand for.
pub(super) fn of_class(object: &mut Value) {
    if let Some(spec) = object.get_mut("spec") {
        drop(spec, &["extendedResourceName"]);
    }
}
