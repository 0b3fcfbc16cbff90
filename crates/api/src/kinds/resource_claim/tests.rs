//! The errors of classes, claims, templates and slices, and of their changes, as tables.

use json::{Value, json};

use crate::kind::{Strategy, Target};
use crate::kinds::built_in;

fn strategy(plural: &str) -> &'static dyn Strategy {
    &*built_in().find("resource.k8s.io", "v1", plural).expect("served").strategy
}

fn kind(plural: &str) -> &'static str {
    match plural {
        "resourceclaims" => "ResourceClaim",
        "resourceclaimtemplates" => "ResourceClaimTemplate",
        "resourceslices" => "ResourceSlice",
        _ => "DeviceClass",
    }
}

/// A new object as the server has it before it checks it.
fn made(plural: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind(plural),
        "metadata": {"name": "x", "namespace": "d", "uid": "u", "resourceVersion": "1"}, "spec": spec});
    strategy(plural).default(&mut object);
    strategy(plural).prepare_create(&mut object);
    object
}

fn said(errors: Vec<crate::validation::field::FieldError>) -> String {
    let meta = |line: &String| !line.starts_with("metadata.");
    errors.iter().map(ToString::to_string).filter(meta).collect::<Vec<_>>().join("\n")
}

fn about(plural: &str, spec: Value) -> String {
    said(strategy(plural).validate(&made(plural, spec)))
}

fn request(more: &Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu"});
    for (field, value) in more.as_object().into_iter().flatten() {
        exactly[field] = value.clone();
    }
    json!({"name": "r", "exactly": exactly})
}

fn claim(devices: Value) -> String {
    about("resourceclaims", json!({"devices": devices}))
}

#[test]
fn requests_say_what_they_want_in_one_way() {
    let check = |requests: Value, expected: &str| assert_eq!(claim(json!({"requests": requests})), expected);
    let at = |text: &str| format!("spec.devices.requests[0]{text}");
    check(json!([request(&json!({}))]), "");
    check(json!([{"name": "r"}]), &at(": Required value: exactly one of `exactly` or `firstAvailable` is required"));
    let mut both = request(&json!({}));
    both["firstAvailable"] = json!([{"name": "s", "deviceClassName": "gpu"}]);
    let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
    check(json!([both]), &at(&format!(": Invalid value: null: {detail}")));
    check(json!([{"name": "r", "exactly": {"deviceClassName": ""}}]), &at(".exactly.deviceClassName: Required value"));
    check(json!([request(&json!({"count": -1}))]), &at(".exactly.count: Invalid value: -1: must be greater than zero"));
    check(
        json!([request(&json!({"allocationMode": "All", "count": 2}))]),
        &at(".exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'"),
    );
    check(
        json!([request(&json!({"allocationMode": "Some"}))]),
        &at(".exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\""),
    );
    check(json!([request(&json!({"selectors": [{}]}))]), &at(".exactly.selectors[0].cel: Required value"));
    let long = json!({"selectors": [{"cel": {"expression": "x".repeat(10241)}}]});
    let too_long = ".exactly.selectors[0].cel.expression: Too long: may not be more than 10240 bytes";
    check(json!([request(&long)]), &at(too_long));
    let text = json!({"selectors": [{"cel": {"expression": "device.driver"}}]});
    let detail = "must evaluate to bool or the unknown type, not string";
    let wrong = format!(".exactly.selectors[0].cel.expression: Invalid value: \"device.driver\": {detail}");
    check(json!([request(&text)]), &at(&wrong));
    check(json!([request(&json!({"selectors": [{"cel": {"expression": "device.driver == 'a'"}}]}))]), "");
    let same = json!([request(&json!({})), request(&json!({}))]);
    check(same, "spec.devices.requests[1]: Duplicate value: \"r\"");
    let many: Vec<Value> = (0..33).map(|_| request(&json!({}))).collect();
    check(json!(many), "spec.devices.requests: Too many: 33: must have at most 32 items");
    let subs: Vec<Value> = (0..9).map(|i| json!({"name": format!("s{i}"), "deviceClassName": "gpu"})).collect();
    check(
        json!([{"name": "r", "firstAvailable": subs}]),
        &at(".firstAvailable: Too many: 9: must have at most 8 items"),
    );
    // Tolerations and capacity belong to features that are off.
    let more = json!({"tolerations": [{"key": "k"}], "capacity": {"requests": {"memory": "1Gi"}}});
    assert_eq!(
        made("resourceclaims", json!({"devices": {"requests": [request(&more)]}}))["spec"]["devices"],
        json!({"requests": [request(&json!({"allocationMode": "ExactCount", "count": 1}))]})
    );
}

