//! What may change in a Pod that exists: almost nothing.

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};

use crate::field::{Errors, FieldError, Path};
use crate::kind::Target;
use crate::kinds::pod::container;

const FIXED: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                     `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                     `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(crate) fn validate_update(new: &Pod, old: &Pod, target: Target) -> Errors {
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return Errors::new() };
    match target {
        Target::Status => Errors::new(),
        Target::Other("ephemeralcontainers") => ephemeral(new, old),
        Target::Other("resize") => resize(new, old),
        Target::Object | Target::Other(_) => object(new, old),
    }
}

fn object(new: &PodSpec, old: &PodSpec) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    let count = |s: &PodSpec| s.init_containers.as_ref().map_or(0, Vec::len);
    let detail = "pod updates may not add or remove containers";
    if new.containers.len() != old.containers.len() {
        errors.push(FieldError::forbidden(&path.child("containers"), detail));
    }
    if count(new) != count(old) {
        errors.push(FieldError::forbidden(&path.child("initContainers"), detail));
    }
    if !errors.is_empty() {
        return errors;
    }
    for (i, one) in new.containers.iter().enumerate() {
        let place = path.child("containers").index(i).child("image");
        errors.extend(container::image(one.image.as_deref().unwrap_or_default(), &place));
    }
    errors.extend(deadline(new, old, &path.child("activeDeadlineSeconds")));
    errors.extend(only_added(new.tolerations.as_deref(), old.tolerations.as_deref(), &path.child("tolerations")));
    errors.extend(only_fewer_gates(new, old, &path.child("schedulingGates")));
    if with_allowed_changes(new, old) != *new {
        errors.push(FieldError::forbidden(&path, FIXED));
    }
    errors
}

/// The old spec with everything that may change taken from the new one.
fn with_allowed_changes(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut allowed = old.clone();
    for (old, new) in allowed.containers.iter_mut().zip(&new.containers) {
        old.image.clone_from(&new.image);
    }
    let both = allowed.init_containers.iter_mut().flatten().zip(new.init_containers.iter().flatten());
    for (old, new) in both {
        old.image.clone_from(&new.image);
    }
    allowed.active_deadline_seconds = new.active_deadline_seconds;
    allowed.tolerations.clone_from(&new.tolerations);
    allowed.scheduling_gates.clone_from(&new.scheduling_gates);
    if old.termination_grace_period_seconds.is_some_and(|s| s < 0) && new.termination_grace_period_seconds == Some(1) {
        allowed.termination_grace_period_seconds = Some(1);
    }
    // While gates hold a Pod back, where it may go can still be narrowed.
    if old.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()) {
        let kept = old.node_selector.iter().flatten();
        let narrowed =
            |(key, value): (&String, &String)| new.node_selector.as_ref().and_then(|n| n.get(key)) == Some(value);
        if kept.into_iter().all(narrowed) {
            allowed.node_selector.clone_from(&new.node_selector);
        }
        let node_affinity = |s: &PodSpec| s.affinity.as_ref().and_then(|a| a.node_affinity.clone());
        if node_affinity(old).is_none() {
            allowed.affinity.clone_from(&new.affinity);
        }
    }
    allowed
}

fn deadline(new: &PodSpec, old: &PodSpec, path: &Path) -> Option<FieldError> {
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), Some(old)) if new > old => {
            let detail = format!("must be less than or equal to previous value '{old}'");
            Some(FieldError::invalid(path, new, &detail))
        }
        (None, Some(_)) => {
            Some(FieldError::invalid(path, None::<i64>, "must not update from a positive integer to nil value"))
        }
        _ => None,
    }
}

/// Tolerations stay, up to how long they last; new ones may come.
fn only_added(new: Option<&[Toleration]>, old: Option<&[Toleration]>, path: &Path) -> Option<FieldError> {
    let new = new.unwrap_or_default();
    let same = |a: &Toleration, b: &Toleration| {
        Toleration { toleration_seconds: None, ..a.clone() } == Toleration { toleration_seconds: None, ..b.clone() }
    };
    let kept = old.unwrap_or_default().iter().all(|o| new.iter().any(|n| same(n, o)));
    let detail = "existing toleration can not be modified except its tolerationSeconds";
    (!kept).then(|| FieldError::forbidden(path, detail))
}

fn only_fewer_gates(new: &PodSpec, old: &PodSpec, path: &Path) -> Errors {
    let held = |name: &str| old.scheduling_gates.iter().flatten().any(|g| g.name == name);
    let added = new.scheduling_gates.iter().flatten().enumerate().filter(|(_, g)| !held(&g.name));
    let error = |name: &str| format!("only deletion is allowed, but found new scheduling gate '{name}'");
    added.map(|(i, g)| FieldError::forbidden(&path.index(i), &error(&g.name))).collect()
}

fn ephemeral(new: &PodSpec, old: &PodSpec) -> Errors {
    let path = Path::new("spec").child("ephemeralContainers");
    let mut errors = Errors::new();
    for before in old.ephemeral_containers.iter().flatten() {
        let name = &before.name;
        match new.ephemeral_containers.iter().flatten().find(|c| c.name == *name) {
            None => {
                let detail = format!("existing ephemeral containers {name:?} may not be removed\n");
                errors.push(FieldError::forbidden(&path, &detail));
            }
            Some(now) if now != before => {
                let detail = format!("existing ephemeral containers {name:?} may not be changed\n");
                errors.push(FieldError::forbidden(&path, &detail));
            }
            Some(_) => {}
        }
    }
    errors
}

fn resize(new: &PodSpec, old: &PodSpec) -> Errors {
    let mut allowed = old.clone();
    for (old, new) in allowed.containers.iter_mut().zip(&new.containers) {
        old.resources.clone_from(&new.resources);
        old.resize_policy.clone_from(&new.resize_policy);
    }
    let both = allowed.init_containers.iter_mut().flatten().zip(new.init_containers.iter().flatten());
    for (old, new) in both.filter(|(old, _)| crate::pod::is_sidecar(old)) {
        old.resources.clone_from(&new.resources);
    }
    let path = Path::new("spec");
    let mut errors = Errors::new();
    if allowed != *new {
        errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
    }
    if crate::pod::qos_class(new) != crate::pod::qos_class(old) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, crate::pod::qos_class(new), detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(old: Value, new: Value, expected: &str) {
        let pod = |spec: Value| serde_json::from_value::<Pod>(json!({"spec": spec})).unwrap();
        let errors = validate_update(&pod(new), &pod(old), Target::Object);
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(if expected.is_empty() { text.is_empty() } else { text.contains(expected) }, "{text}");
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
            pod("a", json!({"nodeName": "n"})),
            "spec: Forbidden: pod updates may not change fields",
        );
        check(pod("a", same.clone()), json!({"containers": []}), "may not add or remove containers");
        let toleration = |key: &str| json!({"tolerations": [{"key": key}]});
        check(pod("a", same.clone()), pod("a", toleration("x")), "");
        check(pod("a", toleration("x")), pod("a", toleration("y")), "existing toleration can not be modified");
        check(
            pod("a", json!({"activeDeadlineSeconds": 5})),
            pod("a", json!({"activeDeadlineSeconds": 6})),
            "previous value '5'",
        );
        let gated = json!({"schedulingGates": [{"name": "g"}]});
        check(pod("a", gated.clone()), pod("a", same.clone()), "");
        check(pod("a", same.clone()), pod("a", gated.clone()), "only deletion is allowed");
        let mut narrowed = pod("a", gated.clone());
        narrowed["nodeSelector"] = json!({"a": "b"});
        check(pod("a", gated), narrowed, "");
    }
}
