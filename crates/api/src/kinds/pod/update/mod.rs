//! Almost nothing may change in a Pod that exists. These are the rules.

pub(super) mod status;

use std::collections::{BTreeMap, BTreeSet};

use json::Value;
use k8s_openapi::api::core::v1::{Affinity, Container, NodeAffinity, Pod, PodSpec, Toleration};

use crate::features::{Feature, Features};
use crate::kind::Target;
use crate::kinds::pod::{placement, resources};
use crate::rules::app_armor;
use crate::rules::pod::{self, MIRROR_ANNOTATION};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;

const FIXED: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                     `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                     `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(crate) fn validate_update(new: &Pod, old: &Pod, target: Target) -> Errors {
    let (Some(new_spec), Some(old_spec)) = (&new.spec, &old.spec) else { return Errors::new() };
    match target {
        Target::Status => Errors::new(),
        Target::Other("ephemeralcontainers") => ephemeral(new_spec, old_spec, pod::is_mirror(old)),
        Target::Other("resize") => resized(new_spec, old),
        Target::Object | Target::Other(_) => {
            fn all(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
                pod.metadata.annotations.iter().flatten().map(|(key, text)| (key.as_str(), text.as_str()))
            }
            let mut errors = changed_annotations(all(new), all(old));
            errors.extend(object(new_spec, old_spec));
            errors
        }
    }
}

/// Whether a Pod mirrors a static one is for life, and so are its profiles, whoever writes which part of it.
pub(crate) fn annotations_for_life(new: &Value, old: &Value) -> Errors {
    fn all(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
        let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
        annotations.into_iter().flatten().filter_map(|(key, text)| Some((key.as_ref(), text.as_str()?)))
    }
    changed_annotations(all(new), all(old))
}

fn changed_annotations<'a>(
    new: impl Iterator<Item = (&'a str, &'a str)>,
    old: impl Iterator<Item = (&'a str, &'a str)>,
) -> Errors {
    let fixed = |key: &str| match key {
        MIRROR_ANNOTATION => Some("mirror pod annotation"),
        key => key.starts_with(app_armor::ANNOTATION).then_some("AppArmor annotations"),
    };
    let of_interest = |(key, _): &(&str, &str)| fixed(key).is_some();
    let new: BTreeMap<&str, &str> = new.filter(of_interest).collect();
    let old: BTreeMap<&str, &str> = old.filter(of_interest).collect();
    let gone = old.iter().filter(|(key, text)| new.get(*key) != Some(*text)).map(|(key, _)| (key, "remove or update"));
    let added = new.keys().filter(|key| !old.contains_key(*key)).map(|key| (key, "add"));
    let forbidden = |(key, what): (&&str, &str)| {
        let detail = format!("may not {what} {}", fixed(key).unwrap_or_default());
        FieldError::forbidden(&Path::new("metadata").child("annotations").key(key), &detail)
    };
    gone.chain(added).map(forbidden).collect()
}

fn object(new: &PodSpec, old: &PodSpec) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    if new == old {
        return errors;
    }
    fn init(spec: &PodSpec) -> &[Container] {
        spec.init_containers.as_deref().unwrap_or_default()
    }
    for (field, now, before) in
        [("containers", &*new.containers, &*old.containers), ("initContainers", init(new), init(old))]
    {
        let path = path.child(field);
        if now.len() != before.len() {
            errors.push(FieldError::forbidden(&path, "pod updates may not add or remove containers"));
            return errors;
        }
        errors.extend(now.iter().enumerate().filter_map(|(i, c)| image(c, &path.index(i))));
    }
    match deadline(new, old, &path.child("activeDeadlineSeconds")) {
        Some(error) if new.active_deadline_seconds.is_some() => {
            errors.push(error);
            return errors;
        }
        other => errors.extend(other),
    }
    errors.extend(only_added(new, old, &path.child("tolerations")));
    errors.extend(only_fewer_gates(new, old, &path.child("schedulingGates")));
    let munged = with_old_values(new, old, &path, &mut errors);
    if !same(&munged, old) {
        let diff = internal_form::diff("PodSpec", internal_form::pod_spec(old), internal_form::pod_spec(&munged));
        errors.push(FieldError::forbidden(&path, &format!("{FIXED}\n{diff}")));
    }
    errors
}

