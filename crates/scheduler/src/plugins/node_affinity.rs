//! NodeAffinity: the Pod's node selector and required node affinity hold; preferred node affinity by its weights.

use api::rules::node_affinity::{matches, term_matches};

use crate::{
    class::Class,
    node::{Node, NodeId},
    plugin::{Change, Context, Filter, Plugin, normalise},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeAffinity",
    weight: 2,
    concerns: |c| {
        !c.class.node_selector.is_empty() || c.class.required_nodes.is_some() || !c.class.preferred_nodes.is_empty()
    },
    filter: Filter::Fixed { fits, reason: "node(s) didn't match Pod's node affinity/selector" },
    score: Some(score),
    retry_on: &[Change::NodeAdded, Change::NodeLabels],
    ..Plugin::NONE
};

pub fn fits(class: &Class, node: &Node) -> bool {
    let labels = &node.offer.labels;
    class.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        && class.required_nodes.as_ref().is_none_or(|selector| matches(selector, labels, &node.name))
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    if context.class.preferred_nodes.is_empty() {
        return;
    }
    for (score, id) in scores.iter_mut().zip(nodes) {
        let node = context.picture.node(*id);
        let preferred = context.class.preferred_nodes.iter();
        let taking = preferred.filter(|(_, term)| term_matches(term, &node.offer.labels, &node.name));
        *score = taking.map(|(weight, _)| weight).sum();
    }
    normalise(scores, false);
}
