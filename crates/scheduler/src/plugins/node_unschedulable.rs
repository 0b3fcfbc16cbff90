//! NodeUnschedulable: no Pod on a cordoned node, unless it tolerates the taint that stands for the cordon.

use api::rules::taint;
use k8s_openapi::api::core::v1::Taint;

use crate::{
    change::Change,
    node::Node,
    plugin::{Context, Filter, Plugin},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    filter: Filter::Fixed { refuses, reasons: &["node(s) were unschedulable"] },
    retry_on: &[Change::NodeAdded, Change::NodeSchedulable],
    ..Plugin::NONE
};

fn refuses(context: &Context, node: &Node) -> Option<u8> {
    let cordon = || Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: taint::NO_SCHEDULE.to_owned(),
        ..Taint::default()
    };
    (node.facts.unschedulable && !taint::tolerated(&context.class.tolerations, &cordon())).then_some(0)
}
