//! NodeUnschedulable: no Pod on a cordoned node, unless it tolerates the taint that stands for the cordon.

use api::rules::taint;
use k8s_openapi::api::core::v1::Taint;

use crate::{
    change::Change,
    class::Class,
    node::Node,
    plugin::{Filter, Plugin},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    filter: Filter::Fixed { fits, reason: "node(s) were unschedulable" },
    retry_on: &[Change::NodeAdded, Change::NodeSchedulable],
    ..Plugin::NONE
};

fn fits(node: &Node, class: &Class) -> bool {
    let cordon = || Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: taint::NO_SCHEDULE.to_owned(),
        ..Taint::default()
    };
    !node.facts.unschedulable || taint::tolerated(&class.tolerations, &cordon())
}