#[test]
fn constraints_and_configurations_name_requests() {
    let check = |field: &str, value: Value, expected: &str| {
        let sub = json!({"name": "list", "firstAvailable": [{"name": "s", "deviceClassName": "gpu"}]});
        assert_eq!(claim(json!({"requests": [request(&json!({})), sub], field: [value]})), expected);
    };
    let matching = |requests: Value| json!({"matchAttribute": "a.io/x", "requests": requests});
    check("constraints", matching(json!(["r", "list/s", "list"])), "");
    let unknown =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    for name in ["q", "list/q", "r/s", "list/s/t"] {
        let expected = format!("spec.devices.constraints[0].requests[0]: Invalid value: {name:?}: {unknown}");
        check("constraints", matching(json!([name])), &expected);
    }
    check("constraints", json!({}), "spec.devices.constraints[0].matchAttribute: Required value");
    let bare = "spec.devices.constraints[0].matchAttribute: Invalid value: \"x\": a fully qualified name must be a domain \
                and a name separated by a slash";
    check("constraints", json!({"matchAttribute": "x"}), bare);
    let opaque = |parameters: Value| json!({"opaque": {"driver": "a.io", "parameters": parameters}});
    check("config", opaque(json!({"a": 1})), "");
    check("config", json!({"requests": ["r"]}), "spec.devices.config[0].opaque: Required value");
    let place = "spec.devices.config[0].opaque.parameters";
    check(
        "config",
        opaque(json!([1])),
        &format!("{place}: Invalid value: \"<value omitted>\": must be a valid JSON object"),
    );
    check(
        "config",
        opaque(json!({"a": "x".repeat(10240)})),
        &format!("{place}: Too long: may not be more than 10240 bytes"),
    );
}

