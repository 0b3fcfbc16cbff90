//! Who controls whom, and how that is taken and given up.

use client::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::plan::Write;

/// The owner reference of the object that manages this one.
pub fn controller_of<K: Kind>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// The reference by which `owner` controls what it creates.
pub fn owner_reference<K: Kind>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Makes `owner` the controller of an object that has none.
pub fn adopt<O: Kind, C: Kind>(owner: &O, object: &C) -> Write {
    let patch = json!({"metadata": {"ownerReferences": [owner_reference(owner)], "uid": object.meta().uid}});
    Write::strategic_patch(object, "", patch).tolerate(&["NotFound"])
}

/// Gives up an object that `owner` controls. One that is gone, or has become another, is fine.
pub fn release<O: Kind, C: Kind>(owner: &O, object: &C) -> Write {
    let gone = json!({"$patch": "delete", "uid": owner.meta().uid});
    let patch = json!({"metadata": {"ownerReferences": [gone], "uid": object.meta().uid}});
    Write::strategic_patch(object, "", patch).tolerate(&["NotFound", "Invalid"])
}
