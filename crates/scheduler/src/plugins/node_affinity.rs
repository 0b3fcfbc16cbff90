//! NodeAffinity: the Pod's node selector and required node affinity hold, and what the profile adds to them; preferred node
//! affinity by its weights.

use api::rules::node_affinity::{matches, term_matches};

use crate::{
    change::Change,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, ScoresBy, normalise},
    rejection::Text,
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeAffinity",
    weight: 2,
    concerns: |c| {
        !c.class.node_selector.is_empty()
            || c.class.required_nodes.is_some()
            || !c.class.preferred_nodes.is_empty()
            || c.args.added_affinity.is_some()
    },
    only_nodes: |class| class.only_nodes.as_ref(),
    admit: Some(admit),
    filter: Filter::Fixed {
        refuses,
        reasons: &[
            "node(s) didn't match Pod's node affinity/selector",
            "node(s) didn't match scheduler-enforced node affinity",
        ],
    },
    score: Some(score),
    scores_by: ScoresBy::Facts,
    retry_on: &[Change::NodeAdded, Change::NodeLabels],
    ..Plugin::NONE
};

/// Terms of which each names nodes, but none that all its conditions name, leave no node at all.
fn admit(context: &Context) -> Result<(), Text> {
    match &context.class.only_nodes {
        Some(names) if names.is_empty() => Err(Text::Static("pod affinity terms conflict")),
        _ => Ok(()),
    }
}

fn refuses(context: &Context, node: &Node) -> Option<u8> {
    let added = context.args.added_affinity.as_ref();
    let enforced = added.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    if enforced.is_some_and(|selector| !matches(selector, &node.facts.labels, &node.name)) {
        return Some(1);
    }
    (!node.is_selected_by(context.class)).then_some(0)
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    let added = context.args.added_affinity.as_ref();
    let added = added.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let added = || added.into_iter().flatten().map(|p| (i64::from(p.weight), &p.preference));
    let own = || context.class.preferred_nodes.iter().map(|(weight, term)| (*weight, term));
    if own().chain(added()).next().is_none() {
        return;
    }
    for (score, id) in scores.iter_mut().zip(nodes) {
        let node = context.cache.node(*id);
        let taking = own().chain(added()).filter(|(_, term)| term_matches(term, &node.facts.labels, &node.name));
        *score = taking.map(|(weight, _)| weight).sum();
    }
    normalise(scores, false);
}
