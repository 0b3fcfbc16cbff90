//! Role, ClusterRole and their bindings: who may do what.

use json::Value;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};

use crate::kind::{Kind, age, col, created, name, wide};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names::{self, NameRule};
use crate::validation::object_meta::invalid_at;

const GROUP: &str = "rbac.authorization.k8s.io";

pub const ROLE: Kind<Role> = Kind {
    create_on_update: true,
    name: NameRule::PathSegment,
    validate: Some(|r| rules(r.rules.as_deref(), true)),
    columns: &[name(), created()],
    ..Kind::BASE
};

pub const CLUSTER_ROLE: Kind<ClusterRole> = Kind {
    create_on_update: true,
    name: NameRule::PathSegment,
    validate: Some(validate_cluster_role),
    columns: &[name(), created()],
    ..Kind::BASE
};

pub const ROLE_BINDING: Kind<RoleBinding> = Kind {
    create_on_update: true,
    name: NameRule::PathSegment,
    default: Some(|b| default(&mut b.role_ref, b.subjects.as_mut())),
    validate: Some(|b| binding(&b.role_ref, b.subjects.as_deref(), true)),
    validate_update: Some(|new, old, _| same_role(&new.role_ref, &old.role_ref)),
    columns: &[
        name(),
        col("Role", "The role that is given.", |b, _| role(&b.role_ref)),
        age(),
        wide("Users", "Users in the roleBinding", |b, _| subjects(b.subjects.as_deref(), "User")),
        wide("Groups", "Groups in the roleBinding", |b, _| subjects(b.subjects.as_deref(), "Group")),
        wide("ServiceAccounts", "ServiceAccounts in the roleBinding", |b, _| accounts(b.subjects.as_deref())),
    ],
    ..Kind::BASE
};

pub const CLUSTER_ROLE_BINDING: Kind<ClusterRoleBinding> = Kind {
    create_on_update: true,
    name: NameRule::PathSegment,
    default: Some(|b| default(&mut b.role_ref, b.subjects.as_mut())),
    validate: Some(|b| binding(&b.role_ref, b.subjects.as_deref(), false)),
    validate_update: Some(|new, old, _| same_role(&new.role_ref, &old.role_ref)),
    columns: &[
        name(),
        col("Role", "The role that is given.", |b, _| role(&b.role_ref)),
        age(),
        wide("Users", "Users in the clusterRoleBinding", |b, _| subjects(b.subjects.as_deref(), "User")),
        wide("Groups", "Groups in the clusterRoleBinding", |b, _| subjects(b.subjects.as_deref(), "Group")),
        wide("ServiceAccounts", "ServiceAccounts in the clusterRoleBinding", |b, _| accounts(b.subjects.as_deref())),
    ],
    ..Kind::BASE
};

fn role(role: &RoleRef) -> Value {
    Value::from(format!("{}/{}", role.kind, role.name))
}

fn subjects(list: Option<&[Subject]>, kind: &str) -> Value {
    let all = list.unwrap_or_default().iter().filter(|s| s.kind == kind);
    Value::from(all.map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "))
}

fn accounts(list: Option<&[Subject]>) -> Value {
    let all = list.unwrap_or_default().iter().filter(|s| s.kind == "ServiceAccount");
    let shown = all.map(|s| format!("{}/{}", s.namespace.as_deref().unwrap_or_default(), s.name));
    Value::from(shown.collect::<Vec<_>>().join(", "))
}

fn default(role: &mut RoleRef, subjects: Option<&mut Vec<Subject>>) {
    if role.api_group.is_empty() {
        GROUP.clone_into(&mut role.api_group);
    }
    for subject in subjects.into_iter().flatten().filter(|s| matches!(s.kind.as_str(), "User" | "Group")) {
        if subject.api_group.as_deref().unwrap_or_default().is_empty() {
            subject.api_group = Some(GROUP.to_owned());
        }
    }
}

fn validate_cluster_role(role: &ClusterRole) -> Errors {
    let mut errors = rules(role.rules.as_deref(), false);
    if let Some(aggregation) = &role.aggregation_rule {
        let path = Path::new("aggregationRule").child("clusterRoleSelectors");
        let list = aggregation.cluster_role_selectors.as_deref().unwrap_or_default();
        if list.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required(&path, detail));
        }
        for (i, selector) in list.iter().enumerate() {
            errors.extend(crate::kinds::rollout::validate_selector(selector, &path.index(i)));
        }
    }
    errors
}

