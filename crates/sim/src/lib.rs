//! A whole cluster in one thread, under virtual time, from one seed: store, API server, controllers, scheduler and hollow
//! nodes, with faults between them and checkers on every change.
//!
//! All faults, delays and choices are drawn from the seed through `clock`, and time passes only when all tasks wait, so
//! an hour of cluster life takes seconds and a failure comes back with its seed: `SIM_SEED=7 cargo test -p sim`. In CI each
//! test runs one fresh seed more, which it prints; `SIM_FRESH=100` runs a hundred, and `make soak HOURS=1000` as many as fill
//! a thousand hours of cluster life.
//!
//! Checked are every change of the store (`check`: revisions without gaps, objects that stay themselves, Pods bound
//! once to nodes that hold them, rollouts within their bounds, nothing acknowledged lost in a power cut; no member of a
//! StatefulSet twice, no Job counted wrongly, no claim or volume bound twice, no volume attached to two nodes that only one may have, and none
//! detached that a node has mounted, no count beyond the bounds of an autoscaler, no
//! object beyond a quota, no time of a schedule twice, no eviction beyond a budget, nobody going in a circle), every request (`duty`: who writes what; `leaders`: of several managers only one), the events of a
//! watch (`witness`), and that a cluster left alone comes to rest.
//!
//! One build repeats a seed to the last byte of the store, the order of the standard library's hash maps included.
//! Three things would break that, and so must not decide anything here: `tokio::select!` without `biased` and the order
//! in which `tokio::sync::watch` wakes several waiters, which are random beyond our reach ([`clock::Progress`] wakes in
//! order), and the order of maps with another hasher than the standard library's.

mod agenda;
pub mod attacher;
pub mod chaos;
pub mod check;
pub mod cluster;
pub mod duty;
pub mod fault;
pub mod hollow;
mod leaders;
mod mounts;
mod objects;
mod random;
pub mod sabotage;
mod server;
pub mod stories;
pub mod usage;
mod witness;

pub use chaos::Chaos;
pub use cluster::Cluster;
pub use duty::Component;
pub use fault::{Faults, Weather};
