//! Programs beside the kubelet that serve its Pods, each over a socket of its own: how they say that they are there
//! ([`registry`]), and what a sort of them is ([`sort`]). Questions to a sort of plugin are where it is used.

pub mod messages;
pub mod registry;
pub mod sort;
