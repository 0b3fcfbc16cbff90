//! The container engine: a client for CRI v1, the containerd that skiff runs for itself, and image files built without
//! a registry.
//!
//! [`Runtime`] is all that the kubelet knows of an engine. [`Cri`] speaks it to containerd or CRI-O over a unix socket,
//! [`fake::Fake`] keeps it in memory for tests.

pub mod archives;
pub mod container;
pub mod containerd;
pub mod cri;
pub mod engine;
mod events;
pub mod fake;
pub mod grpc;
pub mod grpc_health;
pub mod image_file;
pub mod images;
mod pause;
pub mod reference;
pub mod services;
pub mod stats;
pub mod traces;

pub use cri::Cri;
pub use engine::{CgroupDriver, Credentials, Error, Result, Runtime};
pub use k8s_cri::v1 as cri_api;
