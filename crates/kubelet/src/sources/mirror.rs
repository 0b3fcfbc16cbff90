//! Mirror Pods: the objects by which the API shows static Pods. They are made and deleted here, never changed.

use std::time::Duration;

use client::{Api, rest::DeleteOptions};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

/// The pause before another try.
const RETRY: Duration = Duration::from_secs(5);

/// Makes the mirror of a static Pod, and tries until it is there.
pub async fn create(client: client::Client, node_name: &str, pod: &Pod) {
    let mut mirror = pod.clone();
    let hash = pod.metadata.annotations.as_ref().and_then(|a| a.get(api::rules::pod::HASH_ANNOTATION).cloned());
    let notes = mirror.metadata.annotations.get_or_insert_default();
    notes.insert(api::rules::pod::MIRROR_ANNOTATION.to_owned(), hash.unwrap_or_default());
    mirror.metadata.uid = None;
    let nodes: Api<Node> = Api::all(client.clone());
    let api: Api<Pod> = Api::namespaced(client, pod.metadata.namespace.as_deref().unwrap_or("default"));
    loop {
        let owner = nodes.get(node_name).await.ok().and_then(|n| n.metadata.uid);
        mirror.metadata.owner_references = owner.map(|uid| {
            vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node_name.to_owned(),
                uid,
                controller: Some(true),
                ..Default::default()
            }]
        });
        match api.create(&mirror).await {
            Ok(_) => return,
            Err(client::Error::Api(s)) if s.code == 409 => return,
            Err(error) => tracing::warn!(%error, "a mirror Pod could not be made, trying again"),
        }
        clock::sleep(RETRY).await;
    }
}

/// Deletes a mirror, and tries until it has gone.
pub async fn delete(client: client::Client, mirror: &Pod) {
    let api: Api<Pod> = Api::namespaced(client, mirror.metadata.namespace.as_deref().unwrap_or("default"));
    // Another mirror may have its name by now.
    let uid = mirror.metadata.uid.clone();
    let options = DeleteOptions { uid, grace_seconds: Some(0), ..DeleteOptions::default() };
    loop {
        match api.delete(mirror.metadata.name.as_deref().unwrap_or_default(), options.clone()).await {
            Ok(_) => return,
            Err(client::Error::Api(s)) if [404, 409].contains(&s.code) => return,
            Err(error) => tracing::warn!(%error, "a mirror Pod could not be deleted, trying again"),
        }
        clock::sleep(RETRY).await;
    }
}
