//! The plugins, one file each, under upstream's names, and the one ordered list of them.
//!
//! Upstream's PrioritySort and DefaultBinder are not questions about a node or a Pod: the queue orders Pods (`queue`), and
//! `bind` writes the binding. NodeName has nothing to filter here: a Pod that names its node never enters the queue.

pub mod default_preemption;
pub mod dynamic_resources;
pub mod gang_scheduling;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod scheduling_gates;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

use crate::{extender, plugin::Plugin};

/// All plugins, in the order in which they are asked.
pub const PLUGINS: &[Plugin] = &[
    scheduling_gates::PLUGIN,
    node_unschedulable::PLUGIN,
    taint_toleration::PLUGIN,
    node_affinity::PLUGIN,
    node_ports::PLUGIN,
    node_resources_fit::PLUGIN,
    volume_restrictions::PLUGIN,
    node_volume_limits::PLUGIN,
    volume_binding::PLUGIN,
    volume_zone::PLUGIN,
    pod_topology_spread::PLUGIN,
    inter_pod_affinity::PLUGIN,
    dynamic_resources::PLUGIN,
    default_preemption::PLUGIN,
    node_resources_balanced_allocation::PLUGIN,
    image_locality::PLUGIN,
    node_declared_features::PLUGIN,
    gang_scheduling::PLUGIN,
    extender::PLUGIN,
];
