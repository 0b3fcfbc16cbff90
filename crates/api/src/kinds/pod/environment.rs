//! Validation of environment variables and of what they, and files of downward-API volumes, show of their Pod.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector,
};

use crate::rules::quantity;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;
use crate::validation::relative_path::no_backsteps;

pub(crate) fn variables(list: &[EnvVar], path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, variable) in list.iter().enumerate() {
        let path = path.index(i);
        if variable.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            errors.extend(invalid_at(&path, "name", &variable.name, names::env_name(&variable.name)));
        }
        if let Some(source) = &variable.value_from {
            errors.extend(value_from(variable, source, &path.child("valueFrom")));
        }
    }
    errors
}

/// The fields of its Pod that a variable can show.
const VARIABLE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn value_from(variable: &EnvVar, source: &EnvVarSource, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        errors.extend(field_selector(field, VARIABLE_FIELDS, &path.child("fieldRef")));
    }
    if let Some(resource) = &source.resource_field_ref {
        sources += 1;
        errors.extend(resource_selector(resource, false, &path.child("resourceFieldRef")));
    }
    if let Some(key) = &source.config_map_key_ref {
        sources += 1;
        errors.extend(key_selector(&key.name, &key.key, &path.child("configMapKeyRef")));
    }
    if let Some(key) = &source.secret_key_ref {
        sources += 1;
        errors.extend(key_selector(&key.name, &key.key, &path.child("secretKeyRef")));
    }
    if let Some(file) = &source.file_key_ref {
        sources += 1;
        errors.extend(file_selector(file, &path.child("fileKeyRef")));
    }
    if sources == 0 {
        let detail =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.push(FieldError::invalid(path, "", detail));
    } else if variable.value.as_deref().is_some_and(|v| !v.is_empty()) {
        errors.push(FieldError::invalid(path, "", "may not be specified when `value` is not empty"));
    } else if sources > 1 {
        errors.push(FieldError::invalid(path, "", "may not have more than one field specified at a time"));
    }
    errors
}

/// Every field that the v1 API lets a reference name; where it may stand is decided behind that.
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.host",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

/// A reference to a field of the Pod; `supported` is sorted.
pub(crate) fn field_selector(field: &ObjectFieldSelector, supported: &[&str], path: &Path) -> Errors {
    let version = field.api_version.as_deref().unwrap_or_default();
    let place = path.child("fieldPath");
    let name = field.field_path.as_str();
    if version.is_empty() {
        return vec![FieldError::required(&path.child("apiVersion"), "")];
    }
    if name.is_empty() {
        return vec![FieldError::required(&place, "")];
    }
    let unknown = |why: String| vec![FieldError::invalid(&place, name, &format!("error converting fieldPath: {why}"))];
    if version != "v1" {
        return unknown(format!("unsupported pod version: {version}"));
    }
    let subscript = name.strip_suffix("']").and_then(|n| n.split_once("['")).filter(|(path, _)| !path.is_empty());
    match subscript {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            names::qualified_name(&key).iter().map(|w| FieldError::invalid(path, &key, w)).collect()
        }
        Some(("metadata.labels", key)) => {
            names::qualified_name(key).iter().map(|w| FieldError::invalid(path, key, w)).collect()
        }
        Some(_) => unknown(format!("field label does not support subscript: {name}")),
        None if !KNOWN_FIELDS.contains(&name) => unknown(format!("field label not supported: {name}")),
        None => {
            let stored = if name == "spec.host" { "spec.nodeName" } else { name };
            if supported.contains(&stored) {
                return Errors::new();
            }
            vec![FieldError::not_supported(&place, stored, supported)]
        }
    }
}

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

