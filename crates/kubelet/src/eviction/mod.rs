//! When the node runs short of something: what is measured, and which Pod has to go. How a Pod ends is not here.

pub mod evict;
pub mod limits;
mod local_storage;
pub mod pressure;
