//! When the node runs short of something: what is measured, and which Pod has to go.

pub mod evict;
pub mod pressure;
