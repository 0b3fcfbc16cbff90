//! Controlling owners: how one is named, and how an owner adopts and releases objects.

use std::sync::Arc;

use client::Kind;
use json::json;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::plan::{Plan, Write};

/// The owner reference of the object that manages this one.
pub fn controller_of<K: Kind>(object: &K) -> Option<&OwnerReference> {
    object.metadata().owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// The reference by which `owner` controls what it creates.
pub fn owner_reference<K: Kind>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: owner.metadata().name.clone().unwrap_or_default(),
        uid: owner.metadata().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Of the objects that were found for `owner` those that are its own after the plan: it releases what it controls and no
/// longer selects, and adopts what it selects and nobody controls. An owner that is being deleted does neither.
pub fn claim<'a, O: Kind, C: Kind>(
    owner: &O,
    found: &'a [Arc<C>],
    selects: impl Fn(&C) -> bool,
    plan: &mut Plan,
) -> Vec<&'a C> {
    claim_with(owner, found, selects, &[], plan)
}

/// As [`claim`], of objects that carry these finalizers of the owner's for as long as they are its own.
pub fn claim_with<'a, O: Kind, C: Kind>(
    owner: &O,
    found: &'a [Arc<C>],
    selects: impl Fn(&C) -> bool,
    finalizers: &[&str],
    plan: &mut Plan,
) -> Vec<&'a C> {
    let lives = owner.metadata().deletion_timestamp.is_none();
    let mut claimed = Vec::new();
    for object in found.iter().map(Arc::as_ref) {
        match (controller_of(object).is_some(), selects(object)) {
            (true, true) => claimed.push(object),
            (true, false) if lives => {
                plan.step(release(owner, object, finalizers));
            }
            (false, true) if lives && object.metadata().deletion_timestamp.is_none() => {
                plan.step(adopt(owner, object, finalizers));
                claimed.push(object);
            }
            _ => {}
        }
    }
    claimed
}

/// Makes `owner` the controller of an object that has none. An object that is gone is fine.
fn adopt<O: Kind, C: Kind>(owner: &O, object: &C, finalizers: &[&str]) -> Write {
    let mut metadata = json!({"ownerReferences": [owner_reference(owner)], "uid": object.metadata().uid});
    if !finalizers.is_empty() {
        metadata["finalizers"] = json!(finalizers);
    }
    Write::strategic_patch(object, "", json!({"metadata": metadata})).tolerate(&["NotFound"])
}

/// Gives up an object that `owner` controls. An object that is gone, or whose name another one has now, is fine.
fn release<O: Kind, C: Kind>(owner: &O, object: &C, finalizers: &[&str]) -> Write {
    let gone = json!({"$patch": "delete", "uid": owner.metadata().uid});
    let mut metadata = json!({"ownerReferences": [gone], "uid": object.metadata().uid});
    if !finalizers.is_empty() {
        metadata["$deleteFromPrimitiveList/finalizers"] = json!(finalizers);
    }
    Write::strategic_patch(object, "", json!({"metadata": metadata})).tolerate(&["NotFound", "Invalid"])
}
