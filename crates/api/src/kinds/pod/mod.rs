//! Pod: containers that run together on one node.

pub mod columns;
pub mod container;
pub mod defaults;
pub(crate) mod environment;
pub(crate) mod gated;
mod label_keys;
pub(crate) mod placement;
pub(crate) mod probe;
mod projected;
pub(crate) mod resources;
pub(crate) mod security;
pub mod update;
pub mod validate;
pub mod volume;
mod volume_files;
pub(crate) mod warnings;

use std::collections::HashMap;

use json::{Map, Value, json};
use k8s_openapi::api::core::v1::Pod;

use crate::kind::{Generation, Kind, Subresource, Target, Way, label};
use crate::meta::{field_text, field_text_or};
use crate::rules::pod::{self, Compute, Stated};
use crate::write::resets::Resets;

const CONNECT: &[&str] = &["create", "get"];
const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
const PART: &[&str] = &["get", "patch", "update"];

const fn sub(name: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Subresource {
    Subresource { name, object: ("", "v1", kind), verbs, way: Way::Own }
}

const fn connect(name: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Subresource {
    Subresource { way: Way::Connect, ..sub(name, kind, verbs) }
}

pub const POD: Kind<Pod> = Kind {
    short: &["po"],
    categories: &["all"],
    status: true,
    subresources: &[
        connect("attach", "PodAttachOptions", CONNECT),
        sub("binding", "Binding", &["create"]),
        sub("ephemeralcontainers", "Pod", PART),
        Subresource { object: ("policy", "v1", "Eviction"), ..sub("eviction", "Eviction", &["create"]) },
        connect("exec", "PodExecOptions", CONNECT),
        connect("log", "Pod", &["get"]),
        connect("portforward", "PodPortForwardOptions", CONNECT),
        Subresource { way: Way::Proxy, ..sub("proxy", "PodProxyOptions", PROXY) },
        sub("resize", "Pod", PART),
    ],
    resets: &[
        (
            Target::Status,
            Resets::These(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]),
        ),
        (Target::Other("ephemeralcontainers"), Resets::AllBut(&[&["spec", "ephemeralContainers"]])),
        (
            Target::Other("resize"),
            Resets::AllBut(&[
                &["spec", "containers", "*", "resources"],
                &["spec", "containers", "*", "resizePolicy"],
                &["spec", "initContainers", "*", "resources"],
                &["spec", "initContainers", "*", "resizePolicy"],
            ]),
        ),
    ],
    generation: Generation::CountsChangesOf("spec"),
    fit: Some(pair_addresses),
    default_in_place: Some(defaults::pod),
    default_within_spec: true,
    indifferent_to_labels: true,
    validate: Some(validate::validate),
    validate_create: Some(validate::validate_create),
    validate_update: Some(update::validate_update),
    refuse_update: Some(update::refuse),
    validate_status: Some(update::status::validate),
    gated: gated::OF_POD,
    gated_texts: gated::TEXTS_OF_POD,
    prepare_create: Some(prepare_create),
    prepare_create_warning: Some(security::app_armor::from_annotations),
    prepare_update: Some(prepare_update),
    warnings: Some(warnings::of_pod),
    columns: columns::COLUMNS,
    field_labels: &[
        label("spec.nodeName", |o| field_text(o, &["spec", "nodeName"])),
        label("spec.host", |o| field_text(o, &["spec", "nodeName"])),
        label("spec.restartPolicy", |o| field_text(o, &["spec", "restartPolicy"])),
        label("spec.schedulerName", |o| field_text(o, &["spec", "schedulerName"])),
        label("spec.serviceAccountName", |o| field_text(o, &["spec", "serviceAccountName"])),
        label("spec.hostNetwork", |o| field_text_or(o, &["spec", "hostNetwork"], "false")),
        label("status.phase", |o| field_text(o, &["status", "phase"])),
        label("status.podIP", |o| field_text(o, &["status", "podIP"])),
        label("status.podIPs", |_| String::new()),
        label("status.nominatedNodeName", |o| field_text(o, &["status", "nominatedNodeName"])),
    ],
    grace_seconds: Some(grace_seconds),
    ..Kind::BASE
};

/// `podIPs` begins with `podIP`. Where the two differ the single address counts: kubelets that know only it speak for both.
fn pair_addresses(pod: &mut Value) {
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else { return };
    let first = status.get("podIPs").and_then(Value::as_array).and_then(|list| list.first());
    let (one, first) = (status.get("podIP"), first.map(|first| first.get("ip").cloned().unwrap_or_default()));
    match one.filter(|ip| ip.as_str().is_some_and(|ip| !ip.is_empty())).cloned() {
        Some(one) if first.as_ref() != Some(&one) => _ = status.insert("podIPs", json!([{"ip": one}])),
        None if first.is_some() => _ = status.insert("podIP", first.unwrap_or_default()),
        _ => {}
    }
}

/// A new Pod waits, and has its QoS class for life.
fn prepare_create(object: &mut Value) {
    let qos = object.get("spec").map_or(pod::BEST_EFFORT, qos_of_json);
    let mut status = json!({"phase": "Pending", "qosClass": qos});
    let gates = object.get("spec").and_then(|s| s.get("schedulingGates")).and_then(Value::as_array);
    if gates.is_some_and(|g| !g.is_empty()) {
        status["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates"}]);
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("status", status);
        same_service_account(map);
    }
    label_keys::merge(object);
}

