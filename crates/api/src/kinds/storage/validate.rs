//! The validation of a StorageClass, a VolumeAttributesClass, a VolumeAttachment and the CSI kinds, and of their changes.
//! Upstream counterpart: pkg/apis/storage/validation.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::TopologySelectorTerm;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSINodeDriver, CSIStorageCapacity, StorageClass, TokenRequest, VolumeAttachment,
    VolumeAttributesClass, VolumeError,
};

use crate::kinds::persistent_volume;
use crate::kinds::rollout;
use crate::kinds::volume_source::driver_name;
use crate::rules::{node_label, quantity};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};

const IMMUTABLE: &str = "field is immutable";
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_BYTES: usize = 256 << 10;
const ATTACHMENT_BYTES: usize = 256 << 10;
const MESSAGE_BYTES: usize = 1024;
const NODE_ID_BYTES: usize = 192;

fn provisioner(name: &str, path: &Path) -> Errors {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let name = name.to_lowercase();
    invalid(path, &name, names::qualified_name(&name)).collect()
}

fn parameters(parameters: Option<&BTreeMap<String, String>>, needed: bool) -> Errors {
    let path = Path::new("parameters");
    let mut errors = Errors::new();
    let count = parameters.map_or(0, BTreeMap::len);
    if count > PARAMETERS_MAX {
        return vec![FieldError::too_long(&path, PARAMETERS_MAX)];
    }
    let mut bytes = 0;
    for (key, value) in parameters.into_iter().flatten() {
        if key.is_empty() {
            errors.push(FieldError::invalid(&path, key, "field can not be empty."));
        }
        bytes += key.len() + value.len();
    }
    if bytes > PARAMETERS_BYTES {
        errors.push(FieldError::too_long(&path, PARAMETERS_BYTES));
    }
    if needed && count == 0 {
        errors.push(FieldError::required(&path, "must contain at least one key/value pair"));
    }
    errors
}

pub(super) fn class(class: &StorageClass) -> Errors {
    let mut errors = provisioner(&class.provisioner, &Path::new("provisioner"));
    errors.extend(parameters(class.parameters.as_ref(), false));
    for (field, value, known) in [
        ("reclaimPolicy", &class.reclaim_policy, &["Delete", "Retain"]),
        ("volumeBindingMode", &class.volume_binding_mode, &["Immediate", "WaitForFirstConsumer"]),
    ] {
        if let Some(value) = value.as_deref().filter(|v| !known.contains(v)) {
            errors.push(FieldError::not_supported(&Path::new(field), value, known));
        }
    }
    errors.extend(topologies(class.allowed_topologies.as_deref().unwrap_or_default()));
    errors
}

/// Terms that together say where volumes may be: each label once in a term, each value once for a label, no term twice.
fn topologies(terms: &[TopologySelectorTerm]) -> Errors {
    let mut errors = Errors::new();
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies").index(i);
        let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
        let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (j, expression) in expressions.iter().enumerate() {
            let path = path.child("matchLabelExpressions").index(j);
            let mut values = BTreeSet::new();
            if expression.values.is_empty() {
                errors.push(FieldError::required(&path.child("values"), ""));
            }
            for (k, value) in expression.values.iter().enumerate() {
                if !values.insert(value.as_str()) {
                    errors.push(FieldError::duplicate(&path.child("values").index(k), value));
                }
            }
            errors.extend(invalid_at(&path, "key", &expression.key, names::qualified_name(&expression.key)));
            if labels.insert(&expression.key, values).is_some() {
                errors.push(FieldError::duplicate(&path.child("key"), &expression.key));
            }
        }
        if seen.contains(&labels) {
            errors.push(FieldError::duplicate(&path.child("matchLabelExpressions"), ""));
        }
        seen.push(labels);
    }
    errors
}

/// Warnings about topologies by labels that have other names.
pub(super) fn class_warnings(class: &StorageClass) -> Vec<String> {
    let mut list = Vec::new();
    for (i, term) in class.allowed_topologies.iter().flatten().enumerate() {
        let place = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
        for (j, one) in term.match_label_expressions.iter().flatten().enumerate() {
            let place = place.index(j).child("key");
            list.extend(node_label::deprecated(&one.key).map(|why| format!("{place}: {why}")));
        }
    }
    list
}

