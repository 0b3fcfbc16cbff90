//! The Kubernetes v1.35 API as data and pure functions: kinds, metadata, selectors, quantities, defaults, validation,
//! table columns, patches, managed fields and codecs. This crate knows no clock, task, socket or file.

pub mod field;
pub mod kind;
pub mod meta;
pub mod status;

pub use k8s_openapi;
pub use serde_json::Value;