/// The old name of `serviceAccountName` is always written beside it.
fn same_service_account(object: &mut Map) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(account) = spec.get("serviceAccountName").filter(|name| spec.get("serviceAccount") != Some(name))
    {
        spec.insert("serviceAccount", account.clone());
    }
}

/// The QoS class, reading only what it depends on: this runs for every new Pod.
fn qos_of_json(spec: &Value) -> &'static str {
    let list = |field: &str| spec.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let containers = || list("containers").iter().chain(list("initContainers"));
    let stated = |part: &Value| {
        part.get("resources").map(|needs| {
            let amounts = |list: &str| {
                let list = needs.get(list)?.as_object()?;
                Some(Compute::of(|name| list.get(name)?.as_str()?.parse().ok()))
            };
            Stated { requests: amounts("requests"), limits: amounts("limits") }
        })
    };
    pod::qos_of(stated(spec), containers().filter_map(stated), containers().count())
}

fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    let Some(map) = new.as_object_mut() else { return };
    if matches!(target, Target::Other("ephemeralcontainers" | "resize")) {
        keep_metadata(map, old);
    }
    match target {
        Target::Status => keep_from_kubelets(map, old),
        Target::Other("ephemeralcontainers") => {
            let list = map.get("spec").and_then(|s| s.get("ephemeralContainers")).cloned();
            if let Some(Value::Object(mut spec)) = old.get("spec").cloned() {
                match list {
                    Some(list) => spec.insert("ephemeralContainers", list),
                    None => spec.remove("ephemeralContainers"),
                };
                map.insert("spec", Value::Object(spec));
            }
        }
        Target::Other("resize") => keep_but_resources(map, old),
        _ => {
            same_service_account(map);
            drop_passed_gates(map);
        }
    }
    if let (Target::Other(_), Some(status)) = (target, old.get("status")) {
        map.insert("status", status.clone());
    }
}

/// Whoever resizes a Pod changes nothing else: what the Pod and its containers are to have is taken over, all else stays.
/// Containers that come, go, or stand elsewhere are left as they were sent: validation refuses them.
fn keep_but_resources(new: &mut Map, old: &Value) {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    fn items<'v>(spec: &'v Value, list: &str) -> &'v [Value] {
        spec.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }
    let (Some(mut spec), Some(wanted)) = (old.get("spec").cloned(), new.get("spec")) else { return };
    if LISTS.iter().any(|list| items(wanted, list).len() != items(&spec, list).len()) {
        return;
    }
    if let Some(spec) = spec.as_object_mut() {
        take_over(spec, wanted, &["resources"]);
    }
    for list in LISTS {
        let wanted = items(wanted, list);
        let Some(held) = spec.get_mut(list).and_then(Value::as_array_mut) else { continue };
        if held.iter().zip(wanted).any(|(held, wanted)| held.get("name") != wanted.get("name")) {
            *held = wanted.to_vec();
            continue;
        }
        for (held, wanted) in held.iter_mut().filter_map(Value::as_object_mut).zip(wanted) {
            take_over(held, wanted, &["resources", "resizePolicy"]);
        }
    }
    new.insert("spec", spec);
}

