//! Node: a machine that runs Pods.

use std::collections::BTreeSet;

use ipnet::IpNet;
use json::Value;
use k8s_openapi::api::core::v1::{ConfigMapNodeConfigSource, Node, NodeConfigSource, NodeSpec, NodeStatus};
use serde::Deserialize;

use crate::features::Feature;
use crate::kind::cell;
use crate::kind::{Gated, Kind, Subresource, Target, Way, age, col, label, name, wide};
use crate::kinds::pod::placement;
use crate::kinds::resource_quota;
use crate::kinds::service_cidr::BAD_CIDR;
use crate::meta::field_text_or;
use crate::rules::declared_feature;
use crate::validation::field::{Errors, FieldError, Path, show};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::invalid_at;

const PROXY: Subresource = Subresource {
    name: "proxy",
    object: ("", "v1", "NodeProxyOptions"),
    verbs: &["create", "delete", "get", "patch", "update"],
    way: Way::Proxy,
};

pub const NODE: Kind<Node> = Kind {
    short: &["no"],
    status: true,
    subresources: &[PROXY],
    storage_prefix: Some("minions"),
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(validate_update),
    warnings: Some(|node, _| {
        let spec = node.spec.as_ref();
        let removed = spec.is_some_and(|spec| spec.config_source.is_some());
        let unused = spec.and_then(|spec| spec.external_id.as_deref()).is_some_and(|id| !id.is_empty());
        let told = [
            (removed, "spec.configSource: the feature is removed"),
            (unused, "spec.externalID: this field is deprecated, and is unused by Kubernetes"),
        ];
        told.into_iter().filter(|(told, _)| *told).map(|(_, text)| text.to_owned()).collect()
    }),
    validate_status: Some(validate_status),
    status_on_create: true,
    gated: &[Gated { feature: Feature::NodeDeclaredFeatures, fields: &["status.declaredFeatures"] }],
    columns: &[
        name(),
        col("Status", "The status of the node", |n, _| Value::from(status(n))),
        col("Roles", "The roles of the node", |n, _| Value::from(roles(n))),
        age(),
        col("Version", "Kubelet version that the node reports.", |n, _| info(n, |i| &i.kubelet_version, "")),
        wide("Internal-IP", "First internal address of the node.", |n, _| address(n, "InternalIP")),
        wide("External-IP", "First external address of the node.", |n, _| address(n, "ExternalIP")),
        wide("OS-Image", "Operating system that the node reports.", |n, _| info(n, |i| &i.os_image, "<unknown>")),
        wide("Kernel-Version", "Kernel that the node reports.", |n, _| info(n, |i| &i.kernel_version, "<unknown>")),
        wide("Container-Runtime", "Container runtime and its version that the node reports.", |n, _| {
            info(n, |i| &i.container_runtime_version, "<unknown>")
        }),
    ],
    field_labels: &[label("spec.unschedulable", |o| field_text_or(o, &["spec", "unschedulable"], "false"))],
    ..Kind::BASE
};

/// Until the kubelet says otherwise, all of a node can be given to Pods.
fn default(node: &mut Node) {
    if let Some(spec) = node.spec.as_mut() {
        pair_ranges(spec);
    }
    if let Some(status) = node.status.as_mut().filter(|s| s.allocatable.is_none()) {
        status.allocatable.clone_from(&status.capacity);
    }
}

/// `podCIDRs` begins with `podCIDR`. Where the two differ the single range counts: clients that know only it speak for both.
fn pair_ranges(spec: &mut NodeSpec) {
    let first = spec.pod_cidrs.as_ref().and_then(|list| list.first());
    match spec.pod_cidr.as_ref().filter(|range| !range.is_empty()) {
        Some(range) if first != Some(range) => spec.pod_cidrs = Some(vec![range.clone()]),
        Some(_) => {}
        None => spec.pod_cidr = first.cloned(),
    }
}