const SIZES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// A reference to a limit or request of a container; a volume must say of which.
pub(crate) fn resource_selector(field: &ResourceFieldSelector, volume: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let name = field.resource.as_str();
    let huge = name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-");
    if volume && field.container_name.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
    } else if name.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&name) && !huge {
        errors.push(FieldError::not_supported(&path.child("resource"), name, RESOURCES));
    }
    let Some(divisor) = field.divisor.as_ref().map(quantity::parse).filter(|d| !d.is_zero()) else { return errors };
    let (supported, what): (&[&str], _) = match name {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "cpu"),
        "limits.memory" | "requests.memory" => (SIZES, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (SIZES, "local ephemeral storage"),
        _ if huge => (SIZES, "hugepages"),
        _ => return errors,
    };
    if !supported.contains(&divisor.to_string().as_str()) {
        let values = if what == "cpu" { "1m and 1".to_owned() } else { supported.join(", ") };
        let detail = format!("only divisor's values {values} are supported with the {what} resource");
        errors.push(FieldError::invalid(&path.child("divisor"), name, &detail));
    }
    errors
}

/// A key of a ConfigMap or Secret.
fn key_selector(name: &str, key: &str, path: &Path) -> Errors {
    let mut errors = invalid_at(path, "name", name, names::dns1123_subdomain(name));
    if key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        errors.extend(invalid_at(path, "key", key, names::config_key(key)));
    }
    errors
}

/// A variable in a file that another container writes.
fn file_selector(file: &FileKeySelector, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if file.key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        errors.extend(invalid_at(path, "key", &file.key, names::env_name(&file.key)));
    }
    if file.volume_name.is_empty() {
        errors.push(FieldError::required(&path.child("volumeName"), ""));
    } else {
        errors.extend(invalid_at(path, "volumeName", &file.volume_name, names::dns1123_label(&file.volume_name)));
    }
    if file.path.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    } else {
        errors.extend(no_backsteps(&file.path, &path.child("path")));
    }
    errors
}

/// All variables of a ConfigMap or Secret.
pub(crate) fn sources(list: &[EnvFromSource], path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, source) in list.iter().enumerate() {
        let place = path.index(i);
        if let Some(prefix) = source.prefix.as_deref().filter(|p| !p.is_empty()) {
            errors.extend(invalid_at(&place, "prefix", prefix, names::env_name(prefix)));
        }
        let config_map = source.config_map_ref.as_ref().map(|r| ("configMapRef", &r.name));
        let secret = source.secret_ref.as_ref().map(|r| ("secretRef", &r.name));
        for (field, name) in config_map.into_iter().chain(secret) {
            let place = place.child(field);
            if name.is_empty() {
                errors.push(FieldError::required(&place.child("name"), ""));
            } else {
                // A name that goes on: the last character may be a dash.
                errors.extend(invalid_at(&place, "name", name, names::NameRule::Subdomain.check(name, true)));
            }
        }
        match (config_map, secret) {
            (None, None) => {
                let detail = "must specify one of: `configMapRef` or `secretRef`";
                errors.push(FieldError::invalid(path, "", detail));
            }
            (Some(_), Some(_)) => {
                let detail = "may not have more than one field specified at a time";
                errors.push(FieldError::invalid(path, "", detail));
            }
            _ => {}
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[track_caller]
    fn check(variable: Value, expected: &[&str]) {
        let list: Vec<EnvVar> = json::from_value(json!([variable])).unwrap();
        let errors: Vec<String> = variables(&list, &Path::new("env")).iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected);
    }

    #[test]
    fn what_variables_show() {
        let from = |source: Value| json!({"name": "A", "valueFrom": source});
        let field = |path: &str| from(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}}));
        check(field("metadata.labels['a']"), &[]);
        check(field("spec.host"), &[]);
        check(
            field("metadata.labels"),
            &[
                "env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.labels\": supported values: \"metadata.name\", \
                 \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \
                 \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
            ],
        );
        check(
            field("spec.containers"),
            &[
                "env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.containers\": error converting fieldPath: field label \
                 not supported: spec.containers",
            ],
        );
        check(
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
            &[
                "env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are \
                 supported with the cpu resource",
            ],
        );
        check(
            json!({"name": "A", "value": "x", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}),
            &["env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"],
        );
        check(
            json!({"name": "A=B"}),
            &[
                "env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII \
             characters other than '='",
            ],
        );
    }
}