/// Whether two specs are equal, where an absent list equals an empty one.
fn same(a: &PodSpec, b: &PodSpec) -> bool {
    fn without_empty(value: &mut json::Value) {
        use json::Value;
        match value {
            Value::Object(map) => {
                map.values_mut().for_each(without_empty);
                map.retain(|_, v| !v.is_null() && v.as_array().is_none_or(|l| !l.is_empty()));
            }
            Value::Array(list) => list.iter_mut().for_each(without_empty),
            _ => {}
        }
    }
    let plain = |spec: &PodSpec| {
        let mut value = internal_form::pod_spec(spec);
        without_empty(&mut value);
        value
    };
    a == b || plain(a) == plain(b)
}

fn image(container: &Container, path: &Path) -> Option<FieldError> {
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        return Some(FieldError::required(&path.child("image"), ""));
    }
    let detail = "must not have leading or trailing whitespace";
    (image.trim() != image).then(|| FieldError::invalid(&path.child("image"), image, detail))
}

/// The new spec with everything that may change taken from the old one: what is left is a forbidden change.
fn with_old_values(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut Errors) -> PodSpec {
    let mut munged = new.clone();
    for (new, old) in munged.containers.iter_mut().zip(&old.containers) {
        new.image.clone_from(&old.image);
    }
    let both = munged.init_containers.iter_mut().flatten().zip(old.init_containers.iter().flatten());
    for (new, old) in both {
        new.image.clone_from(&old.image);
    }
    munged.active_deadline_seconds = old.active_deadline_seconds;
    munged.scheduling_gates.clone_from(&old.scheduling_gates);
    munged.tolerations.clone_from(&old.tolerations);
    if old.termination_grace_period_seconds.is_some_and(|s| s < 0) && new.termination_grace_period_seconds == Some(1) {
        munged.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    // While gates hold a Pod back, where it may go can still be narrowed.
    if old.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()) {
        errors.extend(narrowed_selector(new, old, &path.child("nodeSelector")));
        munged.node_selector.clone_from(&old.node_selector);
        let node = |s: &PodSpec| s.affinity.as_ref().and_then(|a| a.node_affinity.clone());
        let (now, before) = (node(new), node(old));
        if now != before {
            let path = path.child("affinity").child("nodeAffinity");
            errors.extend(narrowed_affinity(now.as_ref(), before.as_ref(), &path));
            munged.affinity = with_node_affinity(munged.affinity, before, old.affinity.is_some());
        }
    }
    munged
}

fn with_node_affinity(affinity: Option<Affinity>, node: Option<NodeAffinity>, had_one: bool) -> Option<Affinity> {
    match affinity {
        None => node.map(|node| Affinity { node_affinity: Some(node), ..Affinity::default() }),
        Some(a) if !had_one && a.pod_affinity.is_none() && a.pod_anti_affinity.is_none() => None,
        Some(a) => Some(Affinity { node_affinity: node, ..a }),
    }
}

fn narrowed_selector(new: &PodSpec, old: &PodSpec, path: &Path) -> Option<FieldError> {
    let none = BTreeMap::new();
    let (now, before) = (new.node_selector.as_ref().unwrap_or(&none), old.node_selector.as_ref().unwrap_or(&none));
    let kept = before.iter().all(|(key, value)| now.get(key) == Some(value));
    let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
    (!kept).then(|| FieldError::invalid(path, now, detail))
}

