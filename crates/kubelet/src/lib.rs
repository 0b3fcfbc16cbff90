//! The kubelet.

pub mod downward;
pub mod volumes;
