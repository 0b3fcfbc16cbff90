//! CustomResourceDefinition: a kind that users add. The schemas that its objects are checked by are `custom`, serving
//! them is the API server's.

use std::collections::BTreeSet;

use json::{Value, json};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, JSONSchemaProps,
};

use crate::custom::conditions::{self, Condition};
use crate::custom::is_known_format;
use crate::features::Feature;
use crate::kind::{Gated, Generation, Kind, Target};
use crate::write::resets::Resets;

pub mod beta;
mod costs;
mod defaults;
mod expressions;
mod schema;
mod structural;
mod validation;

/// Holds a definition up until all of its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

pub const CUSTOM_RESOURCE_DEFINITION: Kind<CustomResourceDefinition> = Kind {
    unconditional_update: false,
    short: &["crd", "crds"],
    categories: &["api-extensions"],
    status: true,
    // A write of the status changes metadata all the same.
    resets: &[(Target::Status, Resets::SPEC_AND_METADATA)],
    storage_prefix: Some("apiextensions.k8s.io/customresourcedefinitions"),
    generation: Generation::CountsChangesOf("spec"),
    delete_finalizer: Some(CLEANUP),
    default: Some(default),
    prepare_create: Some(prepare_create),
    prepare_update: Some(prepare_update),
    prepare_delete: Some(prepare_delete),
    validate_create: Some(validation::validate_create),
    validate_update: Some(|new, old, target| match target {
        Target::Status => validation::validate_status(new),
        _ => validation::validate_update(new, old),
    }),
    warnings: Some(warnings),
    gated: &[Gated {
        feature: Feature::CRDObservedGenerationTracking,
        fields: &["status.observedGeneration", "status.conditions[].observedGeneration"],
    }],
    ..Kind::BASE
};

fn default(crd: &mut CustomResourceDefinition) {
    let names = &mut crd.spec.names;
    if names.singular.as_deref().unwrap_or_default().is_empty() {
        names.singular = Some(names.kind.to_lowercase());
    }
    if names.list_kind.as_deref().unwrap_or_default().is_empty() && !names.kind.is_empty() {
        names.list_kind = Some(format!("{}List", names.kind));
    }
    let none = || CustomResourceConversion { strategy: "None".to_owned(), ..Default::default() };
    let conversion = crd.spec.conversion.get_or_insert_with(none);
    let client = conversion.webhook.as_mut().and_then(|w| w.client_config.as_mut());
    if let Some(service) = client.and_then(|c| c.service.as_mut()) {
        service.port.get_or_insert(443);
    }
}

/// The name of the version that objects are stored as.
fn storage(object: &Value) -> Option<&Value> {
    let versions = object["spec"]["versions"].as_array()?;
    versions.iter().find(|version| version["storage"] == true).map(|version| &version["name"])
}

/// Limits are numbers with a fraction in their type. Whole ones are written without, as Go writes them.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(whole_numbers),
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15);
            if let Some(whole) = whole {
                *value = Value::from(whole as i64);
            }
        }
        _ => {}
    }
}

fn prepare_create(object: &mut Value) {
    whole_numbers(&mut object["spec"]);
    let stored: Vec<Value> = storage(object).cloned().into_iter().collect();
    object["status"] =
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
}

/// Every version that ever was the stored one is remembered, until somebody says that no object is left in it.
fn prepare_update(new: &mut Value, _old: &Value, target: Target) {
    if target != Target::Object {
        return;
    }
    whole_numbers(&mut new["spec"]);
    let Some(storage) = storage(new).cloned() else { return };
    let stored = &mut new["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Some(list) = stored.as_array_mut().filter(|list| !list.contains(&storage)) {
        list.push(storage);
    }
}

fn prepare_delete(object: &mut Value) {
    let now = object["metadata"]["deletionTimestamp"].as_str().unwrap_or_default().to_owned();
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    let told =
        Condition { kind: "Terminating", holds: true, reason: "InstanceDeletionPending", message: message.to_owned() };
    conditions::set(object, &told, &now);
}

/// Formats that nobody checks, where these are new.
fn warnings(new: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Vec<String> {
    let known = old.map(unknown_formats).unwrap_or_default();
    let formats = unknown_formats(new);
    let formats = formats.difference(&known).map(|format| format!("unrecognized format {format:?}"));
    formats.collect()
}

fn unknown_formats(crd: &CustomResourceDefinition) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for version in &crd.spec.versions {
        if let Some(schema) = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()) {
            schema::visit(schema, &mut |schema: &JSONSchemaProps| {
                let format = schema.format.as_deref().filter(|f| !f.is_empty() && !is_known_format(f));
                found.extend(format.filter(|_| schema.type_.as_deref() == Some("string")).map(str::to_owned));
            });
        }
    }
    found
}

#[cfg(test)]
mod tests;
