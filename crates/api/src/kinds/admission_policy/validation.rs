//! The rules for policies and their bindings, besides their expressions.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ParamKind, ParamRef, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
};

use super::expressions;
use crate::kinds::rollout::validate_selector;
use crate::validation::field::{Errors, FieldError, Path, one_of};
use crate::validation::names::{NameRule, dns1035_label, dns1123_subdomain};
use crate::validation::object_meta::invalid;

const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];

pub(super) fn policy(policy: &ValidatingAdmissionPolicy) -> Errors {
    checked(policy, true)
}

/// Conditions that nothing has changed for stay as they are.
pub(super) fn policy_update(new: &ValidatingAdmissionPolicy, old: &ValidatingAdmissionPolicy) -> Errors {
    let (spec, before) = (new.spec.as_ref(), old.spec.as_ref());
    let params = |spec: &ValidatingAdmissionPolicySpec| spec.param_kind.clone();
    let conditions = |spec: &ValidatingAdmissionPolicySpec| spec.match_conditions.clone();
    let same =
        spec.and_then(params) == before.and_then(params) && spec.and_then(conditions) == before.and_then(conditions);
    checked(new, !same)
}

fn checked(policy: &ValidatingAdmissionPolicy, conditions: bool) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = &policy.spec else { return vec![FieldError::required(&path, "")] };
    let failure = spec.failure_policy.as_deref().unwrap_or_default();
    let mut errors: Errors = one_of(failure, &["Fail", "Ignore"], &path, "failurePolicy").into_iter().collect();
    if let Some(kind) = &spec.param_kind {
        errors.extend(param_kind(kind, &path.child("paramKind")));
    }
    let place = path.child("matchConstraints");
    match &spec.match_constraints {
        None => errors.push(FieldError::required(&place, "")),
        Some(constraints) => errors.extend(match_constraints(constraints, &place)),
    }
    errors.extend(expressions::validate(policy, conditions, &path));
    errors
}

/// The objects that a policy is about, which its rules have to say.
pub(super) fn match_constraints(constraints: &MatchResources, path: &Path) -> Errors {
    let mut errors = match_resources(constraints, path);
    if constraints.resource_rules.as_ref().is_none_or(Vec::is_empty) {
        errors.push(FieldError::required(&path.child("resourceRules"), ""));
    }
    errors
}

pub(super) fn policy_name(name: Option<&str>, path: &Path) -> Errors {
    let path = path.child("policyName");
    match name.unwrap_or_default() {
        "" => vec![FieldError::required(&path, "")],
        name => invalid(&path, name, NameRule::Subdomain.check(name, false)).collect(),
    }
}

pub(super) fn binding(binding: &ValidatingAdmissionPolicyBinding) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = &binding.spec else { return vec![FieldError::required(&path, "")] };
    let mut errors = policy_name(spec.policy_name.as_deref(), &path);
    if let Some(reference) = &spec.param_ref {
        errors.extend(param_ref(reference, &path.child("paramRef")));
    }
    if let Some(resources) = &spec.match_resources {
        errors.extend(match_resources(resources, &path.child("matchResources")));
    }
    let actions = spec.validation_actions.as_deref().unwrap_or_default();
    errors.extend(validation_actions(actions, &path.child("validationActions")));
    errors
}

pub(super) fn param_kind(kind: &ParamKind, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("apiVersion");
    let version = kind.api_version.as_deref().unwrap_or_default();
    match version.matches('/').count() {
        _ if version.is_empty() => errors.push(FieldError::required(&place, "")),
        0 | 1 => {
            let (group, number) = version.split_once('/').unwrap_or(("", version));
            if !group.is_empty() {
                errors.extend(together(&place, group, "", dns1123_subdomain(group)));
            }
            if number.is_empty() {
                errors.push(FieldError::invalid(&place, version, "version must be specified"));
            } else {
                errors.extend(together(&place, number, "", dns1035_label(number)));
            }
        }
        _ => {
            let detail = format!("unexpected GroupVersion string: {version}");
            errors.push(FieldError::invalid(&place, version, &detail));
        }
    }
    match kind.kind.as_deref().unwrap_or_default() {
        "" => errors.push(FieldError::required(&path.child("kind"), "")),
        name => {
            let wrong = dns1035_label(&name.to_lowercase());
            let start = "may have mixed case, but should otherwise match: ";
            errors.extend(together(&path.child("kind"), name, start, wrong));
        }
    }
    errors
}

/// All that is wrong with a name as one error.
fn together(path: &Path, value: &str, start: &str, wrong: Vec<String>) -> Option<FieldError> {
    (!wrong.is_empty()).then(|| FieldError::invalid(path, value, &format!("{start}{}", wrong.join(","))))
}

