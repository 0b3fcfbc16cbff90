//! NodeResourcesFit: what the Pod requests is free on the node; prefer by the profile's strategy, the least allocated by
//! default.

use crate::{
    args::Strategy,
    change::Change,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, MAX_SCORE, Plugin, ScoresBy},
    rejection::{Rejection, Text},
    resources::{Resource, ResourceId},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    weight: 1,
    filter: Filter::Live(|context, _, node| filter(context, node)),
    score: Some(score),
    scores_by: ScoresBy::Node,
    retry_on: &[Change::NodeAdded, Change::NodeAllocatable, Change::PodDeleted, Change::Devices],
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
        && !wanted
            .others
            .iter()
            .any(|(id, amount)| short(*amount, used.other(*id), free.other(*id)) && counts(context, node, *id));
    if fits { Ok(()) } else { Err(explain(context, node)) }
}

/// Whether the node must have the amount of an extended resource itself: unless somebody else minds it, or devices stand for it.
fn counts(context: &Context, node: &Node, id: ResourceId) -> bool {
    let cache = context.cache;
    !is_ignored(context, id) && !cache.devices.provide(&cache.resources, node, id)
}

/// All that is short on a node that does not fit, in upstream's order.
fn explain(context: &Context, node: &Node) -> Rejection {
    let (wanted, free, used) = (&context.class.requests, &node.facts.allocatable, &node.requested);
    // Mostly there is one reason, which then costs no list.
    let (mut first, mut more, mut unresolvable) = (None, Vec::new(), false);
    let mut say = |reason: Text| match &first {
        None => first = Some(reason),
        Some(_) => more.push(reason),
    };
    if node.pods >= node.facts.max_pods {
        say(Text::Static("Too many pods"));
    }
    let mut check = |reason: Text, wanted: i64, used: i64, allocatable: i64| {
        if wanted > 0 && wanted > allocatable - used {
            say(reason);
            unresolvable |= wanted > allocatable;
        }
    };
    check(Text::Static("Insufficient cpu"), wanted.cpu_milli, used.cpu_milli, free.cpu_milli);
    check(Text::Static("Insufficient memory"), wanted.memory_bytes, used.memory_bytes, free.memory_bytes);
    check(Text::Static("Insufficient ephemeral-storage"), wanted.storage_bytes, used.storage_bytes, free.storage_bytes);
    for (id, amount) in wanted.others.iter().filter(|(id, _)| counts(context, node, *id)) {
        check(context.cache.resources.short(*id), *amount, used.other(*id), free.other(*id));
    }
    let reason = first.expect("called only when something is short");
    Rejection { reason, more, unresolvable, broken: false }
}

/// Whether the profile leaves this extended resource to somebody else.
fn is_ignored(context: &Context, id: ResourceId) -> bool {
    let args = context.args;
    if args.ignored_resources.is_empty() && args.ignored_groups.is_empty() {
        return false;
    }
    let name = context.cache.resources.name(id);
    let in_group = |group: &String| name.split_once('/').is_some_and(|(of, _)| of == group);
    args.ignored_resources.iter().any(|ignored| ignored == name) || args.ignored_groups.iter().any(in_group)
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    let resources = scored_resources(context);
    for (score, id) in scores.iter_mut().zip(nodes) {
        *score = share(context, &resources, *id);
    }
}

/// The resources that count for a class, with their weights and what the class asks for. A container without a request
/// for cpu or memory counts with a default; another resource counts only when it is asked for.
fn scored_resources(context: &Context) -> Vec<(Resource, i64, i64)> {
    let class = context.class;
    let scored = context.args.scored.iter().filter_map(|weighted| {
        let resource = context.cache.resources.find(&weighted.name)?;
        let wanted = match resource {
            Resource::Cpu => class.scored.0,
            Resource::Memory => class.scored.1,
            other => class.requests.of(other),
        };
        let counts = wanted > 0 || !matches!(resource, Resource::Other(_));
        counts.then_some((resource, weighted.weight, wanted))
    });
    scored.collect()
}

/// The amount that a node has of a resource, and how much of that is in use. Of an extended resource that no device plugin
/// has there, it has the devices of the class that stands for it.
pub(super) fn offered(context: &Context, id: NodeId, node: &Node, resource: Resource) -> (i64, i64) {
    let (allocatable, used) = (node.facts.allocatable.of(resource), node.requested.of(resource));
    match resource {
        Resource::Other(name) if allocatable == 0 => {
            let cache = context.cache;
            cache.devices.total(&cache.resources, id, node, name).unwrap_or((allocatable, used))
        }
        _ => (allocatable, used),
    }
}

fn share(context: &Context, resources: &[(Resource, i64, i64)], id: NodeId) -> i64 {
    let (strategy, node) = (&context.args.strategy, context.cache.node(id));
    let (mut sum, mut weights) = (0, 0);
    for (resource, weight, wanted) in resources {
        let (allocatable, used) = offered(context, id, node, *resource);
        let used = match resource {
            Resource::Cpu => node.scored.0,
            Resource::Memory => node.scored.1,
            _ => used,
        } + wanted;
        if allocatable == 0 {
            continue;
        }
        let score = match strategy {
            Strategy::LeastAllocated if used > allocatable => 0,
            Strategy::LeastAllocated => (allocatable - used) * MAX_SCORE / allocatable,
            Strategy::MostAllocated => used.min(allocatable) * MAX_SCORE / allocatable,
            Strategy::RequestedToCapacityRatio(shape) => {
                on_line(shape, if used > allocatable { 100 } else { used * 100 / allocatable })
            }
        };
        // On a line, a resource that scores nothing does not count at all.
        if score > 0 || !matches!(strategy, Strategy::RequestedToCapacityRatio(_)) {
            sum += score * weight;
            weights += weight;
        }
    }
    match (strategy, weights) {
        (_, 0) => 0,
        (Strategy::RequestedToCapacityRatio(_), _) => (sum as f64 / weights as f64).round() as i64,
        _ => sum / weights,
    }
}

/// The score of a utilization on a broken line. The points' scores go to 10, a plugin's to [`MAX_SCORE`].
fn on_line(shape: &[(i64, i64)], utilization: i64) -> i64 {
    let scale = MAX_SCORE / 10;
    let Some(after) = shape.iter().position(|(at, _)| utilization <= *at) else {
        return shape.last().map_or(0, |(_, score)| score * scale);
    };
    let (right, high) = (shape[after].0, shape[after].1 * scale);
    if after == 0 {
        return high;
    }
    let (left, low) = (shape[after - 1].0, shape[after - 1].1 * scale);
    low + (high - low) * (utilization - left) / (right - left)
}
