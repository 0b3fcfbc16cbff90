//! Validation of `metadata` for every kind (apimachinery's `api/validation/objectmeta.go`).

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::codec::bounds::{self, SHOWN_MAX};
use crate::kind::Scope;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};

/// All annotations of an object together: keys and values, in bytes.
const ANNOTATIONS_MAX: usize = 256 * 1024;

fn text(field: Option<&String>) -> &str {
    field.map(String::as_str).unwrap_or_default()
}

pub(crate) fn invalid(path: &Path, value: &str, wrong: Vec<String>) -> impl Iterator<Item = FieldError> {
    wrong.into_iter().map(move |w| FieldError::invalid(path, value, &w))
}

/// Errors about a field of an object; makes the path only when something is wrong, which is rare and often asked.
pub(crate) fn invalid_at(path: &Path, field: &str, value: &str, wrong: Vec<String>) -> Errors {
    if wrong.is_empty() { Errors::new() } else { invalid(&path.child(field), value, wrong).collect() }
}

/// The names that finalizers may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalizers {
    /// Those of a domain, and the three that the API itself knows.
    OfDomains,
    /// Any qualified name: custom resources, and the groups that are served beside the core.
    Any,
}

impl Finalizers {
    /// Those of a built-in group.
    pub fn of_group(group: &str) -> Self {
        match group {
            "admissionregistration.k8s.io"
            | "apiextensions.k8s.io"
            | "apiregistration.k8s.io"
            | "coordination.k8s.io" => Finalizers::Any,
            _ => Finalizers::OfDomains,
        }
    }
}

/// Checks the metadata of a new object.
pub fn validate(meta: &ObjectMeta, scope: Scope, rule: NameRule, names: Finalizers) -> Errors {
    let path = Path::new("metadata");
    let mut errors = Errors::new();
    if let Some(prefix) = meta.generate_name.as_deref().filter(|p| !p.is_empty()) {
        errors.extend(invalid_at(&path, "generateName", prefix, rule.check(prefix, true)));
    }
    match text(meta.name.as_ref()) {
        "" => errors.push(FieldError::required(&path.child("name"), "name or generateName is required")),
        name => errors.extend(invalid_at(&path, "name", name, rule.check(name, false))),
    }
    let place = path.child("namespace");
    match (scope, text(meta.namespace.as_ref())) {
        (Scope::Namespaced, "") => errors.push(FieldError::required(&place, "")),
        (Scope::Namespaced, namespace) => errors.extend(invalid(&place, namespace, names::dns1123_label(namespace))),
        (Scope::Cluster, "") => {}
        (Scope::Cluster, _) => errors.push(FieldError::forbidden(&place, "not allowed on this type")),
    }
    if meta.generation.unwrap_or(0) < 0 {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            meta.generation,
            "must be greater than or equal to 0",
        ));
    }
    errors.extend(parts(meta, &path));
    errors.extend(finalizers(meta.finalizers.as_deref().unwrap_or_default(), &path.child("finalizers"), names));
    errors
}

/// Checks a change of metadata.
pub fn validate_update(new: &ObjectMeta, old: &ObjectMeta, names: Finalizers) -> Errors {
    let path = Path::new("metadata");
    let mut errors = Errors::new();
    let new_finalizers = new.finalizers.as_deref().unwrap_or_default();
    let old_finalizers = old.finalizers.as_deref().unwrap_or_default();
    if new.deletion_timestamp.is_some() && old.deletion_timestamp.is_some() {
        let known: HashSet<&String> = old_finalizers.iter().collect();
        let added: Vec<String> =
            new_finalizers.iter().filter(|f| !known.contains(f)).map(|f| format!("{f:?}")).collect();
        if !added.is_empty() {
            let added = added.join(", ");
            let added = bounds::cut(&added, SHOWN_MAX);
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{added}}}"
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), &detail));
        }
    }
    let mut fixed = |field: &str, same: bool, value: json::Value| {
        if !same {
            errors.push(FieldError::invalid(&path.child(field), value, "field is immutable"));
        }
    };
    let json = |v: &Option<String>| json::Value::from(text(v.as_ref()));
    fixed("name", text(new.name.as_ref()) == text(old.name.as_ref()), json(&new.name));
    fixed("namespace", text(new.namespace.as_ref()) == text(old.namespace.as_ref()), json(&new.namespace));
    fixed("uid", text(new.uid.as_ref()) == text(old.uid.as_ref()), json(&new.uid));
    let created = json::to_value(&new.creation_timestamp).unwrap_or_default();
    fixed("creationTimestamp", new.creation_timestamp == old.creation_timestamp, created);
    let deleted = json::to_value(&new.deletion_timestamp).unwrap_or_default();
    fixed("deletionTimestamp", new.deletion_timestamp == old.deletion_timestamp, deleted);
    let grace = json::to_value(new.deletion_grace_period_seconds).unwrap_or_default();
    fixed("deletionGracePeriodSeconds", new.deletion_grace_period_seconds == old.deletion_grace_period_seconds, grace);
    errors.extend(parts(new, &path));
    // Of the others those that are wrong stay until the object is made anew.
    if new_finalizers != old_finalizers && names == Finalizers::OfDomains {
        errors.extend(finalizers(new_finalizers, &path.child("finalizers"), names));
    }
    errors
}