/// Requirements can be added to the terms that are there, and any where there are none. Preferences change freely.
fn narrowed_affinity(new: Option<&NodeAffinity>, old: Option<&NodeAffinity>, path: &Path) -> Errors {
    let terms = |a: Option<&NodeAffinity>| {
        let required = a.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        required.map(|r| r.node_selector_terms.clone()).unwrap_or_default()
    };
    let (now, before) = (terms(new), terms(old));
    let place = path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
    if before.is_empty() {
        return Errors::new();
    }
    if now.len() != before.len() {
        let shown: Vec<String> = now.iter().map(|t| internal_form::compact("NodeSelectorTerm", t)).collect();
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return vec![FieldError::invalid_shown(&place, &format!("[{}]", shown.join(",")), detail)];
    }
    let mut errors = Errors::new();
    for (i, (now, before)) in now.iter().zip(&before).enumerate() {
        let begins = |now: &Option<Vec<_>>, before: &Option<Vec<_>>| {
            now.as_deref().unwrap_or_default().starts_with(before.as_deref().unwrap_or_default())
        };
        let empty = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
        let unset = empty(&before.match_expressions) && empty(&before.match_fields);
        let kept = begins(&now.match_expressions, &before.match_expressions)
            && begins(&now.match_fields, &before.match_fields);
        if unset && now != before || !kept {
            let shown = internal_form::compact("NodeSelectorTerm", now);
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid_shown(&place.index(i), &shown, detail));
        }
    }
    errors
}

fn deadline(new: &PodSpec, old: &PodSpec, path: &Path) -> Option<FieldError> {
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            Some(FieldError::invalid(path, new, "must be between 0 and 2147483647, inclusive"))
        }
        (Some(new), Some(old)) if new > old => {
            Some(FieldError::invalid(path, new, "must be less than or equal to previous value"))
        }
        (None, Some(_)) => {
            Some(FieldError::invalid(path, None::<i64>, "must not update from a positive integer to nil value"))
        }
        _ => None,
    }
}

/// Tolerations stay, up to how long they last; new ones may come.
fn only_added(new: &PodSpec, old: &PodSpec, path: &Path) -> Errors {
    let new = new.tolerations.as_deref().unwrap_or_default();
    let lasting = |t: &'_ Toleration| (t.key.clone(), t.operator.clone(), t.value.clone(), t.effect.clone());
    let there: BTreeSet<_> = new.iter().map(lasting).collect();
    if !old.tolerations.iter().flatten().all(|o| there.contains(&lasting(o))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return vec![FieldError::forbidden(path, detail)];
    }
    placement::tolerations(new, path)
}

fn only_fewer_gates(new: &PodSpec, old: &PodSpec, path: &Path) -> Errors {
    let held: BTreeSet<&String> = old.scheduling_gates.iter().flatten().map(|g| &g.name).collect();
    let added = new.scheduling_gates.iter().flatten().enumerate().filter(|(_, g)| !held.contains(&g.name));
    let error = |name: &str| format!("only deletion is allowed, but found new scheduling gate '{name}'");
    added.map(|(i, g)| FieldError::forbidden(&path.index(i).child("name"), &error(&g.name))).collect()
}

fn ephemeral(new: &PodSpec, old: &PodSpec, mirror: bool) -> Errors {
    if mirror {
        return vec![FieldError::forbidden(&Path::default(), "static pods do not support ephemeral containers")];
    }
    let path = Path::new("spec").child("ephemeralContainers");
    let mut errors = Errors::new();
    let there: BTreeMap<&String, _> = new.ephemeral_containers.iter().flatten().rev().map(|c| (&c.name, c)).collect();
    for before in old.ephemeral_containers.iter().flatten() {
        let name = &before.name;
        match there.get(name) {
            None => {
                let detail = format!("existing ephemeral containers {name:?} may not be removed\n");
                errors.push(FieldError::forbidden(&path, &detail));
            }
            Some(now) if *now != before => {
                // The first few show how.
                let diff = match errors.len() {
                    0..10 => internal_form::diff("EphemeralContainer", before, now),
                    _ => String::new(),
                };
                let detail = format!("existing ephemeral containers {name:?} may not be changed\n{diff}");
                errors.push(FieldError::forbidden(&path, &detail));
            }
            Some(_) => {}
        }
    }
    errors
}