#[test]
fn what_a_claim_asks_for_does_not_change() {
    for plural in ["resourceclaims", "resourceclaimtemplates"] {
        let spec = |count: i64| {
            let devices = json!({"devices": {"requests": [request(&json!({"count": count}))]}});
            if plural == "resourceclaims" { devices } else { json!({"spec": devices}) }
        };
        let (old, mut new) = (made(plural, spec(1)), made(plural, spec(1)));
        new["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(said(strategy(plural).validate_update(&new, &old, Target::Object)), "");
        let changed = said(strategy(plural).validate_update(&made(plural, spec(2)), &old, Target::Object));
        assert!(
            changed.starts_with("spec: Invalid value: {") && changed.ends_with(": field is immutable"),
            "{changed}"
        );
        assert!(
            changed.contains("\"Requests\":[{\"Name\":\"r\",\"Exactly\":{\"DeviceClassName\":\"gpu\""),
            "{changed}"
        );
    }
}

fn device(name: &str, attributes: Value) -> Value {
    json!({"name": name, "attributes": attributes})
}

#[test]
fn slices_offer_devices_for_nodes_in_one_way() {
    let slice = |more: Value| {
        let mut spec = json!({"driver": "a.io", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        spec
    };
    let check = |more: Value, expected: &str| assert_eq!(about("resourceslices", slice(more)), expected);
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    check(json!({"nodeName": "n"}), "");
    check(json!({"allNodes": true}), "");
    check(json!({}), &format!("spec: Required value: {one}"));
    check(json!({"perDeviceNodeSelection": true}), &format!("spec: Required value: {one}"));
    check(
        json!({"allNodes": true, "nodeName": "n"}),
        &format!("spec: Invalid value: \"{{`nodeName`, `allNodes`}}\": {one}, but multiple fields are set"),
    );
    check(
        json!({"allNodes": true, "driver": "_"}),
        "spec.driver: Invalid value: \"_\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
         characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
         for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
    );
    let pool = json!({"name": "p", "generation": -1, "resourceSliceCount": 0});
    check(
        json!({"allNodes": true, "pool": pool}),
        "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero\nspec.pool.generation: Invalid value: \
         -1: must be greater than or equal to zero",
    );
    let with = |devices: Value| json!({"allNodes": true, "devices": devices});
    check(with(json!([device("d", json!({"a": {"version": "1.2.3-rc.1+x"}, "b.io/b": {"int": 1}}))])), "");
    for version in ["1.2", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3"] {
        let expected = format!(
            "spec.devices[0].attributes[a].version: Invalid value: {version:?}: must be a string compatible with \
             semver.org spec 2.0.0"
        );
        check(with(json!([device("d", json!({"a": {"version": version}}))])), &expected);
    }
    let place = "spec.devices[0].attributes[a]";
    check(
        with(json!([device("d", json!({"a": {}}))])),
        &format!("{place}: Invalid value: \"\": exactly one value must be specified"),
    );
    let two = "{\"IntValue\":1,\"BoolValue\":true,\"StringValue\":null,\"VersionValue\":null}";
    check(
        with(json!([device("d", json!({"a": {"int": 1, "bool": true}}))])),
        &format!("{place}: Invalid value: {two}: exactly one value must be specified"),
    );
    check(
        with(json!([device("d", json!({"a": {"string": "x".repeat(65)}}))])),
        &format!("{place}.string: Too long: may not be more than 64 bytes"),
    );
    check(with(json!([device("d", json!({})), device("d", json!({}))])), "spec.devices[1]: Duplicate value: \"d\"");
    let attributes: json::Map = (0..33).map(|i| (format!("a{i}"), json!({"int": 1}))).collect();
    check(
        with(json!([device("d", json!(attributes))])),
        "spec.devices[0]: Invalid value: 33: the total number of attributes and capacities must not exceed 32",
    );
    let many: Vec<Value> = (0..129).map(|i| device(&format!("d{i}"), json!({}))).collect();
    check(with(json!(many)), "spec.devices: Too many: 129: must have at most 128 items");
    let (old, new) = (slice(json!({"nodeName": "n"})), slice(json!({"nodeName": "m"})));
    let (old, new) = (made("resourceslices", old), made("resourceslices", new));
    let changed = said(strategy("resourceslices").validate_update(&new, &old, Target::Object));
    assert_eq!(changed, "spec.nodeName: Invalid value: \"m\": field is immutable");
    let off = json!([{"name": "d", "taints": [{"key": "k", "effect": "NoSchedule"}], "bindingConditions": ["c"]}]);
    assert_eq!(made("resourceslices", slice(with(off)))["spec"]["devices"], json!([{"name": "d"}]));
}

#[test]
fn devices_have_both_sorts_of_conditions_for_a_binding_or_none() {
    let check = |waits: Value, fails: Value, expected: &str| {
        let device = json!({"name": "d", "bindingConditions": waits, "bindingFailureConditions": fails});
        let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "a.io", "pool": pool, "allNodes": true, "devices": [device]});
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "x"}, "spec": spec});
        let said = said(strategy("resourceslices").validate(&object));
        assert_eq!(said.replace("spec.devices[0].binding", ""), expected);
    };
    check(json!(null), json!(null), "");
    check(json!(["a.io/b"]), json!(["c"]), "");
    check(
        json!(["b"]),
        json!(["b", "c"]),
        "FailureConditions[0]: Invalid value: \"b\": bindingFailureConditions must not overlap with bindingConditions",
    );
    check(
        json!(["b", "b"]),
        json!(["c", "c"]),
        "Conditions[1]: Duplicate value: \"b\"\nFailureConditions[1]: Duplicate value: \"c\"",
    );
    check(
        json!(null),
        json!(["c"]),
        "Conditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions",
    );
    check(
        json!(["b"]),
        json!([]),
        "FailureConditions: Invalid value: []: bindingFailureConditions are required to use bindingConditions",
    );
    check(json!(["1", "2", "3", "4", "5"]), json!(["c"]), "Conditions: Too many: 5: must have at most 4 items");
}

