//! Processors and memory that containers have for themselves, and the NUMA nodes that all of a container's resources come from.
//!
//! When a Pod is let in, [`allocate`] asks of each resource which nodes it could come from ([`hints`]), finds the nodes that suit all of
//! them ([`merge`]), and gives processors ([`cpus`]) and memory ([`memory`]) there. That is written down ([`checkpoint`]) before the Pod
//! begins. Containers without processors of their own share what is left ([`reconcile`]).
//! Upstream counterpart: pkg/kubelet/cm, its folders cpumanager, memorymanager and topologymanager.

pub mod allocate;
mod checkpoint;
mod checksum;
mod counts;
mod cpus;
mod cpuset;
pub mod hints;
pub mod memory;
mod merge;
mod options;
pub mod reconcile;
pub mod requests;
pub mod sysfs;
pub mod topology;

/// A machine for tests of whole kubelets.
#[cfg(test)]
pub mod fixture {
    pub use super::{
        sysfs::fixture::write,
        topology::{
            Topology,
            machines::{dual_socket_ht, single_socket_ht},
        },
    };
}
