//! Memory that runs out, as the kernel's log tells of it: of the machine, which is an event of the node, and of cgroups, which are
//! counted. Upstream counterpart: pkg/kubelet/oom.

pub mod counts;
mod parser;
pub mod watcher;