/// Why features that are off refuse a change.
pub(crate) fn refuse(new: &Pod, old: &Pod, target: Target, features: Features) -> Errors {
    let whole = |pod: &Pod| {
        let resources = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        resources.is_some_and(|r| r.requests.is_some() || r.limits.is_some())
    };
    let is_on = features.enabled(Feature::InPlacePodLevelResourcesVerticalScaling);
    if is_on || target != Target::Other("resize") || !(whole(new) || whole(old)) {
        return Errors::new();
    }
    vec![FieldError::forbidden(&Path::default(), "pods with pod-level resources cannot be resized")]
}

/// A resize is of the containers that are there, in their order.
fn other_containers(new: &PodSpec, old: &PodSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    fn inits(spec: &PodSpec) -> &[Container] {
        spec.init_containers.as_deref().unwrap_or_default()
    }
    let lists = [
        ("containers", new.containers.as_slice(), old.containers.as_slice()),
        ("initContainers", inits(new), inits(old)),
    ];
    for (list, new, old) in lists {
        let path = path.child(list);
        if new.len() != old.len() {
            errors.push(FieldError::forbidden(&path, &format!("{list} may not be added or removed on resize")));
            continue;
        }
        let renamed = new.iter().zip(old).enumerate().filter(|(_, (new, old))| new.name != old.name);
        errors.extend(renamed.map(|(index, _)| {
            let detail = format!("{list} may not be renamed or reordered on resize");
            FieldError::forbidden(&path.index(index).child("name"), &detail)
        }));
    }
    errors
}

