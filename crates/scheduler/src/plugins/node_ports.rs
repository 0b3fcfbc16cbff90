//! NodePorts: the host ports that the Pod wants are free on the node.

use api::rules::host_port::HostPort;

use crate::{
    change::Change,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin},
    rejection::Rejection,
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodePorts",
    concerns: |c| !c.class.ports.is_empty(),
    filter: Filter::Live(filter),
    retry_on: &[Change::NodeAdded, Change::PodDeleted],
    ..Plugin::NONE
};

fn filter(context: &Context, _: NodeId, node: &Node) -> Result<(), Rejection> {
    let taken = |wanted: &HostPort| node.ports.iter().any(|(used, _)| wanted.conflicts(used));
    if context.class.ports.iter().any(taken) {
        return Err(Rejection::resolvable("node(s) didn't have free ports for the requested pod ports"));
    }
    Ok(())
}
