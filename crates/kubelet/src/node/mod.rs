//! The node itself: the Node object and its heartbeat, what the machine is, and its tree of cgroups. Nothing about one Pod is here.

pub mod capacity;
pub mod cgroup;
mod changes;
pub mod counters;
pub mod declared;
pub mod disk_counts;
mod engine;
pub mod fit;
pub mod huge_pages;
pub mod machine;
pub mod network;
pub mod open_files;
pub mod register;
pub mod reserved;
pub mod stalls;
