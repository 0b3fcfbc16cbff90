//! ResourceQuota: what all objects of a namespace together may ask for. How they are counted is `rules/quota`.

use json::Value;
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

use crate::kind::{Kind, Target, age, col, name};
use crate::rules::quantity::parse;
use crate::rules::resource_name::{is_standard, is_standard_in_quota, is_whole};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

pub const RESOURCE_QUOTA: Kind<ResourceQuota> = Kind {
    short: &["quota"],
    status: true,
    validate: Some(validate),
    validate_update: Some(validate_update),
    validate_status: Some(|new, _| validate_status(new)),
    columns: &[
        name(),
        col("Request", "Request represents a minimum amount of cpu/memory that a container may consume.", |q, _| {
            Value::from(usage(q, false))
        }),
        col(
            "Limit",
            "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
            |q, _| Value::from(usage(q, true)),
        ),
        age(),
    ],
    ..Kind::BASE
};

/// `resource: used/hard` for limits, or for everything else.
fn usage(quota: &ResourceQuota, limits: bool) -> String {
    let Some(status) = &quota.status else { return String::new() };
    let used = |name: &str| status.used.as_ref().and_then(|u| u.get(name)).map_or("0", |q| q.0.as_str());
    let hard = status.hard.iter().flatten().filter(|(name, _)| name.starts_with("limits.") == limits);
    hard.map(|(name, hard)| format!("{name}: {}/{}", used(name), hard.0)).collect::<Vec<_>>().join(", ")
}

fn validate(quota: &ResourceQuota) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = &quota.spec else { return Errors::new() };
    let mut errors = Errors::new();
    for (name, text) in spec.hard.iter().flatten() {
        let path = path.child("hard").key(name);
        errors.extend(resource(name, &path));
        errors.extend(amount(name, text, &path));
    }
    errors.extend(plain_scopes(spec, &path.child("scopes")));
    errors.extend(selected_scopes(spec, &path.child("scopeSelector").child("matchExpressions")));
    errors
}

fn validate_status(new: &Value) -> Errors {
    let Some(status) = new.get("status").and_then(|s| ResourceQuotaStatus::deserialize(s).ok()) else {
        return Errors::new();
    };
    let path = Path::new("status");
    let mut errors = Errors::new();
    for (field, amounts) in [("hard", &status.hard), ("used", &status.used)] {
        for (name, text) in amounts.iter().flatten() {
            let path = path.child(field).key(name);
            errors.extend(resource(name, &path));
            errors.extend(amount(name, text, &path));
        }
    }
    errors
}

/// An amount that there can be of the resource.
pub(crate) fn amount(resource: &str, text: &Quantity, path: &Path) -> Errors {
    let amount = parse(text);
    let mut errors = Errors::new();
    if amount.is_negative() {
        errors.push(FieldError::invalid(path, amount.to_string(), "must be greater than or equal to 0"));
    }
    if is_whole(resource) && !amount.is_integer() {
        errors.push(FieldError::invalid(path, amount.to_string(), "must be an integer"));
    }
    errors
}

fn resource(name: &str, path: &Path) -> Errors {
    let mut errors: Errors = invalid(path, name, names::qualified_name(name)).collect();
    if errors.is_empty() && !name.contains('/') && !is_standard(name) && !is_standard_in_quota(name) {
        errors.push(FieldError::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
    if errors.is_empty() && !name.contains('/') && !is_standard_in_quota(name) {
        errors.push(FieldError::invalid(path, name, "must be a standard resource for quotas"));
    }
    errors
}

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// Whether the objects that a standard resource counts can be in the scope.
fn is_about(scope: &str, resource: &str) -> bool {
    let base = resource.strip_prefix("requests.").or_else(|| resource.strip_prefix("limits.")).unwrap_or(resource);
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => resource == "pods" || matches!(base, "cpu" | "memory"),
    }
}

/// Whether all scopes of one field fit the resources; `shown` is the field's value in messages.
fn scopes_fit(scopes: &[&str], spec: &ResourceQuotaSpec, path: &Path, shown: &impl serde::Serialize) -> Errors {
    let mut errors = Errors::new();
    let hard = || spec.hard.iter().flatten().map(|(name, _)| name.as_str());
    for scope in scopes.iter().filter(|scope| SCOPES.contains(scope)) {
        for _ in hard().filter(|name| is_standard_in_quota(name) && !is_about(scope, name)) {
            errors.push(FieldError::invalid(path, shown, "unsupported scope applied to resource"));
        }
    }
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            errors.push(FieldError::invalid(path, shown, "conflicting scopes"));
        }
    }
    errors
}

fn plain_scopes(spec: &ResourceQuotaSpec, path: &Path) -> Errors {
    let Some(scopes) = &spec.scopes else { return Errors::new() };
    let names: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let unknown = names.iter().filter(|scope| !SCOPES.contains(scope));
    let mut errors: Errors = unknown.map(|_| FieldError::invalid(path, scopes, "unsupported scope")).collect();
    errors.extend(scopes_fit(&names, spec, path, scopes));
    errors
}