fn status(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let mut words: Vec<&str> = conditions
        .filter(|c| c.type_ == "Ready")
        .map(|c| if c.status == "True" { "Ready" } else { "NotReady" })
        .collect();
    if words.is_empty() {
        words.push("Unknown");
    }
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

fn roles(node: &Node) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in node.metadata.labels.iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/").filter(|r| !r.is_empty()) {
            roles.insert(role);
        } else if key == "kubernetes.io/role" && !value.is_empty() {
            roles.insert(value);
        }
    }
    if roles.is_empty() { "<none>".to_owned() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

type Info = k8s_openapi::api::core::v1::NodeSystemInfo;

fn info(node: &Node, field: fn(&Info) -> &String, none: &str) -> Value {
    cell::text_or(node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(field), none)
}

fn address(node: &Node, kind: &str) -> Value {
    let mut all = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    cell::text_or(all.find(|a| a.type_ == kind).map(|a| &a.address), "<none>")
}

fn validate(node: &Node) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    // Upstream says `metadata` where the taints are in the spec.
    let taints = Path::new("metadata").child("taints");
    for (i, taint) in node.spec.iter().flat_map(|s| s.taints.iter().flatten()).enumerate() {
        let path = taints.index(i);
        errors.extend(invalid_at(&path, "key", &taint.key, names::qualified_name(&taint.key)));
        let value = taint.value.as_deref().unwrap_or_default();
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(&path.child("value"), value, &wrong.join(";")));
        }
        if taint.effect.is_empty() {
            errors.push(FieldError::required(&path.child("effect"), ""));
        } else {
            errors.extend(placement::taint_effect(&taint.effect, &path));
        }
        if !seen.insert((&taint.key, &taint.effect)) {
            let duplicate = FieldError::duplicate_shown(&path, &internal_form::compact("Taint", taint));
            errors.push(FieldError {
                detail: format!("{}: taints must be unique by key and effect pair", duplicate.detail),
                ..duplicate
            });
        }
    }
    errors.extend(node.spec.iter().flat_map(|spec| ranges(spec.pod_cidrs.as_deref().unwrap_or_default())));
    errors.extend(node.status.iter().flat_map(resources));
    let declared = node.status.as_ref().and_then(|s| s.declared_features.as_deref());
    errors.extend(declared_features(declared.unwrap_or_default()));
    errors
}

/// One range of addresses for Pods, or one of each family.
fn ranges(list: &[String]) -> Errors {
    let path = Path::new("spec").child("podCIDRs");
    let (mut errors, mut families, mut seen) = (Errors::new(), BTreeSet::new(), BTreeSet::new());
    let mut duplicates = Errors::new();
    for (i, range) in list.iter().enumerate() {
        match range.parse::<IpNet>() {
            Ok(range) => _ = families.insert(range.addr().is_ipv4()),
            Err(_) => errors.push(FieldError::invalid(&path.index(i), range, BAD_CIDR)),
        }
        if !seen.insert(range) {
            duplicates.push(FieldError::duplicate(&path.index(i), range));
        }
    }
    if list.len() > 1 && families.len() < list.len() {
        errors.push(FieldError::invalid(&path, list, "may specify no more than one CIDR for each IP family"));
    }
    errors.extend(duplicates);
    errors
}

/// The amounts that the node has and gives.
fn resources(status: &NodeStatus) -> Errors {
    let parts = [("capacity", &status.capacity), ("allocatable", &status.allocatable)];
    let amounts = parts.into_iter().flat_map(|(field, amounts)| amounts.iter().flatten().map(move |a| (field, a)));
    let path = Path::new("status");
    amounts
        .flat_map(|(field, (name, text))| resource_quota::amount(name, text, &path.child(field).child(name)))
        .collect()
}

/// The rules of a changed status alone: each address once, and well-formed sources of the kubelet's configuration.
fn changed_status(status: &NodeStatus) -> Errors {
    let (path, mut seen, mut errors) = (Path::new("status"), BTreeSet::new(), Errors::new());
    for (i, address) in status.addresses.iter().flatten().enumerate() {
        if !seen.insert((&address.type_, &address.address)) {
            let shown = format!("{{\"Type\":{},\"Address\":{}}}", show(&address.type_), show(&address.address));
            errors.push(FieldError::duplicate_shown(&path.child("addresses").index(i), &shown));
        }
    }
    let Some(config) = &status.config else { return errors };
    let sources =
        [("assigned", &config.assigned), ("active", &config.active), ("lastKnownGood", &config.last_known_good)];
    for (field, source) in sources {
        errors.extend(source.iter().flat_map(|s| config_source(s, true, &path.child("config").child(field))));
    }
    errors
}