/// Warnings about nodes that are selected by labels with other names.
pub(super) fn capacity_warnings(capacity: &CSIStorageCapacity) -> Vec<String> {
    let Some(nodes) = &capacity.node_topology else { return Vec::new() };
    let path = Path::new("nodeTopology");
    let place = |i: usize| path.child("matchExpressions").index(i).child("key");
    let expressions = nodes.match_expressions.iter().flatten().enumerate();
    let of_expressions = expressions
        .filter_map(|(i, one)| Some(format!("{}: {} is {}", place(i), one.key, node_label::deprecated(&one.key)?)));
    let labels = nodes.match_labels.iter().flat_map(BTreeMap::keys);
    let place = |label: &str| path.child("matchLabels").child(label);
    let of_labels = labels.filter_map(|label| Some(format!("{}: {}", place(label), node_label::deprecated(label)?)));
    of_expressions.chain(of_labels).collect()
}

pub(super) fn class_update(new: &StorageClass, old: &StorageClass) -> Errors {
    let mut errors = fixed(&[
        ("parameters", new.parameters == old.parameters),
        ("provisioner", new.provisioner == old.provisioner),
        ("reclaimPolicy", new.reclaim_policy == old.reclaim_policy),
    ]);
    if new.volume_binding_mode != old.volume_binding_mode {
        errors.push(FieldError::invalid(&Path::new("volumeBindingMode"), &new.volume_binding_mode, IMMUTABLE));
    }
    errors
}

/// The fields that are not what they were.
fn fixed(fields: &[(&str, bool)]) -> Errors {
    let changed = fields.iter().filter(|(_, same)| !same);
    changed
        .map(|(field, _)| FieldError::forbidden(&Path::new(field), &format!("updates to {field} are forbidden.")))
        .collect()
}

pub(super) fn attributes_class(class: &VolumeAttributesClass) -> Errors {
    let mut errors = provisioner(&class.driver_name, &Path::new("driverName"));
    errors.extend(parameters(class.parameters.as_ref(), true));
    errors
}

pub(super) fn attributes_class_update(new: &VolumeAttributesClass, old: &VolumeAttributesClass) -> Errors {
    fixed(&[("driverName", new.driver_name == old.driver_name), ("parameters", new.parameters == old.parameters)])
}

pub(super) fn attachment(attachment: &VolumeAttachment) -> Errors {
    let (spec, path) = (&attachment.spec, Path::new("spec"));
    let mut errors = Errors::new();
    if spec.attacher.is_empty() {
        errors.push(FieldError::required(&path.child("attacher"), ""));
    }
    let place = path.child("source");
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (&spec.source.inline_volume_spec, &spec.source.persistent_volume_name) {
        (None, None) => errors.push(FieldError::required(&place, one)),
        (Some(_), Some(_)) => errors.push(FieldError::forbidden(&place, one)),
        (None, Some(name)) if name.is_empty() => {
            let detail = "must specify non empty persistentVolumeName";
            errors.push(FieldError::required(&place.child("persistentVolumeName"), detail));
        }
        (None, Some(_)) => {}
        (Some(inline), None) => {
            errors.extend(persistent_volume::validate_spec(inline, "", true, &place.child("inlineVolumeSpec")));
        }
    }
    errors.extend(invalid_at(&path, "nodeName", &spec.node_name, names::dns1123_subdomain(&spec.node_name)));
    if let Some(status) = &attachment.status {
        let path = Path::new("status");
        let bytes: usize =
            status.attachment_metadata.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > ATTACHMENT_BYTES {
            errors.push(FieldError::too_long(&path.child("attachmentMetadata"), ATTACHMENT_BYTES));
        }
        for (field, error) in [("attachError", &status.attach_error), ("detachError", &status.detach_error)] {
            errors.extend(error.iter().flat_map(|error| volume_error(error, &path.child(field))));
        }
    }
    errors
}

