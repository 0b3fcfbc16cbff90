//! The plugins, one file each, under upstream's names, and the one ordered list of them.
//!
//! Upstream's PrioritySort, SchedulingGates and DefaultBinder are not questions about a node: the queue orders and
//! gates Pods (`queue`), and `bind` writes the binding. NodeName has nothing to filter here: a Pod that names its node
//! never enters the queue.

pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod pod_topology_spread;
pub mod taint_toleration;

use crate::plugin::Plugin;

/// All plugins, in the order in which their filters are asked.
pub const PLUGINS: &[Plugin] = &[
    node_unschedulable::PLUGIN,
    taint_toleration::PLUGIN,
    node_affinity::PLUGIN,
    node_ports::PLUGIN,
    node_resources_fit::PLUGIN,
    pod_topology_spread::PLUGIN,
    inter_pod_affinity::PLUGIN,
    node_resources_balanced_allocation::PLUGIN,
    image_locality::PLUGIN,
];
