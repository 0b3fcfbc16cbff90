//! Questions to a container that runs: probes on their schedule, lifecycle hooks, and how either asks. The consequence of
//! an answer is not here but with the Pod's worker.

pub mod ask;
pub mod counts;
pub mod findings;
pub mod hook;
pub mod probe;
