//! A KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`): which of its fields do something here, and what they are set to.
//! Reading files is the caller's.

mod document;
pub mod fields;
pub mod settings;
mod time;

pub use document::Document;
