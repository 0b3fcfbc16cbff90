//! Workload: Pods that belong together in the scheduler's eyes, and how many of each group must fit at once.
//! Upstream counterpart: pkg/apis/scheduling/validation, pkg/registry/scheduling/workload.

use std::collections::BTreeSet;

use k8s_openapi::api::scheduling::v1alpha1::{
    PodGroup, PodGroupPolicy, TypedLocalObjectReference, Workload, WorkloadSpec,
};

use crate::features::Feature;
use crate::kind::{Kind, age, name};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;

const POD_GROUPS_MAX: usize = 8;

pub const WORKLOAD: Kind<Workload> = Kind {
    gate: Some(Feature::GenericWorkload),
    validate: Some(|workload| spec(&workload.spec, &Path::new("spec"))),
    validate_update: Some(|new, old, _| update(&new.spec, &old.spec)),
    columns: &[name(), age()],
    ..Kind::BASE
};

fn spec(spec: &WorkloadSpec, path: &Path) -> Errors {
    let mut errors =
        spec.controller_ref.as_ref().map(|r| reference(r, &path.child("controllerRef"))).unwrap_or_default();
    let place = path.child("podGroups");
    match spec.pod_groups.len() {
        0 => errors.push(FieldError::required(&place, "must have at least one item")),
        1..=POD_GROUPS_MAX => {
            let mut seen = BTreeSet::new();
            let groups = spec.pod_groups.iter().enumerate();
            errors.extend(groups.flat_map(|(i, group)| pod_group(group, &place.index(i), &mut seen)));
        }
        count => errors.push(FieldError::too_many(&place, count, POD_GROUPS_MAX)),
    }
    errors
}

/// The object that a tool made the workload for.
fn reference(reference: &TypedLocalObjectReference, path: &Path) -> Errors {
    let group = reference.api_group.as_deref().unwrap_or_default();
    let wrong = if group.is_empty() { Vec::new() } else { names::dns1123_subdomain(group) };
    let mut errors = invalid_at(path, "apiGroup", group, wrong);
    for (field, text) in [("kind", &reference.kind), ("name", &reference.name)] {
        if text.is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        } else {
            errors.extend(invalid_at(path, field, text, names::path_segment(text, false)));
        }
    }
    errors
}

fn pod_group<'g>(group: &'g PodGroup, path: &Path, seen: &mut BTreeSet<&'g str>) -> Errors {
    let mut errors = invalid_at(path, "name", &group.name, names::dns1123_label(&group.name));
    if !seen.insert(&group.name) {
        errors.push(FieldError::duplicate(&path.child("name"), &group.name));
    }
    errors.extend(policy(&group.policy, &path.child("policy")));
    errors
}

fn policy(policy: &PodGroupPolicy, path: &Path) -> Errors {
    match (&policy.basic, &policy.gang) {
        (None, None) => vec![FieldError::required(path, "exactly one of `basic`, `gang` is required")],
        (Some(_), Some(_)) => {
            let detail = "exactly one of `basic`, `gang` is required, but multiple fields are set";
            vec![FieldError::invalid(path, "{`basic`, `gang`}", detail)]
        }
        (None, Some(gang)) if gang.min_count <= 0 => {
            vec![FieldError::invalid(&path.child("gang").child("minCount"), gang.min_count, "must be greater than 0")]
        }
        _ => Errors::new(),
    }
}

/// Groups never change, and the controller only once. The paths are upstream's, without `spec`.
fn update(new: &WorkloadSpec, old: &WorkloadSpec) -> Errors {
    let mut errors = Errors::new();
    if old.controller_ref.is_some() && new.controller_ref != old.controller_ref {
        errors.push(FieldError::invalid(&Path::new("controllerRef"), &new.controller_ref, "field is immutable"));
    }
    if new.pod_groups != old.pod_groups {
        errors.push(FieldError::invalid(&Path::new("podGroups"), &new.pod_groups, "field is immutable"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn workload(spec: Value) -> Workload {
        json::from_value(json!({"metadata": {"name": "w", "namespace": "d"}, "spec": spec})).expect("a Workload")
    }

    fn texts(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn groups_have_a_name_and_one_policy() {
        let check = |spec: Value, expected: &[&str]| {
            let said = texts(super::spec(&workload(spec.clone()).spec, &Path::new("spec")));
            assert_eq!(said, expected, "{spec}");
        };
        let gang = |name: &str, count: i32| json!({"name": name, "policy": {"gang": {"minCount": count}}});
        let groups = |count: usize| (0..count).map(|i| gang(&format!("g{i}"), 1)).collect::<Vec<_>>();
        check(json!({"podGroups": [gang("a", 3), {"name": "b", "policy": {"basic": {}}}]}), &[]);
        check(json!({"podGroups": groups(8)}), &[]);
        check(json!({"podGroups": groups(9)}), &["spec.podGroups: Too many: 9: must have at most 8 items"]);
        check(json!({"podGroups": []}), &["spec.podGroups: Required value: must have at least one item"]);
        check(
            json!({"podGroups": [gang("a", 0)]}),
            &["spec.podGroups[0].policy.gang.minCount: Invalid value: 0: must be greater than 0"],
        );
        check(json!({"podGroups": [gang("a", 1), gang("a", 1)]}), &["spec.podGroups[1].name: Duplicate value: \"a\""]);
        check(
            json!({"podGroups": [{"name": "a", "policy": {}}]}),
            &["spec.podGroups[0].policy: Required value: exactly one of `basic`, `gang` is required"],
        );
        check(
            json!({"podGroups": [{"name": "a", "policy": {"basic": {}, "gang": {"minCount": 1}}}]}),
            &["spec.podGroups[0].policy: Invalid value: \"{`basic`, `gang`}\": exactly one of `basic`, `gang` is \
               required, but multiple fields are set"],
        );
        check(
            json!({"controllerRef": {"kind": "", "name": "a/b"}, "podGroups": [gang("a", 1)]}),
            &[
                "spec.controllerRef.kind: Required value",
                "spec.controllerRef.name: Invalid value: \"a/b\": may not contain '/'",
            ],
        );
        let said = texts(super::spec(&workload(json!({"podGroups": [gang("A.b", 1)]})).spec, &Path::new("spec")));
        assert!(
            said[0].starts_with("spec.podGroups[0].name: Invalid value: \"A.b\": a lowercase RFC 1123 label"),
            "{said:?}"
        );
    }

    #[test]
    fn groups_never_change() {
        let with = |count: i32, reference: Value| {
            let groups = json!([{"name": "a", "policy": {"gang": {"minCount": count}}}]);
            workload(json!({"podGroups": groups, "controllerRef": reference})).spec
        };
        let job = || json!({"kind": "Job", "name": "j", "apiGroup": "batch"});
        assert_eq!(texts(update(&with(1, Value::Null), &with(1, Value::Null))), [""; 0]);
        assert_eq!(texts(update(&with(1, job()), &with(1, Value::Null))), [""; 0], "set once");
        let said = texts(update(&with(2, Value::Null), &with(1, job())));
        assert!(said[0].starts_with("controllerRef: Invalid value: ") && said[0].ends_with("field is immutable"));
        assert!(said[1].starts_with("podGroups: Invalid value: ") && said.len() == 2, "{said:?}");
    }
}
