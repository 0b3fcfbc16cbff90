//! The Kubernetes v1.35 API as data and pure functions: kinds, metadata, selectors, quantities, defaults, validation,
//! table columns, patches, managed fields and codecs. This crate knows no clock, task, socket or file.

pub mod codec;
pub mod custom;
pub mod features;
pub mod kind;
pub mod kinds;
pub mod meta;
pub mod object;
pub mod openapi;
pub mod rules;
pub mod schema;
pub mod status;
pub mod validation;
pub mod write;

#[cfg(test)]
#[path = "../tests/shared_reference/mod.rs"]
mod shared_reference;

pub use json::Value;
pub use k8s_openapi;

/// The version of Kubernetes that this API is, as a literal for `concat!`.
#[macro_export]
macro_rules! kubernetes_version {
    () => {
        "v1.35.0"
    };
}

/// The version of Kubernetes that this API is.
pub const KUBERNETES_VERSION: &str = kubernetes_version!();

/// The major and the minor number of [`KUBERNETES_VERSION`].
pub fn release() -> (&'static str, &'static str) {
    let (major, rest) = KUBERNETES_VERSION.trim_start_matches('v').split_once('.').unwrap_or_default();
    (major, rest.split('.').next().unwrap_or_default())
}
