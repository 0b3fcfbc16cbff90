//! The scheduler: decides which node each waiting Pod runs on.
//!
//! [`engine`] keeps a compact cache of nodes and Pods and decides; [`run`] feeds it from the client's caches and writes its
//! decisions to the API. The plugins are values in one ordered list, [`plugins::PLUGINS`]; [`config`] says which of them a
//! profile has, and with what arguments.

pub mod args;
mod asked;
pub mod asks;
pub mod attachable;
mod batch;
mod bind;
pub mod budget;
pub mod cache;
mod candidates;
pub mod change;
pub mod claims;
mod claims_made;
pub mod class;
pub mod config;
mod consulting;
mod cycle;
mod device_events;
mod device_writes;
pub mod devices;
mod disks;
pub mod engine;
pub mod extender;
pub mod failure;
mod gang_events;
pub mod gangs;
pub mod memo;
mod metrics;
pub mod node;
pub mod node_id;
mod nominated;
mod nominating;
pub mod plugin;
pub mod plugins;
mod preemption;
pub mod profile;
pub mod queue;
pub mod rejection;
pub mod resources;
pub mod run;
mod search;
pub mod selectors;
mod sources;
pub mod tally;
pub mod topology;
mod wake;

pub use engine::{Decision, Engine, Settings};
pub use metrics::Metrics;
pub use run::run;
