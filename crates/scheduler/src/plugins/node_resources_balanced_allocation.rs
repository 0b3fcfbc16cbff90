//! NodeResourcesBalancedAllocation: prefer nodes whose cpu and memory would be used in equal shares.

use crate::{
    class::Class,
    node::Node,
    node_id::NodeId,
    plugin::{Context, MAX_SCORE, Plugin},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesBalancedAllocation",
    weight: 1,
    // Pods that request neither say nothing about balance.
    concerns: |c| c.class.requests.cpu_milli != 0 || c.class.requests.memory_bytes != 0,
    score: Some(score),
    ..Plugin::NONE
};

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    for (score, id) in scores.iter_mut().zip(nodes) {
        *score = balance(context.class, context.cache.node(*id));
    }
}

fn balance(class: &Class, node: &Node) -> i64 {
    let (free, used, wanted) = (&node.facts.allocatable, &node.requested, &class.requests);
    if free.cpu_milli == 0 || free.memory_bytes == 0 {
        return MAX_SCORE;
    }
    let share = |used: i64, allocatable: i64| (used as f64 / allocatable as f64).min(1.0);
    let cpu = share(used.cpu_milli + wanted.cpu_milli, free.cpu_milli);
    let memory = share(used.memory_bytes + wanted.memory_bytes, free.memory_bytes);
    // The standard deviation of two numbers is half their difference.
    let deviation = ((cpu - memory) / 2.0).abs();
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
