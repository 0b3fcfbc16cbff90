//! Controllers come to rest: from whatever state a history of changes, failures and deaths between two writes leaves
//! behind, each brings about what is asked for and then writes nothing more. And of several processes one does the work.

mod admission_policies;
mod attachments;
#[path = "../common/mod.rs"]
mod common;
mod daemon_sets;
mod device_taints;
mod election;
mod jobs;
mod quotas;
mod recycling;
mod replicas;
mod service_ranges;
mod stateful_sets;
mod switched_on;
mod topology_hints;
mod volumes;
mod world;