/// Where a kubelet's configuration is. The status says which version of it that was, the spec does not.
fn config_source(source: &NodeConfigSource, known: bool, path: &Path) -> Errors {
    let Some(map) = &source.config_map else {
        let detail = "exactly one reference subfield must be non-nil";
        return vec![FieldError::invalid_shown(path, r#"{"ConfigMap":null}"#, detail)];
    };
    let path = path.child("configMap");
    let mut errors = Errors::new();
    for (field, value) in [("uid", &map.uid), ("resourceVersion", &map.resource_version)] {
        let given = value.as_deref().is_some_and(|value| !value.is_empty());
        match (known, given) {
            (true, false) => {
                errors.push(FieldError::required(&path.child(field), &format!("{field} must be set in status")));
            }
            (false, true) => {
                errors.push(FieldError::forbidden(&path.child(field), &format!("{field} must not be set in spec")));
            }
            _ => {}
        }
    }
    errors.extend(config_map(map, &path));
    errors
}

fn config_map(map: &ConfigMapNodeConfigSource, path: &Path) -> Errors {
    let check = |field: &str, value: &str, wrong: Vec<String>| match value {
        "" => vec![FieldError::required(&path.child(field), &format!("{field} must be set"))],
        value => invalid_at(path, field, value, wrong),
    };
    let mut errors = check("namespace", &map.namespace, names::dns1123_label(&map.namespace));
    errors.extend(check("name", &map.name, names::dns1123_subdomain(&map.name)));
    errors.extend(check("kubeletConfigKey", &map.kubelet_config_key, names::config_key(&map.kubelet_config_key)));
    errors
}

/// A write of the status. Of a status that lists all images only the parts with rules are decoded.
fn validate_status(new: &Value, old: &Value) -> Errors {
    fn part<'a, T: Deserialize<'a>>(node: &'a Value, field: &str) -> Option<T> {
        T::deserialize(node.get("status")?.get(field)?).ok()
    }
    let status = NodeStatus {
        capacity: part(new, "capacity"),
        allocatable: part(new, "allocatable"),
        addresses: part(new, "addresses"),
        config: part(new, "config"),
        ..NodeStatus::default()
    };
    let mut errors = resources(&status);
    errors.extend(changed_status(&status));
    let (new, old) = (declared_feature::of_node(new), declared_feature::of_node(old));
    if new != old {
        errors.extend(declared_features(&new));
    }
    errors
}

/// Names in their order, each once, and each of parts with slashes between them that begin like a type's name.
fn declared_features(names: &[String]) -> Errors {
    let path = Path::new("status").child("declaredFeatures");
    let mut errors = Errors::new();
    let well_formed = |name: &str| {
        let part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(part)
    };
    for (i, name) in names.iter().enumerate() {
        let path = path.index(i);
        if name.len() > FEATURE_NAME_MAX {
            let detail = format!("invalid feature name {name:?}: must be no more than {FEATURE_NAME_MAX} characters");
            errors.push(FieldError::invalid(&path, name, &detail));
        } else if !well_formed(name) {
            let detail = format!("invalid feature name {name:?}: {FEATURE_NAME}");
            errors.push(FieldError::invalid(&path, name, &detail));
        }
        match i.checked_sub(1).map(|before| names[before].as_str()) {
            Some(before) if before == name => errors.push(FieldError::duplicate(&path, name)),
            Some(before) if before > name.as_str() => {
                errors.push(FieldError::invalid(&path, name, "list must be sorted alphabetically"));
            }
            _ => {}
        }
    }
    errors
}

const FEATURE_NAME_MAX: usize = 253;
const FEATURE_NAME: &str = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or \
                            MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";

/// The address range of a node is given once.
fn validate_update(new: &Node, old: &Node, _: Target) -> Errors {
    let mut errors: Errors = new.status.iter().flat_map(changed_status).collect();
    let source = new.spec.as_ref().and_then(|spec| spec.config_source.as_ref());
    errors.extend(source.iter().flat_map(|s| config_source(s, false, &Path::new("spec").child("configSource"))));
    let ranges = |n: &Node| n.spec.as_ref().and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    let spec = Path::new("spec");
    if !ranges(old).is_empty() && ranges(new) != ranges(old) {
        errors.push(FieldError::forbidden(
            &spec.child("podCIDRs"),
            "node updates may not change podCIDR except from \"\" to valid",
        ));
    }
    let provider = |n: &Node| n.spec.as_ref().and_then(|s| s.provider_id.clone()).unwrap_or_default();
    if !provider(old).is_empty() && provider(new) != provider(old) {
        errors.push(FieldError::forbidden(
            &spec.child("providerID"),
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::rollout;
    use json::json;

    #[test]
    fn a_status_tells_of_amounts_addresses_and_sources() {
        let check = |new: Value, expected: &[&str]| {
            rollout::check_status(NODE.validate_status, &new, &Value::Null, expected);
        };
        let source = |uid: &str| {
            json!({"configMap": {"namespace": "kube-system", "name": "c", "uid": uid,
            "resourceVersion": "7", "kubeletConfigKey": "kubelet"}})
        };
        check(
            json!({"capacity": {"cpu": "1500m", "pods": "110", "example.com/gpu": "1"}, "allocatable": {"pods": "100"},
                "addresses": [{"type": "InternalIP", "address": "1.1.1.1"}, {"type": "ExternalIP", "address": "1.1.1.1"}],
                "config": {"active": source("u")}, "images": [{"names": ["a"]}]}),
            &[],
        );
        check(
            json!({"capacity": {"pods": "1500m"}, "allocatable": {"memory": "-1"},
                "addresses": [{"type": "InternalIP", "address": "1.1.1.1"}, {"type": "InternalIP", "address": "1.1.1.1"}],
                "config": {"assigned": {}, "active": source("")}}),
            &[
                "status.capacity.pods: Invalid value: \"1500m\": must be an integer",
                "status.allocatable.memory: Invalid value: \"-1\": must be greater than or equal to 0",
                "status.addresses[1]: Duplicate value: {\"Type\":\"InternalIP\",\"Address\":\"1.1.1.1\"}",
                "status.config.assigned: Invalid value: {\"ConfigMap\":null}: exactly one reference subfield must be non-nil",
                "status.config.active.configMap.uid: Required value: uid must be set in status",
            ],
        );
        let node = |status: Value| json::from_value::<Node>(json!({"status": status})).unwrap();
        assert_eq!(validate(&node(json!({"capacity": {"pods": "1500m"}}))).len(), 1);
        let twice = json!({"addresses": [{"type": "a", "address": "b"}, {"type": "a", "address": "b"}]});
        assert_eq!(validate(&node(twice.clone())).len(), 0, "a new node may say it");
        assert_eq!(validate_update(&node(twice), &node(json!({})), Target::Object).len(), 1);
    }

    #[test]
    fn the_single_range_of_addresses_is_the_first_of_the_list() {
        let check = |spec: Value, expected: Value| {
            let mut node: Node = json::from_value(json!({"spec": spec})).unwrap();
            default(&mut node);
            assert_eq!(json::to_value(node.spec).unwrap(), expected);
        };
        let both = |one: &str, list: &[&str]| json!({"podCIDR": one, "podCIDRs": list});
        check(json!({"podCIDR": "10.0.0.0/24"}), both("10.0.0.0/24", &["10.0.0.0/24"]));
        check(json!({"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}), both("10.0.0.0/24", &["10.0.0.0/24", "fd00::/64"]));
        check(both("", &["10.0.0.0/24"]), both("10.0.0.0/24", &["10.0.0.0/24"]));
        check(both("fd00::/64", &["fd00::/64", "10.0.0.0/24"]), both("fd00::/64", &["fd00::/64", "10.0.0.0/24"]));
        check(both("10.0.1.0/24", &["10.0.0.0/24", "fd00::/64"]), both("10.0.1.0/24", &["10.0.1.0/24"]));
        check(json!({"podCIDR": ""}), json!({}));
    }

    #[test]
    fn a_node_has_one_range_of_each_family() {
        let check = |list: &[&str], expected: &[&str]| {
            let node: Node = json::from_value(json!({"spec": {"podCIDRs": list}})).unwrap();
            let errors: Vec<String> = validate(&node).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{list:?}");
        };
        check(&[], &[]);
        check(&["10.0.0.0/24"], &[]);
        check(&["fd00::/64", "10.0.0.0/24"], &[]);
        let (path, each) = ("spec.podCIDRs", "may specify no more than one CIDR for each IP family");
        check(&["x"], &[&format!("{path}[0]: Invalid value: \"x\": {BAD_CIDR}")]);
        check(
            &["10.0.0.0/24", "10.0.1.0/24"],
            &[&format!("{path}: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: {each}")],
        );
        check(
            &["fd00::/64", "10.0.0.0/24", "fd00::/64"],
            &[
                &format!("{path}: Invalid value: [\"fd00::/64\",\"10.0.0.0/24\",\"fd00::/64\"]: {each}"),
                &format!("{path}[2]: Duplicate value: \"fd00::/64\""),
            ],
        );
    }

    #[test]
    fn declared_features_are_names_in_order() {
        let check = |names: &[&str], expected: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let errors: Vec<String> = declared_features(&names).iter().map(ToString::to_string).collect();
            assert_eq!(errors.len(), expected.len(), "{errors:?}");
            for (error, part) in errors.iter().zip(expected) {
                assert!(error.starts_with("status.declaredFeatures[") && error.contains(part), "{error}");
            }
        };
        check(&[], &[]);
        check(&["A", "Ab/cD/e1", "B2"], &[]);
        check(&["B", "A"], &["[1]: Invalid value: \"A\": list must be sorted alphabetically"]);
        check(&["A", "A"], &["[1]: Duplicate value: \"A\""]);
        for wrong in ["", "a", "A-b", "A/", "A/1", "/A", "Ä"] {
            check(&[wrong], &["must start with an UpperCamelCase segment"]);
        }
        check(&[&"A".repeat(254)], &["must be no more than 253 characters"]);
        check(&[&"A".repeat(253)], &[]);
    }
}
