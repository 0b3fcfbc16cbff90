//! The node itself: the Node object and its heartbeat, what the machine is, and its tree of cgroups. Nothing about one Pod is here.

pub mod capacity;
pub mod cgroup;
pub mod declared;
pub mod machine;
pub mod register;
