//! The engine's decisions where more than the nodes' own resources counts: volumes, extenders, the Pods before.

#[allow(dead_code, reason = "the other tables make their engines by it")]
#[path = "../text/mod.rs"]
mod text;

mod batches;
mod devices;
mod extenders;
mod partitions;
mod switched_on;
mod volume_limits;