fn resized(new: &PodSpec, pod: &Pod) -> Errors {
    let Some(old) = &pod.spec else { return Errors::new() };
    for (refused, detail) in [
        (pod::is_mirror(pod), "static pods cannot be resized"),
        (old.os.as_ref().is_some_and(|os| os.name == "windows"), "windows pods cannot be resized"),
    ] {
        if refused {
            return vec![FieldError::forbidden(&Path::default(), detail)];
        }
    }
    let path = Path::new("spec");
    let mut errors = Errors::new();
    if pod::qos_class(new) != pod::qos(pod) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, pod::qos_class(new), detail));
    }
    let others = other_containers(new, old, &path);
    if !others.is_empty() {
        errors.extend(others);
        return errors;
    }
    let (rest, removed) = resources::resize(new, old);
    errors.extend(removed);
    let alone = |container: &Container| PodSpec { containers: vec![container.clone()], ..PodSpec::default() };
    let differs = |(one, other): &(&Container, &Container)| !same(&alone(one), &alone(other));
    const FIXED: &str = "only cpu and memory resources are mutable";
    for _ in rest.containers.iter().zip(&old.containers).filter(differs) {
        errors.push(FieldError::forbidden(&path, FIXED));
    }
    let inits = rest.init_containers.iter().flatten().zip(old.init_containers.iter().flatten());
    for (wanted, _) in inits.filter(differs) {
        let detail = if pod::is_sidecar(wanted) {
            "only cpu and memory resources for sidecar containers are mutable"
        } else {
            "resources for non-sidecar init containers are immutable"
        };
        errors.push(FieldError::forbidden(&path, detail));
    }
    if errors.is_empty() && !same(&rest, old) {
        errors.push(FieldError::forbidden(&path, FIXED));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[track_caller]
    fn check(old: Value, new: Value, expected: &str) {
        let pod = |spec: Value| json::from_value::<Pod>(json!({"spec": spec})).unwrap();
        let errors = validate_update(&pod(new), &pod(old), Target::Object);
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(if expected.is_empty() { text.is_empty() } else { text.contains(expected) }, "{text}");
    }

    #[test]
    fn profiles_of_containers_are_for_life() {
        let key = |name: &str| format!("{}{name}", app_armor::ANNOTATION);
        let pod = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let told = |old: Value, new: Value| -> Vec<String> {
            annotations_for_life(&pod(new), &pod(old)).iter().map(ToString::to_string).collect()
        };
        let old = json!({key("a"): "unconfined", key("b"): "unconfined", "mine": "x"});
        assert_eq!(told(old.clone(), old.clone()), [""; 0]);
        let new = json!({key("a"): "unconfined", key("b"): "runtime/default", key("c"): "unconfined", "mine": "y"});
        let at = |name: &str| format!("metadata.annotations[{}]: Forbidden: may not", key(name));
        assert_eq!(
            told(old.clone(), new),
            [
                format!("{} remove or update AppArmor annotations", at("b")),
                format!("{} add AppArmor annotations", at("c"))
            ]
        );
        assert_eq!(told(json!({key("a"): "x"}), Value::Null).len(), 1);
        let mirror = told(Value::Null, json!({MIRROR_ANNOTATION: "h"}));
        assert_eq!(
            mirror,
            [format!("metadata.annotations[{MIRROR_ANNOTATION}]: Forbidden: may not add mirror pod annotation")]
        );
    }

    #[test]
    fn pods_hardly_change() {
        let pod = |image: &str, more: Value| {
            let mut spec = json!({"containers": [{"name": "c", "image": image}]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let same = json!({});
        check(pod("a", same.clone()), pod("b", same.clone()), "");
        check(
            pod("a", same.clone()),
            pod("b", json!({"nodeName": "n", "hostNetwork": true})),
            concat!(
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,",
                "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing ",
                "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n",
                "@@ -42,9 +42,9 @@\n  \"NodeSelector\": null,\n  \"ServiceAccountName\": \"\",\n",
                "  \"AutomountServiceAccountToken\": null,\n- \"NodeName\": \"\",\n+ \"NodeName\": \"n\",\n",
                "  \"SecurityContext\": {\n-  \"HostNetwork\": false,\n+  \"HostNetwork\": true,\n",
                "   \"HostPID\": false,\n   \"HostIPC\": false,\n   \"ShareProcessNamespace\": null,\n",
            ),
        );
        check(pod("a", same.clone()), json!({"containers": []}), "may not add or remove containers");
        let toleration = |key: &str| json!({"tolerations": [{"key": key}]});
        check(pod("a", same.clone()), pod("a", toleration("x")), "");
        check(pod("a", toleration("x")), pod("a", toleration("y")), "existing toleration can not be modified");
        check(
            pod("a", json!({"activeDeadlineSeconds": 5})),
            pod("a", json!({"activeDeadlineSeconds": 6})),
            "must be less than or equal to previous value",
        );
        let gated = json!({"schedulingGates": [{"name": "g"}]});
        check(pod("a", gated.clone()), pod("a", same.clone()), "");
        check(pod("a", same.clone()), pod("a", gated.clone()), "only deletion is allowed");
        let mut narrowed = pod("a", gated.clone());
        narrowed["nodeSelector"] = json!({"a": "b"});
        check(pod("a", gated), narrowed, "");
    }

    #[test]
    fn the_resources_of_a_whole_pod_change_where_the_feature_is_on() {
        let off = Features::default();
        let on = off.with(Feature::InPlacePodLevelResourcesVerticalScaling, true);
        let pod = |whole: Value| {
            let own = json!({"requests": {"cpu": "1"}});
            let spec = json!({"containers": [{"name": "c", "image": "x", "resources": own}], "resources": whole});
            json::from_value::<Pod>(json!({"spec": spec})).unwrap()
        };
        let whole = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        let check = |features: Features, old: Value, new: Value, expected: &str| {
            let (new, old, target) = (pod(new), pod(old), Target::Other("resize"));
            let mut errors = refuse(&new, &old, target, features);
            if errors.is_empty() {
                errors = validate_update(&new, &old, target);
            }
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected);
        };
        let refused = ": Forbidden: pods with pod-level resources cannot be resized";
        check(off, whole("1"), whole("2"), refused);
        check(off, whole("1"), Value::Null, refused);
        check(off, Value::Null, Value::Null, "");
        check(on, whole("1"), whole("2"), "");
        check(on, Value::Null, whole("2"), "");
        let mut less = whole("1");
        less["requests"] = json!({"memory": "1Gi"});
        check(on, whole("1"), less, "spec.resources.requests: Forbidden: resource requests cannot be removed");
        let mut other = whole("1");
        other["limits"]["hugepages-2Mi"] = "2Mi".into();
        check(on, whole("1"), other, "spec: Forbidden: only cpu and memory resources are mutable");
        let all = json!({"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}});
        let changed = "spec: Invalid value: \"Guaranteed\": Pod QOS Class may not change as a result of resizing";
        check(on, whole("1"), all, changed);
        // Other changes are none of its concern.
        assert!(refuse(&pod(whole("2")), &pod(whole("1")), Target::Object, off).is_empty());
    }

    #[test]
    fn a_resize_changes_processors_and_memory_alone_and_takes_nothing_away() {
        let resources = |cpu: Option<&str>, storage: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi", "ephemeral-storage": storage}, "limits": {"memory": "2Gi"}});
        let spec = |name: &str, resources: &Value| {
            let of = |held: &str, more: Value| {
                let mut one = json!({"name": held, "image": "x"});
                one["resources"] = if held == name { resources.clone() } else { base() };
                one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                one
            };
            let inits = [of("i", json!({})), of("s", json!({"restartPolicy": "Always"}))];
            json!({"containers": [of("m", json!({}))], "initContainers": inits})
        };
        fn base() -> Value {
            json!({"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}, "limits": {"memory": "2Gi"}})
        }
        let check = |name: &str, resources: Value, expected: &str| {
            let pod = |spec: Value| json::from_value::<Pod>(json!({"spec": spec})).unwrap();
            let (new, old) = (pod(spec(name, &resources)), pod(spec("", &Value::Null)));
            let errors = validate_update(&new, &old, Target::Other("resize"));
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected, "{name}");
        };
        check("m", resources(Some("2"), "1Gi"), "");
        check("s", resources(Some("500m"), "1Gi"), "");
        let mut odd = base();
        odd["limits"]["ephemeral-storage"] = "4Gi".into();
        check("m", odd, "spec: Forbidden: only cpu and memory resources are mutable");
        let mut more = base();
        more["limits"]["cpu"] = "4".into();
        check("m", more, "");
        check("m", resources(Some("2"), "2Gi"), "spec: Forbidden: only cpu and memory resources are mutable");
        let sidecar = "spec: Forbidden: only cpu and memory resources for sidecar containers are mutable";
        check("s", resources(Some("2"), "2Gi"), sidecar);
        check(
            "i",
            resources(Some("2"), "1Gi"),
            "spec: Forbidden: resources for non-sidecar init containers are immutable",
        );
        let mut less = base();
        less["limits"] = json!({});
        let removed = "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed";
        check("m", less, removed);
        let mut less = base();
        less["requests"].as_object_mut().unwrap().remove("cpu");
        let removed = "spec.initContainers[1].resources.requests: Forbidden: resource requests cannot be removed";
        check("s", less, removed);
    }

    #[test]
    fn a_resize_is_of_the_containers_that_are_there() {
        let pod = |names: &str, inits: &str| {
            let list = |names: &str| {
                names
                    .split_whitespace()
                    .map(|name| json!({"name": name, "image": "x", "resources": {}}))
                    .collect::<Vec<_>>()
            };
            json::from_value::<Pod>(json!({"spec": {"containers": list(names), "initContainers": list(inits)}}))
                .unwrap()
        };
        let check = |names: &str, inits: &str, expected: &[&str]| {
            let errors = validate_update(&pod(names, inits), &pod("a b", "i"), Target::Other("resize"));
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{names} {inits}");
        };
        check("a b", "i", &[]);
        let other = |place: &str, list: &str| {
            format!("spec.{list}[{place}].name: Forbidden: {list} may not be renamed or reordered on resize")
        };
        check("b a", "i", &[&other("0", "containers"), &other("1", "containers")]);
        check("a c", "j", &[&other("1", "containers"), &other("0", "initContainers")]);
        check("a", "i", &["spec.containers: Forbidden: containers may not be added or removed on resize"]);
        check("a b", "i j", &["spec.initContainers: Forbidden: initContainers may not be added or removed on resize"]);
    }
}
