//! The cases, in the words of the messages.

use json::{Value, json};

use super::*;

fn read(spec: &Value) -> PersistentVolume {
    json::from_value(json!({"metadata": {"name": "foo"}, "spec": spec})).unwrap()
}

/// A volume on a node, with these fields changed; null takes one away.
fn host(more: Value) -> Value {
    let mut spec = json!({"capacity": {"storage": "10G"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
        "hostPath": {"path": "/foo", "type": "DirectoryOrCreate"}});
    for (field, value) in more.as_object().unwrap() {
        match value {
            Value::Null => spec.as_object_mut().unwrap().remove(field),
            value => spec.as_object_mut().unwrap().insert(field.clone(), value.clone()),
        };
    }
    spec
}

fn affinity(key: &str, values: &[&str]) -> Value {
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]}})
}

#[test]
fn new_volumes() {
    let check = |more: Value, expected: &[&str]| {
        let texts: Vec<String> = volume(&read(&host(more.clone()))).iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected, "{more}");
    };
    check(json!({}), &[]);
    check(json!({"storageClassName": "valid", "nodeAffinity": affinity("foo", &["bar"])}), &[]);
    check(json!({"accessModes": null}), &["spec.accessModes: Required value"]);
    check(
        json!({"accessModes": ["fakemode"]}),
        &[
            "spec.accessModes: Unsupported value: \"fakemode\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
        ],
    );
    check(json!({"accessModes": ["ReadWriteOncePod"]}), &[]);
    check(
        json!({"accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}),
        &["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
    );
    check(
        json!({"capacity": null}),
        &["spec.capacity: Required value", "spec.capacity: Unsupported value: null: supported values: \"storage\""],
    );
    check(
        json!({"capacity": {"storage": "-10G"}}),
        &[
            "spec.capacity[storage]: Invalid value: -10000000000: must be a valid resource quantity",
            "spec.capacity[storage]: Invalid value: \"-10G\": must be greater than zero",
        ],
    );
    check(
        json!({"capacity": {"storage": "0"}}),
        &["spec.capacity[storage]: Invalid value: \"0\": must be greater than zero"],
    );
    check(
        json!({"capacity": {"storage": "1G", "cpu": "1"}}),
        &["spec.capacity: Unsupported value: {\"cpu\":\"1\",\"storage\":\"1G\"}: supported values: \"storage\""],
    );
    check(
        json!({"persistentVolumeReclaimPolicy": "fakepolicy"}),
        &[
            "spec.persistentVolumeReclaimPolicy: Unsupported value: \"fakepolicy\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
        ],
    );
    let root = "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'";
    check(json!({"persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": "/."}}), &[root]);
    check(
        json!({"persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": "/a/.."}}),
        &["spec.hostPath.path: Invalid value: \"/a/..\": must not contain '..'", root],
    );
    check(
        json!({"storageClassName": "-invalid-"}),
        &[
            "spec.storageClassName: Invalid value: \"-invalid-\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ],
    );
    check(
        json!({"volumeMode": "fakeVolumeMode"}),
        &["spec.volumeMode: Unsupported value: \"fakeVolumeMode\": supported values: \"Block\", \"Filesystem\""],
    );
    check(
        json!({"gcePersistentDisk": {"pdName": "foo", "fsType": "ext4"}, "csi": {"driver": "d", "volumeHandle": "h"}}),
        &[
            "spec.gcePersistentDisk: Forbidden: may not specify more than 1 volume type",
            "spec.csi: Forbidden: may not specify more than 1 volume type",
        ],
    );
    check(json!({"hostPath": null}), &["spec: Required value: must specify a volume type"]);
    check(json!({"hostPath": null, "cephfs": {"monitors": []}}), &["spec.cephfs.monitors: Required value"]);
    let local =
        |path: &str, affinity: Value| json!({"hostPath": null, "local": {"path": path}, "nodeAffinity": affinity});
    check(local("/foo", affinity("foo", &["bar"])), &[]);
    check(local("foo", affinity("foo", &["bar"])), &[]);
    check(local("/foo", json!(null)), &["spec.nodeAffinity: Required value: Local volume requires node affinity"]);
    check(
        local("/foo/..", affinity("foo", &["bar"])),
        &["spec.local.path: Invalid value: \"/foo/..\": must not contain '..'"],
    );
    check(
        json!({"nodeAffinity": {}}),
        &["spec.nodeAffinity.required: Required value: must specify required node constraints"],
    );
    let term =
        "spec.nodeAffinity.required.nodeSelectorTerms: Required value: must have at least one node selector term";
    check(json!({"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}), &[term]);
    let csi = || json!({"driver": "test-driver", "volumeHandle": "test-123"});
    check(json!({"hostPath": null, "csi": csi(), "volumeAttributesClassName": "gold"}), &[]);
    check(
        json!({"hostPath": null, "csi": csi(), "volumeAttributesClassName": ""}),
        &["spec.volumeAttributesClassName: Required value: an empty string is disallowed"],
    );
    check(
        json!({"volumeAttributesClassName": "gold"}),
        &["spec.csi: Required value: has to be specified when using volumeAttributesClassName"],
    );
}

#[test]
fn volumes_inside_attachments() {
    let check = |spec: Value, expected: &[&str]| {
        let spec: PersistentVolumeSpec = json::from_value(spec).unwrap();
        let texts: Vec<String> =
            super::spec(&spec, "", true, &Path::new("s")).iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected);
    };
    let csi = || json!({"driver": "d", "volumeHandle": "h"});
    check(json!({"accessModes": ["ReadWriteOnce"], "csi": csi(), "persistentVolumeReclaimPolicy": "Retain"}), &[]);
    let may_not = "may not be specified in the context of inline volumes";
    check(
        json!({"accessModes": ["ReadWriteOnce"], "csi": csi(), "capacity": {"storage": "1"}, "claimRef": {"name": "c"},
            "persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": affinity("a", &["b"]), "storageClassName": "c",
            "volumeMode": "Block"}),
        &[
            &format!("s.claimRef: Forbidden: {may_not}"),
            &format!("s.capacity: Forbidden: {may_not}"),
            "s.persistentVolumeReclaimPolicy: Forbidden: may only be Retain in the context of inline volumes",
            &format!("s.nodeAffinity: Forbidden: {may_not}"),
            &format!("s.storageClassName: Forbidden: {may_not}"),
            "s.volumeMode: Forbidden: may not specify volumeMode other than Filesystem in the context of inline volumes",
        ],
    );
    check(
        json!({"accessModes": ["ReadWriteOnce"], "nfs": {"server": "s", "path": "/"}}),
        &["s.csi: Required value: has to be specified in the context of inline volumes"],
    );
}

#[test]
fn a_volume_stays_where_it_is() {
    let check = |old: Value, new: Value, expected: &[&str]| {
        let errors = update(&read(&host(new)), &read(&host(old)));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), expected.len(), "{texts:?}");
        assert!(texts.iter().zip(expected).all(|(text, start)| text.starts_with(start)), "{texts:?}");
    };
    let at = |path: &str| json!({"hostPath": {"path": path}});
    let fixed = "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n@@ ";
    check(at("/a"), at("/a"), &[]);
    check(at("/a"), at("/b"), &[fixed]);
    check(at("/a"), json!({"hostPath": null, "nfs": {"server": "s", "path": "/a"}}), &[fixed]);
    check(json!({}), json!({"capacity": {"storage": "20G"}, "storageClassName": "c"}), &[]);
    check(json!({}), json!({"volumeMode": "Block"}), &["volumeMode: Invalid value: \"Block\": field is immutable"]);
    let csi = |secret: Value| json!({"hostPath": null, "csi": {"driver": "x", "volumeHandle": "h", "controllerExpandSecretRef": secret}});
    let secret = |name: &str| json!({"name": name, "namespace": "d"});
    check(csi(json!(null)), csi(secret("s")), &[]);
    check(csi(secret("s")), csi(secret("t")), &[fixed]);
    let class = |class: Value| json!({"hostPath": null, "csi": {"driver": "x", "volumeHandle": "h"}, "volumeAttributesClassName": class});
    check(class(json!("a")), class(json!("b")), &[]);
    let kept = "spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden";
    check(class(json!("a")), class(json!(null)), &[kept]);
    let on = |affinity: Value| json!({"nodeAffinity": affinity});
    check(json!({}), on(affinity("foo", &["bar"])), &[]);
    check(on(affinity("foo", &["bar"])), on(affinity("foo", &["bar"])), &[]);
    let null = "nodeAffinity: Invalid value: null: field is immutable, except for updating from beta label to GA";
    check(on(affinity("foo", &["bar"])), json!({}), &[null]);
    let changed = r#"nodeAffinity: Invalid value: {"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"foo","Operator":"In","Values":["bar2"]}],"MatchFields":null}]}}: field is immutable, "#;
    check(on(affinity("foo", &["bar"])), on(affinity("foo", &["bar2"])), &[changed]);
    for (beta, stable) in RENAMED_LABELS {
        check(on(affinity(beta, &["bar"])), on(affinity(stable, &["bar"])), &[]);
        check(on(affinity(beta, &["bar"])), on(affinity(stable, &["bar2"])), &["nodeAffinity: Invalid value: "]);
        check(on(affinity(stable, &["bar"])), on(affinity(beta, &["bar"])), &["nodeAffinity: Invalid value: "]);
    }
    // Volumes of older servers have values that no label can have.
    check(on(affinity("foo", &["-1"])), on(affinity("foo", &["-1"])), &[]);
    let value = "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: \"-1\"";
    check(json!({}), on(affinity("foo", &["-1"])), &[value]);
}

#[test]
fn what_is_gone_is_told() {
    let of = |spec: Value| {
        json!({"metadata": {"name": "foo", "annotations": {
        "volume.beta.kubernetes.io/storage-class": "", "volume.beta.kubernetes.io/mount-options": ""}}, "spec": spec})
    };
    let check = |object: Value, expected: &[&str]| {
        assert_eq!(warnings(&json::from_value(object).unwrap()), expected);
    };
    check(
        of(json!({"nodeAffinity": affinity("beta.kubernetes.io/os", &["windows"])})),
        &[
            "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead",
            "metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use \"mountOptions\" attribute instead",
            "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ],
    );
    check(
        json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle", "cephfs": {"monitors": []}}}),
        &[
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
        ],
    );
}
