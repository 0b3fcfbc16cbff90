//! Controllers of nodes, and of Pods as far as their node decides. What a node does itself is not here.

pub mod conditions;
pub mod ipam;
pub mod lifecycle;
pub mod on_node;
pub mod taint_eviction;
pub mod ttl;
pub mod zones;