fn volume_error(error: &VolumeError, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if error.message.as_ref().is_some_and(|message| message.len() > MESSAGE_BYTES) {
        errors.push(FieldError::too_long(&path.child("message"), ATTACHMENT_BYTES));
    }
    if let Some(code) = error.error_code.filter(|code| *code < 0) {
        let detail = "must be between 0 and 2147483647, inclusive";
        errors.push(FieldError::invalid(&path.child("errorCode"), code, detail));
    }
    errors
}

/// The further rules for a new attachment: older objects may have other names.
pub(super) fn new_attachment(attachment: &VolumeAttachment) -> Errors {
    let spec = &attachment.spec;
    let mut errors = driver_name(&spec.attacher, &Path::new("spec.attacher"));
    if let Some(name) = &spec.source.persistent_volume_name {
        errors.extend(invalid(&Path::new("spec.source.persistentVolumeName"), name, names::dns1123_subdomain(name)));
    }
    errors
}

pub(super) fn attachment_update(new: &VolumeAttachment, old: &VolumeAttachment) -> Errors {
    if new.spec == old.spec {
        return Errors::new();
    }
    let shown = internal_form::compact("VolumeAttachmentSpec", &new.spec);
    vec![FieldError::invalid_shown(&Path::new("spec"), &shown, IMMUTABLE)]
}

pub(super) fn driver(driver: &CSIDriver) -> Errors {
    let (spec, path) = (&driver.spec, Path::new("spec"));
    let mut errors = Errors::new();
    let known = &["File", "None", "ReadWriteOnceWithFSType"];
    if let Some(policy) = spec.fs_group_policy.as_deref().filter(|policy| !known.contains(policy)) {
        errors.push(FieldError::not_supported(&path.child("fsGroupPolicy"), policy, known));
    }
    errors.extend(token_requests(spec.token_requests.as_deref().unwrap_or_default(), &path.child("tokenRequests")));
    let known = &["Persistent", "Ephemeral"];
    for mode in spec.volume_lifecycle_modes.iter().flatten().filter(|mode| !known.contains(&mode.as_str())) {
        errors.push(FieldError::not_supported(&path.child("volumeLifecycleModes"), mode, known));
    }
    if let Some(period) = spec.node_allocatable_update_period_seconds.filter(|period| *period < 10) {
        let detail = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid(&path.child("nodeAllocatableUpdatePeriodSeconds"), period, detail));
    }
    errors
}

fn token_requests(requests: &[TokenRequest], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut audiences = BTreeSet::new();
    for (i, request) in requests.iter().enumerate() {
        let path = path.index(i);
        if !audiences.insert(&request.audience) {
            errors.push(FieldError::duplicate(&path.child("audience"), &request.audience));
            continue;
        }
        let Some(seconds) = request.expiration_seconds else { continue };
        let detail = match seconds {
            ..600 => "may not specify a duration less than 10 minutes",
            0x1_0000_0001.. => "may not specify a duration larger than 2^32 seconds",
            _ => continue,
        };
        errors.push(FieldError::invalid(&path.child("expirationSeconds"), seconds, detail));
    }
    errors
}

/// Upstream's path says `attachedRequired`.
pub(super) fn driver_update(new: &CSIDriver, old: &CSIDriver) -> Errors {
    let path = Path::new("spec");
    let (new, old) = (&new.spec, &old.spec);
    let mut errors = Errors::new();
    if new.attach_required != old.attach_required {
        errors.push(FieldError::invalid(&path.child("attachedRequired"), new.attach_required, IMMUTABLE));
    }
    if new.volume_lifecycle_modes != old.volume_lifecycle_modes {
        let place = path.child("volumeLifecycleModes");
        errors.push(FieldError::invalid(&place, &new.volume_lifecycle_modes, IMMUTABLE));
    }
    errors
}

