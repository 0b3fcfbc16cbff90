//! Namespace: a scope for names, and the unit that is deleted as a whole.

use json::{Value, json};
use k8s_openapi::api::core::v1::Namespace;

use crate::kind::cell;
use crate::kind::{Kind, Subresource, Target, Way, age, col, label, name};
use crate::meta::field_text;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};
use crate::write::resets::Resets;

const FINALIZE: Subresource =
    Subresource { name: "finalize", object: ("", "v1", "Namespace"), verbs: &["update"], way: Way::Own };

pub const NAMESPACE: Kind<Namespace> = Kind {
    short: &["ns"],
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    status: true,
    subresources: &[FINALIZE],
    resets: &[(Target::Other("finalize"), Resets::STATUS)],
    name: NameRule::Label,
    default: Some(default),
    validate: Some(validate),
    validate_status: Some(|new, _| validate_status(new)),
    prepare_create: Some(prepare_create),
    prepare_update: Some(prepare_update),
    spec_finalizers: true,
    prepare_delete: Some(|namespace| namespace["status"]["phase"] = json!("Terminating")),
    columns: &[
        name(),
        col("Status", "The status of the namespace", |n, _| {
            cell::text(n.status.as_ref().and_then(|s| s.phase.as_ref()))
        }),
        age(),
    ],
    field_labels: &[label("status.phase", |o| field_text(o, &["status", "phase"]))],
    ..Kind::BASE
};

/// Every namespace carries its own name as a label, so that selectors can name it.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

fn default(namespace: &mut Namespace) {
    if let Some(name) = namespace.metadata.name.clone().filter(|n| !n.is_empty()) {
        let labels = namespace.metadata.labels.get_or_insert_default();
        labels.insert(NAME_LABEL.to_owned(), name);
    }
    let phase = &mut namespace.status.get_or_insert_default().phase;
    if phase.as_deref().unwrap_or_default().is_empty() {
        *phase = Some("Active".to_owned());
    }
}

/// The namespace controller empties the namespace before it takes this finalizer away.
fn prepare_create(object: &mut Value) {
    // A name that was generated was not there for the defaults.
    let name = object["metadata"]["name"].clone();
    if name.is_string() {
        object["metadata"]["labels"][NAME_LABEL] = name;
    }
    object["status"] = json!({"phase": "Active"});
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    let finalizers = &mut object["spec"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|f| f == "kubernetes") => {}
        Some(list) => list.push(Value::from("kubernetes")),
        None => *finalizers = json!(["kubernetes"]),
    }
}

/// Only `finalize` changes the finalizers of the spec, and nothing else.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    let kept = match target {
        Target::Object => "spec",
        Target::Other(_) => "status",
        Target::Status => return,
    };
    if let (Some(map), Some(part)) = (new.as_object_mut(), old.get(kept)) {
        map.insert(kept.to_owned(), part.clone());
    }
}

fn validate(namespace: &Namespace) -> Errors {
    let path = Path::new("spec").child("finalizers");
    let list = namespace.spec.iter().flat_map(|s| s.finalizers.iter().flatten());
    let mut errors = Errors::new();
    for finalizer in list {
        errors.extend(crate::validation::object_meta::invalid(&path, finalizer, names::qualified_name(finalizer)));
        if !finalizer.contains('/') && finalizer != "kubernetes" {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path, finalizer, detail));
        }
    }
    errors
}

fn validate_status(new: &Value) -> Errors {
    let phase = field_text(new, &["status", "phase"]);
    let wanted = if crate::meta::deletion_timestamp(new).is_some() { "Terminating" } else { "Active" };
    if phase == wanted {
        return Errors::new();
    }
    let path = Path::new("status").child("Phase");
    let detail = match wanted {
        "Active" => "may only be 'Active' if `deletionTimestamp` is empty",
        _ => "may only be 'Terminating' if `deletionTimestamp` is not empty",
    };
    vec![FieldError::invalid(&path, &phase, detail)]
}
