//! The Pods of a node, for those who follow nodes.

use client::{Cache, Caches, Key};
use k8s_openapi::api::core::v1::Pod;

const BY_NODE: &str = "node";

/// The node that the Pod is bound to, or nothing.
pub fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("")
}

/// Makes [`pods`] possible.
pub fn index(cache: &Cache<Pod>) {
    cache.add_index(BY_NODE, |pod| {
        Some(node_of(pod)).filter(|node| !node.is_empty()).map(str::to_owned).into_iter().collect()
    });
}

pub fn pods(caches: &Caches, node: &str) -> Vec<std::sync::Arc<Pod>> {
    caches.of::<Pod>().by_index(BY_NODE, node)
}

pub fn keys(caches: &Caches, node: &str) -> Vec<Key> {
    pods(caches, node).iter().map(|p| Key::of(&**p)).collect()
}