pub(super) fn node(node: &CSINode) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, driver) in node.spec.drivers.iter().enumerate() {
        let path = Path::new("spec").child("drivers").index(i);
        errors.extend(node_driver(driver, &path));
        if !seen.insert(&driver.name) {
            errors.push(FieldError::duplicate(&path.child("name"), &driver.name));
        }
        let mut keys = BTreeSet::new();
        for key in driver.topology_keys.iter().flatten() {
            if key.is_empty() {
                errors.push(FieldError::required(&path, ""));
            }
            if !keys.insert(key) {
                errors.push(FieldError::duplicate(&path, key));
            }
            errors.extend(invalid(&path, key, names::qualified_name(key)));
        }
    }
    errors
}

fn node_driver(driver: &CSINodeDriver, path: &Path) -> Errors {
    let mut errors = driver_name(&driver.name, &path.child("name"));
    let place = path.child("nodeID");
    if driver.node_id.is_empty() {
        errors.push(FieldError::required(&place, ""));
    }
    if driver.node_id.len() > NODE_ID_BYTES {
        let detail = format!("must be {NODE_ID_BYTES} characters or less");
        errors.push(FieldError::invalid(&place, &driver.node_id, &detail));
    }
    if let Some(count) = driver.allocatable.as_ref().and_then(|a| a.count).filter(|count| *count < 0) {
        let place = path.child("allocatable").child("count");
        errors.push(FieldError::invalid(&place, count, "must be greater than or equal to 0"));
    }
    errors
}

/// A driver's statements about itself stay, but for the number of volumes that it takes.
pub(super) fn node_update(new: &CSINode, old: &CSINode) -> Errors {
    let mut errors = Errors::new();
    let bare = |driver: &CSINodeDriver| CSINodeDriver { allocatable: None, ..driver.clone() };
    for old in &old.spec.drivers {
        for new in new.spec.drivers.iter().filter(|new| new.name == old.name && bare(new) != bare(old)) {
            let shown = internal_form::compact("CSINodeDriver", bare(new));
            errors.push(FieldError::invalid_shown(&Path::new("spec").child("drivers"), &shown, IMMUTABLE));
        }
    }
    errors
}

pub(super) fn capacity(capacity: &CSIStorageCapacity) -> Errors {
    let mut errors = Errors::new();
    if let Some(topology) = &capacity.node_topology {
        errors.extend(rollout::validate_selector(topology, &Path::new("nodeTopology")));
    }
    let class = &capacity.storage_class_name;
    errors.extend(invalid(&Path::new("storageClassName"), class, names::dns1123_subdomain(class)));
    if let Some(room) = capacity.capacity.as_ref().filter(|room| quantity::parse(room).is_negative()) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&Path::new("capacity"), &room.0, detail));
    }
    errors
}

