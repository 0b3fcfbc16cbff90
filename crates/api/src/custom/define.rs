//! From a stored CustomResourceDefinition to the definitions of the versions that it serves.

use std::cmp::Ordering;
use std::sync::Arc;

use json::Value;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition;

use super::conversion::Conversion;
use super::head::{Head, Version as Part};
use super::json_path::JsonPath;
use super::strategy::{Column, Custom};
use super::version::{Stored, Version};
use crate::kind::webhook::Webhook;
use crate::kind::{
    CREATED_ABOUT, ColumnHeader, CustomSchema, Definition, FieldValue, NAME_ABOUT, Scale, Scope, SelectableField,
};
use crate::rules::version::compare as compare_versions;
use crate::schema::Type;

/// In the order in which discovery tells them of custom kinds.
const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// The definitions of what is served, of a kind that was defined at a revision.
pub fn definitions(head: &Head, stored: &Stored, defined: u64) -> Vec<Arc<Definition>> {
    all(head, stored, defined, |part| part.served)
}

/// The kind as its objects are stored, served or not.
pub fn stored_definition(head: &Head, stored: &Stored) -> Option<Arc<Definition>> {
    all(head, stored, 0, |part| part.storage).pop()
}

fn all(head: &Head, stored: &Stored, defined: u64, wanted: impl Fn(&Part) -> bool) -> Vec<Arc<Definition>> {
    let parts = &head.spec.versions;
    let versions: Arc<[_]> = parts.iter().map(|part| Arc::new(Version::new(stored.clone(), &part.name))).collect();
    let Some(storage) = parts.iter().position(|part| part.storage) else { return Vec::new() };
    let webhook = Conversion::of(head, &versions).map(|conversion| Arc::new(conversion) as Arc<dyn Webhook>);
    let wanted = parts.iter().enumerate().filter(|(_, part)| wanted(part));
    let define = |(at, _): (usize, &Part)| {
        let mut definition = definition(head, (at, storage), &versions, defined);
        definition.webhook.clone_from(&webhook);
        Arc::new(definition)
    };
    wanted.map(define).collect()
}

/// The definition of the version at a place, of a kind that is stored as the one at another.
fn definition(head: &Head, (at, storage): (usize, usize), versions: &Arc<[Arc<Version>]>, defined: u64) -> Definition {
    let (part, version, storage) = (&head.spec.versions[at], versions[at].clone(), &versions[storage]);
    let group = head.spec.group.clone();
    let names = head.status.accepted_names.as_ref().unwrap_or(&head.spec.names);
    let scope = if head.spec.scope == "Namespaced" { Scope::Namespaced } else { Scope::Cluster };
    let scale = part.subresources.scale.as_ref().map(|scale| {
        let path = |path: &str| path.trim_start_matches('.').to_owned();
        let selector = scale.label_selector_path.as_deref().filter(|path| !path.is_empty()).map(path);
        Scale { wanted: path(&scale.spec_replicas_path), current: path(&scale.status_replicas_path), selector }
    });
    let status = part.subresources.status.is_some();
    let columns = columns(&part.additional_printer_columns);
    let strategy = Custom {
        version: version.clone(),
        versions: versions.clone(),
        storage: storage.clone(),
        scope,
        status,
        scale: scale.clone(),
        columns: columns
            .iter()
            .map(|c| Column { kind: c.type_.clone(), path: JsonPath::parse(&c.json_path) })
            .collect(),
    };
    let (kind, read) = (names.kind.clone(), version.clone());
    let ty = Type::later(move || read.ty(&kind));
    let reversed: Vec<&str> = group.rsplit('.').collect();
    let list_kind = names.list_kind.clone().unwrap_or_else(|| format!("{}List", names.kind));
    Definition {
        version: part.name.clone(),
        kind: names.kind.clone(),
        list_kind,
        plural: names.plural.clone(),
        singular: names.singular.clone().unwrap_or_default(),
        short_names: names.short_names.clone().unwrap_or_default(),
        categories: names.categories.clone().unwrap_or_default(),
        verbs: VERBS.map(str::to_owned).to_vec(),
        status,
        terminating: head.has("Terminating"),
        deprecated: part.deprecated.then(|| deprecation(head, part)),
        defined,
        generation: head.metadata.generation.try_into().unwrap_or_default(),
        scale,
        schema: format!("{}.{}.{}", reversed.join("."), part.name, names.kind),
        open_api: Some(Arc::new(CustomSchema {
            fingerprint: format!("{}/{}/{}", head.metadata.uid, head.metadata.generation, names.kind),
            read: Box::new(move || version.read::<Value>()),
        })),
        storage: (group.clone(), storage.name().to_owned()),
        storage_prefix: format!("{group}/{}", names.plural),
        columns: headers(&columns),
        selectable: part.selectable_fields.iter().map(|field| selectable(&field.json_path)).collect(),
        unknown_label: "field label not supported: LABEL".to_owned(),
        group,
        ..Definition::bare(scope, ty, Arc::new(strategy))
    }
}

fn selectable(path: &str) -> SelectableField {
    let label = path.trim_start_matches('.').to_owned();
    let value = FieldValue::At(label.split('.').map(str::to_owned).collect());
    SelectableField { label, value }
}

/// The columns that are asked for, or the age.
fn columns(own: &[CustomResourceColumnDefinition]) -> Vec<CustomResourceColumnDefinition> {
    if !own.is_empty() {
        return own.to_vec();
    }
    vec![CustomResourceColumnDefinition {
        name: "Age".to_owned(),
        type_: "date".to_owned(),
        description: Some(CREATED_ABOUT.to_owned()),
        json_path: ".metadata.creationTimestamp".to_owned(),
        ..Default::default()
    }]
}

fn headers(columns: &[CustomResourceColumnDefinition]) -> Vec<ColumnHeader> {
    let name = ColumnHeader {
        name: "Name".to_owned(),
        kind: "string".to_owned(),
        format: "name".to_owned(),
        priority: 0,
        description: NAME_ABOUT.to_owned(),
    };
    let header = |column: &CustomResourceColumnDefinition| {
        let usual = || format!("Custom resource definition column (in JSONPath format): {}", column.json_path);
        ColumnHeader {
            name: column.name.clone(),
            kind: column.type_.clone(),
            format: column.format.clone().unwrap_or_default(),
            priority: column.priority.unwrap_or_default(),
            description: column.description.clone().filter(|text| !text.is_empty()).unwrap_or_else(usual),
        }
    };
    std::iter::once(name).chain(columns.iter().map(header)).collect()
}

/// The warning of a version that should not be used any more.
fn deprecation(head: &Head, part: &Part) -> String {
    if let Some(own) = &part.deprecation_warning {
        return own.clone();
    }
    let (group, kind) = (&head.spec.group, &head.spec.names.kind);
    let newer = head.spec.versions.iter().filter(|other| {
        other.served && !other.deprecated && compare_versions(&other.name, &part.name) == Ordering::Greater
    });
    let best = newer.max_by(|a, b| compare_versions(&a.name, &b.name));
    let instead = best.map(|best| format!("; use {group}/{} {kind}", best.name)).unwrap_or_default();
    format!("{group}/{} {kind} is deprecated{instead}", part.name)
}
