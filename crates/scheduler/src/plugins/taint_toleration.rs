//! TaintToleration: no Pod on a node whose hard taints it does not tolerate; prefer few soft ones.

use api::rules::taint;

use crate::{
    change::Change,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, ScoresBy, normalise},
};

pub const PLUGIN: Plugin = Plugin {
    name: "TaintToleration",
    weight: 3,
    filter: Filter::Fixed {
        refuses: |context, node| (!node.is_tolerated_by(context.class)).then_some(0),
        reasons: &["node(s) had untolerated taint(s)"],
    },
    score: Some(score),
    scores_by: ScoresBy::Facts,
    retry_on: &[Change::NodeAdded, Change::NodeTaints],
    ..Plugin::NONE
};

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    for (score, id) in scores.iter_mut().zip(nodes) {
        let taints = &context.cache.node(*id).facts.taints;
        let soft = taints.iter().filter(|t| t.effect == taint::PREFER_NO_SCHEDULE);
        *score = soft.filter(|t| !taint::tolerated(&context.class.tolerations, t)).count() as i64;
    }
    normalise(scores, true);
}
