//! Pods from a template, as every workload controller makes them, and the writes that make and delete them.

use client::rest::DeleteOptions;
use controller::{Note, Write};
use k8s_openapi::{
    api::core::v1::{Pod, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

/// A Pod whose name the server completes: `owner-xxxxx`.
pub fn instantiate(template: &PodTemplateSpec, parent: &ObjectMeta, owner: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", parent.name.as_deref().unwrap_or(""))),
            namespace: parent.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creates a Pod, and tells so.
pub fn create(pod: &Pod) -> Write {
    Write::create(pod)
        .on_success(Note::normal("SuccessfulCreate", "Created pod: {name}"))
        .on_failure(Note::warning("FailedCreate", "Error creating: {error}"))
}

/// Deletes a Pod, and tells so.
pub fn delete(pod: &Pod) -> Write {
    delete_with(pod, DeleteOptions::default())
}

/// Deletes a Pod with these options, and tells so.
pub fn delete_with(pod: &Pod, options: DeleteOptions) -> Write {
    Write::delete_with(pod, options)
        .on_success(Note::normal("SuccessfulDelete", "Deleted pod: {name}"))
        .on_failure(Note::warning("FailedDelete", "Error deleting: {error}"))
}
