//! Devices in the older versions of their group. In v1beta1 a request that has no alternatives has its fields by itself, and
//! what a device has stands below `basic`; v1beta2 has the shape of v1.
//! Upstream counterpart: pkg/apis/resource/v1beta1/conversion.go.

use json::{Map, Value};

use crate::kind::Older;

pub const V1BETA2: Older = Older::named("v1beta2");
/// Of classes, whose shape is that of v1.
pub const V1BETA1: Older = Older { deprecated: Some((35, 38, false)), ..Older::named("v1beta1") };
pub const CLAIM_V1BETA1: Older = Older {
    to_current: |claim| each(claim, "/spec/devices/requests", gather),
    from_current: |claim| each(claim, "/spec/devices/requests", spread),
    ..V1BETA1
};
pub const TEMPLATE_V1BETA1: Older = Older {
    to_current: |template| each(template, "/spec/spec/devices/requests", gather),
    from_current: |template| each(template, "/spec/spec/devices/requests", spread),
    ..V1BETA1
};
pub const SLICE_V1BETA1: Older = Older {
    to_current: |slice| {
        each(slice, "/spec/devices", unwrap);
        without_zeros(slice);
    },
    from_current: |slice| {
        each(slice, "/spec/devices", wrap);
        without_zeros(slice);
    },
    stamped: Some(&["spec.devices[].basic.taints[].timeAdded"]),
    ..V1BETA1
};

/// The fields of a request that stand below `exactly` since v1beta2.
const EXACTLY: [&str; 7] =
    ["adminAccess", "allocationMode", "capacity", "count", "deviceClassName", "selectors", "tolerations"];

fn each(object: &mut Value, list: &str, change: fn(&mut Map)) {
    let items = object.pointer_mut(list).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut).for_each(change);
}

/// A request without alternatives asks for one class exactly, even if it does not say which: v1beta1 has defaults for it.
fn gather(request: &mut Map) {
    let own: Map = EXACTLY.iter().filter_map(|name| request.remove_entry(name)).collect();
    let has_alternatives = request.get("firstAvailable").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if own.is_empty() && has_alternatives {
        return;
    }
    let mut exactly = own;
    exactly.entry("deviceClassName").or_insert_with(|| Value::from(""));
    request.insert("exactly", Value::Object(exactly));
}

fn spread(request: &mut Map) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.extend(exactly.into_iter().filter(|(_, value)| *value != ""));
    }
}

fn unwrap(device: &mut Map) {
    if let Some(Value::Object(basic)) = device.remove("basic") {
        device.extend(basic);
    }
}

fn wrap(device: &mut Map) {
    let name = device.remove("name");
    let basic = std::mem::take(device);
    device.extend(name.map(|name| ("name", name)));
    device.insert("basic", Value::Object(basic));
}

/// No node and not all nodes are nothing: v1beta1 cannot tell them from fields that are not there.
fn without_zeros(slice: &mut Value) {
    if let Some(spec) = slice.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|name, value| !(name == "nodeName" && *value == "" || name == "allNodes" && *value == false));
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[track_caller]
    fn check(older: Older, shape: Value, current: Value) {
        let mut object = shape.clone();
        (older.to_current)(&mut object);
        assert_eq!(object, current);
        (older.from_current)(&mut object);
        assert_eq!(object, shape);
    }

    #[test]
    fn requests_lie_flat_in_v1beta1() {
        let requests = |requests: Value| json!({"spec": {"devices": {"requests": requests}}});
        check(
            CLAIM_V1BETA1,
            requests(json!([
                {"name": "a", "deviceClassName": "c", "count": 2, "selectors": []},
                {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "d"}]},
                {"name": "c", "allocationMode": "All", "firstAvailable": [{}]},
                {"name": "d"},
            ])),
            requests(json!([
                {"name": "a", "exactly": {"deviceClassName": "c", "count": 2, "selectors": []}},
                {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "d"}]},
                {"name": "c", "exactly": {"allocationMode": "All", "deviceClassName": ""}, "firstAvailable": [{}]},
                {"name": "d", "exactly": {"deviceClassName": ""}},
            ])),
        );
        let template = |requests: Value| json!({"spec": {"spec": {"devices": {"requests": requests}}}});
        check(
            TEMPLATE_V1BETA1,
            template(json!([{"deviceClassName": "c"}])),
            template(json!([{"exactly": {"deviceClassName": "c"}}])),
        );
        check(CLAIM_V1BETA1, json!({"spec": {}}), json!({"spec": {}}));
    }

    #[test]
    fn devices_are_basic_in_v1beta1() {
        let devices = |devices: Value| json!({"spec": {"driver": "d", "devices": devices}});
        check(
            SLICE_V1BETA1,
            devices(
                json!([{"name": "a", "basic": {"attributes": {"x": {"int": 1}}, "allNodes": true}}, {"name": "b", "basic": {}}]),
            ),
            devices(json!([{"name": "a", "attributes": {"x": {"int": 1}}, "allNodes": true}, {"name": "b"}])),
        );
        let mut slice = json!({"spec": {"allNodes": false, "nodeName": ""}});
        (SLICE_V1BETA1.from_current)(&mut slice);
        assert_eq!(slice, json!({"spec": {}}));
    }
}
