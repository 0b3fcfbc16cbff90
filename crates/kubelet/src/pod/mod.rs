//! One Pod on this node, from admission to removal: what is desired, what runs, what to do next, doing it, and the status.
//! State that all Pods of the node share is not here, and neither is what a spec means to the engine ([`spec`]).

pub mod act;
pub mod admit;
pub mod allocation;
pub mod apply;
pub mod backoff;
pub mod decide;
pub mod desired;
pub mod follow;
pub mod health;
pub mod kill;
pub mod memory;
pub mod preempt;
pub mod probes;
pub mod report;
pub mod resize;
pub mod resize_event;
pub mod restart;
pub mod running;
pub mod spec;
pub mod start;
pub mod status;
pub mod take;
pub mod waiting;
pub mod worker;
pub mod workers;

#[cfg(test)]
pub mod fixture;
