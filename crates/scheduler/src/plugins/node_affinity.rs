//! NodeAffinity: the Pod's node selector and required node affinity hold; preferred node affinity by its weights.

use api::rules::node_affinity::term_matches;

use crate::{
    change::Change,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, normalise},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeAffinity",
    weight: 2,
    concerns: |c| {
        !c.class.node_selector.is_empty() || c.class.required_nodes.is_some() || !c.class.preferred_nodes.is_empty()
    },
    only_nodes: |class| class.only_nodes.as_ref(),
    filter: Filter::Fixed { fits: Node::is_selected_by, reason: "node(s) didn't match Pod's node affinity/selector" },
    score: Some(score),
    retry_on: &[Change::NodeAdded, Change::NodeLabels],
    ..Plugin::NONE
};

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    if context.class.preferred_nodes.is_empty() {
        return;
    }
    for (score, id) in scores.iter_mut().zip(nodes) {
        let node = context.cache.node(*id);
        let preferred = context.class.preferred_nodes.iter();
        let taking = preferred.filter(|(_, term)| term_matches(term, &node.facts.labels, &node.name));
        *score = taking.map(|(weight, _)| weight).sum();
    }
    normalise(scores, false);
}