/// These fields become what is wanted, or go.
fn take_over(held: &mut Map, wanted: &Value, fields: &[&'static str]) {
    for field in fields {
        match wanted.get(*field).cloned() {
            Some(value) => _ = held.insert(*field, value),
            None => _ = held.remove(field),
        }
    }
}

/// The right to write a part of the spec is no right to write labels, owners or finalizers with it.
fn keep_metadata(new: &mut Map, old: &Value) {
    let Some(Value::Object(mut kept)) = old.get("metadata").cloned() else { return };
    for field in ["resourceVersion", "uid", "managedFields"] {
        match new.get("metadata").and_then(|m| m.get(field)) {
            Some(value) => kept.insert(field.to_owned(), value.clone()),
            None => kept.remove(field),
        };
    }
    new.insert("metadata", Value::Object(kept));
}

/// Kubelets write status only: owners, deletion and QoS class are not theirs, nor is the memory of a generation that was seen.
fn keep_from_kubelets(new: &mut Map, old: &Value) {
    let kept = |map: Option<&mut Value>, old: Option<&Value>, fields: &[&str]| {
        let Some(map) = map.and_then(Value::as_object_mut) else { return };
        for field in fields {
            match old.and_then(|o| o.get(field)) {
                Some(value) => map.insert((*field).to_owned(), value.clone()),
                None => map.remove(field),
            };
        }
    };
    let fixed = ["ownerReferences", "deletionTimestamp", "deletionGracePeriodSeconds"];
    kept(new.get_mut("metadata"), old.get("metadata"), &fixed);
    let (Some(status), Some(before)) = (new.get_mut("status").and_then(Value::as_object_mut), old.get("status")) else {
        return;
    };
    for field in ["qosClass", "observedGeneration"] {
        if let (None, Some(value)) = (status.get(field), before.get(field)) {
            status.insert(field.to_owned(), value.clone());
        }
    }
    let conditions = before.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let conditions = conditions.filter(|c| c.get("observedGeneration").is_some());
    let conditions: HashMap<&Value, &Value> = conditions.rev().map(|c| (&c["type"], c)).collect();
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let same = conditions.get(&condition["type"]);
        if let (Some(seen), true) = (same.and_then(|c| c.get("observedGeneration")), condition.is_object())
            && condition.get("observedGeneration").is_none()
        {
            condition["observedGeneration"] = seen.clone();
        }
    }
}

/// When the last scheduling gate goes, the condition that told of it goes too.
fn drop_passed_gates(object: &mut Map) {
    let gates = object.get("spec").and_then(|s| s.get("schedulingGates")).and_then(Value::as_array);
    if gates.is_some_and(|g| !g.is_empty()) {
        return;
    }
    let conditions = object.get_mut("status").and_then(|s| s.get_mut("conditions")).and_then(Value::as_array_mut);
    if let Some(list) = conditions {
        list.retain(|c| c["type"] != "PodScheduled" || c["reason"] != "SchedulingGated");
    }
}