fn selected_scopes(spec: &ResourceQuotaSpec, path: &Path) -> Errors {
    let Some(all) = spec.scope_selector.as_ref().and_then(|s| s.match_expressions.as_ref()) else {
        return Errors::new();
    };
    let mut errors = Errors::new();
    for one in all {
        let (scope, operator) = (one.scope_name.as_str(), one.operator.as_str());
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(&path.child("scopeName"), scope, "unsupported scope"));
        } else if !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && operator != "Exists" {
            errors.push(FieldError::invalid(&path.child("operator"), operator, ONLY_EXISTS));
        }
        let values = one.values.as_deref().unwrap_or_default();
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(&path.child("values"), values, detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                errors.push(FieldError::invalid(&path.child("operator"), operator, "not a valid selector operator"));
            }
        }
    }
    let names: Vec<&str> = all.iter().map(|one| one.scope_name.as_str()).collect();
    errors.extend(scopes_fit(&names, spec, path, all));
    errors
}

const ONLY_EXISTS: &str = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, \
                           ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                           ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";

fn validate_update(new: &ResourceQuota, old: &ResourceQuota, _: Target) -> Errors {
    let scopes = |quota: &ResourceQuota| {
        let mut scopes = quota.spec.as_ref().and_then(|s| s.scopes.clone()).unwrap_or_default();
        scopes.sort();
        scopes.dedup();
        scopes
    };
    if scopes(new) == scopes(old) {
        return Errors::new();
    }
    let shown = new.spec.as_ref().and_then(|s| s.scopes.as_ref());
    vec![FieldError::invalid(&Path::new("spec").child("scopes"), shown, "field is immutable")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::rollout;
    use json::json;

    fn quota(spec: Value) -> ResourceQuota {
        json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn quotas_limit_what_is_counted_in_scopes_that_fit() {
        let check = |spec: Value, expected: &[&str]| {
            let errors: Vec<String> = validate(&quota(spec.clone())).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{spec}");
        };
        let hard = json!({"pods": "1", "cpu": "100m", "count/deployments.apps": "2", "requests.example.com/gpu": "1",
            "requests.hugepages-2Mi": "4Mi", "gold.storageclass.storage.k8s.io/requests.storage": "1Gi"});
        check(json!({"hard": hard}), &[]);
        let wrong = json!({"pods": "1500m", "memory": "-1", "storage": "1", "deployments": "1"});
        check(
            json!({"hard": wrong}),
            &[
                "spec.hard[deployments]: Invalid value: \"deployments\": must be a standard resource type or fully qualified",
                "spec.hard[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
                "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
                "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quotas",
            ],
        );
        check(json!({"hard": {"pods": "1"}, "scopes": ["BestEffort", "Terminating"]}), &[]);
        let both = "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes";
        check(json!({"scopes": ["BestEffort", "NotBestEffort"]}), &[both]);
        let unfit = "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource";
        check(json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}), &[unfit]);
        check(json!({"scopes": ["Other"]}), &["spec.scopes: Invalid value: [\"Other\"]: unsupported scope"]);
        let selector = |scope: &str, operator: &str, values: &[&str]| json!({"scopeSelector": {"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]}});
        check(selector("PriorityClass", "In", &["high"]), &[]);
        let path = "spec.scopeSelector.matchExpressions";
        let only_exists = format!("{path}.operator: Invalid value: \"In\": {ONLY_EXISTS}");
        check(selector("Terminating", "In", &["a"]), &[&only_exists]);
        let values = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
        check(selector("PriorityClass", "NotIn", &[]), &[&format!("{path}.values: Required value: {values}")]);
    }

    #[test]
    fn a_status_has_amounts_of_what_quotas_count() {
        let check = |new: Value, expected: &[&str]| {
            rollout::check_status(RESOURCE_QUOTA.validate_status, &new, &Value::Null, expected);
        };
        check(json!({"hard": {"pods": "2", "cpu": "1"}, "used": {"pods": "3", "cpu": "100m"}}), &[]);
        check(
            json!({"hard": {"deployments": "1"}, "used": {"cpu": "-1", "pods": "1500m"}}),
            &[
                "status.hard[deployments]: Invalid value: \"deployments\": must be a standard resource type or fully qualified",
                "status.used[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "status.used[pods]: Invalid value: \"1500m\": must be an integer",
            ],
        );
    }

    #[test]
    fn plain_scopes_stay() {
        let check = |old: Value, new: Value, expected: usize| {
            let (old, new) = (quota(json!({"scopes": old})), quota(json!({"scopes": new})));
            assert_eq!(validate_update(&new, &old, Target::Object).len(), expected);
        };
        check(json!(["BestEffort", "Terminating"]), json!(["Terminating", "BestEffort"]), 0);
        check(json!(["BestEffort"]), Value::Null, 1);
    }
}
