//! One Pod on this node, from admission to removal: what is wanted, what runs, what to do next, doing it, and the status.
//! What is shared by all Pods of the node is not here.

pub mod act;
pub mod admit;
pub mod ask;
pub mod backoff;
pub mod decide;
pub mod desired;
pub mod downward;
pub mod env;
pub mod follow;
pub mod hardening;
pub mod hook;
pub mod kill;
pub mod memory;
pub mod mounts;
pub mod probe;
pub mod render;
pub mod report;
pub mod resources;
pub mod running;
pub mod start;
pub mod status;
pub mod waiting;
pub mod worker;
pub mod workers;

#[cfg(test)]
pub mod fixture;