/// As long as the client or else the spec says; at once when no node has the Pod or it is done.
fn grace_seconds(object: &Value, requested: Option<i64>) -> Option<i64> {
    let spec = object.get("spec");
    let own = spec.and_then(|s| s.get("terminationGracePeriodSeconds")).and_then(Value::as_i64);
    let idle = field_text(object, &["spec", "nodeName"]).is_empty();
    let done = pod::is_terminal_phase(&field_text(object, &["status", "phase"]));
    let seconds = if idle || done { 0 } else { requested.or(own).unwrap_or(0) };
    Some(if seconds < 0 { 1 } else { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::built_in;

    #[test]
    fn grace_periods() {
        let pod = |node: &str, phase: &str| json!({"spec": {"nodeName": node, "terminationGracePeriodSeconds": 30}, "status": {"phase": phase}});
        for (pod, requested, expected) in [
            (pod("n", "Running"), None, 30),
            (pod("n", "Running"), Some(5), 5),
            (pod("n", "Running"), Some(-1), 1),
            (pod("n", "Succeeded"), None, 0),
            (pod("", "Pending"), Some(5), 0),
        ] {
            assert_eq!(grace_seconds(&pod, requested), Some(expected), "{pod} {requested:?}");
        }
    }

    #[test]
    fn the_single_address_is_the_first_of_the_list() {
        let check = |status: Value, expected: Value| {
            let old = json!({"spec": {"containers": []}, "status": {}});
            let mut pod = json!({"spec": {"containers": []}, "status": status});
            let pods = built_in().find("", "v1", "pods").expect("served");
            pods.strategy.default_changed(&mut pod, &old);
            assert_eq!(pod["status"], expected);
        };
        let both = |one: &str, list: &[&str]| {
            let list: Vec<Value> = list.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"podIP": one, "podIPs": list})
        };
        check(json!({"phase": "Running"}), json!({"phase": "Running"}));
        check(json!({"podIP": "1.1.1.1"}), both("1.1.1.1", &["1.1.1.1"]));
        check(json!({"podIPs": [{"ip": "fd00::1"}, {"ip": "1.1.1.1"}]}), both("fd00::1", &["fd00::1", "1.1.1.1"]));
        check(both("", &["1.1.1.1"]), both("1.1.1.1", &["1.1.1.1"]));
        check(both("1.1.1.1", &["1.1.1.1", "fd00::1"]), both("1.1.1.1", &["1.1.1.1", "fd00::1"]));
        check(both("1.1.1.2", &["1.1.1.1", "fd00::1"]), both("1.1.1.2", &["1.1.1.2"]));
        check(json!({"podIP": "", "podIPs": []}), json!({"podIP": "", "podIPs": []}));
        check(json!({"hostIP": "1.1.1.1"}), json!({"hostIP": "1.1.1.1"}));
    }

    #[test]
    fn a_new_pod_waits_and_has_its_class() {
        let mut pod = json!({"spec": {"serviceAccountName": "a", "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running"}});
        prepare_create(&mut pod);
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "Burstable"}));
        assert_eq!(pod["spec"]["serviceAccount"], "a");
    }

    #[test]
    fn a_resize_leaves_all_but_resources_as_they_are() {
        let pod = |image: &str, cpu: &str| {
            let one = |name: &str| json!({"name": name, "image": image, "resources": {"requests": {"cpu": cpu}}});
            let mut sidecar = one("s");
            sidecar["restartPolicy"] = "Always".into();
            json!({"metadata": {"name": "p"}, "spec": {"nodeName": image, "containers": [one("m")], "initContainers": [one("i"), sidecar]}})
        };
        let (old, mut new) = (pod("a", "1"), pod("b", "2"));
        prepare_update(&mut new, &old, Target::Other("resize"));
        assert_eq!(new["spec"], pod("a", "2")["spec"]);
    }

    #[test]
    fn a_resize_hides_no_change_of_its_containers_from_validation() {
        let pod = |names: &[&str]| {
            let list: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "x"})).collect();
            json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": list}})
        };
        for names in [&["b", "a"][..], &["a", "c"], &["a"], &["a", "b", "c"]] {
            let (old, mut new) = (pod(&["a", "b"]), pod(names));
            prepare_update(&mut new, &old, Target::Other("resize"));
            assert_eq!(new["spec"], pod(names)["spec"]);
        }
    }
}