/// The errors that the rules of all kinds find in the metadata of a changed object.
pub fn common_update(new: &json::Value, old: &json::Value, scope: Scope) -> Errors {
    let metadata = crate::object::decode_metadata;
    let (Ok(new), Ok(old)) = (metadata(new), metadata(old)) else { return Errors::new() };
    let mut errors = validate(&new, scope, NameRule::PathSegment, Finalizers::Any);
    errors.extend(validate_update(&new, &old, Finalizers::Any));
    errors
}

/// The checks of every write: labels, annotations, owners.
fn parts(meta: &ObjectMeta, path: &Path) -> Errors {
    let mut errors = labels(meta.labels.as_ref(), &path.child("labels"));
    errors.extend(annotations(meta.annotations.as_ref(), &path.child("annotations")));
    errors.extend(owners(meta.owner_references.as_deref().unwrap_or_default(), &path.child("ownerReferences")));
    errors
}

/// The warning about a name that is no DNS label and is used in `what`.
pub fn name_warning(meta: &ObjectMeta, what: &str) -> Option<String> {
    let wrong = names::dns1123_label(meta.name.as_deref().unwrap_or_default());
    (!wrong.is_empty()).then(|| {
        let wrong = wrong.join(" ");
        format!(
            "metadata.name: this is used in {what}, which can result in surprising behavior; a DNS label is recommended: [{wrong}]"
        )
    })
}

/// Checks a map of labels, wherever it stands.
pub fn labels(labels: Option<&BTreeMap<String, String>>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (key, value) in labels.into_iter().flatten() {
        errors.extend(invalid(path, key, names::qualified_name(key)));
        errors.extend(invalid(path, value, names::label_value(value)));
    }
    errors
}

/// Checks a map of annotations, wherever it stands.
pub fn annotations(annotations: Option<&BTreeMap<String, String>>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        errors.extend(invalid(path, key, names::qualified_name(&key.to_lowercase())));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

fn owners(owners: &[OwnerReference], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut controller: Option<String> = None;
    // The error shows all owners: it is told once.
    let mut told = false;
    for owner in owners {
        let version = owner.api_version.rsplit('/').next().unwrap_or_default();
        for (field, value, empty, detail) in [
            ("apiVersion", &owner.api_version, version.is_empty(), "version must not be empty"),
            ("kind", &owner.kind, owner.kind.is_empty(), "must not be empty"),
            ("name", &owner.name, owner.name.is_empty(), "must not be empty"),
            ("uid", &owner.uid, owner.uid.is_empty(), "must not be empty"),
        ] {
            if empty {
                errors.push(FieldError::invalid(&path.child(field), value, detail));
            }
        }
        if owner.kind == "Event" && owner.api_version == "v1" {
            errors.push(FieldError::invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            if let Some(first) = controller.as_ref().filter(|_| !told) {
                told = true;
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                errors.push(FieldError::invalid(path, owners, &detail));
            }
            controller.get_or_insert(this);
        }
    }
    errors
}

fn finalizers(finalizers: &[String], path: &Path, names: Finalizers) -> Errors {
    let mut errors = Errors::new();
    for name in finalizers {
        errors.extend(invalid(path, name, names::qualified_name(name)));
        let is_known = names == Finalizers::Any || name.contains('/');
        if !is_known && !matches!(name.as_str(), "kubernetes" | "orphan" | "foregroundDeletion") {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(path, name, detail));
        }
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, finalizers, detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn meta(value: json::Value) -> ObjectMeta {
        json::from_value(value).unwrap()
    }

    #[track_caller]
    fn check(value: json::Value, expected: &[&str]) {
        let errors: Vec<String> = validate(&meta(value), Scope::Namespaced, NameRule::Subdomain, Finalizers::OfDomains)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(errors.len(), expected.len(), "{errors:?}");
        for (error, start) in errors.iter().zip(expected) {
            assert!(error.starts_with(start), "{error:?} does not start with {start:?}");
        }
    }

    #[test]
    fn new_objects() {
        check(json!({"name": "a", "namespace": "b"}), &[]);
        check(
            json!({}),
            &["metadata.name: Required value: name or generateName is required", "metadata.namespace: Required"],
        );
        check(
            json!({"name": "A", "namespace": "b"}),
            &["metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain"],
        );
        check(
            json!({"name": "a", "namespace": "b", "labels": {"a b": "-"}}),
            &["metadata.labels: Invalid value: \"a b\": name part", "metadata.labels: Invalid value: \"-\""],
        );
        check(
            json!({"name": "a", "namespace": "b", "finalizers": ["mine"]}),
            &["metadata.finalizers: Invalid value: \"mine\": name is neither"],
        );
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        check(
            json!({"name": "a", "namespace": "b", "ownerReferences": [owner, owner]}),
            &["metadata.ownerReferences: Invalid value"],
        );
    }

    #[test]
    fn names_never_change() {
        let errors = validate_update(
            &meta(json!({"name": "b", "uid": "1"})),
            &meta(json!({"name": "a", "uid": "1"})),
            Finalizers::OfDomains,
        );
        assert_eq!(errors[0].to_string(), "metadata.name: Invalid value: \"b\": field is immutable");
        assert_eq!(errors.len(), 1);
    }
}
