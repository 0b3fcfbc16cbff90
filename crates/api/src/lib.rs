//! The Kubernetes v1.35 API as data and pure functions: kinds, metadata, selectors, quantities, defaults, validation,
//! table columns, patches, managed fields and codecs. This crate knows no clock, task, socket or file.

pub mod apply;
pub mod bootstrap_token;
pub mod bounds;
pub mod certificate_request;
pub mod decode;
pub mod field;
pub mod field_set;
pub mod hash;
pub mod host_port;
pub mod ip;
pub mod kind;
pub mod kinds;
pub mod managed_fields;
pub mod meta;
pub mod metrics_text;
pub mod names;
pub mod node_affinity;
pub mod object_meta;
pub mod openapi;
pub mod patch;
pub mod pod;
pub mod protobuf;
pub mod quantity;
pub mod registry;
pub mod schema;
pub mod selector;
pub mod status;
pub mod structural;
pub mod sysctl;
pub mod table;
pub mod taint;
pub mod url;

mod erase;
mod internal_form;
mod line_diff;
mod selector_text;
mod typed;

pub use k8s_openapi;
pub use serde_json::Value;
