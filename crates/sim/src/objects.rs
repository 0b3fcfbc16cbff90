//! The questions that several checkers ask of objects.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// The UID of the controller of an object.
pub fn owner(meta: &ObjectMeta) -> Option<&str> {
    meta.owner_references.iter().flatten().find(|o| o.controller == Some(true)).map(|o| o.uid.as_str())
}

pub fn serves(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !api::rules::pod::is_terminal(pod) && api::rules::pod::is_ready(pod)
}

/// Keeps what is stored under a key.
pub fn set<T>(held: &mut BTreeMap<String, T>, key: String, new: Option<T>) {
    match new {
        Some(new) => _ = held.insert(key, new),
        None => _ = held.remove(&key),
    }
}