pub(super) fn capacity_update(new: &CSIStorageCapacity, old: &CSIStorageCapacity) -> Errors {
    let mut errors = Errors::new();
    if new.node_topology != old.node_topology {
        let shown =
            new.node_topology.as_ref().map_or("null".to_owned(), |t| internal_form::compact("LabelSelector", t));
        errors.push(FieldError::invalid_shown(&Path::new("nodeTopology"), &shown, IMMUTABLE));
    }
    if new.storage_class_name != old.storage_class_name {
        errors.push(FieldError::invalid(&Path::new("storageClassName"), &new.storage_class_name, IMMUTABLE));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::{Value, json};
    use serde::de::DeserializeOwned;

    use super::*;

    fn texts(errors: &Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn wrong<T: DeserializeOwned>(rule: fn(&T) -> Errors, object: Value, expected: &[&str]) {
        assert_eq!(texts(&rule(&json::from_value(object.clone()).unwrap())), expected, "{object}");
    }

    fn changed<T: DeserializeOwned>(rule: fn(&T, &T) -> Errors, old: &Value, new: Value, expected: &[&str]) {
        let read = |object: &Value| json::from_value(object.clone()).unwrap();
        assert_eq!(texts(&rule(&read(&new), &read(old))), expected, "{new}");
    }

    #[test]
    fn storage_classes() {
        let class_of = |more: Value| {
            let mut object = json!({"provisioner": "kubernetes.io/foo", "reclaimPolicy": "Delete",
                "volumeBindingMode": "Immediate"});
            object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            object
        };
        let check = |more: Value, expected: &[&str]| wrong(class, class_of(more), expected);
        check(json!({}), &[]);
        check(json!({"provisioner": ""}), &["provisioner: Required value"]);
        check(json!({"parameters": {"": "v"}}), &["parameters: Invalid value: \"\": field can not be empty."]);
        check(
            json!({"parameters": {"a": "v".repeat(256 << 10)}}),
            &["parameters: Too long: may not be more than 262144 bytes"],
        );
        check(
            json!({"reclaimPolicy": "Recycle"}),
            &["reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\""],
        );
        let term = |key: &str, values: &[&str]| json!({"matchLabelExpressions": [{"key": key, "values": values}]});
        check(json!({"allowedTopologies": [term("a", &["x", "y"]), term("a", &["x"])]}), &[]);
        check(
            json!({"allowedTopologies": [term("a", &[]), term("b", &["x", "x"]), term("c", &["x"]), term("c", &["x"])]}),
            &[
                "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
                "allowedTopologies[1].matchLabelExpressions[0].values[1]: Duplicate value: \"x\"",
                "allowedTopologies[3].matchLabelExpressions: Duplicate value: \"\"",
            ],
        );
        let old = class_of(json!({"parameters": {"a": "b"}}));
        let check = |more: Value, expected: &[&str]| changed(class_update, &old, class_of(more), expected);
        check(json!({"parameters": {"a": "b"}}), &[]);
        check(json!({"parameters": {"a": "c"}}), &["parameters: Forbidden: updates to parameters are forbidden."]);
        check(
            json!({"parameters": {"a": "b"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}),
            &[
                "provisioner: Forbidden: updates to provisioner are forbidden.",
                "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
            ],
        );
    }

    #[test]
    fn volume_attributes_classes() {
        let class = |driver: &str, parameters: Value| json!({"driverName": driver, "parameters": parameters});
        let check = |object: Value, expected: &[&str]| wrong(attributes_class, object, expected);
        check(class("x.io", json!({"a": "b"})), &[]);
        check(class("", json!({"a": "b"})), &["driverName: Required value"]);
        check(class("x.io", json!({})), &["parameters: Required value: must contain at least one key/value pair"]);
        changed(
            attributes_class_update,
            &class("x.io", json!({"a": "b"})),
            class("y.io", json!({"a": "c"})),
            &[
                "driverName: Forbidden: updates to driverName are forbidden.",
                "parameters: Forbidden: updates to parameters are forbidden.",
            ],
        );
    }

    #[test]
    fn attachments() {
        let of = |attacher: &str, source: Value, node: &str| json!({"spec": {"attacher": attacher, "source": source, "nodeName": node}});
        let check = |object: Value, expected: &[&str]| wrong(attachment, object, expected);
        let volume = || json!({"persistentVolumeName": "v"});
        check(of("x.io", volume(), "n"), &[]);
        let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        check(
            of("", json!({}), "n"),
            &["spec.attacher: Required value", &format!("spec.source: Required value: {one}")],
        );
        let empty = "spec.source.persistentVolumeName: Required value: must specify non empty persistentVolumeName";
        check(of("x.io", json!({"persistentVolumeName": ""}), "n"), &[empty]);
        let mut failed = of("x.io", volume(), "n");
        failed["status"] = json!({"attached": false, "attachError": {"message": "m".repeat(1025), "errorCode": -1}});
        check(
            failed,
            &[
                "status.attachError.message: Too long: may not be more than 262144 bytes",
                "status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ],
        );
        let mut failed = of("x.io", volume(), "n");
        failed["status"] = json!({"attached": true, "attachmentMetadata": {"a": "m".repeat(ATTACHMENT_BYTES)}});
        let check_status = crate::kinds::storage::VOLUME_ATTACHMENT.validate_status.unwrap();
        let large = "status.attachmentMetadata: Too long: may not be more than 262144 bytes";
        assert_eq!(texts(&check_status(&failed, &of("x.io", volume(), "n"))), [large]);
        wrong(new_attachment, of("x.io", volume(), "n"), &[]);
        let shown =
            r#"{"Attacher":"x.io","Source":{"PersistentVolumeName":"w","InlineVolumeSpec":null},"NodeName":"n"}"#;
        changed(
            attachment_update,
            &of("x.io", volume(), "n"),
            of("x.io", json!({"persistentVolumeName": "w"}), "n"),
            &[&format!("spec: Invalid value: {shown}: field is immutable")],
        );
    }

    #[test]
    fn csi_drivers() {
        let check = |spec: Value, expected: &[&str]| wrong(driver, json!({"spec": spec}), expected);
        check(json!({"attachRequired": true, "fsGroupPolicy": "File", "volumeLifecycleModes": ["Ephemeral"]}), &[]);
        check(
            json!({"fsGroupPolicy": "x", "volumeLifecycleModes": ["x"], "nodeAllocatableUpdatePeriodSeconds": 9}),
            &[
                "spec.fsGroupPolicy: Unsupported value: \"x\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
                "spec.volumeLifecycleModes: Unsupported value: \"x\": supported values: \"Persistent\", \"Ephemeral\"",
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
            ],
        );
        let token = |audience: &str, seconds: i64| json!({"audience": audience, "expirationSeconds": seconds});
        check(json!({"tokenRequests": [token("", 600), token("a", 1_i64 << 32)]}), &[]);
        let short = "may not specify a duration less than 10 minutes";
        let long = "may not specify a duration larger than 2^32 seconds";
        check(
            json!({"tokenRequests": [token("a", 599), token("a", 600), token("b", (1_i64 << 32) + 1)]}),
            &[
                &format!("spec.tokenRequests[0].expirationSeconds: Invalid value: 599: {short}"),
                "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
                &format!("spec.tokenRequests[2].expirationSeconds: Invalid value: 4294967297: {long}"),
            ],
        );
        let old = json!({"spec": {"attachRequired": true, "volumeLifecycleModes": ["Persistent"]}});
        changed(driver_update, &old, old.clone(), &[]);
        changed(
            driver_update,
            &old,
            json!({"spec": {"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true}}),
            &[
                "spec.attachedRequired: Invalid value: false: field is immutable",
                "spec.volumeLifecycleModes: Invalid value: [\"Ephemeral\"]: field is immutable",
            ],
        );
    }

    #[test]
    fn csi_nodes() {
        let drivers = |drivers: Value| json!({"spec": {"drivers": drivers}});
        let one = |name: &str, id: &str| json!({"name": name, "nodeID": id, "topologyKeys": ["a/b"]});
        let check = |list: Value, expected: &[&str]| wrong(node, drivers(list), expected);
        check(json!([one("x.io", "n"), one("y.io", "n")]), &[]);
        check(
            json!([one("x.io", ""), one("x.io", "n")]),
            &["spec.drivers[0].nodeID: Required value", "spec.drivers[1].name: Duplicate value: \"x.io\""],
        );
        let mut many = one("x.io", "n");
        many["allocatable"] = json!({"count": -1});
        many["topologyKeys"] = json!(["a", "a"]);
        check(
            json!([many]),
            &[
                "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
                "spec.drivers[0]: Duplicate value: \"a\"",
            ],
        );
        let old = drivers(json!([one("x.io", "n")]));
        let mut counted = one("x.io", "n");
        counted["allocatable"] = json!({"count": 5});
        changed(node_update, &old, drivers(json!([counted, one("y.io", "n")])), &[]);
        let shown = r#"{"Name":"x.io","NodeID":"m","TopologyKeys":["a/b"],"Allocatable":null}"#;
        changed(
            node_update,
            &old,
            drivers(json!([one("x.io", "m")])),
            &[&format!("spec.drivers: Invalid value: {shown}: field is immutable")],
        );
    }

    #[test]
    fn storage_capacities() {
        let of = |class: &str, room: &str| json!({"storageClassName": class, "capacity": room});
        wrong(capacity, of("c", "1Gi"), &[]);
        let negative = "capacity: Invalid value: \"-1\": must be greater than or equal to 0";
        wrong(capacity, of("c", "-1"), &[negative]);
        let changed_class = "storageClassName: Invalid value: \"d\": field is immutable";
        changed(capacity_update, &of("c", "1Gi"), of("d", "2Gi"), &[changed_class]);
    }
}
