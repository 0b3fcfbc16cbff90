//! PodTopologySpread: the Pods that a constraint selects are spread over the domains of its topology key.

use crate::{
    change::Change,
    class::Spread,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, MAX_SCORE, Plugin},
    rejection::Rejection,
    tally::{Counts, Tally},
};

pub const PLUGIN: Plugin = Plugin {
    name: "PodTopologySpread",
    weight: 2,
    concerns: |c| !c.class.spread.is_empty(),
    tallies: |class, _, _| class.spread.iter().enumerate().map(|(i, spread)| (spread.key, Counts::Spread(i))).collect(),
    filter: Filter::Live(filter),
    score: Some(score),
    retry_on: &[
        Change::NodeAdded,
        Change::NodeLabels,
        Change::NodeTaints,
        Change::PodAdded,
        Change::PodDeleted,
        Change::PodLabels,
    ],
    node_local: false,
    ..Plugin::NONE
};

/// The constraints of one sort with their tallies.
fn constraints<'a>(context: &'a Context, hard: bool) -> impl Iterator<Item = (&'a Spread, &'a Tally)> {
    context.tallies.iter().filter_map(move |tally| match tally.counts {
        Counts::Spread(index) => Some((&context.class.spread[index], tally)).filter(|(s, _)| s.hard == hard),
        _ => None,
    })
}

fn filter(context: &Context, id: NodeId, _: &Node) -> Result<(), Rejection> {
    for (constraint, tally) in constraints(context, true) {
        let Some(domain) = context.cache.topologies.domain(constraint.key, id) else {
            return Err(Rejection::unresolvable(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ));
        };
        let itself = i64::from(constraint.counts(&context.class.namespace, context.class));
        if tally.sum(domain) + itself - tally.least(constraint.min_domains) > constraint.max_skew {
            return Err(Rejection::resolvable("node(s) didn't match pod topology spread constraints"));
        }
    }
    Ok(())
}

fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    let soft: Vec<_> = constraints(context, false).collect();
    if soft.is_empty() {
        return;
    }
    let topologies = &context.cache.topologies;
    // A node without all keys gets the least score, unless the constraints are the system's.
    let has_all = |id: &NodeId| soft.iter().all(|(s, _)| s.any_key || topologies.domain(s.key, *id).is_some());
    let counted: Vec<bool> = nodes.iter().map(has_all).collect();
    let mut raw = vec![0.0; nodes.len()];
    for (constraint, tally) in soft {
        let domains = nodes.iter().zip(&counted).map(|(id, c)| topologies.domain(constraint.key, *id).filter(|_| *c));
        let size = if topologies.is_hostname(constraint.key) {
            counted.iter().filter(|c| **c).count()
        } else {
            let mut seen = vec![false; topologies.domains(constraint.key)];
            domains.clone().flatten().for_each(|d| seen[d as usize] = true);
            let without = domains.clone().zip(&counted).any(|(domain, counted)| *counted && domain.is_none());
            seen.iter().filter(|s| **s).count() + usize::from(without)
        };
        // Few domains make a Pod more or less weigh more.
        let weight = (size as f64 + 2.0).ln();
        for (raw, domain) in raw.iter_mut().zip(domains) {
            if let Some(domain) = domain {
                *raw += tally.sum(domain) as f64 * weight + (constraint.max_skew - 1) as f64;
            }
        }
    }
    for (score, raw) in scores.iter_mut().zip(raw) {
        *score = raw.round() as i64;
    }
    reverse(scores, &counted);
}

/// Turns "how many are there" into a score between the extremes.
fn reverse(scores: &mut [i64], counted: &[bool]) {
    let held = || scores.iter().zip(counted).filter(|(_, c)| **c).map(|(s, _)| *s);
    let (least, most) = (held().min().unwrap_or(0), held().max().unwrap_or(0));
    for (score, counted) in scores.iter_mut().zip(counted) {
        *score = match (counted, most) {
            (false, _) => 0,
            (true, 0) => MAX_SCORE,
            (true, _) => MAX_SCORE * (most + least - *score) / most,
        };
    }
}
