//! Finding the EndpointSlices of a Service: the label that ties them, and the cache index over it.

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::cache::{Cache, Key};

/// The label by which an EndpointSlice names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The name of the index that [`index_by_service`] adds; its values are `namespace/name`.
pub const BY_SERVICE: &str = "service";

/// The Service that a slice belongs to.
pub fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name.clone()))
}

/// Makes `cache.by_index(BY_SERVICE, "namespace/name")` give a Service's slices.
pub fn index_by_service(cache: &Cache<EndpointSlice>) {
    cache.add_index(BY_SERVICE, |slice| service_of(slice).map(|k| k.to_string()).into_iter().collect());
}
