//! NodeResourcesFit: what the Pod requests is free on the node; prefer the least allocated.

use crate::{
    change::Change,
    class::Class,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, MAX_SCORE, Plugin},
    rejection::{Rejection, Text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    weight: 1,
    filter: Filter::Live(|context, _, node| filter(context, node)),
    score: Some(score),
    retry_on: &[Change::NodeAdded, Change::NodeAllocatable, Change::PodDeleted],
    ..Plugin::NONE
};

fn filter(context: &Context, node: &Node) -> Result<(), Rejection> {
    let (wanted, free) = (&context.class.requests, &node.facts.allocatable);
    let used = &node.requested;
    let short = |wanted: i64, used: i64, allocatable: i64| wanted > 0 && wanted > allocatable - used;
    let fits = node.pods < node.facts.max_pods
        && !short(wanted.cpu_milli, used.cpu_milli, free.cpu_milli)
        && !short(wanted.memory_bytes, used.memory_bytes, free.memory_bytes)
        && !short(wanted.storage_bytes, used.storage_bytes, free.storage_bytes)
        && !wanted.others.iter().any(|(id, amount)| short(*amount, used.other(*id), free.other(*id)));
    if fits { Ok(()) } else { Err(explain(context, node)) }
}

/// All that is short on a node that does not fit, in upstream's order.
fn explain(context: &Context, node: &Node) -> Rejection {
    let (wanted, free, used) = (&context.class.requests, &node.facts.allocatable, &node.requested);
    let (mut reasons, mut unresolvable) = (Vec::new(), false);
    if node.pods >= node.facts.max_pods {
        reasons.push(Text::Static("Too many pods"));
    }
    let mut check = |reason: Text, wanted: i64, used: i64, allocatable: i64| {
        if wanted > 0 && wanted > allocatable - used {
            reasons.push(reason);
            unresolvable |= wanted > allocatable;
        }
    };
    check(Text::Static("Insufficient cpu"), wanted.cpu_milli, used.cpu_milli, free.cpu_milli);
    check(Text::Static("Insufficient memory"), wanted.memory_bytes, used.memory_bytes, free.memory_bytes);
    check(Text::Static("Insufficient ephemeral-storage"), wanted.storage_bytes, used.storage_bytes, free.storage_bytes);
    for (id, amount) in &wanted.others {
        check(context.cache.resources.short(*id), *amount, used.other(*id), free.other(*id));
    }
    let mut reasons = reasons.into_iter();
    let reason = reasons.next().expect("called only when something is short");
    Rejection { reason, more: reasons.collect(), unresolvable }
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    for (score, id) in scores.iter_mut().zip(nodes) {
        *score = least_allocated(context.class, context.cache.node(*id));
    }
}

/// The mean of the free shares of cpu and memory, a container without requests counted with a default.
fn least_allocated(class: &Class, node: &Node) -> i64 {
    let free = &node.facts.allocatable;
    let both = [(node.scored.0 + class.scored.0, free.cpu_milli), (node.scored.1 + class.scored.1, free.memory_bytes)];
    let offered = both.iter().filter(|(_, allocatable)| *allocatable > 0);
    let (sum, count) = offered.fold((0, 0), |(sum, count), (used, allocatable)| {
        let share = if used > allocatable { 0 } else { (allocatable - used) * MAX_SCORE / allocatable };
        (sum + share, count + 1)
    });
    if count == 0 { 0 } else { sum / count }
}