pub(super) fn match_resources(resources: &MatchResources, path: &Path) -> Errors {
    let policy = resources.match_policy.as_deref().unwrap_or_default();
    let mut errors: Errors = one_of(policy, &["Equivalent", "Exact"], path, "matchPolicy").into_iter().collect();
    let selectors =
        [("namespaceSelector", &resources.namespace_selector), ("objectSelector", &resources.object_selector)];
    for (field, selector) in selectors {
        match selector {
            None => errors.push(FieldError::required(&path.child(field), "")),
            Some(selector) => errors.extend(validate_selector(selector, &path.child(field))),
        }
    }
    let rules =
        [("resourceRules", &resources.resource_rules), ("excludeResourceRules", &resources.exclude_resource_rules)];
    for (field, rules) in rules {
        for (i, one) in rules.iter().flatten().enumerate() {
            errors.extend(rule(one, &path.child(field).index(i)));
        }
    }
    errors
}

pub(crate) fn rule(rule: &NamedRuleWithOperations, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, name) in rule.resource_names.iter().flatten().enumerate() {
        let place = path.child("resourceNames").index(i);
        errors.extend(invalid(&place, name, NameRule::PathSegment.check(name, false)));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&place, name));
        }
    }
    errors.extend(words(rule.operations.as_deref(), &path.child("operations"), "operations"));
    for (i, operation) in rule.operations.iter().flatten().enumerate() {
        if !OPERATIONS.contains(&operation.as_str()) {
            let place = path.child("operations").index(i);
            errors.push(FieldError::not_supported(&place, operation, &OPERATIONS));
        }
    }
    errors.extend(words(rule.api_groups.as_deref(), &path.child("apiGroups"), "API groups"));
    errors.extend(words(rule.api_versions.as_deref(), &path.child("apiVersions"), "API versions"));
    for (i, version) in rule.api_versions.iter().flatten().enumerate() {
        if version.is_empty() {
            errors.push(FieldError::required(&path.child("apiVersions").index(i), ""));
        }
    }
    errors.extend(resources(rule.resources.as_deref().unwrap_or_default(), &path.child("resources")));
    if let Some(scope) = rule.scope.as_deref().filter(|s| !SCOPES.contains(s)) {
        errors.push(FieldError::not_supported(&path.child("scope"), scope, &SCOPES));
    }
    errors
}

/// A list that has something in it, and nothing beside a `*`.
fn words(list: Option<&[String]>, path: &Path, what: &str) -> Option<FieldError> {
    let list = list.unwrap_or_default();
    if list.is_empty() {
        return Some(FieldError::required(path, ""));
    }
    let detail = format!("if '*' is present, must not specify other {what}");
    (list.len() > 1 && list.iter().any(|w| w == "*")).then(|| FieldError::invalid(path, list, &detail))
}

/// Resources with and without subresources, none of which another one covers.
fn resources(list: &[String], path: &Path) -> Errors {
    let mut errors = Errors::new();
    if list.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut whole, mut everywhere) = (BTreeSet::new(), BTreeSet::new());
    for (i, text) in list.iter().enumerate() {
        if text.is_empty() {
            errors.push(FieldError::required(&path.index(i), ""));
        }
        let Some((resource, subresource)) = text.split_once('/') else { continue };
        if whole.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {text}");
            errors.push(FieldError::invalid(&path.index(i), text, &detail));
        }
        if everywhere.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {text}");
            errors.push(FieldError::invalid(&path.index(i), text, &detail));
        }
        if subresource == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            everywhere.insert(subresource);
        }
    }
    if list.len() > 1 && list.iter().any(|r| r == "*/*") {
        errors.push(FieldError::invalid(path, list, "if '*/*' is present, must not specify other resources"));
    }
    // The last resource without a subresource is the one that counts, as upstream has it.
    let last = list.iter().rfind(|resource| !resource.is_empty() && !resource.contains('/'));
    if list.iter().any(|resource| resource == "*") && last.is_some_and(|resource| resource != "*") {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, list, detail));
    }
    errors
}

pub(super) fn param_ref(reference: &ParamRef, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let name = reference.name.as_deref().unwrap_or_default();
    let both = "name and selector are mutually exclusive";
    if !name.is_empty() {
        errors.extend(invalid(&path.child("name"), name, NameRule::PathSegment.check(name, false)));
        if reference.selector.is_some() {
            errors.push(FieldError::forbidden(&path.child("name"), both));
        }
    }
    if let Some(selector) = &reference.selector {
        errors.extend(validate_selector(selector, &path.child("selector")));
        if !name.is_empty() {
            errors.push(FieldError::forbidden(&path.child("selector"), both));
        }
    }
    if name.is_empty() && reference.selector.is_none() {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    let action = reference.parameter_not_found_action.as_deref().unwrap_or_default();
    errors.extend(one_of(action, &["Deny", "Allow"], path, "parameterNotFoundAction"));
    errors
}

fn validation_actions(actions: &[String], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, action) in actions.iter().enumerate() {
        if !ACTIONS.contains(&action.as_str()) {
            errors.push(FieldError::not_supported(&path.index(i), action, &ACTIONS));
        }
        if !seen.insert(action.as_str()) {
            errors.push(FieldError::duplicate(&path.index(i), action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                      response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, actions, detail));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
    errors
}