fn rules(list: Option<&[PolicyRule]>, namespaced: bool) -> Errors {
    let mut errors = Errors::new();
    for (i, rule) in list.unwrap_or_default().iter().enumerate() {
        let path = Path::new("rules").index(i);
        let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|l| !l.is_empty());
        if rule.verbs.is_empty() {
            errors.push(FieldError::required(&path.child("verbs"), "verbs must contain at least one value"));
        }
        if given(&rule.non_resource_urls) {
            if namespaced {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(&path.child("nonResourceURLs"), &rule.non_resource_urls, detail));
            }
            if given(&rule.api_groups) || given(&rule.resources) || given(&rule.resource_names) {
                let detail = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(FieldError::invalid(&path.child("nonResourceURLs"), &rule.non_resource_urls, detail));
            }
            continue;
        }
        if !given(&rule.api_groups) {
            let detail = "resource rules must supply at least one api group";
            errors.push(FieldError::required(&path.child("apiGroups"), detail));
        }
        if !given(&rule.resources) {
            let detail = "resource rules must supply at least one resource";
            errors.push(FieldError::required(&path.child("resources"), detail));
        }
    }
    errors
}

/// A binding in a namespace or, if not `namespaced`, in the cluster.
fn binding(role: &RoleRef, list: Option<&[Subject]>, namespaced: bool) -> Errors {
    let path = Path::new("roleRef");
    let mut errors = Errors::new();
    if role.api_group != GROUP {
        errors.push(FieldError::not_supported(&path.child("apiGroup"), &role.api_group, &[GROUP]));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&role.kind.as_str()) {
        errors.push(FieldError::not_supported(&path.child("kind"), &role.kind, kinds));
    }
    if role.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        errors.extend(invalid_at(&path, "name", &role.name, names::path_segment(&role.name, false)));
    }
    for (i, one) in list.unwrap_or_default().iter().enumerate() {
        errors.extend(subject(one, namespaced, &Path::new("subjects").index(i)));
    }
    errors
}

fn subject(subject: &Subject, namespaced: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let name = subject.name.as_str();
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let group = subject.api_group.as_deref().unwrap_or_default();
    let in_group = |supported: &str| {
        let wrong = || FieldError::not_supported(&path.child("apiGroup"), group, &[supported]);
        (group != supported).then(wrong)
    };
    match subject.kind.as_str() {
        "ServiceAccount" => {
            let wrong = if name.is_empty() { Vec::new() } else { names::dns1123_subdomain(name) };
            errors.extend(invalid_at(path, "name", name, wrong));
            errors.extend(in_group(""));
            if !namespaced && subject.namespace.as_deref().unwrap_or_default().is_empty() {
                errors.push(FieldError::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => errors.extend(in_group(GROUP)),
        other => {
            let kinds = &["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(&path.child("kind"), other, kinds));
        }
    }
    errors
}

fn same_role(new: &RoleRef, old: &RoleRef) -> Errors {
    if new == old {
        return Errors::new();
    }
    let shown = internal_form::compact("RoleRef", new);
    vec![FieldError::invalid_shown(&Path::new("roleRef"), &shown, "cannot change roleRef")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn bindings() {
        let check = |namespaced: bool, role: Value, subjects: Value, expected: &[&str]| {
            let role: RoleRef = json::from_value(role).unwrap();
            let subjects: Vec<Subject> = json::from_value(subjects).unwrap();
            let errors: Vec<String> =
                binding(&role, Some(&subjects), namespaced).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected);
        };
        let role = json!({"apiGroup": GROUP, "kind": "Role", "name": "r"});
        let account = json!([{"kind": "ServiceAccount", "name": "a"}]);
        check(true, role.clone(), account.clone(), &[]);
        check(
            false,
            role,
            account,
            &[
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].namespace: Required value",
            ],
        );
        check(
            true,
            json!({"apiGroup": "", "kind": "X", "name": ""}),
            json!([{"kind": "Robot", "name": ""}]),
            &[
                "roleRef.apiGroup: Unsupported value: \"\": supported values: \"rbac.authorization.k8s.io\"",
                "roleRef.kind: Unsupported value: \"X\": supported values: \"Role\", \"ClusterRole\"",
                "roleRef.name: Required value",
                "subjects[0].name: Required value",
                "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
            ],
        );
    }
}
