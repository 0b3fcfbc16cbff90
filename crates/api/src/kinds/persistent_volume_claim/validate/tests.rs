//! The cases, in the words of the messages.

use json::{Value, json};

use super::*;

fn texts(errors: &Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn with(base: Value, more: Value) -> Value {
    let mut spec = base;
    for (field, value) in more.as_object().unwrap() {
        match value {
            Value::Null => spec.as_object_mut().unwrap().remove(field),
            value => spec.as_object_mut().unwrap().insert(field.clone(), value.clone()),
        };
    }
    spec
}

fn spec_of(more: Value) -> Value {
    let base = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10G"}},
        "storageClassName": "valid", "volumeMode": "Filesystem"});
    with(base, more)
}

#[test]
fn new_claims() {
    let check = |more: Value, expected: &[&str]| {
        let object = json::from_value(json!({"spec": spec_of(more.clone())})).unwrap();
        assert_eq!(texts(&claim(&object)), expected, "{more}");
    };
    check(json!({"selector": {"matchExpressions": [{"key": "key2", "operator": "Exists"}]}}), &[]);
    check(
        json!({"selector": {"matchExpressions": [{"key": "key2", "operator": "InvalidOp", "values": ["value1"]}]}}),
        &["spec.selector.matchExpressions[0].operator: Invalid value: \"InvalidOp\": not a valid selector operator"],
    );
    check(json!({"accessModes": null}), &["spec.accessModes: Required value: at least 1 access mode is required"]);
    check(
        json!({"accessModes": ["fakemode"]}),
        &[
            "spec.accessModes: Unsupported value: \"fakemode\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
        ],
    );
    check(
        json!({"accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}),
        &["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
    );
    check(json!({"resources": null}), &["spec.resources[storage]: Required value"]);
    check(
        json!({"resources": {"requests": {"storage": "-10G"}}}),
        &["spec.resources[storage]: Invalid value: \"-10G\": must be greater than zero"],
    );
    check(
        json!({"volumeMode": "fakeVolumeMode"}),
        &["spec.volumeMode: Unsupported value: \"fakeVolumeMode\": supported values: \"Block\", \"Filesystem\""],
    );
    let wrong: Value = json!({"storageClassName": "-invalid-", "volumeAttributesClassName": "-invalid-"});
    let errors = claim(&json::from_value(json!({"spec": spec_of(wrong)})).unwrap());
    let paths: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
    assert_eq!(paths, ["spec.storageClassName", "spec.volumeAttributesClassName"]);
    check(json!({"storageClassName": "", "volumeAttributesClassName": ""}), &[]);
}

#[test]
fn data_sources_of_claims() {
    let check = |more: Value, expected: &[&str]| {
        let object = json::from_value(json!({"spec": spec_of(more.clone())})).unwrap();
        assert_eq!(texts(&claim(&object)), expected, "{more}");
    };
    let claim = |name: &str| json!({"kind": "PersistentVolumeClaim", "name": name});
    let snapshot = || json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    check(json!({"dataSource": claim("a")}), &[]);
    check(json!({"dataSource": snapshot(), "dataSourceRef": snapshot()}), &[]);
    check(json!({"dataSource": claim("")}), &["spec.dataSource.name: Required value"]);
    check(
        json!({"dataSourceRef": {"kind": "Pod", "name": "p"}}),
        &[
            "spec.dataSourceRef: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        ],
    );
    check(
        json!({"dataSource": claim("a"), "dataSourceRef": claim("b")}),
        &["spec: Invalid value: {}: must match dataSourceRef"],
    );
    let mut elsewhere = claim("a");
    elsewhere["namespace"] = json!("ns1");
    check(
        json!({"dataSource": claim("a"), "dataSourceRef": elsewhere}),
        &["spec: Invalid value: {}: may not be specified when dataSourceRef.namespace is specified"],
    );
    elsewhere["namespace"] = json!("Ns");
    let errors =
        super::claim(&json::from_value(json!({"spec": spec_of(json!({"dataSourceRef": elsewhere}))})).unwrap());
    assert_eq!(errors[0].path.to_string(), "spec.dataSourceRef.namespace");
    let group = json!({"apiGroup": "^invalid", "kind": "K", "name": "n"});
    let object = json!({"spec": spec_of(json!({"dataSource": group, "dataSourceRef": group}))});
    let object: PersistentVolumeClaim = json::from_value(object).unwrap();
    let errors = super::claim(&object);
    let paths: Vec<String> = errors.iter().map(|error| error.path.to_string()).collect();
    assert_eq!(paths, ["spec.dataSource.apiGroup", "spec.dataSourceRef.apiGroup"]);
    // A claim that an older server let in stays.
    assert_eq!(texts(&update(&object, &object)), [""; 0]);
}

#[test]
fn claims_hardly_change() {
    let bound = |more: Value| with(spec_of(json!({"volumeName": "volume"})), more);
    let object = |spec: Value, phase: &str| json!({"metadata": {"name": "c"}, "spec": spec, "status": {"phase": phase, "capacity": {"storage": "9G"}}});
    let check = |old: &Value, new: &Value, expected: &[&str]| {
        let read = |object: &Value| json::from_value(object.clone()).unwrap();
        let found = texts(&update(&read(new), &read(old)));
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(text, part)| text.contains(part)), "{found:?}");
    };
    let fixed = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n@@ ";
    let room = |size: &str| json!({"resources": {"requests": {"storage": size}}});
    let old = object(bound(json!({})), "Bound");
    check(&old, &old, &[]);
    check(&old, &object(bound(room("15G")), "Bound"), &[]);
    check(&old, &object(bound(room("15G")), "Pending"), &[fixed]);
    check(&old, &object(bound(room("9500M")), "Bound"), &[]);
    let less = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
    check(&old, &object(bound(room("9G")), "Bound"), &[less]);
    check(&old, &object(bound(json!({"accessModes": ["ReadOnlyMany"]})), "Bound"), &[fixed]);
    check(&old, &object(bound(json!({"volumeName": "other"})), "Bound"), &[fixed]);
    check(&old, &object(bound(json!({"storageClassName": "b"})), "Bound"), &[fixed]);
    check(&old, &object(bound(json!({"storageClassName": null})), "Bound"), &[fixed]);
    let mode = "volumeMode: Invalid value: \"Block\": field is immutable";
    check(&old, &object(bound(json!({"volumeMode": "Block"})), "Bound"), &[fixed, mode]);
    // The volume and the class are chosen once.
    let free = object(spec_of(json!({"storageClassName": null})), "Pending");
    check(&free, &object(spec_of(json!({"storageClassName": "a", "volumeName": "v"})), "Pending"), &[]);
    // The annotation of old gives way to the field.
    let noted = |spec: Value, class: Option<&str>| {
        let mut claim = object(spec, "Pending");
        if let Some(class) = class {
            claim["metadata"]["annotations"] = json!({CLASS: class});
        }
        claim
    };
    let unset = || spec_of(json!({"storageClassName": null}));
    let set = |class: &str| spec_of(json!({"storageClassName": class}));
    let annotation = "metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: ";
    check(&noted(unset(), Some("one")), &noted(set("one"), Some("one")), &[]);
    check(&noted(unset(), Some("one")), &noted(set("one"), None), &[]);
    check(&noted(unset(), Some("one")), &noted(set("two"), Some("one")), &[fixed]);
    check(&noted(unset(), Some("one")), &noted(unset(), Some("two")), &[annotation]);
    check(&noted(unset(), Some("one")), &noted(set("one"), Some("two")), &[annotation]);
    check(&noted(unset(), None), &noted(unset(), Some("two")), &[annotation]);
}

#[test]
fn classes_of_attributes_change_but_do_not_go() {
    let object = |class: Value, current: Value| -> PersistentVolumeClaim {
        let spec = spec_of(json!({"volumeName": "v", "volumeAttributesClassName": class}));
        json::from_value(
            json!({"spec": spec, "status": {"phase": "Bound", "currentVolumeAttributesClassName": current}}),
        )
        .unwrap()
    };
    let check = |old: Value, new: Value, current: Value, expected: &[&str]| {
        let errors = update(&object(new, current.clone()), &object(old, current));
        assert_eq!(texts(&errors), expected);
    };
    let none = || json!(null);
    check(none(), json!("a"), none(), &[]);
    check(json!("a"), json!("b"), json!("a"), &[]);
    check(json!("a"), none(), none(), &[]);
    let to = |what: &str| {
        format!(
            "spec.volumeAttributesClassName: Forbidden: update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil"
        )
    };
    check(json!("a"), none(), json!("a"), &[&to("nil")]);
    check(json!("a"), json!(""), json!("a"), &[&to("empty string")]);
}

#[test]
fn what_drivers_say() {
    let check = |more: Value, expected: &[&str]| {
        assert_eq!(texts(&status(&json!({"status": more}))), expected, "{more}");
    };
    check(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}}), &[]);
    check(
        json!({"allocatedResourceStatuses": {"storage": "NodeResizePending", "example.com/foo": "NodeResizeInfeasible"}}),
        &[],
    );
    check(
        json!({"capacity": {"storage": "-1"}, "allocatedResources": {"storage": "-10Gi"}}),
        &[
            "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
            "status.allocatedResources[storage]: Invalid value: -10737418240: must be a valid resource quantity",
        ],
    );
    check(
        json!({"allocatedResources": {"cpu": "1"}, "allocatedResourceStatuses": {"kubernetes.io/x": "NodeResizePending", "storage": "foo"}}),
        &[
            "status.allocatedResourceStatuses: Unsupported value: \"kubernetes.io/x\": supported values: \"storage\"",
            "status.allocatedResourceStatuses: Unsupported value: \"storage\": supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"",
            "status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\"",
        ],
    );
}

#[test]
fn half_bytes_are_told() {
    let resources = json!({"requests": {"storage": "1500m"}, "limits": {"storage": "200m"}});
    let object = json!({"metadata": {"annotations": {CLASS: ""}}, "spec": {"resources": resources}});
    assert_eq!(
        warnings(&json::from_value(object).unwrap()),
        [
            "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead",
            "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
            "spec.resources.limits[storage]: fractional byte value \"200m\" is invalid, must be an integer",
        ]
    );
}
