//! NodeResourcesBalancedAllocation: prefer nodes whose resources (cpu and memory by default) would be used in equal shares.

use crate::{
    node_id::NodeId,
    plugin::{Context, MAX_SCORE, Plugin, ScoresBy},
    plugins::node_resources_fit::offered,
    resources::Resource,
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesBalancedAllocation",
    weight: 1,
    // Pods that request none of them say nothing about balance.
    concerns: |c| balanced(c).any(|(_, wanted)| wanted != 0),
    score: Some(score),
    scores_by: ScoresBy::Node,
    ..Plugin::NONE
};

/// The resources that count, with what the class asks for. An extended resource counts only when it is asked for.
fn balanced<'a>(context: &'a Context) -> impl Iterator<Item = (Resource, i64)> + 'a {
    let found = context.args.balanced.iter().filter_map(|name| context.cache.resources.find(name));
    let wanted = found.map(|resource| (resource, context.class.requests.of(resource)));
    wanted.filter(|(resource, wanted)| *wanted != 0 || !matches!(resource, Resource::Other(_)))
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    let resources: Vec<_> = balanced(context).collect();
    for (score, id) in scores.iter_mut().zip(nodes) {
        *score = balance(context, &resources, *id);
    }
}

fn balance(context: &Context, resources: &[(Resource, i64)], id: NodeId) -> i64 {
    let node = context.cache.node(id);
    let shares = || {
        let offered = resources.iter().map(|(resource, wanted)| (offered(context, id, node, *resource), *wanted));
        let offered = offered.filter(|((allocatable, _), _)| *allocatable != 0);
        offered.map(|((allocatable, used), wanted)| ((used + wanted) as f64 / allocatable as f64).min(1.0))
    };
    let (count, sum) = shares().fold((0, 0.0), |(count, sum), share| (count + 1, sum + share));
    let deviation = match count {
        0 | 1 => 0.0,
        // The standard deviation of two numbers is half their difference, which is exact this way.
        2 => (shares().fold(0.0, |other, share| share - other) / 2.0_f64).abs(),
        _ => {
            let mean = sum / f64::from(count);
            (shares().map(|share: f64| (share - mean).powi(2)).sum::<f64>() / f64::from(count)).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