#[test]
fn a_class_selects_and_configures() {
    let check = |spec: Value, expected: &str| assert_eq!(about("deviceclasses", spec), expected);
    check(json!({}), "");
    check(json!({"selectors": [{}]}), "spec.selectors[0].cel: Required value");
    check(json!({"config": [{}]}), "spec.config[0].opaque: Required value");
    assert_eq!(made("deviceclasses", json!({"extendedResourceName": "a.io/b"}))["spec"], json!({}));
    let named = |name: &str| {
        let spec = json!({"extendedResourceName": name});
        said(strategy("deviceclasses").validate(&json!({"metadata": {"name": "x"}, "spec": spec})))
    };
    assert_eq!(named("a.io/b"), "");
    let why = "must be a valid extended resource name";
    assert_eq!(named("cpu"), format!("spec.extendedResourceName: Invalid value: \"cpu\": {why}"));
}

#[test]
fn only_a_claim_with_devices_has_users_and_they_do_not_change() {
    let result = |device: &str| json!({"request": "r", "driver": "a.io", "pool": "p", "device": device});
    let allocated = |device: &str| json!({"devices": {"results": [result(device)]}});
    let user = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
    let object = |status: &Value, deleted: bool| {
        let mut object = made("resourceclaims", json!({"devices": {"requests": [request(&json!({}))]}}));
        object["status"] = status.clone();
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object
    };
    let check = |old: Value, new: Value, deleted: bool, expected: &str| {
        let (old, new) = (object(&old, deleted), object(&new, deleted));
        let said = said(strategy("resourceclaims").validate_update(&new, &old, Target::Status));
        assert_eq!(said, expected);
    };
    let held = |users: &[&str]| json!({"allocation": allocated("d"), "reservedFor": users.iter().map(|u| user(u)).collect::<Vec<_>>()});
    check(json!({}), held(&["a"]), false, "");
    check(held(&["a"]), held(&["a", "b"]), false, "");
    check(held(&["a"]), json!({}), false, "");
    check(
        json!({}),
        json!({"reservedFor": [user("a")]}),
        false,
        "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
    );
    check(
        held(&["a"]),
        held(&["a", "b"]),
        true,
        "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or \
         `deletionTimestamp` are set",
    );
    check(held(&["a", "b"]), held(&["b"]), true, "");
    check(held(&["a"]), held(&["a", "a"]), false, "status.reservedFor[1]: Duplicate value: \"a\"");
    let many: Vec<String> = (0..257).map(|i| i.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    check(json!({}), held(&many), false, "status.reservedFor: Too many: 257: must have at most 256 items");
    let exchanged = {
        let (old, new) = (
            object(&json!({"allocation": allocated("d")}), false),
            object(&json!({"allocation": allocated("e")}), false),
        );
        said(strategy("resourceclaims").validate_update(&new, &old, Target::Status))
    };
    assert!(exchanged.starts_with("status.allocation: Invalid value: ") && exchanged.ends_with(": field is immutable"));
    let foreign = json!({"allocation": {"devices": {"results": [
        {"request": "q", "driver": "a.io", "pool": "p", "device": "d"}]}}});
    let unknown =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let place = "status.allocation.devices.results[0].request";
    check(json!({}), foreign, false, &format!("{place}: Invalid value: \"q\": {unknown}"));
    let status = |device: &str, more: Value| {
        let mut status = json!({"driver": "a.io", "pool": "p", "device": device});
        for (field, value) in more.as_object().into_iter().flatten() {
            status[field] = value.clone();
        }
        json!({"allocation": allocated("d"), "devices": [status]})
    };
    check(json!({}), status("d", json!({"networkData": {"ips": ["10.0.0.1/8"]}})), false, "");
    check(
        json!({}),
        status("d", json!({"networkData": {"ips": ["10.0.0.1"]}})),
        false,
        "status.devices[0].networkData.ips[0]: Invalid value: \"10.0.0.1\": must be a valid address in CIDR form, (e.g. \
         10.9.8.7/24 or 2001:db8::1/64)",
    );
    check(
        json!({}),
        status("e", json!({})),
        false,
        "status.devices[0]: Invalid value: {\"Device\":\"e\",\"Driver\":\"a.io\",\"Pool\":\"p\"}: must be an allocated \
         device in the claim",
    );
}

/// The errors of a slice, or a claim, on a server where all features are on.
fn with_all_on(spec: Value) -> String {
    let mut object = json!({"metadata": {"name": "x"}, "spec": {"driver": "a.io",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}});
    spec.as_object().unwrap().iter().for_each(|(field, value)| object["spec"][field] = value.clone());
    said(super::slice::validate(&json::from_value(object).unwrap()))
}

#[test]
fn taints_have_an_effect_and_tolerations_an_operator() {
    let tainted = |taint: Value| with_all_on(json!({"allNodes": true, "devices": [{"name": "d", "taints": [taint]}]}));
    let place = "spec.devices[0].taints[0]";
    assert_eq!(tainted(json!({"key": "k", "value": "v", "effect": "NoExecute"})), "");
    assert_eq!(tainted(json!({"key": "k", "effect": ""})), format!("{place}.effect: Required value"));
    let effects = "supported values: \"NoExecute\", \"NoSchedule\", \"None\"";
    let other = format!("{place}.effect: Unsupported value: \"Other\": {effects}");
    assert_eq!(tainted(json!({"key": "k", "effect": "Other"})), other);
    let many: Vec<Value> =
        (0..65).map(|i| json!({"name": format!("d{i}"), "taints": [{"key": "k", "effect": "None"}]})).collect();
    let too_many = "spec.devices: Too many: 65: must have at most 64 items";
    assert_eq!(with_all_on(json!({"allNodes": true, "devices": many})), too_many);
    let tolerating = |toleration: Value| {
        let requests =
            json!([request(&json!({"allocationMode": "ExactCount", "count": 1, "tolerations": [toleration]}))]);
        let spec = json::from_value(json!({"devices": {"requests": requests}})).unwrap();
        said(super::request::claim_spec(&spec, &crate::validation::field::Path::new("spec")))
    };
    let place = "spec.devices.requests[0].exactly.tolerations[0]";
    assert_eq!(tolerating(json!({"operator": "Exists"})), "");
    assert_eq!(tolerating(json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"})), "");
    let empty = format!("{place}.value: Invalid value: \"v\": must be empty for operator `Exists`");
    assert_eq!(tolerating(json!({"operator": "Exists", "value": "v"})), empty);
    let operators = format!("{place}.operator: Unsupported value: \"Gt\": supported values: \"Equal\", \"Exists\"");
    assert_eq!(tolerating(json!({"operator": "Gt"})), operators);
    assert_eq!(
        tolerating(json!({"operator": "Exists", "effect": "Other"})),
        format!("{place}.effect: Unsupported value: \"Other\": {effects}")
    );
}

#[test]
fn partitions_name_counters_and_places() {
    let counters = json!({"memory": {"value": "1Gi"}});
    let sets = json!([{"name": "gpu", "counters": counters}]);
    assert_eq!(with_all_on(json!({"allNodes": true, "sharedCounters": sets})), "");
    let both = "spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed";
    assert_eq!(with_all_on(json!({"allNodes": true, "sharedCounters": sets, "devices": []})), both);
    let twice = json!([sets[0], sets[0], {"name": "", "counters": {}}]);
    assert_eq!(
        with_all_on(json!({"allNodes": true, "sharedCounters": twice})),
        "spec.sharedCounters[2].name: Required value\nspec.sharedCounters[2].counters: Required value\n\
         spec.sharedCounters[1]: Duplicate value: \"gpu\""
    );
    let taking = |consumption: Value| {
        with_all_on(json!({"allNodes": true, "devices": [{"name": "d", "consumesCounters": consumption}]}))
    };
    assert_eq!(taking(json!([{"counterSet": "gpu", "counters": counters}])), "");
    let place = "spec.devices[0].consumesCounters[0]";
    assert_eq!(taking(json!([{"counterSet": "gpu", "counters": {}}])), format!("{place}.counters: Required value"));
    let at = |each: Value, device: Value| {
        let mut spec = json!({"perDeviceNodeSelection": each, "devices": [device]});
        if each.is_null() {
            spec["allNodes"] = json!(true);
        }
        with_all_on(spec)
    };
    let required = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is \
                    set to true in the ResourceSlice spec";
    assert_eq!(at(json!(true), json!({"name": "d", "nodeName": "n"})), "");
    assert_eq!(at(json!(true), json!({"name": "d"})), format!("spec.devices[0]: Required value: {required}"));
    assert_eq!(
        at(json!(true), json!({"name": "d", "nodeName": "n", "allNodes": true})),
        format!("spec.devices[0]: Invalid value: \"{{`nodeName`, `allNodes`}}\": {required}")
    );
    assert_eq!(
        at(json!(null), json!({"name": "d", "nodeName": "n"})),
        "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if \
         `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    );
}

#[test]
fn shares_of_a_capacity_have_rules() {
    let policy = |shared: bool, policy: Value| {
        let capacity = json!({"memory": {"value": "16Gi", "requestPolicy": policy}});
        let device = json!({"name": "d", "allowMultipleAllocations": shared, "capacity": capacity});
        with_all_on(json!({"allNodes": true, "devices": [device]}))
    };
    let place = "spec.devices[0].capacity[memory].requestPolicy";
    assert_eq!(policy(true, json!({})), "");
    assert_eq!(policy(false, json!({})), format!("{place}: Forbidden: allowMultipleAllocations must be true"));
    assert_eq!(policy(true, json!({"default": "2Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"}})), "");
    assert_eq!(policy(true, json!({"default": "2Gi", "validValues": ["1Gi", "2Gi"]})), "");
    let check = |given: Value, expected: &str| assert_eq!(policy(true, given), format!("{place}{expected}"));
    check(json!({"validRange": {"min": "1Gi"}}), ".default: Required value: required when validRange is defined");
    check(json!({"validValues": ["1Gi"]}), ".default: Required value: required when validValues is defined");
    check(
        json!({"default": "1Gi", "validRange": {"min": "1Gi"}, "validValues": ["1Gi"]}),
        ": Forbidden: exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time",
    );
    check(
        json!({"default": "1Gi", "validRange": {"min": "2Gi"}}),
        ".validRange.min: Invalid value: \"1Gi\": default is less than min: 2Gi",
    );
    check(
        json!({"default": "3Gi", "validRange": {"min": "1Gi", "step": "4Gi"}}),
        ".validRange.step: Invalid value: \"3Gi\": value is not a multiple of a given step (4Gi) from (1Gi)",
    );
    check(
        json!({"default": "3Gi", "validValues": ["1Gi", "2Gi"]}),
        ".validValues: Invalid value: \"3Gi\": default value is not valid according to the requestPolicy",
    );
    check(
        json!({"default": "1Gi", "validValues": ["1Gi", "32Gi"]}),
        ".validValues[1]: Invalid value: \"32Gi\": option is larger than capacity value: 16Gi",
    );
}
