//! The controllers, one file each, in folders by what they are about. [`run`] starts them.
//!
//! Each is a `plan` without side effects that the runner in the crate `controller` carries out. The garbage collector
//! ([`garbage`]) has plans too, but not that runner.

mod admission_policy;
pub mod api_server;
pub mod autoscaling;
pub mod bootstrap;
pub mod certificates;
mod devices;
mod discovery;
pub mod endpoints;
pub mod garbage;
pub mod leader_election;
mod names;
pub mod namespace;
pub mod node;
pub mod quota;
mod role_aggregation;
mod run;
mod selector_text;
pub mod service_account;
mod service_cidr;
pub mod storage;
mod storage_migration;
pub mod workloads;

/// The metrics of the queues of all controllers of the process, as lines of a page.
pub use controller::metrics::render as queue_metrics;
pub use run::{Options, parse as parse_name, run};
