//! Controllers of nodes, and of Pods as far as their node decides. The work of a node itself is not here.

pub mod conditions;
pub mod ipam;
pub mod lifecycle;
pub mod on_node;
pub mod taint_eviction;
pub mod ttl;
pub mod zones;
