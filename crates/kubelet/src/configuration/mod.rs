//! A KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`): which of its fields do something here, and what they are set to; and
//! the configuration of the programs that know credentials of registries. Reading files is the caller's.

pub mod affinity;
pub mod credential_providers;
mod document;
pub mod fields;
pub mod pulls;
pub mod settings;
pub mod shutdown;
pub mod time;

pub use document::Document;
